"""ShapeProp: runs a graph once and records what every node's tensors look like."""

from __future__ import annotations

from typing import Any, NamedTuple

from warptape import core as wt

from ..interpreter import Interpreter
from ..node import Node, map_aggregate

__all__ = ["ShapeProp", "TensorMetadata"]


class TensorMetadata(NamedTuple):
    """What a tensor looks like.

    Args:
        is_quantized, qparams: False and {}, for programs that read them.
    """

    shape: wt.Size
    dtype: wt.dtype
    requires_grad: bool
    stride: tuple[int, ...]
    memory_format: wt.memory_format | None
    is_quantized: bool
    qparams: dict[str, Any]


def _extract_tensor_metadata(result: wt.Tensor, include_contiguity: bool = True) -> TensorMetadata:
    formats = (wt.contiguous_format, wt.channels_last, wt.channels_last_3d)
    fits = (f for f in formats if result.is_contiguous(memory_format=f))
    layout = next(fits, None) if include_contiguity else None
    return TensorMetadata(
        result.shape, result.dtype, result.requires_grad, tuple(result.stride()), layout, False, {}
    )


class ShapeProp(Interpreter):
    """Records `tensor_meta` (in the nesting of the result) and `type` in the meta of every node.

    >>> gm = torch.fx.symbolic_trace(nn.Linear(2, 3))
    >>> from warptape.fx.passes.shape_prop import ShapeProp
    >>> out = ShapeProp(gm).propagate(torch.ones(4, 2))
    >>> [node.meta["tensor_meta"].shape for node in gm.graph.nodes][-1]
    torch.Size([4, 3])
    """

    def run_node(self, n: Node) -> Any:
        """The value of a node.

        Args:
            n: of the graph.

        Raises: RuntimeError that names the node where it fails.
        """
        try:
            result = super().run_node(n)
        except Exception as error:
            raise RuntimeError(f"ShapeProp error for: node={n.format_node()} with meta={n.meta}") from error
        any_tensor = False

        def extract(x: object) -> Any:
            nonlocal any_tensor
            if not isinstance(x, wt.Tensor):
                return x
            any_tensor = True
            return _extract_tensor_metadata(x)

        meta = map_aggregate(result, extract)
        if any_tensor:
            n.meta["tensor_meta"] = meta
        n.meta["type"] = type(result)
        return result

    def propagate(self, *args: Any) -> Any:
        """Runs the graph on the arguments.

        Args:
            *args: of the module.
        """
        return super().run(*args)
