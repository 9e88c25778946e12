"""Rooflines: how near each op of a program comes to what the machine can do.

Williams, Waterman and Patterson, "Roofline: an insightful visual performance model for multicore
architectures" (2009): an op that does F floating point operations on B bytes of memory runs at most at
min(peak, F / B * bandwidth) FLOP per second. F / B is its arithmetic intensity; left of the ridge, where it
is below peak / bandwidth, memory bounds the op, right of it arithmetic does.
"""

from __future__ import annotations

import functools
import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import _C
from ...core import Tensor
from ...core.by_name import tensors_in
from ...core.op_facts import op_named
from ...core.tables import aligned
from ...nn import Module
from ...utils.benchmark import timer
from ...utils.figures import axes_of
from ...utils.flop_counter import backward_flops, forward_flops
from ...utils.op_observer import OpCall, OpObserver, bytes_of, storage_of

if TYPE_CHECKING:
    from warptape import core as wt

__all__ = ["Roofline", "RooflineRow", "measured_bandwidth", "measured_peak", "roofline"]

_COPY = 64 << 20  # bytes; larger than the caches of most machines
_BUDGET = 0.2  # seconds for the runs of one size


def _best(run: Callable[[], Any]) -> float:
    """The shortest of some runs, in seconds."""
    best, spent = math.inf, timer()
    for _ in range(10):
        before = timer()
        run()
        best = min(best, timer() - before)
        if timer() - spent > _BUDGET:
            break
    return best


@functools.cache
def measured_peak(dtype: wt.dtype = _C.float32, device: str = "cpu") -> float:
    """FLOP per second of a square matrix product in a dtype, with the threads of now; measured once.

    Raises:
        TypeError: a dtype that is not a real floating one.
    """
    if not dtype.is_floating_point:
        raise TypeError(f"measured_peak: expected a real floating dtype, got {dtype}")
    best = 0.0
    for size in (512, 1024, 2048, 4096):
        a = _C._functions.ones(size, size, dtype=dtype, device=device)
        product = functools.partial(_C._functions.mm, a, a)
        product()
        seconds = _best(product)
        best = max(best, 2 * size**3 / seconds)
        if 8 * seconds > _BUDGET / 2:  # of the next size
            break
    return best


