"""What a profile recorded: events, sums of them by name, and tables."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, NamedTuple

__all__ = ["DeviceType", "EventList", "FunctionEvent", "FunctionEventAvg", "Interval", "Kernel"]

MEMORY_EVENT_NAME = "[memory]"


class DeviceType(IntEnum):
    """Where an event ran.

    The numbers are those of PyTorch: CPU is 0 and CUDA is 1.
    """

    CPU = 0
    CUDA = 1


class Interval:
    """A start and an end in microseconds.

    Args:
        start, end: microseconds.
    """

    def __init__(self, start: float, end: float) -> None:
        self.start, self.end = start, end

    def elapsed_us(self) -> float:
        """The length in microseconds."""
        return self.end - self.start


class Kernel(NamedTuple):
    """A kernel that a device ran for an event.

    Args:
        name: of the kernel.
        device: index of the device.
        duration: microseconds.
    """

    name: str
    device: int
    duration: float


class DeviceActivity(NamedTuple):
    """A kernel, copy or fill that a device ran.

    Args:
        name: of the kernel or copy.
        category: "kernel", "gpu_memcpy" or "gpu_memset".
        device: index of the device.
        stream: number of the stream.
        time_range: when it ran, in microseconds.
        bytes: how many a copy or fill wrote.
        event: the event that launched it, if it is known.
    """

    name: str
    category: str
    device: int
    stream: int
    time_range: Interval
    bytes: int
    event: FunctionEvent | None  # that launched it


def _format_time(us: float, unit: str | None = None) -> str:
    for name, size in (("s", 1e6), ("ms", 1e3)):
        if unit == name or (unit is None and us >= size):
            return f"{us / size:.3f}{name}"
    return f"{us:.3f}us"


def _format_memory(n: float) -> str:
    for name, size in (("GB", 2**30), ("MB", 2**20), ("KB", 2**10)):
        if abs(n) >= size:
            return f"{n / size:.2f} {name}"
    return f"{n:.0f} B"


class FormattedTimesMixin:
    """Means and texts of the times of an event, or of a sum of events.

    All times are microseconds. Names with `cuda` are older ones of those with `device`.
    """

    count: int
    cpu_time_total: float
    self_cpu_time_total: float
    device_time_total: float
    self_device_time_total: float
    device_memory_usage: int
    self_device_memory_usage: int

    @property
    def cpu_time(self) -> float:
        """The mean time on the CPU in microseconds, with inner events.

        It is 0 where there is no event.
        """
        return self.cpu_time_total / self.count if self.count else 0.0

    @property
    def device_time(self) -> float:
        """The mean time of the kernels on devices in microseconds.

        Kernels of inner events count, too; it is 0 where there is no event.
        """
        return self.device_time_total / self.count if self.count else 0.0

    # PyTorch's older names.

    @property
    def cuda_time(self) -> float:
        """`device_time`."""
        return self.device_time

    @property
    def cuda_time_total(self) -> float:
        """`device_time_total`."""
        return self.device_time_total

    @property
    def self_cuda_time_total(self) -> float:
        """`self_device_time_total`."""
        return self.self_device_time_total

    @property
    def cuda_memory_usage(self) -> int:
        """`device_memory_usage`."""
        return self.device_memory_usage

    @property
    def self_cuda_memory_usage(self) -> int:
        """`self_device_memory_usage`."""
        return self.self_device_memory_usage

    @property
    def cpu_time_str(self) -> str:
        """`cpu_time` with its unit."""
        return _format_time(self.cpu_time)

    @property
    def device_time_str(self) -> str:
        """`device_time` with its unit."""
        return _format_time(self.device_time)

    @property
    def cpu_time_total_str(self) -> str:
        """`cpu_time_total` with its unit."""
        return _format_time(self.cpu_time_total)

    @property
    def self_cpu_time_total_str(self) -> str:
        """`self_cpu_time_total` with its unit."""
        return _format_time(self.self_cpu_time_total)

    @property
    def device_time_total_str(self) -> str:
        """`device_time_total` with its unit."""
        return _format_time(self.device_time_total)

    @property
    def self_device_time_total_str(self) -> str:
        """`self_device_time_total` with its unit."""
        return _format_time(self.self_device_time_total)


@dataclass(eq=False)
class FunctionEvent(FormattedTimesMixin):
    """One event of a thread: the call of an op, a node of the tape, a range that a program marked.

    `kind` says which: "op", "backward", "user", "collective", "region" (a program of a compiled region),
    "kernel" (a step of one), "memory" (a change outside of all others) or "device": what a CUDA device did,
    which has `device_type` CUDA, its stream as `thread`, and no time on the CPU. Shapes, strides, dtypes and
    numbers of the arguments are there with `record_shapes`, `stack` (innermost frame first) with
    `with_stack`, bytes with `profile_memory`, and `module_hierarchy`, as
    "TOP(Net)::forward.conv1(Conv2d)::forward", with `with_modules`.
    """

    id: int
    name: str
    kind: str
    thread: int
    time_range: Interval
    sequence_nr: int = -1
    input_shapes: list[Any] = field(default_factory=list)
    input_strides: list[Any] = field(default_factory=list)
    input_dtypes: list[str] = field(default_factory=list)
    concrete_inputs: list[Any] = field(default_factory=list)
    output_shapes: list[Any] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    module_hierarchy: str = ""
    self_cpu_memory_usage: int = 0
    self_device_memory_usage: int = 0
    flops: int = 0
    cpu_parent: FunctionEvent | None = None
    cpu_children: list[FunctionEvent] = field(default_factory=list)
    kernels: list[Kernel] = field(default_factory=list)
    forward: FunctionEvent | None = None  # of a backward event: the op that recorded the node
    count: int = 1
    device_index: int = -1
    # Of PyTorch's events, and the same for all of these.
    node_id: int = -1
    overload_name: str = ""
    is_async: bool = False
    is_remote: bool = False
    trace_name: str = (
        ""  # in the trace; "ProfilerStep#2" where the name, by which events are summed, is ProfilerStep*
    )

    def __post_init__(self) -> None:
        self.trace_name = self.trace_name or self.name

    @property
    def device_type(self) -> DeviceType:
        """Where it ran."""
        return DeviceType.CUDA if self.kind == "device" else DeviceType.CPU

    @property
    def scope(self) -> int:
        """What kind of event it is, by PyTorch's number.

        1 is a node of the tape, 7 a range that the program marked, and 0 anything else.
        """
        return {"backward": 1, "user": 7}.get(self.kind, 0)

    @property
    def key(self) -> str:
        """The name, by which events are summed up."""
        return self.name

    @property
    def is_user_annotation(self) -> bool:
        """Whether `record_function` marked it."""
        return self.kind == "user"

    @property
    def fwd_thread(self) -> int | None:
        """Of a backward event, the thread of the op that recorded the node."""
        return self.forward.thread if self.forward else None

    @property
    def cpu_time_total(self) -> float:  # type: ignore[override]
        """Its length; 0 on a device."""
        return 0.0 if self.kind == "device" else self.time_range.elapsed_us()

    @property
    def self_cpu_time_total(self) -> float:  # type: ignore[override]
        """Microseconds on the CPU without those of inner events.

        It is `cpu_time_total` less the `cpu_time_total` of the children.
        """
        return self.cpu_time_total - sum(e.cpu_time_total for e in self.cpu_children)

    @property
    def self_device_time_total(self) -> float:  # type: ignore[override]
        """Microseconds of the kernels that it launched itself; of work of a device, the time that it took."""
        if self.kind == "device":
            return self.time_range.elapsed_us()
        return sum(kernel.duration for kernel in self.kernels)

    @property
    def device_time_total(self) -> float:  # type: ignore[override]
        """Microseconds of the kernels that it and the events in it launched."""
        return self.self_device_time_total + sum(e.device_time_total for e in self.cpu_children)

    @property
    def cpu_memory_usage(self) -> int:
        """Bytes of host memory that were allocated less those freed, with inner events."""
        return self.self_cpu_memory_usage + sum(e.cpu_memory_usage for e in self.cpu_children)

    @property
    def device_memory_usage(self) -> int:  # type: ignore[override]
        """Bytes of device memory that were allocated less those freed, with inner events."""
        return self.self_device_memory_usage + sum(e.device_memory_usage for e in self.cpu_children)

    def __repr__(self) -> str:
        return (
            f"<FunctionEvent id={self.id} name={self.name} kind={self.kind} thread={self.thread} "
            f"cpu_time={self.cpu_time_str} self_cpu_time={self.self_cpu_time_total_str} "
            f"input_shapes={self.input_shapes}>"
        )


_SUMMED = (
    "cpu_time_total", "self_cpu_time_total", "device_time_total", "self_device_time_total", "flops",
    "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage",
)  # fmt: skip


@dataclass(eq=False)
class FunctionEventAvg(FormattedTimesMixin):
    """The sum of the events of one name, or of one name and shape or stack.

    All times are microseconds, and all memory is bytes. `count` says how many events there are.
    """

    key: str
    count: int = 0
    cpu_time_total: float = 0.0
    self_cpu_time_total: float = 0.0
    device_time_total: float = 0.0
    self_device_time_total: float = 0.0
    cpu_memory_usage: int = 0
    self_cpu_memory_usage: int = 0
    device_memory_usage: int = 0
    self_device_memory_usage: int = 0
    flops: int = 0
    input_shapes: list[Any] = field(default_factory=list)
    stack: list[str] = field(default_factory=list)
    is_user_annotation: bool = False
    device_type: DeviceType = DeviceType.CPU
    overload_name: str = ""

    def add(self, event: FunctionEvent | FunctionEventAvg) -> None:
        """Adds an event, or another sum. What an event of the same name holds counts once.

        Args:
            event: of the same name.
        """
        for name in _SUMMED:
            setattr(self, name, getattr(self, name) + getattr(event, name))
        self.count += event.count
        parent = getattr(event, "cpu_parent", None)
        while parent is not None:
            if parent.name == self.key:
                for name in _SUMMED:
                    if not name.startswith("self_") and name != "flops":
                        setattr(self, name, getattr(self, name) - getattr(event, name))
                break
            parent = parent.cpu_parent


class _Column(NamedTuple):
    header: str
    cell: Callable[[Any, _Totals], str]
    left: bool = False


class _Totals(NamedTuple):
    cpu: float
    device: float
    unit: str | None

    def share(self, part: float, of: float) -> str:
        return f"{100 * part / of:.2f}%" if of else "--"


_CPU = [
    _Column("Self CPU %", lambda e, t: t.share(e.self_cpu_time_total, t.cpu)),
    _Column("Self CPU", lambda e, t: _format_time(e.self_cpu_time_total, t.unit)),
    _Column("CPU total %", lambda e, t: t.share(e.cpu_time_total, t.cpu)),
    _Column("CPU total", lambda e, t: _format_time(e.cpu_time_total, t.unit)),
    _Column("CPU time avg", lambda e, t: _format_time(e.cpu_time, t.unit)),
]
_DEVICE = [
    _Column("Self CUDA", lambda e, t: _format_time(e.self_device_time_total, t.unit)),
    _Column("Self CUDA %", lambda e, t: t.share(e.self_device_time_total, t.device)),
    _Column("CUDA total", lambda e, t: _format_time(e.device_time_total, t.unit)),
    _Column("CUDA time avg", lambda e, t: _format_time(e.device_time, t.unit)),
]
_CPU_MEMORY = [
    _Column("CPU Mem", lambda e, t: _format_memory(e.cpu_memory_usage)),
    _Column("Self CPU Mem", lambda e, t: _format_memory(e.self_cpu_memory_usage)),
]
_DEVICE_MEMORY = [
    _Column("CUDA Mem", lambda e, t: _format_memory(e.device_memory_usage)),
    _Column("Self CUDA Mem", lambda e, t: _format_memory(e.self_device_memory_usage)),
]
_SORTABLE = ("count", "key", "cpu_time", "device_time", *_SUMMED)


class EventList(list):
    """Events, or sums of events: a table, sums, a trace, folded stacks.

    Args:
        events: to begin with.
        use_device: "cuda", or None for the CPU alone.
        profile_memory: whether the table has bytes.
        with_flops: whether the table has FLOPs.
        write_trace: writes a file.
    """

    def __init__(
        self,
        events: Iterable[Any] = (),
        *,
        use_device: str | None = None,
        profile_memory: bool = False,
        with_flops: bool = False,
        write_trace: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(events)
        self._device, self._memory, self._flops = use_device, profile_memory, with_flops
        self._write_trace = write_trace

    def _like(self, events: Iterable[Any]) -> EventList:
        return EventList(
            events,
            use_device=self._device,
            profile_memory=self._memory,
            with_flops=self._flops,
            write_trace=self._write_trace,
        )

    @property
    def self_cpu_time_total(self) -> float:
        """Microseconds on the CPU of all events.

        Each moment of a thread counts once, for inner events are not counted again.
        """
        return sum(e.self_cpu_time_total for e in self)

    def after(self, earlier: Iterable[EventList]) -> EventList:
        """The events of other lists, and then these.

        Args:
            earlier: in their order.
        """
        return self._like([*(e for events in earlier for e in events), *self])

    def key_averages(
        self,
        group_by_input_shapes: bool = False,
        group_by_stack_n: int = 0,
        group_by_overload_name: bool = False,
    ) -> EventList:
        """Sums of the events by name, and by shapes or the `group_by_stack_n` innermost frames if asked.

        `group_by_overload_name` changes nothing: an op has one form here.
        """
        averages: dict[Any, FunctionEventAvg] = {}
        for e in self:
            stack = e.stack[:group_by_stack_n]
            shapes = e.input_shapes if group_by_input_shapes else []
            row = averages.setdefault(
                (e.key, e.device_type, str(shapes), tuple(stack)),
                FunctionEventAvg(
                    e.key,
                    input_shapes=shapes,
                    stack=stack,
                    is_user_annotation=e.is_user_annotation,
                    device_type=e.device_type,
                ),
            )
            row.add(e)
        return self._like(averages.values())

    def total_average(self) -> FunctionEventAvg:
        """One sum over all events of the CPU.

        The time of devices is part of it, in the events that launched their work.

        Returns:
            A FunctionEventAvg of the name "Total".
        """
        total = FunctionEventAvg("Total")
        for e in self:
            if e.device_type is DeviceType.CPU:
                total.add(e)
        return total

    def table(
        self,
        sort_by: str | None = None,
        row_limit: int = 100,
        max_src_column_width: int = 75,
        max_name_column_width: int = 55,
        max_shapes_column_width: int = 80,
        header: str | None = None,
        top_level_events_only: bool = False,
        time_unit: str | None = None,
    ) -> str:
        """The rows as text.

        Args:
            sort_by: "cpu_time", "cpu_time_total", "self_cpu_time_total", "count", "flops",
                "cpu_memory_usage", "self_cpu_memory_usage" and the same with "device", or "cuda" or "xpu" as
                in PyTorch, and "key"; descending.
            row_limit: rows at most; -1 for all.
            time_unit: "s", "ms" or "us" for all times; otherwise each has the unit that fits.

        Raises:
            ValueError: an unknown `sort_by` or `time_unit`.
        """
        rows = list(self)
        if top_level_events_only:
            rows = [e for e in rows if getattr(e, "cpu_parent", None) is None]
        if sort_by is not None:
            key = sort_by.replace("cuda", "device").replace("xpu", "device").replace("privateuse1", "device")
            if key not in _SORTABLE:
                raise ValueError(
                    f"table: expected sort_by to be one of {', '.join(_SORTABLE)}, got {sort_by!r}"
                )
            rows.sort(key=lambda e: getattr(e, key), reverse=True)
        if time_unit not in (None, "s", "ms", "us"):
            raise ValueError(f'table: expected time_unit "s", "ms" or "us", got {time_unit!r}')
        totals = _Totals(self.self_cpu_time_total, self._device_time(), time_unit)
        columns = self._columns(max_name_column_width, max_shapes_column_width, max_src_column_width)
        cells = [[c.cell(e, totals) for c in columns] for e in rows[: row_limit if row_limit >= 0 else None]]
        lines = _lay_out(columns, cells)
        if header:
            lines = [header, *lines]
        lines.append(f"Self CPU time total: {_format_time(totals.cpu, time_unit)}")
        if self._device:
            lines.append(f"Self CUDA time total: {_format_time(totals.device, time_unit)}")
        return "\n".join(lines) + "\n"

    def _device_time(self) -> float:
        """Of all that devices did: what launched it has the same time once more."""
        return sum(e.self_device_time_total for e in self if e.device_type is not DeviceType.CPU)

    def _columns(self, name_width: int, shape_width: int, source_width: int) -> list[_Column]:
        columns = [_Column("Name", lambda e, t: _cut(e.key, name_width), left=True), *_CPU]
        if self._device:
            columns += _DEVICE
        if self._memory:
            columns += _CPU_MEMORY + (_DEVICE_MEMORY if self._device else [])
        columns.append(_Column("# of Calls", lambda e, t: str(e.count)))
        if any(e.input_shapes for e in self):
            columns.append(_Column("Input Shapes", lambda e, t: _cut(str(e.input_shapes), shape_width)))
        if any(e.stack for e in self):
            columns.append(
                _Column(
                    "Source Location", lambda e, t: _cut(e.stack[0] if e.stack else "", source_width), True
                )
            )
        if self._flops:
            columns.append(_Column("Total FLOPs", lambda e, t: f"{e.flops:,}" if e.flops else "--"))
        return columns

    def export_chrome_trace(self, path: str) -> None:
        """Writes the whole trace as JSON for Perfetto and chrome://tracing.

        Args:
            path: of the file.
        """
        if self._write_trace is None:
            raise RuntimeError("export_chrome_trace: these events are of no profile")
        self._write_trace(path)

    def export_stacks(self, path: str, metric: str = "self_cpu_time_total") -> None:
        """Writes folded stacks, outermost frame first, with whole microseconds: what flame graph tools read.

        Raises:
            ValueError: an unknown metric.
        """
        known = ("self_cpu_time_total", "self_device_time_total")
        if metric.replace("cuda", "device") not in known:
            raise ValueError(
                f"export_stacks: expected metric to be one of {', '.join(known)}, got {metric!r}"
            )
        stacks: dict[str, float] = defaultdict(float)
        for e in self:
            frames = [frame.translate(str.maketrans(" ;\t\n", "____")) for frame in reversed(e.stack)]
            if frames:
                stacks[";".join(frames)] += getattr(e, metric.replace("cuda", "device"))
        with open(path, "w") as file:
            file.writelines(f"{stack} {value:.0f}\n" for stack, value in stacks.items() if value >= 1)

    def __str__(self) -> str:
        return self.table()


def _cut(text: str, width: int | None) -> str:
    return text if not width or len(text) <= width else text[: width - 3] + "..."


def _lay_out(columns: list[_Column], cells: list[list[str]]) -> list[str]:
    widths = [max([len(c.header), *(len(row[i]) for row in cells)]) for i, c in enumerate(columns)]
    rule = "  ".join("-" * w for w in widths)

    def line(row: Iterable[str]) -> str:
        parts = (
            text.ljust(w) if c.left else text.rjust(w)
            for text, w, c in zip(row, widths, columns, strict=True)
        )
        return "  ".join(parts).rstrip()

    return [rule, line(c.header for c in columns), rule, *map(line, cells), rule]
