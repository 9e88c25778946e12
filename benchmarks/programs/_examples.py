"""pytorch/examples."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import _stubs
import numpy as np
from _registry import TEXT, cora, program, script


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
    cora(work)
    _stubs.anything("requests")
    arguments = ["--hidden-dim=16", "--num-heads=2", "--dropout-p=0.0", "--no-accel"]
    script(clones / "examples/gat/main.py", *arguments)


@program("gcn", "pytorch/examples gcn")
def _(clones: Path, work: Path) -> None:
    cora(work)
    os.chdir(work)
    _stubs.anything("requests", "tarfile")
    script(clones / "examples/gcn/main.py", "--dropout-p=0.0", "--no-accel")


@program("vae", "pytorch/examples vae")
def _(clones: Path, work: Path) -> None:
    _stubs.torchvision(MNIST=_stubs.images(16 * 22, (1, 28, 28), 10, unit=True))
    script(clones / "examples/vae/main.py", "--batch-size=16", "--no-accel")


@program("dcgan", "pytorch/examples dcgan")
def _(clones: Path, work: Path) -> None:
    _stubs.torchvision(FakeData=_stubs.images(8 * 22, (3, 64, 64), 10))
    sizes = ["--ngf=8", "--ndf=8", "--batchSize=8", "--workers=0", "--manualSeed=1"]
    script(clones / "examples/dcgan/main.py", "--dataset=fake", f"--outf={work}", *sizes)


@program("mnist_rnn", "pytorch/examples mnist_rnn")
def _(clones: Path, work: Path) -> None:
    _stubs.torchvision(MNIST=_stubs.images(16 * 22, (1, 28, 28), 10))
    script(clones / "examples/mnist_rnn/main.py", "--batch-size=16")


@program("forward_forward", "pytorch/examples mnist_forward_forward")
def _(clones: Path, work: Path) -> None:
    _stubs.torchvision(MNIST=_stubs.images(100, (784,), 10))
    script(clones / "examples/mnist_forward_forward/main.py", "--train_size=100", "--test_size=10")


@program("reinforce", "pytorch/examples reinforce")
def _(clones: Path, work: Path) -> None:
    _stubs.gym(_stubs.CartPole)
    script(clones / "examples/reinforcement_learning/reinforce.py")


@program("actor_critic", "pytorch/examples actor_critic")
def _(clones: Path, work: Path) -> None:
    _stubs.gym(_stubs.CartPole)
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
