"""Planted faults are found: a wrong value, dtype, gradient, a copy for a view, an error not raised."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("expecttest")

import warptape

from . import filters, gate
from .ops import Failure, OpParity

pytestmark = pytest.mark.parity


def failing(name: str) -> dict[str, str]:
    """Aspects of an entry that fail, with a cause."""
    entry = next(entry for entry in filters.entries() if filters.full_name(entry) == name)
    return {failure.aspect: failure.cause for failure in OpParity(entry).failures()}


def plant(monkeypatch: pytest.MonkeyPatch, name: str, change: Any) -> None:
    """Replaces a function by change(function, *args, **kwargs)."""
    right = getattr(warptape, name)
    monkeypatch.setattr(warptape, name, lambda *args, **kwargs: change(right, *args, **kwargs))


def test_nothing_fails_before() -> None:
    assert failing("exp") == failing("diagonal") == {}


def test_wrong_value(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "exp", lambda exp, x, **kwargs: exp(x, **kwargs) * (1 + 1e-4))
    assert "value" in failing("exp")


def test_wrong_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(
        monkeypatch, "exp", lambda exp, x, **kwargs: exp(x.double() if x.is_floating_point() else x, **kwargs)
    )
    assert "dtype" in failing("exp")


def test_copy_for_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "diagonal", lambda diagonal, *args, **kwargs: diagonal(*args, **kwargs).clone())
    assert "view" in failing("diagonal")


def test_wrong_gradient(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong(warptape.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return warptape.Tensor.exp(x)

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            (x,) = ctx.saved_tensors
            return grad * x.exp() * 1.0001

    def change(exp: Any, x: Any, **kwargs: Any) -> Any:
        return Wrong.apply(x) if x.requires_grad and not kwargs else exp(x, **kwargs)

    plant(monkeypatch, "exp", change)
    assert failing("exp").keys() == {"gradient"}


def test_gradient_that_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "exp", lambda exp, x, **kwargs: exp(x.detach(), **kwargs))
    assert "requires_grad" in failing("exp")["gradient"]


def test_missing_error(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(diagonal: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return diagonal(*args, **kwargs)
        except Exception:
            return args[0]

    plant(monkeypatch, "diagonal", change)
    assert "not refused" in failing("diagonal")["error"]


def test_error_of_another_class(monkeypatch: pytest.MonkeyPatch) -> None:
    def change(diagonal: Any, *args: Any, **kwargs: Any) -> Any:
        try:
            return diagonal(*args, **kwargs)
        except Exception as error:
            raise KeyError from error

    plant(monkeypatch, "diagonal", change)
    assert "KeyError" in failing("diagonal")["error"]


def test_out_that_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "exp", lambda exp, x, out=None: exp(x) if out is None else out)
    assert "out" in failing("exp")


def test_in_place_form_that_copies(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warptape.Tensor, "exp_", lambda x: x.exp())
    assert failing("exp").keys() == {"inplace"}


def test_missing_name(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(warptape, "exp", None)
    assert failing("exp").keys() == {"missing"}


def test_the_list_only_shrinks() -> None:
    failure = Failure("exp", "value", "float32", "at [0]: ours 1.0, theirs 2.0")
    listed = {("exp", "value", "float64"): "known"}
    unlisted, stale = gate.against("exp", [failure], listed)
    assert unlisted.startswith("exp value float32: at [0]")
    assert stale == "exp value float64: passes now; delete its line"
    assert not gate.against("exp", [failure], {failure.key: "known"})


def test_a_failure_of_one_processor(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    line = "exp value float32@AVX2,float64 known, see docs/explanation/differences.md\n"
    monkeypatch.setattr(gate, "LIST", tmp_path / "list.txt")

    def listed_by(processor: str) -> set[str]:
        gate.LIST.write_text(gate.HEAD + line)
        monkeypatch.setattr("torch.backends.cpu.get_cpu_capability", lambda: processor)
        return {dtype for _, _, dtype in gate.read()}

    def written(found: dict[gate.Key, str]) -> str:
        gate.write(found)
        return gate.LIST.read_text().removeprefix(gate.HEAD)

    assert listed_by("AVX2") == {"float32", "float64"}
    assert written(gate.read()) == line
    assert written({}) == ""
    assert listed_by("AVX512") == {"float64"}
    assert written(gate.read()) == line
    assert written({}) == line.replace(",float64", "")
