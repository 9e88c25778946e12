"""Text to tokens and back, by the library `tokenizers`."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

from ..models.gguf import GGUFFile
from .gguf_tokenizer import tokenizer_of

FILE, CONFIG = "tokenizer.json", "tokenizer_config.json"
MOST_PRODUCT = 1 << 24  # of numbers and sizes that a chat template multiplies
# Where the last message of a conversation ends; its characters mean nothing, and no text has them.
HERE = "\ue000continued\ue001"


_REMEDY = (
    "give prompts as {'prompt_token_ids': [...]} with skip_tokenizer_init=True, or name the tokenizer's "
    "folder with tokenizer="
)


class Tokenizer:
    """A model folder's `tokenizer.json`, with the chat template of its `tokenizer_config.json`; or those in a
    GGUF file.

    Raises: FileNotFoundError without the file, or where a GGUF file has no tokenizer, ImportError without the
    library, ValueError for a file that is no tokenizer or has ids beyond `vocab_size`.
    """

    def __init__(self, folder: Any, vocab_size: int | None = None) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "text needs the library tokenizers: pip install 'warptape[inference]'"
            ) from error
        self._config: dict[str, Any] | None = None  # None: in the folder
        path = os.fspath(folder)
        if os.path.isfile(path):
            self._tokenizer, self._config = self._of_gguf(path)
        else:
            path = os.path.join(path, FILE)
            if not os.path.isfile(path):
                raise FileNotFoundError(f"{path} is missing: {_REMEDY}")
            try:
                self._tokenizer = tokenizers.Tokenizer.from_file(path)
            except Exception as error:  # the library raises Exception itself
                raise ValueError(f"{path} is no tokenizer: {error}") from error
        largest = max(self._tokenizer.get_vocab().values(), default=-1)
        if vocab_size is not None and largest >= vocab_size:
            raise ValueError(
                f"{path} has tokens up to {largest}, but the model's vocabulary has {vocab_size}"
            )
        self._folder = folder
        self._templates: dict[str | None, tuple[Any, Any, dict[str, str]]] = {}

    @staticmethod
    def _of_gguf(path: str) -> tuple[Any, dict[str, Any]]:
        metadata = GGUFFile(path).metadata
        try:
            return tokenizer_of(metadata)
        except KeyError as error:
            raise FileNotFoundError(f"{path} has no tokenizer in it ({error}): {_REMEDY}") from error
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path}: its tokenizer cannot be read: {error}") from error

    def save(self, folder: Any) -> None:
        """Writes tokenizer.json, and tokenizer_config.json of what a GGUF file says."""
        self._tokenizer.save(os.path.join(os.fspath(folder), FILE))
        if self._config is not None:
            with open(os.path.join(os.fspath(folder), CONFIG), "w", encoding="utf-8") as file:
                json.dump(self._config, file, indent=2)

    def _settings(self) -> dict[str, Any]:
        """tokenizer_config.json, {} where there is none."""
        if self._config is not None:
            return self._config
        path = os.path.join(os.fspath(self._folder), CONFIG)
        if not os.path.isfile(path):
            return {}
        with open(path, encoding="utf-8") as file:
            config: dict[str, Any] = json.load(file)
        return config

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Its tokens."""
        return self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        """Their text."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    def stream(
        self, skip_special_tokens: bool = True, spaces_between_special_tokens: bool = True
    ) -> Callable[[int], str]:
        """A function from the next token to the text that it completes, which may be empty: bytes of a
        character wait for the rest of it. For the arguments see SamplingParams."""
        tokens: list[int] = []
        specials: dict[int, str] = {}  # that stand as they are behind another one
        if not (skip_special_tokens or spaces_between_special_tokens):
            added = self._tokenizer.get_added_tokens_decoder()
            specials = {token: each.content for token, each in added.items() if each.special}
        given, emitted = 0, 0  # what is behind `emitted` is decoded with the tokens from `given` on before it

        def step(token: int) -> str:
            # Not tokenizers.decoders.DecodeStream: it raises where bytes make no character.
            nonlocal given, emitted
            tokens.append(token)
            before = self.decode(tokens[given:emitted], skip_special_tokens)
            text = self.decode(tokens[given:], skip_special_tokens)
            if len(text) <= len(before) or text.endswith("\ufffd"):
                return ""
            given, emitted = emitted, len(tokens)
            if token in specials and tokens[-2:-1] and tokens[-2] in specials:
                return specials[token]
            return text[len(before) :]

        return step

    def library_json(self) -> str:
        """The tokenizer as text, for other libraries."""
        return self._tokenizer.to_str()

    def apply_chat_template(
        self,
        messages: list[dict[str, Any]],
        chat_template: str | None = None,
        add_generation_prompt: bool = True,
        continue_final_message: bool = False,
        **variables: Any,
    ) -> str:
        """The text of a conversation that the model is to continue.

        Args:
            messages: dicts with "role" and "content".
            chat_template: in Jinja's notation; None: the model's.
            add_generation_prompt: whether the text ends with what comes before an answer.
            continue_final_message: the text ends with the last message's content, which the model goes on
                with. Not with add_generation_prompt.
            variables: handed to the template.

        Raises: TypeError for what is no flag, ValueError for both, without a template, and for what the
        template refuses; ImportError without jinja2.
        """
        check_flags(add_generation_prompt, continue_final_message)
        if continue_final_message:
            messages = _marked(messages)
        if chat_template not in self._templates:
            self._templates[chat_template] = self._compiled(chat_template)
        error, template, special = self._templates[chat_template]
        values = {"add_generation_prompt": add_generation_prompt, **special, **variables}
        try:
            text = template.render(messages=messages, **values)
        except error as problem:
            raise ValueError(f"the chat template refuses these messages: {problem}") from problem
        if not continue_final_message:
            return text
        whole, found, _ = text.rpartition(HERE)
        if not found:
            raise ValueError(
                "continue_final_message: the chat template leaves out the last message's content"
            )
        return whole

    def _compiled(self, given: str | None) -> tuple[Any, Any, dict[str, str]]:
        """(what it raises, the template, special tokens)"""
        try:
            import jinja2.sandbox
        except ImportError as error:
            raise ImportError("chat templates need jinja2: pip install 'warptape[inference]'") from error
        config = self._settings()
        template = config.get("chat_template") if given is None else given
        if isinstance(template, list):  # several by name
            template = next((each["template"] for each in template if each.get("name") == "default"), None)
        beside = os.path.join(os.fspath(self._folder), "chat_template.jinja")
        if template is None and os.path.isfile(beside):
            with open(beside, encoding="utf-8") as file:
                template = file.read()
        if not isinstance(template, str):
            raise ValueError(f"{os.fspath(self._folder)} has no chat template")

        # The template comes with the model: it is not trusted.
        class Environment(jinja2.sandbox.ImmutableSandboxedEnvironment):
            intercepted_binops = frozenset({"*", "**"})

            def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
                # One instruction, which no time limit ends, must not fill the memory.
                sizes = [x if isinstance(x, (int, float)) else len(x) for x in (left, right)]
                if operator == "**" or sizes[0] * sizes[1] > MOST_PRODUCT:
                    raise jinja2.TemplateRuntimeError(f"{operator} of what is too large")
                return super().call_binop(context, operator, left, right)

        extensions = ["jinja2.ext.loopcontrols"]
        environment = Environment(trim_blocks=True, lstrip_blocks=True, extensions=extensions)

        def refuse(text: str) -> None:
            raise ValueError(text)

        def tojson(value: Any, indent: int | None = None, ensure_ascii: bool = False) -> str:
            return json.dumps(value, indent=indent, ensure_ascii=ensure_ascii)

        environment.globals["raise_exception"] = refuse
        environment.globals["strftime_now"] = lambda format: time.strftime(format)
        environment.filters["tojson"] = tojson  # as models were trained: no escapes for HTML
        special = {
            name: _text(config.get(name)) for name in ("bos_token", "eos_token", "pad_token", "unk_token")
        }
        try:
            return jinja2.TemplateError, environment.from_string(template), special
        except jinja2.TemplateError as error:
            raise ValueError(f"{os.fspath(self._folder)}: its chat template is none: {error}") from error


def check_flags(add_generation_prompt: Any, continue_final_message: Any) -> None:
    """TypeError for what are no flags, ValueError where both are True."""
    for name, value in (
        ("add_generation_prompt", add_generation_prompt),
        ("continue_final_message", continue_final_message),
    ):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be bool, got {value!r:.100}")
    if add_generation_prompt and continue_final_message:
        raise ValueError("continue_final_message needs add_generation_prompt=False")


def _marked(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Messages, the last of which has HERE at the end. ValueError where that has no text."""
    content = messages[-1].get("content") if messages else None
    if not isinstance(content, str):
        raise ValueError(
            f"continue_final_message: the last message's content must be text, got {content!r:.100}"
        )
    return [*messages[:-1], {**messages[-1], "content": content + HERE}]


def _text(token: Any) -> str:
    """A special token of the config: text, or a dict that has it."""
    return token.get("content", "") if isinstance(token, dict) else token or ""
