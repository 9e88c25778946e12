"""What OpenAI's clients get: choices that grow out of a worker's events, whole or as chunks."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator
from typing import Any

from ..inference.tokenizer import Tokenizer
from .openai_requests import Asked
from .tool_calls import ToolParser, made

PART = 32  # tokens of a prompt, or answers, of one event that are described at once
LEAST = -9999.0  # in place of -inf, which JSON has not


def _value(logprob: float) -> float:
    return max(logprob, LEAST)


def parts_of(event: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """An event in parts, none of which has much to describe; the event itself where it has little."""
    of_prompt, outputs = event.get("prompt_logprobs") or [], event["outputs"]
    if len(of_prompt) + len(outputs) <= PART:
        yield event
        return
    for at in range(0, len(of_prompt), PART):
        yield {**event, "cached_tokens": 0, "outputs": [], "prompt_logprobs": of_prompt[at : at + PART]}
    for at in range(0, len(outputs), PART):
        yield {**event, "outputs": outputs[at : at + PART], "prompt_logprobs": None}


class Described:
    """Log-probabilities of an answer's tokens, as OpenAI has them: with the bytes that each stands for.

    Entries of a token are [token, log-probability, rank, text], the drawn token's first.

    Args:
        after: the tokens before.
        skip: whether special tokens are left out of the text.
        offset: characters before.
    """

    def __init__(self, tokenizer: Tokenizer | None, after: list[int], skip: bool, offset: int = 0) -> None:
        self._stream = tokenizer.stream(skip, after=after) if tokenizer is not None else None
        self._bytes = tokenizer.bytes if tokenizer is not None else None
        self._names: dict[int, str] = {}
        self.offset = offset

    def _of(self, entry: list[Any]) -> tuple[str, bytes]:
        """A token's text, and the bytes that it adds; bytes that are part of a character are written out."""
        if self._stream is None or self._bytes is None:
            return f"token_id:{entry[0]}", b""
        adds = self._stream.bytes_of(entry[0])
        whole = adds or self._bytes.of(entry[0])  # of special tokens, their names
        try:
            return whole.decode(), adds
        except UnicodeDecodeError:
            return "".join(f"\\x{byte:02x}" for byte in whole), adds

    def chat(self, tokens: list[list[list[Any]]], top: int) -> dict[str, Any]:
        """Of a chat's next tokens."""

        def described(entry: list[Any]) -> dict[str, Any]:
            text, adds = self._of(entry)
            return {"token": text, "logprob": _value(entry[1]), "bytes": [*adds]}

        content = []
        for entries in tokens:
            ranked = sorted((e for e in entries if e[2] <= top), key=lambda e: e[2])[:top]
            content.append({**described(entries[0]), "top_logprobs": [described(e) for e in ranked]})
            self._add(entries[0][0])
        return {"content": content, "refusal": None}

    def completion(self, tokens: list[Any], top: int) -> dict[str, Any]:
        """Of a completion's next tokens; None stands for the log-probability of a prompt's first."""
        names = ("tokens", "token_logprobs", "top_logprobs", "text_offset")
        out: dict[str, Any] = {name: [] for name in names}
        for entries in tokens:
            own = entries[0]
            first = own[1] is None
            out["tokens"].append(self._name(own))
            out["token_logprobs"].append(None if first else _value(own[1]))
            ranked = [e for e in entries if not first and e[2] <= max(top, 1)]
            by_name: dict[str, float] = {}
            for each in ranked:  # the likelier one of two by the same name
                name = self._name(each)
                by_name[name] = max(_value(each[1]), by_name.get(name, LEAST))
            out["top_logprobs"].append(None if first else by_name)
            out["text_offset"].append(self.offset)
            self._add(own[0])
        return out

    def _name(self, entry: list[Any]) -> str:
        found = self._names.get(entry[0])
        if found is None:
            text, _ = self._of(entry)
            found = f"bytes:{text}" if text.startswith("\\x") else text
            if self.offset:  # a text's first token has no space before it
                self._names[entry[0]] = found
        return found

    def _add(self, token: int) -> None:
        if self._stream is not None:
            self.offset += len(self._stream(token))


