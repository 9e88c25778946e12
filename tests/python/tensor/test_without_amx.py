"""What AMX tiles compute is tested again without them, in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
from warptape.doctor import cpu_flags

TESTS = Path(__file__).resolve().parents[1]


@pytest.mark.skipif("amx_bf16" not in cpu_flags(), reason="no AMX here")
@pytest.mark.parametrize(
    "name", ["tensor/test_matmul_bfloat16.py", "nn/test_conv_bfloat16.py", "nn/test_attention_bfloat16.py"]
)
def test_without_amx(name: str) -> None:
    environment = {**os.environ, "WARPTAPE_AMX": "0"}
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(TESTS / name)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
