"""torch.distributed's names: ranks, process groups, collectives.

Start a script with `warptape-run --nproc-per-node=2 script.py` and call init_process_group(), or try the same
code with ranks that are threads: `simulate(4, fn)`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .._C import DistBackendError, DistError, DistNetworkError, DistStoreError, QueueEmptyError
from .._missing import install_getattr as _install_getattr

if TYPE_CHECKING:
    from ._store import FileStore, HashStore, PrefixStore, Store, TCPStore
    from .collectives import (
        P2POp,
        ReduceOp,
        _all_gather_base,
        _coalescing_manager,
        _reduce_scatter_base,
        all_gather,
        all_gather_coalesced,
        all_gather_into_tensor,
        all_gather_single,
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
        reduce_scatter_single,
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
    from .state import GroupMember, ProcessGroup, Work, group
    from .stragglers import StepTimer, StragglerReport, straggler_report

__all__ = [
    "Backend",
    "DeviceMesh",
    "DistBackendError",
    "DistError",
    "DistNetworkError",
    "DistStoreError",
    "FileStore",
    "GroupMember",
    "HashStore",
    "P2POp",
    "PrefixStore",
    "ProcessGroup",
    "QueueEmptyError",
    "RankFailed",
    "ReduceOp",
    "StepTimer",
    "Store",
    "StragglerReport",
    "TCPStore",
    "Work",
    "abort_process_group",
    "all_gather",
    "all_gather_coalesced",
    "all_gather_into_tensor",
    "all_gather_object",
    "all_gather_single",
    "all_reduce",
    "all_reduce_coalesced",
    "all_to_all",
    "all_to_all_single",
    "barrier",
    "batch_isend_irecv",
    "broadcast",
    "broadcast_object_list",
    "destroy_process_group",
    "gather",
    "gather_object",
    "get_backend",
    "get_default_backend_for_device",
    "get_default_group",
    "get_global_rank",
    "get_group_rank",
    "get_node_local_rank",
    "get_process_group_ranks",
    "get_rank",
    "get_world_size",
    "group",
    "init_device_mesh",
    "init_process_group",
    "irecv",
    "is_available",
    "is_gloo_available",
    "is_initialized",
    "is_mpi_available",
    "is_nccl_available",
    "is_torchelastic_launched",
    "isend",
    "monitored_barrier",
    "new_group",
    "new_subgroups",
    "new_subgroups_by_enumeration",
    "recv",
    "recv_object_list",
    "reduce",
    "reduce_scatter",
    "reduce_scatter_single",
    "reduce_scatter_tensor",
    "scatter",
    "scatter_object_list",
    "send",
    "send_object_list",
    "simulate",
    "split_group",
    "straggler_report",
]
_LATE = {  # imported when first asked for
    "_store": "FileStore HashStore PrefixStore Store TCPStore",
    "collectives": """
        P2POp ReduceOp _coalescing_manager all_gather all_gather_coalesced _all_gather_base
        _reduce_scatter_base all_gather_into_tensor all_gather_single all_reduce all_reduce_coalesced
        all_to_all all_to_all_single barrier batch_isend_irecv broadcast gather irecv isend
        monitored_barrier recv reduce reduce_scatter reduce_scatter_single reduce_scatter_tensor
        scatter send
    """,
    "device_mesh": "DeviceMesh init_device_mesh",
    "groups": """
        Backend abort_process_group destroy_process_group get_backend get_default_backend_for_device
        get_default_group get_global_rank get_group_rank get_node_local_rank get_process_group_ranks
        get_rank get_world_size init_process_group is_available is_gloo_available is_initialized
        is_mpi_available is_nccl_available is_torchelastic_launched new_group new_subgroups
        new_subgroups_by_enumeration split_group
    """,
    "objects": """
        all_gather_object broadcast_object_list gather_object recv_object_list scatter_object_list
        send_object_list
    """,
    "simulation": "RankFailed simulate",
    "state": "GroupMember ProcessGroup Work group",
    "stragglers": "StepTimer StragglerReport straggler_report",
}
_install_getattr(__name__, _LATE)
