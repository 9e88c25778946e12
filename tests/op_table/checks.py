"""What is checked of a row: values, types, layouts, broadcasting, variants, views, the meta device, refusals.

Every function takes the runtime, the row and the row's callable, raises AssertionError with the sample that
failed, and returns how many calls it compared (a check that compared nothing is a failure of the caller's
making).
"""

from __future__ import annotations

import builtins
import dataclasses
import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from . import convert
from .table import FLOATS, Err, Op, Sample, expected_dtype

Call = Callable[..., Any]
SAMPLE_SHAPES = (((2, 1), (1, 3), (2, 3)), ((2, 3), (3,), (1,)), ((), (2, 2), ()), ((2, 1, 2), (3, 1), (2,)))
EMPTY_SHAPES = (((0, 3), (1, 3), ()), ((2, 1), (2, 0), (1, 1)))


class Missing(Exception):
    """The runtime has no such op."""


def resolve_path(rt: Any, path: str) -> Call:
    """What `rt` has under a dotted path; Missing if it is not there."""
    target = rt
    for part in path.split("."):
        try:
            target = getattr(target, part)
        except AttributeError:
            raise Missing(path) from None
    return target


def resolve(rt: Any, op: Op) -> Call:
    """The row's callable in `rt`; Missing if the name is not there."""
    target = resolve_path(rt, op.name)
    if op.call is not None:
        return lambda *args, **kwargs: op.call(rt, *args, **kwargs)
    return target


def samples_for(op: Op, dtype: str, layout: str = "contiguous") -> Iterator[tuple[int, Sample, Sample]]:
    """(number, as written, concrete) for the row's samples that apply to `dtype`."""
    for number, original in enumerate(op.samples(op.rng())):
        if original.dtypes is None or dtype in original.dtypes:
            yield number, original, convert.concrete(original, dtype, layout)


def describe(op: Op, dtype: str, number: int, sample: Sample) -> str:
    """A line for an assertion message: the call with shapes for arrays."""

    def leaf(value: Any) -> str:
        if isinstance(value, np.ndarray):
            return f"{value.dtype}{list(value.shape)}"
        if isinstance(value, (list, tuple)):
            return "[" + ", ".join(map(leaf, value)) + "]"
        return repr(value)

    parts = [leaf(value) for value in sample.args] + [f"{k}={leaf(v)}" for k, v in sample.kwargs.items()]
    return f"{op.id}({', '.join(parts)}) under {dtype}, sample {number}"


def compare(rt: Any, op: Op, got: Any, want: Any, rule: Any, dtype: str, where: str) -> None:
    """Asserts that a result equals its reference: structure, type, dtype, shape, values."""
    if isinstance(want, (list, tuple)) and not isinstance(want, str):
        if not isinstance(got, (list, tuple)) or len(got) != len(want):
            raise AssertionError(f"{where}: expected {len(want)} results, got {type(got).__name__}")
        rules = rule if isinstance(rule, tuple) else (rule,) * len(want)
        for index, (one, ref, each) in enumerate(zip(got, want, rules, strict=True)):
            compare(rt, op, one, ref, each, dtype, f"{where}, result {index}")
        return
    if not isinstance(want, (np.ndarray, np.generic)):
        if type(got) is not type(want) or got != want:
            raise AssertionError(f"{where}: expected {want!r}, got {got!r}")
        return
    if not isinstance(got, rt.Tensor):
        raise AssertionError(f"{where}: expected a tensor, got {type(got).__name__}")
    compare_tensor(rt, op, got, np.asarray(want), expected_dtype(rule, dtype), dtype, where)


def compare_tensor(rt: Any, op: Op, got: Any, want: np.ndarray, kind: str, dtype: str, where: str) -> None:
    """Asserts dtype, shape and values of one tensor. Narrow inputs widen the tolerance, as the result
    cannot be better than its intermediate steps."""
    if convert.dtype_name(rt, got) != kind:
        raise AssertionError(f"{where}: expected dtype {kind}, got {convert.dtype_name(rt, got)}")
    if tuple(got.shape) != want.shape:
        raise AssertionError(f"{where}: expected shape {want.shape}, got {tuple(got.shape)}")
    with np.errstate(all="ignore"):
        expected = convert.widen(convert.narrow(want, kind))
    relative, absolute = op.tolerance(kind)
    actual = convert.widen(convert.to_numpy(rt, got))
    np.testing.assert_allclose(actual, expected, rtol=relative, atol=absolute, equal_nan=True, err_msg=where)


