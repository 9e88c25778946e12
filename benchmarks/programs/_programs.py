"""The programs, each with a driver: a folder of a repository, sizes, and data."""

from __future__ import annotations

import ast
import os
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import _stubs
import numpy as np

TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of folly. "
)


@dataclass
class Program:
    """What a table shows of a program, and its driver: run(clones, work)."""

    title: str
    run: Callable[[Path, Path], None]


PROGRAMS: dict[str, Program] = {}


def program(name: str, title: str) -> Callable[[Callable[[Path, Path], None]], None]:
    def add(run: Callable[[Path, Path], None]) -> None:
        PROGRAMS[name] = Program(title, run)

    return add


def script(path: Path, *arguments: str, **constants: Any) -> None:
    """Runs a program as python would; `constants` replace what it assigns to these names at its top level."""
    if not path.exists():
        sys.exit(f"there is no {path}")
    sys.argv = [str(path), *arguments]
    sys.path.insert(0, str(path.parent))
    if not constants:
        runpy.run_path(str(path), run_name="__main__")
        return
    tree = ast.parse(path.read_text())
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            if node.targets[0].id in constants:
                node.value = ast.copy_location(ast.Constant(constants[node.targets[0].id]), node.value)
    exec(compile(tree, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})


def import_from(folder: Path, name: str) -> ModuleType:
    if not folder.exists():
        sys.exit(f"there is no {folder}")
    sys.path.insert(0, str(folder))
    return __import__(name, fromlist=["_"])


def batches(*shapes: Any, seed: int = 0) -> Iterator[list[Any]]:
    """Endless random batches: a shape is of normal numbers, (n, shape) of integers below n."""
    import torch

    random = np.random.default_rng(seed)
    while True:
        yield [
            torch.from_numpy(random.integers(0, s[0], s[1]))
            if isinstance(s[1], tuple)
            else torch.from_numpy(random.standard_normal(s, np.float32))
            for s in shapes
        ]


def train(model: Any, optimizer: Any, loss: Callable[..., Any], data: Iterator[Any]) -> None:
    """A plain loop; the recorder ends it."""
    model.train()
    for batch in data:
        optimizer.zero_grad()
        loss(*batch).backward()
        optimizer.step()


# ---- pytorch/examples


@program("regression", "pytorch/examples regression")
def _(clones: Path, work: Path) -> None:
    script(clones / "examples/regression/main.py")


@program("mnist", "pytorch/examples mnist")
def _(clones: Path, work: Path) -> None:
    _stubs.torchvision(MNIST=_stubs.images(16 * 22, (1, 28, 28), 10))
    script(clones / "examples/mnist/main.py", "--batch-size=16", "--no-accel")


@program("super_resolution", "pytorch/examples super_resolution")
def _(clones: Path, work: Path) -> None:
    import torch

    random = np.random.default_rng(0)
    low, high = (random.random((4 * 22, 1, n, n), np.float32) for n in (32, 96))
    data = torch.utils.data.TensorDataset(torch.from_numpy(low), torch.from_numpy(high))
    _stubs.module("data", get_training_set=lambda n: data, get_test_set=lambda n: data)
    arguments = ["--upscale_factor=3", "--batchSize=4", "--threads=0"]
    script(clones / "examples/super_resolution/main.py", *arguments)


@program("fast_neural_style", "pytorch/examples fast_neural_style")
def _(clones: Path, work: Path) -> None:
    from PIL import Image

    _stubs.torchvision(ImageFolder=_stubs.images(2 * 22, (3, 64, 64), 2))
    transforms = sys.modules["torchvision.transforms"]
    transforms.Compose.return_value = lambda image: _stubs.to_tensor(image) * 255
    picture = np.random.default_rng(0).integers(0, 255, (64, 64, 3)).astype(np.uint8)
    Image.fromarray(picture).save(work / "style.png")
    arguments = ["train", "--dataset=.", f"--style-image={work / 'style.png'}", f"--save-model-dir={work}"]
    folder = clones / "examples/fast_neural_style/neural_style"
    script(folder / "neural_style.py", *arguments, "--batch-size=2", "--image-size=64", "--lr=1e-5")


