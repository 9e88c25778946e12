"""What OpenAI's clients get: choices that grow out of a worker's events, whole or as chunks."""

from __future__ import annotations

import json
import time
import uuid
from typing import Any

from .openai_requests import Asked
from .tool_calls import ToolParser, made

LEAST = -9999.0  # in place of -inf, which JSON has not


def _value(logprob: float) -> float:
    return max(logprob, LEAST)


def _text(entry: list[Any]) -> str:
    """An entry is [token, log-probability, rank, text]."""
    return entry[3] if entry[3] is not None else f"token_id:{entry[0]}"


def chat_logprobs(tokens: list[list[list[Any]]], top: int) -> dict[str, Any]:
    """Of a chat's tokens, each with its entries, the drawn token's first."""

    def described(entry: list[Any]) -> dict[str, Any]:
        text = _text(entry)
        return {"token": text, "logprob": _value(entry[1]), "bytes": list(text.encode())}

    content = []
    for entries in tokens:
        ranked = sorted((e for e in entries if e[2] <= top), key=lambda e: e[2])[:top]
        content.append({**described(entries[0]), "top_logprobs": [described(e) for e in ranked]})
    return {"content": content, "refusal": None}


class Choice:
    """One answer while it grows."""

    def __init__(self, asked: Asked, index: int) -> None:
        self.index, self._asked = index, asked
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self.offset = 0  # characters that came before, for text_offset
        self.parser = ToolParser() if asked.tools and not asked.forced else None
        self.calls = 0

    def take(self, output: dict[str, Any]) -> None:
        """Counts what came."""
        self.tokens += output["tokens"]
        if output.get("finish_reason") is not None:
            self.finish_reason, self.stop_reason = output["finish_reason"], output.get("stop_reason")

    def legacy_logprobs(self, tokens: list[Any]) -> dict[str, Any]:
        """Of a completion's tokens; None stands for the first of a prompt."""
        out: dict[str, Any] = {"tokens": [], "token_logprobs": [], "top_logprobs": [], "text_offset": []}
        top = self._asked.params["logprobs"]
        for entries in tokens:
            own = entries[0]
            out["tokens"].append(_text(own))
            first = own[1] is None
            out["token_logprobs"].append(None if first else _value(own[1]))
            ranked = [e for e in entries if not first and e[2] <= max(top, 1)]
            out["top_logprobs"].append(None if first else {_text(e): _value(e[1]) for e in ranked})
            out["text_offset"].append(self.offset)
            self.offset += len(_text(own))
        return out


