"""What `verify` found, as a table."""

from __future__ import annotations

import math
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Difference:
    """The first thing that differs: a module's output ("forward"), a parameter's gradient ("backward"), the
    "loss", a state or the "norm" that is left "after" it, or an "error" that a rank raised, in a module.
    `size` is the norm of the difference as share of what should be there, the largest of `ranks`. Where a
    module is right but for what it is given, `name` is
    the module around it, and `where` says so."""

    kind: str
    name: str
    size: float
    ranks: tuple[int, ...]
    causes: tuple[str, ...]
    where: str = ""

    def __str__(self) -> str:
        if self.kind == "error":
            return f"error{' in ' if self.name else ''}{self.name}: {self.where}"
        what = {"forward": "output of ", "backward": "gradient of ", "after": "after the step, "}.get(
            self.kind, ""
        )
        ranks = f"on rank{'s' if len(self.ranks) > 1 else ''} {', '.join(map(str, self.ranks))}"
        by = f"differs by {self.size:.1e} of its norm" if math.isfinite(self.size) else "differs"
        lines = [f"{self.where or what + self.name} {by} {ranks}"]
        return "\n".join(lines + [f"    likely: {cause}" for cause in self.causes])


@dataclass
class Row:
    """One layout, in training or in evaluation: the largest errors of outputs and gradients, how many modules
    could not be compared, and what differs."""

    layout: str
    ranks: int
    training: bool
    forward: float = 0.0
    backward: float = 0.0
    uncompared: list[str] = field(default_factory=list)
    difference: Difference | None = None


@dataclass
class Report:
    """Printable; `ok` when no layout differs.

    Args:
        rows: one for each comparison.
    """

    rows: list[Row]

    @property
    def ok(self) -> bool:
        """Whether every layout computes what one process does."""
        return not self.differences

    @property
    def differences(self) -> dict[str, Difference]:
        """By layout, the first one."""
        out: dict[str, Difference] = {}
        for row in self.rows:
            if row.difference is not None:
                out.setdefault(row.layout, row.difference)
        return out

    def __str__(self) -> str:
        width = max([6, *(len(row.layout) for row in self.rows)])
        lines = [f"{'layout':{width}}  ranks  mode   outputs  gradients  first difference"]
        for row in self.rows:
            difference, mode = row.difference, "train" if row.training else "eval"
            first = f"{difference.kind}: {difference.name or difference.where[:60]}" if difference else "none"
            lines.append(
                f"{row.layout:{width}}  {row.ranks:5}  {mode:5}  {row.forward:7.0e}  {row.backward:9.0e}  "
                f"{first}"
            )
        reported = set()
        for row in self.rows:
            difference = row.difference
            if (
                difference and (row.layout, difference.name, difference.causes) not in reported
            ):  # or both modes say the same
                reported.add((row.layout, difference.name, difference.causes))
                lines += ["", f"{row.layout}, {'train' if row.training else 'eval'}: {difference}"]
        for row in self.rows:
            if row.uncompared and row.training:
                lines.append(f"{row.layout}: outputs not compared: {', '.join(row.uncompared)}")
        return "\n".join(lines)
