"""MemoryTimeline: what tensors hold over a step, by what they are for, and what is there at the peak.

How the bytes are known: while a timeline records, every storage that takes memory from its device's allocator
or gives it back is recorded, with the time and the bytes that the tensor asked for (the allocators round up,
on the CPU by at most an eighth). What was there before counts from the beginning, if the model or the
optimizer was given, or if an op of the step reads it; so does memory that others lend, as NumPy does. Memory
that libraries take behind the allocators is not seen.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import _C
from ...core import Tensor
from ...core.by_name import tensors_in
from ...nn import Module
from ...optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook
from ...utils.figures import axes_of
from ...utils.op_observer import OpCall, OpObserver, call_site, storage_of
from ..graph_drawing import _size
from ._snapshot import read_snapshot

if TYPE_CHECKING:
    from warptape.core.types import Device
    from warptape.optim import Optimizer

__all__ = ["CATEGORIES", "MemoryBlock", "MemoryTimeline"]

CATEGORIES = ("parameters", "optimizer state", "gradients", "activations", "other")
_COLOURS = ("#2563eb", "#7c3aed", "#ea580c", "#16a34a", "#94a3b8")


@dataclass
class _Work:
    """What runs between two marks: an op, a node of the tape, a step of an optimizer."""

    op: str
    site: str
    last: int | None = None  # the event after which it is over
    recorded: bool = False  # on the tape


@dataclass
class MemoryBlock:
    """Memory of one storage.

    Attributes:
        bytes: as the tensor asked for.
        category: one of CATEGORIES.
        op: what took it, as "linear" or "MmBackward0"; "" outside of all ops, and of what was there before.
        site: the line that called the op; of a node of the tape, the one that called its op going forward.
        shape, dtype: of the tensor for which it was taken, where an op returned it.
        name: of a parameter, or of that which a gradient or an optimizer's state belongs to, if it is known.
        born, died: seconds since the start; 0 for what was there, None for what is left.
    """

    bytes: int
    category: str = "other"
    op: str = ""
    site: str = ""
    shape: tuple[int, ...] | None = None
    dtype: Any = None
    name: str = ""
    born: float = 0.0
    died: float | None = None
    _first: int = -1  # the event from which it is there
    _last: int | None = None  # that with which it is gone

    def _lives_at(self, event: int) -> bool:
        return self._first <= event and (self._last is None or event < self._last)

    def __str__(self) -> str:
        shape = "" if self.shape is None else f" {str(self.dtype).removeprefix('torch.')}{list(self.shape)}"
        origin = (f" by {self.op}" if self.op else "") + (f" at {self.site}" if self.site else "")
        return f"{_size(self.bytes)} {self.category}{shape}{' ' * bool(self.name)}{self.name}{origin}"


@dataclass
class _Label:
    """What is known of the memory at an address once `event` events are over."""

    event: int
    address: int
    bytes: int
    category: str | None = None
    tensor: tuple[Any, Any] | None = None  # shape and dtype
    name: str = ""
    site: str = ""


class MemoryTimeline(OpObserver):
    """Records what tensors hold: `with MemoryTimeline(model, optimizer) as timeline:` around a step.

    Categories, as PyTorch's memory timeline has them: parameters (leaves that require grad); gradients of
    these; optimizer state; activations, which is what an op that was recorded on the tape made and left (its
    result, and what it saved for backward); other, which is inputs, buffers, gradients on their way and
    whatever an op needs only for itself. Functions of torch.compile run op by op meanwhile, and hold what
    ops hold.

    Args:
        model: whose parameters, buffers and gradients are there before, and have names.
        optimizer: whose state is.
        device: whose memory; the model's unless given, else the CPU.

    Attributes:
        blocks: all MemoryBlocks, once it was left.
        peak_bytes: the most that was held at a time.
        peak_seconds: when that was.

    >>> from warptape.profiler import MemoryTimeline
    >>> model = torch.nn.Sequential(torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 64))
    >>> with MemoryTimeline(model) as timeline:
    ...     model(torch.ones(32, 64)).sum().backward()
    >>> timeline.peak_bytes == sum(timeline.at_peak_by_category().values())
    True
    >>> timeline.at_peak_by_category()["parameters"]
    33280
    """

    def __init__(
        self, model: Module | None = None, optimizer: Optimizer | None = None, device: Device = None
    ) -> None:
        super().__init__()
        self._model, self._optimizer = model, optimizer
        if device is None:
            device = next((p.device for p in model.parameters()), "cpu") if model is not None else "cpu"
        self.device = str(_C._resolve_device(device))
        self.blocks: list[MemoryBlock] = []
        self.peak_bytes, self.peak_seconds, self._peak_event = 0, 0.0, -1
        self._series: list[tuple[float, list[int]]] = []
        self._labels: list[_Label] = []
        self._marks: list[tuple[int, _Work | None]] = []
        self._current: _Work | None = None
        self._handles: list[Any] = []
        self._names: dict[int, str] = {}  # of parameters, by address

    @classmethod
    def from_snapshot(
        cls, snapshot: Mapping[str, Any] | str | os.PathLike[str], device: int = 0
    ) -> MemoryTimeline:
        """The timeline of a snapshot of the caching allocator, as `torch.cuda.memory._snapshot()` gives it
        and `_dump_snapshot()` writes it, PyTorch's too.

        The time starts with its first action. Blocks have the bytes that were asked for and the line that
        took them; what they are for is not known, so that all are of the category "other".

        Args:
            snapshot: the dictionary, or the path of a pickle; one that holds more than numbers, text, lists
                and dictionaries is refused.
            device: the ordinal of the CUDA device.

        Raises:
            ValueError: it is no snapshot, or has no such device.
        """
        read = read_snapshot(snapshot, device)
        timeline = cls(device="cpu")
        timeline.device = f"cuda:{device}"
        timeline._start = read.start
        timeline._marks = [(event, _Work("", site)) for event, site in read.sites]
        timeline._labels = [_Label(0, address, size, site=site) for address, size, site in read.before]
        timeline._resolve([(*event, timeline.device) for event in read.events])
        return timeline

    # ---- recording -----------------------------------------------------------------------------------------

    def __enter__(self) -> MemoryTimeline:
        if not _C._start_memory_trace():
            raise RuntimeError("MemoryTimeline: another timeline is recording; leave it first")
        self.__init__(self._model, self._optimizer, self.device)  # type: ignore[misc]
        self._start = time.perf_counter_ns()
        self._handles = [
            register_optimizer_step_pre_hook(self._before_step),
            register_optimizer_step_post_hook(self._after_step),
        ]
        if self._model is not None:
            for name, p in self._model.named_parameters():
                self._names[storage_of(p)[0]] = name
                self._see_leaf(p)
            for name, b in self._model.named_buffers():
                self._label(b, None, name)
        if self._optimizer is not None:
            self._see_optimizer(self._optimizer)
        return super().__enter__()

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._resolve(_C._end_memory_trace())

    def _mark(self, work: _Work | None) -> int:
        self._current, event = work, _C._memory_trace_length()
        self._marks.append((event, work))
        return event

    def _label(self, t: Tensor, category: str | None = None, name: str = "") -> None:
        address, held = storage_of(t)
        if address and str(t.device) == self.device:
            about = (tuple(t.shape), t.dtype)
            self._labels.append(_Label(_C._memory_trace_length(), address, held, category, about, name))

    def _see_leaf(self, p: Tensor) -> None:
        """A leaf that requires grad, whose gradient is to be known when it comes."""
        name = self._names.get(storage_of(p)[0], "")
        self._label(p, "parameters", name)
        if p.grad is not None:
            self._label(p.grad, "gradients", name)
        if p.requires_grad and not any(
            getattr(hook, "_observer", None) is self for hook in _C._post_accumulate_dict(p).values()
        ):

            def accumulated(leaf: Tensor) -> None:
                with _C.DisableTorchFunction():
                    if leaf.grad is not None:
                        self._label(leaf.grad, "gradients", name)

            accumulated._observer = self  # type: ignore[attr-defined]
            self._handles.append(p.register_post_accumulate_grad_hook(accumulated))

    def _see_optimizer(self, optimizer: Optimizer) -> None:
        for group in optimizer.param_groups:
            for p in group["params"]:
                self._see_leaf(p)
        for p, state in optimizer.state.items():
            name = self._names.get(storage_of(p)[0], "") if isinstance(p, Tensor) else ""
            for t in tensors_in(state):
                self._label(t, "optimizer state", name)

    def _before_step(self, optimizer: Optimizer, *_: Any) -> None:
        with _C.DisableTorchFunction():
            self._see_optimizer(optimizer)
        self._outside_step = self._current
        self._mark(_Work(f"{type(optimizer).__name__}.step", ""))

    def _after_step(self, optimizer: Optimizer, *_: Any) -> None:
        with _C.DisableTorchFunction():
            self._see_optimizer(optimizer)
        self._mark(self._outside_step)

    def before_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Marks where the op begins, and records what it reads."""
        for t in tensors_in((args, kwargs)):
            if t.is_leaf and t.requires_grad:
                self._see_leaf(t)
            else:
                self._label(t)
        call.memo = _Work(call.name, call_site()), self._current
        self._mark(call.memo[0])

    def after_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Marks where the op ends, and records what it made."""
        work, outside = call.memo
        results = list(tensors_in(out))
        work.recorded = any(t.requires_grad for t in results)
        for t in results:
            self._label(t)
        work.last = self._mark(outside)

    def before_backward(self, call: OpCall, node: str, first: bool, gradients: tuple[Any, ...]) -> None:
        """Marks where the node begins; the one before it ends there."""
        self._mark(_Work(node, call.memo[0].site))

    def after_pass(self) -> None:
        """Marks the end of the last node."""
        self._mark(None)

    # ---- what came of it -----------------------------------------------------------------------------------

    def _resolve(self, events: list[tuple[int, int, int, str]]) -> None:
        """Blocks from events, labels and marks, which are all in the order of time."""
        alive: dict[int, MemoryBlock] = {}
        works: dict[int, _Work | None] = {}  # by block
        labels, marks, work = iter([*self._labels, None]), iter([*self._marks, None]), None
        label, mark = next(labels), next(marks)
        for i, (at, address, size, device) in enumerate([*events, (0, 0, 0, "")]):
            while label is not None and label.event <= i:
                self._apply(label, alive)
                label = next(labels)
            while mark is not None and mark[0] <= i:
                work, mark = mark[1], next(marks)
            if device != self.device:
                continue
            seconds = max(at - self._start, 0) / 1e9
            if size > 0:
                block = MemoryBlock(size, born=seconds, _first=i)
                alive[address], works[id(block)] = block, work
                self.blocks.append(block)
                if work is not None:
                    block.op, block.site = work.op, work.site
            else:
                gone = alive.pop(address, None)
                if gone is None:
                    gone = MemoryBlock(-size)
                    self.blocks.append(gone)
                gone.died, gone._last = seconds, i
        for block in self.blocks:
            by = works.get(id(block))
            if block.category == "other" and by is not None and by.recorded and by.last is not None:
                stays = block._last is None or block._last >= by.last
                block.category = "activations" if stays else "other"
        self._sum_up(events)

    def _apply(self, label: _Label, alive: dict[int, MemoryBlock]) -> None:
        block = alive.get(label.address)
        if block is None:
            block = alive[label.address] = MemoryBlock(label.bytes)
            self.blocks.append(block)
        if label.category is not None and CATEGORIES.index(label.category) < CATEGORIES.index(block.category):
            block.category, block.name = label.category, label.name
        block.name, block.site = block.name or label.name, block.site or label.site
        if block.shape is None and label.tensor is not None:
            block.shape, block.dtype = label.tensor

    def _sum_up(self, events: list[tuple[int, int, int, str]]) -> None:
        """Bytes by category after each event, and the peak of their sum."""
        changes: dict[int, list[tuple[int, int]]] = {}
        for block in self.blocks:
            place = CATEGORIES.index(block.category)
            changes.setdefault(block._first, []).append((place, block.bytes))
            if block._last is not None:
                changes.setdefault(block._last, []).append((place, -block.bytes))
        held = [0] * len(CATEGORIES)
        for event in [-1, *sorted(set(changes) - {-1})]:
            for place, size in changes.get(event, ()):
                held[place] += size
            seconds = max(events[event][0] - self._start, 0) / 1e9 if event >= 0 else 0.0
            self._series.append((seconds, list(held)))
            if sum(held) > self.peak_bytes:
                self.peak_bytes, self.peak_seconds, self._peak_event = sum(held), seconds, event

    def series(self) -> tuple[list[float], dict[str, list[int]]]:
        """Seconds since the start, and for each category the bytes held from then on."""
        values = {name: [held[i] for _, held in self._series] for i, name in enumerate(CATEGORIES)}
        return [seconds for seconds, _ in self._series], values

    def at_peak(self) -> list[MemoryBlock]:
        """What was there at the peak, the largest first."""
        return sorted((b for b in self.blocks if b._lives_at(self._peak_event)), key=lambda b: -b.bytes)

    def at_peak_by_category(self) -> dict[str, int]:
        """Bytes of what was there at the peak."""
        return {name: sum(b.bytes for b in self.at_peak() if b.category == name) for name in CATEGORIES}

    def report(self, top: int = 10) -> str:
        """The peak as text: bytes by category, and the `top` largest tensors with shape, op and line."""
        blocks = self.at_peak()
        parts = ", ".join(f"{name} {_size(n)}" for name, n in self.at_peak_by_category().items() if n)
        when = f"after {1e3 * self.peak_seconds:.2f} ms"
        head = f"peak on {self.device}: {_size(self.peak_bytes)} {when} ({parts})"
        rest = [f"  and {len(blocks) - top} more"] if len(blocks) > top else []
        return "\n".join([head, *(f"  {block}" for block in blocks[:top]), *rest])

    __str__ = report

    def plot(self, to: Any) -> Any:
        """Draws the bytes over time, category on category, and the peak.

        Args:
            to: axes of matplotlib, or the path of a picture to write.

        Returns:
            The axes. ImportError where matplotlib is missing.
        """
        with axes_of(to, "MemoryTimeline.plot") as axes:
            seconds, values = self.series()
            scaled = [[n / 2**20 for n in values[name]] for name in CATEGORIES]
            milliseconds = [1e3 * s for s in seconds]
            axes.stackplot(milliseconds, *scaled, labels=CATEGORIES, colors=_COLOURS, step="post")
            peak = f"peak {_size(self.peak_bytes)}"
            axes.axhline(self.peak_bytes / 2**20, linestyle="--", linewidth=0.8, color="#0f172a", label=peak)
            axes.set(xlabel="ms", ylabel=f"MiB on {self.device}")
            axes.legend(loc="upper left", fontsize="small")
        return axes

    def plot_peak(self, to: Any, top: int = 25) -> Any:
        """Draws the `top` largest tensors of the peak as bars; arguments and result as of `plot`."""
        with axes_of(to, "MemoryTimeline.plot_peak") as axes:
            blocks = self.at_peak()[:top]
            colours = [_COLOURS[CATEGORIES.index(b.category)] for b in blocks]
            axes.barh(range(len(blocks)), [b.bytes / 2**20 for b in blocks], color=colours)
            axes.set_yticks(range(len(blocks)), [str(b) for b in blocks], fontsize="xx-small")
            axes.invert_yaxis()
            axes.set(xlabel=f"MiB on {self.device} at the peak")
        return axes
