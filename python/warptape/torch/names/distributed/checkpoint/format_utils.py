"""torch.distributed.checkpoint.format_utils: between a checkpoint's folder and a file of torch.save."""

from __future__ import annotations

import os
from typing import Any

from warptape import core as wt
from warptape import serialization
from warptape.distributed.checkpoint.layout import CheckpointException
from warptape.distributed.checkpoint.load import find, load, read_manifest
from warptape.distributed.checkpoint.save import save
from warptape.distributed.checkpoint.state import decode_object
from warptape.distributed.checkpoint.tree import nested
from warptape.utils.safetensors import KINDS

__all__ = ["dcp_to_torch_save", "torch_save_to_dcp"]


def dcp_to_torch_save(
    dcp_checkpoint_dir: str | os.PathLike[str], torch_save_path: str | os.PathLike[str]
) -> None:
    """Writes all of a checkpoint, whole, to one file: the nested dict that was saved. For one process of a
    job or without one; it talks to no other."""
    manifest = read_manifest(find(dcp_checkpoint_dir))
    values: dict[str, Any] = {
        name: wt.empty(tuple(entry["shape"]), dtype=KINDS[entry["dtype"]][0])
        for name, entry in manifest["tensors"].items()
    }
    load(dict(values), checkpoint_id=dcp_checkpoint_dir, no_dist=True)
    values |= {alias: values[name] for alias, name in manifest["aliases"].items()}
    values |= {name: decode_object(entry) for name, entry in manifest["objects"].items()}
    try:
        state = nested(manifest["containers"], values)
    except (ValueError, KeyError, RecursionError) as error:
        raise CheckpointException(f"{dcp_checkpoint_dir}: {error}; no save wrote it") from error
    serialization.save(state, torch_save_path)


def torch_save_to_dcp(
    torch_save_path: str | os.PathLike[str], dcp_checkpoint_dir: str | os.PathLike[str]
) -> None:
    """Writes what a file of torch.save has to a checkpoint. For one process, as dcp_to_torch_save.

    Args:
        torch_save_path: a file of plain data and tensors.
        dcp_checkpoint_dir: the new folder.
    """
    state = serialization.load(torch_save_path, weights_only=True)
    save(state, checkpoint_id=dcp_checkpoint_dir, no_dist=True)
