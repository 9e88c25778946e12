"""trace_hashes: writes what each op, gradient, state and batch of a run hashes to, into a file per rank."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

from ... import _C
from ...core import Tensor
from ...core.by_name import tensors_in
from ...core.interchange import raw_bytes
from ...distributed.collective_hooks import register_collective_hook
from ...nn.modules.module import Module, register_module_forward_hook, register_module_forward_pre_hook
from ...nn.parameter import Parameter
from ...optim.optimizer import (
    Optimizer,
    register_optimizer_step_post_hook,
    register_optimizer_step_pre_hook,
)
from ...utils.data.dataloader import register_batch_hook
from ...version import __version__
from .trace_file import TraceWriter

__all__ = ["trace_hashes"]

HASH = "crc32c-crc32"
SAMPLES = 8  # values of a tensor that its statistics list
_PACKAGE = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_COMPILED = "_orig_mod."  # what torch.compile puts before names
# Results that nobody has written yet.
_UNWRITTEN = ("empty", "new_empty", "resize_", "_empty")
_SPACES = (_C._functions, _C.TensorBase, _C._nn, _C._private)


@functools.cache
def _function(place: str, name: str) -> Any:
    """The function of an op of C++."""
    spaces = [getattr(_C, f"_{place}")] if place else []
    return next(vars(s)[name] for s in (*spaces, *_SPACES) if name in vars(s))


@functools.cache
def _file_name(path: str) -> str | None:
    """None for a file of this package."""
    return None if path.startswith(_PACKAGE) else os.path.basename(path)


def _site() -> str:
    """The innermost line outside of this package that is being executed, as "train.py:12 in step"."""
    frame = sys._getframe(1)
    while (name := _file_name(frame.f_code.co_filename)) is None:
        if frame.f_back is None:
            return ""
        frame = frame.f_back
    return f"{name}:{frame.f_lineno} in {frame.f_code.co_name}"


def hash_of(data: memoryview) -> str:
    """64 bits of some bytes: the CRC-32C of their first half and the CRC-32 of their second.

    So each byte is read once, by an instruction or by carry-less products, and any fault that lies within 32
    bits of a half is seen for certain.

    Args:
        data: a buffer of bytes.
    """
    middle = len(data) // 2
    return f"{_C._distributed._crc32c(data[:middle]):08x}{_C._crc32(data[middle:]):08x}"


def _floats(t: Tensor) -> np.ndarray | None:
    """The values of a contiguous tensor in host memory, flat; None unless it has real floating ones."""
    data = np.frombuffer(raw_bytes(t), np.uint8)
    kind = str(t.dtype).rpartition(".")[2]
    if kind == "bfloat16":
        return (data.view(np.uint16).astype(np.uint32) << 16).view(np.float32)
    return data.view(kind) if kind in ("float16", "float32", "float64") else None


def statistics_of(values: np.ndarray | None) -> list[float]:
    """Norm, mean, least and greatest value, and values at places spread evenly.

    Args:
        values: flat; None gives an empty list, as no values do.
    """
    if values is None or not values.size:
        return []
    wide = values.astype(np.float64)
    places = [k * (wide.size - 1) // (SAMPLES - 1) for k in range(SAMPLES)]
    with np.errstate(all="ignore"):
        first = [np.sqrt((wide * wide).sum()), wide.mean(), wide.min(), wide.max()]
    return [float(x) for x in (*first, *wide[places])]


class _Ops:
    """Hands each op to the trace: a mode as TorchDispatchMode is one, without the names of torch.ops."""

    def __init__(self, trace: trace_hashes) -> None:
        self._trace = trace

    def _called(self, place: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        function = _function(place, name)
        out = function(*args, **kwargs)
        self._trace._op(name, function, args, kwargs, out)
        return out


class _Hooks:
    """The hooks of a process, which the traces of its threads share: ranks may be threads, and no trace may
    change a list of hooks that another thread is going through."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._traces: dict[int, trace_hashes] = {}
        self._handles: list[Any] = []

    def trace(self) -> trace_hashes | None:
        """That of this thread."""
        return self._traces.get(threading.get_ident())

    def add(self, trace: trace_hashes) -> None:
        """The trace is this thread's from now on. RuntimeError where it has one.

        Args:
            trace: is entered.
        """
        with self._lock:
            if threading.get_ident() in self._traces:
                raise RuntimeError("trace_hashes: this thread is within another trace")
            self._traces[threading.get_ident()] = trace
            if len(self._traces) == 1:
                self._handles = [
                    register_module_forward_pre_hook(self._of_thread("_enter_module")),
                    register_module_forward_hook(self._of_thread("_leave_module"), always_call=True),
                    register_optimizer_step_pre_hook(self._of_thread("_before_step")),
                    register_optimizer_step_post_hook(self._of_thread("_after_step")),
                    register_batch_hook(self._of_thread("_batch")),
                    register_collective_hook(self._of_thread("_collective")),
                ]

    def remove(self, trace: trace_hashes) -> None:
        """The thread has no trace any more.

        Args:
            trace: is left.
        """
        with self._lock:
            self._traces = {thread: t for thread, t in self._traces.items() if t is not trace}
            for handle in () if self._traces else self._handles:
                handle.remove()

    def _of_thread(self, method: str) -> Callable[..., None]:
        def hook(*args: Any) -> None:
            trace = self.trace()
            if trace is not None:
                with _without_modes():
                    getattr(trace, method)(*args)

        return hook


