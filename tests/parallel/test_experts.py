"""Mixtures of experts: against a formula without sorting, and shared out among ranks against one process."""

from __future__ import annotations

import math

import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
from warptape import nn, optim
from warptape.autograd import gradcheck
from warptape.nn import functional as F
from warptape.nn.parallel import DistributedDataParallel
from warptape.parallel.experts import (
    MixtureOfExperts,
    TopKRouter,
    expert_parallel,
    grouped_mm,
    kept_choices,
    layer,
)
from warptape.utils.checkpoint import checkpoint

C, H, E = 6, 10, 8


def mixture(k=2, **options):
    wt.manual_seed(0)
    return MixtureOfExperts(C, H, E, k, **options).double()


def one_expert(experts, e, x):
    gate, up = (x @ experts.w_in[e]).chunk(2, -1)
    return (F.silu(gate) * up) @ experts.w_out[e]


def dense(m, x, kept=None):
    """Every expert on every token, weighed."""
    routing = m.router(x)
    everything = wt.stack([one_expert(m.experts, e, x) for e in range(E)], 1)  # [N, E, C]
    weights = routing.weights if kept is None else routing.weights * kept
    out = (everything.gather(1, routing.experts.unsqueeze(2).expand(-1, -1, C)) * weights.unsqueeze(2)).sum(1)
    return out if m.shared is None else out + one_expert(m.shared, 0, x)


@pytest.mark.parametrize("k", [1, 2, 8])
@pytest.mark.parametrize(
    "options", [{}, {"scores": "sigmoid", "shared": 2}, {"normalize": False, "balance": "bias"}]
)
def test_values_and_gradients_are_those_of_every_expert_on_every_token(k, options):
    m, x = mixture(k, **options), wt.randn(3, 7, C, dtype=wt.float64, requires_grad=True)
    inputs = [x, *m.parameters()]
    got, want = m(x), dense(m, x.view(-1, C)).view(x.shape)
    wt.testing.assert_close(got, want, rtol=1e-11, atol=1e-13)
    pairs = (
        wt.autograd.grad(y.square().sum(), inputs, materialize_grads=True, allow_unused=True)
        for y in (got, want)
    )
    for a, b in zip(*pairs, strict=True):
        wt.testing.assert_close(a, b, rtol=1e-10, atol=1e-12)


def force(m, scores):
    """Routing as wanted: the gate sees one-hot tokens."""
    with wt.no_grad():
        m.router.gate.weight.copy_(scores)


@pytest.mark.parametrize("favourite", [0, 5])
def test_dropless_loses_no_token_when_all_want_one_expert(favourite):
    m = mixture(1)
    scores = wt.zeros(E, C, dtype=wt.float64)
    scores[favourite] = 10
    force(m, scores)
    x = wt.rand(50, C, dtype=wt.float64) + 0.1
    assert (m.router(x).experts == favourite).all()
    wt.testing.assert_close(m(x), one_expert(m.experts, favourite, x), rtol=1e-12, atol=0)
    m(x).sum().backward()
    idle = [e for e in range(E) if e != favourite]
    assert m.experts.w_in.grad[idle].abs().sum() == 0
    assert m(x[:0]).shape == (0, C)


def test_capacity_keeps_first_choices_by_position():
    experts = wt.tensor([[0, 1], [0, 2], [0, 1], [3, 0]])
    kept = kept_choices(experts, 4, 1.0)  # 2 tokens an expert
    assert kept.tolist() == [[True, True], [True, True], [False, True], [True, False]]
    m, x = mixture(2, capacity_factor=0.5), wt.randn(40, C, dtype=wt.float64)
    kept = kept_choices(m.router(x).experts, E, 0.5)
    wt.testing.assert_close(m(x), dense(m, x, kept), rtol=1e-10, atol=1e-12)
    assert m.dropped == int((~kept).sum()) > 0
    counts = m.router(x).experts[kept].bincount(minlength=E)
    assert counts.max() <= math.ceil(0.5 * 40 * 2 / E)


