"""Which names of torch do not resolve here: of a list, or of the packages that are installed.

    python tools/ecosystem.py --names                    # names that the packages of this environment use
    python tools/ecosystem.py --names FILE               # names of a list: "3 torch.a.b", most used first

A name resolves when `import torch` gives it, by the finder of warptape.torch. What is left out on purpose
stands with its reason in benchmarks/ecosystem/names_left_out.txt. The exit code is 1 where another is
missing.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import importlib.util
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "benchmarks" / "ecosystem"
LIST, LEFT_OUT = FOLDER / "names_2026.txt", FOLDER / "names_left_out.txt"


def _lines(path: Path) -> Iterator[str]:
    for line in path.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            yield line.strip()


def listed(path: Path = LIST) -> list[tuple[int, str]]:
    """(packages that use it outside of a try, name) of a list."""
    return [(int(count), name) for count, name in (line.split()[:2] for line in _lines(path))]


def left_out(path: Path = LEFT_OUT) -> dict[str, str]:
    """The reason why a name is not there."""
    return {name: reason.strip() for name, _, reason in (line.partition(":") for line in _lines(path))}


def find(path: str) -> Any:
    """What a dotted name of torch stands for. AttributeError or ImportError where there is nothing."""
    found, at = importlib.import_module("torch"), "torch"
    for part in path.split(".")[1:]:
        try:
            found = getattr(found, part)
        except AttributeError:  # a module of the name of a function
            home = importlib.import_module(at) if not isinstance(found, type) else found
            found = getattr(home, part) if hasattr(home, part) else importlib.import_module(f"{at}.{part}")
        at += f".{part}"
    return found


def missing(names: Iterable[str]) -> list[str]:
    """Those that do not resolve."""
    from warptape.torch import install

    install()
    out = []
    for name in names:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                find(name)
        except (AttributeError, ImportError):
            out.append(name)
    return out


def used_by_installed() -> dict[str, set[str]]:
    """By name of torch, the installed packages whose sources use it; what is uncertain is left out."""
    from warptape.torch.coverage import coverage

    found: dict[str, set[str]] = {}
    packages = importlib.metadata.packages_distributions()
    for package, homes in sorted(packages.items()):
        spec = importlib.util.find_spec(package) if package.isidentifier() else None
        folders = [*(spec.submodule_search_locations or ())] if spec else []
        if "warptape" in homes or package in ("warptape", "torch", "functorch"):
            continue
        for folder in folders:
            for file in Path(folder).rglob("*.py"):
                try:
                    uses = coverage([str(file)]) if b"torch" in file.read_bytes() else []
                except (OSError, SyntaxError, ValueError, RecursionError):
                    continue
                for use in uses:
                    if use.sure and not use.here:
                        found.setdefault(use.name, set()).add(package)
    return found


def report(file: Path | None) -> int:
    """Prints what is missing and how many; the exit code."""
    reasons = left_out()
    if file is None:
        users = used_by_installed()
        counts = {name: len(who) for name, who in users.items()}
        told = {name: ", ".join(sorted(who)) for name, who in users.items()}
        total = "of the installed packages"
    else:
        counts = {name: count for count, name in listed(file)}
        told, total = {}, f"of {len(counts)}"
    gone = sorted(missing(counts), key=lambda name: (-counts[name], name))
    for name in gone:
        who = f" ({told[name]})" if name in told else ""
        print(f"{counts[name]:4} {name}{who}" + (f": {reasons[name]}" if name in reasons else ""))
    without = [name for name in gone if name not in reasons]
    print(f"{len(gone)} names {total} do not resolve, {len(gone) - len(without)} of them on purpose")
    return int(bool(without))
