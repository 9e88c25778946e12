"""max(x, 0)^2, the activation of Primer (So et al., 2021), as an op of C++."""

from pathlib import Path

import warptape as torch

torch.ops.load_library(Path(__file__).with_name("_C.so"))
_ops = torch.ops.squared_relu


def squared_relu(x: torch.Tensor) -> torch.Tensor:
    """max(x, 0)^2 of every element; of the CPU's floating-point tensors of any shape."""
    return _ops.squared_relu(x)


# Shapes and dtypes alone, for meta tensors and what is exported.
@torch.library.register_fake("squared_relu::squared_relu")
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


@torch.library.register_fake("squared_relu::squared_relu_backward")
def _(grad: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    return torch.empty(x.shape, dtype=x.dtype, device=x.device)


def _save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


def _backward(ctx, grad):
    return _ops.squared_relu_backward(grad, *ctx.saved_tensors)


torch.library.register_autograd("squared_relu::squared_relu", _backward, setup_context=_save)
