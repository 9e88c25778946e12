"""torch.distributed.checkpoint.hf_storage: plain safetensors files in place of a checkpoint.

Files are those of Hugging Face: model-00001-of-00002.safetensors and so on, with
model.safetensors.index.json.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import warptape

from ..._tensor import Tensor
from ...utils.safetensors import load_file, save_file
from ..collectives import barrier
from .layout import CheckpointException
from .plan import world_of

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
_INDEX = "model.safetensors.index.json"


def _flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in state.items():
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


class HuggingFaceStorageWriter:
    """Writes the tensors of a state to safetensors files, whole: parts are gathered, and rank 0 writes.

    Args:
        path: the folder.
        fqn_to_index_mapping: which of the files, from 1, has a tensor; all in the first by default.
        thread_count, token, consolidated_output_path, thread_count_consolidation: make no difference.
        save_distributed: files of parts, one a rank, are not written.

    Raises: NotImplementedError for save_distributed without enable_consolidation, TypeError for a state that
    has other things than tensors.
    """

    def __init__(
        self,
        path: Any,
        fqn_to_index_mapping: dict[str, int] | None = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
        **more: Any,
    ) -> None:
        if save_distributed and not enable_consolidation:
            raise NotImplementedError(
                "HuggingFaceStorageWriter: files of parts are not written; pass enable_consolidation=True "
                "or save_distributed=False"
            )
        self.path, self.files = path, fqn_to_index_mapping or {}

    def write_state(self, state: dict[str, Any], path: Any, group: Any) -> None:
        """What `save` calls. Collective."""
        rank, world = world_of(group)
        tensors: dict[str, Tensor] = {}
        for name, value in _flat(state).items():
            if not isinstance(value, Tensor):
                raise TypeError(f"HuggingFaceStorageWriter: {name} is {type(value).__name__}, not a tensor")
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            tensors[name] = whole.detach().cpu().contiguous()
        if rank == 0:
            self._write(Path(path), tensors)
        if world > 1:
            barrier(group)

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        count = max(self.files.values(), default=1)
        index: dict[str, str] = {}
        for number in range(1, count + 1):
            name = f"model-{number:05}-of-{count:05}.safetensors"
            own = {k: t for k, t in tensors.items() if self.files.get(k, 1) == number}
            aside = folder / f".{name}.part"
            save_file(own, aside, metadata={"format": "pt"})
            os.replace(aside, folder / name)
            index |= dict.fromkeys(own, name)
        size = sum(t.nbytes for t in tensors.values())
        text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=2)
        (folder / _INDEX).write_text(text)


class HuggingFaceStorageReader:
    """Reads the tensors of a state from safetensors files: of what ranks hold parts of, each its own.

    Raises: CheckpointException for a name that is not there, or has another shape.
    """

    def __init__(self, path: Any, thread_count: int = 1, **more: Any) -> None:
        self.path = path

    def read_state(self, state: dict[str, Any], path: Any) -> None:
        """What `load` calls: changes the tensors in place."""
        wanted = _flat(state)
        found: dict[str, Tensor] = {}
        for file in sorted(Path(path).glob("*.safetensors")):
            found |= {k: t for k, t in load_file(file).items() if k in wanted}
        for name, target in wanted.items():
            if name not in found:
                raise CheckpointException(f"load from {path}: tensor {name} is missing there")
            value = found[name]
            shape = getattr(target, "full_shape", tuple(target.shape))
            if tuple(value.shape) != tuple(shape):
                raise CheckpointException(
                    f"load from {path}: tensor {name} is {list(value.shape)} there and {list(shape)} here"
                )
            with warptape.no_grad():
                if hasattr(target, "like_whole"):
                    target._local_tensor.copy_(target.like_whole(value)._local_tensor)
                else:
                    target.copy_(target.part_of(value) if hasattr(target, "part_of") else value)
