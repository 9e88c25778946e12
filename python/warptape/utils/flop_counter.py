"""FlopCounterMode: the floating point operations of matrix products, convolutions and attention.

A multiplication with its addition counts as two. Forward passes are counted; gradients are not.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import Any

from .._missing import install_getattr as _install_getattr
from ..nn.modules.module import (
    Module,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from ..overrides import TorchFunctionMode

__all__ = ["FlopCounterMode"]


def _product(a: Any, *_: Any) -> int:
    return 2 * a.shape[-1]


def _second(_: Any, a: Any, *__: Any) -> int:
    return 2 * a.shape[-1]


def _convolution(_: Any, weight: Any, *__: Any) -> int:
    return 2 * math.prod(weight.shape[1:])  # (out, in / groups, *kernel)


# What one element of the result costs, by the function's arguments.
_PER_ELEMENT: dict[str, Callable[..., int]] = {
    **dict.fromkeys(("linear", "matmul", "__matmul__", "mm", "bmm", "mv", "dot"), _product),
    **dict.fromkeys(("addmm", "baddbmm", "addbmm", "__rmatmul__"), _second),
    **dict.fromkeys(("conv1d", "conv2d", "conv3d"), _convolution),
}


def _cost(name: str, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> int:
    given = (*args, *kwargs.values())
    if name in _PER_ELEMENT:
        return out.numel() * _PER_ELEMENT[name](*given)
    if name.startswith("conv_transpose"):  # each element of the input reaches a kernel's worth of outputs
        return 2 * given[0].numel() * math.prod(given[1].shape[1:])
    if name == "scaled_dot_product_attention":  # q (.., L, E), k (.., S, E), v (.., S, D)
        q, k, v = given[:3]
        return 2 * math.prod(q.shape[:-1]) * k.shape[-2] * (q.shape[-1] + v.shape[-1])
    return 0


class FlopCounterMode(TorchFunctionMode):
    """Counts while it is entered: `with FlopCounterMode() as counter: model(x)`.

    `get_flop_counts()` has a count by function for "Global" and for every module that ran, by its path from
    the outermost one, as "Net.layer.0". `mods` and `custom_mapping` are taken and not needed. With `display`
    the counts down to `depth` are printed on leaving.
    """

    def __init__(
        self, mods: Any = None, depth: int = 2, display: bool = True, custom_mapping: Any = None
    ) -> None:
        super().__init__()
        self.flop_counts: dict[str, Counter[str]] = {}
        self.depth, self.display = depth, display
        self._inside: list[str] = []
        self._names: dict[Module, str] = {}
        self._hooks: list[Any] = []

    def _enter_module(self, module: Module, _: Any) -> None:
        if not self._inside:
            own = type(module).__name__
            self._names = {m: f"{own}.{path}" if path else own for path, m in module.named_modules()}
        self._inside.append(self._names.get(module, type(module).__name__))

    def _leave_module(self, *_: Any) -> None:
        self._inside.pop()

    def __enter__(self) -> FlopCounterMode:
        self.flop_counts = {}
        self._hooks = [
            register_module_forward_pre_hook(self._enter_module),
            register_module_forward_hook(self._leave_module, always_call=True),
        ]
        super().__enter__()
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)
        for hook in self._hooks:
            hook.remove()
        self._inside.clear()
        if self.display:
            print(self.get_table())

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        name = getattr(func, "__name__", "")
        if cost := _cost(name, args, kwargs or {}, out):
            for place in {"Global", *self._inside}:
                self.flop_counts.setdefault(place, Counter())[name] += cost
        return out

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """The counts by module and function."""
        return {place: dict(counts) for place, counts in self.flop_counts.items()}

    def get_total_flops(self) -> int:
        """The sum of all."""
        return sum(self.flop_counts.get("Global", Counter()).values())

    def get_table(self, depth: int | None = None) -> str:
        """A line for every module down to `depth`."""
        most = self.depth if depth is None else depth
        rows = [(p, sum(c.values())) for p, c in self.flop_counts.items() if p.count(".") < most]
        return "\n".join(f"{place:40} {count:>16,}" for place, count in rows)


_install_getattr(__name__)
