"""tools/pytorch_tests.py on small files of tests: which pass, fail, hang, end the process or miss a name."""

from __future__ import annotations

import argparse
import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).parents[2]
FILE = """
import os, time, unittest
import torch
from torch.testing import no_such_module

class TestSmall(unittest.TestCase):
    def test_1_passes(self):
        self.assertEqual((torch.ones(2) * 2).tolist(), [2.0, 2.0])

    def test_2_fails(self):
        self.assertEqual(torch.ones(2).sum().item(), 3.0)

    def test_3_uses_a_missing_name(self):
        torch.no_such_name(1)

    def test_4_ends_the_process(self):
        os._exit(3)

    def test_5_hangs(self):
        time.sleep(60)

    def test_6_passes_after_them(self):
        self.assertEqual(torch.__spec__.name, "warptape")

    def test_8_takes_all_memory(self):
        bytearray(2**60)

    @unittest.skip("why")
    def test_7_is_skipped(self):
        pass
"""


@pytest.fixture(scope="module")
def tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("pytorch_tests", ROOT / "tools" / "pytorch_tests.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_file_is_run_to_its_end(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text(FILE)
    options = argparse.Namespace(
        tests=tmp_path, helpers=tmp_path, k="", part=1.0, timeout=6.0, v=False, python="unused", skip=["8_"]
    )
    found = tool.outcomes("test_small.py", "warptape", options)
    outcomes = {name.partition(".")[2]: outcome for name, (outcome, _) in found.items()}
    assert outcomes == {
        "test_1_passes": "passed",
        "test_2_fails": "failed",
        "test_3_uses_a_missing_name": "failed",
        "test_4_ends_the_process": "failed",
        "test_5_hangs": "failed",
        "test_6_passes_after_them": "passed",
        "test_7_is_skipped": "skipped",
    }
    assert "warptape has no torch.no_such_name" in found["TestSmall.test_3_uses_a_missing_name"][1]
    assert found["TestSmall.test_4_ends_the_process"][1] == "the process ended or took too long"


def test_a_file_that_is_not_imported(tool: ModuleType, tmp_path: Path) -> None:
    (tmp_path / "test_small.py").write_text("raise ValueError('planted')\n")
    options = argparse.Namespace(
        tests=tmp_path, helpers=tmp_path, k="", part=1.0, timeout=60.0, v=False, skip=[]
    )
    found = tool.outcomes("test_small.py", "warptape", options)
    assert found == {"": ["failed", "the file is not imported: ValueError: planted"]}


def test_counts(tool: ModuleType) -> None:
    theirs = {name: ["passed", ""] for name in ("a", "b", "c", "d_complex32", "e")} | {"f": ["failed", "x"]}
    ours = {
        "a": ["passed", ""],
        "b": ["failed", "ValueError: at 12 of 0x7f"],
        "c": ["failed", "ValueError: at 7 of 0x8"],
        "d_complex32": ["failed", "no such dtype"],
        "f": ["passed", ""],
    }
    row = tool.compared(theirs, ours, 0.5)
    assert row == {
        "part": 0.5,
        "counted": 5,
        "passed": 1,
        "left out": {"complex32": 1},
        "causes": {"ValueError: at N of N": 2, "not generated here": 1},
    }
    assert tool.left_out_table({"x.py": row, "y.py": row}).splitlines()[-1] == "| complex32 | 2 |"
    last = tool.table({"x.py": row, "empty.py": tool.compared({}, {})}).splitlines()
    assert len(last) == 4 and last[-1] == "| all | 5 | 1 | 1 | 25.0% |  |"
