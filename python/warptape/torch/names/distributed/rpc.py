"""torch.distributed.rpc, which libraries import: there are no remote procedure calls, as the names say."""

from __future__ import annotations

from typing import Any

from warptape._missing import unusable

__all__ = ["init_rpc", "is_available", "rpc_async", "rpc_sync", "shutdown"]


def is_available() -> bool:
    """False: there are no remote procedure calls.

    Programs that ask first can do without them.
    """
    return False


def _absent(name: str) -> Any:
    return unusable(f"torch.distributed.rpc.{name}", "remote procedure calls are not supported")


init_rpc, rpc_async, rpc_sync, remote, shutdown = map(
    _absent, ("init_rpc", "rpc_async", "rpc_sync", "remote", "shutdown")
)
RRef, WorkerInfo, TensorPipeRpcBackendOptions = map(
    _absent, ("RRef", "WorkerInfo", "TensorPipeRpcBackendOptions")
)
