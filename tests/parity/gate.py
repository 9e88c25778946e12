"""Everything that is compared, and the list of what is known to differ, which may only shrink."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import torch

from . import filters, modules, optimizers
from .ops import ASPECTS, Failure, OpParity

LIST = Path(__file__).with_name("expected_failures.txt")
HEAD = """\
# What differs from PyTorch on its own samples: entry, aspect, dtypes (- for none), reason.
# Written by `python tools/parity.py --all`. A line that passes now is an error, as is a failure without one.
# bfloat16@AVX2: only where PyTorch computes by AVX2, as torch.backends.cpu.get_cpu_capability() says.
"""
Key = tuple[str, str, str]


def everything() -> dict[str, Callable[..., Any]]:
    """What compares each entry, by its name; it takes the limits on samples."""
    found: dict[str, Callable[..., Any]] = {}
    for entry in filters.entries():
        found[filters.full_name(entry)] = lambda limits=None, entry=entry: OpParity(entry, limits)
    for entry in modules.entries():
        found[entry.name] = lambda limits=None, entry=entry: modules.ModuleParity(entry, limits)
    for entry in optimizers.entries():
        name = optimizers.name_of(entry)
        found[name] = lambda limits=None, entry=entry: optimizers.OptimizerParity(entry, limits)
    return found


def reasons(found: Iterable[Failure]) -> dict[Key, str]:
    """The first cause of each (entry, aspect, dtype) that fails."""
    first: dict[Key, str] = {}
    for failure in found:
        first.setdefault(failure.key, " ".join(failure.cause.split())[:110])
    return first


def written() -> dict[Key, str]:
    """The listed failures with their reasons, each dtype as it is written."""
    listed: dict[Key, str] = {}
    for line in LIST.read_text().splitlines() if LIST.exists() else []:
        if line and not line.startswith("#"):
            name, aspect, dtypes, reason = line.split(maxsplit=3)
            listed.update({(name, aspect, dtype): reason for dtype in dtypes.split(",")})
    return listed


def happens_here(dtype: str) -> bool:
    """Whether a dtype of the list is one for all processors, or for this one."""
    return dtype.partition("@")[2] in ("", torch.backends.cpu.get_cpu_capability())


def read() -> dict[Key, str]:
    """The failures listed for this processor, with their reasons."""
    return {
        (name, aspect, dtype.partition("@")[0]): reason
        for (name, aspect, dtype), reason in written().items()
        if happens_here(dtype)
    }


def write(found: dict[Key, str]) -> None:
    """The list anew. A reason that someone wrote (it names a page of docs) is kept, as are other processors'
    failures."""
    listed = written()
    known = {(name, aspect): reason for (name, aspect, _), reason in listed.items() if "docs/" in reason}
    for (name, aspect, dtype), reason in listed.items():
        plain = (name, aspect, dtype.partition("@")[0])
        if "@" in dtype and (plain in found or not happens_here(dtype)):
            found = {key: cause for key, cause in found.items() if key != plain}
            found[name, aspect, dtype] = reason
    lines: dict[tuple[str, str], tuple[list[str], str]] = {}
    for (name, aspect, dtype), reason in found.items():
        reason = known.get((name, aspect), reason)
        lines.setdefault((name, aspect), ([], reason))[0].append(dtype)
    order = sorted(lines, key=lambda key: (key[0], ASPECTS.index(key[1])))
    rows = [f"{' '.join(key)} {','.join(sorted(lines[key][0]))} {lines[key][1]}\n" for key in order]
    LIST.write_text(HEAD + "".join(rows))


def against(name: str, found: Iterable[Failure], listed: dict[Key, str]) -> list[str]:
    """What is wrong with the list, for one entry: failures without a line, lines without a failure."""
    failing = reasons(found)
    own = {key for key in listed if key[0] == name}
    wrong = [f"{' '.join(key)}: {failing[key]}" for key in failing if key not in own]
    return wrong + [f"{' '.join(key)}: passes now; delete its line" for key in sorted(own - failing.keys())]
