"""What drivers share: the list of programs, scripts as python runs them, made-up batches, a plain loop."""

from __future__ import annotations

import ast
import runpy
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

TEXT = (
    "It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of folly. "
)


@dataclass
class Program:
    """What a table shows of a program, and its driver: run(clones, work)."""

    title: str
    run: Callable[[Path, Path], None]
    ranks: int = 1
    steps: int = 20


PROGRAMS: dict[str, Program] = {}


def program(
    name: str, title: str, ranks: int = 1, steps: int = 20
) -> Callable[[Callable[[Path, Path], None]], None]:
    """Puts a driver on the list; one with `ranks` runs in so many processes, as torchrun starts them."""

    def add(run: Callable[[Path, Path], None]) -> None:
        PROGRAMS[name] = Program(title, run, ranks, steps)

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


def cora(work: Path) -> None:
    """A made-up graph of citations in the files of Cora: 1700 papers of 64 words and 7 classes."""
    random = np.random.default_rng(0)
    (work / "cora").mkdir(exist_ok=True)
    words = random.integers(0, 2, (1700, 64))
    rows = [f"{i} {' '.join(map(str, row))} class{i % 7}" for i, row in enumerate(words)]
    (work / "cora/cora.content").write_text("\n".join(rows))
    cites = dict.fromkeys(map(tuple, random.integers(0, 1700, (4000, 2)).tolist()))
    (work / "cora/cora.cites").write_text("\n".join(f"{a} {b}" for a, b in cites))
