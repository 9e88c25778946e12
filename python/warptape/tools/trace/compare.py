"""Where two traced runs part: the first record that differs. The standard library is all that it needs."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import dataclass, field

from .trace_file import Record, Trace, TraceError, read_run

# What a record of these kinds is of has a name of its own, by which it is found in another program.
NAMED = ("batch", "input", "module", "parameter", "gradient", "state")


@dataclass
class Difference:
    """A place at which two runs part.

    Attributes:
        kind: "values"; "structure", where the programs did other things; "end", where one trace ends.
        rank: of the record.
        first, second: the record of either run; None after the end of one.
        before: the last record that both have with one hash, or None.
    """

    kind: str
    rank: int
    first: Record | None
    second: Record | None
    before: Record | None

    @property
    def record(self) -> Record:
        """That of the first run, or else of the second."""
        difference = self.first or self.second
        assert difference is not None
        return difference


@dataclass
class Comparison:
    """What `compare` found.

    Attributes:
        parts: the first place where values part, or None.
        structure: the first place where the programs part, or None. `parts` is then by named records alone.
        ends: by rank, where one trace ends though the other goes on.
        compared: how many pairs of records were compared.
        different: how many of them differ.
        notes: what else is to be said, a line each.
    """

    parts: Difference | None = None
    structure: Difference | None = None
    ends: list[Difference] = field(default_factory=list)
    compared: int = 0
    different: int = 0
    notes: list[str] = field(default_factory=list)

    @property
    def equal(self) -> bool:
        """Whether both runs did the same, as far as both traces reach."""
        return self.parts is None and self.structure is None


@dataclass
class _Equality:
    """How records are compared: by hashes, or by statistics within a tolerance."""

    rtol: float | None
    atol: float

    def __call__(self, a: Record, b: Record) -> bool:
        if self.rtol is None:
            return a.hashes == b.hashes
        if a.statistics is None or b.statistics is None:
            raise TraceError(
                "a tolerance needs traces with statistics: trace_hashes(folder, statistics=True)"
            )
        return all(
            self._close(x, y, shape)
            for x, y, (_, shape) in zip(a.statistics, b.statistics, a.key.values, strict=True)
        )

    def _close(self, x: list[float], y: list[float], shape: tuple[int, ...]) -> bool:
        """The norm relative to itself, all else relative to the root of the mean square."""
        if not x or not y:  # no floating values
            return x == y
        assert self.rtol is not None
        scale = max(abs(x[0]), abs(y[0])) / math.sqrt(max(math.prod(shape), 1))
        bounds = [self.atol + self.rtol * max(abs(x[0]), abs(y[0]))]
        bounds += [self.atol + self.rtol * scale] * (len(x) - 1)
        return len(x) == len(y) and all(
            p == q or (math.isnan(p) and math.isnan(q)) or abs(p - q) <= bound
            for p, q, bound in zip(x, y, bounds, strict=True)
        )


def _in_lockstep(rank: int, a: Trace, b: Trace, same: _Equality, out: Comparison) -> list[Difference]:
    """The first difference of values, and what ends the walk: another structure, or one trace's end."""
    differences: list[Difference] = []
    before = None
    for x, y in zip(a.records, b.records):
        if x.step != y.step or not x.key.same(y.key):
            differences.append(Difference("structure", rank, x, y, before))
            return differences
        out.compared += 1
        if same(x, y):
            before = x
            continue
        out.different += 1
        if not differences:
            differences.append(Difference("values", rank, x, y, before))
    n = min(len(a.records), len(b.records))
    if len(a.records) != len(b.records):
        # Only a run that came to its end says that there was no more to do.
        shorter = a if len(a.records) < len(b.records) else b
        first, second = (t.records[n] if n < len(t.records) else None for t in (a, b))
        kind = "structure" if shorter.complete else "end"
        differences.append(Difference(kind, rank, first, second, before))
    return differences


