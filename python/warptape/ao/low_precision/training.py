"""Linear layers that train on emulated products of few bits, and keep their weights as they are.

A layer has three products: x W^T forward, g W and g^T x backward. Both factors of each are rounded along the
dim that is summed over, as hardware that multiplies such formats takes them. What an optimizer changes are
the parameters as they were, the master weights.

Shapes: N rows of the input, I inputs, O outputs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from warptape import core as wt
from warptape import nn

from ...amp import autocast
from ...amp.autocast_mode import get_autocast_dtype, is_autocast_enabled
from ...autograd import Function
from ...core import Tensor
from ..quantization.qat import put
from .formats import Encoded, Format, decode, encode, format_of

__all__ = ["RECIPES", "LowPrecisionLinear", "Recipe", "convert_to_low_precision_training"]

# Told of what was rounded: the operand ("input", "weight" or "gradient"), before and after.
Observer = Callable[[str, Tensor, Encoded], None]


@dataclass(frozen=True)
class Recipe:
    """The formats of a layer's factors; None is bfloat16.

    Args:
        input: of x.
        weight: of W.
        gradient: of g, the gradient of the output.
        stochastic: whether g is rounded at random with the right mean; formats of four bits need that
            ("FP4 All the Way", Chmiel et al. 2025, section 4).
        weight_gradient: whether g^T x has these formats too; otherwise its factors are bfloat16.
    """

    input: Format | str | None
    weight: Format | str | None
    gradient: Format | str | None
    stochastic: bool = False
    weight_gradient: bool = True


_MXFP8 = Format("e4m3", "e8m0", 32, up=True)
#: float8 as in "FP8 Formats for Deep Learning" (Micikevicius et al. 2022): gradients have the wider range.
#: MXFP8 as in "Recipes for Pre-training LLMs with MXFP8" (Mishra et al. 2025): e4m3, scales rounded up.
RECIPES = {
    "float8": Recipe("float8_e4m3fn", "float8_e4m3fn", "float8_e5m2"),
    "float8_rows": Recipe("float8_e4m3fn_rows", "float8_e4m3fn_rows", "float8_e5m2_rows"),
    "mxfp8": Recipe(_MXFP8, _MXFP8, _MXFP8),
    "mxfp8_gw_hp": Recipe(_MXFP8, _MXFP8, _MXFP8, weight_gradient=False),
    "mxfp4": Recipe("mxfp4", "mxfp4", "mxfp4", stochastic=True),
    "nvfp4": Recipe("nvfp4", "nvfp4", "nvfp4", stochastic=True),
}


def recipe_of(recipe: Recipe | str) -> Recipe:
    """A recipe, by its name in RECIPES too.

    Args:
        recipe: or a name.

    Raises:
        ValueError: a name that is not known, of it or of one of its formats.
    """
    if isinstance(recipe, str):
        if recipe not in RECIPES:
            raise ValueError(f"unknown recipe {recipe!r}; there are {', '.join(RECIPES)}")
        recipe = RECIPES[recipe]
    for format in (recipe.input, recipe.weight, recipe.gradient):
        if format is not None:
            format_of(format)
    return recipe


class _Products(Function):
    """The three products of a layer for x [N, I], W [O, I] -> [N, O]."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, layer: LowPrecisionLinear) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.layer = layer
        recipe = layer.recipe
        with autocast(x.device.type, enabled=False):
            out = (
                layer.rounded("input", x, recipe.input, -1)
                @ layer.rounded("weight", weight, recipe.weight, -1).t()
            )
        return out.to(x.dtype)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight = ctx.saved_tensors
        layer = ctx.layer
        recipe = layer.recipe
        of_x = of_weight = None
        with autocast(g.device.type, enabled=False):
            if ctx.needs_input_grad[0]:
                rows = layer.rounded("gradient", g, recipe.gradient, -1)
                of_x = (rows @ layer.rounded("weight", weight, recipe.weight, 0)).to(x.dtype)
            if ctx.needs_input_grad[1]:
                formats = (recipe.gradient, recipe.input) if recipe.weight_gradient else (None, None)
                columns = layer.rounded("gradient", g, formats[0], 0)
                of_weight = (columns.t() @ layer.rounded("input", x, formats[1], 0)).to(weight.dtype)
        return of_x, of_weight, None


