"""Models written as GGUF files by the package `gguf`: weights, metadata, the tokenizer, chat templates."""

from __future__ import annotations

import json
import math
import os
import re
import tempfile
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from ..models import Decoder, DecoderConfig
from ..models.gguf_codes import MAKERS, quantized
from ..models.gguf_decoder import GGUFDecoder
from ..models.gguf_write import metadata_of, tensors_of
from .byte_pairs import SPLITS, byte_level
from .detokenizer import byte_letters
from .pieces import BYTE, CONTROL, NORMAL, UNKNOWN, UNUSED, USER
from .tokenizer import Tokenizer

#: What matrices may be written as: those that the package gguf quantises, and those of `gguf_codes`.
KINDS = ("F32", "F16", "BF16", "Q8_0", "Q5_1", "Q5_0", "Q4_1", "Q4_0", "MXFP4", *MAKERS)
_OF_DTYPES = {"bfloat16": "BF16", "float16": "F16"}
_BYTE = re.compile("<0x[0-9A-F]{2}>")
_KEPT = (".ffn_gate_inp", "attn_sinks", "rope_f")  # in float32 whatever the kind, as llama.cpp has them
_TRAINING = ("architecture", "initializer_range", "bos_token_id", "eos_token_id", "pad_token_id",
             "embedding_dropout", "residual_dropout", "attention_dropout")  # fmt: skip


def save_gguf(
    model: Decoder, path: str | os.PathLike[str], kind: str | None = None, tokenizer: Tokenizer | None = None
) -> None:
    """Writes a decoder of a family that GGUF files have, with its config, and its tokenizer if one is given.

    Vectors, routers and attention sinks are float32. A matrix whose rows are no multiple of the kind's block
    is float16. The file is whole or is not there. Keys and names are those of llama.cpp's conversion.

    Args:
        model: with floating layers, as `Decoder.from_pretrained` gives them.
        path: of the file.
        kind: of matrices, one of KINDS; None: the model's dtype.
        tokenizer: its tokens, special tokens and chat templates are written.

    Raises: ImportError without the package gguf. ValueError for other kinds, for architectures and settings
    that these files have no key for, for layers in few bits, for numbers that a kind has not, and for
    tokenizers that llama.cpp has not; it names them.

    >>> from warptape.inference.gguf_export import KINDS
    >>> "Q8_0" in KINDS
    True
    """
    try:
        import gguf
    except ImportError as error:
        raise ImportError("GGUF files are written by the package gguf: pip install gguf") from error
    if kind is None:
        kind = _OF_DTYPES.get(str(model.embed_tokens.weight.dtype).rpartition(".")[2], "F32")
    if kind not in KINDS:
        raise ValueError(f"save_gguf: kind {kind!r:.40} cannot be written, only {', '.join(KINDS)}")
    if not hasattr(gguf.GGMLQuantizationType, kind):
        raise ValueError(f"save_gguf: this version of the package gguf has no {kind}; update it")
    _check_layers(model)
    metadata = metadata_of(model.config)
    metadata["general.file_type"] = _file_type(gguf, kind)
    if tokenizer is not None:
        metadata |= tokenizer_metadata(tokenizer, model.config.vocab_size)
    metadata |= _tokens(model.config)
    folder = os.path.dirname(os.path.realpath(path))
    number, temporary = tempfile.mkstemp(".gguf.tmp", ".warptape-", folder)
    os.close(number)
    try:
        _write(gguf, temporary, metadata, model, kind)
        _check(GGUFDecoder(temporary).config, model.config)
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, os.path.realpath(path))
    except BaseException:
        os.unlink(temporary)
        raise


def _umask() -> int:
    now = os.umask(0o22)
    os.umask(now)
    return now


def _check_layers(model: Decoder) -> None:
    """Raises ValueError for packed or quantised layers, whose weights are no parameters."""
    for name, each in model.named_modules():
        if name.endswith("_proj") and not hasattr(each, "weight"):
            raise ValueError(f"save_gguf: {name} is packed; load the model by Decoder.from_pretrained")


def _file_type(gguf: Any, kind: str) -> int:
    names = {"F32": "ALL_F32", "MXFP4": "MOSTLY_MXFP4_MOE"}
    names |= {f"Q{bits}_K": f"MOSTLY_Q{bits}_K{'_M' if bits in (3, 4, 5) else ''}" for bits in range(2, 7)}
    return int(gguf.LlamaFileType[names.get(kind, f"MOSTLY_{kind}")])


