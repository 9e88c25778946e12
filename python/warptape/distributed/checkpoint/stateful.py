"""What distributed checkpoints take for an object with a state."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

__all__ = ["Stateful"]


@runtime_checkable
class Stateful(Protocol):
    """An object that gives its state and takes it back.

    `save` and `load` call both methods of such objects in a state.
    """

    def state_dict(self) -> dict[str, Any]:
        """The state."""
        ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Takes on a state.

        Args:
            state_dict: what `state_dict` gave.
        """
        ...