def check_values(rt: Any, op: Op, call: Call, dtype: str, layout: str = "contiguous") -> int:
    """Every sample's result against the reference, and the arguments unchanged by the call."""
    count = 0
    for number, original, sample in samples_for(op, dtype, layout):
        where = f"{describe(op, dtype, number, sample)}, {layout}"
        args, kwargs = convert.arguments(rt, sample, original, dtype, layout)
        got = call(*args, **kwargs)
        if op.ref is None:
            op.check(as_numpy(rt, got), *sample.args, **sample.kwargs)
            first = got[0] if isinstance(got, tuple) else got
            name = convert.dtype_name(rt, first)
            if name != expected_dtype(op.result, dtype):
                raise AssertionError(
                    f"{where}: expected dtype {expected_dtype(op.result, dtype)}, got {name}"
                )
        else:
            compare(rt, op, got, convert.reference(op, sample, dtype), op.result, dtype, where)
        assert_unchanged(rt, args, sample.args, where)
        count += 1
    return count


def as_numpy(rt: Any, value: Any) -> Any:
    """Tensors of a result as NumPy arrays."""
    if isinstance(value, rt.Tensor):
        return convert.widen(convert.to_numpy(rt, value))
    return tuple(as_numpy(rt, item) for item in value) if isinstance(value, (list, tuple)) else value


def assert_unchanged(rt: Any, args: Any, values: Any, where: str) -> None:
    """Asserts that an out-of-place op left its arguments alone."""
    for tensor, value in zip(args, values, strict=True):
        if isinstance(value, np.ndarray):
            after = convert.to_numpy(rt, tensor)
            if not np.array_equal(after, value, equal_nan=value.dtype.kind == "f"):
                raise AssertionError(f"{where}: the op changed an argument")


def check_seeded(rt: Any, op: Op, call: Call) -> int:
    """The same seed gives the same result, another seed another one (checked over all samples together)."""
    dtype = op.dtypes[0]

    def run(seed: int) -> list[Any]:
        rt.manual_seed(seed)
        results = []
        for _, original, sample in samples_for(op, dtype):
            args, kwargs = convert.arguments(rt, sample, original, dtype)
            got = call(*args, **kwargs)
            results.append(as_numpy(rt, got[0] if isinstance(got, tuple) else got).tolist())
        return results

    first, again, other = run(7), run(7), run(8)
    if first != again:
        raise AssertionError(f"{op.id}: two runs from one seed differ")
    if first == other:
        raise AssertionError(f"{op.id}: the seed has no effect")
    return len(first)


def check_broadcast(rt: Any, op: Op, call: Call, dtype: str) -> int:
    """The op over shapes that broadcast, with the first sample's values, resized."""
    count = 0
    _, original, sample = next(samples_for(op, dtype))
    for shapes in SAMPLE_SHAPES + EMPTY_SHAPES:
        leading = tuple(np.resize(sample.args[i], shapes[i]) for i in range(op.broadcast))
        varied = Sample(leading + sample.args[op.broadcast :], sample.kwargs, None, True)
        args, kwargs = convert.arguments(rt, varied, original, dtype)
        where = f"{describe(op, dtype, 0, varied)}, broadcast"
        compare(rt, op, call(*args, **kwargs), convert.reference(op, varied, dtype), op.result, dtype, where)
        count += 1
    return count


def check_large(rt: Any, op: Op, call: Call, dtype: str) -> int:
    """The op over enough elements for several threads, with the first sample's values, repeated."""
    _, original, sample = next(samples_for(op, dtype))
    leading = tuple(np.resize(sample.args[i], (257, 300)) for i in range(op.broadcast))
    varied = Sample(leading + sample.args[op.broadcast :], sample.kwargs, None, True)
    args, kwargs = convert.arguments(rt, varied, original, dtype)
    where = describe(op, dtype, 0, varied)
    compare(rt, op, call(*args, **kwargs), convert.reference(op, varied, dtype), op.result, dtype, where)
    return 1


