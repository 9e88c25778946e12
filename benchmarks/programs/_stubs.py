"""What stands for packages and downloads that programs want beside torch: small, the same in every run."""

from __future__ import annotations

import sys
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np


def module(name: str, **names: Any) -> ModuleType:
    """Puts a module of the given names where imports find it."""
    made = sys.modules[name] = ModuleType(name)
    made.__spec__ = ModuleSpec(name, None)  # importlib.util.find_spec asks for it
    vars(made).update(names)
    parent, _, last = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], last, made)
    return made


def anything(*names: str) -> None:
    """Modules of which programs use nothing that counts: every name is there and does nothing."""
    for name in names:
        sys.modules[name] = MagicMock(__spec__=ModuleSpec(name, None), __path__=[])


def sized(length: int, **names: Any) -> Any:
    """Something of a length, with the given names."""
    kind = type("Sized", (SimpleNamespace,), {"__len__": lambda self: length})
    return kind(**names)


def images(count: int, shape: tuple[int, ...], classes: int, seed: int = 0, unit: bool = False) -> Any:
    """A data set of random images and labels; `unit` has pixels from 0 to 1 instead of normal ones."""
    import torch

    class Images(torch.utils.data.Dataset):
        def __init__(self, *args: Any, **kwargs: Any) -> None:
            random = np.random.default_rng(seed)
            draw = random.random if unit else random.standard_normal
            self.images = torch.from_numpy(draw((count, *shape), np.float32))
            self.labels = random.integers(0, classes, count).tolist()

        def __len__(self) -> int:
            return count

        def __getitem__(self, i: int) -> tuple[Any, int]:
            return self.images[i], self.labels[i]

    return Images


def vgg16(**kwargs: Any) -> Any:
    """VGG-16 (Simonyan and Zisserman, table 1, column D) up to the fourth block, an eighth as wide."""
    from torch import nn

    layers: list[Any] = []
    channels = 3
    for width, count in ((8, 2), (16, 2), (32, 3), (64, 3)):
        for _ in range(count):
            layers += [nn.Conv2d(channels, width, 3, padding=1), nn.ReLU(inplace=True)]
            channels = width
        layers.append(nn.MaxPool2d(2, 2))
    return SimpleNamespace(features=nn.Sequential(*layers))


def torchvision(**datasets: Any) -> None:
    """torchvision with the given data sets; transforms do nothing, the data sets being tensors."""
    module("torchvision")
    anything("torchvision.transforms", "torchvision.transforms.functional", "torchvision.ops")
    module(
        "torchvision.utils",
        save_image=lambda *args, **kwargs: None,
        make_grid=lambda images, **kwargs: images,
    )
    sys.modules["torchvision"].transforms = sys.modules["torchvision.transforms"]  # type: ignore[attr-defined]
    module("torchvision.datasets", **datasets)
    weights = SimpleNamespace(IMAGENET1K_V1=None)
    module("torchvision.models", vgg16=vgg16, VGG16_Weights=weights)


def one_process() -> None:
    """Data loaders that programs give workers load in the program's own process."""
    import torch

    init = torch.utils.data.DataLoader.__init__

    def without_workers(loader: Any, *args: Any, **kwargs: Any) -> None:
        init(loader, *args, **{**kwargs, "num_workers": 0})

    torch.utils.data.DataLoader.__init__ = without_workers  # type: ignore[method-assign]


def to_tensor(image: Any) -> Any:
    """What transforms.ToTensor does to a picture."""
    import torch

    array = np.asarray(image, np.float32) / 255
    return torch.from_numpy(array.transpose(2, 0, 1).copy())


def gym(task: Any) -> None:
    """gym and gymnasium with this task under every name."""
    for name in ("gym", "gymnasium"):
        module(name, make=lambda *args, **kwargs: task())


class Pendulum:
    """A pendulum to swing up by a torque of at most 2: Euler steps, at most 50 in an episode."""

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def seen(self) -> Any:
        """What the program sees of the state."""
        return np.array([np.cos(self.angle), np.sin(self.angle), self.turn], np.float32)

    def reset(self, seed: int | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        self.angle, self.turn = self.random.uniform(-np.pi, np.pi), self.random.uniform(-1, 1)
        self.left = 50
        return self.seen(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict]:
        """Apply a torque."""
        force = float(np.clip(action[0], -2, 2))
        angle = (self.angle + np.pi) % (2 * np.pi) - np.pi
        cost = angle**2 + 0.1 * self.turn**2 + 0.001 * force**2
        self.turn = float(np.clip(self.turn + (15 * np.sin(self.angle) + 3 * force) * 0.05, -8, 8))
        self.angle += self.turn * 0.05
        self.left -= 1
        return self.seen(), -cost, self.left == 0, False, {}


class CartPole:
    """The task of Barto, Sutton and Anderson, "Neuronlike adaptive elements", section V: Euler steps, at most
    25 in an episode."""

    spec = SimpleNamespace(reward_threshold=475.0)

    def __init__(self) -> None:
        self.random = np.random.default_rng(0)

    def reset(self, seed: int | None = None) -> tuple[Any, dict]:
        """Begin an episode."""
        self.state, self.left = self.random.uniform(-0.05, 0.05, 4).astype(np.float32), 25
        return self.state, {}

    def step(self, action: int) -> tuple[Any, float, bool, bool, dict]:
        """Push left or right."""
        x, dx, angle, turn = (float(v) for v in self.state)
        force = 10.0 if action == 1 else -10.0
        sin, cos = np.sin(angle), np.cos(angle)
        pull = (force + 0.05 * turn**2 * sin) / 1.1
        bend = (9.8 * sin - cos * pull) / (0.5 * (4 / 3 - 0.1 * cos**2 / 1.1))
        push = pull - 0.05 * bend * cos / 1.1
        state = [x + 0.02 * dx, dx + 0.02 * push, angle + 0.02 * turn, turn + 0.02 * bend]
        self.state = np.array(state, np.float32)
        self.left -= 1
        done = bool(abs(state[0]) > 2.4 or abs(state[2]) > 0.2095 or self.left == 0)
        return self.state, 1.0, done, False, {}
