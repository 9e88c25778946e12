"""What tensors say of their history while a graph is recorded: what they say in eager code."""

from __future__ import annotations

import pytest
import warptape as torch
from warptape import nn

SAID: dict[str, str] = {}  # by name; not the module's, whose attributes are put back
FACTS = {(False, True, False): "plain", (True, True, False): "leaf", (True, False, True): "node"}
# PyTorch 2.13's answers, the same in eager code and in torch.export.export(.., strict=False): `leaf` is one
# that requires a gradient, `plain` a leaf that does not, `node` a tensor with a grad_fn.
WANTED = {
    "parameters": "leaf plain plain plain",
    "views of a leaf": "node node node node node node node",
    "views of what learns": "node node",
    "views of what does not": "plain plain plain",
    "detached": "plain plain plain",
    "the same": "leaf plain leaf",
    "no gradient": "plain plain plain plain plain",
    "several": "node plain node node",
    "without grad mode": "leaf plain plain leaf",
    "after it": "leaf node node",
    "written view": "node node node node",
    "written base": "node node node node",
    "written, not learning": "plain plain",
    "copied": "node",
    "detached in place": "plain",
    "buffer": "node node",
    "input": "node node",
}
REFUSED = {
    "leaf": "a leaf Variable that requires grad is being used in an in-place operation",
    "view of leaf": "a view of a leaf Variable that requires grad is being used in an in-place operation",
    "part of a split": "is a view and is being modified inplace. This view is the output of a function that",
    "view of no_grad": "A view was created in no_grad mode and is being modified inplace with grad mode",
}


def refusal(call):
    try:
        call()
    except RuntimeError as error:
        return str(error)
    return ""


def write_what_no_grad_made(w):
    learns = w * 2
    with torch.no_grad():
        view = learns[0]
    view.mul_(w[0])


class Views(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(3, 4))
        self.frozen = nn.Parameter(torch.ones(3, 4), requires_grad=False)
        self.register_buffer("total", torch.zeros(4))

    def say(self, name, *tensors):
        facts = [(t.requires_grad, t.is_leaf, t.grad_fn is not None) for t in tensors]
        SAID[name] = " ".join(FACTS[f] for f in facts)

    def reads(self, x):
        w = self.weight
        self.say("parameters", w, self.frozen, self.total, x)
        parts = (*w.split(2), *w.unbind(1)[:1])
        self.say("views of a leaf", w.t(), w[0], w.view(-1), w.view(-1)[1:], *parts)
        self.say("views of what learns", (w * 2).t(), (x + w).view(-1)[:2])
        self.say("views of what does not", x.t(), self.frozen[0], self.frozen.t().view(4, 3))
        self.say("detached", w.detach(), w.t().detach(), (w * 2).detach()[0])
        self.say("the same", w.to(w.dtype), x.to(x.dtype), w.contiguous())
        new = (torch.ones_like(w), torch.zeros_like(w * 2), w > 0, w.argmax(), w.new_ones(2))
        self.say("no gradient", *new)
        self.say("several", *w.topk(2), *torch.var_mean(w))
        with torch.no_grad():
            v = w.t()
            self.say("without grad mode", v, w * 2, x.t(), w[0].clone().requires_grad_())
        self.say("after it", v, v[0], v * 1)

    def writes(self, x):
        w = self.weight
        y = x * 1
        part = y[0]
        part.mul_(w[0])
        self.say("written view", part, y, y[1], part[:1])
        y = x * 1
        part, other = y[0], y[1]
        y.add_(w)
        self.say("written base", part, y, other, other * 1)
        y = x * 1
        y.t().t()[1:].add_(1)
        self.say("written, not learning", y, y[0])
        y = self.frozen * 1
        y.copy_(w)
        self.say("copied", y)
        y.detach_()
        self.say("detached in place", y)
        self.total.add_(w[0])
        self.say("buffer", self.total, self.total[:2])
        x.mul_(w)
        self.say("input", x, x.t())

    def forward(self, x):
        self.reads(x)
        self.writes(x)
        w = self.weight
        refused = (
            lambda: w.add_(1),
            lambda: w.t().add_(1),
            lambda: (w * 2).split(1)[0].add_(1),
            lambda: write_what_no_grad_made(w),
        )
        for name, call in zip(REFUSED, refused, strict=True):
            SAID[name] = refusal(call)
        return x * 2


RECORDERS = {
    "eager": lambda model, x: model(x),
    "export": lambda model, x: torch.export.export(model, (x,)),
    "trace": lambda model, x: torch.jit.trace(model, x),
}


@pytest.mark.parametrize("kind", RECORDERS)
def test_history_is_that_of_eager_code(kind):
    SAID.clear()
    model, x = Views(), torch.ones(3, 4)
    RECORDERS[kind](model, x)
    assert {name: SAID[name] for name in WANTED} == WANTED
    for name, text in REFUSED.items():
        assert text in SAID[name], name
    if kind != "eager":  # nothing of it is left on what was there before
        assert [t.grad_fn for t in (x, model.weight, model.frozen, model.total)] == [None] * 4
        assert not x.requires_grad and not model.total.requires_grad and model.weight.requires_grad


def test_results_of_control_flow():
    w, said = torch.ones(3, 4, requires_grad=True), []

    def facts(t):
        return FACTS[t.requires_grad, t.is_leaf, t.grad_fn is not None]

    def f(x):
        learns = torch.cond(x.sum() > 0, lambda x, w: (x * w).t(), lambda x, w: x.t() + w.t(), (x, w))
        said.append([facts(t) for t in (learns, learns[0])])
        view = torch.cond(x.sum() > 0, lambda x: (x * 2).t(), lambda x: x.t() * 1, (x,))
        said.append([facts(t) for t in (view, view[0])])
        view.mul_(w.t())
        said.append([facts(t) for t in (view, view[0])])
        return view

    f(torch.ones(3, 4))
    torch.jit.trace(f, torch.ones(3, 4))
    assert said[:3] == said[3:6] == [["node"] * 2, ["plain"] * 2, ["node"] * 2]
