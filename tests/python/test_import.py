"""What `import warptape` must not bring along: modules that take long and that most programs do without."""

import subprocess
import sys

import pytest
from arch.python_numbers import LOADED, loaded

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


@pytest.fixture(scope="module")
def modules() -> dict[str, int]:
    return loaded()


# Of the package itself: what the first loads, and what each of the others loads on top of it.
MOST = {"import warptape": 73, "DataLoader": 15, "AdamW": 8, "inference": 1, "LLM": 50}


@pytest.mark.parametrize("name", LOADED)
def test_modules_loaded(modules: dict[str, int], name: str) -> None:
    assert modules[name] <= MOST[name]


def test_the_module_of_cuda_loads_no_names_of_pytorch() -> None:
    code = (
        "import sys, warptape; from warptape import _C; before = set(sys.modules); _C._cuda_module(); "
        "print(sorted(set(sys.modules) - before))"
    )
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