def _check(got: DecoderConfig, want: DecoderConfig) -> None:
    """Raises ValueError for what was lost: a file says no more than what it has keys for."""
    lost = [each.name for each in fields(want) if each.name not in _TRAINING
            and not _same(getattr(got, each.name), getattr(want, each.name))]  # fmt: skip
    if lost:
        said = ", ".join(f"{name}={getattr(want, name)!r:.120}" for name in lost)
        raise ValueError(f"save_gguf: GGUF files of a {want.architecture} model have no place for {said}")


def _same(a: Any, b: Any) -> bool:
    """Up to what float32 rounds."""
    if is_dataclass(a) and type(a) is type(b):
        return all(_same(getattr(a, each.name), getattr(b, each.name)) for each in fields(a))
    if isinstance(a, tuple) and isinstance(b, tuple):
        return len(a) == len(b) and all(map(_same, a, b))
    if isinstance(a, float) and isinstance(b, float):
        return math.isclose(a, b, rel_tol=1e-6)
    return bool(a == b)


# ---- the file ----


def _write(gguf: Any, path: str, metadata: dict[str, Any], model: Decoder, kind: str) -> None:
    """Tensors are made one after the other."""
    writer = gguf.GGUFWriter(path, metadata.pop("general.architecture"))
    try:
        for key, value in metadata.items():
            _add(writer, key, value)
        tensors = []
        for name, make, shape in tensors_of(model):
            type_ = gguf.GGMLQuantizationType[_kind_of(gguf, name, shape, kind)]
            elements, size = gguf.GGML_QUANT_SIZES[type_]
            bytes_ = (*shape[:-1], shape[-1] // elements * size)
            writer.add_tensor_info(name, bytes_, np.dtype(np.uint8), math.prod(bytes_), type_)
            tensors.append((make, type_))
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for make, type_ in tensors:
            array = np.ascontiguousarray(make().float().cpu().numpy())
            own = type_.name in MAKERS
            coded = quantized(type_.name, array) if own else gguf.quantize(array, type_)
            writer.write_tensor_data(np.ascontiguousarray(coded))
    finally:
        writer.close()


def _kind_of(gguf: Any, name: str, shape: tuple[int, ...], kind: str) -> str:
    if len(shape) < 2 or name.endswith(".bias") or any(part in name for part in _KEPT):
        return "F32"
    return "F16" if shape[-1] % gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0] else kind


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_uint32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    elif isinstance(value, str):
        writer.add_string(key, value)
    else:
        writer.add_array(key, value)


# ---- tokens ----


def _tokens(config: DecoderConfig) -> dict[str, int]:
    """Numbers of special tokens; of several ends the first is the text's, the next a turn's, a message's."""
    ends = config.eos_token_id
    listed = list(ends) if isinstance(ends, (list, tuple)) else [ends]
    numbers: dict[str, Any] = dict(zip(("eos", "eot", "eom"), listed))
    numbers |= {"bos": config.bos_token_id, "padding": config.pad_token_id}
    return {
        f"tokenizer.ggml.{name}_token_id": n for name, n in numbers.items() if isinstance(n, int) and n >= 0
    }


def tokenizer_metadata(tokenizer: Tokenizer, vocab_size: int) -> dict[str, Any]:
    """What a GGUF file says of a tokenizer.

    Args:
        tokenizer: byte-level BPE with one of llama.cpp's splits, or SentencePiece's BPE.
        vocab_size: of the model; numbers without a token are filled up.

    Raises: ValueError for other tokenizers.
    """
    said = json.loads(tokenizer.library_json())
    model = said["model"]
    if model.get("type") != "BPE":
        raise ValueError(
            f"save_gguf: tokenizers of the type {model.get('type')!r:.40} are not supported, only BPE"
        )
    added = {each["id"]: each for each in said["added_tokens"]}
    by_number = {number: text for text, number in model["vocab"].items()}
    by_number |= {number: each["content"] for number, each in added.items()}
    tokens = [by_number.get(i, f"[PAD{i}]") for i in range(vocab_size)]
    types = [_type(token, i, added.get(i), model) for i, token in enumerate(tokens)]
    out: dict[str, Any] = {"tokens": tokens, "token_type": types}
    merges = [each.split(" ") if isinstance(each, str) else each for each in model["merges"]]
    if _has(said["decoder"], "ByteLevel"):
        out |= {"model": "gpt2", "pre": _pre(said), "merges": [" ".join(pair) for pair in merges]}
    else:
        out |= {"model": "llama", "pre": "default", "scores": _scores(tokens, merges), **_spaces(said)}
    out |= _special(tokenizer, {token: i for i, token in enumerate(tokens)})
    templates, _ = tokenizer.templates()
    named = {"tokenizer.chat_template" + ("" if name == "default" else f".{name}"): text
             for name, text in templates.items()}  # fmt: skip
    return {**{f"tokenizer.ggml.{key}": value for key, value in out.items()}, **named}


