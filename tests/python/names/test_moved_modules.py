"""Modules of torch whose contents lie elsewhere here, imported by both names."""

import importlib
import pickle
import subprocess
import sys

import pytest
import warptape as torch
from warptape._missing import MOVED, ROOMS, module_name

# Below a file, as warptape.cpu, Python looks for no module: those are found as torch's alone.
FOUND = [name for name in MOVED if name not in ("cpu.amp", "testing._internal.optests")]


@pytest.mark.parametrize("name", FOUND)
def test_moved_modules_are_imported_as_the_modules_that_they_are(name):
    found = importlib.import_module(f"warptape.{name}")
    home = importlib.import_module(module_name(name))
    assert found is home or found.__name__ == f"warptape.{name}"  # or it has a file of its own
    assert home.__spec__.name == home.__name__ == module_name(name)


def test_what_is_below_a_moved_module_is_not_loaded_twice():
    code = """
import warptape.distributed._composable.fsdp as below
import warptape.distributed._tensor.placement_types as types
import warptape.distributed.fsdp, warptape.distributed.tensor
from warptape.distributed._composable.fsdp import fully_shard
from warptape.distributed.fsdp.wrap import size_based_auto_wrap_policy
assert below is warptape.distributed.fsdp and types is warptape.distributed.tensor
assert fully_shard is warptape.distributed.fsdp.fully_shard
assert types.Shard is warptape.parallel.tensor.Shard
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_modules_that_are_not_there():
    for name in (
        "distributed._tensor.nowhere",
        "distributed.fsdp.nowhere",
        "nowhere",
        "distributed.checkpoint.x",
    ):
        with pytest.raises(ModuleNotFoundError, match=name.rpartition(".")[2]):
            importlib.import_module(f"warptape.{name}")
    assert importlib.util.find_spec("warptape.distributed.fsdp.nowhere") is None


@pytest.mark.parametrize("name", ROOMS)
def test_public_names_of_modules_in_rooms(name):
    """One module by both names, in a process that imports either first; what it says is the public name."""
    code = f"""
import importlib, sys
for name in {{names}}:
    importlib.import_module(name)
import warptape
public, room = sys.modules["warptape.{name}"], sys.modules["warptape.{ROOMS[name]}"]
assert public is room is importlib.import_module("warptape.{name}")
assert warptape.{name} is room and room.__spec__.name == room.__name__ == "warptape.{ROOMS[name]}"
try:
    public.Nowhere
except AttributeError as error:
    assert "torch.{name}.Nowhere" in str(error) or not hasattr(public, "__getattr__"), error
"""
    names = [f"warptape.{name}", f"warptape.{ROOMS[name]}"]
    for order in (names, names[::-1]):
        subprocess.run([sys.executable, "-c", code.format(names=order)], check=True)


@pytest.mark.parametrize(
    ("old", "now"),
    [
        ("warptape.distributions.normal Normal", torch.distributions.Normal),
        ("warptape.distributions.transforms ExpTransform", torch.distributions.ExpTransform),
        ("warptape.nested._tensor NestedTensor", torch.nested._tensor.NestedTensor),
        ("warptape.sparse._tensor SparseTensor", torch.sparse._tensor.SparseTensor),
        ("warptape.quasirandom SobolEngine", torch.quasirandom.SobolEngine),
        ("warptape.utils._pytree TreeSpec", torch.utils._pytree.TreeSpec),
        ("warptape.utils._pytree_nodes SequenceKey", torch.utils._pytree.SequenceKey),
        ("warptape.utils.hooks RemovableHandle", torch.utils.hooks.RemovableHandle),
        ("warptape._unsupported_dtypes UnsupportedDtype", type(torch.complex32)),
    ],
)
def test_pickles_that_name_a_module_where_it_was(old, now):
    module, name = old.split()
    assert pickle.loads(f"c{module}\n{name}\n.".encode()) is now
    assert pickle.loads(pickle.dumps(now)) is now


def test_files_name_the_public_module():
    """In a process that has not imported it by that name."""
    code = """
import io
import warptape as torch
file = io.BytesIO()
torch.save([torch.distributions.Normal(0.0, 1.0), torch.utils._pytree.tree_flatten([1])[1]], file)
assert b"ctorch.distributions\\nNormal\\n" in file.getvalue(), file.getvalue()
assert b"ctorch.utils._pytree\\nTreeSpec\\n" in file.getvalue(), file.getvalue()
file.seek(0)
assert torch.load(file, weights_only=False)[0].scale == 1
"""
    subprocess.run([sys.executable, "-c", code], check=True)
