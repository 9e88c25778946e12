"""torch.jit.annotations: types that TorchScript reads in signatures; here they are only written."""

from __future__ import annotations

from typing import Any, Dict, List, Optional, Tuple, Union  # noqa: F401, UP035  imported from here


class _BroadcastingList:
    """`BroadcastingList2[int]`: one number, or so many of them."""

    def __getitem__(self, item: Any) -> Any:
        return item | list[item]


BroadcastingList1 = _BroadcastingList()
BroadcastingList2 = _BroadcastingList()
BroadcastingList3 = _BroadcastingList()
