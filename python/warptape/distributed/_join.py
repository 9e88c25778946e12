"""How a rank finds the others: the store they share, and whether they are on one host."""

from __future__ import annotations

import hashlib
import secrets
from collections import Counter
from datetime import timedelta
from typing import Any
from urllib.parse import parse_qs, urlparse

from .._C import _distributed as _C
from . import _environment
from ._store import FileStore, TCPStore, _here, unix_name

_joined: Counter[str] = Counter()  # how often this process has, by job


def _tcp_store(host: str, port: int, secret: str | None, rank: int, timeout: timedelta) -> Any:
    return TCPStore(host, port, is_master=rank == 0, timeout=timeout, secret=secret)


def _from_environment(rank: int, world_size: int, timeout: timedelta) -> tuple[int, int, str, Any]:
    env = _environment.find(rank=rank, world_size=world_size)
    if env is None:
        raise ValueError(
            "init_process_group: the environment does not say which rank this is (RANK is not set); "
            + _environment.HOW_TO_START
        )
    _joined[env.job] += 1
    if env.rendezvous == "unix":
        # Whoever joins again after leaving must not meet the store of the first time.
        name = f"{env.socket_name()}/{_joined[env.job]}".removeprefix("\0")
        endpoint = _C.Endpoint(unix_name=name)
        server = _C.StoreServer(endpoint) if env.rank == 0 else None
        store = _C.ServedStore(endpoint, timeout, server, env.rank)
    elif env.agent_store is not None:
        store = _agent_store(env, timeout)
    else:
        assert env.host is not None and env.port is not None
        store = _tcp_store(env.host, env.port, env.secret, env.rank, timeout)
    return env.rank, env.world_size, env.job, store


def _agent_store(env: _environment.Environment, timeout: timedelta) -> Any:
    """Under torchrun over several hosts: rank 0 takes a port and says which in the agent's own store."""
    from ._torch_store import find_address, publish_address

    if env.rank == 0:
        store = _tcp_store("0.0.0.0", 0, env.secret, 0, timeout)
        publish_address(env, store.port)
        return store
    return _tcp_store(*find_address(env, timeout.total_seconds()), env.secret, env.rank, timeout)


def need_ranks(method: str, rank: int, world_size: int) -> None:
    """Raises ValueError when the caller did not say which rank of how many it is."""
    if rank < 0 or world_size < 1:
        raise ValueError(f"init_process_group: {method} needs rank and world_size")
    if rank >= world_size:
        raise ValueError(f"init_process_group: expected rank below world_size ({world_size}), got {rank}")


def join(
    init_method: str | None, rank: int, world_size: int, timeout: timedelta
) -> tuple[int, int, str, Any]:
    """(rank, world size, job name, store) by an init_method: env://, tcp://host:port or file:///path."""
    method = init_method or "env://"
    url = urlparse(method)
    query = {key: int(values[0]) for key, values in parse_qs(url.query).items()}
    rank, world_size = query.get("rank", rank), query.get("world_size", world_size)
    if url.scheme == "env":
        return _from_environment(rank, world_size, timeout)
    need_ranks(url.scheme + "://", rank, world_size)
    job = url.scheme + "-" + hashlib.sha256(method.encode()).hexdigest()[:12]
    if url.scheme == "file":
        return rank, world_size, job, FileStore(url.path, world_size, timeout=timeout)
    if url.scheme == "tcp":
        if url.hostname is None or url.port is None:
            raise ValueError(f"init_process_group: expected tcp://host:port, got {method}")
        return rank, world_size, job, _tcp_store(url.hostname, url.port, None, rank, timeout)
    raise ValueError(f"init_process_group: no such init_method: {method}; there are env://, tcp://, file://")


def on_one_host(store: Any, rank: int, world_size: int, timeout: timedelta) -> Any | None:
    """A store that can hand over shared memory when all ranks are on this host, else None."""
    if store._shares_files():
        return store
    name = unix_name("host", secrets.token_hex(8))
    endpoint = _C.Endpoint(unix_name=name)
    server = _C.StoreServer(endpoint) if rank == 0 else None
    store.set(f"host/{rank}", f"{_here()}\n{name}")
    store.wait([f"host/{r}" for r in range(world_size)], timeout)
    hosts = [store.get(f"host/{r}").decode().split("\n") for r in range(world_size)]
    if any(host != hosts[0][0] for host, _ in hosts):
        return None
    return _C.ServedStore(_C.Endpoint(unix_name=hosts[0][1]), timeout, server, rank)
