"""FlopCounterMode: the floating point operations of matrix products, convolutions and attention.

A multiplication with its addition counts as two, forward and backward: a product of [m, k] and [k, n] is
2 m k n, and so is each of its two gradients that is wanted. Counted are linear layers, matmul and the like,
einsum, tensordot, bilinear forms, convolutions, attention and recurrent layers; whatever is no sum of
products (norms, activations, softmax, additions) counts nothing, as in PyTorch.

What is counted is what runs. Attention of L queries to S keys computes its scores again in the backward pass,
as fused kernels do in PyTorch: 2 products forward, 4 backward and 1 for the scores, which stands by itself as
`scaled_dot_product_attention_recompute`, so that a model's own FLOPs, which have no recomputation (PaLM,
Chowdhery et al. 2022, appendix B), are the total without it. A causal mask saves nothing in these counts.
"""

from __future__ import annotations

import math
import warnings
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from ..core.op_facts import OpTable
from ..core.tables import aligned
from ..library.ops import OpOverloadPacket, _declarations
from ..nn.modules.module import (
    Module,
    register_module_forward_hook,
    register_module_forward_pre_hook,
)
from .op_observer import OpCall, OpObserver

__all__ = ["FlopCounterMode", "register_flop_formula"]

Formula = Callable[..., int]
Shapes = Sequence[Any]  # of the arguments, in the order of the declaration; what is no tensor as it was given


_built_in: OpTable[tuple[Formula, tuple[int, ...]]] = OpTable()


def _counts(*names: str, gradients: tuple[int, ...] = (0, 1)) -> Callable[[Formula], Formula]:
    """What functions of these names, or of these facts (core/op_facts.py), cost. `gradients` are the
    arguments whose gradients cost as much, each of them; where it has none, all gradients together cost twice
    that."""

    def note(formula: Formula) -> Formula:
        _built_in.update(dict.fromkeys(names, (formula, gradients)))
        return formula

    return note


