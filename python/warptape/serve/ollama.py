"""Ollama's API: /api/chat, /api/generate, /api/tags, /api/show, /api/ps and /api/version."""

from __future__ import annotations

import time
from datetime import datetime, timezone
from typing import Any

from .dialects import Dialect, object_of, parts_of
from .errors import ApiError
from .limits import dumped
from .openai_requests import refuse, take

# Its options, by our names; those of loading a model (num_ctx, num_gpu ..) change nothing here.
OPTIONS = {"temperature": "temperature", "top_p": "top_p", "top_k": "top_k", "min_p": "min_p", "seed": "seed",
           "stop": "stop", "num_predict": "max_tokens", "repeat_penalty": "repetition_penalty",
           "presence_penalty": "presence_penalty", "frequency_penalty": "frequency_penalty"}  # fmt: skip


def now() -> str:
    """A time, as Ollama writes it."""
    return datetime.now(timezone.utc).isoformat().replace("+00:00", "Z")


def bare(name: str) -> str:
    """A model's name without the tag that Ollama's clients put behind it.

    Args:
        name: of a request.
    """
    return name.removesuffix(":latest")


def _messages(given: Any) -> list[dict[str, Any]]:
    out = []
    for i, message in enumerate(given if isinstance(given, list) else ()):
        if not isinstance(message, dict):
            raise refuse(f"messages[{i}] must be an object", "messages")
        if message.get("images"):
            raise refuse(f"messages[{i}]: models here read text, not images", "messages")
        kept = {
            name: message[name] for name in ("role", "content", "tool_calls") if message.get(name) is not None
        }
        if kept.get("role") == "tool":
            kept["tool_call_id"] = message.get("tool_name") or message.get("tool_call_id") or ""
        out.append(kept)
    return out


class Talk(Dialect):
    """/api/chat, whose stream has a line of JSON for each part.

    Args:
        generate: /api/generate, which has a prompt in place of messages.
    """

    media_type = "application/x-ndjson"

    def __init__(self, generate: bool = False) -> None:
        self._generate = generate
        self._start = time.monotonic_ns()
        self._first = 0  # when the first token came
        self._model = ""
        self._reason = "stop"
        self._usage: dict[str, Any] = {}
        self._calls: list[dict[str, Any]] = []  # of a stream, whose clients take whole ones alone

    def read(self, body: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        options = take(body, "options", dict, {})
        out = {field: options[name] for name, field in OPTIONS.items() if options.get(name) is not None}
        if (take(out, "max_tokens", int) or 1) < 1:  # -1: without an end, -2: what fits
            del out["max_tokens"]
        self._model = take(body, "model", str, "")
        out.update(model=bare(self._model), stream=take(body, "stream", bool, True))
        if self._generate:
            system = take(body, "system", str)
            if take(body, "images", list):
                raise refuse("models here read text, not images", "images")
            if take(body, "suffix", str):
                raise refuse("suffix: models here continue text, they do not insert", "suffix")
            messages = [{"role": "user", "content": take(body, "prompt", str, "")}]
            out["messages"] = [{"role": "system", "content": system}, *messages] if system else messages
        else:
            out["messages"] = _messages(body.get("messages"))
        if tools := take(body, "tools", list):
            out["tools"] = tools
        wanted = body.get("format")
        if wanted == "json":
            out["response_format"] = {"type": "json_object"}
        elif isinstance(wanted, dict):
            schema = {"name": "answer", "schema": wanted}
            out["response_format"] = {"type": "json_schema", "json_schema": schema}
        think = body.get("think")
        if isinstance(think, bool):
            out["chat_template_kwargs"] = {"enable_thinking": think}
        elif isinstance(think, str):
            out["reasoning_effort"] = think
        return out

    def _line(self, delta: dict[str, Any], done: bool = False) -> dict[str, Any]:
        reasoning, text, calls = "", "", []
        for kind, value in parts_of(delta):
            if kind == "call":
                function = value["function"]
                calls.append(
                    {"function": {"name": function["name"], "arguments": object_of(function["arguments"])}}
                )
            elif kind == "reasoning":
                reasoning += value
            else:
                text += value
        out: dict[str, Any] = {"model": self._model, "created_at": now()}
        more: dict[str, Any] = {"thinking": reasoning} if reasoning else {}
        if self._generate:
            out.update(response=text, **more)
        else:
            more |= {"tool_calls": calls} if calls else {}
            out["message"] = {"role": "assistant", "content": text, **more}
        return {**out, "done": done}

    def _end(self) -> dict[str, Any]:
        end = time.monotonic_ns()
        first = self._first or end
        return {
            "done_reason": "length" if self._reason == "length" else "stop",
            "total_duration": end - self._start,
            "load_duration": 0,
            "prompt_eval_count": self._usage.get("prompt_tokens", 0),
            "prompt_eval_duration": first - self._start,
            "eval_count": self._usage.get("completion_tokens", 0),
            "eval_duration": end - first,
        }

    def whole(self, answer: dict[str, Any]) -> dict[str, Any]:
        """See Dialect."""
        (choice,) = answer["choices"]
        self._reason, self._usage = choice["finish_reason"], answer["usage"]
        self._first = self._start  # nothing is known of the first token
        return {**self._line(choice["message"], True), **self._end()}

    def chunks(self, chunks: list[dict[str, Any]]) -> str:
        """See Dialect."""
        out = []
        for chunk in chunks:
            for choice in chunk["choices"]:
                self._first = self._first or time.monotonic_ns()
                self._reason = choice["finish_reason"] or self._reason
                delta = self._with_whole_calls(choice["delta"], choice["finish_reason"] is not None)
                if any(True for _ in parts_of(delta)):
                    out.append(self._line(delta))
            self._usage = chunk.get("usage") or self._usage
        return "".join(dumped(line) + "\n" for line in out)

    def _with_whole_calls(self, delta: dict[str, Any], ended: bool) -> dict[str, Any]:
        for piece in delta.get("tool_calls", ()):
            if "id" in piece:
                self._calls.append({**piece, "function": {**piece["function"]}})
            else:
                self._calls[-1]["function"]["arguments"] += piece["function"]["arguments"]
        complete = self._calls if ended else self._calls[:-1]
        self._calls = [] if ended else self._calls[-1:]
        return {**delta, "tool_calls": complete}

    def failed(self, failure: ApiError) -> str:
        """See Dialect."""
        return dumped({"error": failure.message}) + "\n"

    def end(self) -> str:
        """See Dialect."""
        return dumped({**self._line({}, True), **self._end()}) + "\n"


def card(name: str, version: Any) -> dict[str, Any]:
    """A row of /api/tags.

    Args:
        name: of the model.
        version: that serves.
    """
    options = version.spec.options
    return {
        "name": name,
        "model": name,
        "modified_at": now(),
        "size": 0,
        "digest": f"{version.name}:{version.number}",
        "details": {
            "parent_model": "",
            "format": "gguf" if version.spec.path.endswith(".gguf") else "safetensors",
            "family": version.metadata.get("kind", ""),
            "families": [version.metadata.get("kind", "")],
            "parameter_size": "",
            "quantization_level": str(options.get("quantization") or options.get("dtype") or ""),
        },
    }
