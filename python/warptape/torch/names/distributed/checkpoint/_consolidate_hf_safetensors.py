"""torch.distributed.checkpoint._consolidate_hf_safetensors: would join files of parts; there are none."""

from __future__ import annotations

import os
from typing import Any

__all__ = ["consolidate_safetensors_files", "consolidate_safetensors_files_on_every_rank"]


def consolidate_safetensors_files(
    input_dir: str | os.PathLike[str], output_dir: str | os.PathLike[str], *args: Any, **kwargs: Any
) -> None:
    """Not supported: HuggingFaceStorageWriter writes whole tensors."""
    raise NotImplementedError(
        "consolidate_safetensors_files: the writer writes whole tensors; nothing is to be joined"
    )


consolidate_safetensors_files_on_every_rank = consolidate_safetensors_files