@contextlib.contextmanager
def _without_modes() -> Iterator[None]:
    """No mode sees what a hook does."""
    modes = _C._dispatch_modes()
    for _ in modes:
        _C._pop_dispatch_mode()
    try:
        yield
    finally:
        for mode in modes:
            _C._push_dispatch_mode(mode)


_hooks = _Hooks()


class trace_hashes:
    """What `warptape.utils.trace_hashes` gives; it has the description."""

    def __init__(
        self,
        folder: str | os.PathLike[str],
        *,
        statistics: bool = False,
        keep: Iterable[tuple[int, int]] = (),
        rank: int | None = None,
    ) -> None:
        self.folder = Path(folder)
        self._statistics, self._keep, self._rank = statistics, {(int(s), int(i)) for s, i in keep}, rank
        self._writer: TraceWriter | None = None
        self._by_optimizer = True

    def __enter__(self) -> trace_hashes:
        if self._writer is not None:
            raise RuntimeError("trace_hashes: it is entered already; make one for each run")
        _hooks.add(self)
        rank, world = _rank_and_world() if self._rank is None else (self._rank, self._rank + 1)
        try:
            self._writer = TraceWriter(self.folder, rank, world, HASH, f"warptape {__version__}")
        except OSError:
            _hooks.remove(self)
            raise
        self._rank = rank
        self._stack: list[Module] = []
        self._paths: dict[Module, str] = {}
        self._names: dict[int, tuple[str, Tensor]] = {}  # of parameters, by id()
        # What was said of tensors: (tensor, version, dtype and shape, hash, statistics) by id(). They are
        # held, so that no other tensor gets their memory.
        self._known: dict[int, tuple[Any, ...]] = {}  # of the last record
        self._states: dict[int, tuple[Any, ...]] = {}  # of what ops wrote within a step of an optimizer
        self._in_step = False
        _C._push_dispatch_mode(_Ops(self))
        return self

    def __exit__(self, kind: Any, *error: Any) -> None:
        _C._pop_dispatch_mode()
        _hooks.remove(self)
        if self._writer is not None:
            self._writer.close(ended=kind is None)
        self._stack, self._paths, self._names = [], {}, {}
        self._known, self._states = {}, {}

    def step(self) -> None:
        """Ends a step. From its first call on, steps of optimizers no longer do.

        Raises:
            RuntimeError: the trace is not entered.
        """
        if self._writer is None:
            raise RuntimeError("trace_hashes: step() is called outside of the trace")
        self._by_optimizer = False
        self._writer.next_step()

    # ---- what is recorded ---------------------------------------------------------------------------------

    def _op(self, name: str, function: Any, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """An op has run."""
        if name.startswith(_UNWRITTEN):
            return
        node = _C._current_autograd_node()
        if node is not None and "trace" in node.metadata:
            return  # what the node gives is recorded
        results = out if type(out) in (tuple, list) else (out,) if type(out) is Tensor else _all(out)
        module = self._paths.get(self._stack[-1], "") if self._stack else ""
        site = _site()
        if node is None:
            self._watch(results, name, site, module)
        written = function._written(*args, **kwargs)
        results_of = [*written, *self._made(results, args, kwargs, written)]
        if results_of:
            self._record("random" if function._is_random else "op", name, site, module, results_of)

    def _watch(self, results: Iterable[Any], name: str, site: str, module: str) -> None:
        """Has the nodes that an op has recorded tell what they give: those that no earlier op has."""
        waiting = [t.grad_fn for t in results if isinstance(t, Tensor)]
        while waiting:
            node = waiting.pop()
            if node is None or node.variable is not None or "trace" in node.metadata:
                continue
            node.metadata["trace"] = self._writer
            following = [n for n, _ in node.next_functions]
            # What goes to a parameter alone is its gradient, which is recorded when all of it is there.
            inner = [n is not None and n.variable is None for n in following]
            node.register_hook(functools.partial(self._backward, node.name(), site, module, inner))
            waiting += following

    def _backward(
        self, name: str, site: str, module: str, inner: list[bool], inputs: Any, given: Any
    ) -> None:
        """A node has computed the gradients of its inputs. Those that lie in what it was given, as a sum's or
        a transposition's, say nothing new."""
        if _hooks.trace() is not self:  # another thread, or a pass after the trace
            return
        with _without_modes():
            known = {t.data_ptr() for t in _all(given)}
            grads = _all([t for t, own in zip(inputs, inner) if own])
            new = [t for t in grads if t.data_ptr() not in known]
            self._record("backward", name, site, module, new)

    def _made(self, results: Any, args: Any, kwargs: Any, written: Any) -> list[Tensor]:
        """Those of the results that are no views of arguments."""
        inputs = [t for t in tensors_in((args, kwargs)) if _has_memory(t)]
        bases = [*inputs, *(t._base for t in inputs)]
        addresses = {t.data_ptr() for t in inputs}  # detach() gives a view without a base
        created = []
        for t in results:
            if isinstance(t, Tensor) and _has_memory(t) and t.data_ptr() not in addresses:
                base = t._base
                if base is None or not any(base is b for b in bases):
                    created.append(t)
        return [t for t in created if not any(t is w for w in written)]

    def _enter_module(self, module: Module, args: Any) -> None:
        if module not in self._paths:
            self._name_modules(module)
        if not self._stack:
            self._record("input", type(module).__name__, "", self._paths[module], _all(args))
        self._stack.append(module)

    def _name_modules(self, root: Module) -> None:
        """Paths of the modules in one that runs within no other, and its parameters as they are."""
        for path, module in root.named_modules():
            self._paths.setdefault(module, path.replace(_COMPILED, "") or type(root).__name__)
        for path, t in (*root.named_parameters(), *root.named_buffers()):
            if id(t) not in self._names:
                name = path.replace(_COMPILED, "")
                self._names[id(t)] = name, t
                self._record("parameter", name, "", "", [t])

    def _leave_module(self, module: Module, args: Any, output: Any) -> None:
        if self._stack:
            self._stack.pop()
        self._record("module", type(module).__name__, "", self._paths.get(module, ""), _all(output))

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        for name, p in self._parameters(optimizer):
            if p.grad is not None:
                self._record("gradient", name, "", "", [p.grad])
        self._in_step = True

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        for name, p in self._parameters(optimizer):
            self._record("parameter", name, "", "", [p])
            for key, value in (optimizer.state.get(p) or {}).items():
                if isinstance(value, Tensor):
                    self._record("state", f"{name}.{key}", "", "", [value])
        self._in_step, self._states = False, {}
        if self._by_optimizer and self._writer is not None:
            self._writer.next_step()

    def _parameters(self, optimizer: Optimizer) -> Iterable[tuple[str, Tensor]]:
        for i, group in enumerate(optimizer.param_groups):
            for j, p in enumerate(group["params"]):
                yield self._names.get(id(p), (f"group {i} parameter {j}", p))[0], p

    def _batch(self, batch: Any) -> None:
        self._record("batch", "DataLoader", _site(), "", _all(batch))

    def _collective(self, name: str, outputs: Iterable[Tensor]) -> None:
        self._record("collective", name, _site(), "", list(outputs))

    # ---- writing ------------------------------------------------------------------------------------------

    def _record(self, kind: str, name: str, site: str, module: str, tensors: list[Tensor]) -> None:
        if self._writer is None or not tensors:
            return
        place = self._writer.step, self._writer.index
        known, self._known = self._known, {}
        records = []
        for t in tensors:
            said = (known if kind == "module" else self._states).get(id(t))
            if said is None or said[0] is not t or said[1] != t._version:
                said = (t, t._version, *self._said_of(t))
            records.append(said)
        if place in self._keep:
            self._keep_tensors(place, tensors)
        # A module returns, as a rule, what its last op made, and an optimizer's op wrote its states.
        if kind in ("op", "random", "module"):
            self._known = {id(said[0]): said for said in records}
            if self._in_step:
                self._states |= self._known
        values = tuple(said[2] for said in records)
        numbers = [said[4] for said in records] if self._statistics else None
        self._writer.write((kind, name, site, module, values), [said[3] for said in records], numbers)

    def _said_of(self, t: Tensor) -> tuple[Any, str, list[float]]:
        """Dtype and shape, hash, statistics."""
        held = _contiguous(t)
        numbers = statistics_of(_floats(held)) if self._statistics else []
        return (str(t.dtype).rpartition(".")[2], tuple(t.shape)), hash_of(raw_bytes(held)), numbers

    def _keep_tensors(self, place: tuple[int, int], tensors: list[Tensor]) -> None:
        """Writes a header of JSON and the bytes."""
        for k, t in enumerate(map(_contiguous, tensors)):
            path = self.folder / f"rank{self._rank}.step{place[0]}.record{place[1]}.value{k}.tensor"
            head = {"dtype": str(t.dtype).rpartition(".")[2], "shape": list(t.shape)}
            path.write_bytes(json.dumps(head).encode() + b"\n" + bytes(raw_bytes(t)))


def _rank_and_world() -> tuple[int, int]:
    from ...distributed import get_rank, get_world_size, is_initialized

    if is_initialized():
        return get_rank(), get_world_size()
    return int(os.environ.get("RANK", "0")), int(os.environ.get("WORLD_SIZE", "1"))


def _all(value: Any) -> list[Tensor]:
    """The tensors in arguments or results."""
    return [t for t in tensors_in(value) if _has_memory(t)]


def _has_memory(t: Tensor) -> bool:
    """Whether it is a plain one, whose bytes can be read."""
    return type(t) in (Tensor, Parameter) and t.device.type != "meta" and not t.is_sparse


def _contiguous(t: Tensor) -> Tensor:
    t = t.detach()
    return (t if t.device.type == "cpu" else t.cpu()).contiguous()