@program("gat", "pytorch/examples gat")
def _(clones: Path, work: Path) -> None:
    random = np.random.default_rng(0)
    (work / "cora").mkdir(exist_ok=True)
    words = random.integers(0, 2, (1700, 64))
    rows = [f"{i} {' '.join(map(str, row))} class{i % 7}" for i, row in enumerate(words)]
    (work / "cora/cora.content").write_text("\n".join(rows))
    cites = dict.fromkeys(map(tuple, random.integers(0, 1700, (4000, 2)).tolist()))
    (work / "cora/cora.cites").write_text("\n".join(f"{a} {b}" for a, b in cites))
    _stubs.anything("requests")
    arguments = ["--hidden-dim=16", "--num-heads=2", "--dropout-p=0.0", "--no-accel"]
    script(clones / "examples/gat/main.py", *arguments)


@program("actor_critic", "pytorch/examples actor_critic")
def _(clones: Path, work: Path) -> None:
    _stubs.module("gymnasium", make=lambda *args, **kwargs: _stubs.CartPole())
    script(clones / "examples/reinforcement_learning/actor_critic.py")


def _language_model(clones: Path, work: Path, *arguments: str) -> None:
    for name in ("train", "valid", "test"):
        (work / f"{name}.txt").write_text("\n".join([TEXT] * 200))
    sizes = ["--emsize=64", "--nhid=64", "--nlayers=2", "--batch_size=8", "--bptt=16", "--dropout=0.0"]
    folder = clones / "examples/word_language_model"
    script(folder / "main.py", f"--data={work}", f"--save={work / 'model.pt'}", *sizes, *arguments)


@program("word_lstm", "pytorch/examples word_language_model, LSTM")
def _(clones: Path, work: Path) -> None:
    _language_model(clones, work, "--model=LSTM")


@program("word_transformer", "pytorch/examples word_language_model, Transformer")
def _(clones: Path, work: Path) -> None:
    _language_model(clones, work, "--model=Transformer", "--nhead=4", "--lr=0.5")  # 20 overflows


@program("time_sequence", "pytorch/examples time_sequence_prediction")
def _(clones: Path, work: Path) -> None:
    import torch

    x = np.arange(40) + np.random.default_rng(0).integers(-80, 80, (20, 1))
    os.chdir(work)
    torch.save(np.sin(x / 20).astype("float64"), "traindata.pt")
    load = torch.load
    torch.load = lambda *args, **kwargs: load(*args, **{**kwargs, "weights_only": False})
    script(clones / "examples/time_sequence_prediction/train.py")


# ---- language models


@program("nanogpt", "karpathy/nanoGPT train.py")
def _(clones: Path, work: Path) -> None:
    folder = clones / "nanoGPT"
    place = work / "nanogpt"
    place.mkdir(exist_ok=True)
    for file in folder.glob("*.py"):
        (place / file.name).write_text(file.read_text())  # its data lies beside it
    (place / "data/words").mkdir(parents=True, exist_ok=True)
    for name in ("train", "val"):
        np.frombuffer((TEXT * 100).encode(), np.uint8).astype(np.uint16).tofile(
            place / f"data/words/{name}.bin"
        )
    os.chdir(place)
    sizes = (
        "block_size=64 batch_size=8 n_layer=2 n_head=4 n_embd=64 eval_iters=1 gradient_accumulation_steps=1"
    )
    more = (
        "dropout=0.0 compile=False device=cpu dtype=float32 dataset=words eval_interval=1000 log_interval=1"
    )
    script(place / "train.py", *(f"--{item}" for item in f"{sizes} {more}".split()))


