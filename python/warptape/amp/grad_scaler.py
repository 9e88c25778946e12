"""GradScaler: keeps the gradients of float16 in range.

Micikevicius et al., "Mixed precision training", section 3.2: the loss is multiplied by a scale before
backward and the gradients divided by it before the step, so that small gradients do not become zero in
float16. The scale grows while gradients stay finite; a step with an inf or nan among them is left out.
"""

from __future__ import annotations

import enum
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import offered

from ..core.placed import Placed, norm_stages
from ..core.protocols import TapedByValue

if TYPE_CHECKING:
    from warptape.core.types import Device

    from ..core.protocols import Optimizer

__all__ = ["GradScaler", "OptState"]


class OptState(enum.Enum):
    """How far an optimizer is between two calls of `update`.

    READY, then UNSCALED after `unscale_`, then STEPPED after `step`.
    """

    READY = 0
    UNSCALED = 1
    STEPPED = 2


def _refresh_per_optimizer_state() -> dict[str, Any]:
    return {"stage": OptState.READY, "found_inf_per_device": {}}


def _by_kind(tensors: Iterable[Any]) -> list[list[Any]]:
    kinds: dict[Any, list[Any]] = defaultdict(list)
    for t in tensors:
        kinds[t.device, t.dtype].append(t)
    return list(kinds.values())


def _held_gradient(param: Any) -> Any:
    """The gradient of a parameter; of a sparse one the values."""
    grad = param.grad
    return grad.taped_value().detach() if isinstance(grad, TapedByValue) else grad


def _groups_of(param: Any) -> tuple[Any, ...]:
    """The groups of ranks that hold the other parts of a parameter, or of its model."""
    own = param.norm_groups if isinstance(param, Placed) else ()
    return (*own, *norm_stages(param).groups)


def _amp_foreach_non_finite_check_and_unscale_(
    tensors: Sequence[wt.Tensor], found_inf: wt.Tensor, inv_scale: wt.Tensor
) -> None:
    """Multiplies tensors of one device by inv_scale [1], and sets found_inf [1] to 1 if one had inf or nan.

    Both are float32; PyTorch's op of this name, of which scalers in other packages are made.
    """
    with wt.no_grad():
        for kind in _by_kind(tensors):
            found_inf.copy_(found_inf.maximum(_non_finite(kind, inv_scale)))


def _amp_update_scale_(
    scale: wt.Tensor,
    growth_tracker: wt.Tensor,
    found_inf: wt.Tensor,
    growth_factor: float,
    backoff_factor: float,
    growth_interval: int,
) -> Any:
    """Sets the scale, float32 [1], and the count of good steps, int32 [1], to those of the next step.

    Written with tensors, so that nobody waits for a device.
    """
    overflow = found_inf.reshape(scale.shape) != 0
    steps = wt.where(overflow, 0, growth_tracker + 1)
    grows = steps == growth_interval
    grown = scale * growth_factor
    grown = wt.where(grows & grown.isfinite(), grown, scale)
    scale.copy_(wt.where(overflow, scale * backoff_factor, grown))
    growth_tracker.copy_(wt.where(grows, 0, steps))
    return scale


def _non_finite(grads: list[Any], inverse: Any | None) -> Any:
    """A float32 tensor [1]: 1 where gradients of one dtype and device hold inf or nan, else 0.

    They are first multiplied by `inverse`, where one is given.
    """
    grads = [g.to_local() if isinstance(g, Placed) else g for g in grads]
    if inverse is not None:
        wt._foreach_mul_(grads, inverse.to(grads[0].device))
    largest = wt.stack(wt._foreach_norm(grads, float("inf")))
    return (~largest.isfinite()).any().float().reshape(1)


