"""What load() accepts, by its argument and by the environment."""

from __future__ import annotations

import io
import os
import pickle
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
from warptape import nn, serialization

ALWAYS, NEVER = "TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD"


def saved(obj: Any) -> io.BytesIO:
    file = io.BytesIO()
    wt.save(obj, file)
    file.seek(0)
    return file


def test_a_layer_under_torch_s_name_is_allowed(monkeypatch) -> None:
    """As `python -m warptape.torch` names the classes of nn, while files have the shorter public name."""
    monkeypatch.setitem(sys.modules, "torch.nn.modules.linear", nn.modules.linear)
    monkeypatch.setattr(nn.Linear, "__module__", "torch.nn.modules.linear")
    file = saved(nn.Linear(3, 5))
    with serialization.safe_globals([nn.Linear]):
        assert isinstance(wt.load(file), nn.Linear)


@pytest.mark.parametrize("call", [os.execv, os.system, subprocess.call], ids=lambda f: f.__name__)
def test_what_runs_programs_cannot_be_allowed(call: Callable[..., Any]) -> None:
    error = rf"unsupported GLOBAL {call.__module__}.{call.__name__} whose module {call.__module__} is blocked"
    with pytest.raises(pickle.UnpicklingError, match=error):
        wt.load(saved(call))
    with serialization.safe_globals([call]), pytest.raises(pickle.UnpicklingError, match=error):
        wt.load(saved(call))


@pytest.mark.parametrize("value", ["1", "Yes", "true"])
def test_the_environment_forces_weights_only(monkeypatch: pytest.MonkeyPatch, value: str) -> None:
    monkeypatch.setenv(ALWAYS, value)
    for asked in (None, True, False):
        with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
            wt.load(saved(nn.Linear(3, 5)), weights_only=asked)
    with pytest.raises(RuntimeError, match="explicit pickle_module"):
        wt.load(saved([1]), pickle_module=pickle)
    assert wt.load(saved([1])) == [1]


def test_the_environment_drops_weights_only_where_it_is_not_given(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(NEVER, "1")
    with pytest.warns(UserWarning, match="forcing weights_only=False"):
        model = wt.load(saved(nn.Linear(3, 5)))
    assert isinstance(model, nn.Linear)
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        wt.load(saved(nn.Linear(3, 5)), weights_only=True)
    monkeypatch.setenv(ALWAYS, "1")
    with pytest.raises(RuntimeError, match="both are"):
        wt.load(saved([1]))
    for name in (ALWAYS, NEVER):
        monkeypatch.setenv(name, "0")
    with pytest.raises(pickle.UnpicklingError, match="Weights only load failed"):
        wt.load(saved(nn.Linear(3, 5)))
