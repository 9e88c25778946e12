"""Context parallelism: attention of a sequence that ranks share, and training with it, equal one process."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from scipy import special
from tensor_models import TOLERANCE, simulate
from warptape import nn
from warptape.distributed.tensor.experimental import context_parallel
from warptape.distributed.tensor.experimental._attention import context_parallel_unshard, set_rotate_method
from warptape.parallel import context
from warptape.parallel.context import ring, shard_sequence, unshard_sequence

B, H, T, D, E = 2, 8, 32, 6, 5
Attention = Callable[..., wt.Tensor]


def mesh() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))


def ring_by(rotate: str) -> Attention:
    return lambda *args, **kwargs: context.ring_attention(*args, **kwargs, rotate=rotate)


ATTENTIONS: dict[str, Attention] = {
    "alltoall": ring_by("alltoall"),
    "allgather": ring_by("allgather"),
    "ulysses": lambda *args, **kwargs: context.ulysses_attention(*args, **kwargs, mesh=mesh()),
}


def drawn(kv_heads: int, dtype: Any = wt.float64) -> list[wt.Tensor]:
    """Query, key, value and the output's gradient."""
    wt.manual_seed(3)
    shapes = [(B, H, T, D), (B, kv_heads, T, D), (B, kv_heads, T, E), (B, H, T, E)]
    return [wt.randn(*shape, dtype=wt.float64).to(dtype) for shape in shapes]


