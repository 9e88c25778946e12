"""Draws of devices: distributions, seeds and states, and dropout that equals the host's."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda
N = 100_001


def host(t: torch.Tensor) -> np.ndarray:
    return t.double().cpu().numpy()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_distributions(dtype: torch.dtype) -> None:
    torch.manual_seed(4)
    u = host(torch.rand(N, device="cuda", dtype=dtype))
    assert u.min() >= 0 and u.max() < 1 and abs(u.mean() - 0.5) < 0.005 and abs(u.var() - 1 / 12) < 0.002
    z = host(torch.randn(N, device="cuda", dtype=dtype))
    assert (
        abs(z.mean()) < 0.015
        and abs(z.std() - 1) < 0.01
        and abs((z**3).mean()) < 0.05
        and np.abs(z).max() < 7
    )
    assert abs(np.corrcoef(z[:-1], z[1:])[0, 1]) < 0.02
    e = host(torch.empty(N, device="cuda", dtype=dtype).exponential_(2.0))
    assert e.min() >= 0 and abs(e.mean() - 0.5) < 0.01
    b = host(torch.empty(N, device="cuda", dtype=dtype).bernoulli_(0.3))
    assert set(np.unique(b)) == {0, 1} and abs(b.mean() - 0.3) < 0.01
    p = torch.linspace(0, 1, 11, device="cuda", dtype=dtype).expand(1000, 11)
    drawn = host(torch.bernoulli(p))
    assert (
        drawn[:, 0].max() == 0
        and drawn[:, -1].min() == 1
        and np.abs(drawn.mean(0) - np.linspace(0, 1, 11)).max() < 0.07
    )


def test_integers() -> None:
    r = torch.randint(-3, 9, (N,), device="cuda").cpu().numpy()
    assert r.min() == -3 and r.max() == 8 and np.abs(np.bincount(r + 3) / N - 1 / 12).max() < 0.01
    wide = torch.empty(1000, dtype=torch.int64, device="cuda").random_().cpu().numpy()
    assert wide.min() >= 0 and wide.max() > 2**60
    for n in (0, 1, 5, 3000):
        order = torch.randperm(n, device="cuda")
        assert order.dtype == torch.int64 and sorted(order.tolist()) == list(range(n))
    assert torch.randperm(3000, device="cuda").tolist() != torch.randperm(3000, device="cuda").tolist()
    weights = torch.tensor([0.0, 1.0, 3.0], device="cuda")
    counts = np.bincount(torch.multinomial(weights, 20000, replacement=True).cpu().numpy(), minlength=3)
    assert counts[0] == 0 and abs(counts[2] / 20000 - 0.75) < 0.02


DRAWS: list[Callable[..., torch.Tensor]] = [
    lambda g: torch.rand(1000, device="cuda", generator=g),
    lambda g: torch.randn(1001, device="cuda", generator=g),
    lambda g: torch.randint(0, 1 << 40, (999,), device="cuda", generator=g),
    lambda g: torch.randperm(100, device="cuda", generator=g),
    lambda g: torch.empty(30, 40, device="cuda").t().normal_(generator=g),
    lambda g: torch.empty(500, device="cuda").bernoulli_(0.5, generator=g),
]


@pytest.mark.parametrize("draw", DRAWS)
def test_same_seed_same_numbers(draw: Callable[..., torch.Tensor]) -> None:
    torch.manual_seed(9)
    first, second = draw(None), draw(None)
    assert not torch.equal(first.cpu(), second.cpu())
    torch.cuda.manual_seed(9)
    assert torch.equal(draw(None).cpu(), first.cpu()) and torch.equal(draw(None).cpu(), second.cpu())
    own = torch.Generator(device="cuda")
    assert own.device == torch.device("cuda:0")
    own.manual_seed(9)
    assert torch.equal(draw(own).cpu(), first.cpu())
    torch.manual_seed(9)
    draw(None)
    state = torch.cuda.get_rng_state()
    again = draw(None)
    torch.cuda.set_rng_state(state)
    assert torch.equal(draw(None).cpu(), again.cpu())
    with torch.random.fork_rng():
        draw(None)
    torch.cuda.set_rng_state_all([state])
    with torch.random.fork_rng():
        draw(None)
    assert torch.equal(draw(None).cpu(), again.cpu())


def test_host_and_device_seeds_are_apart() -> None:
    torch.manual_seed(5)
    expected = torch.rand(4)
    torch.manual_seed(5)
    torch.rand(100, device="cuda")
    assert torch.equal(torch.rand(4), expected)
    torch.cuda.manual_seed(6)
    assert torch.initial_seed() == 5 and torch.cuda.initial_seed() == 6
    assert torch.cuda.default_generators[0].initial_seed() == 6


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.float16, torch.bfloat16])
def test_dropout_drops_what_the_host_drops(dtype: torch.dtype) -> None:
    """The n-th dropout from a seed has one mask, whatever else the device draws in between."""
    x = torch.ones(3, 1001, dtype=dtype)
    torch.manual_seed(21)
    masks = [torch.nn.functional.dropout(x, p) for p in (0.1, 0.5, 0.9)]
    torch.manual_seed(21)
    for p, mask in zip((0.1, 0.5, 0.9), masks):
        torch.randn(7, device="cuda")
        assert torch.equal(torch.nn.functional.dropout(x.cuda(), p).cpu(), mask)


def test_generators_of_another_device_are_refused() -> None:
    with pytest.raises(RuntimeError, match="Expected a 'cuda:0' device type for generator but found 'cpu'"):
        torch.rand(2, device="cuda", generator=torch.Generator())
    with pytest.raises(RuntimeError, match="Expected a 'cpu' device type for generator but found 'cuda:0'"):
        torch.rand(2, generator=torch.Generator(device="cuda"))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("shape", [(2, 64, 96, 96), (1, 4, 5, 7)])  # starts of counters, and not
@pytest.mark.parametrize(
    "cuts", [(1, 2, 3, 0, 0, 1), (0, 0, 1, 1, 1, 2), (1, 2, 3, 1, 1, 2), (3, 1, 2, 1, 1, 2)], ids=str
)
def test_parts_drop_what_the_host_drops(
    dtype: torch.dtype, shape: tuple[int, ...], cuts: tuple[int, ...]
) -> None:
    """Part 1 of 2 of dim 0 and part 2 of 3 of heads; and parts of a dim, slices of a sequence, and both."""
    set_parts = torch._C._private._set_drop_parts
    x, q = torch.ones(shape, dtype=dtype), torch.ones(*shape[:2], 9, 4, dtype=dtype)

    def draw(device: str) -> list[torch.Tensor]:
        torch.manual_seed(6)
        qs = [q.to(device)] * 3
        y = torch.nn.functional.scaled_dot_product_attention(*qs, dropout_p=0.5)
        return [torch.nn.functional.dropout(x.to(device), 0.5).cpu(), y.cpu()]

    whole = draw("cpu")
    before = set_parts((1, *cuts[:3], 2, 3, *cuts[3:]))
    try:
        host, device = draw("cpu"), draw("cuda")
    finally:
        set_parts(before)
    for a, b, other in zip(host, device, whole, strict=True):
        assert torch.allclose(a, b, rtol=2e-2 if dtype == torch.bfloat16 else 1e-5)
        assert not torch.equal(a, other)