class Choice:
    """One answer while it grows."""

    def __init__(self, asked: Asked, index: int, described: Described) -> None:
        self.index, self.described = index, described
        self.parts: list[str] = []
        self.tokens: list[int] = []
        self.finish_reason: str | None = None
        self.stop_reason: Any = None
        self.parser: ToolParser | None = None
        if asked.tools and not asked.forced:
            self.parser = ToolParser({tool["function"]["name"] for tool in asked.tools}, asked.most_calls)
        self.calls = 0

    def take(self, output: dict[str, Any]) -> None:
        """Counts what came."""
        self.tokens += output["tokens"]
        if output.get("finish_reason") is not None:
            self.finish_reason, self.stop_reason = output["finish_reason"], output.get("stop_reason")


class Answer:
    """A response as it comes to be.

    Args:
        chat: the form of chat completions.
        prompts: of each its tokens and text.
    """

    def __init__(
        self,
        asked: Asked,
        chat: bool,
        prompts: list[tuple[list[int], str | None]],
        tokenizer: Tokenizer | None = None,
    ) -> None:
        self.asked, self.chat, self.prompts = asked, chat, prompts
        self.id = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self.created = int(time.time())
        self.n = asked.params.get("n", 1)
        self._top = asked.params.get("logprobs")
        skip = asked.params.get("skip_special_tokens", True)
        self.choices = []
        for i in range(self.n * len(prompts)):
            tokens, text = prompts[i // self.n]
            echoed = asked.echo and self._top is not None  # the prompt's tokens are described, too
            after, offset = ([], 0) if echoed else (tokens, len(text or "") if asked.echo else 0)
            self.choices.append(Choice(asked, i, Described(tokenizer, after, skip, offset)))
        self.logprobs: list[dict[str, Any] | None] = [None for _ in self.choices]
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
        first = [[self.prompts[number][0][0], None, 0, None]]
        return [first if entries is None else entries for entries in event.get("prompt_logprobs") or ()]

    def _describe(self, choice: Choice, tokens: list[Any]) -> dict[str, Any]:
        assert self._top is not None
        described = choice.described
        return described.chat(tokens, self._top) if self.chat else described.completion(tokens, self._top)

    def _keep(self, choice: Choice, tokens: list[Any]) -> None:
        """Describes tokens at once, for a whole answer."""
        if self._top is None:
            return
        new, known = self._describe(choice, tokens), self.logprobs[choice.index]
        if known is None:
            self.logprobs[choice.index] = new
            return
        for name, values in new.items():
            if values:
                known[name] += values

    # ---- whole ----

    def take(self, number: int, event: dict[str, Any]) -> None:
        """Takes an event of a prompt."""
        if not self.choices[number * self.n].tokens:
            self.cached += event.get("cached_tokens", 0)
        if event.get("prompt_logprobs") and self.asked.echo:
            for choice in self.choices[number * self.n :][: self.n]:
                self._keep(choice, self._prompt_entries(number, event))
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            choice.parts.append(output["text"])
            if not self.asked.text_only:
                self._keep(choice, output.get("logprobs") or [])

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
        logprobs = self.logprobs[choice.index]
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
        logprobs = self.logprobs[choice.index]
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
        if event.get("prompt_logprobs") and self.asked.echo and self._top is not None:
            for choice in self.choices[number * self.n :][: self.n]:
                before = self._describe(choice, self._prompt_entries(number, event))
                out.append(self._chunk(choice, {"text": "", "logprobs": before}))
        for output in event["outputs"]:
            choice = self.choices[number * self.n + output["index"]]
            choice.take(output)
            out += self._chat_delta(choice, output) if self.chat else self._text_delta(choice, output)
        return out

    def _text_delta(self, choice: Choice, output: dict[str, Any]) -> list[dict[str, Any]]:
        last = choice.finish_reason is not None
        what: dict[str, Any] = {"text": output["text"]}
        if self._top is not None:
            what["logprobs"] = self._describe(choice, output.get("logprobs") or [])
        if self.asked.token_ids:
            what["token_ids"] = output["tokens"]
        empty = not output["text"] and not last and "logprobs" not in what and "token_ids" not in what
        return [] if empty else [self._chunk(choice, what, last)]

    def _chat_delta(self, choice: Choice, output: dict[str, Any]) -> list[dict[str, Any]]:
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
        if self._top is not None:
            what["logprobs"] = self._describe(choice, output.get("logprobs") or [])
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
