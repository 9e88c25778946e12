"""Joining a job, and groups of its ranks."""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .._C import DistStoreError
from .._C import _distributed as _C
from . import _environment, _join
from ._agreement import Agreement
from .launcher.errors import record_uncaught
from .state import (
    DEFAULT_TIMEOUT,
    Group,
    GroupMember,
    ProcessGroup,
    RankState,
    peek_state,
    resolve,
    set_state,
    state,
)

if TYPE_CHECKING:
    pass

logger = logging.getLogger("warptape.distributed")


class Backend(str):
    """A backend's name.

    It is a string that also has the known names as attributes, as `Backend.GLOO`.
    """

    UNDEFINED = "undefined"
    SHM = "shm"
    GLOO = "gloo"
    NCCL = "nccl"
    MPI = "mpi"
    #: What PyTorch takes for a device; "gloo" is answered by shared memory on one host.
    default_device_backend_map = {"cpu": GLOO, "cuda": NCCL}

    @classmethod
    def register_backend(
        cls,
        name: str,
        func: Callable[..., Any],
        extended_api: bool = False,
        devices: str | list[str] | None = None,
    ) -> None:
        """Would add a backend written in Python; here backends are plugins in C++.

        Args:
            name: of the backend.
            func, extended_api, devices: not looked at.

        Raises:
            NotImplementedError: always.
        """
        raise NotImplementedError(
            f"Backend.register_backend: {name!r} cannot be added; there are shm, gloo, nccl and mpi"
        )


_KNOWN = (Backend.SHM, Backend.GLOO, Backend.NCCL, Backend.MPI)
_said: set[str] = set()


def _say_once(text: str) -> None:
    if text not in _said:
        _said.add(text)
        logger.warning(text)


def _backends(name: str | None, one_host: bool) -> tuple[str, str]:
    """The backends of CPU and of CUDA tensors that an argument `backend` means."""
    asked = os.environ.get("WARPTAPE_GLOO") == "1"
    chosen = {"cpu": "shm" if one_host and not asked else "gloo", "cuda": "nccl"}
    for part in (name or "").lower().split(","):
        device, colon, backend = part.strip().rpartition(":")
        if backend == "":
            continue
        if backend not in _KNOWN:
            raise ValueError(
                f"init_process_group: expected a backend out of {', '.join(_KNOWN)}, got {backend!r}"
            )
        if device not in ("", "cpu", "cuda"):
            raise ValueError(f"init_process_group: no backend for device {device!r}; expected cpu or cuda")
        for each in [device] if colon else ["cuda" if backend == "nccl" else "cpu"]:
            chosen[each] = backend
    if chosen["cpu"] == "gloo" and one_host and not asked:
        _say_once(
            "backend 'gloo': all ranks are on this host, so shared memory is used; "
            "WARPTAPE_GLOO=1 asks for gloo"
        )
        chosen["cpu"] = "shm"
    if chosen["cpu"] == "shm" and not one_host:
        raise ValueError(
            "init_process_group: the ranks are on several hosts, and 'shm' reaches one only; use 'gloo'"
        )
    return chosen["cpu"], chosen["cuda"]


def _meet(store: Any, rank: int, world_size: int, timeout: timedelta) -> None:
    """Waits for all ranks; a DistStoreError names those that did not come."""
    if world_size > 1 and not store.check([f"here/{rank}"]):
        store.set(f"here/{rank}", str(os.getpid()))
    elif world_size > 1:
        raise DistStoreError(
            f"init_process_group: a process with rank {rank} has joined already; "
            "every rank needs a number of its own"
        )
    try:
        store.wait([f"here/{r}" for r in range(world_size) if world_size > 1], timeout)
    except DistStoreError as error:
        missing = [str(r) for r in range(world_size) if not store.check([f"here/{r}"])]
        raise DistStoreError(
            f"init_process_group: rank {rank} waited {timeout.total_seconds():g} s for rank"
            f"{'s' if len(missing) > 1 else ''} {', '.join(missing)} of {world_size} to join"
        ) from error