def _type(token: str, number: int, added: Any, model: dict[str, Any]) -> int:
    """Of a token: tokenizer.ggml.token_type."""
    if token == model.get("unk_token"):
        return UNKNOWN
    if added is not None:
        return CONTROL if added["special"] else USER
    if model.get("byte_fallback") and _BYTE.fullmatch(token):
        return BYTE
    return UNUSED if token == f"[PAD{number}]" else NORMAL


def _special(tokenizer: Tokenizer, numbers: dict[str, int]) -> dict[str, Any]:
    """Numbers of special tokens that the tokenizer names, and which a text begins and ends with."""
    named = tokenizer.templates()[1]
    keys = {"bos": "bos", "unk": "unknown", "pad": "padding", "sep": "seperator", "mask": "mask"}
    out: dict[str, Any] = {
        f"{key}_token_id": numbers[named[f"{name}_token"]]
        for name, key in {**keys, "eos": "eos"}.items()
        if named.get(f"{name}_token") in numbers
    }
    around = tokenizer.encode("")
    out["add_bos_token"] = bool(around) and around[0] == out.get("bos_token_id")
    out["add_eos_token"] = bool(around) and around[-1] == out.get("eos_token_id")
    return out


def _scores(tokens: list[str], merges: list[list[str]]) -> list[float]:
    """Of pieces, so that pairs are merged in the order of the merges."""
    first: dict[str, int] = {}
    for i, (left, right) in enumerate(merges):
        first.setdefault(left + right, i)
    return [-float(first.get(token, len(merges))) for token in tokens]


def _spaces(said: dict[str, Any]) -> dict[str, bool]:
    """What is done to spaces, as the library does it."""
    import tokenizers

    for kind in ("Precompiled", "NFC", "NFKC", "NFD", "NFKD", "Lowercase", "StripAccents", "BertNormalizer"):
        if _has(said["normalizer"], kind):
            raise ValueError(f"save_gguf: llama.cpp does not normalise texts as this tokenizer does ({kind})")
    normalizer = tokenizers.Tokenizer.from_str(json.dumps(said)).normalizer
    text = "a  a" if normalizer is None else normalizer.normalize_str("a  a")
    return {
        "add_space_prefix": text.startswith("▁") or _has(said["pre_tokenizer"], "Metaspace"),
        "remove_extra_whitespaces": len(text.lstrip("▁")) < 4,
    }


def _has(part: Any, kind: str) -> bool:
    """Whether a part of a tokenizer, or of a sequence of them, is of that type."""
    if not isinstance(part, dict):
        return False
    inner = [*part.get("normalizers", ()), *part.get("pretokenizers", ()), *part.get("decoders", ())]
    return part.get("type") == kind or any(_has(each, kind) for each in inner)


def _cut(part: Any) -> list[Any]:
    """What a pre-tokenizer does, without what changes offsets alone."""
    if not isinstance(part, dict):
        return [part]
    if part.get("type") == "Sequence":
        return [step for each in part["pretokenizers"] for step in _cut(each)]
    if part.get("type") == "Digits" and part.get("individual_digits"):
        return [("Split", r"\p{N}")]
    if part.get("type") == "Split":
        return [("Split", part["pattern"].get("Regex"))]
    return [(part.get("type"), part.get("add_prefix_space"), part.get("use_regex", True))]


def _pre(said: dict[str, Any]) -> str:
    """llama.cpp's name of how a tokenizer cuts texts."""
    own = (
        _cut(said["pre_tokenizer"]),
        _has(said["normalizer"], "NFC"),
        bool(said["model"].get("ignore_merges")),
    )
    matches = [(name, split) for name, split in SPLITS.items() if own[1] == split.composed
             and own[0] == _cut(json.loads(byte_level({}, [], split).to_str())["pre_tokenizer"])]  # fmt: skip
    names = [name for name, split in matches if own[2] == split.whole]
    if not names and matches and _reached(said["model"]):
        names = [matches[0][0]]
    if not names:
        what = "tokens that no merges lead to, where" if matches else "texts cut as"
        raise ValueError(f"save_gguf: this tokenizer has {what} llama.cpp has no name for")
    return names[0]


def _reached(model: dict[str, Any]) -> bool:
    """Whether merges lead to each token, so that it makes no difference if words are looked up before."""
    from tokenizers import models

    pairs = [tuple(each.split(" ") if isinstance(each, str) else each) for each in model["merges"]]
    merged = models.BPE(model["vocab"], pairs)
    letters = byte_letters()
    words = (token for token in model["vocab"] if all(letter in letters for letter in token))
    return all(len(merged.tokenize(word)) == 1 for word in words)
