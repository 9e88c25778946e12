"""Text to tokens and back, by the library `tokenizers`."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from .detokenizer import Detokenizer, TokenBytes
from .generation_config import read_object

if TYPE_CHECKING:
    from .chat_template import Renderer

FILE, CONFIG, SPECIAL = "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json"
TEMPLATE, TEMPLATES = "chat_template.jinja", "additional_chat_templates"
LONG = 2_000  # characters, from which other threads run while a text is tokenised

_REMEDY = (
    "give prompts as {'prompt_token_ids': [...]} with skip_tokenizer_init=True, or name the tokenizer's "
    "folder with tokenizer="
)


class Tokenizer:
    """A model folder's tokenizer, with the chat template of its `tokenizer_config.json`; or those in a GGUF
    file.

    It is read from `tokenizer.json`, or else from `tekken.json`, SentencePiece's `tokenizer.model` and
    tiktoken's ranks (tokenizer_files.py).

    Args:
        folder: of the model, or a GGUF file.
        vocab_size: of the model.
        chat_template: in place of the model's.

    Raises: FileNotFoundError without such a file, or where a GGUF file has no tokenizer, ImportError without
    the library, ValueError for a file that is no tokenizer or has ids beyond `vocab_size`.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        vocab_size: int | None = None,
        chat_template: str | None = None,
    ) -> None:
        try:
            import tokenizers
        except ImportError as error:
            raise ImportError(
                "text needs the library tokenizers: pip install 'warptape[inference]'"
            ) from error
        self._config: dict[str, Any] | None = None  # None: in the folder
        self._named: dict[str, str] = {}  # special tokens that the tokenizer's own file names
        path = os.fspath(folder)
        if os.path.isfile(path):
            self._tokenizer, self._config = self._of_gguf(path)
        else:
            path = find_file(path) or os.path.join(path, FILE)
            if not os.path.isfile(path):
                raise FileNotFoundError(f"{path} is missing: {_REMEDY}")
            try:
                if os.path.basename(path) == FILE:
                    self._tokenizer = tokenizers.Tokenizer.from_file(path)
                else:
                    from .tokenizer_files import read_tokenizer

                    self._tokenizer, self._named = read_tokenizer(path)
            except Exception as error:  # the library raises Exception itself
                raise ValueError(f"{path} is no tokenizer: {error}") from error
        # Files of sentence-transformers cut and pad texts, which is up to who computes with them.
        self._tokenizer.no_truncation()
        self._tokenizer.no_padding()
        largest = max(self._tokenizer.get_vocab().values(), default=-1)
        if vocab_size is not None and largest >= vocab_size:
            raise ValueError(
                f"{path} has tokens up to {largest}, but the model's vocabulary has {vocab_size}"
            )
        self._folder, self._template = folder, chat_template
        self._bytes: TokenBytes | None = None
        self._renderer: Renderer | None = None  # of templates; made for the first
        self._chat: tuple[dict[str, str], dict[str, Any]] | None = None  # templates, special tokens

    @staticmethod
    def _of_gguf(path: str) -> tuple[Any, dict[str, Any]]:
        from ..models.gguf import GGUFFile
        from .gguf_tokenizer import tokenizer_of

        metadata = GGUFFile(path).metadata
        try:
            return tokenizer_of(metadata)
        except KeyError as error:
            raise FileNotFoundError(f"{path} has no tokenizer in it ({error}): {_REMEDY}") from error
        except Exception as error:  # the library raises Exception itself
            raise ValueError(f"{path}: its tokenizer cannot be read: {error}") from error

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Writes tokenizer.json, and tokenizer_config.json of what a GGUF or a tokenizer's own file says.

        Args:
            folder: that is there.
        """
        config = self._settings()
        self._tokenizer.save(os.path.join(os.fspath(folder), FILE))
        if self._config is not None or self._named:
            with open(os.path.join(os.fspath(folder), CONFIG), "w", encoding="utf-8") as file:
                json.dump(config, file, indent=2)

    def _settings(self) -> dict[str, Any]:
        """tokenizer_config.json, {} where there is none."""
        if self._config is not None:
            return self._config
        config = {**self._named, **read_object(self._folder, CONFIG)}
        # Of older folders, where the config does not list the tokens itself.
        return (
            config if "added_tokens_decoder" in config else {**config, **read_object(self._folder, SPECIAL)}
        )

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Its tokens.

        Args:
            text: any.
            add_special_tokens: as the model's begin token.
        """
        if len(text) >= LONG:
            return self.encode_many([text], add_special_tokens)[0]
        ids: list[int] = self._tokenizer.encode(text, add_special_tokens=add_special_tokens).ids
        return ids

    def decode(self, tokens: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Their text, as an answer that has them.

        Args:
            tokens: numbers.
            skip_special_tokens: whether they are left out.
        """
        return self.stream(skip_special_tokens).whole(tokens)

    @property
    def bytes(self) -> TokenBytes:
        """The bytes of each token."""
        if self._bytes is None:
            self._bytes = TokenBytes(self._tokenizer)
        return self._bytes

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
        """The tokens of each text; other threads run meanwhile.

        Args:
            texts: any.
            add_special_tokens: as the model's begin token.
        """
        many = self._tokenizer.encode_batch_fast([*texts], add_special_tokens=add_special_tokens)
        return [each.ids for each in many]

    def encode_pairs(
        self, pairs: Sequence[tuple[str, str]], most: int | None = None, each: int | None = None
    ) -> list[tuple[list[int], list[int]]]:
        """Tokens of two texts each, as the model puts them together, and the tokens' types.

        Args:
            pairs: any texts.
            most: tokens that both have together; the end of a second text is left out where they have more.
            each: tokens of a second text; its end is left out where it has more.
        """
        library, firsts = self._tokenizer, [*dict.fromkeys(first for first, _ in pairs)]
        read = dict(zip(firsts, library.encode_batch(firsts, add_special_tokens=False)))
        added, out = library.num_special_tokens_to_add(True), []
        seconds = library.encode_batch([second for _, second in pairs], add_special_tokens=False)
        for (text, _), second in zip(pairs, seconds):
            first, room = read[text], len(second.ids) if each is None else each
            if most is not None:
                room = min(room, most - added - len(first.ids))
            if room < len(second.ids):
                second.truncate(max(room, 0))
            joined = library.post_process(first, second, True)
            out.append((joined.ids, joined.type_ids))
        return out

    def encode_spans(self, texts: Sequence[str]) -> list[tuple[list[int], list[tuple[int, int] | None]]]:
        """The tokens of each text, and for each token where in the text it stands; None for special ones.

        Args:
            texts: any.
        """
        out = []
        for each in self._tokenizer.encode_batch([*texts]):
            spans = zip(each.offsets, each.special_tokens_mask)
            out.append((each.ids, [None if special else span for span, special in spans]))
        return out

    def library_json(self) -> str:
        """The tokenizer as text, for other libraries."""
        return self._tokenizer.to_str()

    def library_json_with(self, special: str) -> tuple[str, int]:
        """The same with a special token more, and its number.

        Args:
            special: its text.
        """
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
        if self._renderer is None:
            from .chat_template import Renderer

            self._renderer = Renderer()
        return self._renderer.render(template, messages, values, continue_final_message)

    def templates(self) -> tuple[dict[str, str], dict[str, Any]]:
        """The model's chat templates, and texts of special tokens, by name."""
        if self._chat is None:
            config = self._settings()
            own = {} if self._template is None else {"default": self._template}
            self._chat = own or self._chat_templates(config), _special_tokens(config)
        return self._chat

    def chat_template(self, given: str | None = None, tools: Any = None) -> tuple[str, dict[str, Any]]:
        """A template, and the special tokens that it finds by name.

        Args:
            given: a template, or the name of one of the model's; None: "tool_use" where there are tools and
                the model has it, else "default".

        Raises: ValueError where there is none.
        """
        templates, special = self.templates()
        name = given
        if name is None:
            name = "tool_use" if tools is not None and "tool_use" in templates else "default"
        template = templates.get(name, given)
        if template is None:
            more = f", only those by the names {', '.join(sorted(templates))}" if templates else ""
            raise ValueError(f"{os.fspath(self._folder)} has no chat template{more}")
        return template, special

    def _chat_templates(self, config: dict[str, Any]) -> dict[str, str]:
        """By name. Files of their own come before the config, as transformers has it."""
        folder, templates = os.fspath(self._folder), dict[str, str]()
        beside = os.path.join(folder, TEMPLATES)
        files = {"default": os.path.join(folder, TEMPLATE)}
        if os.path.isdir(beside):
            names = sorted(name for name in os.listdir(beside) if name.endswith(".jinja"))
            files |= {name.removesuffix(".jinja"): os.path.join(beside, name) for name in names}
        for name, path in files.items():
            if os.path.isfile(path):
                with open(path, encoding="utf-8") as file:
                    templates[name] = file.read()
        if templates:
            return templates
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


def find_file(folder: str | os.PathLike[str]) -> str | None:
    """The file that a folder's tokenizer is read from; None where there is none.

    Args:
        folder: with a model.
    """
    path = os.path.join(os.fspath(folder), FILE)
    if os.path.isfile(path):
        return path
    from .tokenizer_files import file_of

    return file_of(folder)


def has_tokenizer(path: str | os.PathLike[str]) -> bool:
    """Whether a model's folder or GGUF file has a tokenizer.

    Args:
        path: of a folder or a GGUF file.
    """
    if os.path.isfile(path):
        from ..models.gguf import GGUFFile

        return "tokenizer.ggml.model" in GGUFFile(path).metadata
    return find_file(path) is not None


def check_flags(add_generation_prompt: object, continue_final_message: object) -> None:
    """TypeError for what are no flags, ValueError where both are True.

    Args:
        add_generation_prompt: whether an answer is begun.
        continue_final_message: whether the last message goes on.
    """
    for name, value in (
        ("add_generation_prompt", add_generation_prompt),
        ("continue_final_message", continue_final_message),
    ):
        if not isinstance(value, bool):
            raise TypeError(f"{name} must be bool, got {value!r:.100}")
    if add_generation_prompt and continue_final_message:
        raise ValueError("continue_final_message needs add_generation_prompt=False")
