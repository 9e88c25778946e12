"""A backward pass in two halves: what the stage before waits for comes first."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..._C import _distributed as _C
from ...core import Tensor


def input_gradients(
    outputs: Sequence[Tensor], inputs: Sequence[Tensor], grad_outputs: Sequence[Tensor | None]
) -> tuple[tuple[Tensor | None, ...], Callable[[], None]]:
    """The first half: the gradients of `inputs` (None where unused), and a function that does the other half
    later, once, and adds to the `.grad` of all other leaves.

    A node that leads to both, as a linear layer's, runs in each half for that half's gradients; all others
    run once. What the other half needs is kept until then.

    Args:
        outputs: tensors with history, each with a gradient of its shape in `grad_outputs` (None: 1).
        inputs: at least one tensor that requires grad.
    """
    rest = _C._DeferredBackward()
    return rest.run_inputs(outputs, grad_outputs, inputs), rest.run_rest
