"""Marks of a declaration say what a call changes: elements and versions of arguments before and after each
call of every row."""

from __future__ import annotations

from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from . import checks, convert
from .driver import callable_of, count, rows
from .table import Op

Request = pytest.FixtureRequest
OF_THE_TAPE = {"detach_"}  # what they change is no element


def tensors_in(rt: Any, value: Any) -> Iterator[Any]:
    if isinstance(value, rt.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from tensors_in(rt, item)
    elif isinstance(value, dict):
        yield from tensors_in(rt, list(value.values()))


def state(rt: Any, t: Any) -> tuple[bytes, int]:
    if t.is_meta or t.layout != rt.strided:
        return b"", t._version
    elements = convert.to_numpy(
        rt, t.detach().resolve_conj().to(rt.float32 if t.dtype == rt.bfloat16 else t.dtype)
    )
    return elements.tobytes(), t._version


class Effects:
    """A mode that looks at the arguments of every op that is called under it."""

    def __init__(self, rt: ModuleType) -> None:
        self.rt, self.calls, self.wrong = rt, 0, []  # type: ignore[var-annotated]

    def see(self, func: Any, args: Any, kwargs: Any) -> Any:
        """Calls the op, and compares what it has changed with what is declared."""
        rt = self.rt
        arguments = {k: v for k, v in kwargs.items() if k != "out"}
        tensors = list({id(t): t for t in tensors_in(rt, [args, arguments])}.values())
        declared = func._written(*args, **arguments)
        memories = {t.untyped_storage().data_ptr() for t in declared}
        before = [state(rt, t) for t in tensors]
        result = func(*args, **kwargs)
        outs = {t.untyped_storage().data_ptr() for t in tensors_in(rt, kwargs.get("out"))}
        for t, was in zip(tensors, before, strict=True):
            memory, changed = t.untyped_storage().data_ptr(), state(rt, t) != was
            if changed and memory not in memories | outs:
                self.wrong.append(f"{func.__name__} changes an argument {tuple(t.shape)} without a mark")
            if (
                not changed
                and any(t is d for d in declared)
                and t.numel()
                and func.__name__ not in OF_THE_TAPE
            ):
                self.wrong.append(f"{func.__name__} is marked to change an argument, and leaves it as it is")
        self.calls += 1
        return result


def watched(rt: ModuleType, effects: Effects) -> Any:
    from warptape.overrides import TorchFunctionMode

    class Mode(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if hasattr(func, "_written"):
                return effects.see(func, args, kwargs or {})
            return func(*args, **(kwargs or {}))

    return Mode()


@rows(lambda op: op.name != "tensor")  # which calls no op
def test_marks(rt: ModuleType, op: Op, request: Request) -> None:
    if request.config.getoption("--runtime") != "warptape":
        pytest.skip("of this runtime's declarations")
    call, effects, dtype = callable_of(rt, op, request), Effects(rt), op.dtypes[0]
    with watched(rt, effects):
        for _, original, sample in checks.samples_for(op, dtype):
            args, kwargs = convert.arguments(rt, sample, original, dtype, "contiguous")
            call(*args, **kwargs)
        if op.inplace and not op.view and checks.expected_dtype(op.result, dtype) == dtype:
            checks.check_inplace(rt, op, call, dtype, "contiguous")
    assert not effects.wrong, "\n".join(effects.wrong)
    count(request, "effects", effects.calls)