def init_process_group(
    backend: str | None = None,
    init_method: str | None = None,
    timeout: timedelta | None = None,
    world_size: int = -1,
    rank: int = -1,
    store: Any = None,
    group_name: str = "",
    pg_options: object = None,
    device_id: wt.device | int | None = None,
    _ranks: Sequence[int] | None = None,
) -> None:
    """Joins the job and makes the default group. Collective: returns when all ranks have joined.

    Args:
        backend: "shm" (default for CPU tensors on one host), "nccl" (CUDA tensors), "gloo" (CPU tensors over
            several hosts; on one host it means "shm" unless WARPTAPE_GLOO=1, with which it is the default),
            "mpi" (CPU tensors of ranks that mpirun started, on one host or several), or one for each device:
            "cpu:shm,cuda:nccl".
        init_method: "env://" (default: what a launcher put into the environment), "tcp://host:port" or
            "file:///path"; the last two with `rank` and `world_size`.
        timeout: for joining, and the default of every call; 30 minutes if not given.
        store: a store that all ranks share, instead of init_method; with `rank` and `world_size`.
        _ranks: None or empty: the default group has all ranks of the job.

    Raises:
        ValueError: joined already, or the arguments or the environment do not say which rank this is; or
            `_ranks` for another default group: make one by new_group.
        DistStoreError: ranks are missing when the time is over; they are named.
        DistNetworkError: the rendezvous is taken, refused us, or has another secret.

    >>> import warptape.distributed as dist
    >>> dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    >>> dist.get_rank(), dist.get_world_size()
    (0, 1)
    >>> dist.destroy_process_group()
    """
    if peek_state() is not None:
        raise ValueError("trying to initialize the default process group twice!")
    if _ranks:
        raise ValueError(f"init_process_group: the default group has all ranks, got _ranks={list(_ranks)}")
    if store is not None and init_method is not None:
        raise ValueError("init_process_group: give init_method or store, not both")
    record_uncaught(_explain)
    timeout = timeout or DEFAULT_TIMEOUT
    _backends(backend, one_host=backend is None or "shm" in backend or "gloo" in backend or "nccl" in backend)
    if store is not None:
        _join.need_ranks("store", rank, world_size)
        job = group_name or "store"
    else:
        if "mpi" in (backend or "").lower() and init_method is None and _environment.find() is None:
            raise ValueError(
                "init_process_group: backend 'mpi': mpirun has not started this process; "
                "start the script with `mpirun -n 2 python script.py`"
            )
        rank, world_size, job, store = _join.join(init_method, rank, world_size, timeout)
    _meet(store, rank, world_size, timeout)
    local = _join.on_one_host(store, rank, world_size, timeout)
    backends = _backends(backend, local is not None)
    name = backend or (backends[0] if backends[0] == backends[1] else f"cpu:{backends[0]},cuda:{backends[1]}")
    joined = RankState(rank, world_size, name, backends, local or store, timeout)
    _C._join(rank, world_size, job, local or store, timeout)
    try:
        joined.world = _C._new_group(list(range(world_size)), "world", *backends, timeout)
    except BaseException:
        _C._leave()
        raise
    joined.groups["world"] = joined.world
    logger.info("rank %d of %d joined job %s, backend %s", rank, world_size, job, name)
    set_state(joined)


def _explain(error: BaseException | None, group: Group = None) -> None:
    """Has ranks that will wait for this one in vain be told of its exception."""
    left = peek_state()
    if left is None or not isinstance(error, Exception):
        return
    for each in left.groups.values() if group is None else [group]:
        each._explain(f"{type(error).__name__}: {error}")


def destroy_process_group(group: Group = None) -> None:
    """Leaves a group; without one, all groups and the job. Ranks that wait for this one get an error, which
    names the exception that is on its way here, if any."""
    _explain(sys.exc_info()[1], None if group is None else resolve(group))
    if group is None or group is state().world:
        left = state()
        set_state(None)
        for each in left.groups.values():
            each._close()
        left.groups.clear()
        left.world = None
        _C._leave()
        logger.info("rank %d left", left.rank)
        return
    closing = resolve(group)
    closing._close()
    state().groups.pop(closing.group_name, None)


def is_available() -> bool:
    """True: every build has the shm backend."""
    return True


def is_initialized() -> bool:
    """Whether this rank has joined a job.

    >>> torch.distributed.is_initialized()
    False
    """
    return peek_state() is not None


def is_torchelastic_launched() -> bool:
    """Whether torchrun or warptape-run started this process.

    They set TORCHELASTIC_RUN_ID.
    """
    return "TORCHELASTIC_RUN_ID" in os.environ


def is_gloo_available() -> bool:
    """Whether this build has the gloo plugin."""
    return _C._has_backend("gloo")


