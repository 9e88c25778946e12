"""Checks of what users give, by the annotations of dataclasses."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

MOST_TOKEN = (1 << 31) - 1


def check_types(settings: Any) -> None:
    """TypeError unless fields annotated as int, float or bool, or one of these or None, have such values."""
    for each in fields(settings):
        kind, _, optional = str(each.type).partition(" | ")
        value = getattr(settings, each.name, None)
        if kind not in ("int", "float", "bool") or (value is None and optional == "None"):
            continue
        is_int = isinstance(value, int) and not isinstance(value, bool) and abs(value) < 1 << 64
        if kind == "int":
            fits = is_int
        elif kind == "float":
            fits = is_int or isinstance(value, float)
        else:
            fits = isinstance(value, bool)
        if not fits:
            raise TypeError(f"{each.name} must be {each.type}, got {value!r:.100}")


def check_at_least(settings: Any, low: int, *names: str) -> None:
    """ValueError unless these are None or at least `low`."""
    for name in names:
        value = getattr(settings, name)
        if value is not None and value < low:
            raise ValueError(f"{name} must be at least {low}, got {value}")


def check_tokens(what: str, tokens: object) -> list[int]:
    """Token ids as a list. TypeError for what is none, IndexError for what can be in no vocabulary."""
    if not isinstance(tokens, (list, tuple)) or not all(type(t) is int for t in tokens):
        raise TypeError(f"{what} must be a list of token ids, got {tokens!r:.100}")
    for token in tokens:
        if not 0 <= token <= MOST_TOKEN:
            raise IndexError(f"{what}: token {token} is out of any vocabulary")
    return list(tokens)
