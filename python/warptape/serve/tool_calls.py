"""Calls of tools in a model's text: Hermes' `<tool_call>{..}</tool_call>`, bare objects with a name and
parameters (Llama), Mistral's `[TOOL_CALLS]` before a list of objects, or a name and its arguments, the same
behind the marks of Granite, Phi-4 and Nemotron, and Qwen3-Coder's `<function=f><parameter=x>`.

A call is one as soon as its name and the beginning of its arguments are there; what follows are its
arguments, as the model writes them. So the pieces of a stream, joined, are the call of the whole answer,
wherever it is cut.
"""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Collection
from typing import Any

from .reasoning import overlap

OPEN, CLOSE, PYTHON_TAG = "<tool_call>", "</tool_call>", "<|python_tag|>"
MISTRAL = "[TOOL_CALLS]"
# What stands before a list of calls, to the end of the text; and what may end one.
LISTS = (MISTRAL, "<|tool_call|>", "<TOOLCALL>")
_ENDS = ("<|/tool_call|>", "</TOOLCALL>")
_LIST, _MAYBE_LIST = re.compile(r"\[\s*\{"), re.compile(r"\[\s*")
# How a call begins, up to its arguments: as an object, a name or a function.
_OBJECT = re.compile(
    r'\{\s*"name"\s*:\s*("(?:[^"\\]|\\.){0,256}")\s*,\s*"(?:arguments|parameters)"\s*:\s*(?=\S)', re.S
)
_NAMED = re.compile(r"([\w.-]+)(?:\[CALL_ID\]\w*)?(?:\[ARGS\])?\s*(?=\{)")
_MAYBE_NAMED = re.compile(r"[\w.-]+(?:\[[A-Z_]*(?:\]\w*)?)*\s*")
_FUNCTION = re.compile(r"<function=([\w.-]+)>")
_MAYBE_FUNCTION = re.compile(r"<function=[\w.-]*")
_PARAMETER = re.compile(r"\s*<parameter=([\w.-]+)>\n?(.*?)\n?</parameter>", re.S)
_MAYBE_PARAMETER = re.compile(r"\s*<parameter=[\w.-]*(?:>.*)?", re.S)
_END_OF_PARAMETER, _END_OF_FUNCTION = "</parameter>", "</function>"
_TURNS = re.compile(rf'[{{}}\[\]"\\]|{CLOSE}')  # what a scan of JSON looks at


def _call_of(value: object) -> tuple[str, str] | None:
    """Name and arguments of a call, None for what is none."""
    if not isinstance(value, dict) or not isinstance(value.get("name"), str):
        return None
    arguments = value.get("arguments", value.get("parameters"))
    if isinstance(arguments, str):
        return value["name"], arguments
    return (value["name"], _json(arguments)) if isinstance(arguments, dict) else None


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False)