def is_nccl_available() -> bool:
    """Whether this build has the CUDA plugin, which brings NCCL.

    It says nothing of whether there is a GPU.
    """
    return _C._has_backend("nccl")


def is_mpi_available() -> bool:
    """Whether this build has the MPI plugin."""
    return _C._has_backend("mpi")


def get_rank(group: Group = None) -> int:
    """This rank's number in the group; -1 when it is not in it.

    >>> torch.distributed.simulate(3, torch.distributed.get_rank)
    [0, 1, 2]
    """
    return -1 if group == GroupMember.NON_GROUP_MEMBER else resolve(group).rank()


def get_world_size(group: Group = None) -> int:
    """Ranks in the group; -1 when this rank is not in it.

    >>> torch.distributed.simulate(2, torch.distributed.get_world_size)
    [2, 2]
    """
    return -1 if group == GroupMember.NON_GROUP_MEMBER else resolve(group).size()


def get_node_local_rank(fallback_rank: int | None = None) -> int:
    """LOCAL_RANK of the environment. Raises RuntimeError when neither it nor `fallback_rank` is there.

    Args:
        fallback_rank: for a process that no launcher started.
    """
    if "LOCAL_RANK" in os.environ:
        return int(os.environ["LOCAL_RANK"])
    if fallback_rank is None:
        raise RuntimeError("LOCAL_RANK is not in the environment. Consider passing fallback_rank.")
    return fallback_rank


def get_backend(group: Group = None) -> Backend:
    """The backend as it was named to init_process_group.

    Args:
        group: any of this process; all have the same backend.
    """
    resolve(group)
    return Backend(state().backend)


def get_default_backend_for_device(device: wt.device | str | int) -> str:
    """The name of the backend that PyTorch takes for a device. Raises ValueError where it has none.

    Args:
        device: or its kind.

    >>> torch.distributed.get_default_backend_for_device("cpu")
    'gloo'
    """
    kind = wt.device(device).type
    try:
        return Backend.default_device_backend_map[kind]
    except KeyError:
        raise ValueError(f"Default backend not registered for device : {device}") from None


def get_process_group_ranks(group: Group = None) -> list[int]:
    """The ranks of the job that the group has, in the group's order.

    Args:
        group: all ranks if None.
    """
    return list(resolve(group)._ranks)


def get_group_rank(group: Group, global_rank: int) -> int:
    """The number in the group of a rank of the job. Raises ValueError when it is not in it.

    Args:
        group: the ranks.
        global_rank: a rank of the job.
    """
    ranks = resolve(group)._ranks
    if global_rank not in ranks:
        raise ValueError(f"Global rank {global_rank} is not part of group {resolve(group).group_name}")
    return list(ranks).index(global_rank)


def get_global_rank(group: Group, group_rank: int) -> int:
    """The number in the job of a rank of the group. Raises ValueError when there is none.

    Args:
        group: the ranks.
        group_rank: a rank of the group.
    """
    ranks = resolve(group)._ranks
    if not 0 <= group_rank < len(ranks):
        raise ValueError(f"Group rank {group_rank} is not part of group {resolve(group).group_name}")
    return ranks[group_rank]


def get_default_group() -> ProcessGroup:
    """The group of all ranks.

    Raises:
        ValueError: before `init_process_group`.
    """
    return state().world


def new_group(
    ranks: Sequence[int] | None = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    use_local_synchronization: bool = False,
    group_desc: str | None = None,
    device_id: wt.device | int | None = None,
) -> Any:
    """A group of some ranks of the job; all ranks of the job make it, in the same order.

    Returns: the ProcessGroup, or GroupMember.NON_GROUP_MEMBER on ranks that are not in it. With
    `use_local_synchronization` only the group's own ranks call.
    Raises: ValueError for ranks that are not in the job or given twice, DistBackendError where ranks ask for
    different groups, or one does not come.
    """
    here = state()
    chosen = list(range(here.world_size)) if ranks is None else [int(r) for r in ranks]
    return _make(chosen, timeout, backend, use_local_synchronization)


