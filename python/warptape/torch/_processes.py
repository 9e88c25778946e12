"""Names of torch.distributed that libraries use besides the public ones."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple, NewType
from urllib.parse import parse_qsl, urlsplit

import warptape.distributed as distributed
from warptape import core as wt

from ..core import Tensor
from ..distributed import functional
from ..distributed.state import DEFAULT_TIMEOUT, peek_state, resolve
from .names.distributed._functional_collectives import _group

GroupName = NewType("GroupName", str)


class _Groups(Mapping[Any, Any]):
    """The process groups of this rank, each with its backend, as they are at the time of asking."""

    def _now(self) -> dict[Any, Any]:
        state = peek_state()
        return {} if state is None else {g: (distributed.get_backend(g), None) for g in state.groups.values()}

    def __getitem__(self, key: object) -> Any:
        return self._now()[key]

    def __iter__(self) -> Iterator[Any]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())


class _World:
    """What torch.distributed knows of this rank's groups."""

    pg_map = _Groups()

    @property
    def default_pg(self) -> Any:
        """The default group, None before init_process_group()."""
        return resolve(None) if distributed.is_initialized() else None

    @property
    def pg_names(self) -> dict[Any, str]:
        """The name of each group."""
        state = peek_state()
        return {} if state is None else {group: name for name, group in state.groups.items()}


pg_map, world = _World.pg_map, _World()


def get_pg_count() -> int:
    """How many process groups this rank has."""
    return len(pg_map)


def get_process_group_name(pg: Any) -> str:
    """The name under which a group is known; "None" for none."""
    return world.pg_names.get(pg, "None")


def rendezvous(url: str, rank: int = -1, world_size: int = -1, **kwargs: Any) -> Iterator[Any]:
    """Yields (store, rank, world size) for "env://", "tcp://host:port?rank=..&world_size=.." or "file:///path".

    Raises:
        ValueError: rank, world size or address are given nowhere.
        RuntimeError: another kind of address.
    """
    parts = urlsplit(url)
    told = dict(parse_qsl(parts.query))
    timeout = kwargs.get("timeout", DEFAULT_TIMEOUT)
    from_environment = os.environ if parts.scheme == "env" else {}

    def number(given: int, key: str) -> int:
        value = given if given >= 0 else int(told.get(key, from_environment.get(key.upper(), -1)))
        if value < 0:
            raise ValueError(
                f"Error initializing torch.distributed using {parts.scheme}:// rendezvous: {key} missing"
            )
        return value

    rank, world_size = number(rank, "rank"), number(world_size, "world_size")
    if parts.scheme == "file":
        yield distributed.FileStore(parts.path, world_size), rank, world_size
        return
    if parts.scheme not in ("env", "tcp"):
        raise RuntimeError(f"No rendezvous handler for {parts.scheme}://")
    host, port = parts.hostname, parts.port
    if parts.scheme == "env":
        host, port = os.environ.get("MASTER_ADDR"), int(os.environ.get("MASTER_PORT", -1))
    if not host or port is None or port < 0:
        raise ValueError(
            f"Error initializing torch.distributed using {parts.scheme}:// rendezvous: no address"
        )
    yield distributed.TCPStore(host, port, world_size, rank == 0, timeout), rank, world_size


def all_to_all(
    output_tensor_list: Sequence[Tensor], input_tensor_list: Sequence[Tensor], group: Any = None
) -> Any:
    """Tensor i goes to rank i; those that come are returned, and their gradients go back.

    `output_tensor_list` has the shapes of what comes and is left as it is.
    """
    flat = wt.cat([t.reshape(-1) for t in input_tensor_list])
    counts = [t.numel() for t in output_tensor_list]
    out = functional.all_to_all(flat, [t.numel() for t in input_tensor_list], counts, group)
    return tuple(part.view(t.shape) for part, t in zip(out.split(counts), output_tensor_list))


def all_to_all_single(
    output: Tensor,
    input: Tensor,
    output_split_sizes: Sequence[int] | None = None,
    input_split_sizes: Sequence[int] | None = None,
    group: Any = None,
) -> Tensor:
    """Rows go to the ranks and come from them; the gradient takes the way back. `output` is left as it is."""
    return functional.all_to_all(input, input_split_sizes, output_split_sizes, group)


def permute_tensor(self: Tensor, src_dst: Sequence[int], group: Any, tag: str = "") -> Tensor:
    """The tensor of the rank whose entry is this rank: rank i sends to src_dst[i]."""
    pg = _group(group)
    rank = distributed.get_rank(pg)
    rows = self.contiguous().reshape(1, -1)
    sends = [0] * distributed.get_world_size(pg)
    takes = [0] * len(sends)
    sends[src_dst[rank]] = 1
    takes[[*src_dst].index(rank)] = 1
    return functional.all_to_all(rows, sends, takes, pg).reshape(self.shape)


class TensorMeta(NamedTuple):
    """What a DTensor's spec tells of the whole tensor."""

    shape: Any
    stride: tuple[int, ...]
    dtype: Any
