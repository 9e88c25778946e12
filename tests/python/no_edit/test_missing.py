"""What is said of names that PyTorch has and this runtime lacks, and how a program's names are listed."""

from __future__ import annotations

import importlib
import json
import pickle
import subprocess
import sys

import pytest
import warptape
from warptape.torch.coverage import coverage, main


@pytest.mark.parametrize(
    "expression, name, near",
    [
        ("warptape.zqzqzq", "torch.zqzqzq", ""),
        ("warptape.nn.Lineare", "torch.nn.Lineare", "torch.nn.Linear"),
        ("warptape.nn.functional.gelux", "torch.nn.functional.gelux", "torch.nn.functional.gelu"),
        ("warptape.gelu", "torch.gelu", "torch.nn.functional.gelu"),
        ("warptape.nn.clip_grad_norm_", "torch.nn.clip_grad_norm_", "torch.nn.utils.clip_grad_norm_"),
        ("warptape.optim.AdamV", "torch.optim.AdamV", "torch.optim.Adam"),
        ("warptape.utils.data.DataLoaders", "torch.utils.data.DataLoaders", "torch.utils.data.DataLoader"),
        ("warptape.cuda.synchronise", "torch.cuda.synchronise", "torch.cuda.synchronize"),
        ("warptape.distributed.all_reducee", "torch.distributed.all_reducee", "torch.distributed.all_reduce"),
        ("warptape.backends.cudnn.enable", "torch.backends.cudnn.enable", "torch.backends.cudnn.enabled"),
    ],
)
def test_words(expression, name, near):
    expected = f"warptape has no {name} yet" + (f"; nearest: {near}" if near else "")
    with pytest.raises(AttributeError) as caught:
        eval(expression)
    assert str(caught.value) == expected
    owner, _, last = expression.rpartition(".")
    with pytest.raises(ImportError) as caught:
        exec(f"from {owner} import {last}")
    assert str(caught.value) == expected
    assert not hasattr(eval(owner), last)


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("warptape.distribution", "; nearest: torch.distributions"),
        ("warptape.Tensr", "; nearest: torch.Tensor"),
        ("warptape.tensr", "; nearest: torch.tensor"),
        ("warptape.annotation", ""),
        ("warptape.Anny", ""),
    ],
)
def test_hints_name_what_is_meant(expression, hint):
    with pytest.raises(AttributeError) as caught:
        eval(expression)
    assert str(caught.value) == f"warptape has no torch.{expression.removeprefix('warptape.')} yet{hint}"


def test_a_module_is_hinted_for_a_module():
    from warptape._missing import message

    assert message("warptape", "utls", True) == "warptape has no torch.utls yet; nearest: torch.utils"
    assert message("warptape", "tensr", True) == "warptape has no torch.tensr yet"


def test_tensor_method(monkeypatch):
    from warptape import _missing

    class Small(warptape.Tensor):
        pass

    monkeypatch.setattr(_missing, "torch_names", lambda: {"torch.Tensor": ["adds", "add"], "torch": ["adds"]})
    _missing.mark_absent(Small, "torch.Tensor")
    x = warptape.ones(2).as_subclass(Small)
    with pytest.raises(AttributeError, match=r"^warptape has no torch\.Tensor\.adds yet$"):
        x.adds(1)
    assert not hasattr(x, "adds") and getattr(x, "adds", 3) == 3 and hasattr(x, "add")
    x.adds = 4
    assert x.adds == 4
    with pytest.raises(AttributeError, match="has no attribute 'never_a_name'"):
        x.never_a_name  # not PyTorch's: Python's own words


def test_the_error_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        warptape.zqzqzq
    again = pickle.loads(pickle.dumps(caught.value))
    assert type(again) is AttributeError and str(again) == str(caught.value)
    done = subprocess.run(
        [sys.executable, "-c", "import warptape; warptape.nn.Lineare"], capture_output=True, text=True
    )
    last = done.stderr.splitlines()[-1]
    assert last == "AttributeError: warptape has no torch.nn.Lineare yet; nearest: torch.nn.Linear"


