"""Which tests a run leaves out: three tiers, by two lists of files.

    pytest tests             all but what takes long: what every change has to pass
    pytest tests -m slow     the rest
    pytest tests -m quick    a sample of each area, at most three minutes on two cores

quick_tier.txt names files, and of which one test in how many is quick. slow_tier.txt names files or single
tests, and of which one test in how many is *not* slow (without a number: none). A file that the command names
runs whole.
"""

from __future__ import annotations

from pathlib import Path

import pytest

TESTS = Path(__file__).parent


def listed(text: str, default: int) -> dict[str, int]:
    """Files below tests/, or tests in them (`file.py::test_name`), with the number that stands behind.

    Args:
        text: lines of `path` or `path number`; a `#` begins a comment.
        default: what a line without a number stands for.

    Raises:
        ValueError: a line is neither, or names a path twice.
    """
    steps: dict[str, int] = {}
    for line in text.splitlines():
        words = line.partition("#")[0].split()
        if not words:
            continue
        if len(words) > 2 or words[0] in steps:
            raise ValueError(f"list of a tier: {line!r} is not `path`, `path number`, or is there twice")
        steps[words[0]] = int(words[1]) if len(words) == 2 else default
    return steps


def read(name: str, default: int) -> dict[str, int]:
    return listed((TESTS / f"{name}_tier.txt").read_text(), default)


def chosen(items: list[pytest.Item], steps: dict[str, int]) -> dict[pytest.Item, bool]:
    """The items that a list names, and whether each is the first of its step."""
    seen: dict[str, int] = {}
    found = {}
    for item in items:
        file = item.path.relative_to(TESTS).as_posix() if item.path.is_relative_to(TESTS) else ""
        function = f"{file}::{item.name.partition('[')[0]}"
        name = function if function in steps else file
        if name in steps and not item.get_closest_marker("parity"):
            found[item] = steps[name] > 0 and seen.get(name, 0) % steps[name] == 0
            seen[name] = seen.get(name, 0) + 1
    return found


class Tiers:
    """Marks tests as quick or slow, and leaves out those that were not asked for."""

    def __init__(self, config: pytest.Config) -> None:
        self.only_quick = config.option.markexpr.strip() == "quick"
        self.leave_slow = not config.option.markexpr and not config.option.keyword
        self.quick, self.slow = read("quick", 1), read("slow", 0)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        """A quick run collects the listed files alone: collecting all takes half a minute."""
        if not self.only_quick or not collection_path.name.startswith("test_"):
            return None
        name = collection_path.relative_to(TESTS).as_posix() if collection_path.is_relative_to(TESTS) else ""
        return True if name not in self.quick else None

    @pytest.hookimpl(tryfirst=True)
    def pytest_collection_modifyitems(self, config: pytest.Config, items: list[pytest.Item]) -> None:
        for item, is_quick in chosen(items, self.quick).items():
            if is_quick:
                item.add_marker("quick")
        for item, is_kept in chosen(items, self.slow).items():
            if not is_kept:
                item.add_marker("slow")
        if self.leave_slow and all(Path(arg).is_dir() for arg in config.args):
            slow = [item for item in items if item.get_closest_marker("slow")]
            config.hook.pytest_deselected(items=slow)
            items[:] = [item for item in items if not item.get_closest_marker("slow")]
