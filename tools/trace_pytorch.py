"""trace_hashes for real PyTorch, with the same files: `warptape diff` compares them by a tolerance.

This file and python/warptape/tools/trace/trace_file.py import torch and the standard library alone, so that
both may be copied into a folder of a machine that has no warptape. A PyTorch program is traced by

    python tools/trace_pytorch.py RUN [--no-statistics] train.py [arguments]

or, where this folder is on its path, by `with trace_pytorch.trace_hashes("run"):` in it. Ops are those of
PyTorch's dispatcher, which are not warptape's. So a trace of this and one of warptape are compared by what
has a name: inputs and results of modules, gradients, parameters and states of optimizers.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import runpy
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode

HERE = os.path.dirname(os.path.abspath(__file__))
# Of the source tree, unless a copy lies beside this file.
sys.path += [HERE, os.path.join(os.path.dirname(HERE), "python", "warptape", "tools", "trace")]
from trace_file import TraceWriter  # noqa: E402

HASH = "blake2b-64"
SAMPLES = 8
_UNWRITTEN = ("aten.empty", "aten.new_empty", "aten.resize_", "aten._reshape_alias")
_FOLDERS = (os.path.dirname(torch.__file__) + os.sep, os.path.abspath(__file__))


def _tensors(value: object) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors(item)


def _site() -> str:
    frame = sys._getframe(1)
    while frame.f_code.co_filename.startswith(_FOLDERS):
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{os.path.basename(frame.f_code.co_filename)}:{frame.f_lineno} in {frame.f_code.co_name}"


def hash_of(t: torch.Tensor) -> str:
    """64 bits of a tensor's bytes: BLAKE2b with a digest of 8 bytes.

    Args:
        t: contiguous, in host memory.
    """
    data = t.view(-1).view(torch.uint8).numpy() if t.numel() else b""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def statistics_of(t: torch.Tensor) -> list[float]:
    """Norm, mean, least and greatest value and samples, as warptape's trace has them; [] of other dtypes.

    Args:
        t: any tensor.
    """
    if not t.is_floating_point() or not t.numel():
        return []
    wide = t.reshape(-1).double()
    places = [k * (wide.numel() - 1) // (SAMPLES - 1) for k in range(SAMPLES)]
    first = torch.stack([wide.square().sum().sqrt(), wide.mean(), wide.min(), wide.max()])
    return [*first.tolist(), *wide[places].tolist()]


class _Ops(TorchDispatchMode):
    def __init__(self, trace: trace_hashes) -> None:
        super().__init__()
        self._trace = trace

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        self._trace._op(func, args, kwargs or {}, out)
        return out


class trace_hashes:
    """Within it, what PyTorch computes is hashed into `folder/rankN.trace`.

    Args:
        folder: of the run.
        statistics: also writes norm, mean, extremes and samples, by which runs are compared by a tolerance.
        rank: of this trace; RANK of the environment unless given.

    Raises:
        OSError: the folder cannot be written.
    """

    def __init__(self, folder: str, *, statistics: bool = True, rank: int | None = None) -> None:
        self._folder, self._statistics = folder, statistics
        self._rank = int(os.environ.get("RANK", "0")) if rank is None else rank

    def __enter__(self) -> trace_hashes:
        world = int(os.environ.get("WORLD_SIZE", "1"))
        self._writer = TraceWriter(self._folder, self._rank, world, HASH, f"PyTorch {torch.__version__}")
        self._thread, self._by_optimizer = threading.get_ident(), True
        self._stack: list[torch.nn.Module] = []
        self._paths: dict[torch.nn.Module, str] = {}
        self._names: dict[int, tuple[str, torch.Tensor]] = {}
        modules = torch.nn.modules.module
        here = self._in_thread
        self._handles = [
            modules.register_module_forward_pre_hook(here(self._enter_module)),
            modules.register_module_forward_hook(here(self._leave_module), always_call=True),
            register_optimizer_step_pre_hook(here(self._before_step)),
            register_optimizer_step_post_hook(here(self._after_step)),
        ]
        self._ops = _Ops(self)
        self._ops.__enter__()
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        self._ops.__exit__(kind, *error)
        for handle in self._handles:
            handle.remove()
        self._writer.close(ended=kind is None)

    def step(self) -> None:
        """Ends a step. From its first call on, steps of optimizers no longer do."""
        self._by_optimizer = False
        self._writer.next_step()

    def _in_thread(self, method: Callable[..., None]) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            if threading.get_ident() == self._thread:
                with torch.no_grad(), torch.utils._python_dispatch._disable_current_modes():
                    method(*args)

        return hook

    def _op(self, func: Any, args: Any, kwargs: Any, out: Any) -> None:
        name = str(func)
        if func.is_view or name.startswith(_UNWRITTEN):
            return
        node = torch._C._current_autograd_node()
        forward = node is None
        if forward:
            kind = "random" if torch.Tag.nondeterministic_seeded in func.tags else "op"
            site, module = _site(), self._paths.get(self._stack[-1], "") if self._stack else ""
        else:
            kind = "backward"
            site, module = node.metadata.get("trace") or ("", node.name())
        found = list(_tensors(out))
        if forward:
            for t in found:
                if t.grad_fn is not None:
                    t.grad_fn.metadata.setdefault("trace", (site, module))
        self._record(kind, name, site, module, found)

    def _enter_module(self, module: torch.nn.Module, args: Any) -> None:
        if module not in self._paths:
            for path, inner in module.named_modules():
                self._paths.setdefault(inner, path or type(module).__name__)
            for path, t in (*module.named_parameters(), *module.named_buffers()):
                if id(t) not in self._names:
                    self._names[id(t)] = path, t
                    self._record("parameter", path, "", "", [t])
        if not self._stack:
            self._record("input", type(module).__name__, "", self._paths[module], _tensors(args))
        self._stack.append(module)

    def _leave_module(self, module: torch.nn.Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._record("module", type(module).__name__, "", self._paths.get(module, ""), _tensors(output))

    def _parameters(self, optimizer: torch.optim.Optimizer) -> Iterator[tuple[str, torch.Tensor]]:
        for i, group in enumerate(optimizer.param_groups):
            for j, p in enumerate(group["params"]):
                yield self._names.get(id(p), (f"group {i} parameter {j}", p))[0], p

    def _before_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for name, p in self._parameters(optimizer):
            if p.grad is not None:
                self._record("gradient", name, "", "", [p.grad])

    def _after_step(self, optimizer: torch.optim.Optimizer, *_: Any) -> None:
        for name, p in self._parameters(optimizer):
            self._record("parameter", name, "", "", [p])
            for key, value in (optimizer.state.get(p) or {}).items():
                if isinstance(value, torch.Tensor):
                    self._record("state", f"{name}.{key}", "", "", [value])
        if self._by_optimizer:
            self._writer.next_step()

    def _record(self, kind: str, name: str, site: str, module: str, given: Iterable[torch.Tensor]) -> None:
        tensors = [
            t.detach().cpu().contiguous() for t in given if t.layout == torch.strided and not t.is_meta
        ]
        if not tensors:
            return
        values = tuple((str(t.dtype).rpartition(".")[2], tuple(t.shape)) for t in tensors)
        numbers = [statistics_of(t) for t in tensors] if self._statistics else None
        self._writer.write((kind, name, site, module, values), [hash_of(t) for t in tensors], numbers)


def main() -> None:
    """`trace_pytorch.py RUN [--no-statistics] SCRIPT [arguments]`: runs a PyTorch program within a trace."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", help="folder of the trace")
    parser.add_argument("--no-statistics", action="store_true", help="write hashes alone")
    parser.add_argument("script")
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    given = parser.parse_args()
    sys.argv = [given.script, *given.arguments]
    sys.path[0] = os.path.dirname(os.path.abspath(given.script))
    with trace_hashes(given.run, statistics=not given.no_statistics):
        runpy.run_path(given.script, run_name="__main__")


if __name__ == "__main__":
    main()
