# /// script
# dependencies = ["einops==0.8.2", "numpy"]
# ///
"""einops: rearrange, reduce, repeat and the layers."""

import torch
from _cases import case, main
from einops import einsum, rearrange, reduce, repeat
from einops.layers.torch import Rearrange, Reduce


@case
def functions():
    x = torch.randn(2, 3, 8, 8)
    patches = rearrange(x, "b c (h p) (w q) -> b (h w) (p q c)", p=4, q=4)
    pooled = reduce(x, "b c (h 2) (w 2) -> b c h w", "max")
    return (
        patches,
        pooled,
        repeat(pooled, "b c h w -> b c (h 2) w"),
        einsum(x, x, "b c h w, b d h w -> b c d"),
    )


@case
def trained_layers():
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3, padding=1),
        Reduce("b c (h 2) (w 2) -> b c h w", "mean"),
        Rearrange("b c h w -> b (c h w)"),
        torch.nn.Linear(8 * 16, 10),
    )
    optimizer = torch.optim.AdamW(model.parameters(), 1e-2)
    x, y = torch.randn(16, 3, 8, 8), torch.randint(10, (16,))
    losses = []
    for _ in range(5):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


if __name__ == "__main__":
    main()
