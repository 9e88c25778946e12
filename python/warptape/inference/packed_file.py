"""A folder with a model whose weights lie as the kernels read them: loaded by mapping one file.

`packed.safetensors` holds the tensors of the packed model; its metadata say of what kind a linear layer is.
Processes that load the same file share its memory.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
from typing import Any

from warptape import core as wt

from .. import nn
from ..models import Decoder
from ..models.config import DecoderConfig
from ..models.pretrained import CONFIG, read_json
from ..serialization.files import replace_file
from ..utils.safetensors import SafetensorError, safe_open, save_file
from . import tokenizer
from .linear import Float8Linear, PackedLinear, QuantLinear
from .tokenizer import Tokenizer

PACKED = "packed.safetensors"
VERSION = "1"
# What belongs to a model's text, copied from its folder.
BESIDE = (tokenizer.FILE, tokenizer.CONFIG, tokenizer.SPECIAL, tokenizer.TEMPLATE, "generation_config.json")


def _kind(layer: nn.Module) -> dict[str, Any] | None:
    if isinstance(layer, PackedLinear):
        return {"kind": "packed", "dtype": _name(layer.packed.dtype)}
    if isinstance(layer, Float8Linear):
        return {"kind": "float8", "dtype": "float32"}
    if isinstance(layer, QuantLinear):
        symmetric = layer.minima is None
        return {
            "kind": "quantized",
            "bits": layer.bits,
            "group": layer.group,
            "symmetric": symmetric,
            "ordered": layer.order is not None,
            "dtype": _name(layer.dtype),
        }
    return None


def _name(dtype: wt.dtype) -> str:
    return str(dtype).rpartition(".")[2]


def _made(linear: Any, kind: dict[str, Any]) -> nn.Module:
    """A layer of that kind in place of one on the meta device."""
    dtype = {"float32": wt.float32, "bfloat16": wt.bfloat16}[kind["dtype"]]
    if kind["kind"] == "packed":
        return PackedLinear(linear, dtype)
    if kind["kind"] == "float8":
        return Float8Linear(linear)
    layer = QuantLinear(linear, kind["bits"], kind["group"], kind["symmetric"], dtype)
    if kind.get("ordered"):
        layer.order = wt.empty(layer.in_features, dtype=wt.int64, device="meta")
    return layer


def save_packed(model: Decoder, folder: str | os.PathLike[str], source: Any = None) -> None:
    """Writes a model whose linear layers are packed, see `prepare`, as a folder that LLM loads by mapping.

    Args:
        source: a folder or GGUF file whose tokenizer belongs to the model.

    Raises: ValueError where a linear layer is not packed.
    """
    kinds = {name: kind for name, layer in model.named_modules() if (kind := _kind(layer))}
    rest = [name for name, layer in model.named_modules() if type(layer) is nn.Linear]
    if rest:
        raise ValueError(f"save_packed: pack the model first; {rest[0]} is an nn.Linear")
    folder = os.fspath(folder)
    os.makedirs(folder, exist_ok=True)
    state = {name: t.detach() for name, t in model.state_dict().items()}
    own = model.embed_tokens.weight.dtype
    metadata = {"warptape_packed": VERSION, "dtype": _name(own), "layers": json.dumps(kinds)}
    save_file(state, os.path.join(folder, PACKED), metadata)
    for name in BESIDE if source is not None else ():
        path = os.path.join(os.fspath(source), name)
        if os.path.isfile(path):
            shutil.copyfile(path, os.path.join(folder, name))
    if source is not None and not os.path.isfile(os.path.join(folder, tokenizer.FILE)):  # in another file
        # Without a tokenizer, or the library for it, there is none.
        with contextlib.suppress(FileNotFoundError, ImportError):
            Tokenizer(source).save(folder)
    templates = os.path.join(os.fspath(source), tokenizer.TEMPLATES) if source is not None else ""
    if os.path.isdir(templates):
        shutil.copytree(templates, os.path.join(folder, tokenizer.TEMPLATES), dirs_exist_ok=True)
    text = json.dumps(model.config.to_hf(), indent=2) + "\n"
    replace_file(os.path.join(folder, CONFIG), [text.encode()])


def is_packed(folder: str | os.PathLike[str]) -> bool:
    """Whether `save_packed` wrote a folder.

    Args:
        folder: a path.
    """
    return os.path.isfile(os.path.join(os.fspath(folder), PACKED))


def load_packed(folder: str | os.PathLike[str]) -> Decoder:
    """The model in a folder that `save_packed` wrote. Its tensors lie in the file; nothing is read yet.

    Raises: FileNotFoundError, and ValueError for damaged files and those of another version.
    """
    path = os.path.join(os.fspath(folder), PACKED)
    config = DecoderConfig.from_hf(read_json(os.path.join(os.fspath(folder), CONFIG)))
    try:
        with safe_open(path) as file:
            metadata = file.metadata() or {}
            if metadata.get("warptape_packed") != VERSION:
                version = metadata.get("warptape_packed")
                raise ValueError(f"{path}: expected version {VERSION}, got {version}; pack the model again")
            model = Decoder(config, dtype=getattr(wt, metadata["dtype"]), device="meta")
            for name, kind in json.loads(metadata["layers"]).items():
                parent, _, last = name.rpartition(".")
                setattr(model.get_submodule(parent), last, _made(model.get_submodule(name), kind))
            state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        expected = {name: (t.shape, t.dtype) for name, t in model.state_dict().items()}
        facts = {name: (t.shape, t.dtype) for name, t in state.items()}
        for name in (*expected, *facts):
            if expected.get(name) != facts.get(name):
                raise ValueError(f"{path}: {name} is {facts.get(name)}, expected {expected.get(name)}")
    except SafetensorError as error:
        raise ValueError(str(error)) from error
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{path}: its description of the layers is damaged: {error!r}") from error
    model.load_state_dict(state, assign=True)
    return model.eval()
