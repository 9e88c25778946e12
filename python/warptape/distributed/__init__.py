"""torch.distributed's names: ranks, process groups, collectives.

Start a script with `warptape-run --nproc-per-node=2 script.py` and call init_process_group(), or try the same
code with ranks that are threads: `simulate(4, fn)`.
"""

from __future__ import annotations

from .._C import DistBackendError, DistError, DistNetworkError, DistStoreError
from .._missing import install_getattr as _install_getattr
from ._state import GroupMember, ProcessGroup, Work
from ._store import FileStore, HashStore, PrefixStore, Store, TCPStore
from .collectives import (
    P2POp,
    ReduceOp,
    all_gather,
    all_gather_coalesced,
    all_gather_into_tensor,
    all_reduce,
    all_reduce_coalesced,
    all_to_all,
    all_to_all_single,
    barrier,
    batch_isend_irecv,
    broadcast,
    gather,
    irecv,
    isend,
    monitored_barrier,
    recv,
    reduce,
    reduce_scatter,
    reduce_scatter_tensor,
    scatter,
    send,
)
from .device_mesh import DeviceMesh, init_device_mesh
from .groups import (
    Backend,
    abort_process_group,
    destroy_process_group,
    get_backend,
    get_default_backend_for_device,
    get_default_group,
    get_global_rank,
    get_group_rank,
    get_node_local_rank,
    get_process_group_ranks,
    get_rank,
    get_world_size,
    init_process_group,
    is_available,
    is_gloo_available,
    is_initialized,
    is_mpi_available,
    is_nccl_available,
    is_torchelastic_launched,
    new_group,
    new_subgroups,
    new_subgroups_by_enumeration,
    split_group,
)
from .objects import (
    all_gather_object,
    broadcast_object_list,
    gather_object,
    recv_object_list,
    scatter_object_list,
    send_object_list,
)
from .simulation import RankFailed, simulate
from .stragglers import StepTimer, StragglerReport, straggler_report

_all_gather_base = all_gather_single = all_gather_into_tensor
_reduce_scatter_base = reduce_scatter_single = reduce_scatter_tensor
group = GroupMember  # group.WORLD, as older programs spell it

__all__ = [name for name in dir() if not name.startswith("_") and name != "annotations"]

_install_getattr(__name__)