def test_balancing_loss_is_the_papers():
    m, x = mixture(2), wt.randn(30, C, dtype=wt.float64)
    routing = m.router(x)
    scores = (x @ m.router.gate.weight.t()).softmax(-1).detach().numpy()
    share = np.bincount(routing.experts.numpy().ravel(), minlength=E) / 60
    assert routing.losses["balance"].item() == pytest.approx(E * (share * scores.mean(0)).sum(), rel=1e-12)
    force(m, wt.zeros(E, C, dtype=wt.float64))  # all scores alike
    assert m.router(x).losses["balance"].item() == pytest.approx(1.0)
    m(x)
    assert m.loss(balance=0.5, z=0.0).item() == pytest.approx(0.5)
    assert m.loss(0.0, 2.0).item() == pytest.approx(2 * math.log(E) ** 2)


def test_the_bias_evens_out_the_experts_and_leaves_the_weights():
    """Scores that favour two experts: after updates all get tokens."""
    wt.manual_seed(1)
    router = TopKRouter(C, E, 2, scores="sigmoid", balance="bias").double()
    with wt.no_grad():
        router.gate.weight[:2] += 1.0
    x = wt.rand(400, C, dtype=wt.float64)
    before = router(x).experts.reshape(-1).bincount(minlength=E).double()
    router.counts.zero_()
    for _ in range(300):
        router(x)
        router.update_bias(0.01)
    routing = router(x)
    after = routing.experts.reshape(-1).bincount(minlength=E).double()
    assert after.max() / after.mean() < 1.5 < before.max() / before.mean()
    scores = (x @ router.gate.weight.t()).sigmoid().gather(1, routing.experts)
    wt.testing.assert_close(routing.weights, scores / scores.sum(1, keepdim=True))
    assert "balance" not in routing.losses


def test_grouped_products():
    x, w = wt.randn(9, 4, dtype=wt.float64), wt.randn(4, 4, 3, dtype=wt.float64)
    counts = [2, 0, 6, 1]
    want = wt.cat([part @ w[e] for e, part in enumerate(x.split(counts))])
    wt.testing.assert_close(grouped_mm(x, w, counts), want)
    assert gradcheck(lambda a, b: grouped_mm(a, b, counts), (x.requires_grad_(), w.requires_grad_()))
    for wrong in ([2, 0, 6], [2, 0, 6, 2], [3, -1, 6, 1]):
        with pytest.raises(ValueError, match="expected 4 counts that add up to 9 rows"):
            grouped_mm(x, w, wrong)


def test_a_checkpoints_second_run_leaves_losses_and_counts():
    m, x = mixture(2), wt.randn(12, C, dtype=wt.float64, requires_grad=True)
    y = checkpoint(m, x, use_reentrant=False)
    losses = m.losses
    (y.sum() + m.loss(1.0)).backward()
    assert m.losses is losses
    assert int(m.router.counts.sum()) == 12 * 2


class Net(nn.Module):
    """Two mixtures, one with shared experts."""

    def __init__(self) -> None:
        super().__init__()
        wt.manual_seed(7)
        self.inner, self.head = nn.Linear(5, C), nn.Linear(C, 4)
        self.first = MixtureOfExperts(C, H, E, 2, shared=1)
        self.second = MixtureOfExperts(C, H, E, 3, scores="sigmoid", balance="bias")

    def forward(self, x):
        x = self.inner(x).tanh()
        x = x + self.first(x)
        return self.head(x + self.second(x))


ROWS = 24
OPTIMIZERS = {
    "sgd": lambda p: optim.SGD(p, lr=0.1, momentum=0.9),
    "adamw": lambda p: optim.AdamW(p, lr=1e-2),
}


def data():
    wt.manual_seed(3)
    return wt.randn(20, ROWS, 5, dtype=wt.float64), wt.randint(0, 4, (20, ROWS))