class Answer:
    """A response as it comes to be.

    Args:
        chat: the form of chat completions.
        prompts: of each its tokens and text.
    """

    def __init__(self, asked: Asked, chat: bool, prompts: list[tuple[list[int], str | None]]) -> None:
        self.asked, self.chat, self.prompts = asked, chat, prompts
        self.id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())
        self.n = asked.params.get("n", 1)
        self.choices = [Choice(asked, i) for i in range(self.n * len(prompts))]
        self.logprobs: list[list[Any]] = [[] for _ in self.choices]
        self.cached = 0

    # ---- what is common ----

    def usage(self) -> dict[str, Any]:
        """Counts of tokens."""
        prompt = sum(len(tokens) for tokens, _ in self.prompts)
        new = 0 if self.asked.text_only else sum(len(c.tokens) for c in self.choices)
        return {
            "prompt_tokens": prompt,
            "completion_tokens": new,
            "total_tokens": prompt + new,
            "prompt_tokens_details": {"cached_tokens": self.cached},
        }

    def _envelope(self, kind: str, choices: list[Any]) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": kind,
            "created": self.created,
            "model": self.asked.model,
            "choices": choices,
        }

    def _prompt_entries(self, number: int, event: dict[str, Any]) -> list[Any]:
        """Of a prompt's tokens, where its log-probabilities were asked for."""
        tokens, _ = self.prompts[number]
        of = event["prompt_logprobs"]
        texts = self.asked.first_texts
        first = [tokens[0], None, 0, texts[number] if texts else None]
        return [[first], *of[1:]]

    # ---- whole ----

    def take(self, number: int, event: dict[str, Any]) -> None:
        """Takes an event of a prompt."""
        if not self.choices[number * self.n].tokens:
            self.cached += event.get("cached_tokens", 0)
        if event.get("prompt_logprobs") is not None and self.asked.echo:
            for i in range(self.n):
                self.logprobs[number * self.n + i][:0] = self._prompt_entries(number, event)
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            choice.parts.append(output["text"])
            if not self.asked.text_only:
                self.logprobs[choice.index] += output.get("logprobs") or []

    def whole(self) -> dict[str, Any]:
        """The response, when all is there."""
        kind = "chat.completion" if self.chat else "text_completion"
        choices = [self._chat_choice(c) if self.chat else self._choice(c) for c in self.choices]
        return {**self._envelope(kind, choices), "usage": self.usage()}

    def _ends(self, choice: Choice) -> dict[str, Any]:
        out: dict[str, Any] = {"finish_reason": choice.finish_reason, "stop_reason": choice.stop_reason}
        if self.asked.token_ids:
            out["token_ids"] = choice.tokens
        return out

    def _choice(self, choice: Choice) -> dict[str, Any]:
        text = "" if self.asked.text_only else "".join(choice.parts)
        prompt = self.prompts[choice.index // self.n][1] or "" if self.asked.echo else ""
        wanted = self.asked.params.get("logprobs") is not None
        logprobs = choice.legacy_logprobs(self.logprobs[choice.index]) if wanted else None
        out = {"index": choice.index, "text": prompt + text, "logprobs": logprobs, **self._ends(choice)}
        if self.asked.text_only:
            out["finish_reason"] = "length"
            out.pop("token_ids", None)
        return out

    def _chat_choice(self, choice: Choice) -> dict[str, Any]:
        content: str | None = "".join(choice.parts)
        calls: list[Any] = []
        if self.asked.forced:
            content, calls = self._forced_call(content or "", choice)
        elif choice.parser is not None:
            content, calls = choice.parser.feed(content or "", last=True)
            content = content or (None if calls else "")
        message: dict[str, Any] = {"role": "assistant", "content": content, "refusal": None}
        if calls:
            message["tool_calls"] = calls
        top = self.asked.params.get("logprobs")
        logprobs = None if top is None else chat_logprobs(self.logprobs[choice.index], top)
        out = {"index": choice.index, "message": message, "logprobs": logprobs, **self._ends(choice)}
        if calls and choice.finish_reason == "stop":
            out["finish_reason"] = "tool_calls"
        return out

    @staticmethod
    def _forced_call(text: str, choice: Choice) -> tuple[str | None, list[Any]]:
        """The call that the text is; the text itself where it was cut off."""
        try:
            value = json.loads(text)
            return None, [made(value["name"], json.dumps(value["arguments"], ensure_ascii=False))]
        except (ValueError, KeyError, TypeError):
            return text, []

    # ---- as chunks ----

    def first_chunks(self) -> list[dict[str, Any]]:
        """What comes before any token."""
        if self.chat:
            delta = {"role": "assistant", "content": ""}
            return [self._chunk(c, {"delta": delta}) for c in self.choices]
        if not self.asked.echo:
            return []
        return [self._chunk(c, {"text": self.prompts[c.index // self.n][1] or ""}) for c in self.choices]

    def _chunk(self, choice: Choice, what: dict[str, Any], last: bool = False) -> dict[str, Any]:
        body = {"index": choice.index, "logprobs": None, **what, "finish_reason": None}
        if last:
            body.update(finish_reason=choice.finish_reason, stop_reason=choice.stop_reason)
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        out = self._envelope(kind, [body])
        if self.asked.continuous_usage:
            out["usage"] = self.usage()
        elif self.asked.usage:
            out["usage"] = None
        return out

    def chunks(self, number: int, event: dict[str, Any]) -> list[dict[str, Any]]:
        """What an event of a prompt adds."""
        if not self.choices[number * self.n].tokens:
            self.cached += event.get("cached_tokens", 0)
        out = []
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            before = []
            if event.get("prompt_logprobs") is not None and self.asked.echo:
                before = self._prompt_entries(number, event)
            made_ = self._chat_delta if self.chat else self._text_delta
            out += made_(choice, output, before)
        return out

    def _text_delta(self, choice: Choice, output: dict[str, Any], before: list[Any]) -> list[dict[str, Any]]:
        last = choice.finish_reason is not None
        what: dict[str, Any] = {"text": output["text"]}
        if self.asked.params.get("logprobs") is not None:
            what["logprobs"] = choice.legacy_logprobs(before + (output.get("logprobs") or []))
        if self.asked.token_ids:
            what["token_ids"] = output["tokens"]
        empty = not output["text"] and not last and "logprobs" not in what and "token_ids" not in what
        return [] if empty else [self._chunk(choice, what, last)]

    def _chat_delta(self, choice: Choice, output: dict[str, Any], before: list[Any]) -> list[dict[str, Any]]:
        last = choice.finish_reason is not None
        content: str = output["text"]
        calls: list[dict[str, Any]] = []
        if self.asked.forced:
            choice.parts.append(content)
            content = ""
            if last:
                text, calls = self._forced_call("".join(choice.parts), choice)
                content = text or ""
        elif choice.parser is not None:
            content, calls = choice.parser.feed(content, last)
        delta: dict[str, Any] = {"content": content} if content else {}
        if calls:
            delta["tool_calls"] = [{"index": choice.calls + i, **call} for i, call in enumerate(calls)]
            choice.calls += len(calls)
        what: dict[str, Any] = {"delta": delta}
        top = self.asked.params.get("logprobs")
        if top is not None:
            what["logprobs"] = chat_logprobs(output.get("logprobs") or [], top)
        if self.asked.token_ids:
            what["token_ids"] = output["tokens"]
        if not delta and not last and len(what) == 1:
            return []
        chunk = self._chunk(choice, what, last)
        if last and choice.calls and choice.finish_reason == "stop":
            chunk["choices"][0]["finish_reason"] = "tool_calls"
        return [chunk]

    def last_chunk(self) -> dict[str, Any] | None:
        """The usage, where it was asked for."""
        if not self.asked.usage:
            return None
        kind = "chat.completion.chunk" if self.chat else "text_completion"
        return {**self._envelope(kind, []), "usage": self.usage()}