class LowPrecisionLinear(nn.Linear):
    """A linear layer whose products are those of a recipe. It saves x and W as they are: the memory is a
    plain layer's."""

    recipe: Recipe
    observer: Observer | None = None
    generator: wt.Generator | None = None  # of what is rounded at random; None: the default one

    @classmethod
    def from_linear(cls, linear: nn.Linear, recipe: Recipe | str) -> LowPrecisionLinear:
        """The layer with the same parameters.

        Args:
            linear: the plain layer.
            recipe: or its name in RECIPES.

        Raises:
            ValueError: a name that is not known.
        """
        layer = cls.__new__(cls)
        layer.__dict__.update(linear.__dict__)
        layer.recipe = recipe_of(recipe)
        return layer

    def rounded(self, operand: str, x: Tensor, format: Format | str | None, dim: int) -> Tensor:
        """A factor of a product, in float32.

        Args:
            operand: "input", "weight" or "gradient".
            x: two dims.
            format: of the recipe.
            dim: that is summed over.
        """
        if format is None:
            return x.bfloat16().float()
        along = x.movedim(dim, -1).contiguous()
        noise = None
        if operand == "gradient" and self.recipe.stochastic:
            noise = wt.rand(along.shape, generator=self.generator, device=x.device)
        stored = encode(along, format, noise=noise)
        if self.observer is not None:
            self.observer(operand, along, stored)
        return decode(stored).movedim(-1, dim)

    def forward(self, input: Tensor) -> Tensor:
        """[*, I] -> [*, O], of the input's dtype, or autocast's where that is on.

        Args:
            input: floating point.
        """
        kind = input.device.type
        dtype = get_autocast_dtype(kind) if is_autocast_enabled(kind) else input.dtype
        out = _Products.apply(input.to(dtype).reshape(-1, self.in_features), self.weight, self)
        out = out.reshape(*input.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias.to(dtype)

    def extra_repr(self) -> str:
        """What a plain layer tells, and the formats."""
        r = self.recipe
        return f"{super().extra_repr()}, input={r.input}, weight={r.weight}, gradient={r.gradient}"


def convert_to_low_precision_training(
    model: nn.Module,
    recipe: Recipe | str = "mxfp8",
    *,
    module_filter_fn: Callable[[nn.Module, str], bool] | None = None,
) -> nn.Module:
    """Lets the linear layers of a model train on products of few bits; the model is changed and returned, as
    by torchao's `convert_to_float8_training`. Parameters, their names and their dtypes stay: of float32 they
    are the master weights; where they are bfloat16, the optimizer has some (`AdamW(master_weights=True)`).

    Args:
        model: has layers of the class nn.Linear.
        recipe: or its name in RECIPES.
        module_filter_fn: of (module, path), which layers; None: all. The recipes' papers keep the head, and
            some the last blocks, in bfloat16.

    Raises:
        ValueError: a name that is not known, or there is no such layer.

    Example::

        >>> from warptape.ao import low_precision
        >>> model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 8))
        >>> model = low_precision.convert_to_low_precision_training(
        ...     model, "mxfp8", module_filter_fn=lambda module, path: path != "2"
        ... )
        >>> [type(layer).__name__ for layer in model]
        ['LowPrecisionLinear', 'GELU', 'Linear']
        >>> model(torch.randn(4, 32)).sum().backward()
    """
    recipe = recipe_of(recipe)
    chosen = [
        (path, module)
        for path, module in model.named_modules()
        if type(module) is nn.Linear and (module_filter_fn is None or module_filter_fn(module, path))
    ]
    if not chosen:
        raise ValueError("convert_to_low_precision_training: the model has no nn.Linear that is chosen")
    if chosen[0][0] == "":
        return LowPrecisionLinear.from_linear(chosen[0][1], recipe)
    for path, module in chosen:
        put(model, path, LowPrecisionLinear.from_linear(module, recipe))
    return model
