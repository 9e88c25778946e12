"""One call of each family of CUDA kernels, forward and backward, on small inputs: what compute-sanitizer
watches for benchmarks/gpu_day.sh. The sizes leave partial blocks and vectors behind. Every result is
compared with the CPU's."""

from __future__ import annotations

import warptape as wt
import warptape.nn.functional as F
from warptape import nn, optim


class Net(nn.Module):
    """The layers of the digits net and of a transformer."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1)
        self.batch_norm, self.group_norm = nn.BatchNorm2d(4), nn.GroupNorm(2, 4)
        self.embedding = nn.Embedding(17, 36)
        self.layer_norm, self.rms_norm = nn.LayerNorm(36), nn.RMSNorm(36)
        self.head = nn.Linear(36, 17)

    def forward(self, image: wt.Tensor, tokens: wt.Tensor) -> wt.Tensor:
        maps = F.max_pool2d(F.gelu(self.group_norm(self.batch_norm(self.conv(image)))), 2)  # [B, 4, 3, 3]
        x = self.embedding(tokens) + maps.flatten(1).unsqueeze(1)  # [B, T, 36]
        q = self.rms_norm(x).view(*tokens.shape, 3, 12).transpose(1, 2)
        y = F.scaled_dot_product_attention(q, q, q, is_causal=True).transpose(1, 2).flatten(2)
        return self.head(self.layer_norm(x + y))


def train(device: str) -> list[wt.Tensor]:
    """Two steps; the losses, and values of ops that training does not reach."""
    wt.manual_seed(0)
    net = Net().to(device)
    optimizer = optim.AdamW(net.parameters(), lr=1e-2, fused=True)
    generator = wt.Generator().manual_seed(1)
    image = wt.rand(3, 1, 7, 7, generator=generator).to(device)
    tokens = wt.randint(17, (3, 5), generator=generator).to(device)
    found = []
    for _ in range(2):
        loss = F.cross_entropy(net(image, tokens).flatten(0, 1), tokens.flatten())
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        found.append(loss.detach())
    x = wt.rand(9, 131, generator=generator).to(device)
    index = wt.randint(9, (7, 131), generator=generator).to(device)
    found += [x.sum(0), x.var(1), x.cumsum(1), x.argmax(0), x.softmax(0), x.gather(0, index), x[index[:, 0]]]
    found += [x.scatter_add(0, index, x[:7]), x.t().contiguous(), wt.cat([x, x], 1), x[x > 0.5], x.tril()]
    wt.manual_seed(3)
    return [*found, F.dropout(x, 0.3)]


def main() -> None:
    for number, (host, device) in enumerate(zip(train("cpu"), train("cuda"), strict=True)):
        if not wt.allclose(host, device.cpu(), rtol=1e-3, atol=1e-4):
            raise SystemExit(f"value {number}: the GPU's differs from the CPU's")
    print("the sample's values agree")


if __name__ == "__main__":
    main()
