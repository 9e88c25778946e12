"""One program in one library: `_child.py NAME CLONES WORK OUT`; `torch` is the one that runs it.

Note [steps]: a step is a call of Tensor.backward. Its loss and its time are noted, and the call after the
last step ends the program. Weights are copied when an optimizer takes them: PyTorch's run leaves them in
WORK. Programs of several ranks draw theirs. With PERTURB set they are moved by one unit in the last place, up
or down. With CALLS=compiled the calls of modules go through torch.compile, with CALLS=plain through the same
wrapper without it; then there are twice as many steps, and the first half, in which both ways are tried, is
warm-up.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

CALLS = os.environ.get("CALLS")
WARM_UP = 3
clock = time.process_time if os.environ.get("WARPTAPE_NUM_THREADS") == "1" else time.perf_counter


class Enough(BaseException):
    """The program took its steps."""


class Recorder:
    """The losses of a program and the moments of its steps."""

    def __init__(self, work: Path, steps: int, warm_up: int) -> None:
        self.steps, self.warm_up = steps, warm_up
        self.losses: list[float] = []
        self.times: list[float] = []
        self._work, self._optimizers = work, 0

    def watch(self) -> None:
        """Note every backward, and give every optimizer the same weights."""
        backward, init = torch.Tensor.backward, torch.optim.Optimizer.__init__

        def noted(loss: Any, *args: Any, **kwargs: Any) -> Any:
            self.step(float(loss.detach().sum()))
            return backward(loss, *args, **kwargs)

        def same_weights(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            self._copy([p for group in optimizer.param_groups for p in group["params"]])

        torch.Tensor.backward = noted
        torch.optim.Optimizer.__init__ = same_weights

    def step(self, loss: float) -> None:
        """A step begins, with this loss."""
        self.times.append(clock())
        if len(self.losses) == self.steps:
            raise Enough
        self.losses.append(loss)

    def _copy(self, parameters: list[Any]) -> None:
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            return  # parts of weights, drawn alike from the same seed
        path = self._work / f"weights{self._optimizers}.npz"
        self._optimizers += 1
        if os.environ.get("PERTURB"):
            random = np.random.default_rng(0)
            with torch.no_grad():
                for p in parameters:
                    signs = torch.from_numpy(random.choice([-1.0, 1.0], p.shape)).to(p.dtype)
                    p.mul_(1 + signs * torch.finfo(p.dtype).eps)
            return
        if "warptape" not in torch.__name__:
            np.savez(path, *[p.detach().numpy() for p in parameters])
            return
        with np.load(path) as arrays, torch.no_grad():
            for p, name in zip(parameters, arrays.files, strict=True):
                p.copy_(torch.from_numpy(arrays[name]))

    def seconds(self) -> float:
        """The median time of a step."""
        lengths = [b - a for a, b in zip(self.times, self.times[1:])]
        return float(np.median(lengths[self.warm_up :]))


def without_dropout() -> None:
    same = lambda input, *args, **kwargs: input
    for name in ("Dropout", "Dropout1d", "Dropout2d"):
        getattr(torch.nn, name).forward = lambda self, input: input
    torch.nn.functional.dropout = same
    init = torch.nn.MultiheadAttention.__init__

    def init_without(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        self.dropout = 0.0

    torch.nn.MultiheadAttention.__init__ = init_without


def wrap_calls() -> None:
    """Calls of modules outside of another's call go through torch.compile, or through nothing."""
    call, wrapped, inside = torch.nn.Module.__call__, {}, []
    wrap = torch.compile if CALLS == "compiled" else partial

    def outermost(module: Any, *args: Any, **kwargs: Any) -> Any:
        if inside:
            return call(module, *args, **kwargs)
        if module not in wrapped:
            wrapped[module] = wrap(partial(call, module))
        inside.append(module)
        try:
            return wrapped[module](*args, **kwargs)
        finally:
            inside.pop()

    torch.nn.Module.__call__ = outermost


def main() -> None:
    name, clones, work, out = sys.argv[1], *map(Path, sys.argv[2:5])
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    from _programs import PROGRAMS

    random.seed(0)
    np.random.seed(0)  # noqa: NPY002 - what programs draw from
    torch.manual_seed(0)
    without_dropout()
    if CALLS:
        wrap_calls()
    steps = PROGRAMS[name].steps * (2 if CALLS else 1)
    recorder = Recorder(work, steps, steps // 2 if CALLS else WARM_UP)
    recorder.watch()
    with contextlib.suppress(Enough):
        PROGRAMS[name].run(clones, work)
    if len(recorder.losses) < steps:
        sys.exit(f"{len(recorder.losses)} steps of {steps}")
    out.write_text(json.dumps({"losses": recorder.losses, "seconds": recorder.seconds()}))


main()