def _found_inf(optimizer: Optimizer, inverse: Any | None, allow_float16: bool = False) -> dict[Any, Any]:
    """By device, a float32 one-element tensor: 1 where a gradient holds inf or nan, else 0.

    Gradients are first multiplied by `inverse`, where one is given. What ranks hold parts of is judged as a
    whole; that is collective.
    """
    every = [p for group in optimizer.param_groups for p in group["params"]]
    params = [p for p in every if p.grad is not None]
    if inverse is not None and not allow_float16 and any(p.grad.dtype == wt.float16 for p in params):
        raise ValueError("Attempting to unscale FP16 gradients.")
    flags: dict[Any, Any] = {}
    with wt.no_grad():
        for grads in _by_kind(map(_held_gradient, params)):
            device, bad = grads[0].device, _non_finite(grads, inverse)
            flags[device] = bad if device not in flags else flags[device].maximum(bad)
        groups = {group: None for p in every for group in _groups_of(p)}
        if groups:
            dist = offered("distributed")
            # A stage whose parameters have no gradients takes part, too.
            flags.setdefault(every[0].device, wt.zeros(1, device=every[0].device))
            for group in groups:
                for flag in flags.values():
                    dist.all_reduce(flag, dist.ReduceOp.MAX, group)
    return flags


