"""docs/ops.md is what the op table says."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def test_page_is_current() -> None:
    script = Path(__file__).with_name("page.py")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