def _make(
    chosen: list[int], timeout: timedelta | None, backend: str | None, local: bool = False, of: str = ""
) -> Any:
    """As new_group; `of` is what the group is made for."""
    here = state()
    _C._check_process("new_group")  # before a forked child writes to its parent's connection to the store
    if not local:
        chosen = sorted(chosen)
    if local:
        name = "ranks_" + "_".join(map(str, sorted(chosen)))
        here.made_locally[name] += 1
        name += f"/{here.made_locally[name]}"
    else:
        here.made += 1
        name = f"group{here.made}"
    how = f", backend={backend!r}" if backend else ""
    members = sorted(set(chosen)) if local else list(range(here.world_size))
    agreement = Agreement(here, name, members, f"new_group({chosen}{how}){of}")
    if len(set(chosen)) != len(chosen) or not all(0 <= r < here.world_size for r in chosen):
        why = f"expected distinct ranks below the world size ({here.world_size}), got {chosen}"
        if not local:
            agreement.refuse(why)
        raise ValueError(f"new_group: {why}")
    if here.rank in members:
        agreement.wait(timeout or here.timeout)
    if here.rank not in chosen:
        return GroupMember.NON_GROUP_MEMBER
    backends = here.backends if backend is None else _backends(backend, here.store._shares_files())
    here.groups[name] = group = _C._new_group(chosen, name, *backends, timeout or here.timeout)
    return group


def new_subgroups(
    group_size: int | None = None,
    group: Group = None,
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """Consecutive groups of `group_size` ranks; (this rank's, all of them).

    Args:
        group_size: must divide the world size; the host's ranks if None.
        group: not looked at; the groups are of the whole world.
        timeout: of each call in the groups.
        backend, pg_options, group_desc: as of new_group.

    Raises: ValueError for a size that does not divide the world's.
    """
    world = state().world_size
    size = group_size or int(os.environ.get("LOCAL_WORLD_SIZE", world))
    if world % size != 0:
        raise ValueError(f"new_subgroups: the world size {world} is not a multiple of the group size {size}")
    parts = [list(range(at, at + size)) for at in range(0, world, size)]
    return new_subgroups_by_enumeration(parts, timeout, backend, pg_options)


def new_subgroups_by_enumeration(
    ranks_per_subgroup_list: Sequence[Sequence[int]],
    timeout: timedelta | None = None,
    backend: str | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> tuple[Any, list[Any]]:
    """(the group of this rank or None, all groups) for lists of ranks that share none.

    Args:
        ranks_per_subgroup_list: the same on all ranks.
        timeout: of each call in the groups.
        backend, pg_options, group_desc: as of new_group.

    Raises: ValueError for a rank in two lists.
    """
    flat = [r for part in ranks_per_subgroup_list for r in part]
    if len(flat) != len(set(flat)):
        raise ValueError("new_subgroups_by_enumeration: a rank is in two of the lists")
    groups = [new_group(part, timeout, backend, pg_options) for part in ranks_per_subgroup_list]
    mine = [g for g in groups if g != GroupMember.NON_GROUP_MEMBER]
    return (mine[0] if mine else None), groups


def split_group(
    parent_pg: Group = None,
    split_ranks: Sequence[Sequence[int]] | None = None,
    timeout: timedelta | None = None,
    pg_options: object = None,
    group_desc: str | None = None,
) -> Any:
    """The part of a group that this rank belongs to, or None; `split_ranks` are numbers in the parent, whose
    ranks all call, with the same.

    Raises: ValueError for numbers that are not in the parent or there twice, DistBackendError as new_group.
    """
    parent, here = resolve(parent_pg), state()
    if not split_ranks:
        raise ValueError("split_group: split_ranks is empty")
    parts = [[int(r) for r in part] for part in split_ranks]
    key = f"split/{parent.group_name}"
    here.made_locally[key] += 1
    key += f"/{here.made_locally[key]}"
    agreement = Agreement(here, key, list(parent._ranks), f"split_group({parts})")
    flat = [r for part in parts for r in part]
    if len(set(flat)) != len(flat) or not all(0 <= r < parent.size() for r in flat):
        why = f"expected distinct numbers of ranks below {parent.size()}, got {parts}"
        agreement.refuse(why)
        raise ValueError(f"split_group: {why}")
    agreement.wait(timeout or here.timeout)
    for i, part in enumerate(parts):
        if parent.rank() in part:
            name, ranks = f"{key}/{i}", [parent._ranks[r] for r in part]
            here.groups[name] = group = _C._new_group(ranks, name, *here.backends, timeout or here.timeout)
            return group
    return None


def abort_process_group(group: Group = None) -> None:
    """Makes every call of the group fail, here and on the other ranks, now and later.

    Args:
        group: all ranks if None.
    """
    resolve(group)._abort(f"rank {get_rank()} aborted the group")
