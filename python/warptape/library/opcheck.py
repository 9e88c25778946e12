"""torch.library.opcheck: whether an op is registered as it should be."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .. import _C
from ..autograd import grad
from ..core import offered
from ..core.pytree import tree_leaves, tree_map_only
from ..testing import assert_close
from .custom_ops import CustomOpDef
from .ops import OpOverload, OpOverloadPacket


class OpCheckError(Exception):
    """A test of opcheck failed."""


_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def _tensors(values: Any) -> list[Any]:
    return [t for t in tree_leaves(values) if isinstance(t, _C.TensorBase)]


def _copies(arguments: _Arguments) -> _Arguments:
    """The arguments with tensors of their own, that require gradients where the given ones do."""

    def copy(t: Any) -> Any:
        return t.detach().clone().requires_grad_(t.requires_grad)

    return tree_map_only(_C.TensorBase, copy, arguments)


def _definition(op: Any) -> CustomOpDef | None:
    packet = op.overloadpacket if isinstance(op, OpOverload) else op
    definition = packet._function if isinstance(packet, OpOverloadPacket) else packet
    return definition if isinstance(definition, CustomOpDef) else None


def _test_schema(op: Any, arguments: _Arguments, **tolerance: Any) -> None:
    args, kwargs = _copies(arguments)
    definition = _definition(op)
    schema = definition._schema if definition else None
    before = [t.detach().clone() for t in _tensors((args, kwargs))]
    out = op(*args, **kwargs)
    tensors = _tensors((args, kwargs))
    written: set[int] = set()
    if schema is not None:
        names = [a.name for a in schema.arguments]
        values = dict(zip(names, args)) | kwargs
        written = {id(t) for a in schema.arguments if a.is_write for t in _tensors(values.get(a.name))}
    for t, old in zip(tensors, before, strict=True):
        if id(t) not in written and not _same_bytes(t, old):
            raise RuntimeError(f"{op}: an argument was changed that the schema does not say is: {schema}")
    memory = {_C._storage_address(t) for t in tensors}
    for t in _tensors(out):
        if _C._storage_address(t) in memory:
            raise RuntimeError(
                f"{op}: a result has its memory from an argument or another result; return a clone"
            )
        memory.add(_C._storage_address(t))


def _same_bytes(a: Any, b: Any) -> bool:
    a, b = a.detach(), b.detach()
    return bool(((a == b) | ((a != a) & (b != b))).all())


def _test_autograd_registration(op: Any, arguments: _Arguments, **tolerance: Any) -> None:
    args, kwargs = _copies(arguments)
    needs = any(t.requires_grad for t in _tensors((args, kwargs)))
    definition = _definition(op)
    if not needs or definition is None or (definition._schema and definition._schema.is_mutable):
        return
    out = [t for t in _tensors(op(*args, **kwargs)) if t.is_floating_point() or t.is_complex()]
    registered = definition._backward or definition._autograd or definition._composite
    if registered and out and not any(t.requires_grad for t in out):
        raise RuntimeError(
            f"{op}: an argument requires a gradient and no result does. Give the op its gradient by "
            "register_autograd, or by a function for the key Autograd; one for CPU or CUDA runs below it."
        )


def _test_faketensor(op: Any, arguments: _Arguments, **tolerance: Any) -> None:
    args, kwargs = _copies(arguments)
    fake_args, fake_kwargs = tree_map_only(_C.TensorBase, lambda t: t.detach().to("meta"), (args, kwargs))
    try:
        fake = _tensors(op(*fake_args, **fake_kwargs))
    except NotImplementedError as error:
        raise RuntimeError(
            f"There was no fake impl registered for {op}. Please use `register_fake` to add a fake impl."
        ) from error
    real = _tensors(op(*args, **kwargs))
    if len(fake) != len(real):
        raise RuntimeError(f"{op}: {len(real)} results, and {len(fake)} from the function of register_fake")
    for i, (a, b) in enumerate(zip(fake, real, strict=True)):
        for name in ("shape", "dtype"):
            if getattr(a, name) != getattr(b, name):
                raise RuntimeError(
                    f"{op}: result {i} has the {name} {getattr(b, name)}, and {getattr(a, name)} from the "
                    "function of register_fake"
                )
        if a.numel() > 1 and a.stride() != b.stride():
            raise RuntimeError(
                f"{op}: result {i} has the strides {b.stride()}, and {a.stride()} from the function of "
                "register_fake"
            )


def _test_aot_dispatch_dynamic(op: Any, arguments: _Arguments, **tolerance: Any) -> None:
    def run(call: Callable[..., Any]) -> tuple[list[Any], list[Any]]:
        args, kwargs = _copies(arguments)
        out = _tensors(call(*args, **kwargs))
        inputs = [t for t in _tensors((args, kwargs)) if t.requires_grad]
        loss = [t.sum() for t in out if t.requires_grad]
        if not loss:
            return out + _tensors((args, kwargs)), []
        return out + _tensors((args, kwargs)), [*grad(loss, inputs, allow_unused=True)]

    def through_the_op(*args: Any, **kwargs: Any) -> Any:
        return op(*args, **kwargs)

    plain, compiled = run(through_the_op), run(offered("compile")(through_the_op))
    for a, b in zip(plain[0] + plain[1], compiled[0] + compiled[1], strict=True):
        if (a is None) != (b is None):
            raise RuntimeError(f"{op}: compiled, other arguments have gradients")
        if a is not None:
            assert_close(b, a, equal_nan=True, **tolerance)


_TESTS: dict[str, Callable[..., None]] = {
    "test_schema": _test_schema,
    "test_autograd_registration": _test_autograd_registration,
    "test_faketensor": _test_faketensor,
    "test_aot_dispatch_dynamic": _test_aot_dispatch_dynamic,
}


def opcheck(
    op: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    *,
    test_utils: str | Sequence[str] = tuple(_TESTS),
    raise_exception: bool = True,
    atol: float | None = None,
    rtol: float | None = None,
) -> dict[str, Any]:
    """See torch.library.opcheck."""
    if not isinstance(op, (CustomOpDef, OpOverload, OpOverloadPacket)):
        raise ValueError(f"opcheck(op, ...): op must be instance of torch._ops.OpOverload, got {type(op)}")
    names = [test_utils] if isinstance(test_utils, str) else [*test_utils]
    if unknown := [*{*names} - {*_TESTS}]:
        raise ValueError(f"opcheck(op, ..., test_utils={names}): expected of {[*_TESTS]}, got {unknown}")
    tolerance = {"atol": atol, "rtol": rtol} if atol is not None or rtol is not None else {}
    results: dict[str, Any] = {}
    for name in names:
        try:
            _TESTS[name](op, (args, kwargs or {}), **tolerance)
            results[name] = "SUCCESS"
        except Exception as error:
            if raise_exception:
                raise OpCheckError(f"opcheck(op, ...): {name} failed with {error}") from error
            results[name] = error
    return results