def made(name: str, arguments: str) -> dict[str, Any]:
    """A call with an id of its own.

    Args:
        name: of the function.
        arguments: JSON text.
    """
    return {
        "id": f"call_{uuid.uuid4().hex[:24]}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    }


class _Scan:
    """Finds the end of a JSON object that comes in parts. CLOSE outside of its texts ends it, too.

    Args:
        depth: of objects that have begun before.
    """

    def __init__(self, depth: int = 0) -> None:
        self._depth, self._inside, self._escaped = depth, False, False
        self.done = False

    def take(self, text: str) -> int:
        """How many characters of the next part are the object's; the others are to come again.

        Args:
            text: of the model.
        """
        at = 0
        if self._escaped and text:
            at, self._escaped = 1, False
        while turn := _TURNS.search(text, at):
            what, at = turn[0], turn.end()
            if what == '"':
                self._inside = not self._inside
            elif self._inside:
                if what == "\\":
                    self._escaped, at = at == len(text), at + 1
            elif what == CLOSE:
                self.done = True
                return turn.start()
            elif what in "{[":
                self._depth += 1
            elif what in "}]":
                self._depth -= 1
                if self._depth <= 0:
                    self.done = True
                    return at
        return len(text) - (0 if self._inside else overlap(text, CLOSE))


class ToolParser:
    """Splits a growing text into content and calls; what may become a call is held back until it is clear.

    Args:
        names: of the functions that may be called; None: any. What calls another one is content.
        most: calls, those beyond are left out.
    """

    def __init__(self, names: Collection[str] | None = None, most: int | None = None) -> None:
        self._names, self._most = names, most
        self._held = self._space = ""  # text; white space, which belongs to a call if one follows
        self._begun = False  # something was said: a bare JSON object is no call any more
        self._quiet = True  # nothing but white space since the beginning or the last call
        # Reads what is held, and says whether it got further.
        self._goes_on: Callable[[bool], bool] = self._text
        self._undo: str | None = None  # a mark that is content if no call follows
        self._tagged = self._outer = self._left_out = self._first = False
        self._scan: _Scan | None = None
        self._scanned = 0
        self._content: list[str] = []
        self._pieces: list[dict[str, Any]] = []
        self.calls: list[dict[str, Any]] = []

    def feed(self, text: str, last: bool = False) -> tuple[str, list[dict[str, Any]]]:
        """Takes the next part; the content, and the pieces of calls, as OpenAI's deltas have them: with a
        call's index, its id and name in the first piece, and what its arguments grow by.

        Args:
            text: of the answer.
            last: whether nothing follows.
        """
        self._held += text
        self._content, self._pieces = [], []
        while self._goes_on(last):
            pass
        if last and self._quiet and not self.calls:
            self._content.append(self._space)
        return "".join(self._content), self._pieces

    def _say(self, text: str) -> None:
        if self._quiet:
            text = self._space = self._space + text
            if not text.strip():
                return
            text = text.lstrip("\n") if self.calls else text  # a call ends with its line
            self._space, self._quiet = "", False
        self._content.append(text)
        self._begun = self._begun or bool(text.strip())

    def _call(self, name: str, arguments: str = "") -> None:
        """Begins a call."""
        self._space, self._quiet, self._begun, self._undo = "", True, True, None
        self._left_out = self._most is not None and len(self.calls) >= self._most
        if not self._left_out:
            self.calls.append(made(name, ""))
            piece = {"index": len(self.calls) - 1, **self.calls[-1]}
            self._pieces.append({**piece, "function": {"name": name, "arguments": ""}})
        self._grow(arguments)

    def _grow(self, arguments: str) -> None:
        """More of the arguments of the last call."""
        if self._left_out or not arguments:
            return
        index = len(self.calls) - 1
        self.calls[index]["function"]["arguments"] += arguments
        if not self._pieces or self._pieces[-1]["index"] != index:
            self._pieces.append({"index": index, "function": {"arguments": ""}})
        self._pieces[-1]["function"]["arguments"] += arguments

    # ---- outside of calls ----

    def _text(self, last: bool) -> bool:
        held = self._held
        start = held.lstrip()
        if not self._begun and not last and (PYTHON_TAG.startswith(start) or _MAYBE_LIST.fullmatch(start)):
            return False
        if not self._begun and (_LIST.match(start) or start.startswith(("{", PYTHON_TAG))):
            self._say(held[: len(held) - len(start)])
            self._undo = PYTHON_TAG if start.startswith(PYTHON_TAG) else ""
            self._held, self._goes_on = start.removeprefix(PYTHON_TAG), self._list
            return True
        places = {mark: held.find(mark) for mark in (OPEN, *LISTS)}
        marks = [(at, mark) for mark, at in places.items() if at >= 0]
        if not marks:
            keep = 0 if last else max(overlap(held, mark) for mark in places)
            self._say(held[: len(held) - keep])
            self._held = held[len(held) - keep :]
            return False
        at, mark = min(marks)
        self._say(held[:at])
        self._held, self._undo = held[at + len(mark) :], mark
        self._goes_on = self._tag if mark == OPEN else self._list
        return True

    def _no_call(self, at: int) -> bool:
        """What is held, up to there and one character at least, is no call."""
        if self._undo is not None:
            at = max(at, 1)
            self._say(self._undo + self._held[:at])
            self._begun = True
        self._held, self._undo, self._scan, self._goes_on = self._held[at:], None, None, self._text
        return True

    # ---- where a call may begin ----

    def _tag(self, last: bool) -> bool:
        """Behind OPEN."""
        held = self._held
        at = len(held) - len(held.lstrip())
        self._tagged = True
        function = _FUNCTION.match(held, at)
        if function and self._offered(function[1]):
            self._call(function[1])
            self._held, self._goes_on, self._first = held[function.end() :], self._parameters, True
            return True
        if not last and (
            at == len(held) or _MAYBE_FUNCTION.fullmatch(held, at) or "<function=".startswith(held[at:])
        ):
            return False
        begun = self._object(at, last) if held.startswith("{", at) else False
        return self._no_call(at) if begun is False else bool(begun)

    def _list(self, last: bool) -> bool:
        """Before a call of a list, or behind it."""
        held, at = self._held, 0
        self._tagged = False
        while at < len(held):
            mark = next((each for each in (*LISTS, *_ENDS) if held.startswith(each, at)), None)
            if mark is None and not (held[at].isspace() or held[at] in ";,[]"):
                break
            if mark is None and not last and any(each.startswith(held[at:]) for each in (*LISTS, *_ENDS)):
                return False
            at += len(mark or " ")
        if at == len(held):
            return self._no_call(at) if last and (held or self._undo) else False
        if not last and any(each.startswith(held[at:]) for each in (*LISTS, *_ENDS)):
            return False
        begun = self._object(at, last) if held[at] == "{" else self._named(at, last)
        return self._no_call(at) if begun is False else bool(begun)

    def _offered(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _named(self, at: int, last: bool) -> bool | None:
        """Whether a name with arguments stands there; None: it is not clear yet."""
        match = _NAMED.match(self._held, at)
        if match is None:
            return None if not last and _MAYBE_NAMED.fullmatch(self._held, at) else False
        if not self._offered(match[1]):
            return False
        self._call(match[1])
        self._begin_arguments(match.end(), False)
        return True

    def _begin_arguments(self, at: int, outer: bool) -> None:
        self._held, self._outer, self._scan = self._held[at:], outer, _Scan()
        self._goes_on = self._arguments

    def _object(self, at: int, last: bool) -> bool | None:
        """Whether an object that is a call stands there; None: it is not clear yet."""
        held = self._held
        match = _OBJECT.match(held, at)
        try:
            if match is not None and held[match.end()] == "{":
                name = json.loads(match[1])
                if not self._offered(name):
                    return False
                self._call(name)
                self._begin_arguments(match.end(), True)
                return True
            if self._scan is None:  # one that is clear when all of it is there
                self._scan, self._scanned = _Scan(), at
            self._scanned += self._scan.take(held[self._scanned :])
            if not self._scan.done:
                return False if last else None
            call = _call_of(json.loads(held[at : self._scanned]))
        except (ValueError, RecursionError):
            return False
        if call is None or not self._offered(call[0]):
            return False
        self._call(*call)
        self._held, self._scan, self._goes_on = held[self._scanned :], None, self._after
        return True

    # ---- within a call ----

    def _arguments(self, last: bool) -> bool:
        assert self._scan is not None
        size = self._scan.take(self._held)
        size = size if self._scan.done or not last else len(self._held)
        self._grow(self._held[:size])
        self._held = self._held[size:]
        if not self._scan.done and not last:
            return False
        self._scan = _Scan(1) if self._outer else None
        self._goes_on = self._rest if self._outer else self._after
        return True

    def _rest(self, last: bool) -> bool:
        """What an object has behind the arguments."""
        assert self._scan is not None
        self._held = self._held[self._scan.take(self._held) :]
        if not self._scan.done and not last:
            return False
        self._held = self._held if self._scan.done else ""
        self._scan, self._goes_on = None, self._after
        return True

    def _parameters(self, last: bool) -> bool:
        """Of a function; each is a piece, for its value is JSON only when all of it is there."""
        held = self._held
        if _END_OF_PARAMETER in held and (match := _PARAMETER.match(held)):
            try:
                value = _json(json.loads(match[2]))
            except (ValueError, RecursionError):  # a text
                value = _json(match[2])
            self._grow(f"{'{' if self._first else ', '}{_json(match[1])}: {value}")
            self._held, self._first = held[match.end() :], False
            return True
        rest = held.lstrip()
        marks = (_END_OF_FUNCTION, CLOSE, "<parameter=")
        begun = any(each.startswith(rest) and each != rest for each in marks)
        if not last and (begun or _MAYBE_PARAMETER.fullmatch(held)):
            return False
        self._grow("{}" if self._first else "}")
        cut_off = last and _MAYBE_PARAMETER.fullmatch(held)
        self._held = "" if cut_off else rest.removeprefix(_END_OF_FUNCTION)
        self._goes_on = self._after
        return True

    def _after(self, last: bool) -> bool:
        if not self._tagged:
            self._goes_on = self._list
            return True
        rest = self._held.lstrip()
        if not last and len(rest) < len(CLOSE) and CLOSE.startswith(rest):
            return False
        if rest.startswith(CLOSE):
            self._held = rest[len(CLOSE) :]
        self._goes_on = self._text
        return True


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
