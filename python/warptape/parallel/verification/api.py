"""`verify`, and how the first difference is found."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from functools import cache, partial
from typing import Any

from warptape import core as wt
from warptape.distributed import simulate

from ... import nn
from ...core import Tensor
from ...core.pytree import tree_map_only
from ...distributed.simulation import RankFailed
from . import causes
from .compare import Compared, compare, compare_calls
from .layout import Layout
from .record import Seen, gradient_of_own_shards, make_model, run
from .report import Difference, Report, Row

SMALL = 1e-4  # of the largest gradient: what is smaller is compared with this, or rounding would be all


def verify(
    build: Callable[[], nn.Module],
    batch: tuple[Any, Any],
    loss_fn: Callable[[Any, Any], Tensor],
    layouts: Mapping[str, Layout],
    *,
    seed: int = 0,
    dtype: wt.dtype = wt.float64,
    tolerance: float | None = None,
    modes: Sequence[bool] = (False, True),
    after: Callable[[Any], Any] | None = None,
    check: bool = False,
    timeout: timedelta = timedelta(seconds=60),
) -> Report:
    """Runs a model forward and backward under each layout, on ranks that are threads of this process, and
    once plainly; compares the modules' outputs, the loss and the gradients.

    Args:
        build: makes the model, after the seed is set; the same on each rank.
        batch: (inputs, target); inputs are a tensor or a tuple.
        loss_fn: loss_fn(output, target), a mean over the batch.
        layouts: by name; see Layout.
        dtype: of parameters and inputs.
        tolerance: largest difference, as share of the norm: 1e-8 in float64, 1e-3 in others.
        modes: the training modes of the model; with the default dropout is off, then on.
        after: after(model) is called after backward, to clip, to step an optimizer, to save and load. What it
            returns, such as a norm of gradients, is compared, and then parameters and buffers are.
        check: whether a difference raises AssertionError.
        timeout: of a collective.

    Modules are told apart by their names in the model that `build` makes. What a rank has of an output is
    known by its shape: the whole, or this rank's part along a dim that is shorter. What it cannot tell is not
    compared, and `Row.uncompared` names it.

    Raises: ValueError for a batch that does not divide, before anything runs; RankFailed when the model does
    not run in one process. A rank's error under a layout is part of the report.
    """
    inputs, target = batch
    inputs = tuple(inputs) if isinstance(inputs, tuple | list) else (inputs,)
    inputs, target = _converted(inputs, dtype), _converted(target, dtype)
    for name, layout in layouts.items():
        rows = [t.shape[0] for t in (*inputs, target) if isinstance(t, Tensor) and t.ndim]
        if any(n % layout.copies for n in rows):
            raise ValueError(
                f"verify: layout {name!r} cuts the batch into {layout.copies}, and dim 0 of it is {rows}; "
                f"make it a multiple of {layout.copies}"
            )
    allowed = tolerance or (1e-8 if dtype == wt.float64 else 1e-3)
    report = Report([])
    for training in modes:
        make = partial(make_model, build, seed, dtype, training)
        once = partial(run, make, inputs, target, loss_fn, after)
        plain = simulate(1, once, None, timeout=timeout)[0]
        own_shards = partial(gradient_of_own_shards, make, inputs, target, loss_fn)
        of_zero = cache(partial(simulate, 1, partial(run, make, inputs, target, _zero(loss_fn), None), None))
        for name, layout in layouts.items():
            row = Row(name, layout.ranks, training)
            report.rows.append(row)
            try:
                ranks = simulate(layout.ranks, once, layout, timeout=timeout)
            except RankFailed as error:
                name_of = getattr(error.__cause__, "in_module", "")
                row.difference = Difference("error", name_of, math.inf, (), (), str(error))
                continue
            added = partial(lambda of: of()[0].gradients, of_zero)
            _Comparison(plain, ranks, layout, allowed, row, added, own_shards).fill()
            agreed = any(r.layout == name and not r.difference and not r.training for r in report.rows[:-1])
            if row.difference and training and agreed:
                hint = (
                    "eval mode agrees: dropout draws other numbers, or statistics are of a part of the batch"
                )
                row.difference = replace(row.difference, causes=(*row.difference.causes, hint))
    report.rows.sort(key=lambda r: (list(layouts).index(r.layout), r.training))
    if check and not report.ok:
        raise AssertionError(f"verify: layouts differ from one process\n{report}")
    return report


def _zero(loss_fn: Callable[[Any, Any], Tensor]) -> Callable[[Any, Any], Tensor]:
    return lambda output, target: loss_fn(output, target) * 0


def _converted(value: Any, dtype: Any) -> Any:
    return tree_map_only(Tensor, lambda t: t.to(dtype) if t.is_floating_point() else t, value)


class _Comparison:
    """One layout's ranks beside one process."""

    def __init__(
        self,
        plain: Seen,
        ranks: list[Seen],
        layout: Layout,
        allowed: float,
        row: Row,
        added: Callable[[], dict[str, Tensor | None]],
        own_shards: Callable[[str, tuple[int, int], int], Tensor | None],
    ) -> None:
        self.plain, self.ranks, self.layout, self.allowed, self.row = plain, ranks, layout, allowed, row
        self.added, self.own_shards = added, own_shards  # reruns: of a loss that is zero; see record
        self.micro = max(seen.micro_batches for seen in ranks)
        self.right: set[str] = set()  # modules whose outputs agree
        self.split: dict[str, bool] = {}  # whether ranks have parts of a module's output
        self.copied: set[str] = set()  # parameters whose gradient each rank has as a whole

    def fill(self) -> None:
        """Compares all, and keeps the first difference."""
        forward, loss, backward = self.outputs(), self.loss(), self.gradients()
        self.row.difference = forward or loss or backward or self.norm() or self.state()

    def wrong(self, compared: Compared) -> tuple[int, ...]:
        return tuple(rank for rank, error in compared.errors.items() if not error <= self.allowed)

    # ---- forward ----

    def outputs(self) -> Difference | None:
        """The first module in the order of one process whose output differs, and no module's around it that
        is right (which puts together what inner ones have in another form)."""
        suspects: list[tuple[str, int, Compared]] = []
        count: dict[str, int] = {}
        for name in self.plain.order:
            index = count[name] = count.get(name, -1) + 1
            compared = compare_calls(name, index, self.plain, self.ranks, self.layout)
            if compared is None:
                if name not in self.row.uncompared and self.ought_to_compare(name, index):
                    self.row.uncompared.append(name)
                continue
            worst = max(compared, key=lambda each: each.error)
            self.split[name] = bool(worst.split)
            if not self.wrong(worst):
                self.right.add(name)
                self.row.forward = max(self.row.forward, worst.error)
                continue
            self.right.discard(name)
            suspects.append((name, index, worst))
        bad = {name for name, _, _ in suspects}
        for name, index, worst in suspects:
            if any(
                outer in self.right and outer not in bad for outer in self.plain.calls[name][index].inside
            ):
                continue
            self.row.forward = max(self.row.forward, *(s.error for *_, s in suspects))
            return self.explain_output(name, index, worst)
        return None

    def ought_to_compare(self, name: str, index: int) -> bool:
        """Not what gives no floating tensors, nor a module whose stages are called instead of it."""
        called = any(name in seen.calls for seen in self.ranks)
        outer = any(
            other.startswith(f"{name}." if name else "") for other in self.plain.order if other != name
        )
        return (called or not outer) and any(
            t.is_floating_point() for t in self.plain.calls[name][index].outputs
        )

    def explain_output(self, name: str, index: int, compared: Compared) -> Difference:
        shown, where = name, ""
        likely = causes.of_bias(compared, self.plain.values.get(f"{name}.bias"), self.layout)
        of_inputs = compare_calls(name, index, self.plain, self.ranks, self.layout, "inputs")
        if of_inputs and any(self.wrong(each) for each in of_inputs):
            # The module works on what is wrong already: look at what the one around it does before.
            compared = max(of_inputs, key=lambda each: each.error)
            shown = name.rpartition(".")[0]
            where = f"what {shown or 'the model'} gives to {name}"
            likely = list(causes.of_columns(name, self.ranks, self.right))
        likely += causes.of_values(compared, self.layout, 1, backward=False)
        return Difference("forward", shown, compared.error, self.wrong(compared), tuple(likely), where)

    # ---- loss ----

    def loss(self) -> Difference | None:
        """Of all ranks that have one, the mean."""
        out = [seen.loss for seen in self.ranks if seen.loss is not None]
        if not out or self.plain.loss is None:
            return None
        one = compare({0: wt.stack(out).mean()}, self.plain.loss, self.layout, set())
        if one is None or not self.wrong(one):
            return None
        likely = (
            *causes.of_ratio(one.pairs, self.layout, self.micro),
            "all modules are right: see this layout's loss function",
        )
        return Difference("loss", "loss", one.error, tuple(range(len(out))), likely)

    # ---- backward ----

    def gradients(self) -> Difference | None:
        """The first parameter that backward comes to whose gradient differs."""
        largest = max((g.norm().item() for g in self.plain.gradients.values() if g is not None), default=0.0)
        wrong: list[tuple[str, Compared | None]] = []
        for name in sorted(self.plain.gradients, key=self.place_of):
            want = self.plain.gradients[name]
            having = [(r, s.gradients[name]) for r, s in enumerate(self.ranks) if name in s.gradients]
            if not having:
                self.row.uncompared.append(f"{name}.grad")
                continue
            if want is None or any(g is None for _, g in having):
                if (want is None) != all(g is None for _, g in having):
                    wrong.append((name, None))
                continue
            got = {rank: g for rank, g in having if g is not None}
            compared = compare(got, want, self.layout, set(), floor=SMALL * largest)
            if compared is not None and self.wrong(compared):
                wrong.append((name, compared))
            if compared is None:
                self.row.uncompared.append(f"{name}.grad")
            else:
                self.row.backward = max(self.row.backward, compared.error)
                self.copied |= set() if compared.split else {name}
        return self.explain_gradient(wrong[0][0], wrong[0][1], len(wrong)) if wrong else None

    def place_of(self, name: str) -> tuple[bool, int]:
        """Backward comes last to what forward used first. What a module with others inside has of its own
        has no place that is known, and is looked at after all others."""
        owner, order = name.rpartition(".")[0], self.plain.order
        around = any(other.startswith(f"{owner}." if owner else "") and other != owner for other in order)
        return around or owner not in order, -order.index(owner) if owner in order else 0

    def explain_gradient(self, name: str, compared: Compared | None, number: int) -> Difference:
        if compared is None:
            missing = tuple(
                r for r, s in enumerate(self.ranks) if name in s.gradients and s.gradients[name] is None
            )
            why = "ranks have no gradient: it is frozen, or what they compute does not depend on it"
            if not missing:
                why = "it has a gradient, and in one process it has none"
            return Difference("backward", name, math.inf, missing or tuple(range(len(self.ranks))), (why,))
        likely = causes.of_values(compared, self.layout, self.micro, backward=True)
        if not likely:
            likely = causes.of_added(compared, self.added().get(name), self.layout, self.micro)
            likely = likely or self.of_own_shards(name, compared)
        owner = name.rpartition(".")[0]
        summands = any("summands" in cause for cause in likely)
        if summands and self.split.get(owner) and not any(name in seen.summed for seen in self.ranks):
            likely.append(
                f"{owner} works on a part of what one process gives it, as of the sequence, and the gradient "
                f"of its parameters is not summed: give {owner} SequenceParallel()"
            )
        elif summands and number > 1:
            behind = [other for other in self.plain.order if other in self.right or other == owner]
            after = behind[behind.index(owner) + 1 :][:1] if owner in behind else []
            likely.append(
                f"{number} parameters differ: backward lacks the sum where {owner}'s output goes into split "
                f"layers{f', such as {after[0]}' if after else ''}"
            )
        return Difference("backward", name, compared.error, self.wrong(compared), tuple(likely))

    def of_own_shards(self, name: str, compared: Compared) -> list[str]:
        """Whether a gradient lacks what other ranks do with the part that each has of its module's output."""
        owner = name.rpartition(".")[0]
        if compared.split or any(len(self.plain.calls.get(each, ())) != 1 for each in (owner, "")):
            return []
        inner, outer = (compare_calls(each, 0, self.plain, self.ranks, self.layout) for each in (owner, ""))
        if not inner or not outer or len(inner) != 1 or len(outer) != 1:
            return []
        last = dict(outer[0].split)
        for axis, dim in inner[0].split:
            ranks = self.layout.sizes[self.layout.axes.index(axis)]
            got = next(iter(compared.pairs.values()))[0]
            alone = self.own_shards(name, (dim, last[axis]), ranks) if axis in last else None
            if alone is not None and causes.near(got, alone):
                return [
                    f"it lacks what other ranks of the axis {axis!r} do with {owner}'s output, of which each "
                    "has a part: what gathers it cuts gradients in backward, and must sum (reduce-scatter)"
                ]
        return []

    # ---- what follows backward ----

    def norm(self) -> Difference | None:
        """What `after` returned on each rank."""
        got = {rank: seen.norm for rank, seen in enumerate(self.ranks) if seen.norm is not None}
        if not got or self.plain.norm is None:
            return None
        compared = compare(got, self.plain.norm, self.layout, set())
        if compared is None or not self.wrong(compared):
            return None
        likely = causes.of_norm(compared, self.plain.gradients, self.copied, self.layout)
        return Difference("after", "norm", compared.error, self.wrong(compared), tuple(likely))

    def state(self) -> Difference | None:
        """The first parameter or buffer that `after` left with another value, by what was added to it."""
        for name, want in self.plain.state.items():
            got = {rank: seen.state[name] for rank, seen in enumerate(self.ranks) if name in seen.state}
            if not got or not want.is_floating_point():
                continue
            compared = compare(got, want, self.layout, set())
            if compared is None or not self.wrong(compared):
                continue
            start, added = self.plain.values.get(name), compared
            if (
                start is not None
                and not want.equal(start)
                and all(t.shape == start.shape for t in got.values())
            ):
                added = (
                    compare({r: t - start for r, t in got.items()}, want - start, self.layout, set()) or added
                )
            wrong = {rank: added.pairs[rank] for rank in self.wrong(compared)}
            likely = (
                causes.of_names(compared, name, self.plain.state)
                or causes.of_ratio(wrong, self.layout, self.micro)
                or causes.of_values(added, self.layout, self.micro, backward=False)
                or causes.of_orthogonal(added, self.layout)
            )
            return Difference("after", name, compared.error, self.wrong(compared), tuple(likely))
        return None
