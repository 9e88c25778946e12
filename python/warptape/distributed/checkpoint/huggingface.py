"""Weights in Hugging Face's layout: read into models of any layout, and written from checkpoints.

The layout is safetensors files, and where there are several `model.safetensors.index.json`. Names and shapes
differ between its models and ours: a NameMap says how (names.py).
"""

from __future__ import annotations

import json
import math
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

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
from .names import NameMap, sliced, written
from .plan import agree, describe, exchange, world_of
from .save import sync_folder, write_file
from .slices import Slice, held
from .state import model_of, modules_of

if TYPE_CHECKING:
    from warptape.distributed.state import Group


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
    stems = [sliced(bare) for bare in names.theirs(name)]
    for bare, index in stems:
        full = next((n for n in names.candidates(bare) if n in there), None)
        if full is None:
            return f"{bare} is missing there, for {name}"
        entry = there[full]
        shape, at = entry["shape"], entry["at"]
        if index is not None:
            slices = sum(stem == bare for stem, _ in stems)
            if len(shape) < 2 or shape[0] != slices:
                return f"{bare} is {list(shape)} there, not {slices} slices for {name}"
            shape = shape[1:]
            at += index * math.prod(shape) * itemsize(entry["dtype"])
        turned = names.transposed(bare) and len(shape) == 2
        shape = shape[::-1] if turned else shape
        where = ((start, *[0] * (len(shape) - 1)), shape) if shape else ((), ())
        pieces.append({"box": where, "file": entry["file"], "at": at, "transposed": turned})
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


def load_huggingface(
    model: Any, folder: str | os.PathLike[str], names: NameMap, *, process_group: Group = None
) -> None:
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


def tensor_names(folder: str | os.PathLike[str]) -> list[str]:
    """Their names of the tensors in a folder. Raises CheckpointException.

    Args:
        folder: with safetensors files.
    """
    try:
        return list(_read_headers(Path(folder))[1])
    except Exception as error:
        raise CheckpointException(f"load from {folder}: {describe(error)}") from error


def save_huggingface(
    checkpoint_id: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    names: NameMap,
    *,
    model: Any = "model",
    max_shard_size: int = 5 << 30,
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
        for item in written(manifest, names, f"{model}.")
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
        for _, name, rows, _ in items:
            entry = manifest["tensors"][name]
            values = rows.of(_whole(shards, entry, entry["shape"]))
            yield np.ascontiguousarray(values).reshape(-1).view(np.uint8).data

    write_file(path, parts())