@functools.cache
def measured_bandwidth(device: str = "cpu") -> float:
    """Bytes per second of a copy of 64 MiB, read and written bytes together; measured once."""
    source = _C._functions.ones(_COPY // 4, device=device)
    target = _C._functions.empty_like(source)
    target.copy_(source)
    return 2 * _COPY / _best(lambda: target.copy_(source))


@dataclass
class RooflineRow:
    """One op with arguments of one kind of shapes, over all of its calls in one run.

    Attributes:
        op: the function, or "linear (backward)" for the gradients of its calls.
        shapes: of the tensors that the function was given, as text.
        dtype: of the first floating one; the peak is that of products in it.
        calls: in one run.
        flops: what FlopCounterMode counts, and one for each element of what an elementwise function returns
            (backward: of its gradients), if it does more than copy. 0 for ops that have no count: they can be
            compared by bytes alone.
        bytes: of the tensors that go in and come out, each once.
        seconds: of one run, the median of all runs.
        peak, bandwidth: FLOP and bytes per second that the machine can do.
    """

    op: str
    shapes: str
    dtype: Any
    calls: int
    flops: int
    bytes: int
    seconds: float
    peak: float
    bandwidth: float

    @property
    def intensity(self) -> float:
        """FLOP per byte."""
        return self.flops / self.bytes if self.bytes else 0.0

    @property
    def attained(self) -> float:
        """FLOP per second."""
        return self.flops / self.seconds if self.seconds else 0.0

    @property
    def limit(self) -> float:
        """FLOP per second that the roofline allows at this intensity."""
        return min(self.peak, self.intensity * self.bandwidth)

    @property
    def limit_seconds(self) -> float:
        """What the op takes at the roofline."""
        return max(self.flops / self.peak, self.bytes / self.bandwidth)

    @property
    def share_of_limit(self) -> float:
        """`attained / limit`, and of ops without FLOPs the share of the bandwidth. It passes 1 where tensors
        are still in the caches."""
        return self.limit_seconds / self.seconds if self.seconds else 0.0

    @property
    def share_of_peak(self) -> float:
        """`attained / peak`."""
        return self.attained / self.peak

    @property
    def bound(self) -> str:
        """ "memory" left of the ridge, "compute" right of it."""
        return "compute" if self.intensity * self.bandwidth > self.peak else "memory"


@dataclass
class _Cost:
    calls: int = 0
    flops: int = 0
    bytes: int = 0
    seconds: float = 0.0


@functools.cache
def _is_pointwise(name: str) -> bool:
    """Whether it computes its elements one by one; linear ones copy or convert them."""
    op = op_named(name)
    return op is not None and op._is_pointwise and not op._is_linear and not name.endswith("_like")


@dataclass
class _Running:
    """What is known of a call, or of the node of its backward that runs."""

    label: str
    dtype: Any
    start: float = 0.0
    read: int = 0
    first: bool = True
    gradients: frozenset[int] = frozenset()  # where they lie


class _Recorder(OpObserver):
    """Costs of ops by (op, shapes, dtype)."""

    looks_after_backward = True

    def __init__(self) -> None:
        super().__init__()
        self.costs: dict[tuple[str, str, Any], _Cost] = {}

    def _add(self, op: str, about: _Running, flops: int, moved: int, seconds: float) -> None:
        cost = self.costs.setdefault((op, about.label, about.dtype), _Cost())
        cost.calls += about.first
        cost.flops, cost.bytes, cost.seconds = cost.flops + flops, cost.bytes + moved, cost.seconds + seconds

    def before_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Records what goes in, and the time."""
        inputs = list(tensors_in((args, {k: v for k, v in kwargs.items() if k != "out"})))
        dtype = next((t.dtype for t in inputs if t.is_floating_point()), None)
        label = " ".join("x".join(map(str, t.shape)) or "()" for t in inputs)
        call.memo = _Running(label, dtype, read=bytes_of(inputs))
        call.memo.start = timer()

    def after_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Adds the call, unless it was a question or a view, which move nothing."""
        seconds, about = timer() - call.memo.start, call.memo
        results = list(tensors_in(out))
        inputs = {storage_of(t)[0] for t in tensors_in(args)}
        if not (call.in_place or "out" in kwargs or any(storage_of(t)[0] not in inputs for t in results)):
            return
        about.dtype = about.dtype or (results[0].dtype if results else None)
        flops = forward_flops(call) or (_elements(results) if _is_pointwise(call.name) else 0)
        self._add(call.name, about, flops, about.read + bytes_of(results), seconds)

    def before_backward(self, call: OpCall, node: str, first: bool, gradients: tuple[Any, ...]) -> None:
        """As before_op."""
        inputs = list(tensors_in(gradients))
        about = call.memo
        about.first, about.read = first, bytes_of(inputs)
        about.gradients = frozenset(storage_of(t)[0] for t in inputs)
        about.start = timer()

    def after_backward(self, call: OpCall, saved: int, inputs: tuple[Any, ...]) -> None:
        """As after_op; gradients that are passed on move nothing."""
        about = call.memo
        seconds = timer() - about.start
        grads = [t for t in tensors_in(inputs) if storage_of(t)[0] not in about.gradients]
        flops = sum(backward_flops(call).values()) if about.first else 0
        if _is_pointwise(call.name):
            flops += _elements(grads)
        moved = about.read + saved + bytes_of(grads) if grads else 0
        self._add(f"{call.name} (backward)", about, flops, moved, seconds)


def _elements(tensors: Sequence[Tensor]) -> int:
    return sum(t.numel() for t in tensors)


@dataclass
class Roofline:
    """What `roofline` returns: rows, at least one, that which took longest first."""

    rows: list[RooflineRow]
    device: str = "cpu"

    @property
    def flops(self) -> int:
        """Of all ops in one run."""
        return sum(row.flops for row in self.rows)

    @property
    def bytes(self) -> int:
        """Moved by all ops in one run."""
        return sum(row.bytes for row in self.rows)

    @property
    def seconds(self) -> float:
        """In all ops of one run; what Python does between them is not in it."""
        return sum(row.seconds for row in self.rows)

    @property
    def share_of_limit(self) -> float:
        """The time that all ops would take at their rooflines, of what they took."""
        return sum(row.limit_seconds for row in self.rows) / self.seconds

    @property
    def share_of_peak(self) -> float:
        """The time that the FLOPs alone would take at the peak, of what all ops took."""
        return sum(row.flops / row.peak for row in self.rows) / self.seconds

    def table(self, row_limit: int = 30) -> str:
        """The rows as text, and their sum. "limit" is what the roofline allows, "share" what was attained of
        it: of FLOP/s, or, where an op has no FLOPs, of bytes/s."""
        head = ("op", "shapes", "calls", "us", "MFLOP", "MB", "FLOP/B", "GFLOP/s", "limit", "share", "bound")
        lines = [head, *(_cells(row) for row in self.rows[:row_limit])]
        if len(self.rows) > row_limit:
            lines.append((f"and {len(self.rows) - row_limit} more", *[""] * (len(head) - 1)))
        total = (1e6 * self.seconds, 1e-6 * self.flops, 1e-6 * self.bytes)
        rate = 1e-9 * self.flops / self.seconds
        intensity = self.flops / self.bytes if self.bytes else 0.0
        sums = [*(f"{x:,.1f}" for x in total), f"{intensity:.2f}", f"{rate:.1f}", ""]
        lines.append(
            ("all", "", str(sum(r.calls for r in self.rows)), *sums, f"{self.share_of_limit:.1%}", "")
        )
        peaks = ", ".join(f"{1e-9 * p:.1f} GFLOP/s of {d}" for d, p in self._peaks().items())
        machine = f"{self.device}: {peaks}, {1e-9 * self.rows[0].bandwidth:.1f} GB/s"
        return f"{aligned(lines, left=2)}\n{machine}; {self.share_of_peak:.1%} of the peak attained"

    def _peaks(self) -> dict[str, float]:
        return {str(row.dtype or "torch.float32").removeprefix("torch."): row.peak for row in self.rows}

    __str__ = table

    def plot(self, to: Any) -> Any:
        """Draws FLOP/s over intensity, both logarithmic: the roofs, and a dot for each op that has FLOPs, by
        its share of the time the larger.

        Args:
            to: axes of matplotlib, or the path of a picture to write.

        Returns:
            The axes. ImportError where matplotlib is missing.
        """
        with axes_of(to, "roofline") as axes:
            rows = [row for row in self.rows if row.flops and row.bytes and row.seconds]
            marks = [row.intensity for row in rows]
            bandwidth = self.rows[0].bandwidth
            for dtype, peak in self._peaks().items():
                ridge = peak / bandwidth
                low, high = min([*marks, ridge / 16]) / 2, max([*marks, ridge * 16]) * 2
                axes.plot([low, ridge, high], [low * bandwidth, peak, peak], label=f"roof of {dtype}")
            for op in dict.fromkeys(row.op for row in rows):
                those = [row for row in rows if row.op == op]
                sizes = [20 + 400 * row.seconds / self.seconds for row in those]
                x, y = [row.intensity for row in those], [row.attained for row in those]
                axes.scatter(x, y, s=sizes, alpha=0.6, label=op)
            axes.set(xscale="log", yscale="log", xlabel="FLOP per byte", ylabel="FLOP per second")
            axes.legend(fontsize="small")
        return axes


def _cells(row: RooflineRow) -> tuple[str, ...]:
    shapes = row.shapes if len(row.shapes) <= 40 else row.shapes[:37] + "..."
    numbers = [f"{x:,.1f}" for x in (1e6 * row.seconds, 1e-6 * row.flops, 1e-6 * row.bytes)]
    rates = [f"{row.intensity:.2f}", f"{1e-9 * row.attained:.1f}", f"{1e-9 * row.limit:.1f}"]
    return (row.op, shapes, str(row.calls), *numbers, *rates, f"{row.share_of_limit:.1%}", row.bound)


def roofline(
    module_or_fn: Callable[..., Any],
    *inputs: Any,
    repeats: int = 3,
    peak: float | None = None,
    bandwidth: float | None = None,
) -> Roofline:
    """Runs `module_or_fn(*inputs)` and compares each op with what the machine can do.

    It is called once to warm up and `repeats` times to be timed, and does what it does each time: gradients
    add up, statistics of batch norms move. Ops of a backward pass within it are rows of their own, with the
    shapes of the call that they belong to; what the pass does between them (adding gradients, and summing
    those of what was broadcast) is not seen. Ops are those called from Python, whatever they do inside;
    functions of torch.compile run op by op meanwhile. Times have the threads and caches of a real run; on
    CUDA devices each op is waited for.

    Args:
        module_or_fn: a module, or whatever can be called.
        inputs: its arguments.
        repeats: timed runs.
        peak: FLOP per second; unless given, `measured_peak` of each op's dtype (products in it; float32 where
            an op has no floating argument).
        bandwidth: bytes per second; unless given, `measured_bandwidth`.

    Raises:
        ValueError: no op was called, tensors on the meta device, or `repeats` of less than 1.

    >>> from warptape.profiler import roofline
    >>> model = torch.nn.Linear(64, 32)
    >>> found = roofline(lambda: model(torch.ones(16, 64)).sum().backward(), peak=1e11, bandwidth=1e10)
    >>> row = next(row for row in found.rows if row.op == "linear")
    >>> row.flops, row.bytes, row.bound
    (65536, 14464, 'memory')
    """
    if repeats < 1:
        raise ValueError(f"roofline: expected repeats of at least 1, got {repeats}")
    tensors = list(tensors_in(inputs))
    if isinstance(module_or_fn, Module):
        tensors += module_or_fn.parameters()
    if any(t.is_meta for t in tensors):
        raise ValueError(
            "roofline: expected tensors with data, got some on the meta device, where nothing runs"
        )
    device = next((str(t.device) for t in tensors), "cpu")
    module_or_fn(*inputs)
    runs = []
    for _ in range(repeats):
        recorder = _Recorder()
        with recorder:
            module_or_fn(*inputs)
        runs.append(recorder.costs)
    if not runs[0]:
        raise ValueError("roofline: no op was called that computes anything")
    rows = []
    for (op, shapes, options), cost in runs[0].items():
        seconds = statistics.median(
            r[op, shapes, options].seconds for r in runs if (op, shapes, options) in r
        )
        dtype = options if options is not None and options.is_floating_point else None
        top = peak or measured_peak(dtype or _C.float32, device)
        width = bandwidth or measured_bandwidth(device)
        rows.append(RooflineRow(op, shapes, dtype, cost.calls, cost.flops, cost.bytes, seconds, top, width))
    return Roofline(sorted(rows, key=lambda row: -row.seconds), device)
