"""torch.distributed.checkpoint._consolidate_hf_safetensors: would join files of parts; there are none."""

from __future__ import annotations

from typing import Any

__all__ = ["consolidate_safetensors_files", "consolidate_safetensors_files_on_every_rank"]


def consolidate_safetensors_files(input_dir: Any, output_dir: Any, *args: Any, **kwargs: Any) -> None:
    """Not supported: HuggingFaceStorageWriter writes whole tensors."""
    raise NotImplementedError(
        "consolidate_safetensors_files: the writer writes whole tensors; nothing is to be joined"
    )


consolidate_safetensors_files_on_every_rank = consolidate_safetensors_files