@_counts("role=product", "__matmul__", "vdot")
def _product(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(out) * shapes[0][-1]


@_counts("role=add_product", "__rmatmul__", gradients=(1, 2))
def _product_added(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(out) * shapes[1][-1]


@_counts("addbmm", gradients=(1, 2))
def _batches_added(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(shapes[1]) * out[-1]


@_counts("tensordot", "inner")
def _contraction(shapes: Shapes, out: Any) -> int:
    """Of [m, k] and [k, n], whichever dims make up m, k and n: the root of mk kn mn is their product."""
    return 2 * math.isqrt(math.prod(shapes[0]) * math.prod(shapes[1]) * math.prod(out))


@_counts("role=convolution")
def _convolution(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(out) * math.prod(shapes[1][1:])  # weight (out, in / groups, *kernel)


@_counts("conv_transpose1d", "conv_transpose2d", "conv_transpose3d")
def _transposed_convolution(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(shapes[0]) * math.prod(shapes[1][1:])  # an input reaches a kernel's worth of outputs


@_counts("scaled_dot_product_attention")
def _attention(shapes: Shapes, out: Any) -> int:
    q, k, v = shapes[:3]  # (.., L, E), (.., S, E), (.., S, D)
    return 2 * math.prod(q[:-1]) * k[-2] * (q[-1] + v[-1])


@_counts("bilinear", gradients=(0, 1, 2))
def _bilinear(shapes: Shapes, out: Any) -> int:
    return 2 * math.prod(out) * (shapes[0][-1] + 1) * shapes[1][-1]


@_counts("recurrent_layer", gradients=())
def _recurrent(shapes: Shapes, out: Any) -> int:
    steps = math.prod(shapes[0][:-1])
    weights = [s for s in (shapes[4], shapes[5], shapes[8]) if s is not None]  # of input, state, projection
    return 2 * steps * sum(map(math.prod, weights))


@_counts("multi_head_attention", "multi_head_attention_forward", gradients=())
def _multi_head(shapes: Shapes, out: Any) -> int:
    q, k, v, width = shapes[:4]  # [.., E] each; `out` is [result, probabilities]
    batch = 1 if len(q) == 2 else q[0] if shapes[-1] is True else q[1]
    rows, keys = math.prod(q[:-1]), math.prod(k[:-1])
    projections = 2 * width * (rows * (q[-1] + width) + keys * (k[-1] + v[-1]))
    return projections + 4 * rows * (keys // batch) * width


def _spelled_out(term: str, shape: Sequence[int]) -> list[str]:
    """The subscripts of one operand; those that an ellipsis stands for are numbered from the right."""
    before, dots, after = term.partition("...")
    hidden = len(shape) - len(before) - len(after) if dots else 0
    return [*before, *(str(i) for i in reversed(range(hidden))), *after]


@_counts("einsum", gradients=tuple(range(1, 16)))
def _einsum(shapes: Shapes, out: Any) -> int:
    """From left to right, two at a time: 2 for each combination of the subscripts that the two have."""
    equation, *operands = shapes
    if not isinstance(equation, str):
        return 0  # subscripts as lists
    if len(operands) == 1 and isinstance(operands[0], (list, tuple)) and not hasattr(operands[0], "numel"):
        operands = list(operands[0])
    inputs, arrow, output = equation.replace(" ", "").partition("->")
    terms = [_spelled_out(t, s) for t, s in zip(inputs.split(","), operands, strict=True)]
    size: dict[str, int] = {}
    for term, shape in zip(terms, operands, strict=True):
        size.update((c, max(n, size.get(c, 1))) for c, n in zip(term, shape, strict=True))
    kept = {c for c in size if c.isdigit() or (c in output if arrow else sum(t.count(c) for t in terms) == 1)}
    left, total = set(terms[0]), 0
    for i, term in enumerate(terms[1:], 2):
        later = kept.union(*terms[i:])
        # A subscript that only one of the two has, and nobody after them, is summed before.
        met = {c for c in left.union(term) if c in later or (c in left and c in term)}
        total += 2 * math.prod(size[c] for c in met)
        left = met & later
    return total


flop_registry: dict[Any, Formula] = {}  # formulas that were registered, by function


def _key(target: Any) -> Any:
    """What a formula is kept by: functions and ops of a library as they are, ops of `torch.ops.aten`, which
    stand for functions, by their names."""
    is_own = isinstance(target, OpOverloadPacket) and not hasattr(target, "__wrapped__")
    return target.__name__ if is_own else target


def _arguments(call: OpCall) -> tuple[list[Any], list[bool]]:
    """The shapes by the declaration's order of arguments, and which of them want a gradient."""
    shapes, wanted = list(call.args), call.needs_grad
    if not call.kwargs:
        return shapes, wanted
    for declared, _ in _declarations().get(call.name, ()):
        names = [arg[0] for arg in declared]
        if set(call.kwargs) <= {*names, "out"}:
            options = dict(zip(call.kwargs, wanted[len(shapes) :], strict=True))
            shapes += [call.kwargs.get(name) for name in names[len(shapes) :]]
            return shapes, [
                *wanted[: len(call.args)],
                *(options.get(n, False) for n in names[len(call.args) :]),
            ]
    return shapes, wanted


def formula_flops(name: str, shapes: Shapes, out: Any) -> int:
    """What a call costs by the built-in formulas, from its shapes alone; 0 for all other functions.

    Args:
        name: of the op.
        shapes: of its tensor arguments.
        out: the shape of its result.
    """
    known = _built_in.find(name)
    return known[0](shapes, out) if known else 0


def forward_flops(call: OpCall) -> int:
    """The same for a call; 0 where its result is no tensor.

    Args:
        call: an op's call, with shapes.
    """
    return 0 if call.out_shape is None else formula_flops(call.name, _arguments(call)[0], call.out_shape)


def backward_flops(call: OpCall) -> dict[str, int]:
    """What its gradients cost, by the name that the counter gives it.

    Args:
        call: an op's call, with shapes.

    Returns: an empty dict where the op has no formula.
    """
    known = _built_in.find(call.name)
    if known is None or call.out_shape is None:
        return {}
    formula, operands = known
    shapes, wanted = _arguments(call)
    if call.name == "scaled_dot_product_attention":
        (*rows, width), keys, out = shapes[0], shapes[1][-2], shapes[2][-1]
        q, k, v = wanted[:3]
        pairs = 2 * math.prod(rows) * keys
        products = out * (v + (q or k)) + width * (q + k)
        return {f"{call.name}_backward": pairs * products, f"{call.name}_recompute": pairs * width}
    times = sum(wanted[i] for i in operands if i < len(wanted)) if operands else 2
    return {f"{call.name}_backward": times * formula(shapes, call.out_shape)}


def register_flop_formula(
    targets: Callable[..., Any] | Iterable[Callable[..., Any]], get_raw: bool = False
) -> Callable[[Formula], Formula]:
    """Decorator: the formula counts for a function, or for each of a list, wherever it is called.

    Args:
        targets: what modes of `__torch_function__` are told of, as `torch.nn.functional.gelu`, or an op of
            torch.library as `torch.ops.mylib.foo`.
        get_raw: call formula(*args, out_val=result, **kwargs) with the tensors themselves instead of
            formula(*shapes, out_shape=shape, **kwargs), in which each tensor is replaced by its shape.

    Raises:
        ValueError: a target that cannot be called.
        RuntimeError: one that has a formula already.

    >>> from warptape.utils.flop_counter import FlopCounterMode, register_flop_formula
    >>> @register_flop_formula(torch.nn.functional.softplus)
    ... def softplus_flops(x, *args, out_shape=None, **kwargs):
    ...     return 3 * x.numel()
    >>> with FlopCounterMode(display=False) as counter:
    ...     y = torch.nn.functional.softplus(torch.ones(4, 5))
    >>> counter.get_total_flops()
    60
    """
    functions = list(targets) if isinstance(targets, (list, tuple)) else [targets]
    for function in functions:
        if not callable(function):
            raise ValueError(
                "register_flop_formula: expected functions, or ops as torch.ops.mylib.foo, got "
                f"{function!r} of type {type(function).__name__}"
            )
        if _key(function) in flop_registry:
            raise RuntimeError(f"register_flop_formula: {function!r} has a formula already")

    def register(formula: Formula) -> Formula:
        formula._get_raw = get_raw  # type: ignore[attr-defined]
        flop_registry.update(dict.fromkeys(map(_key, functions), formula))
        return formula

    return register


def _with_unit(count: int, largest: int) -> str:
    """As thousands, millions or whatever suits the largest number of the table."""
    power = min(max(len(str(largest)) - 1, 0) // 3, 6)
    return f"{count / 1000**power:,.3f}{'KMBTPE'[power - 1]}" if power else str(count)


class FlopCounterMode(OpObserver):
    """Counts while it is entered, gradients included. Not to be entered twice at a time.

    Each call counts for "Global" and for every module that ran it, by its path from the outermost one, as
    "Net.layer.0"; its gradients count for the same modules. Counts are kept by the name of the function,
    "linear", with "linear_backward" for gradients; PyTorch, whose modules call other ops below, has
    `aten.addmm` and `aten.mm` there. A second backward, of what create_graph recorded, is not counted; within
    vmap an op counts by the shapes that the function sees.

    Args:
        mods: taken, and not needed.
        depth: down to which level of modules `get_table` has lines; None for all.
        display: print the table on leaving.
        custom_mapping: {function: formula}, as by `register_flop_formula`, for this counter alone; these go
            before all others, and leave gradients uncounted.

    >>> from warptape.utils.flop_counter import FlopCounterMode
    >>> model = torch.nn.Linear(8, 4)
    >>> with FlopCounterMode(display=False) as counter:
    ...     model(torch.ones(3, 8)).sum().backward()
    >>> counter.get_flop_counts()["Linear"]
    {'linear': 192, 'linear_backward': 192}
    """

    def __init__(
        self,
        mods: Module | list[Module] | None = None,
        depth: int | None = 2,
        display: bool = True,
        custom_mapping: dict[Any, Formula] | None = None,
    ) -> None:
        super().__init__()
        if mods is not None:
            warnings.warn("mods argument is not needed anymore, you can stop passing it", stacklevel=2)
        self.flop_counts: dict[str, Counter[str]] = {}
        self.depth, self.display = depth, display
        self._own = {_key(target): formula for target, formula in (custom_mapping or {}).items()}
        self._inside: list[str] = []
        self._names: dict[Module, str] = {}
        self._hooks: list[Any] = []

    def _enter_module(self, module: Module, _: object) -> None:
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

    def _formula(self, func: Callable[..., Any]) -> Formula | None:
        keys = (func, getattr(func, "__name__", None))
        return next((known[k] for known in (self._own, flop_registry) for k in keys if k in known), None)

    def sees_as_one(self, func: Callable[..., Any]) -> bool:
        """Whether it has a formula."""
        return self._formula(func) is not None

    def _count(self, call: OpCall, name: str, flops: int) -> None:
        for place in call.memo if flops else ():
            self.flop_counts.setdefault(place, Counter())[name] += flops

    def after_op(self, call: OpCall, args: tuple[Any, ...], kwargs: dict[str, Any], out: Any) -> None:
        """Counts the call.

        Args:
            call: the op's call, with shapes.
            args, kwargs: of the call.
            out: its result.
        """
        call.memo = {"Global", *self._inside}
        formula = self._formula(call.func)
        if formula is None:
            self._count(call, call.name, forward_flops(call))
        elif getattr(formula, "_get_raw", False):
            self._count(call, call.name, formula(*args, out_val=out, **kwargs))
        else:
            self._count(call, call.name, formula(*call.args, out_shape=call.out_shape, **call.kwargs))

    def before_backward(self, call: OpCall, node: str, first: bool, gradients: tuple[Any, ...]) -> None:
        """Counts the gradients of a call, once in each pass.

        Args:
            call: the op's call in the forward.
            node: name of the node of the graph.
            first: whether the node is the first one of the call.
            gradients: of the outputs.
        """
        if first and self._formula(call.func) is None:
            for name, flops in backward_flops(call).items():
                self._count(call, name, flops)

    def get_flop_counts(self) -> dict[str, dict[str, int]]:
        """The counts by module and function.

        "Global" is the whole program; other keys are module paths.
        """
        return {place: dict(counts) for place, counts in self.flop_counts.items()}

    def get_total_flops(self) -> int:
        """The sum of all.

        A multiply and an add are two.
        """
        return sum(self.flop_counts.get("Global", Counter()).values())

    def get_table(self, depth: int | None = None) -> str:
        """A line for every module down to `depth`, and one for each function below it, with its share.

        "Global" has lines of its own where something ran outside of all modules.
        """
        most = self.depth if depth is None else depth
        total = self.get_total_flops()
        modules = sorted(p for p in self.flop_counts if p != "Global")
        shown = [p for p in modules if most is None or p.count(".") < most]
        if not any(sum(self.flop_counts[p].values()) >= total for p in shown):
            shown.insert(0, "Global")
        rows = [("Module", "FLOP", "% Total")]
        for place in shown:
            counts, indent = self.flop_counts.get(place, Counter()), " " * place.count(".")
            lines = [(place, sum(counts.values())), *((f" - {name}", n) for name, n in counts.items())]
            rows += [(indent + k, _with_unit(n, total), f"{n / max(total, 1):.2%}") for k, n in lines]
        return aligned(rows)
