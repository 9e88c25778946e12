"""Calls of tools in a model's text: Hermes' `<tool_call>{..}</tool_call>`, bare objects with a name and
parameters (Llama), and Mistral's `[TOOL_CALLS]` before a list of objects, or a name and its arguments."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Collection
from typing import Any

OPEN, CLOSE, PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
MISTRAL = "[TOOL_CALLS]"
_BETWEEN = re.compile(r"(?:[\s;,]|\[TOOL_CALLS\])*")
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_LIST = re.compile(r"\[\s*(?:\{|$)")


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
    """Splits a growing text into content and calls; what may become a call is held back until it is clear.

    Args:
        names: of the functions that may be called; None: any. What calls another one is content.
        most: calls, those beyond are left out.
    """

    def __init__(self, names: Collection[str] | None = None, most: int | None = None) -> None:
        self._names, self._most = names, most
        self._held = ""
        self._begun = False  # something was said: a bare JSON object is no call any more
        self._quiet = True  # nothing but white space since the beginning or the last call
        self.calls: list[dict[str, Any]] = []

    def feed(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Takes the next part; the content and the calls that it completes."""
        self._held += text
        content, calls = "", []
        while self._held:
            more, found, goes_on = self._next(last)
            at_end = last and not goes_on and not found
            if self._quiet and (more.strip() or (more and at_end and not self.calls)):
                more = more.lstrip("\n") if self.calls else more  # a call ends with its line
                self._quiet = False
            elif self._quiet and more:  # white space, which belongs to a call if one follows
                if not (found or goes_on or last):
                    self._held = more + self._held
                more = ""
            content += more
            if found:
                room = None if self._most is None else max(self._most - len(self.calls), 0)
                calls += found[:room]
                self.calls += found[:room]
                self._quiet = True
            if not goes_on:
                break
        self._begun = self._begun or bool(content.strip()) or bool(self.calls)
        return content, calls

    def _next(self, last: bool) -> tuple[str, list[dict[str, Any]], bool]:
        held = self._held
        start = held.lstrip()
        if not self._begun and (_LIST.match(start) or start.startswith(("{", PYTHON_TAG)) or
                                PYTHON_TAG.startswith(start[:14])):  # fmt: skip
            return self._at_end(held, start.removeprefix(PYTHON_TAG), last)
        places = {mark: held.find(mark) for mark in (OPEN, MISTRAL)}
        found = [(at, mark) for mark, at in places.items() if at >= 0]
        if not found:
            keep = 0 if last else max(_overlap(held, OPEN), _overlap(held, MISTRAL))
            self._held = held[len(held) - keep :]
            return held[: len(held) - keep], [], False
        at, mark = min(found)
        if at > 0:
            self._held = held[at:]
            return held[:at], [], True
        return self._at_end(held, held, last) if mark == MISTRAL else self._tagged(last)

    def _tagged(self, last: bool) -> tuple[str, list[dict[str, Any]], bool]:
        """Between OPEN and CLOSE, which an argument's text may have, too."""
        held, end = self._held, self._held.find(CLOSE)
        while True:
            if end < 0 and not last:
                return "", [], False
            inside = held[len(OPEN) : end if end >= 0 else len(held)]
            later = held.find(CLOSE, end + 1) if end >= 0 else -1
            try:
                call = self._call(json.loads(inside))
                break
            except json.JSONDecodeError as error:
                call = None
                if not error.msg.startswith("Unterminated string") or end < 0 or (later < 0 and last):
                    break
                end = later
            except ValueError:
                call = None
                break
        self._held = held[end + len(CLOSE) :] if end >= 0 else ""
        return ("", [call], True) if call else (OPEN + inside + (CLOSE if end >= 0 else ""), [], True)

    def _at_end(self, held: str, text: str, last: bool) -> tuple[str, list[dict[str, Any]], bool]:
        """Calls alone, which is clear when all is there."""
        if not last:
            return "", [], False
        self._held = ""
        calls = self._listed(text)
        return ("", calls, False) if calls else (held, [], False)

    def _listed(self, text: str) -> list[dict[str, Any]]:
        """Objects, lists of them, and names with arguments, which ; a line's end or Mistral's mark may part;
        [] where there is something else."""
        calls, decoder, at = list[Any](), json.JSONDecoder(), 0
        try:
            while (at := _BETWEEN.match(text, at).end()) < len(text):  # type: ignore[union-attr]
                named = _NAMED.match(text, at)
                value, at = decoder.raw_decode(text, named.end() if named else at)
                values = value if isinstance(value, list) else [value]
                if named:
                    values = [{"name": named[1], "arguments": value}]
                calls += map(self._call, values)
        except (ValueError, RecursionError):
            return []
        return [] if None in calls else calls

    def _call(self, value: Any) -> dict[str, Any] | None:
        call = _call_of(value)
        offered = call is not None and (self._names is None or call["function"]["name"] in self._names)
        return call if offered else None


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
