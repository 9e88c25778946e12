"""How much of what clients send is taken: JSON, and values whose cost grows with their number."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np

from .errors import ApiError
from .workers import RequestError

MOST_JSON = 8 << 20  # bytes, unless the server says another number
# Of JSON: to parse it holds up everybody, by 0.25 us for a value and 1 us for an object or list.
MOST_VALUES, MOST_CONTAINERS = 1 << 19, 1 << 16
# By field of SamplingParams: how many, and characters of one; steps look at all of them, for each token.
MOST_LISTED = {
    "stop": 64,
    "stop_token_ids": 1024,
    "bad_words": 256,
    "logit_bias": 4096,
    "allowed_token_ids": 1 << 18,
}
MOST_BAD = 1 << 14  # characters of all bad words, which are tokenised between two steps
MOST_CHARACTERS = 4096  # of a stop text, a bad word, a choice, a cache salt
MOST_CHOICES, MOST_GRAMMAR = 4096, 1 << 19  # characters: compiling takes its time
STEP = 0.01  # seconds of writing JSON, after which others have their turn
SLICE = 2048  # values that are written at once


def loads(raw: bytes, most: int = MOST_JSON) -> Any:
    """A body's JSON. Raises: ApiError 413 for more than is taken, ValueError and RecursionError for what is
    none."""
    if len(raw) > most:
        raise ApiError(
            413, f"the body's JSON has {len(raw)} bytes, at most {most} are taken; see --max-json-bytes"
        )
    if _too_many(raw) and _too_many(_without_texts(raw)):
        raise ApiError(
            413,
            f"the body's JSON has more than {MOST_VALUES} values, or {MOST_CONTAINERS} objects and lists: "
            "send less in one request",
        )
    return json.loads(raw)


def _too_many(raw: bytes) -> bool:
    containers = raw.count(b"{") + raw.count(b"[")
    return containers > MOST_CONTAINERS or containers + raw.count(b",") > MOST_VALUES


def _without_texts(raw: bytes) -> bytes:
    """JSON without what stands in its texts; by NumPy, which lets others run."""
    plain = np.frombuffer(raw.replace(rb"\\", b"__").replace(rb"\"", b"__"), np.uint8)
    inside = np.bitwise_xor.accumulate(plain == ord('"'))
    return plain[~inside].tobytes()


def bounded(params: dict[str, Any]) -> None:
    """Checks sampling parameters. RequestError for more of something than is taken; wrong types are left to
    SamplingParams."""
    for name, most in MOST_LISTED.items():
        value = params.get(name)
        value = [value] if isinstance(value, str) else value
        if not isinstance(value, (list, tuple, dict)):
            continue
        if len(value) > most:
            raise RequestError(f"{name} may have at most {most} entries, got {len(value)}")
        _check_texts(name, value)
        if name == "bad_words" and sum(len(each) for each in value if isinstance(each, str)) > MOST_BAD:
            raise RequestError(f"bad_words may have at most {MOST_BAD} characters in all")
    wanted = params.get("structured_outputs")
    if not isinstance(wanted, dict):
        return
    choices = wanted.get("choice")
    if isinstance(choices, (list, tuple)) and len(choices) > MOST_CHOICES:
        raise RequestError(
            f"structured_outputs: choice may have at most {MOST_CHOICES} texts, got {len(choices)}"
        )
    size = sum(map(len, _texts(wanted)))
    if size > MOST_GRAMMAR:
        raise RequestError(f"structured_outputs may have at most {MOST_GRAMMAR} characters, got {size}")


def _check_texts(name: str, given: Iterable[object]) -> None:
    for each in given:
        if isinstance(each, str) and len(each) > MOST_CHARACTERS:
            raise RequestError(
                f"{name}: a text may have at most {MOST_CHARACTERS} characters, got {len(each)}"
            )


def _texts(value: Any) -> Iterator[str]:
    """All texts of a value, keys too; of another one a character."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        if isinstance(each, dict):
            waiting += [*each, *each.values()]
        elif isinstance(each, (list, tuple)):
            waiting += each
        else:
            yield each if isinstance(each, str) else "x"


# ---- answers ----


def _pieces(value: Any) -> Iterator[str]:
    """JSON in pieces, none of which takes long."""
    if isinstance(value, dict) and any(isinstance(each, (dict, list)) for each in value.values()):
        mark = "{"
        for key, each in value.items():
            yield f"{mark}{json.dumps(key)}:"
            yield from _pieces(each)
            mark = ","
        yield "}"
    elif isinstance(value, list) and any(isinstance(each, (dict, list)) for each in value):
        mark = "["
        for each in value:
            yield mark
            yield from _pieces(each)
            mark = ","
        yield "]"
    elif isinstance(value, list) and len(value) > SLICE:
        mark = "["
        for at in range(0, len(value), SLICE):
            yield mark + dumped(value[at : at + SLICE])[1:-1]
            mark = ","
        yield "]"
    else:
        yield dumped(value)


def dumped(value: object, ascii: bool = False) -> str:
    """JSON at once. ValueError for NaN.

    Args:
        value: what JSON can hold.
        ascii: whether other characters are escaped.
    """
    return json.dumps(value, ensure_ascii=ascii, allow_nan=False, separators=(",", ":"))


async def dumps(value: object) -> bytes:
    """JSON in UTF-8, as starlette writes it; others have their turn meanwhile. ValueError for NaN.

    Args:
        value: what JSON can hold.
    """
    parts, began = [], time.monotonic()
    for piece in _pieces(value):
        parts.append(piece)
        if time.monotonic() - began > STEP:
            await asyncio.sleep(0)
            began = time.monotonic()
    return "".join(parts).encode()
