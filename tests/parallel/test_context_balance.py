"""Sequences and masks of any kind, cut for ranks that share them: attention equals that of one process."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from tensor_models import TOLERANCE, simulate
from warptape.distributed import functional
from warptape.distributed.tensor.experimental._attention import (
    _context_parallel_shard,
    _HeadTailLoadBalancer,
    _PTRRLoadBalancer,
)
from warptape.nn.attention.flex_attention import create_block_mask, flex_attention

B, H, T, D, BLOCK = 2, 2, 96, 4, 8
STARTS = wt.tensor([0, 40, 64])  # of documents


def documents(b: Any, h: Any, q: Any, k: Any) -> Any:
    """Causal, inside of a document; the second batch is one document."""
    document = wt.searchsorted(STARTS, wt.arange(T), right=True)
    return (q >= k) & ((document[q] == document[k]) | (b == 1))


def mesh() -> dist.DeviceMesh:
    return dist.init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("cp",))


def inputs() -> list[wt.Tensor]:
    wt.manual_seed(2)
    return [wt.randn(B, H, T, D, dtype=wt.float64) for _ in range(4)]


def whole_mask(batches: int = B) -> Any:
    return create_block_mask(documents, batches, None, T, T, BLOCK_SIZE=BLOCK)


def balancer(kind: str, mask: Any, ranks: int) -> Any:
    if kind == "headtail":
        return _HeadTailLoadBalancer(T, ranks, "cpu")
    return _PTRRLoadBalancer(mask, ranks) if kind == "ptrr" else None


def attended(kind: str, mask: Any = None) -> list[wt.Tensor]:
    """The output and the gradients of query, key and value, in one process."""
    q, k, v, g = inputs()
    for t in (q, k, v):
        t.requires_grad_()
    out = flex_attention(q, k, v, block_mask=mask or whole_mask())
    out.backward(g)
    return [out.detach(), q.grad, k.grad, v.grad]


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("kind", ["headtail", "ptrr", "none"])
def test_attention_of_ranks_is_that_of_one_process(kind: str, ranks: int) -> None:
    want = attended(kind)

    def body() -> None:
        here, mask = mesh(), whole_mask()
        chosen = balancer(kind, mask, ranks)
        parts = _context_parallel_shard(here, [*inputs(), *want], (2,) * 8, chosen)
        (own,) = _context_parallel_shard(here, [mask], (2,), chosen)
        q, k, v, g = parts[:4]
        for t in (q, k, v):
            t.requires_grad_()
        keys = [functional.all_gather_reduce_scatter(t, 2, here.get_group()) for t in (k, v)]
        out = flex_attention(q, *keys, block_mask=own)
        out.backward(g)
        for found, expected in zip([out.detach(), q.grad, k.grad, v.grad], parts[4:], strict=True):
            assert (found - expected).abs().max() < TOLERANCE

    simulate(ranks, body)


@pytest.mark.parametrize("kind", ["headtail", "ptrr"])
def test_an_order_is_undone_by_its_inverse(kind: str) -> None:
    chosen = balancer(kind, whole_mask(), 4)
    there, back = chosen._generate_indices(), chosen._generate_indices(restore=True)
    assert there.shape == back.shape == ((1, T) if kind == "headtail" else (B, T))
    for row, inverse in zip(there, back, strict=True):
        assert row[inverse.to(wt.int64)].tolist() == list(range(T))


def test_blocks_are_dealt_out_evenly() -> None:
    times = wt.tensor([9, 14, 2, 20, 10, 15, 8, 14, 16, 19, 15, 3, 12, 1, 12, 10])
    groups = _PTRRLoadBalancer.ptrr_scheduling(times, 4)
    assert sorted(groups.flatten().tolist()) == list(range(16))
    sums = [int(times[group].sum()) for group in groups]
    assert max(sums) - min(sums) <= 4
    with pytest.raises(NotImplementedError, match="divisible by group_size 3"):
        _PTRRLoadBalancer.ptrr_scheduling(times, 3)


@pytest.mark.parity
def test_orders_are_those_of_pytorch() -> None:
    path = "torch.distributed.tensor.experimental._context_parallel._load_balancer"
    theirs: Any = pytest.importorskip(path)
    torch: Any = pytest.importorskip("torch")
    for restore in (False, True):
        ours = _HeadTailLoadBalancer(T, 4, "cpu")._generate_indices(restore)
        assert ours.tolist() == theirs._HeadTailLoadBalancer(T, 4, "cpu")._generate_indices(restore).tolist()
    times = [3, 1, 4, 1, 5, 9, 2, 6, 5, 3, 5, 8]
    ours = _PTRRLoadBalancer.ptrr_scheduling(wt.tensor(times), 3)
    assert ours.tolist() == theirs._PTRRLoadBalancer.ptrr_scheduling(torch.tensor(times), 3).tolist()


def test_what_ranks_do_not_divide_is_refused() -> None:
    def body() -> None:
        here = mesh()
        with pytest.raises(ValueError, match="5 ranks do not divide dim 0 of \\[96\\]"):
            _context_parallel_shard(here, [wt.zeros(T)], (0,))
        with pytest.raises(NotImplementedError, match="96 queries are no multiple of 5 ranks"):
            _context_parallel_shard(here, [whole_mask()], (2,))
        with pytest.raises(ValueError, match="seq_dims"):
            _context_parallel_shard(here, [wt.zeros(T)], ())
        with pytest.raises(AssertionError, match="multiple of 10"):
            _HeadTailLoadBalancer(T, 5, "cpu")._generate_indices()

    simulate(5, body)
