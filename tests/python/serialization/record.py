"""Writes golden/*.pt with PyTorch: `python tests/python/serialization/record.py`, where it is installed."""

from __future__ import annotations

from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

GOLDEN = Path(__file__).with_name("golden")
DTYPES = ("bool", "uint8", "int8", "int16", "int32", "int64", "float16", "bfloat16", "float32", "float64")
PLAIN = [
    *(0, -1, 255, 256, 65535, 65536, 2**31 - 1, -(2**31), 2**31, 2**63, -(2**63), 2**70, -(2**2000)),
    *(1.5, float("inf"), True, False, None, "é", "", b"", b"a\xff", 1j, bytearray(b"abc")),
    *((), (1,), (1, 2), (1, 2, 3), (1, (2, (3, 4))), [], [[]], {}, {"a": {1: (2,)}}, {1, 2}),
    *(OrderedDict(b=1, a=2), Counter("aab"), list(range(1500)), {i: -i for i in range(1500)}),
]


def everything(torch: Any) -> dict[str, Any]:
    """One of each kind of thing that files of weights hold, made with either library."""
    base = torch.arange(12, dtype=torch.float32)
    parameter = torch.nn.Parameter(torch.ones(2, 3))
    parameter.mark = "set"
    attributed = torch.zeros(2)
    attributed.note = [1, 2]
    return {
        "dtypes": {d: torch.arange(6).reshape(2, 3).to(getattr(torch, d)) for d in DTYPES},
        "base": base,
        "row": base[4:8],
        "turned": base.reshape(3, 4).t(),
        "steps": base[1::3],
        "wide": torch.ones(1).expand(2, 3),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "empty": torch.zeros(0, 3),
        "grad": torch.ones(2, requires_grad=True),
        "parameter": torch.nn.Parameter(torch.ones(2), requires_grad=False),
        "tied": [parameter, parameter],
        "attributed": attributed,
        "meta": torch.empty(2, 3, device="meta"),
        "state_dict": torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.BatchNorm1d(1)).state_dict(),
        "values": [torch.Size([1, 2]), torch.device("cpu"), torch.device("cuda", 1), torch.bfloat16],
        "plain": PLAIN,
    }


def training(torch: Any) -> tuple[Any, Any, Any]:
    """A model, its optimizer and a function that runs one step and returns the loss."""
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1)).double()
    optimizer = torch.optim.Adam(model.parameters(), lr=0.05, amsgrad=True)
    x = torch.linspace(-1, 1, 15, dtype=torch.float64).reshape(5, 3)

    def step() -> float:
        optimizer.zero_grad()
        loss = ((model(x) - x.sum(1, keepdim=True).sin()) ** 2).mean()
        loss.backward()
        optimizer.step()
        return loss.item()

    return model, optimizer, step


def main() -> None:
    """All of them, and the losses that follow the saved training."""
    import torch

    torch.save(everything(torch), GOLDEN / "everything.pt")
    legacy = {k: v for k, v in everything(torch).items() if k != "plain"}
    torch.save(legacy, GOLDEN / "legacy.pt", _use_new_zipfile_serialization=False)
    torch.manual_seed(0)
    model, optimizer, step = training(torch)
    for _ in range(3):
        step()
    state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
    torch.save(state, GOLDEN / "training.pt")  # before the steps below change it
    torch.save({"losses": [step() for _ in range(5)]}, GOLDEN / "losses.pt")
    torch.save(torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.ReLU()), GOLDEN / "module.pt")


if __name__ == "__main__":
    main()
