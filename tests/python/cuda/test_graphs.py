"""Captured graphs: replays equal eager runs, draws go on, memory and errors."""

from __future__ import annotations

import copy
import subprocess
import sys

import numpy as np
import pytest
import warptape as torch

pytestmark = pytest.mark.cuda


def test_replay_reads_new_inputs() -> None:
    x = torch.zeros(1000, device="cuda")
    g = torch.cuda.CUDAGraph()
    assert not torch.cuda.is_current_stream_capturing()
    with torch.cuda.graph(g):
        assert torch.cuda.is_current_stream_capturing()
        y = (x * 2 + 1).sum()
    for value in (1.0, 3.0):
        x.fill_(value)
        g.replay()
        assert y.item() == 1000 * (2 * value + 1)
    assert g.pool() != torch.cuda.graph_pool_handle()
    g.reset()
    with pytest.raises(RuntimeError, match="without a preceding successful capture"):
        g.replay()


def test_draws_go_on_from_replay_to_replay() -> None:
    x = torch.ones(300, device="cuda")

    def draw() -> list[torch.Tensor]:
        return [
            torch.nn.functional.dropout(x, 0.5),
            torch.rand(40, device="cuda"),
            torch.nn.functional.dropout(x, 0.3),
        ]

    torch.manual_seed(13)
    eager = [[t.cpu() for t in draw()] for _ in range(4)]
    torch.manual_seed(13)
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        captured = draw()
    for want in eager[:3]:
        g.replay()
        for got, expected in zip(captured, want):
            assert torch.equal(got.cpu(), expected)
    for got, expected in zip(draw(), eager[3]):
        assert torch.equal(got.cpu(), expected)


def train_step(model: torch.nn.Module, optimizer: torch.optim.Optimizer, x: torch.Tensor) -> torch.Tensor:
    optimizer.zero_grad(set_to_none=False)
    loss = model(x).square().mean()
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    return loss


def test_training_step_equals_eager() -> None:
    torch.manual_seed(2)
    model = torch.nn.Sequential(torch.nn.Linear(6, 9), torch.nn.Dropout(0.2), torch.nn.Linear(9, 3)).cuda()
    twin = copy.deepcopy(model)
    batches = [torch.randn(4, 6, device="cuda") for _ in range(4)]
    rate = torch.tensor(1e-2, device="cuda")
    eager = torch.optim.AdamW(model.parameters(), lr=rate)
    graphed = torch.optim.AdamW(twin.parameters(), lr=rate)
    # The first step makes gradients and states, so that the captured ones find them.
    for net, optimizer in ((model, eager), (twin, graphed)):
        torch.manual_seed(1)
        train_step(net, optimizer, batches[0])
    torch.manual_seed(8)
    losses = [train_step(model, eager, x).item() for x in batches]
    torch.manual_seed(8)
    held = batches[0].clone()
    g = torch.cuda.CUDAGraph()
    with torch.cuda.graph(g):
        loss = train_step(twin, graphed, held)
    found = []
    for x in batches:
        held.copy_(x)
        g.replay()
        found.append(loss.item())
    assert found == losses
    for p, q in zip(model.parameters(), twin.parameters()):
        assert torch.equal(p.detach().cpu(), q.detach().cpu())


def test_what_waits_cannot_be_captured() -> None:
    x = torch.ones(3, device="cuda")
    g = torch.cuda.CUDAGraph()
    with pytest.raises(RuntimeError), torch.cuda.graph(g):
        x.sum().item()
    assert (x + 1).tolist() == [2.0] * 3
    with pytest.raises(RuntimeError, match="non-default stream"):
        torch.cuda.CUDAGraph().capture_begin()
    with pytest.raises(ValueError, match="capture_error_mode"):
        torch.cuda.CUDAGraph().capture_begin(capture_error_mode="lax")
    with pytest.raises(RuntimeError, match="capture_begin"):
        torch.cuda.CUDAGraph().capture_end()


@pytest.mark.parametrize(
    "call", ["x @ x", "wt.linalg.cholesky_ex(x).L", "wt.linalg.inv_ex(x)[0]", "wt.fft.fft(x).abs()"]
)
def test_a_library_is_first_needed_within_a_capture(call: str) -> None:
    """Its handle or plan takes memory, which a capture forbids to who does not ask for it."""
    code = f"""
import warptape as wt
x, graph = wt.eye(4, device="cuda"), wt.cuda.CUDAGraph()
with wt.cuda.graph(graph):
    y = {call}
x.mul_(2)
graph.replay()
print(wt.equal(y, {call}))
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout.strip() == "True", done.stderr


def test_graphs_share_a_pool() -> None:
    x = torch.ones(5000, device="cuda")
    pool = torch.cuda.graph_pool_handle()
    graphs, results = [], []
    for k in range(2):
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, pool=pool):
            results.append((x * (k + 2)).sum())
        assert g.pool() == pool
        graphs.append(g)
    for g in graphs:
        g.replay()
    assert [r.item() for r in results] == [10000.0, 15000.0]


def test_graphed_callables() -> None:
    torch.manual_seed(6)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 2)).cuda()
    twin = copy.deepcopy(model)
    sample = torch.randn(3, 5, device="cuda", requires_grad=True)
    graphed = torch.cuda.make_graphed_callables(twin, (sample,))
    for _ in range(2):
        x = torch.randn(3, 5, device="cuda")
        ours, theirs = x.clone().requires_grad_(), x.clone().requires_grad_()
        for net in (model, twin):
            net.zero_grad()
        a, b = model(ours), graphed(theirs)
        np.testing.assert_array_equal(a.detach().cpu().numpy(), b.detach().cpu().numpy())
        a.square().sum().backward()
        b.square().sum().backward()
        assert torch.equal(ours.grad.cpu(), theirs.grad.cpu())
        for p, q in zip(model.parameters(), twin.parameters()):
            assert torch.equal(p.grad.cpu(), q.grad.cpu())
    twin.eval()
    assert torch.equal(twin(x).cpu(), model(x).cpu())
