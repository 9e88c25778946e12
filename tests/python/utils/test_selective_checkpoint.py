"""Selective checkpoints give the gradients of the plain region to the bit, and run kept ops once."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape.utils._python_dispatch import TorchDispatchMode
from warptape.utils.checkpoint import (
    CheckpointPolicy,
    SelectiveCheckpointContext,
    checkpoint,
    create_selective_checkpoint_contexts,
)

ATEN = torch.ops.aten
SAVE, RECOMPUTE = CheckpointPolicy.MUST_SAVE, CheckpointPolicy.PREFER_RECOMPUTE


class Block(nn.Module):
    """Attention and an MLP, with dropout behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.qkv, self.out = nn.LayerNorm(16), nn.Linear(16, 48), nn.Linear(16, 16)
        self.up, self.down = nn.Linear(16, 64), nn.Linear(64, 16, bias=False)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).view(2, 5, 3, 2, 8).permute(2, 0, 3, 1, 4)
        heads = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + F.dropout(self.out(heads.transpose(1, 2).reshape(2, 5, 16)), 0.3)
        return x + F.dropout(self.down(F.gelu(self.up(self.norm(x)))), 0.3)


class Count(TorchDispatchMode):
    """How often each op is called."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls[str(func)] += 1
        return func(*args, **(kwargs or {}))


@pytest.fixture
def model() -> Block:
    torch.manual_seed(0)
    return Block()


def selective(model: Callable[..., Any], x: Any, policy: Any, **options: Any) -> Any:
    contexts = lambda: create_selective_checkpoint_contexts(policy, **options)
    return checkpoint(model, x, use_reentrant=False, context_fn=contexts)


def gradients(model: nn.Module, out_of: Callable[[Any], Any]) -> list[Any]:
    torch.manual_seed(1)
    x = torch.randn(2, 5, 16, requires_grad=True)
    return torch.autograd.grad(out_of(x).square().sum(), [x, *model.parameters()])


POLICIES = {
    "nothing": [],
    "products": [ATEN.mm.default, ATEN.addmm.default],
    "products by their own name": [ATEN.linear.default],
    "attention": [ATEN.scaled_dot_product_attention.default],
    "what draws random numbers": [ATEN.dropout.default],
    "elementwise": [ATEN.gelu.default, ATEN.add.Tensor],
    "norms": [ATEN.layer_norm.default],
    "views": [ATEN.view.default, ATEN.permute.default, ATEN.transpose.int],
    "everything": lambda *args, **kwargs: SAVE,
    "a bool": lambda context, op, *args, **kwargs: op is ATEN.gelu.default,
}


@pytest.mark.parametrize("early_stop", [True, False])
@pytest.mark.parametrize("policy", POLICIES.values(), ids=POLICIES.keys())
def test_gradients_are_those_of_the_plain_region(model: Block, policy: Any, early_stop: bool) -> None:
    expected = gradients(model, model)

    def out_of(x: Any) -> Any:
        contexts = lambda: create_selective_checkpoint_contexts(policy)
        return checkpoint(model, x, use_reentrant=False, context_fn=contexts, early_stop=early_stop)

    assert all(torch.equal(a, b) for a, b in zip(gradients(model, out_of), expected, strict=True))


def test_under_autocast(model: Block) -> None:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        expected = gradients(model, model)
        found = gradients(model, lambda x: selective(model, x, [ATEN.mm.default, ATEN.addmm.default]))
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


@pytest.mark.parametrize(
    ("policy", "kept"),
    [
        ([ATEN.addmm.default, ATEN.mm.default], "aten.linear.default"),
        ([ATEN.scaled_dot_product_attention.default], "aten.scaled_dot_product_attention.default"),
    ],
)
def test_kept_ops_run_once(model: Block, policy: Any, kept: str) -> None:
    x = torch.randn(2, 5, 16)
    loss = selective(model, x, policy).sum()
    with Count() as count:
        loss.backward()
    assert count.calls[kept] == 0 and count.calls["aten.layer_norm.default"] == 2
    loss = checkpoint(model, x, use_reentrant=False).sum()
    with Count() as count:
        loss.backward()
    assert count.calls[kept] > 0


def test_what_a_kept_op_saves_of_its_arguments_is_computed_again() -> None:
    """Kept are the product's 4 MiB; the exponentials that it reads and saves are not."""
    x, w = torch.randn(1024, 1024), torch.randn(1024, 1024, requires_grad=True)
    before = torch._C._memory_stats()["allocated_bytes"]
    out = selective(lambda x: x.exp().exp() @ w, x, [ATEN.mm.default])
    used = torch._C._memory_stats()["allocated_bytes"] - before
    out.sum().backward()
    assert used < 2 * out.nbytes
    assert torch.equal(w.grad, x.exp().exp().t() @ torch.ones_like(out))


