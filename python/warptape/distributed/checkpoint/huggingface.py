"""Weights in Hugging Face's layout: read into models of any layout, and written from checkpoints.

The layout is safetensors files, and where there are several `model.safetensors.index.json`. Names and shapes
differ between its models and ours: a NameMap says how.
"""

from __future__ import annotations

import json
import math
import os
import re
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from ...utils.safetensors import (
    INDEX,
    KINDS,
    encode_header,
    itemsize,
    plan_shards,
    read_header,
    shard_files,
    shard_name,
)
from .layout import CheckpointException
from .load import Shards, copy_all, find, parts_of, read_manifest, verify_all
from .plan import agree, describe, exchange, world_of
from .save import sync_folder, write_file
from .slices import Slice, held
from .state import model_of, modules_of


@dataclass(frozen=True)
class NameMap:
    """From our names of tensors to theirs.

    Args:
        rename: our pattern -> theirs, or a tuple of theirs that are joined along dim 0 into ours. Each `*`
            stands for the same text in both; the first pattern that fits is taken, else a name stays.
        transpose: patterns of their names of matrices that they keep as [inputs, outputs].
        prefix: with which their names may begin, and are written.
        ignore: patterns of their names that ours need not have.
        sizes: our pattern -> the sizes along dim 0 of what is joined; for writing not needed if equal.
        older: endings of their names -> those that older files have instead, for reading.
    """

    rename: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    transpose: tuple[str, ...] = ()
    prefix: str = ""
    ignore: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names, without prefix, of what makes up ours."""
        for pattern, target in self.rename.items():
            texts = _fits(name, pattern)
            if texts is not None:
                targets = (target,) if isinstance(target, str) else target
                return tuple(_filled(each, texts) for each in targets)
        return (name,)

    def transposed(self, theirs: str) -> bool:
        """Whether one of theirs is kept the other way round."""
        return any(_fits(theirs, pattern) is not None for pattern in self.transpose)

    def split(self, name: str, each: list[int]) -> list[int]:
        """The rows of ours that each of theirs has, if `sizes` says it, else the same as given."""
        fitting = (sizes for pattern, sizes in self.sizes.items() if _fits(name, pattern) is not None)
        return list(next(fitting, each))

    def ignored(self, name: str) -> bool:
        """Whether ours need not have one of theirs."""
        bare = name.removeprefix(self.prefix)
        return any(_fits(bare, pattern) is not None for pattern in self.ignore)

    def candidates(self, bare: str) -> Iterator[str]:
        """What a file may call one of theirs."""
        endings = ((new, old) for new, old in self.older.items() if bare.endswith(new))
        for name in (bare, *(bare.removesuffix(new) + old for new, old in endings)):
            yield from (self.prefix + name, name)


def _fits(name: str, pattern: str) -> tuple[str, ...] | None:
    """What the `*` of a pattern stand for, each for something between dots; None if it does not fit."""
    fits = re.fullmatch("([^.]*)".join(re.escape(part) for part in pattern.split("*")), name)
    return fits.groups() if fits else None


def _filled(pattern: str, texts: tuple[str, ...]) -> str:
    pieces = pattern.split("*")
    return "".join(a + b for a, b in zip(pieces, (*texts, "")))


# nanoGPT's names are theirs; both families of models may have other ones by `rename`
GPT2 = NameMap(
    transpose=(
        "h.*.attn.c_attn.weight",
        "h.*.attn.c_proj.weight",
        "h.*.mlp.c_fc.weight",
        "h.*.mlp.c_proj.weight",
    ),
    prefix="transformer.",
    ignore=("h.*.attn.bias", "h.*.attn.masked_bias"),
)
LLAMA = NameMap(prefix="model.", ignore=("layers.*.self_attn.rotary_emb.inv_freq",))


def _read_headers(folder: Path) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The files, as in a manifest, and for each tensor its kind, shape, file and first byte."""
    files: dict[str, Any] = {}
    tensors: dict[str, dict[str, Any]] = {}
    for name in shard_files(folder):
        with open(folder / name, "rb") as file:
            size = os.fstat(file.fileno()).st_size
            entries, _ = read_header(file, size, name)
        files[name] = {"bytes": size}
        for tensor, (kind, shape, at) in entries.items():
            tensors[tensor] = {"dtype": kind, "shape": shape, "file": name, "at": at}
    return files, tensors