def dense(values: list[wt.Tensor], causal: bool, mask: Any = None) -> list[np.ndarray]:
    """Output and gradients of query, key and value, by the whole matrix of probabilities, in NumPy. A query
    that sees no key gets zeros."""
    q, k, v, g = (t.double().numpy() for t in values)
    group = H // k.shape[1]
    k, v = (np.repeat(x, group, 1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) / np.sqrt(D)
    if causal:
        scores = np.where(np.tri(T, dtype=bool), scores, -np.inf)
    if mask is not None:
        scores = np.where(mask, scores, -np.inf) if mask.dtype == bool else scores + mask
    seen = np.isfinite(scores).any(-1, keepdims=True)
    p = np.where(seen, special.softmax(np.where(seen, scores, 0.0), -1), 0.0)
    dp = g @ v.swapaxes(-1, -2)
    ds = p * (dp - (dp * p).sum(-1, keepdims=True)) / np.sqrt(D)
    dk, dv = ds.swapaxes(-1, -2) @ q, p.swapaxes(-1, -2) @ g
    dk, dv = (x.reshape(B, H // group, group, T, -1).sum(2) for x in (dk, dv))
    return [p @ v, ds @ k, dk, dv]


def between_ranks(
    attention: Attention, values: list[wt.Tensor], causal: bool, **options: Any
) -> list[wt.Tensor]:
    """As dense, of the slices of this rank, then put together."""
    q, k, v = (shard_sequence(t, 2).requires_grad_() for t in values[:3])
    out = attention(q, k, v, is_causal=causal, enable_gqa=True, **options)
    out.backward(shard_sequence(values[3], 2))
    return [unshard_sequence(t, 2) for t in (out, q.grad, k.grad, v.grad)]


def check(got: list[wt.Tensor], expected: list[np.ndarray], tolerance: float = TOLERANCE) -> None:
    for name, have, want in zip(("output", "query", "key", "value"), got, expected, strict=True):
        error = float(np.abs(have.double().numpy() - want).max())
        assert error <= tolerance, f"{name} differs by {error:.1e}"


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [8, 4])
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_attention_equals_the_dense_formula(name: str, kv_heads: int, causal: bool, ranks: int) -> None:
    values = drawn(kv_heads)
    expected = dense(values, causal)
    simulate(ranks, lambda: check(between_ranks(ATTENTIONS[name], values, causal), expected))


@pytest.mark.parametrize("name", list(ATTENTIONS))
@pytest.mark.parametrize("dtype, tolerance", [(wt.float32, 1e-5), (wt.bfloat16, 0.1)])
def test_lower_precision(name: str, dtype: Any, tolerance: float) -> None:
    values = drawn(4, dtype)
    expected = dense(values, True)
    simulate(4, lambda: check(between_ranks(ATTENTIONS[name], values, True), expected, tolerance))


def test_keys_of_another_length() -> None:
    q, k, v, _ = drawn(8)
    k, v = (wt.cat([t, -t[:, :, :8]], 2) for t in (k, v))  # 40 keys, 5 slices of 4 ranks each 2
    expected = F.scaled_dot_product_attention(q, k, v)

    def rank() -> float:
        parts = [shard_sequence(t, 2) for t in (q, k, v)]
        return (unshard_sequence(context.ring_attention(*parts), 2) - expected).abs().max().item()

    assert max(simulate(4, rank)) <= TOLERANCE


def test_scores_far_apart() -> None:
    """A block whose scores are 1000 below those of another has no share, and nothing overflows."""
    values = drawn(8)
    values[1] = values[1].clone()
    values[1][:, :, ::5] *= 1000
    expected = dense(values, True)
    simulate(4, lambda: check(between_ranks(ATTENTIONS["alltoall"], values, True), expected, 1e-9))


def masks() -> dict[str, wt.Tensor]:
    """Of the whole sequence, each with queries that see no key, at least of one rank's."""
    generator = wt.Generator().manual_seed(4)
    places = wt.arange(T)
    right = (places < wt.tensor([T - 7, 5]).unsqueeze(1)).view(B, 1, 1, T)
    left = (places >= wt.tensor([9, 0]).unsqueeze(1)).view(B, 1, 1, T)
    document = wt.randint(0, 4, (B, T), generator=generator).sort(1)[0]
    same = (document.unsqueeze(2) == document.unsqueeze(1)).unsqueeze(1)  # [B, 1, T, T]
    slopes = wt.randn(1, H, T, T, generator=generator, dtype=wt.float64)
    return {"right": right, "left": left, "documents": same, "added": slopes, "one row": right[:1]}


@pytest.mark.parametrize("ranks", [1, 2, 4])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kind", list(masks()))
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_masks(name: str, kind: str, causal: bool, ranks: int) -> None:
    """Of padding, which travel with the keys, and of all keys, one for each query."""
    values, mask = drawn(4), masks()[kind]
    expected = dense(values, causal, mask.numpy())

    def rank() -> None:
        part = shard_sequence(mask, -1 if mask.shape[2] == 1 else -2)
        check(between_ranks(ATTENTIONS[name], values, causal, attn_mask=part), expected)

    simulate(ranks, rank)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_dropout_with_a_mask(name: str, causal: bool) -> None:
    values, mask = drawn(4), masks()["right"]

    def rank() -> list[wt.Tensor]:
        wt.manual_seed(5)
        part = shard_sequence(mask, -1)
        return between_ranks(ATTENTIONS[name], values, causal, attn_mask=part, dropout_p=0.3)

    def alone() -> list[wt.Tensor]:
        wt.manual_seed(5)
        seen = mask & wt.ones(T, T, dtype=wt.bool).tril() if causal else mask.expand(B, 1, T, T)
        leaves = [t.clone().requires_grad_() for t in values[:3]]
        out = F.scaled_dot_product_attention(*leaves, seen, dropout_p=0.3, enable_gqa=True)
        out.backward(values[3])
        return [out, *(t.grad for t in leaves)]

    expected = [t.detach().numpy() for t in alone()]
    for found in simulate(2, rank):
        check(found, expected)


@pytest.mark.parametrize("causal", [True, False])
@pytest.mark.parametrize("name", list(ATTENTIONS))
def test_dropout_is_that_of_one_process(name: str, causal: bool) -> None:
    values = drawn(4)

    def whole() -> list[wt.Tensor]:
        wt.manual_seed(5)
        leaves = [t.clone().requires_grad_() for t in values[:3]]
        out = F.scaled_dot_product_attention(*leaves, dropout_p=0.3, is_causal=causal, enable_gqa=True)
        out.backward(values[3])
        return [out, *(t.grad for t in leaves)]

    expected = [t.detach().numpy() for t in whole()]
    after = wt.rand(3)

    def rank() -> None:
        wt.manual_seed(5)
        check(between_ranks(ATTENTIONS[name], values, causal, dropout_p=0.3), expected)
        assert wt.rand(3).equal(after)  # the next numbers are those of one process, too

    simulate(4, rank)


def test_blocks_travel_while_others_are_computed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What rank 0 of 3 does: a transfer is under way during each block but the last of keys and values."""
    seen: list[str] = []

    def noted(name: str, call: Any) -> Any:
        def run(*args: Any) -> Any:
            if dist.get_rank() == 0:
                seen.append(name)
            return call(*args)

        return run

    monkeypatch.setattr(ring, "_forward", noted("compute", ring._forward))
    monkeypatch.setattr(ring, "_backward", noted("compute", ring._backward))
    monkeypatch.setattr(ring._Moving, "__init__", noted("post", ring._Moving.__init__))
    monkeypatch.setattr(ring._Moving, "arrived", noted("wait", ring._Moving.arrived))

    def rank() -> None:
        x = wt.ones(1, 1, 4, 2, requires_grad=True)
        out = context.ring_attention(x, x, x, is_causal=True)
        seen.extend(["backward"] if dist.get_rank() == 0 else [])
        out.sum().backward()

    simulate(3, rank)
    at = seen.index("backward")
    assert seen[:at] == ["post", "compute", "wait"] * 2 + ["compute"]
    # Gradients of a block leave after it, and are waited for after the next one.
    first, middle = ["post", "compute", "post"], ["wait", "post", "compute", "wait", "post"]
    assert seen[at + 1 :] == first + middle + ["wait", "compute", "wait", "post", "wait"]


# ------------------------------------------------------------------------------ order


def test_zigzag_order() -> None:
    held = simulate(4, lambda: shard_sequence(wt.arange(16), 0).tolist())
    assert held == [[0, 1, 14, 15], [2, 3, 12, 13], [4, 5, 10, 11], [6, 7, 8, 9]]


def test_order_is_undone_and_recorded() -> None:
    def rank() -> None:
        x = wt.randn(3, 16, 2, dtype=wt.float64, generator=wt.Generator().manual_seed(1)).requires_grad_()
        part = shard_sequence(x, 1)
        assert unshard_sequence(part, 1).equal(x)
        part.sum().backward()
        assert x.grad.sum().item() == 3 * 8 * 2

    simulate(2, rank)


# ------------------------------------------------------------------------------ PyTorch's names


@pytest.mark.parametrize("rotate", ["alltoall", "allgather"])
def test_context_cuts_buffers_and_attends_between_ranks(rotate: str) -> None:
    values = drawn(8)
    expected = dense(values, True)
    set_rotate_method(rotate)

    def rank() -> None:
        q, k, v, g = (t.clone() for t in values)
        stays = wt.arange(T)
        with context_parallel(
            mesh(),
            buffers=[q, k, v, g, stays],
            buffer_seq_dims=[2, 2, 2, 2, 0],
            no_restore_buffers={stays},
        ):
            assert list(q.shape) == [B, H, T // dist.get_world_size(), D]
            leaves = [t.clone().requires_grad_() for t in (q, k, v)]
            out = F.scaled_dot_product_attention(*leaves, is_causal=True)
            out.backward(g.clone())
        got = context_parallel_unshard(mesh(), [out, *(t.grad for t in leaves)], [2] * 4)
        check(got, expected)
        assert all(a.equal(b) for a, b in zip((q, k, v, g), values, strict=True))
        assert list(stays.shape) == [T // dist.get_world_size()]
        part = shard_sequence(q, 2)
        alone = F.scaled_dot_product_attention(part, part, part)  # outside it is this rank's alone
        assert not alone.allclose(context.ring_attention(part, part, part))

    try:
        simulate(2, rank)
    finally:
        set_rotate_method("alltoall")


def test_buffers_come_back_after_an_error() -> None:
    def rank() -> None:
        x = wt.arange(8)
        with (
            pytest.raises(KeyError),
            context_parallel(mesh(), buffers=[x], buffer_seq_dims=[0]),
        ):
            raise KeyError
        assert x.tolist() == list(range(8))

    simulate(2, rank)


# ------------------------------------------------------------------------------ what is refused


def refused(match: str, call: Callable[[], Any], error: type[Exception] = ValueError) -> None:
    def rank() -> None:
        with pytest.raises(error, match=match):
            call()

    simulate(2, rank)


def test_refused_lengths() -> None:
    uneven = wt.zeros(2, 10)
    refused(
        r"size 10 does not divide into 2 \* 2 slices.*pad the sequence to 12",
        lambda: shard_sequence(uneven, 1),
    )
    refused("expected a sequence dim of", lambda: shard_sequence(uneven, 2))
    refused("expected a Tensor, got list", lambda: shard_sequence([1], 0), TypeError)  # type: ignore[arg-type]

    def enter() -> None:
        fits = wt.zeros(2, 8)
        try:
            with context_parallel(mesh(), buffers=[fits, uneven], buffer_seq_dims=[1, 1]):
                pass
        finally:
            assert list(fits.shape) == [2, 8]

    refused("pad the sequence to 12", enter)


def test_refused_attention() -> None:
    x, odd = wt.zeros(1, 4, 4, 2), wt.zeros(1, 4, 3, 2)
    few = wt.zeros(1, 3, 4, 2)
    attend = context.ring_attention
    refused(r"keys, \[.., 1, 4\], or .*, \[.., 4, 8\], got \[4, 4\]", lambda: attend(x, x, x, wt.zeros(4, 4)))
    refused("needs no gradient", lambda: attend(x, x, x, wt.zeros(1, 4, requires_grad=True)), TypeError)
    refused("dropout needs two slices of one size", lambda: attend(odd, odd, odd, dropout_p=0.1))
    refused("pad the sequence to a multiple of 2", lambda: attend(odd, odd, odd, is_causal=True))
    refused("expected query", lambda: attend(x[0], x[0], x[0]))
    refused("3 key heads for 4 query heads", lambda: attend(x, few, few, enable_gqa=True))
    refused("expected rotate of", lambda: attend(x, x, x, rotate="other"))
    refused("expected Tensors, got float", lambda: attend(x, x, 1.0), TypeError)  # type: ignore[arg-type]
    refused("3 query heads do not divide", lambda: ATTENTIONS["ulysses"](few, few, few))


def test_refused_contexts() -> None:
    def enter(**kwargs: Any) -> None:
        with context_parallel(mesh(), **kwargs):
            pass

    refused("a buffer_seq_dim for each", lambda: enter(buffers=[wt.zeros(4)]))
    fits, strided = wt.zeros(4, 4), wt.zeros(4, 8)[:, ::2]
    for bad in (strided, wt.zeros(4, 4, requires_grad=True)):
        refused("give a detached copy", lambda b=bad: enter(buffers=[fits, b], buffer_seq_dims=[0, 1]))
    assert list(fits.shape) == [4, 4]
    refused("must be among buffers", lambda: enter(no_restore_buffers={wt.zeros(4)}))
    refused("expected attention of", lambda: enter(attention="other"))
    refused("load_balancer is not supported", lambda: context_parallel_unshard(mesh(), [], [], object()))
    with pytest.raises(ValueError, match="expected one of"):
        set_rotate_method("other")


def test_multi_head_attention_is_refused_and_not_wrong() -> None:
    def call() -> None:
        x = wt.zeros(2, 8, 4)
        with context_parallel(mesh()):
            nn.MultiheadAttention(4, 2, batch_first=True)(x, x, x)

    refused("this rank's part of the sequence alone", call)


def test_ranks_with_other_shapes_are_an_error_on_each() -> None:
    def rank() -> None:
        x = wt.zeros(1, 2, 4 * (1 + dist.get_rank()), 2)
        context.ring_attention(x, x, x)

    with pytest.raises(dist.RankFailed):
        simulate(2, rank)


# ------------------------------------------------------------------------------ planted bugs


def wrong_merge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring, "merge", lambda out, lse, more, its: ((out + more) / 2, wt.logaddexp(lse, its)))


def wrong_log_sum_exp(patch: pytest.MonkeyPatch) -> None:
    real = ring.merge
    patch.setattr(
        ring, "merge", lambda out, lse, more, its: (real(out, lse, more, its)[0], wt.maximum(lse, its))
    )


def missing_hop(patch: pytest.MonkeyPatch) -> None:
    """Gradients of keys and values stay one rank behind theirs."""
    real, calls = ring._Moving.arrived, {}

    def arrived(self: Any) -> Any:
        got = real(self)
        at = calls[dist.get_rank()] = calls.get(dist.get_rank(), 0) + 1
        return self.sent if at == 3 else got  # of 2 ranks: keys forward, keys backward, gradients

    patch.setattr(ring._Moving, "arrived", arrived)


def later_keys_seen(patch: pytest.MonkeyPatch) -> None:
    real = ring._seen
    patch.setattr(ring, "_seen", lambda c, r, o, q, k: (0, k, False) if o > r else real(c, r, o, q, k))


@pytest.mark.parametrize("bug", [wrong_merge, wrong_log_sum_exp, missing_hop, later_keys_seen])
def test_comparison_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    values = drawn(8)
    expected = dense(values, True)
    bug(monkeypatch)
    with pytest.raises(dist.RankFailed, match="differs by"):
        simulate(2, lambda: check(between_ranks(ATTENTIONS["alltoall"], values, True), expected))
