"""What users write, with the types that a checker must find: mypy passes it (test_types.py)."""

from __future__ import annotations

import warptape as torch
import warptape.nn as nn
import warptape.nn.functional as F
from typing_extensions import assert_type
from warptape import Tensor
from warptape.utils.data import DataLoader, TensorDataset


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(2, 3)
        self.register_buffer("mean", torch.zeros(3))

    def forward(self, x: Tensor) -> Tensor:
        return F.relu(self.linear(x)) - x.mean(dim=(0, 1), keepdim=True).view(1, -1)


def make_tensors() -> None:
    assert_type(torch.zeros(2, 3, dtype=torch.float64, device="cpu"), Tensor)
    assert_type(torch.zeros((2, 3)), Tensor)
    assert_type(torch.full((2, 3), 1.5), Tensor)
    assert_type(torch.tensor([1, 2]), Tensor)
    assert_type(torch.arange(5), Tensor)
    assert_type(torch.arange(0, 10, 2), Tensor)
    assert_type(torch.linspace(0, 1, 5), Tensor)
    assert_type(torch.randint(0, 10, (2, 3)), Tensor)
    assert_type(torch.randn(2, 3, generator=torch.Generator().manual_seed(0)), Tensor)


def use_tensors(x: Tensor) -> None:
    assert_type(x + 1, Tensor)
    assert_type(1 - x, Tensor)
    assert_type(x @ x.T, Tensor)
    assert_type(x[0, 1:], Tensor)
    assert_type(x.softmax(-1), Tensor)
    assert_type(x.view(-1, 3).permute(1, 0).reshape(3, 2).expand(3, 2), Tensor)
    assert_type(x.to("cpu").to(torch.half).float().long(), Tensor)
    assert_type(x.add_(1).mul_(2), Tensor)
    assert_type(torch.where(x > 0, x, torch.zeros_like(x)), Tensor)
    assert_type(torch.clamp(x, min=0.0), Tensor)
    assert_type(torch.cat([x, x], dim=1), Tensor)
    assert_type(torch.einsum("ij,kj->ik", x, x), Tensor)
    assert_type(torch.fft.rfft(x), Tensor)
    assert_type(torch.special.erfcx(x), Tensor)
    assert_type(x.shape, torch.Size)
    assert_type(x.shape[0], int)
    assert_type(x.dim(), int)
    assert_type(x.dtype, torch.dtype)
    assert_type(x.real, Tensor)


def use_several_results(x: Tensor) -> None:
    values, indices = x.max(dim=1)
    assert_type(values, Tensor)
    assert_type(indices, Tensor)
    assert_type(x.max(dim=1).indices, Tensor)
    assert_type(torch.topk(x, 2).values, Tensor)
    assert_type(torch.linalg.svd(x).S, Tensor)
    assert_type(torch.split(x, 1)[0], Tensor)


def train(x: Tensor) -> None:
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Dropout(0.1))
    y: Tensor = nn.Linear(3, 4)(x)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for _ in DataLoader(TensorDataset(x), batch_size=2):
        optimizer.zero_grad()
        loss = F.cross_entropy(y, torch.zeros(2, dtype=torch.long), reduction="sum")
        assert_type(loss, Tensor)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
    for parameter in model.parameters():
        assert_type(parameter.grad, Tensor | None)
    with torch.no_grad():
        nn.init.xavier_uniform_(nn.Linear(2, 2).weight)
    torch.save(model.state_dict(), "model.pt")
    model.load_state_dict(torch.load("model.pt"))
    assert_type(torch.cuda.is_available(), bool)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    Net().to(device)(x.to(device, torch.float32)).detach().cpu().numpy()
