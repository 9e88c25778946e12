"""Which modules run, forward and backward."""

from __future__ import annotations

import warptape as torch
from warptape import nn
from warptape.utils.checkpoint import checkpoint
from warptape.utils.module_tracker import ModuleTracker


class Probe(torch.autograd.Function):
    """Notes what the tracker says when it runs."""

    @staticmethod
    def forward(ctx, x, tracker, seen):
        ctx.tracker, ctx.seen = tracker, seen
        seen.append((set(tracker.parents), tracker.is_bw))
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        ctx.seen.append((set(ctx.tracker.parents), ctx.tracker.is_bw))
        return grad, None, None


class Inner(nn.Module):
    def __init__(self, tracker, seen):
        super().__init__()
        self.linear, self.told = nn.Linear(2, 2), (tracker, seen)

    def forward(self, x):
        return self.linear(Probe.apply(self.linear(x), *self.told))


class Net(nn.Module):
    def __init__(self, tracker, seen):
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 2), Inner(tracker, seen))
        self.told = tracker, seen

    def forward(self, x):
        return Probe.apply(self.layers(x), *self.told)


INNER = {"Global", "Net", "Net.layers", "Net.layers.1"}


def test_forward_and_backward():
    tracker, seen = ModuleTracker(), []
    net = Net(tracker, seen)
    x = torch.ones(1, 2, requires_grad=True)
    with tracker:
        assert tracker.parents == {"Global"} and not tracker.is_bw
        loss = net(x).sum()
        assert tracker.parents == {"Global"}
        loss.backward()
        assert tracker.parents == {"Global"} and not tracker.is_bw
    inner, outer, outer_back, inner_back = seen
    assert inner == (INNER, False) and outer == ({"Global", "Net"}, False)
    assert outer_back == ({"Global", "Net"}, True) and inner_back == (INNER, True)
    seen.clear()
    net(x)
    assert seen == [({"Global"}, False)] * 2 and tracker.parents == {"Global"}  # outside of `with`


def test_inputs_without_a_gradient_and_a_failure():
    tracker, seen = ModuleTracker(), []
    net = Net(tracker, seen)
    with tracker:
        for _ in range(2):  # the end of a pass takes the modules out whose inputs have no gradient
            net(torch.ones(1, 2)).sum().backward()
            assert tracker.parents == {"Global"}
    assert [is_bw for _, is_bw in seen] == [False, False, True, True] * 2


def test_recomputation_counts_as_backward():
    tracker, seen = ModuleTracker(), []
    inner = Inner(tracker, seen)
    with tracker:
        checkpoint(inner, torch.ones(1, 2, requires_grad=True), use_reentrant=False).sum().backward()
    assert seen[0] == ({"Global", "Inner"}, False) and seen[1][1] and "Inner" in seen[1][0]
