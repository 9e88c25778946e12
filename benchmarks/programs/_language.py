"""Language models, translation and word vectors."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import _stubs
import numpy as np
from _registry import TEXT, batches, import_from, program, script, train


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


@program("makemore_gru", "karpathy/makemore GRU")
def _(clones: Path, work: Path) -> None:
    _makemore(clones, work, "gru")


@program("makemore_bow", "karpathy/makemore bag of words")
def _(clones: Path, work: Path) -> None:
    _makemore(clones, work, "bow")


def _makemore(clones: Path, work: Path, kind: str) -> None:
    os.chdir(work)
    _stubs.anything("torch.utils.tensorboard")
    names = clones / "makemore/names.txt"
    script(clones / "makemore/makemore.py", f"--type={kind}", f"-i={names}", "--num-workers=0")


@program("llama2", "karpathy/llama2.c model.py")
def _(clones: Path, work: Path) -> None:
    package = import_from(clones / "llama2.c", "model")
    sizes = {"dim": 64, "n_layers": 2, "n_heads": 4, "n_kv_heads": 2, "vocab_size": 256, "max_seq_len": 32}
    model = package.Transformer(package.ModelArgs(**sizes))
    optimizer = model.configure_optimizers(0.1, 5e-4, (0.9, 0.95), "cpu")

    def loss(x: Any) -> Any:
        model(x[:, :-1], x[:, 1:].contiguous())
        return model.last_loss

    train(model, optimizer, loss, batches((256, (4, 33))))


@program("mamba2", "alxndrTL/mamba.py Mamba with a parallel scan")
def _(clones: Path, work: Path) -> None:
    import torch

    package = import_from(clones / "mamba.py", "mambapy.mamba")
    model = package.Mamba(package.MambaConfig(d_model=32, n_layers=2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    loss = lambda x, y: torch.nn.functional.mse_loss(model(x), y)
    train(model, optimizer, loss, batches((4, 64, 32), (4, 64, 32)))


@program("annotated_transformer", "harvardnlp/annotated-transformer example_simple_model")
def _(clones: Path, work: Path) -> None:
    text = [
        "torchtext",
        "torchtext.data",
        "torchtext.data.functional",
        "torchtext.vocab",
        "torchtext.datasets",
    ]
    _stubs.anything("altair", "spacy", "GPUtil", "pandas", *text)
    package = import_from(clones / "annotated-transformer", "the_annotated_transformer")
    make, generate = package.make_model, package.data_gen
    package.make_model = lambda V, T, N: make(V, T, N, d_model=64, d_ff=128, h=4)
    package.data_gen = lambda V, batch_size, count: generate(V, 16, count)
    package.example_simple_model()


@program("hyunwoong_transformer", "hyunwoongko/transformer")
def _(clones: Path, work: Path) -> None:
    import torch

    package = import_from(clones / "transformer", "models.model.transformer")
    sizes = {"enc_voc_size": 200, "dec_voc_size": 200, "d_model": 64, "n_head": 4, "ffn_hidden": 128}
    pads = {"src_pad_idx": 1, "trg_pad_idx": 1, "trg_sos_idx": 2}
    more = {"max_len": 32, "n_layers": 2, "drop_prob": 0.0, "device": torch.device("cpu")}
    model = package.Transformer(**pads, **sizes, **more)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-5, weight_decay=5e-4, eps=5e-9)
    entropy = torch.nn.CrossEntropyLoss(ignore_index=1)

    def loss(source: Any, target: Any) -> Any:
        found = model(source, target[:, :-1])
        return entropy(found.flatten(0, 1), target[:, 1:].flatten())

    train(model, optimizer, loss, batches((200, (8, 16)), (200, (8, 16))))


@program("bert_pretrain", "codertimo/BERT-pytorch pretraining")
def _(clones: Path, work: Path) -> None:
    import torch

    package = import_from(clones / "BERT-pytorch", "bert_pytorch.trainer")
    bert = import_from(clones / "BERT-pytorch", "bert_pytorch.model").BERT
    random = np.random.default_rng(0)
    draw = lambda below, *shape: torch.from_numpy(random.integers(0, below, shape))
    data = [
        {
            "bert_input": draw(200, 4, 24),
            "segment_label": draw(3, 4, 24),
            "bert_label": draw(200, 4, 24),
            "is_next": draw(2, 4),
        }
        for _ in range(22)
    ]
    model = bert(200, hidden=64, n_layers=2, attn_heads=4, dropout=0.0)
    trainer = package.BERTTrainer(model, 200, data, with_cuda=False, lr=1e-4)
    while True:
        trainer.train(0)


@program("rwkv", "BlinkDL/RWKV-LM v1")
def _(clones: Path, work: Path) -> None:
    model = import_from(clones / "RWKV-LM/RWKV-v1", "src.model")
    sizes = {"n_layer": 2, "n_head": 4, "n_embd": 64, "n_attn": 64, "n_ffn": 64, "model_type": "RWKV"}
    config = model.GPTConfig(100, 32, **sizes, rwkv_emb_scale=0.4, rwkv_tiny_attn=0, rwkv_tiny_head=0)
    net = model.GPT(config)
    rates = {"learning_rate": 6e-4, "betas": (0.9, 0.99), "eps": 1e-8, "weight_decay": 0.0}
    optimizer = net.configure_optimizers(SimpleNamespace(**rates))
    loss = lambda x: net(x[:, :-1], x[:, 1:].contiguous())[1]
    train(net, optimizer, loss, batches((100, (4, 33))))


@program("rnn_names", "yunjey/pytorch-tutorial language_model")
def _(clones: Path, work: Path) -> None:
    os.chdir(work)
    folder = clones / "pytorch-tutorial/tutorials/02-intermediate/language_model"
    (work / "data").mkdir(exist_ok=True)
    (work / "data/train.txt").write_text("\n".join([TEXT] * 400))
    sizes = {"embed_size": 32, "hidden_size": 64, "batch_size": 4, "seq_length": 10}
    script(folder / "main.py", **sizes)
