"""Numbers of the C++ and CUDA sources as a whole: python tests/arch/cpp_numbers.py

What declarations state is asked of the package where it is built. Places to edit are those that name an op, a
collective or a dtype that was added by CONTRIBUTING's recipes; code that merely uses it is not counted.
"""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from arch.test_op_names import compares
from arch.test_seams import device_tests, seams, sources, thread_locals, virtuals

ROOT = Path(__file__).resolve().parents[2]
PYTHON = "python/warptape"
#: Of each recipe what was added by it, the words that name it, and folders that only use it.
ADDED: dict[str, tuple[str, tuple[str, ...]]] = {
    "elementwise op (special_i0)": ("special_i0", ()),
    "composed op (kron)": ("kron", ()),
    "collective (all_gather_v)": ("all_gather_v|AllGatherV", ()),
    "dtype (float8_e8m0fnu)": (
        "float8_e8m0fnu|Float8_e8m0fnu|Float8E8M0FNU",
        (f"{PYTHON}/ao/", f"{PYTHON}/models/", f"{PYTHON}/utils/safetensors.py"),
    ),
}
#: The most of each, as design and issue have it.
MOST_PLACES = dict(zip(ADDED, (2, 1, 5, 6), strict=True))
FAMILY, MOST_OF_FAMILY = "grouped_mm", 4  # of one kernel: contract, two kernels, op


def places(files: dict[str, str], words: str, users: tuple[str, ...] = ()) -> dict[str, int]:
    """How many runs of lines of each file name something; runs that touch are one, as hunks of a diff."""
    found, word = {}, re.compile(rf"\b(?:{words})\b")
    for relative, text in files.items():
        if relative.startswith(users) or not any(each in text for each in words.split("|")):
            continue
        lines = [i for i, line in enumerate(text.split("\n")) if word.search(line)]
        if lines:
            found[relative] = 1 + sum(b - a > 3 for a, b in pairwise(lines))
    return found


def of_family(paths: Iterable[str], stem: str) -> list[str]:
    """The files of a family: contract, kernels and op, each in a folder of one subject."""
    return [path for path in paths if re.search(rf"^(?:kernels|csrc/ops)/(?:.*/)?{stem}\.\w+$", path)]


def with_python(files: dict[str, str]) -> dict[str, str]:
    """The sources and those of the Python package."""
    python = {p.relative_to(ROOT).as_posix(): p.read_text() for p in sorted((ROOT / PYTHON).rglob("*.py"))}
    return files | python


def numbers(files: dict[str, str]) -> dict[str, int]:
    """What the sources tell."""
    folders = Counter(relative.rsplit("/", 1)[0] for relative in files)
    everything = with_python(files)
    found = {
        "lines of csrc and kernels": sum(text.count("\n") for text in files.values()),
        "files": len(files),
        "files of the largest folder": max(folders.values()),
        "lines that compare a name with a text, none of them an op's": sum(compares(ROOT).values()),
        "case ArgType::": sum(text.count("case ArgType::") for text in files.values()),
        "what an upper layer hands down": len(seams(files)),
        "thread-locals": len(thread_locals(files)),
        "tests for the kind of a device": device_tests(files).total(),
        "virtual functions of a device's largest class": max(virtuals(files).values()),
        f"files of a kernel's family ({FAMILY})": len(of_family(files, FAMILY)),
    }
    for name, (words, users) in ADDED.items():
        found[f"places to edit: {name}"] = sum(places(everything, words, users).values())
    return found


def declared() -> dict[str, int]:
    """What declarations tell: those that are written out, and forms that follow from them."""
    from warptape import _C

    forms = [op[-1] is not None for op in _C._list_ops()]
    return {"declarations that are written": forms.count(False), "forms and aliases derived": sum(forms)}


def main() -> None:
    found = numbers(sources(ROOT))
    try:
        found |= declared()
    except ImportError as error:
        print(f"declarations were not counted: {error}")
    for name, number in found.items():
        print(f"{number:7,}  {name}")


if __name__ == "__main__":
    main()