@program("mingpt", "karpathy/minGPT adder")
def _(clones: Path, work: Path) -> None:
    import_from(clones / "minGPT", "mingpt")
    os.chdir(work)
    arguments = ["--model.model_type=gpt-nano", "--trainer.num_workers=0", "--trainer.batch_size=32"]
    script(clones / "minGPT/projects/adder/adder.py", *arguments)


@program("lecture_gpt", "karpathy/ng-video-lecture gpt.py")
def _(clones: Path, work: Path) -> None:
    (work / "input.txt").write_text(TEXT * 50)
    os.chdir(work)
    sizes = {"batch_size": 8, "block_size": 64, "eval_iters": 1, "n_embd": 96, "n_layer": 3, "dropout": 0.0}
    script(clones / "ng-video-lecture/gpt.py", **sizes)


@program("gpt2_kv_cache", "rasbt/LLMs-from-scratch GPT-2 with KV cache")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.anything("tiktoken")
    gpt = import_from(clones / "LLMs-from-scratch/ch04/03_kv-cache", "gpt_with_kv_cache")
    sizes = {"vocab_size": 500, "context_length": 64, "emb_dim": 96, "n_heads": 4, "n_layers": 3}
    model = gpt.GPTModel({**sizes, "drop_rate": 0.0, "qkv_bias": False})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss(x: Any) -> Any:
        entropy = torch.nn.functional.cross_entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
        with torch.no_grad():
            plain = gpt.generate_text_simple(model, x[:1, :4], 8, 64)
            cached = gpt.generate_text_simple_cached(model, x[:1, :4], 8)
            model.reset_kv_cache()
        assert torch.equal(plain, cached)
        return entropy

    train(model, optimizer, loss, batches((500, (4, 65))))


