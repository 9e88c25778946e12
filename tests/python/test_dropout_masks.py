"""Dropout with PyTorch's masks: recorded from PyTorch 2.13 on an AMD processor, and oneMKL's numbers, of
which PyTorch draws on Intel's. Masks are bits in the order of the elements, as hexadecimal numbers."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
from warptape.backends import cpu

F = wt.nn.functional
MODULUS, MULTIPLIER = 2**31 - 1, 1132489760


@pytest.fixture(autouse=True)
def pytorch_masks() -> Iterator[None]:
    """PyTorch's masks, drawn as on AMD's processors whatever this one is."""
    set_mkl: Any = wt._C._private._set_mkl_bernoulli
    before, mkl = cpu.get_dropout_masks(), set_mkl(False)
    cpu.set_dropout_masks("pytorch")
    yield
    cpu.set_dropout_masks(before)
    set_mkl(mkl)


def as_hex(kept: wt.Tensor) -> str:
    return f"{int(''.join('01'[bool(v)] for v in kept.flatten().tolist()), 2):x}"


def attended(**options: Any) -> wt.Tensor:
    """The probabilities themselves: the values are the unit vectors."""
    zeros, values = wt.zeros(1, 2, 4, 4), wt.eye(4).expand(1, 2, 4, 4)
    return F.scaled_dot_product_attention(zeros, zeros, values, dropout_p=0.4, **options)


RECORDED = {
    "dropout": (lambda x: F.dropout(x, 0.4), "8f475808e7bf94e"),
    "in place": (lambda x: F.dropout(x.clone(), 0.4, inplace=True), "8f475808e7bf94e"),
    "bfloat16": (lambda x: F.dropout(x.bfloat16(), 0.4), "8f475808e7bf94e"),
    "with a gradient": (lambda x: F.dropout(x.clone().requires_grad_(), 0.4), "8f475808e7bf94e"),
    "transposed": (lambda x: F.dropout(x.t(), 0.4), "a81197db28f73f4"),
    "channels last": (
        lambda x: F.dropout(wt.ones(2, 3, 4, 3).to(memory_format=wt.channels_last), 0.4),
        "b416a54e27def18b62",
    ),
    "channels": (lambda x: F.dropout2d(wt.ones(6, 8, 2, 2), 0.4)[:, :, 0, 0], "8f475808e7bf"),
    "alpha_dropout": (lambda x: F.alpha_dropout(x, 0.4, True) > 0, "8f475808e7bf94e"),
    "attention": (lambda x: attended(), "8f475808"),
    "compiled": (lambda x: wt.compile(lambda x: F.dropout(x * 1, 0.4) + 0)(x), "8f475808e7bf94e"),
}


@pytest.mark.parametrize("name", RECORDED)
def test_masks_are_pytorchs(name: str) -> None:
    draw, want = RECORDED[name]
    for _ in range(2):  # twice, so that the compiled program runs, too
        wt.manual_seed(11)
        assert as_hex(draw(wt.ones(6, 10))) == want


def test_lstm_between_its_layers() -> None:
    lstm = wt.nn.LSTM(2, 6, 2, dropout=0.5)
    for p in lstm.parameters():
        p.data.fill_(0.1)
    wt.manual_seed(11)
    assert lstm(wt.ones(3, 4, 2))[0].sum().item() == pytest.approx(12.99194622039795, rel=1e-6)


@pytest.mark.parametrize("p", [0.3, 1.0])
def test_gradient_goes_where_values_went(p: float) -> None:
    x = wt.ones(50, 7, dtype=wt.float64, requires_grad=True)
    out = F.dropout(x, p)
    out.sum().backward()
    assert wt.equal(x.grad, out.detach())
    assert (out == 0).float().mean().item() == pytest.approx(p, abs=0.08)
    value = wt.randn(1, 2, 5, 4, requires_grad=True)
    zeros = wt.zeros(1, 2, 5, 4)
    out = F.scaled_dot_product_attention(zeros, zeros, value, dropout_p=p)
    out.sum().backward()
    assert (value.grad != 0).any().item() is (p < 1)


def reference(seed: int, count: int, p: float, first: int = 0) -> list[bool]:
    """The generator as its documentation gives it."""
    start = max(seed % MODULUS, 1)
    return [start * pow(MULTIPLIER, first + i, MODULUS) % MODULUS / MODULUS < p for i in range(count)]


# What viRngBernoulli of oneMKL 2026.2 gave for VSL_BRNG_MCG31: 60 numbers, from the first and after 100,000.
ONEMKL = {
    1: ("f8eb27d7c5e67ec", "c50042542902487"),
    2365658986: ("a87714f2a10ec6b", "235010008617424"),
}


@pytest.mark.parametrize("seed", ONEMKL)
def test_reference_is_onemkls(seed: int) -> None:
    assert as_hex(wt.tensor(reference(seed, 60, 0.6))) == ONEMKL[seed][0]
    assert as_hex(wt.tensor(reference(seed, 60, 0.25, 100_000))) == ONEMKL[seed][1]


@pytest.mark.parametrize("dtype", [wt.float32, wt.bfloat16, wt.float64, wt.int64, wt.bool])
@pytest.mark.parametrize("p", [0.0, 0.25, 0.6, 1.0])
def test_bernoulli_of_intels_processors(dtype: wt.dtype, p: float) -> None:
    """One draw of the generator, whose first for seed 3 is 2365658986, seeds the numbers of a call; threads
    begin where the one before ends."""
    wt._C._private._set_mkl_bernoulli(True)
    count = 70_001
    generator = wt.Generator().manual_seed(3)
    drawn = wt.empty(count, dtype=dtype).bernoulli_(p, generator=generator)
    start, kept = 2365658986 % MODULUS, []
    for _ in range(count):
        kept.append(start / MODULUS < p)
        start = start * MULTIPLIER % MODULUS
    assert drawn.bool().tolist() == kept
    other = wt.Generator().manual_seed(3)
    wt.empty(1, dtype=wt.float32).uniform_(generator=other)  # one draw of 32 bits
    assert wt.equal(wt.rand(3, generator=generator), wt.rand(3, generator=other))
    # A transposed tensor is filled in the order of its elements.
    t = wt.empty(10, 6).t().bernoulli_(p, generator=wt.Generator().manual_seed(3))
    assert t.flatten().bool().tolist() == kept[:60]


def test_source_is_chosen_by_name_or_environment() -> None:
    with pytest.raises(ValueError, match="expected 'philox' or 'pytorch', got 'mkl'"):
        cpu.set_dropout_masks("mkl")
    assert cpu.get_dropout_masks() == "pytorch"
    program = "import warptape; print(warptape.backends.cpu.get_dropout_masks())"
    folder = str(Path(wt.__path__[0]).parent)
    for value, want in {"pytorch": "pytorch", "": "philox"}.items():
        environment = {"PYTHONPATH": folder, "WARPTAPE_DROPOUT": value}
        done = subprocess.run(
            [sys.executable, "-c", program], env=environment, capture_output=True, text=True
        )
        assert done.stdout.strip() == want, done.stderr


@pytest.mark.parity
def test_transformer_trains_with_pytorchs_losses() -> None:
    torch = pytest.importorskip("torch")
    # PyTorch takes MKL's generator where its library cpuinfo knows the processor as one of Intel's.
    masks = []
    for rt in (torch, wt, wt):
        wt._C._private._set_mkl_bernoulli(len(masks) == 1)
        rt.manual_seed(7)
        masks.append(rt.nn.functional.dropout(rt.ones(1000), 0.3).tolist())
    wt._C._private._set_mkl_bernoulli(masks[1] == masks[0])

    def losses(rt: Any) -> list[float]:
        rt.manual_seed(7)
        layer = rt.nn.TransformerEncoderLayer(16, 2, 32, dropout=0.3, batch_first=True)
        model = rt.nn.Sequential(layer, rt.nn.Dropout(0.2), rt.nn.Linear(16, 4))
        x, y = rt.randn(8, 5, 16), rt.randint(4, (8, 5))
        optimizer, out = rt.optim.Adam(model.parameters(), 1e-2), []
        for _ in range(8):
            optimizer.zero_grad()
            loss = rt.nn.functional.cross_entropy(model(x).flatten(0, 1), y.flatten())
            loss.backward()
            optimizer.step()
            out.append(loss.item())
        return out

    assert losses(wt) == pytest.approx(losses(torch), rel=2e-5)
