"""Conversations to text by a model's Jinja template, as transformers renders them.

Nothing of warptape is imported: the server runs this file as a process, whose memory is limited and which is
ended where a template takes too long. Messages there are a length (u32, little-endian) and JSON: {"template",
"messages", "values", "continued", "most"} in, {"text"} or {"error"} out.
"""

from __future__ import annotations

import json
import os
import re
import struct
import sys
from collections import OrderedDict
from datetime import datetime
from typing import Any

MOST_PRODUCT = 1 << 24  # of numbers and sizes that a template multiplies
MOST_BITS = 1 << 12  # of a power
MOST_WIDTH = 1 << 12  # of a field of %
MOST_KEPT = 16  # templates
MEMORY = 512 << 20  # bytes, beside what a process has at its beginning
LENGTH = struct.Struct("<I")
# Where the last message of a conversation ends; no text has these. Templates may take off the space.
_HERE, _SPACE = "\ue000continued\ue001", " "
_WIDTH = re.compile(r"\d+|\*")
_REASONING = ("reasoning_content", "thinking", "reasoning")  # names of one field, the first is templates' own


class TemplateError(ValueError):
    """A template that is none, or refuses a conversation.

    The text is the template's own where it called raise_exception.
    """


def _too_large(operator: str, left: Any, right: Any) -> bool:
    """Whether one operation, which no time limit ends, would fill the memory."""
    if operator == "**":
        bits = left.bit_length() if isinstance(left, int) else 64
        return isinstance(right, int) and bits * abs(right) > MOST_BITS
    if operator == "%":
        fields = _WIDTH.findall(left) if isinstance(left, str) else ()
        return any(each == "*" or len(each) > 9 or int(each) > MOST_WIDTH for each in fields)
    sizes = [abs(x) if isinstance(x, (int, float)) else len(x) for x in (left, right)]
    return sizes[0] * sizes[1] > MOST_PRODUCT


def _environment() -> Any:
    try:
        import jinja2.ext
        import jinja2.sandbox
    except ImportError as error:
        raise ImportError("chat templates need jinja2: pip install 'warptape[inference]'") from error

    class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset({"*", "**", "%"})

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            if _too_large(operator, left, right):
                raise jinja2.TemplateRuntimeError(f"{operator} of what is too large")
            return super().call_binop(context, operator, left, right)

    class Generation(jinja2.ext.Extension):
        """{% generation %} .. {% endgeneration %} mark what the model says; its text stands as it is."""

        tags = {"generation"}

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            # A scope of its own, as a macro's body has it.
            return jinja2.nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

        def _body(self, caller: Any) -> Any:
            return caller()

    def refuse(text: str) -> None:
        raise jinja2.TemplateError(text)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: Any = None,
        sort_keys: bool = False,
    ) -> str:
        """As models were trained: no escapes for HTML."""
        return json.dumps(
            value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
        )

    environment = Environment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, jinja2.ext.loopcontrols]
    )
    environment.globals["raise_exception"] = refuse
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    environment.filters["tojson"] = tojson
    return environment


class Renderer:
    """Renders conversations, and keeps the last templates compiled.

    Templates run in a sandbox of jinja2.
    """

    def __init__(self) -> None:
        self._environment: Any = None
        self._compiled: OrderedDict[str, Any] = OrderedDict()

    def _template(self, text: str) -> Any:
        compiled = self._compiled.get(text)
        if compiled is None:
            if self._environment is None:
                self._environment = _environment()
            compiled = self._compiled[text] = self._environment.from_string(text)
        self._compiled.move_to_end(text)
        if len(self._compiled) > MOST_KEPT:
            self._compiled.popitem(last=False)
        return compiled

    def render(
        self, template: str, messages: list[dict[str, Any]], values: dict[str, Any], continued: bool = False
    ) -> str:
        """The text of a conversation.

        Args:
            values: what the template finds by name; `tools` and `documents` are None where they are left out.
            continued: the text ends with the last message's content.

        Raises: TemplateError.
        """
        converted = [_message(each) for each in messages]
        if continued:
            converted[-1:] = [_marked(converted[-1] if converted else {})]
        try:
            text: str = self._template(template).render(
                messages=converted, **{"tools": None, "documents": None, **values}
            )
        except (MemoryError, ImportError):
            raise
        except RecursionError as error:
            raise TemplateError("the chat template refuses these messages: it nests too deeply") from error
        except Exception as error:  # of the template's code: anything
            what = "is none" if type(error).__name__ == "TemplateSyntaxError" else "refuses these messages"
            raise TemplateError(f"the chat template {what}: {error!s:.1000}") from error
        return _until_here(text) if continued else text


def _message(message: Any) -> dict[str, Any]:
    """Without keys that are None, which many templates write out; what was thought has all its names."""
    if not isinstance(message, dict):
        raise TemplateError(f"a message must be a dict, got {message!r:.100}")
    out = {key: value for key, value in message.items() if value is not None}
    thought = next((out[key] for key in _REASONING if key in out), None)
    return out if thought is None else {"thinking": thought, **out, "reasoning_content": thought}


def _marked(message: dict[str, Any]) -> dict[str, Any]:
    content = message.get("content")
    if not isinstance(content, str):
        raise TemplateError(
            f"continue_final_message: the last message's content must be text, got {content!r:.100}"
        )
    return {**message, "content": content + _HERE + _SPACE}


def _until_here(text: str) -> str:
    before, marker, rest = text.rpartition(_HERE)
    if not marker:
        raise TemplateError("continue_final_message: the chat template leaves out the last message's content")
    return before if rest.startswith(_SPACE) else before.rstrip()  # the template takes off spaces at its end


# ---- the server's process ----


def _limit_memory() -> None:
    import resource

    with open("/proc/self/statm") as file:
        now = int(file.read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (now + MEMORY, now + MEMORY))


def _answer(renderer: Renderer, request: dict[str, Any]) -> dict[str, Any]:
    try:
        given = (request["template"], request["messages"], request["values"], request["continued"])
        text = renderer.render(*given)
        if len(text) > request["most"]:
            raise TemplateError(
                f"the conversation has {len(text)} characters, at most {request['most']} are taken"
            )
    except TemplateError as error:
        return {"error": str(error)}
    except MemoryError:
        return {"error": "the chat template refuses these messages: their text is too large"}
    return {"text": text}


def main() -> None:
    """Renders what comes over standard input until that ends; the first answer says that it is ready."""
    out = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else writes there
    renderer = Renderer()
    renderer.render("", [], {})
    _limit_memory()
    answer: dict[str, Any] = {"text": ""}
    while True:
        data = json.dumps(answer).encode()
        out.write(LENGTH.pack(len(data)) + data)
        out.flush()
        del data, answer
        head = sys.stdin.buffer.read(LENGTH.size)
        if len(head) < LENGTH.size:
            return
        answer = _answer(renderer, json.loads(sys.stdin.buffer.read(*LENGTH.unpack(head))))


if __name__ == "__main__":
    main()