@program("mamba", "johnma2006/mamba-minimal")
def _(clones: Path, work: Path) -> None:
    import torch

    mamba = import_from(clones / "mamba-minimal", "model")
    model = mamba.Mamba(mamba.ModelArgs(d_model=64, n_layer=2, vocab_size=256))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    entropy = torch.nn.functional.cross_entropy
    loss = lambda x: entropy(model(x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    train(model, optimizer, loss, batches((256, (4, 33))))


@program("whisper", "openai/whisper model")
def _(clones: Path, work: Path) -> None:
    import torch

    _stubs.anything("tiktoken", "numba", "more_itertools")
    whisper = import_from(clones / "whisper", "whisper.model")
    sizes = {"n_mels": 80, "n_audio_ctx": 100, "n_audio_state": 64, "n_audio_head": 4, "n_audio_layer": 2}
    more = {"n_vocab": 500, "n_text_ctx": 32, "n_text_state": 64, "n_text_head": 4, "n_text_layer": 2}
    model = whisper.Whisper(whisper.ModelDimensions(**sizes, **more))
    for name, p in model.named_parameters():
        if name.endswith("positional_embedding"):
            torch.nn.init.normal_(p, std=0.01)  # the program leaves it to the checkpoint
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    entropy = torch.nn.functional.cross_entropy
    loss = lambda mel, x: entropy(model(mel, x[:, :-1]).flatten(0, 1), x[:, 1:].flatten())
    train(model, optimizer, loss, batches((2, 80, 200), (500, (2, 33))))


@program("attention", "jadore801120/attention-is-all-you-need-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    random = np.random.default_rng(0)
    words = {"<blank>": 1, **{f"w{i}": i for i in range(2, 500)}}
    vocab = _stubs.sized(500, stoi=words)
    sides = {side: SimpleNamespace(vocab=vocab) for side in ("src", "trg")}
    data = {"settings": SimpleNamespace(max_len=20), "vocab": sides, "train": [], "valid": []}
    text = lambda: torch.from_numpy(random.integers(1, 500, (20, 16)))  # time first; 1 is the padding
    found = [SimpleNamespace(src=text(), trg=text()) for _ in range(22)]
    _stubs.module("dill", load=lambda file: data)
    _stubs.anything("torchtext", "torchtext.datasets")
    names = {"Field": None, "Dataset": lambda **fields: None, "BucketIterator": lambda *a, **k: found}
    _stubs.module("torchtext.data", **names)
    (work / "data.pkl").touch()
    sizes = ["-d_model=64", "-d_inner_hid=128", "-n_layers=2", "-n_head=4", "-d_k=16", "-d_v=16"]
    shares = ["-embs_share_weight", "-proj_share_weight", "-label_smoothing", "-no_cuda"]
    files = [f"-data_pkl={work / 'data.pkl'}", f"-output_dir={work}"]
    folder = clones / "attention-is-all-you-need-pytorch"
    script(folder / "train.py", *files, *sizes, *shares, "-b=16")


def _nlp(clones: Path, folder: str, file: str) -> None:
    script(clones / "nlp-tutorial" / folder / file)


@program("skipgram", "graykode/nlp-tutorial Word2Vec-Skipgram")
def _(clones: Path, work: Path) -> None:
    _nlp(clones, "1-2.Word2Vec", "Word2Vec-Skipgram(Softmax).py")


@program("seq2seq", "graykode/nlp-tutorial Seq2Seq")
def _(clones: Path, work: Path) -> None:
    _nlp(clones, "4-1.Seq2Seq", "Seq2Seq.py")


@program("seq2seq_attention", "graykode/nlp-tutorial Seq2Seq(Attention)")
def _(clones: Path, work: Path) -> None:
    _nlp(clones, "4-2.Seq2Seq(Attention)", "Seq2Seq(Attention).py")


@program("bert", "graykode/nlp-tutorial BERT")
def _(clones: Path, work: Path) -> None:
    sizes = {"n_layers": 2, "n_heads": 4, "d_model": 128, "d_ff": 512, "d_k": 32, "d_v": 32}
    script(clones / "nlp-tutorial/5-2.BERT/BERT.py", **sizes)


# ---- vision


@program("resnet18", "kuangliu/pytorch-cifar ResNet18")
def _(clones: Path, work: Path) -> None:
    import torch

    model = import_from(clones / "pytorch-cifar", "models").ResNet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-5, momentum=0.9, weight_decay=5e-4)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((4, 3, 32, 32), (10, (4,))))


@program("unet", "milesial/Pytorch-UNet")
def _(clones: Path, work: Path) -> None:
    import torch
    import torch.nn.functional as F

    model = import_from(clones / "Pytorch-UNet", "unet").UNet(3, 2)
    dice = import_from(clones / "Pytorch-UNet", "utils.dice_score").dice_loss
    optimizer = torch.optim.RMSprop(
        model.parameters(), lr=1e-7, weight_decay=1e-8, momentum=0.999, foreach=True
    )

    def loss(image: Any, mask: Any) -> Any:
        found = model(image.to(dtype=torch.float32, memory_format=torch.channels_last))
        classes = F.one_hot(mask, 2).permute(0, 3, 1, 2).float()
        return F.cross_entropy(found, mask) + dice(F.softmax(found, dim=1).float(), classes, multiclass=True)

    train(model, optimizer, loss, batches((2, 3, 32, 32), (2, (2, 32, 32))))


@program("mlp_mixer", "lucidrains/mlp-mixer-pytorch")
def _(clones: Path, work: Path) -> None:
    import torch

    mixer = import_from(clones / "mlp-mixer-pytorch", "mlp_mixer_pytorch")
    model = mixer.MLPMixer(image_size=64, channels=3, patch_size=16, dim=128, depth=4, num_classes=10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    loss = lambda x, y: torch.nn.functional.cross_entropy(model(x), y)
    train(model, optimizer, loss, batches((8, 3, 64, 64), (10, (8,))))