def _entry(name: str, names: NameMap, there: dict[str, Any], used: set[str]) -> dict[str, Any] | str:
    """A tensor of ours as a manifest describes it, or what is missing."""
    start, pieces, shapes, kinds = 0, [], [], set()
    for bare in names.theirs(name):
        full = next((n for n in names.candidates(bare) if n in there), None)
        if full is None:
            return f"{bare} is missing there, for {name}"
        entry = there[full]
        turned = names.transposed(bare) and len(entry["shape"]) == 2
        shape = entry["shape"][::-1] if turned else entry["shape"]
        where = ((start, *[0] * (len(shape) - 1)), shape) if shape else ((), ())
        pieces.append({"box": where, "file": entry["file"], "at": entry["at"], "transposed": turned})
        start += shape[0] if shape else 1
        shapes.append(shape[1:])
        kinds.add(entry["dtype"])
        used.add(full)
    rows = [piece["box"][1][0] for piece in pieces if piece["box"][1]]
    if len(set(shapes)) != 1 or len(kinds) != 1 or names.split(name, rows) != rows:
        return f"{name}: {', '.join(names.theirs(name))} do not fit together"
    return {
        "dtype": kinds.pop(),
        "shape": (start, *shapes[0]) if pieces[0]["box"][1] else (),
        "pieces": pieces,
    }


def load_huggingface(model: Any, folder: Any, names: NameMap, *, process_group: Any = None) -> None:
    """Reads weights in Hugging Face's layout into a model, in place: each rank its part. Collective.

    Args:
        model: a module, or what a state for load() may have as a model: stages of a pipeline, split modules.
        folder: with model.safetensors, or several such files and their index.
        names: GPT2, LLAMA, or another map.

    Raises: CheckpointException on every rank, with nothing changed, for missing and for unknown names, other
    shapes, and files that are damaged so that it shows: this layout has no checksums.
    """
    path = Path(os.path.abspath(folder))
    _, world = world_of(process_group)
    cause, fault, used = None, None, set[str]()
    manifest: dict[str, Any] = {"tensors": {}}
    there: dict[str, Any] = {}
    try:
        manifest["files"], there = _read_headers(path)
        layout = model_of("", modules_of(model))
        others: dict[str, list[str]] = {}
        for alias, name in layout.aliases.items():
            others.setdefault(name, []).append(alias)
        wanted, faults, twice = [], [], []
        for key, tensor in layout.tensors.items():
            into, entry = held(tensor), _entry(key[1:], names, there, used)
            for alias in others.get(key, ()):
                again = _entry(alias[1:], names, there, used)
                if isinstance(entry, str):
                    entry = again
                elif isinstance(again, dict):
                    twice.append((alias[1:], entry, again))
            if isinstance(entry, str):
                faults.append(entry)
            elif entry["shape"] != into.shape:
                files = ", ".join(sorted({piece["file"] for piece in entry["pieces"]}))
                shapes = f"{list(entry['shape'])} there and {list(into.shape)} here"
                faults.append(f"{key[1:]} is {shapes}, in {files}")
            elif KINDS[entry["dtype"]][0].is_floating_point != into.tensor.dtype.is_floating_point:
                faults.append(f"{key[1:]} is {entry['dtype']} there and {into.tensor.dtype} here")
            else:
                manifest["tensors"][key] = entry
                wanted.append((key, into))
        if faults:
            raise CheckpointException("; ".join(faults[:8]))
        parts = list(parts_of(manifest, wanted))
        shards = Shards(path, manifest, {t["file"] for t in there.values() if parts}, follow=True)
        for alias, one, other in twice:
            if not _same(shards, one, other):
                raise CheckpointException(f"{alias} is one parameter with another here, and two there")
    except Exception as error:
        fault, cause = describe(error), error
    reports = exchange([fault, sorted(used)], process_group, world)
    agree(f"load from {folder}", [each[0] for each in reports], cause)
    known = set().union(*(each[1] for each in reports))
    extra = [n for n in there if n not in known and not names.ignored(n)]
    if extra:
        named = [f"{name}, in {there[name]['file']}" for name in extra[:8]]
        raise CheckpointException(f"load from {folder}: nothing here is called {'; '.join(named)}")
    copy_all(shards, manifest, parts)


def _same(shards: Shards, *entries: dict[str, Any]) -> bool:
    one, other = (_whole(shards, entry, entry["shape"]) for entry in entries)
    return one.dtype == other.dtype and one.tobytes() == other.tobytes()


# ---- writing ----


def _whole(shards: Shards, entry: dict[str, Any], shape: tuple[int, ...]) -> np.ndarray:
    """A tensor of a checkpoint, put together."""
    out = np.empty(shape, KINDS[entry["dtype"]][1])
    for piece in entry["pieces"]:
        where: Slice = piece["box"]
        out[tuple(slice(s, s + n) for s, n in zip(*where))] = shards.values(entry["dtype"], piece, where)
    return out