def check_method(rt: Any, op: Op, call: Call, dtype: str) -> int:
    """x.op(...) gives what op(x, ...) gives."""
    count = 0
    for number, original, sample in samples_for(op, dtype):
        args, kwargs = convert.arguments(rt, sample, original, dtype)
        got = getattr(args[0], op.short)(*args[1:], **kwargs)
        where = f"{describe(op, dtype, number, sample)}, as a method"
        compare(rt, op, got, convert.reference(op, sample, dtype), op.result, dtype, where)
        count += 1
    return count


def check_inplace(rt: Any, op: Op, call: Call, dtype: str, layout: str) -> int:
    """x.op_(...) returns x itself, keeps its memory, counts a version, and equals the op out of place."""
    count = 0
    for number, original, sample in samples_for(op, dtype, layout):
        where = f"{describe(op, dtype, number, sample)}, {op.inplace} {layout}"
        want = convert.reference(op, sample, dtype)
        kind = expected_dtype(op.result, dtype)
        if (
            kind != dtype
            or np.shape(want) != np.shape(sample.args[0])
            or not isinstance(sample.args[0], np.ndarray)
        ):
            continue
        args, kwargs = convert.arguments(rt, sample, original, dtype, layout)
        memory, version = args[0].data_ptr(), args[0]._version
        got = getattr(args[0], op.inplace)(*args[1:], **kwargs)
        if got is not args[0]:
            raise AssertionError(f"{where}: did not return the tensor itself")
        if got.data_ptr() != memory:
            raise AssertionError(f"{where}: moved the tensor to other memory")
        if got._version <= version:
            raise AssertionError(f"{where}: the version counter did not move")
        compare_tensor(rt, op, got, np.asarray(want), kind, dtype, where)
        count += 1
    return count


def check_inplace_shape(rt: Any, op: Op, call: Call) -> int:
    """x.view_op_(...) changes the shape of x itself and keeps its storage."""
    count = 0
    for number, original, sample in samples_for(op, "float32"):
        where = f"{describe(op, 'float32', number, sample)}, {op.inplace}"
        args, kwargs = convert.arguments(rt, sample, original, "float32")
        memory = args[0].untyped_storage().data_ptr()
        got = getattr(args[0], op.inplace)(*args[1:], **kwargs)
        if got is not args[0] or got.untyped_storage().data_ptr() != memory:
            raise AssertionError(f"{where}: did not return the tensor itself, in its own memory")
        compare(rt, op, got, convert.reference(op, sample, "float32"), op.result, "float32", where)
        count += 1
    return count


def check_inplace_autograd(rt: Any, op: Op, call: Call) -> int:
    """In place on a leaf that requires grad is refused; on a clone its gradients equal those out of place."""
    count = 0
    for number, original, sample in samples_for(op, "float64"):
        if (
            np.shape(convert.reference(op, sample, "float64")) != np.shape(sample.args[0])
            or not original.grad
        ):
            continue
        where = f"{describe(op, 'float64', number, sample)}, {op.inplace} with autograd"
        gradients = []
        for inplace in (False, True):
            args, kwargs, leaves = leaves_of(rt, op, sample, original, "float64")
            if inplace:
                try:
                    getattr(args[0], op.inplace)(*args[1:], **kwargs)
                except RuntimeError:
                    pass
                else:
                    raise AssertionError(
                        f"{where}: an in-place op on a leaf that requires grad was not refused"
                    )
                got = getattr(args[0].clone(), op.inplace)(*args[1:], **kwargs)
            else:
                got = call(*args, **kwargs)
            (got * ramp(rt, got)).sum().backward()
            gradients.append(
                [None if leaf.grad is None else convert.to_numpy(rt, leaf.grad) for leaf in leaves]
            )
        for out_of_place, in_place in zip(*gradients, strict=True):
            if (out_of_place is None) != (in_place is None):
                raise AssertionError(f"{where}: one of the two gradients is missing")
            if out_of_place is not None:
                np.testing.assert_allclose(in_place, out_of_place, rtol=1e-12, atol=1e-12, err_msg=where)
        count += 1
    return count


def ramp(rt: Any, like: Any) -> Any:
    """Weights without symmetry, of a tensor's shape."""
    return convert.from_array(
        rt, np.linspace(0.5, 1.5, int(np.prod(like.shape))).reshape(tuple(like.shape))
    ).to(like.dtype)