PROGRAM = """
import torch, torch.nn as nn
import torch.nn.functional as F
from torch.utils.data import DataLoader as Loader
from torch.nonsense import thing
from torch import *

relu = F.relu
def f(x, d):
    x = relu(nn.Linear(2, 2)(x)).to_nonsense()
    d.values()
    nn.Lineare(2); nn.Lineare(3)
    return x.sin().zzz, torch.backends.cudnn.benchmark, torch.tensor([1.0]).sub(1), F.gelux(x)

class Model(nn.Module):
    def forward(self, x):
        return torch.float32.itemsize, torch.linalg.norm(x), cos(x)
"""


@pytest.fixture
def program(tmp_path):
    path = tmp_path / "program.py"
    path.write_text(PROGRAM)
    return path


def test_coverage_lists_what_is_used(program):
    uses = {use.name: use for use in coverage([str(program)])}
    missing = {name: (len(use.places), use.nearest) for name, use in uses.items() if not use.here}
    assert missing == {
        "torch.nn.Lineare": (2, "torch.nn.Linear"),
        "torch.nn.functional.gelux": (1, "torch.nn.functional.gelu"),
        "torch.nonsense": (1, missing["torch.nonsense"][1]),
    }
    here = {name for name, use in uses.items() if use.here and use.sure}
    assert here >= {
        "torch.nn.Module",
        "torch.nn.Linear",
        "torch.nn.functional.relu",
        "torch.utils.data.DataLoader",
        "torch.backends.cudnn.benchmark",
        "torch.linalg.norm",
        "torch.tensor",
        "torch.float32",
        "torch.cos",
    }
    unsure = {name for name, use in uses.items() if not use.sure}
    assert unsure == {"torch.Tensor.sin", "torch.Tensor.sub"}
    assert uses["torch.nn.Lineare"].places[0] == f"{program}:12"


def test_coverage_command(program, tmp_path, capsys):
    assert main([str(program)]) == 1
    text = capsys.readouterr().out
    assert "3 missing" in text.splitlines()[0]
    assert f"2  torch.nn.Lineare  {program}:12; nearest: torch.nn.Linear" in text
    assert main(["--json", str(tmp_path)]) == 1
    rows = json.loads(capsys.readouterr().out)
    assert {"name", "here", "sure", "nearest", "places"} == set(rows[0])
    clean = tmp_path / "sub" / "clean.py"
    clean.parent.mkdir()
    clean.write_text("import torch\nprint(torch.ones(2).sum())\n")
    assert main([str(clean)]) == 0
    with pytest.raises(SystemExit):
        main([str(tmp_path / "no.py")])


def test_an_unknown_object_is_asked_about(tmp_path, capsys, monkeypatch):
    from warptape.torch import coverage as tool

    monkeypatch.setattr(tool, "_sets", {o: {"zzz"} if o == "torch.Tensor" else set() for o in tool._OBJECTS})
    path = tmp_path / "program.py"
    path.write_text("import torch\ndef f(x): return x.zzz()\n")
    assert main([str(path)]) == 0  # not for certain
    assert "torch.Tensor.zzz ?" in capsys.readouterr().out


@pytest.mark.parametrize(
    "path",
    [
        "torch.autograd.profiler.record_function",
        "torch.autograd.variable.Variable",
        "torch.distributed._composable.fsdp.fully_shard",
        "torch.distributed._tensor.Shard",
        "torch.distributed.tensor.placement_types.Replicate",
        "torch.distributed.algorithms._checkpoint.checkpoint_wrapper.checkpoint_wrapper",
        "torch.nn.modules.activation.MultiheadAttention",
        "torch.nn.modules.batchnorm.SyncBatchNorm",
        "torch.nn.modules.channelshuffle.ChannelShuffle",
        "torch.nn.modules.flatten.Flatten",
        "torch.nn.modules.instancenorm.InstanceNorm2d",
        "torch.nn.modules.pixelshuffle.PixelShuffle",
        "torch.nn.modules.utils._pair",
        "torch.nn.parallel.data_parallel",
        "torch.profiler.profiler.profile",
    ],
)
def test_modules_that_lie_elsewhere(path):
    from warptape._missing import find, module_name

    owner, _, name = path.rpartition(".")
    assert getattr(importlib.import_module(module_name(owner)), name) is find(path)
