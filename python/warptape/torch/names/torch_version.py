"""The type of `torch.__version__`: text that compares as a version."""

from __future__ import annotations

import re
from typing import Any

_PARTS = re.compile(
    r"v?(\d+(?:\.\d+)*)[-_.]?(a|b|c|rc|alpha|beta|pre|dev)?[-_.]?(\d*)[^+]*(\+.*)?$", re.IGNORECASE
)
_STAGES = {"dev": 0, "a": 1, "alpha": 1, "b": 2, "beta": 2, "c": 3, "rc": 3, "pre": 3, "": 4}


def _key(version: object) -> tuple[Any, ...] | None:
    """Sorts as PEP 440 does: release, stage before it, what is built locally; None for what is no version."""
    if isinstance(version, tuple | list):
        version = ".".join(map(str, version))
    match = _PARTS.match(str(version))
    if match is None:
        return None
    release = [int(n) for n in match[1].split(".")]
    while release and release[-1] == 0:
        release.pop()
    return tuple(release), _STAGES[(match[2] or "").lower()], int(match[3] or 0), match[4] or ""


class TorchVersion(str):
    """A version as text that compares by its numbers: `TorchVersion("2.13.0") > "2.5"`, `>= (2, 1)`.

    >>> torch.torch_version.TorchVersion("2.13.0") > "2.5"
    True
    """

    def _compare(self, other: object, how: str) -> Any:
        key, other_key = _key(self), _key(other)
        if key is None or other_key is None:
            return getattr(str, how)(self, other)
        return getattr(tuple, how)(key, other_key)

    def __lt__(self, other: object) -> bool:
        return self._compare(other, "__lt__")

    def __le__(self, other: object) -> bool:
        return self._compare(other, "__le__")

    def __gt__(self, other: object) -> bool:
        return self._compare(other, "__gt__")

    def __ge__(self, other: object) -> bool:
        return self._compare(other, "__ge__")

    def __eq__(self, other: object) -> bool:
        return self._compare(other, "__eq__")

    def __ne__(self, other: object) -> bool:
        return not self == other

    __hash__ = str.__hash__