def leaves_of(
    rt: Any, op: Op, sample: Sample, original: Sample, dtype: str, layout: str = "contiguous"
) -> tuple[list[Any], dict[str, Any], list[Any]]:
    """Arguments whose differentiable tensors require grad, and those tensors in order."""
    leaves: list[Any] = []

    def place(tensor: Any, tested: bool) -> Any:
        if tested and wanted:
            tensor.requires_grad_(True)
            leaves.append(tensor)
        return tensor

    args: list[Any] = []
    for index, value in enumerate(sample.args):
        wanted = index not in op.nograd
        one = Sample((value,), {}, None, True)
        args += convert.arguments(
            rt, one, Sample((original.args[index],), {}, None, True), dtype, layout, place
        )[0]
    kwargs: dict[str, Any] = {}
    for key, value in sample.kwargs.items():
        wanted = key not in op.nograd
        one = Sample((), {key: value}, None, True)
        kwargs |= convert.arguments(
            rt, one, Sample((), {key: original.kwargs[key]}, None, True), dtype, layout, place
        )[1]
    return args, kwargs, leaves


def check_out(rt: Any, op: Op, call: Call, dtype: str) -> int:
    """out=, one tensor or a tuple of them, is filled, returned, resized from empty, written through strides,
    and refused in a narrower kind."""
    count = 0
    for number, original, sample in samples_for(op, dtype):
        reference = convert.reference(op, sample, dtype)
        many = isinstance(reference, (list, tuple))
        wanted = [np.asarray(want) for want in (reference if many else [reference])]
        rules = op.result if isinstance(op.result, tuple) else (op.result,) * len(wanted)
        kinds = [expected_dtype(rule, dtype) for rule in rules]
        args, kwargs = convert.arguments(rt, sample, original, dtype)
        where = f"{describe(op, dtype, number, sample)}, out="
        for form in ("exact", "empty", "stepped"):
            targets = [
                out_target(rt, form, want.shape, kind) for want, kind in zip(wanted, kinds, strict=True)
            ]
            got = call(*args, **kwargs, out=tuple(targets) if many else targets[0])
            for one, target, want, kind in zip(got if many else [got], targets, wanted, kinds, strict=True):
                if one is not target:
                    raise AssertionError(f"{where} {form}: did not return the tensor given")
                compare_tensor(rt, op, target, want, kind, dtype, f"{where} {form}")
            count += 1
        if kinds[0] in FLOATS and not op.out_casts:
            targets = [rt.zeros(want.shape, dtype=rt.int64, device=convert.device) for want in wanted]
            try:
                call(*args, **kwargs, out=tuple(targets) if many else targets[0])
            except (RuntimeError, TypeError):
                continue
            raise AssertionError(f"{where}: a floating point result was written into an int64 tensor")
    return count


def out_target(rt: Any, form: str, shape: tuple[int, ...], kind: str) -> Any:
    """Zeros for out=: of the result's shape, empty, or of its shape in every second place."""
    if form == "stepped" and shape:
        return rt.zeros((*shape[:-1], shape[-1] * 2), dtype=getattr(rt, kind), device=convert.device)[
            ..., ::2
        ]
    return rt.zeros((0,) if form == "empty" else shape, dtype=getattr(rt, kind), device=convert.device)


def check_view(rt: Any, op: Op, call: Call) -> int:
    """The result aliases the argument: a change of the one shows in the other."""
    count = 0
    for number, original, sample in samples_for(op, "float32"):
        where = f"{describe(op, 'float32', number, sample)}, view"
        args, kwargs = convert.arguments(rt, sample, original, "float32")
        got = call(*args, **kwargs)
        args[0].add_(1)
        moved = Sample((sample.args[0] + np.float32(1), *sample.args[1:]), sample.kwargs, None, True)
        compare(rt, op, got, convert.reference(op, moved, "float32"), op.result, "float32", where)
        pieces = got if isinstance(got, (list, tuple)) else (got,)
        if not all(piece is args[0] or (piece._is_view() and piece._base is args[0]) for piece in pieces):
            raise AssertionError(f"{where}: the result is not registered as a view of its argument")
        count += 1
    return count


