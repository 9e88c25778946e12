"""Small trainings whose losses are compared with PyTorch's; used by the test and by `record.py`.

A training is a function of the library alone: weights and data come from its generator, which draws the same
numbers in both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

STEPS = 12
Training = Callable[[Any], list[float]]


def losses_of(loss: Callable[[], Any], optimizer: Any) -> list[float]:
    found = []
    for _ in range(STEPS):
        value = loss()
        optimizer.zero_grad()
        value.backward()
        optimizer.step()
        found.append(value.item())
    return found


def mlp_sgd(rt: Any) -> list[float]:
    rt.manual_seed(3)
    nn = rt.nn
    model = nn.Sequential(nn.Linear(12, 32), nn.Tanh(), nn.Linear(32, 24), nn.ReLU(), nn.Linear(24, 5))
    x, y = rt.rand(16, 12), rt.randint(0, 5, (16,))
    optimizer = rt.optim.SGD(model.parameters(), lr=0.2, momentum=0.9, nesterov=True, weight_decay=1e-3)
    return losses_of(lambda: nn.functional.cross_entropy(model(x), y), optimizer)


def convolutional_adam(rt: Any) -> list[float]:
    rt.manual_seed(4)
    nn = rt.nn
    model = nn.Sequential(
        nn.Conv2d(2, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 12, 3, stride=2, padding=1, bias=False),
        nn.GroupNorm(3, 12),
        nn.SiLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(12, 3),
    )
    x, y = rt.rand(6, 2, 12, 12), rt.rand(6, 3)
    optimizer = rt.optim.Adam(model.parameters(), lr=1e-2)
    return losses_of(lambda: nn.functional.mse_loss(model(x), y), optimizer)


def transformer_adamw(rt: Any) -> list[float]:
    rt.manual_seed(5)
    nn, functional = rt.nn, rt.nn.functional
    tokens = rt.randint(0, 40, (3, 17))
    embed, place, mix = nn.Embedding(40, 16), nn.Embedding(16, 16), nn.Linear(16, 48)
    back, up, down = nn.Linear(16, 16), nn.Linear(16, 64), nn.Linear(64, 16)
    first, second = nn.LayerNorm(16), nn.LayerNorm(16)
    parts = nn.ModuleList([embed, place, mix, back, up, down, first, second])

    def loss() -> Any:
        x = embed(tokens[:, :-1]) + place(rt.arange(16))
        q, k, v = (part.view(3, 16, 2, 8).transpose(1, 2) for part in mix(first(x)).split(16, dim=-1))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + back(mixed.transpose(1, 2).reshape(3, 16, 16))
        x = x + down(functional.gelu(up(second(x))))
        logits = x @ embed.weight.t()  # tied
        return functional.cross_entropy(logits.view(-1, 40), tokens[:, 1:].reshape(-1))

    return losses_of(loss, rt.optim.AdamW(parts.parameters(), lr=1e-2, weight_decay=0.1))


TRAININGS: dict[str, Training] = {
    training.__name__: training for training in (mlp_sgd, convolutional_adam, transformer_adamw)
}
