"""torch.distributed.rpc by name: remote procedure calls are not supported, and say so when they are used."""

from __future__ import annotations

from typing import Any

from .._missing import lookup as _lookup
from .._missing import unusable as _unusable

_NAMES = (
    "BackendType PyRRef RRef RpcBackendOptions TensorPipeRpcBackendOptions WorkerInfo get_worker_info init_rpc "
    "remote rpc_async rpc_sync shutdown"
).split()
_REASON = "remote procedure calls are not supported; use the collectives, or send and recv"


def is_available() -> bool:
    """False."""
    return False


def _refusing() -> dict[str, Any]:
    return {name: _unusable(f"torch.distributed.rpc.{name}", _REASON) for name in _NAMES}


globals().update(_refusing())
__all__ = ["is_available", *_NAMES]

__getattr__ = _lookup(__name__)
