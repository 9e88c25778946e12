"""Text to tokens and back, by the library `tokenizers`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from ..models.gguf import GGUFFile
from .chat_template import Renderer
from .detokenizer import Detokenizer, TokenBytes
from .generation_config import read_object
from .gguf_tokenizer import tokenizer_of

FILE, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
LONG = 2_000  # characters, from which other threads run while a text is tokenised

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
        self._bytes: TokenBytes | None = None
        self._renderer = Renderer()
        self._chat: tuple[dict[str, str], dict[str, Any]] | None = None  # templates, special tokens

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
        config = read_object(self._folder, CONFIG)
        # Of older folders, where the config does not list the tokens itself.
        return (
            config if "added_tokens_decoder" in config else {**config, **read_object(self._folder, SPECIAL)}
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Its tokens."""
        if len(text) >= LONG:
            return self.encode_many([text], add_special_tokens)[0]
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, tokens: list[int], skip_special_tokens: bool = True) -> str:
        """Their text."""
        return self._tokenizer.decode(tokens, skip_special_tokens=skip_special_tokens)

    @property
    def bytes(self) -> TokenBytes:
        """The bytes of each token."""
        if self._bytes is None:
            self._bytes = TokenBytes(self._tokenizer)
        return self._bytes

    def token_text(self, token: int) -> str:
        """A token's own text behind others: with its space, and U+FFFD for parts of characters."""
        return self.bytes.of(token).decode(errors="replace")

    def stream(
        self,
        skip_special_tokens: bool = True,
        spaces_between_special_tokens: bool = True,
        after: Sequence[int] = (),
    ) -> Detokenizer:
        """A function from the next token to the text that it completes, which may be empty: bytes of a
        character wait for the rest of it. `after` are the tokens before; else see SamplingParams."""
        return Detokenizer(self, after, skip_special_tokens, spaces_between_special_tokens)

    def encode_many(self, texts: Sequence[str], add_special_tokens: bool = True) -> list[list[int]]:
        """The tokens of each text; other threads run meanwhile."""
        many = self._tokenizer.encode_batch_fast([*texts], add_special_tokens=add_special_tokens)
        return [each.ids for each in many]

    def library_json(self) -> str:
        """The tokenizer as text, for other libraries."""
        return self._tokenizer.to_str()

    def library_json_with(self, special: str) -> tuple[str, int]:
        """The same with a special token more, and its number."""
        import tokenizers

        copy = tokenizers.Tokenizer.from_str(self.library_json())
        copy.add_special_tokens([special])
        return copy.to_str(), copy.get_vocab()[special]

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
        template, special = self.chat_template(chat_template, variables.get("tools"))
        values = {"add_generation_prompt": add_generation_prompt, **special, **variables}
        return self._renderer.render(template, messages, values, continue_final_message)

    def chat_template(self, given: str | None = None, tools: Any = None) -> tuple[str, dict[str, Any]]:
        """A template, and the special tokens that it finds by name.

        Args:
            given: a template, or the name of one of the model's; None: "tool_use" where there are tools and
                the model has it, else "default".

        Raises: ValueError where there is none.
        """
        if self._chat is None:
            config = self._settings()
            self._chat = self._chat_templates(config), _special_tokens(config)
        templates, special = self._chat
        name = given
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in templates else "default"
        found = templates.get(name, given)
        if found is None:
            more = f", only those by the names {', '.join(sorted(templates))}" if templates else ""
            raise ValueError(f"{os.fspath(self._folder)} has no chat template{more}")
        return found, special

    def _chat_templates(self, config: dict[str, Any]) -> dict[str, str]:
        """By name. Files of their own come before the config, as transformers has it."""
        folder, found = os.fspath(self._folder), dict[str, str]()
        beside = os.path.join(folder, TEMPLATES)
        files = {"default": os.path.join(folder, TEMPLATE)}
        if os.path.isdir(beside):
            names = sorted(name for name in os.listdir(beside) if name.endswith(".jinja"))
            files |= {name.removesuffix(".jinja"): os.path.join(beside, name) for name in names}
        for name, path in files.items():
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    found[name] = file.read()
        if found:
            return found
        said = config.get("chat_template")
        if isinstance(said, list):
            return {each["name"]: each["template"] for each in said if {"name", "template"} <= {*each}}
        return {"default": said} if isinstance(said, str) else {}


def _special_tokens(config: dict[str, Any]) -> dict[str, Any]:
    """Those that the config names: bos_token, image_token .., as text."""
    extra = config.get("extra_special_tokens")
    named = {name: each for name, each in config.items() if name.endswith("_token")}
    named |= extra if isinstance(extra, dict) else {}
    texts = {name: each.get("content") if isinstance(each, dict) else each for name, each in named.items()}
    return {name: each for name, each in texts.items() if isinstance(each, str)}


def has_tokenizer(path: Any) -> bool:
    """Whether a model's folder or GGUF file has a tokenizer."""
    if os.path.isfile(path):
        return "tokenizer.ggml.model" in GGUFFile(path).metadata
    return os.path.isfile(os.path.join(os.fspath(path), FILE))


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