class GradScaler:
    """Scales losses, and steps and updates the scale as the gradients allow.

    ```
    scaler = GradScaler("cpu")
    scaler.scale(loss).backward()
    scaler.unscale_(optimizer)  # only to look at gradients or clip them
    scaler.step(optimizer)
    scaler.update()
    ```

    Args:
        device: where the scale lives. For "cuda" without a CUDA device it warns and does nothing.
        init_scale: the first scale.
        growth_factor: what the scale is multiplied by after `growth_interval` good steps; above 1.
        backoff_factor: what it is multiplied by after a step with one; below 1.
        growth_interval: number of steps without inf and nan.
        enabled: False turns `scale` and `unscale_` into nothing and `step` into `optimizer.step()`.

    Raises:
        ValueError: a growth factor of at most 1, a backoff factor of at least 1.
    """

    def __init__(
        self,
        device: str = "cuda",
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        self._device = device
        self._enabled = enabled
        if enabled and device == "cuda" and not offered("cuda").is_available():
            warnings.warn(
                "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.", stacklevel=2
            )
            self._enabled = False
        if not growth_factor > 1.0:
            raise ValueError(f"GradScaler: expected a growth factor above 1.0, got {growth_factor}")
        if not backoff_factor < 1.0:
            raise ValueError(f"GradScaler: expected a backoff factor below 1.0, got {backoff_factor}")
        self._init_scale = init_scale
        self._growth_factor = growth_factor
        self._backoff_factor = backoff_factor
        self._growth_interval = growth_interval
        self._init_growth_tracker = 0
        self._scale: Any = None  # made by the first use: on the device of what is scaled
        self._growth_tracker: Any = None
        self._per_optimizer_states: dict[int, dict[str, Any]] = defaultdict(_refresh_per_optimizer_state)

    def _make_scale(self, device: Device) -> None:
        self._scale = wt.full((), self._init_scale, dtype=wt.float32, device=device)
        self._growth_tracker = wt.full((), self._init_growth_tracker, dtype=wt.int32, device=device)

    def _check_scale(self, what: str) -> None:
        if self._scale is None:
            raise AssertionError(
                f"Attempted {what} but _scale is None.  This may indicate your script did not use "
                "scaler.scale(loss or outputs) earlier in the iteration."
            )

    def scale(self, outputs: Any) -> Any:
        """`outputs`, a tensor or nested lists and tuples of them, times the scale.

        Raises:
            ValueError: something else than a tensor or an iterable.

        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        >>> scaler.scale(torch.tensor(2.0))
        tensor(16.)
        """
        if not self._enabled:
            return outputs
        if isinstance(outputs, wt.Tensor):
            if self._scale is None:
                self._make_scale(outputs.device)
            return outputs * self._scale.to(outputs.device, non_blocking=True)
        if not isinstance(outputs, Iterable):
            raise ValueError("outputs must be a Tensor or an iterable of Tensors")
        scaled = map(self.scale, outputs)
        if isinstance(outputs, (list, tuple)):
            named = isinstance(outputs, tuple) and hasattr(outputs, "_fields")
            return type(outputs)(*scaled) if named else type(outputs)(scaled)
        return scaled

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divides the optimizer's gradients by the scale, in place: once between two updates.

        Raises:
            RuntimeError: it was done already, or `step` was.
            ValueError: a gradient in float16 (keep the parameters in float32).

        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> scaler.scale(weight.sum()).backward()
        >>> scaler.unscale_(optimizer)
        >>> weight.grad
        tensor([1.])
        """
        if not self._enabled:
            return
        self._check_scale("unscale_")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.UNSCALED:
            raise RuntimeError(
                "unscale_() has already been called on this optimizer since the last update()."
            )
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("unscale_() is being called after step().")
        inverse = self._scale.double().reciprocal().float()  # in float32 it could overflow too early
        state["found_inf_per_device"] = _found_inf(optimizer, inverse)
        state["stage"] = OptState.UNSCALED

    def _unscale_grads_(
        self, optimizer: Optimizer, inv_scale: wt.Tensor, found_inf: wt.Tensor, allow_fp16: bool
    ) -> dict[Any, Any]:
        """Multiplies the optimizer's gradients by inv_scale: by device, whether one was inf or nan."""
        flags = _found_inf(optimizer, inv_scale, allow_fp16)
        if (flag := flags.get(found_inf.device)) is not None:
            found_inf.copy_(found_inf.maximum(flag))
        return flags

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> Any:
        """`optimizer.step(*args, **kwargs)` unless a gradient is inf or nan; unscales where that is not done.

        Returns what the optimizer returns; None for a step left out. Fused optimizers (`fused=True`) leave
        it out on the device, without waiting for it.

        Raises:
            RuntimeError: a closure is given, or `step` was called already since the last update.
            AssertionError: none of the optimizer's parameters has a gradient.

        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> scaler.scale(weight.sum()).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> weight
        tensor([0.5000], requires_grad=True)
        """
        if not self._enabled:
            return optimizer.step(*args, **kwargs)
        if args or kwargs.get("closure") is not None:
            raise RuntimeError("Closure use is not currently supported if GradScaler is enabled.")
        self._check_scale("step")
        state = self._per_optimizer_states[id(optimizer)]
        if state["stage"] is OptState.STEPPED:
            raise RuntimeError("step() has already been called since the last update().")
        if getattr(optimizer, "_step_supports_amp_scaling", False):
            result = self._step_on_device(optimizer, state, kwargs)
        else:
            if state["stage"] is OptState.READY:
                self.unscale_(optimizer)
            flags = self._found_of(state)
            result = None if any(flag.item() for flag in flags.values()) else optimizer.step(**kwargs)
        state["stage"] = OptState.STEPPED
        return result

    def _found_of(self, state: dict[str, Any]) -> dict[Any, Any]:
        if not state["found_inf_per_device"]:
            raise AssertionError("No inf checks were recorded for this optimizer.")
        return state["found_inf_per_device"]

    def _step_on_device(self, optimizer: Optimizer, state: dict[str, Any], kwargs: dict[str, Any]) -> Any:
        unscaled = state["stage"] is OptState.UNSCALED
        if not unscaled:
            state["found_inf_per_device"] = _found_inf(optimizer, None)
        first, *others = self._found_of(state).values()
        for flag in others:
            first = first.maximum(flag.to(first.device))
        optimizer.grad_scale = None if unscaled else self._scale
        optimizer.found_inf = first
        try:
            return optimizer.step(**kwargs)
        finally:
            optimizer.grad_scale = optimizer.found_inf = None

    def update(self, new_scale: float | Any | None = None) -> None:
        """Sets the scale for the next step: `new_scale`, or what the gradients since the last one say.

        Raises:
            AssertionError: nothing was scaled or unscaled before, or `new_scale` is no float32 scalar.

        >>> scaler = torch.amp.GradScaler("cpu", init_scale=8.0, growth_interval=1)
        >>> weight = torch.ones(1, requires_grad=True)
        >>> optimizer = torch.optim.SGD([weight], lr=0.5)
        >>> scaler.scale(weight.sum()).backward()
        >>> scaler.step(optimizer)
        >>> scaler.update()
        >>> scaler.get_scale()
        16.0
        """
        if not self._enabled:
            return
        self._check_scale("update")
        with wt.no_grad():
            if new_scale is not None:
                self._set_scale(new_scale)
            else:
                self._follow_gradients()
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)

    def _set_scale(self, new_scale: wt.Tensor | float) -> None:
        if isinstance(new_scale, wt.Tensor) and (
            new_scale.dtype != wt.float32 or new_scale.numel() != 1 or new_scale.requires_grad
        ):
            raise AssertionError(
                "new_scale should be a float or a 1-element torch.cuda.FloatTensor or torch.FloatTensor with "
                "requires_grad=False."
            )
        self._scale.copy_(new_scale.reshape(()) if isinstance(new_scale, wt.Tensor) else wt.tensor(new_scale))

    def _follow_gradients(self) -> None:
        flags = [f for s in self._per_optimizer_states.values() for f in s["found_inf_per_device"].values()]
        if not flags:
            raise AssertionError("No inf checks were recorded prior to update.")
        scale, tracker = self._scale, self._growth_tracker
        overflow = wt.stack([f.to(scale.device, non_blocking=True).reshape(()) for f in flags]).any()
        _amp_update_scale_(
            scale, tracker, overflow, self._growth_factor, self._backoff_factor, self._growth_interval
        )

    def get_scale(self) -> float:
        """The scale as a number; it waits for the device.

        >>> torch.amp.GradScaler("cpu", init_scale=8.0).get_scale()
        8.0
        """
        if not self._enabled:
            return 1.0
        return self._init_scale if self._scale is None else self._scale.item()

    def get_growth_factor(self) -> float:
        """What the scale is multiplied by after `growth_interval` steps in a row without inf and nan.

        >>> torch.amp.GradScaler("cpu").get_growth_factor()
        2.0
        """
        return self._growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Sets what the scale is multiplied by when it grows.

        Args:
            new_factor: above 1.
        """
        self._growth_factor = new_factor

    def get_backoff_factor(self) -> float:
        """What the scale is multiplied by after a step that found inf or nan.

        >>> torch.amp.GradScaler("cpu").get_backoff_factor()
        0.5
        """
        return self._backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Sets what the scale is multiplied by after inf or nan.

        Args:
            new_factor: between 0 and 1.
        """
        self._backoff_factor = new_factor

    def get_growth_interval(self) -> int:
        """After how many steps without inf and nan the scale grows.

        >>> torch.amp.GradScaler("cpu").get_growth_interval()
        2000
        """
        return self._growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Sets the number of steps without inf and nan after which the scale grows.

        Args:
            new_interval: at least 1.
        """
        self._growth_interval = new_interval

    def _get_growth_tracker(self) -> int:
        if not self._enabled:
            return 0
        return self._init_growth_tracker if self._growth_tracker is None else self._growth_tracker.item()

    def is_enabled(self) -> bool:
        """Whether it scales; where it does not, `scale` returns its input and `step` calls the optimizer's.

        >>> torch.amp.GradScaler("cpu", enabled=False).is_enabled()
        False
        """
        return self._enabled

    def state_dict(self) -> dict[str, Any]:
        """Scale, factors and counters, to save after `update`.

        Returns:
            An empty dict where the scaler is disabled.
        """
        if not self._enabled:
            return {}
        return {
            "scale": self.get_scale(),
            "growth_factor": self._growth_factor,
            "backoff_factor": self._backoff_factor,
            "growth_interval": self._growth_interval,
            "_growth_tracker": self._get_growth_tracker(),
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes over a state; does nothing when disabled.

        Raises:
            RuntimeError: the state is empty, as a disabled scaler's is.
            KeyError: an entry is missing; nothing is taken over then.
        """
        if not self._enabled:
            return
        if len(state_dict) == 0:
            raise RuntimeError(
                "The source state dict is empty, possibly because it was saved from a disabled instance of "
                "GradScaler."
            )
        names = ("scale", "growth_factor", "backoff_factor", "growth_interval", "_growth_tracker")
        scale, growth, backoff, interval, tracker = (state_dict[name] for name in names)
        self._init_scale, self._init_growth_tracker = scale, tracker
        self._growth_factor, self._backoff_factor, self._growth_interval = growth, backoff, interval
        if self._scale is not None:
            self._scale.fill_(scale)
            self._growth_tracker.fill_(tracker)

    def __getstate__(self) -> dict[str, Any]:
        if self._enabled and self._per_optimizer_states:
            raise AssertionError(
                "A GradScaler instance may only be pickled at the beginning of an iteration, or at the end "
                "after scaler.update()."
            )
        state = self.__dict__ | {"_per_optimizer_states": None, "_scale": None, "_growth_tracker": None}
        return state | {"_init_scale": self.get_scale(), "_init_growth_tracker": self._get_growth_tracker()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._per_optimizer_states = defaultdict(_refresh_per_optimizer_state)
