"""Calls of tools in a model's text: Hermes' `<tool_call>{..}</tool_call>`, and bare objects with a name and
parameters, Llama's form."""

from __future__ import annotations

import json
import uuid
from typing import Any

OPEN, CLOSE, PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"


def _call_of(value: Any) -> dict[str, Any] | None:
    """OpenAI's form of a call, None for what is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if arguments is None or not isinstance(arguments, (dict, str)):
        return None
    text = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    return made(value["name"], text)


def made(name: str, arguments: str) -> dict[str, Any]:
    """A call with an id of its own."""
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


class ToolParser:
    """Splits a growing text into content and calls; what may become a call is held back until it is clear."""

    def __init__(self) -> None:
        self._held = ""
        self._begun = False  # something was said: a bare JSON object is no call any more
        self._after = False
        self.calls: list[dict[str, Any]] = []

    def feed(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Takes the next part; the content and the calls that it completes."""
        self._held += text
        content, calls = "", []
        while True:
            if self._after:  # a call ends with its line
                self._held = self._held.lstrip("\n")
            if not self._held:
                break
            more, found, goes_on = self._next(last)
            content += more
            calls += found
            self._after = bool(found) or (self._after and not more)
            if not goes_on:
                break
        self._begun = self._begun or bool(content.strip())
        self.calls += calls
        return content, calls

    def _next(self, last: bool) -> tuple[str, list[dict[str, Any]], bool]:
        held = self._held
        start = held.lstrip()
        if not self._begun and (start.startswith(("{", PYTHON_TAG)) or PYTHON_TAG.startswith(start[:14])):
            return self._bare(start, last)
        at = held.find(OPEN)
        if at < 0:
            keep = 0 if last else _overlap(held, OPEN)
            self._held = held[len(held) - keep :]
            return held[: len(held) - keep], [], False
        if at > 0:
            self._held = held[at:]
            before = held[:at]
            return (before if before.strip() else ""), [], True
        end = held.find(CLOSE)
        if end < 0 and not last:
            return "", [], False
        inside = held[len(OPEN) : end if end >= 0 else len(held)]
        self._held = held[end + len(CLOSE) :] if end >= 0 else ""
        try:
            call = _call_of(json.loads(inside))
        except ValueError:
            call = None
        return ("", [call], True) if call else (OPEN + inside + (CLOSE if end >= 0 else ""), [], True)

    def _bare(self, start: str, last: bool) -> tuple[str, list[dict[str, Any]], bool]:
        """Objects alone, which ; or a line's end may part; clear at the end of the text."""
        if not last:
            return "", [], False
        text = start.removeprefix(PYTHON_TAG).strip()
        calls, decoder, at = [], json.JSONDecoder(), 0
        try:
            while at < len(text):
                value, at = decoder.raw_decode(text, at)
                call = _call_of(value)
                if call is None:
                    raise ValueError
                calls.append(call)
                while at < len(text) and text[at] in "; \n\r\t,":
                    at += 1
        except ValueError:
            calls = []
        held, self._held = self._held, ""
        return ("", calls, False) if calls else (held, [], False)


def _overlap(text: str, mark: str) -> int:
    """How many of the last characters may be the beginning of a mark."""
    for size in range(min(len(mark) - 1, len(text)), 0, -1):
        if mark.startswith(text[-size:]):
            return size
    return 0


def schema_of(tools: list[dict[str, Any]], choice: Any) -> dict[str, Any] | None:
    """What the text must match so that it is the call that tool_choice asks for; None where it need not be.

    Raises: ValueError for a tool that is not there.
    """
    if choice in (None, "auto", "none"):
        return None
    functions = [tool["function"] for tool in tools]
    if choice != "required":
        name = choice["function"]["name"]
        functions = [f for f in functions if f["name"] == name]
        if not functions:
            raise ValueError(f"tool_choice names {name!r}, which is none of the tools")
    options = [
        {
            "type": "object",
            "properties": {
                "name": {"const": f["name"]},
                "arguments": f.get("parameters") or {"type": "object"},
            },
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for f in functions
    ]
    return options[0] if len(options) == 1 else {"anyOf": options}