def steps(net, wrapped, optimizer, mine):
    losses = []
    for x, y in zip(*data(), strict=True):
        optimizer.zero_grad()
        value = F.cross_entropy(wrapped(x[mine]), y[mine]) + net.first.loss(0.05)
        value.backward()
        optimizer.step()
        net.second.router.update_bias(0.01)
        losses.append(value.detach())
    return wt.stack(losses)


def alone(name):
    net = Net().double()
    losses = steps(net, net, OPTIMIZERS[name](net.parameters()), slice(None))
    return losses, {n: p.detach() for n, p in net.named_parameters()}


def shared(name, ranks):
    """(losses averaged over ranks, parameters with the experts of all ranks) of each rank."""

    def body():
        net = expert_parallel(Net().double())
        rank, rows = dist.get_rank(), ROWS // ranks
        wrapped = DistributedDataParallel(net)
        losses = steps(
            net, wrapped, OPTIMIZERS[name](net.parameters()), slice(rank * rows, rank * rows + rows)
        )
        dist.all_reduce(losses)
        whole = {}
        for n, p in net.named_parameters():
            whole[n] = p.full_tensor().detach() if ".experts." in n else p.detach()
        return losses / ranks, whole

    return dist.simulate(ranks, body)


def differs(a, b):
    return max(float((a[0] - b[0]).abs().max()), *(float((a[1][n] - b[1][n]).abs().max()) for n in a[1]))


@pytest.mark.parametrize("name", OPTIMIZERS)
@pytest.mark.parametrize("ranks", [2, 4, 8])
def test_twenty_steps_are_those_of_one_process(name, ranks):
    want = alone(name)
    for got in shared(name, ranks):
        assert differs(want, got) < 1e-10


FAULTS = {
    "results in the wrong order": ("out.index_select(0, by_expert.argsort())", "out"),
    "gradients of experts not averaged": ("gradient / self.ranks", "gradient"),
    "experts of the next rank": (
        "place(parameter, joined, [Shard(0)])",
        "setattr(parameter, 'data', parameter.data.roll(1, 0)); place(parameter, joined, [Shard(0)])",
    ),
    "statistics of one rank": ("layer.router.group = group", "pass"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_is_found(fault, monkeypatch):
    import inspect

    source = inspect.getsource(layer)
    before, after = FAULTS[fault]
    assert source.count(before) == 1
    broken: dict = {"__name__": layer.__name__, "__package__": layer.__package__}
    exec(compile(source.replace(before, after), layer.__file__, "exec"), broken)
    monkeypatch.setitem(globals(), "MixtureOfExperts", broken["MixtureOfExperts"])
    monkeypatch.setitem(globals(), "expert_parallel", broken["expert_parallel"])
    want = alone("sgd")
    assert all(differs(want, got) > 1e-6 for got in shared("sgd", 2))


def test_wrong_arguments():
    for options, message in (
        ({"top_k": 9}, "top_k must be from 1 to the 8 experts, got 9"),
        ({"top_k": 0}, "got 0"),
        ({"capacity_factor": 0.0}, "capacity_factor must be over 0, got 0.0"),
        ({"scores": "relu"}, "expected scores of"),
        ({"balance": "luck"}, "expected balance of"),
    ):
        with pytest.raises(ValueError, match=message):
            MixtureOfExperts(C, H, E, **options)

    def body():
        net = nn.Sequential(MixtureOfExperts(C, H, 8), MixtureOfExperts(C, H, 7))
        with pytest.raises(ValueError, match="the 7 experts of 1 do not divide by 2 ranks"):
            expert_parallel(net)
        assert len(net[0].experts.w_in) == 8
        good = expert_parallel(nn.Sequential(MixtureOfExperts(C, H, 8)))
        with pytest.raises(ValueError, match="shared out already"):
            expert_parallel(good)

    dist.simulate(2, body)
