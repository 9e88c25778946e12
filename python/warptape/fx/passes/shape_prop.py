"""ShapeProp: runs a graph once and records what every node's tensors look like."""

from __future__ import annotations

from typing import Any, NamedTuple

import warptape as torch

from ..interpreter import Interpreter
from ..node import Node, map_aggregate

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What a tensor looks like."""

    shape: torch.Size
    dtype: torch.dtype
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: torch.memory_format | None
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: torch.Tensor, include_contiguity: bool = True) -> TensorMetadata:
    formats = (torch.contiguous_format, torch.channels_last, torch.channels_last_3d)
    fits = (f for f in formats if result.is_contiguous(memory_format=f))
    layout = next(fits, None) if include_contiguity else None
    return TensorMetadata(
        result.shape, result.dtype, result.requires_grad, tuple(result.stride()), layout, False, {}
    )


class ShapeProp(Interpreter):
    """Records `tensor_meta` (in the nesting of the result) and `type` in the meta of every node."""

    def run_node(self, n: Node) -> Any:
        """The value of a node."""
        try:
            result = super().run_node(n)
        except Exception as error:
            raise RuntimeError(f"ShapeProp error for: node={n.format_node()} with meta={n.meta}") from error
        found = False

        def extract(x: Any) -> Any:
            nonlocal found
            if not isinstance(x, torch.Tensor):
                return x
            found = True
            return _extract_tensor_metadata(x)

        meta = map_aggregate(result, extract)
        if found:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """Runs the graph on the arguments."""
        return super().run(*args)
