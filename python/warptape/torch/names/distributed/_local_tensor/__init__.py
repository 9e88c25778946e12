"""torch.distributed._local_tensor: PyTorch's way to run all ranks in one process, which is another here."""

from __future__ import annotations

import contextlib

from warptape._missing import unusable

__all__ = ["LocalTensor", "LocalTensorMode"]

_REASON = "ranks in one process are threads here: warptape.distributed.simulation"
LocalTensor = unusable("torch.distributed._local_tensor.LocalTensor", _REASON)
LocalTensorMode = unusable("torch.distributed._local_tensor.LocalTensorMode", _REASON)


def local_tensor_mode() -> None:
    """The mode that runs: none."""
    return


def maybe_disable_local_tensor_mode() -> contextlib.AbstractContextManager[None]:
    """A block in which the mode does not run: there is none to stop."""
    return contextlib.nullcontext()
