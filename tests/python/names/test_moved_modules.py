"""Modules of torch whose contents lie elsewhere here, imported by both names."""

import importlib
import subprocess
import sys

import pytest
from warptape._missing import MOVED, module_name

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