def check_meta(rt: Any, op: Op, call: Call) -> int:
    """On the meta device: shape and dtype of the CPU's result, or a refusal where they depend on data."""
    count = 0
    dtype = op.dtypes[0]
    for number, original, sample in samples_for(op, dtype):
        where = f"{describe(op, dtype, number, sample)}, meta"
        args, kwargs = convert.arguments(rt, sample, original, dtype)
        want = call(*args, **kwargs)
        args, kwargs = convert.arguments(
            rt, sample, original, dtype, place=lambda tensor, _: tensor.to("meta")
        )
        if op.factory:
            kwargs["device"] = "meta"
        if not op.meta:
            try:
                call(*args, **kwargs)
            except (RuntimeError, NotImplementedError):
                count += 1
                continue
            raise AssertionError(f"{where}: the result depends on data, yet the call was not refused")
        got = call(*args, **kwargs)
        for one, ref in zip(tensors(rt, got), tensors(rt, want), strict=True):
            if one.device.type != "meta":
                raise AssertionError(f"{where}: the result is on {one.device}")
            if (tuple(one.shape), one.dtype) != (tuple(ref.shape), ref.dtype):
                raise AssertionError(
                    f"{where}: expected {tuple(ref.shape)} {ref.dtype}, got {tuple(one.shape)} {one.dtype}"
                )
        count += 1
    return count


def tensors(rt: Any, value: Any) -> list[Any]:
    """The tensors of a result, in order."""
    if isinstance(value, rt.Tensor):
        return [value]
    return (
        [tensor for item in value for tensor in tensors(rt, item)] if isinstance(value, (list, tuple)) else []
    )


PEER_KINDS = {
    "ShapeError": (RuntimeError, ValueError),
    "DtypeError": (RuntimeError,),
    "TypeError": (TypeError, AttributeError),
}
NATIVE_KINDS = {"ShapeError", "DtypeError", "DeviceError"}


def error_classes(rt: Any, kinds: str) -> tuple[type[BaseException], ...]:
    """The classes of a refusal: a typed error of the runtime, or a built-in one. Where the table is proven
    against PyTorch, its classes stand in, and its Python layer's attribute errors count as type errors."""
    found: tuple[type[BaseException], ...] = ()
    for kind in kinds.split("|"):
        if native(rt):
            found += (getattr(rt if kind in NATIVE_KINDS else builtins, kind),)
        else:
            found += PEER_KINDS.get(kind) or (getattr(builtins, kind),)
    return found


def native(rt: Any) -> bool:
    """True for warptape itself."""
    return rt.__name__ == "warptape"


def check_error(rt: Any, op: Op, call: Call, case: Err) -> None:
    """One refused call: its class, and a message that names the op."""
    original = Sample(case.args, case.kwargs, None, True)
    sample = convert.concrete(original, case.dtype)
    where = describe(op, case.dtype, 0, sample)
    args, kwargs = convert.arguments(rt, sample, original, case.dtype)
    pattern = case.match or name_pattern(op)
    if native(rt) and on_cuda():
        case, pattern = late_fault(case), f"{pattern}|{LATE_FAULT}"
    try:
        call(*args, **kwargs)
        if on_cuda():
            rt.cuda.synchronize()
    except error_classes(rt, case.kind) as error:
        if native(rt) and not re.search(pattern, str(error)):
            raise AssertionError(f"{where}: the message does not match {pattern!r}: {error}") from None
    except Exception as error:
        raise AssertionError(f"{where}: expected {case.kind}, got {type(error).__name__}: {error}") from error
    else:
        raise AssertionError(f"{where}: expected {case.kind}, but the call was accepted")


# What a kernel found is reported by the next synchronisation, under the kernel's name.
LATE_FAULT = r"\w+: index -?\d+ is out of bounds for dimension with size \d+"


def on_cuda() -> bool:
    """Whether the table runs on a CUDA device."""
    return convert.device == "cuda"


def late_fault(case: Err) -> Err:
    """The case as a device reports it: a bad index is an IndexError whatever the op raises on the CPU."""
    return dataclasses.replace(case, kind=f"{case.kind}|IndexError")


def name_pattern(op: Op) -> str:
    """Matches a message that names the op (its in-place or dimension variant counts)."""
    return rf"(?<![A-Za-z0-9]){re.escape(op.short)}(?![A-Za-z0-9])"
