"""What `import warptape` must not bring along: modules that take long and that most programs do without."""

import subprocess
import sys

HEAVY = (
    "inspect",
    "dataclasses",
    "ast",
    "multiprocessing",
    "numpy",
    "pickle",
    "zipfile",
    "warptape.distributed",
)


def test_import_is_light():
    code = f"import sys, warptape; print([name for name in {HEAVY!r} if name in sys.modules])"
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.strip() == "[]"
