"""Normalisations made of batch_norm and sums. Legend: N batch, C channels."""

from __future__ import annotations

import warptape
from warptape import _C, Tensor

__all__ = ["instance_norm", "local_response_norm"]


def instance_norm(
    input: Tensor,
    running_mean: Tensor | None = None,
    running_var: Tensor | None = None,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    use_input_stats: bool = True,
    momentum: float = 0.1,
    eps: float = 1e-5,
) -> Tensor:
    """[N, C, *]: each channel of each sample to mean 0 and variance 1, then times weight[C] plus bias[C].

    With `use_input_stats` false the running statistics take the place of the sample's; otherwise they are
    updated with the mean over the samples. It is batch_norm over N * C channels.
    """
    if use_input_stats and input.dim() > 2 and input[0, 0].numel() == 1:
        raise ValueError(
            f"Expected more than 1 spatial element when training, got input size {tuple(input.shape)}"
        )
    n, c, *rest = input.shape

    def per_sample(stats: Tensor | None) -> Tensor | None:
        return None if stats is None else stats.repeat(n)

    mean, var = per_sample(running_mean), per_sample(running_var)
    out = _C._nn.batch_norm(
        input.reshape([1, n * c, *rest]),
        mean,
        var,
        per_sample(weight),
        per_sample(bias),
        use_input_stats,
        momentum,
        eps,
    )
    if use_input_stats:
        with warptape.no_grad():
            for running, updated in ((running_mean, mean), (running_var, var)):
                if running is not None and updated is not None:
                    running.copy_(updated.reshape(n, c).mean(0))
    return out.reshape(input.shape)


def local_response_norm(
    input: Tensor, size: int, alpha: float = 1e-4, beta: float = 0.75, k: float = 1.0
) -> Tensor:
    """[N, C, *]: x / (k + alpha * mean of x^2 over `size` neighbouring channels)^beta."""
    if input.dim() < 3:
        raise ValueError(f"Expected 3D or higher dimensionality input (got {input.dim()} dimensions)")
    if input.numel() == 0:
        return input
    square = _C._nn.pad(input * input, [0, 0] * (input.dim() - 2) + [size // 2, (size - 1) // 2])
    channels = input.shape[1]
    window = square.narrow(1, 0, channels)
    for shift in range(1, size):
        window = window + square.narrow(1, shift, channels)
    return input / (window * (alpha / size) + k).pow(beta)
