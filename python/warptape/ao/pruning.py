"""Masks that grow while a model trains, and masks of n in m: on top of `torch.nn.utils.prune`."""

from __future__ import annotations

from collections.abc import Iterable

from warptape import core as wt

from ..nn import Module
from ..nn.utils import prune

__all__ = ["GradualPruner", "NofM", "PolynomialSchedule", "n_of_m", "sparsity"]


class PolynomialSchedule:
    """The share of zeros at a step: s_t = s_f + (s_i - s_f) (1 - (t - t_0) / (n d))^power.

    Power 3 is the cubic of Zhu & Gupta (2017), "To prune, or not to prune", 1 a line. Before `begin` (t_0)
    it is `initial`; from `end` (t_0 + n d) on it is `final`; in between it changes every `every` (d) steps.

    Raises: ValueError for shares outside of 0 to 1, and for an end that is not after the beginning.
    """

    def __init__(
        self,
        final: float,
        *,
        end: int,
        initial: float = 0.0,
        begin: int = 0,
        every: int = 1,
        power: float = 3.0,
    ) -> None:
        if not 0 <= initial <= final <= 1:
            raise ValueError(
                "PolynomialSchedule: expected 0 <= initial <= final <= 1, "
                f"got initial={initial}, final={final}"
            )
        if not 0 <= begin < end or every < 1 or power <= 0:
            raise ValueError(
                "PolynomialSchedule: expected 0 <= begin < end, every >= 1 and power > 0, "
                f"got begin={begin}, end={end}, every={every}, power={power}"
            )
        self.initial, self.final, self.begin, self.end = initial, final, begin, end
        self.every, self.power = every, power

    def __call__(self, step: int) -> float:
        """The share at a step, counted from 0."""
        if step >= self.end:
            return self.final
        rounded = max(step - self.begin, 0) // self.every * self.every
        left = 1 - rounded / (self.end - self.begin)
        return self.final + (self.initial - self.final) * left**self.power


class GradualPruner:
    """Prunes parameters further, step by step, those least in absolute value over all of them.

        pairs = [(model.fc1, "weight"), (model.fc2, "weight")]
        pruner = GradualPruner(pairs, PolynomialSchedule(0.9, end=500))
        for batch in loader:
            ...
            optimizer.step()
            pruner.step()

    Make the optimizer after the first `step()` or before it: parameters stay the same objects. A weight that
    was pruned stays so.

    Args:
        parameters: pairs (module, name).
        schedule: gives the share of zeros at a step.
    """

    def __init__(self, parameters: Iterable[tuple[Module, str]], schedule: PolynomialSchedule) -> None:
        self.parameters, self.schedule = [(m, n) for m, n in parameters], schedule
        if not self.parameters:
            raise ValueError("GradualPruner: expected at least one pair (module, name), got none")
        for module, name in self.parameters:
            if not isinstance(getattr(module, name, None), wt.Tensor):
                raise ValueError(f"GradualPruner: {type(module).__name__} has no parameter {name!r}")
        self.steps = 0

    @wt.no_grad()
    def step(self) -> float:
        """Prunes to the schedule's share; returns the share that is zero now.

        Call it after each optimizer step (Zhu and Gupta, "To prune, or not to prune", 2017).
        """
        for module, name in self.parameters:
            if not hasattr(module, name + "_mask"):
                prune.identity(module, name)
        masks = [getattr(module, name + "_mask") for module, name in self.parameters]
        total = sum(mask.numel() for mask in masks)
        count = round(self.schedule(self.steps) * total)
        self.steps += 1
        # What is pruned comes first, whatever its weight is.
        score = wt.cat(
            [
                (getattr(module, name + "_orig").abs() + 1).mul(mask).reshape(-1)
                for (module, name), mask in zip(self.parameters, masks)
            ]
        )
        pruned = int((score == 0).sum())
        if count > pruned:
            keep = wt.ones_like(score)
            keep[wt.topk(score, count, largest=False).indices] = 0
            for (module, name), mask in zip(self.parameters, masks):
                part, keep = keep[: mask.numel()], keep[mask.numel() :]
                mask.mul_(part.view_as(mask))
                setattr(module, name, mask * getattr(module, name + "_orig"))
        return max(count, pruned) / total


class NofM(prune.BasePruningMethod):
    """Keeps the n of each m neighbours along the last dim that are largest in absolute value.

    2 of 4 is the form that tensor cores multiply (Mishra et al. 2021, "Accelerating sparse deep neural
    networks"). Convolutions' weights are taken as [out, in * kernel].

    Raises: ValueError where m does not divide the elements of a row, or n is not in 1 to m.
    """

    PRUNING_TYPE = "global"

    def __init__(self, n: int = 2, m: int = 4) -> None:
        if not 1 <= n <= m:
            raise ValueError(f"n_of_m: expected 1 <= n <= m, got n={n}, m={m}")
        self.n, self.m = n, m

    def compute_mask(self, t: wt.Tensor, default_mask: wt.Tensor) -> wt.Tensor:
        """A mask of t's shape.

        Args:
            t: importances.
            default_mask: zeros in it stay.
        """
        row = t[0].numel() if t.ndim > 1 and t.shape[0] else t.numel()
        if row % self.m:
            raise ValueError(
                f"n_of_m: {self.m} does not divide the {row} elements of a row of {list(t.shape)}"
            )
        # Elements that other methods pruned are taken last.
        score = wt.where(default_mask != 0, t.detach().abs(), -1.0).reshape(-1, self.m)
        kept = wt.zeros_like(score)
        kept.scatter_(1, wt.topk(score, self.n, dim=1).indices, 1.0)
        return default_mask * kept.reshape(t.shape).to(default_mask.dtype)


def n_of_m(module: Module, name: str = "weight", n: int = 2, m: int = 4) -> Module:
    """Prunes a parameter to n of each m neighbours (2:4 by default); returns the module.

    Args:
        module: changed.
        name: of the parameter.
        n: how many stay.
        m: of so many.

    >>> from warptape.ao import n_of_m, sparsity
    >>> sparsity(n_of_m(nn.Linear(8, 2)))
    0.5
    """
    NofM.apply(module, name, n, m)
    return module


def sparsity(model: Module) -> float:
    """The share of zeros among the elements of all weights of two and more dims, masks applied.

    Args:
        model: any module.
    """
    zeros = total = 0
    for module in model.modules():
        for name, parameter in module._parameters.items():
            if parameter is not None and parameter.ndim > 1:
                shown = getattr(module, name.removesuffix("_orig"), parameter)
                zeros += int((shown == 0).sum())
                total += parameter.numel()
    return zeros / total if total else 0.0