def test_a_policy_is_asked_in_both_runs_about_the_arguments() -> None:
    asked = []

    def policy(context: Any, op: Any, *args: Any, **kwargs: Any) -> CheckpointPolicy:
        assert isinstance(context, SelectiveCheckpointContext)
        asked.append((context.is_recompute, op, args[0].shape))
        return SAVE if op is ATEN.exp.default else RECOMPUTE

    x = torch.ones(3, requires_grad=True)
    selective(lambda x: x.exp().sin().cos(), x, policy).sum().backward()
    ops = [ATEN.exp.default, ATEN.sin.default, ATEN.cos.default]
    first = [op for again, op, _ in asked if not again]
    assert first == ops and [op for again, op, _ in asked if again] == ops[: len(asked) - 3]
    assert len(asked) > 3 and {shape for *_, shape in asked} == {(3,)}


def test_a_second_backward_pass_is_refused() -> None:
    x = torch.ones(3, requires_grad=True)
    loss = selective(lambda x: x.exp().sin().exp(), x, [ATEN.exp.default]).sum()
    loss.backward(retain_graph=True)
    with pytest.raises(RuntimeError, match="Trying to backward an extra time"):
        loss.backward()


def test_a_kept_result_that_was_changed() -> None:
    def changing(x: Any) -> Any:
        y = x.sin()
        z = y.exp()
        y.detach().mul_(2)
        return z.cos()

    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="has been mutated"):
        selective(changing, x, [ATEN.sin.default]).sum().backward()
    selective(changing, x, [ATEN.sin.default], allow_cache_entry_mutation=True).sum().backward()


def test_a_policy_that_keeps_more_in_the_second_run() -> None:
    x = torch.ones(3, requires_grad=True)
    out = selective(
        lambda x: x.exp().sin(), x, lambda context, *args: SAVE if context.is_recompute else RECOMPUTE
    )
    with pytest.raises(RuntimeError, match=r"aten\.exp\.default encountered during backward, but not found"):
        out.sum().backward()


@pytest.mark.parametrize("policy", [[ATEN.sin.default], [ATEN.exp.default], [ATEN.mm.default], []])
def test_a_region_in_a_region(policy: list[Any]) -> None:
    def inner(x: Any) -> Any:
        return ((x.sin() @ x).exp() * x).sum(0)

    def outer(x: Any, checkpointed: bool) -> Any:
        x = x.exp().sin()
        y = checkpoint(inner, x, use_reentrant=False) if checkpointed else inner(x)
        return (y.sin() * x).exp()

    x = torch.linspace(-1, 1, 9).view(3, 3).requires_grad_()
    (expected,) = torch.autograd.grad(outer(x, False).sum(), x)
    (found,) = torch.autograd.grad(selective(lambda x: outer(x, True), x, policy).sum(), x)
    assert torch.equal(found, expected)


def test_what_is_no_policy() -> None:
    with pytest.raises(TypeError, match="must be either a function or a list of ops"):
        create_selective_checkpoint_contexts(None)


def test_an_entry_that_is_no_overload() -> None:
    with pytest.raises(TypeError, match=r"torch\.ops\.aten\.mm\.default"):
        create_selective_checkpoint_contexts([ATEN.mm])


def test_an_error_in_a_kept_op_leaves_nothing_behind() -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(RuntimeError, match="matmul"):
        selective(lambda x: x @ torch.ones(2, 2), x, [ATEN.mm.default])
    out = checkpoint(lambda x: x.exp().exp(), x, use_reentrant=False)
    out.sum().backward()
    assert x.grad.isfinite().all()
