"""L-BFGS: Nocedal and Wright, "Numerical optimization", 2nd edition, algorithm 7.4 (two loops); line search:
algorithms 3.5 and 3.6 (strong Wolfe conditions) with the safeguards of Schmidt's minFunc (2005).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

from warptape import core as wt
from warptape.core import Tensor

from ..core.placed import Placed
from ._split import full_tensor_of
from .optimizer import Optimizer, ParamsT, as_real, options

__all__ = ["LBFGS"]

SUFFICIENT_DECREASE, CURVATURE = 1e-4, 0.9  # c1 and c2 of the Wolfe conditions
MAX_SEARCH = 25


class LBFGS(Optimizer):
    """Quasi-Newton steps from the last `history_size` changes of parameters and gradients.

    All parameters are one vector: only one group, on one device. ``step`` needs the closure and calls it
    several times.

    Args:
        params: tensors or ``(name, tensor)`` pairs.
        lr: length of the steps along the direction; with a line search, where it starts.
        max_iter: iterations in one step.
        max_eval: calls of the closure in one step; by default ``max_iter * 1.25``.
        tolerance_grad: ends when no component of the gradient is larger.
        tolerance_change: ends when neither parameters nor loss change by more.
        history_size: changes kept.
        line_search_fn: None or "strong_wolfe".

    Raises:
        ValueError: several groups, or a negative learning rate.
        RuntimeError: another line search, when stepping.

    >>> x = torch.tensor([3.0], requires_grad=True)
    >>> optimizer = torch.optim.LBFGS([x], line_search_fn="strong_wolfe")
    >>> def closure():
    ...     optimizer.zero_grad()
    ...     loss = ((x - 1) ** 2).sum()
    ...     loss.backward()
    ...     return loss
    >>> start = optimizer.step(closure)
    >>> start.item(), round(x.item(), 4)
    (4.0, 1.0)
    """

    update_scope = "all"

    def __init__(
        self,
        params: ParamsT,
        lr: float | Tensor = 1,
        max_iter: int = 20,
        max_eval: int | None = None,
        tolerance_grad: float = 1e-7,
        tolerance_change: float = 1e-9,
        history_size: int = 100,
        line_search_fn: str | None = None,
    ) -> None:
        if isinstance(lr, wt.Tensor) and lr.numel() != 1:
            raise ValueError("Tensor lr must be 1-element")
        if not lr >= 0.0:
            raise ValueError(f"Invalid learning rate: {lr}")
        max_eval = max_iter * 5 // 4 if max_eval is None else max_eval
        super().__init__(params, options(locals()))
        if len(self.param_groups) != 1:
            raise ValueError("LBFGS doesn't support per-parameter options (parameter groups)")

    @property
    def _params(self) -> list[Tensor]:
        return self.param_groups[0]["params"]

    def step(self, closure: Callable[[], Any]) -> Any:  # type: ignore[override]
        """Takes up to `max_iter` iterations. Returns the first call's loss.

        Args:
            closure: sets gradients to zero, computes the loss, calls backward and returns the loss.

        Raises: RuntimeError for a line_search_fn that is unknown.
        """
        group = self.param_groups[0]
        if group["line_search_fn"] not in (None, "strong_wolfe"):
            raise RuntimeError("only 'strong_wolfe' is supported")
        with wt.no_grad():
            return self._iterate(group, self.state[self._params[0]], closure)

    def _iterate(self, group: dict[str, Any], state: dict[str, Any], closure: Callable[[], Any]) -> Any:
        first_loss, loss, grad = self._evaluate(closure)
        evaluations = 1
        state["func_evals"] = state.get("func_evals", 0) + 1
        if _largest(grad) <= group["tolerance_grad"]:
            return first_loss
        for i in range(1, group["max_iter"] + 1):
            d = self._direction(group, state, grad)
            prev_loss = loss
            t = float(group["lr"]) * (
                min(1.0, 1.0 / grad.abs().sum().item()) if state["n_iter"] == 1 else 1.0
            )
            state.update(d=d, t=t, prev_loss=loss)
            slope = grad.dot(d).item()
            if slope > -group["tolerance_change"]:
                break
            if group["line_search_fn"] is not None:
                point, calls = self._search(closure, _Point(0.0, loss, grad, slope), d, t, group)
                t, loss, grad = point.t, point.loss, point.grad
            else:
                self._move(self._copies(), t, d)
                calls = 0
                if i < group["max_iter"]:
                    _, loss, grad = self._evaluate(closure)
                    calls = 1
            state["t"] = t
            evaluations += calls
            state["func_evals"] += calls
            if (
                evaluations >= group["max_eval"]
                or _largest(grad) <= group["tolerance_grad"]
                or _largest(d) * abs(t) <= group["tolerance_change"]
                or abs(loss - prev_loss) < group["tolerance_change"]
            ):
                break
        return first_loss

    def _direction(self, group: dict[str, Any], state: dict[str, Any], grad: Tensor) -> Tensor:
        """The quasi-Newton direction at `grad`, after recording the change since the last iteration."""
        state["n_iter"] = state.get("n_iter", 0) + 1
        if state["n_iter"] == 1:
            state.update(old_dirs=[], old_stps=[], ro=[], H_diag=1.0, prev_flat_grad=grad)
            return -grad
        y, s = grad - state["prev_flat_grad"], state["d"] * state["t"]
        state["prev_flat_grad"] = grad
        ys = y.dot(s).item()
        histories = changes, steps, inverses = state["old_dirs"], state["old_stps"], state["ro"]
        if ys > 1e-10:  # else the curvature is of no use
            for history, new in zip(histories, (y, s, 1.0 / ys)):
                history.append(new)
                del history[: -group["history_size"] or None]
            state["H_diag"] = ys / y.dot(y).item()
        q = -grad
        weights = state.setdefault("al", [None] * group["history_size"])
        for i in reversed(range(len(changes))):
            weights[i] = steps[i].dot(q).item() * inverses[i]
            q.add_(changes[i], alpha=-weights[i])
        q.mul_(state["H_diag"])
        for y, s, ro, weight in zip(changes, steps, inverses, weights):
            q.add_(s, alpha=weight - y.dot(q).item() * ro)
        return q

    def _search(
        self, closure: Callable[[], Any], start: _Point, d: Tensor, t: float, group: dict[str, Any]
    ) -> tuple[_Point, int]:
        """The point that the line search finds, where the parameters then are, and the number of calls."""
        origin = self._copies()

        def at(t: float) -> _Point:
            self._move(origin, t, d)
            _, loss, grad = self._evaluate(closure)
            return _Point(t, loss, grad, grad.dot(d).item())

        point, calls = _strong_wolfe(at, start, t, _largest(d), group["tolerance_change"])
        self._move(origin, point.t, d)
        return point, calls

    def _evaluate(self, closure: Callable[[], Any]) -> tuple[Any, float, Tensor]:
        with wt.enable_grad():
            loss = closure()
        grads = [wt.zeros_like(p) if p.grad is None else p.grad for p in self._params]
        return loss, float(loss), wt.cat([as_real(full_tensor_of(g)).reshape(-1) for g in grads])

    def _copies(self) -> list[Tensor]:
        return [as_real(full_tensor_of(p)).clone() for p in self._params]

    def _move(self, origin: list[Tensor], t: float, d: Tensor) -> None:
        """Sets the parameters to origin + t * d."""
        for p, start, step in zip(self._params, origin, d.split([start.numel() for start in origin])):
            moved = start.add(step.view(start.shape), alpha=t)
            as_real(p).copy_(p.detach().like_full(moved) if isinstance(p, Placed) else moved)  # type: ignore[attr-defined]


class _Point(NamedTuple):
    """A place along the direction: step length, loss, gradient, and the slope of the loss there."""

    t: float
    loss: float
    grad: Any
    slope: float


def _largest(v: Tensor) -> float:
    return v.abs().max().item()


def _cubic_minimum(a: _Point, b: _Point, low: float, high: float) -> float:
    """Where the cubic through both losses and slopes is smallest, within the bounds; their middle if nowhere.
    (Nocedal and Wright, equation 3.59.)"""
    if a.t > b.t:
        a, b = b, a
    d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t)
    square = d1 * d1 - a.slope * b.slope
    if not square >= 0:
        return (low + high) / 2
    d2 = math.sqrt(square)
    t = b.t - (b.t - a.t) * ((b.slope + d2 - d1) / (b.slope - a.slope + 2 * d2))
    return min(max(t, low), high)


def _strong_wolfe(
    at: Callable[[float], _Point], start: _Point, t: float, size: float, tolerance: float
) -> tuple[_Point, int]:
    """The point found and the number of evaluations; `size` is the direction's largest component."""

    def too_high(p: _Point) -> bool:
        return p.loss > start.loss + SUFFICIENT_DECREASE * p.t * start.slope

    def flat(p: _Point) -> bool:
        return abs(p.slope) <= -CURVATURE * start.slope

    previous, new = start, at(t)
    calls = 1
    while calls <= MAX_SEARCH:  # lengthen the step until an interval holds a minimum
        if too_high(new) or (calls > 2 and new.loss >= previous.loss):
            break
        if flat(new):
            return new, calls
        if new.slope >= 0:
            break
        longer = _cubic_minimum(previous, new, new.t + 0.01 * (new.t - previous.t), new.t * 10)
        previous, new = new, at(longer)
        calls += 1
    else:
        previous = start
    low, high = sorted((previous, new), key=lambda p: p.loss)
    stuck = False
    while calls <= MAX_SEARCH and abs(high.t - low.t) * size >= tolerance:  # shrink the interval
        left, right = min(low.t, high.t), max(low.t, high.t)
        t = _cubic_minimum(low, high, left, right)
        margin = 0.1 * (right - left)
        near = min(right - t, t - left) < margin
        if near and (stuck or not left < t < right):  # near an end twice, or at one: step away from it
            t = right - margin if abs(t - right) < abs(t - left) else left + margin
            near = False
        stuck = near
        new = at(t)
        calls += 1
        if too_high(new) or new.loss >= low.loss:
            low, high = sorted((low, new), key=lambda p: p.loss)
            continue
        if flat(new):
            return new, calls
        if new.slope * (high.t - low.t) >= 0:
            high = low
        low = new
    return low, calls