def _written(manifest: dict[str, Any], names: NameMap, under: str) -> Iterator[tuple[str, str, Any, Any]]:
    """(their name, ours, rows of ours, shape) of what is written."""
    for name, entry in manifest["tensors"].items():
        if not name.startswith(under):
            continue
        bare, shape = name.removeprefix(under), entry["shape"]
        theirs = names.theirs(bare)
        rows = shape[0] if shape else 1
        sizes = names.split(bare, [rows // len(theirs)] * len(theirs)) if len(theirs) > 1 else [rows]
        if len(sizes) != len(theirs) or (shape and sum(sizes) != shape[0]):
            raise CheckpointException(
                f"{bare} has {shape[0]} rows, not those of {list(theirs)}: {sizes}; set NameMap.sizes"
            )
        start = 0
        for each, rows in zip(theirs, sizes):
            part = (rows, *shape[1:]) if shape else ()
            turned = names.transposed(each) and len(part) == 2
            full = each if each.startswith("lm_head.") else names.prefix + each
            yield full, name, (start, rows, turned), part[::-1] if turned else part
            start += rows


def theirs_of(state_dict: Mapping[str, Any], names: NameMap) -> dict[str, Any]:
    """A model's tensors by their names. Raises CheckpointException for rows that do not divide as theirs."""
    out = {}
    manifest = {"tensors": {name: {"shape": tuple(t.shape)} for name, t in state_dict.items()}}
    for full, name, (start, rows, turned), _ in _written(manifest, names, ""):
        part = state_dict[name].detach()
        part = part[start : start + rows] if part.ndim else part
        out[full] = (part.t() if turned else part).contiguous()
    return out


def tensor_names(folder: Any) -> list[str]:
    """Their names of the tensors in a folder. Raises CheckpointException."""
    try:
        return list(_read_headers(Path(folder))[1])
    except Exception as error:
        raise CheckpointException(f"load from {folder}: {describe(error)}") from error


def save_huggingface(
    checkpoint_id: Any, folder: Any, names: NameMap, *, model: str = "model", max_shard_size: int = 5 << 30
) -> None:
    """Writes the model of a checkpoint, of whatever layout, as Hugging Face's. One process; `folder` is new.

    Args:
        model: what the state that was saved calls it.
        max_shard_size: bytes of one file, unless one tensor has more; several get an index.

    Raises: CheckpointException for a damaged checkpoint, FileExistsError.
    """
    source, path = find(checkpoint_id), Path(os.path.abspath(folder))
    manifest = read_manifest(source)
    if path.exists():
        raise FileExistsError(f"{path} is there; choose another folder")
    verify_all(source, manifest, f"{model}.")
    items = [
        (item, math.prod(item[3]) * itemsize(manifest["tensors"][item[1]]["dtype"]))
        for item in _written(manifest, names, f"{model}.")
    ]
    if not items:
        raise CheckpointException(f"{source}: it has no model called {model!r}")
    plans = plan_shards(items, max_shard_size)
    shards = Shards(source, manifest, set(manifest["files"]))
    temporary = path.with_name(f".{path.name}.tmp-{secrets.token_hex(8)}")
    os.mkdir(temporary)
    try:
        weight_map = {}
        for i, plan in enumerate(plans):
            file = shard_name(i, len(plans))
            weight_map.update(dict.fromkeys((item[0] for item in plan), file))
            _write_theirs(temporary / file, shards, manifest, plan)
        if len(plans) > 1:
            index = {"metadata": {"total_size": sum(size for _, size in items)}, "weight_map": weight_map}
            write_file(temporary / INDEX, [json.dumps(index, indent=2).encode()])
        sync_folder(temporary)
        os.rename(temporary, path)
        sync_folder(path.parent)
    except BaseException:
        shutil.rmtree(temporary, ignore_errors=True)
        raise


def _write_theirs(path: Path, shards: Shards, manifest: dict[str, Any], items: list[Any]) -> None:
    items = sorted(items, key=lambda item: -itemsize(manifest["tensors"][item[1]]["dtype"]))
    kinds = [manifest["tensors"][item[1]]["dtype"] for item in items]
    header = encode_header([(item[0], kind, item[3]) for item, kind in zip(items, kinds)], {"format": "pt"})

    def parts() -> Iterator[memoryview | bytes]:
        yield header
        for _, name, (start, rows, turned), _ in items:
            entry = manifest["tensors"][name]
            values = _whole(shards, entry, entry["shape"])
            values = values[start : start + rows] if entry["shape"] else values
            yield np.ascontiguousarray(values.T if turned else values).reshape(-1).view(np.uint8).data

    write_file(path, parts())