def _by_name(rank: int, a: Trace, b: Trace, same: _Equality, out: Comparison) -> list[Difference]:
    """The first difference among records that have names, of programs that do other things between them."""
    sides: list[dict[tuple, Record]] = []
    for trace in (a, b):
        seen: Counter[tuple] = Counter()
        side: dict[tuple, Record] = {}
        for r in trace.records:
            if r.key.kind not in NAMED:
                continue
            shapes = tuple(shape for _, shape in r.key.values)
            name = (r.step, r.key.kind, r.key.name, r.key.module, shapes)
            place = (*name, seen[name])
            side[place] = r
            seen[name] += 1
        sides.append(side)
    common = [name for name in sides[0] if name in sides[1]]
    out.notes.append(
        f"rank {rank}: compared by name: {len(common)} records that both have, "
        f"{len(sides[0]) - len(common)} and {len(sides[1]) - len(common)} that one has"
    )
    differences: list[Difference] = []
    before = None
    for name in common:
        x, y = sides[0][name], sides[1][name]
        out.compared += 1
        if same(x, y):
            before = x if not differences else before
            continue
        out.different += 1
        if not differences:
            differences.append(Difference("values", rank, x, y, before))
    return differences


def _order(traces: dict[int, Trace], found: Difference) -> tuple[int, int, int, int, int]:
    """Which of the ranks' differences was first: what one rank did wrong comes to the others by a collective,
    so that it was earlier if fewer collectives had ended."""
    trace, record = traces[found.rank], found.record
    passed = sum(
        r.key.kind == "collective" and (r.step, r.number) < (record.step, record.number)
        for r in trace.records
    )
    return record.step, passed, int(record.key.kind == "collective"), record.number, found.rank


def compare(
    run1: str, run2: str, *, rtol: float | None = None, atol: float = 0.0, by_name: bool = False
) -> Comparison:
    """Where two runs part.

    Args:
        run1, run2: folders of traces, or a rank's file each.
        rtol: compares statistics with this tolerance in place of hashes. The norm of a tensor is compared
            relative to itself, its mean, extremes and samples relative to the root of its mean square.
        atol: is added to each bound.
        by_name: compares only what has a name (batches, inputs and results of modules, gradients, parameters,
            states), as is done of itself after a difference of structure.

    Raises:
        TraceError: a trace is missing or is none, the hashes are of two kinds and no rtol is given, or it is
            given and a trace has no statistics.
    """
    runs = read_run(run1), read_run(run2)
    out = Comparison()
    ranks = [rank for rank in runs[0] if rank in runs[1]]
    if not ranks:
        raise TraceError(f"no rank has a trace in both: {[*runs[0]]} in {run1}, {[*runs[1]]} in {run2}")
    if runs[0].keys() != runs[1].keys():
        out.notes.append(
            f"ranks differ: {[*runs[0]]} in {run1}, {[*runs[1]]} in {run2}; {ranks} are compared"
        )
    same = _Equality(rtol, atol)
    values: list[Difference] = []
    structure: list[Difference] = []
    for rank in ranks:
        a, b = runs[0][rank], runs[1][rank]
        kinds = a.header["hash"], b.header["hash"]
        if rtol is None and kinds[0] != kinds[1]:
            raise TraceError(
                f"hashes of two kinds, {kinds[0]} and {kinds[1]}: compare with a tolerance (rtol)"
            )
        out.notes += [
            f"{t.path} was cut: it is read up to step {t.steps - 1}" for t in (a, b) if not t.complete
        ]
        differences = [] if by_name else _in_lockstep(rank, a, b, same, out)
        parted = [d for d in differences if d.kind == "structure"]
        if by_name or (parted and not any(d.kind == "values" for d in differences)):
            differences += _by_name(rank, a, b, same, out)
        values += [d for d in differences if d.kind == "values"]
        structure += parted
        out.ends += [d for d in differences if d.kind == "end"]
    first = min(values, key=lambda d: _order(runs[0], d), default=None)
    out.parts = first
    out.structure = min(structure, key=lambda d: (d.record.step, d.record.number), default=None)
    return out
