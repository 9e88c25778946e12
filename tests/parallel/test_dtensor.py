"""DTensor: every op, for every way its inputs may lie, against the same op in one process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from datetime import timedelta
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

Op = tuple[Callable[..., Any], tuple[tuple[int, ...], ...]]


def ids(shape: tuple[int, ...], most: int) -> wt.Tensor:
    return (wt.arange(int(wt.tensor(shape).prod())) * 7 % most).reshape(shape)


def same(t: wt.Tensor, like: Any) -> Any:
    """t for a call with `like`: replicated, where that is a DTensor."""
    return distribute_tensor(t, like.device_mesh) if isinstance(like, DTensor) else t


OPS: dict[str, Op] = {
    "add": (lambda a, b: a + b, ((5, 4), (5, 4))),
    "add broadcast": (lambda a, b: a + b, ((5, 4), (4,))),
    "add number": (lambda a: a + 1, ((5, 4),)),
    "rsub": (lambda a: 1 - a, ((5, 4),)),
    "mul": (lambda a, b: a * b, ((5, 4), (5, 1))),
    "div": (lambda a: a / 3, ((5, 4),)),
    "gelu": (F.gelu, ((5, 4),)),
    "where": (lambda a, b: wt.where(a > 0, a, b), ((5, 4), (5, 4))),
    "masked_fill": (lambda a: a.masked_fill(a < 0, 0.5), ((5, 4),)),
    "pow": (lambda a: (a**2).exp(), ((5, 4),)),
    "to": (lambda a: a.to(wt.float32).double(), ((5, 4),)),
    "type_as": (lambda a, b: a.float().type_as(b) * b, ((5, 4), (5, 4))),
    "matmul": (lambda a, b: a @ b, ((5, 4), (4, 6))),
    "matmul batch": (lambda a, b: a @ b, ((2, 5, 4), (2, 4, 3))),
    "matmul broadcast": (lambda a, b: a @ b, ((2, 5, 4), (4, 3))),
    "mv": (lambda a, b: a @ b, ((5, 4), (4,))),
    "linear": (lambda x, w, b: F.linear(x, w, b), ((2, 5, 4), (6, 4), (6,))),
    "linear without bias": (lambda x, w: F.linear(x, w), ((5, 4), (6, 4))),
    "addmm": (lambda c, a, b: wt.addmm(c, a, b), ((6,), (5, 4), (4, 6))),
    "einsum": (lambda a, b: wt.einsum("bij,kj->bki", a, b), ((2, 5, 4), (3, 4))),
    "outer": (wt.outer, ((5,), (4,))),
    "sum": (lambda a: a.sum(), ((5, 4),)),
    "sum dim": (lambda a: a.sum(-1, keepdim=True), ((5, 4),)),
    "mean": (lambda a: a.mean(), ((5, 4),)),
    "mean dim": (lambda a: a.mean(0), ((4, 5),)),
    "amax": (lambda a: a.amax(1), ((5, 4),)),
    "max dim": (lambda a: a.max(0).values, ((5, 4),)),
    "var": (lambda a: a.var(1), ((5, 4),)),
    "norm": (lambda a: a.norm(), ((5, 4),)),
    "softmax": (lambda a: a.softmax(-1), ((5, 4),)),
    "log_softmax": (lambda a: F.log_softmax(a, dim=0), ((5, 4),)),
    "cumsum": (lambda a: a.cumsum(0), ((5, 4),)),
    "transpose": (lambda a: a.transpose(0, 1), ((5, 4),)),
    "T": (lambda a: a.T, ((5, 4),)),
    "mT": (lambda a: a.mT, ((2, 5, 4),)),
    "permute": (lambda a: a.permute(2, 0, 1), ((2, 5, 4),)),
    "movedim": (lambda a: a.movedim(0, -1), ((2, 5, 4),)),
    "unsqueeze": (lambda a: a.unsqueeze(1), ((5, 4),)),
    "squeeze": (lambda a: a.squeeze(1), ((5, 1, 4),)),
    "expand": (lambda a: a.expand(3, -1, 4), ((5, 1),)),
    "view joins": (lambda a: a.view(20, 3), ((5, 4, 3),)),
    "view even": (lambda a: a.view(32, 3), ((8, 4, 3),)),
    "view cuts": (lambda a: a.view(2, 4, 2, -1), ((2, 4, 6),)),
    "flatten": (lambda a: a.flatten(1), ((4, 8, 3),)),
    "unflatten": (lambda a: a.unflatten(-1, (4, 2)), ((5, 8),)),
    "select": (lambda a: a[1], ((5, 4),)),
    "slice": (lambda a: a[:, 1:3], ((5, 4),)),
    "ellipsis": (lambda a: a[..., None, 0], ((5, 4),)),
    "index": (lambda a: a[same(wt.tensor([2, 0, 1]), a)], ((5, 4),)),
    "narrow": (lambda a: a.narrow(0, 1, 3), ((5, 4),)),
    "split": (lambda a: wt.cat([x * (i + 1) for i, x in enumerate(a.split(2, 1))], 0), ((5, 4),)),
    "chunk": (lambda a: a.chunk(2, -1)[1], ((5, 4),)),
    "unbind": (lambda a: a.unbind(0)[2], ((5, 4),)),
    "cat": (lambda a, b: wt.cat([a, b], 1), ((5, 4), (5, 2))),
    "stack": (lambda a, b: wt.stack([a, b], 1), ((5, 4), (5, 4))),
    "flip": (lambda a: a.flip(0), ((5, 4),)),
    "repeat": (lambda a: a.repeat(2, 1, 3), ((5, 4),)),
    "tril": (lambda a: a.tril(), ((3, 5, 4),)),
    "gather": (lambda a: a.gather(1, same(ids((5, 2), 4), a)), ((5, 4),)),
    "layer_norm": (lambda x, w, b: F.layer_norm(x, (4,), w, b), ((3, 5, 4), (4,), (4,))),
    "rms_norm": (lambda x, w: F.rms_norm(x, (4,), w), ((3, 5, 4), (4,))),
    "conv2d": (lambda x, w, b: F.conv2d(x, w, b, padding=1), ((4, 2, 5, 5), (3, 2, 3, 3), (3,))),
    "embedding": (lambda w: F.embedding(same(ids((3, 2), 7), w), w, padding_idx=3), ((7, 4),)),
    "attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True),
        ((4, 4, 5, 2),) * 3,
    ),
    "grouped attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=True),
        ((2, 4, 3, 2), (2, 2, 3, 2), (2, 2, 3, 2)),
    ),
    "cross_entropy": (lambda x: F.cross_entropy(x, same(ids((6,), 4), x)), ((6, 4),)),
    "cross_entropy ignored": (
        lambda x: F.cross_entropy(x, same(ids((5,), 4), x), ignore_index=3),
        ((5, 4),),
    ),
    "mse_loss": (lambda a, b: F.mse_loss(a, b), ((5, 4), (5, 4))),
    "svdvals": (wt.linalg.svdvals, ((3, 4, 2),)),
    "inv": (wt.linalg.inv, ((4, 3, 3),)),
    "svd": (lambda a: wt.linalg.svd(a, full_matrices=False)[1].cumsum(-1), ((3, 4, 2),)),
    "slogdet": (lambda a: wt.linalg.slogdet(a)[1], ((5, 3, 3),)),
    "matrix_norm": (wt.linalg.matrix_norm, ((3, 4, 2),)),
    "matrix_norm dims": (lambda a: wt.linalg.matrix_norm(a, 1, (0, 1), True), ((4, 2, 3),)),
    "trace": (wt.trace, ((4, 5),)),
    "cosine_similarity": (lambda a, b: F.cosine_similarity(a, b, dim=-1), ((5, 4), (3, 1, 4))),
    "kl_div": (lambda a, b: F.kl_div(a, b.exp(), reduction="batchmean"), ((5, 4), (5, 4))),
    "kl_div of logs": (lambda a, b: F.kl_div(a, b, reduction="sum", log_target=True), ((5, 4), (5, 4))),
    "complex numbers": (
        lambda a, b: wt.view_as_real(wt.view_as_complex(a) * wt.view_as_complex(b)),
        ((5, 4, 2), (5, 4, 2)),
    ),
    "unfold": (lambda a: a.unfold(1, 2, 1), ((5, 4),)),
    "unfold images": (lambda a: F.unfold(a, (2, 2), stride=2), ((5, 2, 4, 4),)),
    "lerp": (lambda a, b: a.lerp(b, 0.3), ((5, 4), (5, 4))),
    "scatter plain": (lambda a, b: a.scatter(1, ids((5, 2), 4), b), ((5, 4), (5, 2))),
    "index_add plain": (lambda a, b: a.index_add(0, wt.tensor([1, 1, 3]), b), ((5, 4), (3, 4))),
    "gather plain": (lambda a: a.gather(0, ids((2, 4), 5)), ((5, 4),)),
    "index plain": (lambda a: a[wt.tensor([2, 0, 1])], ((5, 4),)),
    "in place of a sum": (lambda a: (a * 1).exp_() + (a * 2).add_(1).clamp_(min=0), ((5, 4),)),
    "in place": (lambda a, b: (a * 1).mul_(2).add_(same(wt.ones(4).double(), a)) + b, ((5, 4), (5, 4))),
}


def ways(shape: tuple[int, ...], partial: bool) -> list[Any]:
    return [Replicate(), *map(Shard, range(len(shape))), *([Partial()] if partial else [])]


def layouts(shapes: Any, axes: int) -> Iterator[tuple[tuple[Any, ...], ...]]:
    """Placements of each input: all on one axis, a part of them, always the same, on two."""
    one = list(itertools.product(*(ways(s, True) for s in shapes)))
    one = one[:: max(1, len(one) // 40)]
    if axes == 1:
        yield from ((w,) for w in one)
        return
    two = list(itertools.product(one, one))
    yield from two[:: max(1, len(two) // 15)]


def values(shapes: Any) -> list[wt.Tensor]:
    generator = wt.Generator().manual_seed(5)
    return [wt.randn(s, generator=generator, dtype=wt.float64) for s in shapes]


def check(name: str, mesh: dist.DeviceMesh) -> int:
    """Runs an op in all layouts; the number of them."""
    op, shapes = OPS[name]
    whole = [v.requires_grad_() for v in values(shapes)]
    expected = op(*whole)
    weight = wt.linspace(0.5, 1.5, expected.numel(), dtype=wt.float64).reshape(expected.shape)
    gradients = wt.autograd.grad((expected * weight).sum(), whole)
    done = 0
    for way in layouts(shapes, mesh.ndim):
        leaves = [distribute_tensor(v.detach(), mesh).requires_grad_() for v in values(shapes)]
        given = [x.redistribute(placements=[w[i] for w in way]) for i, x in enumerate(leaves)]
        out = op(*given)
        assert out.shape == expected.shape, (name, way)
        assert (out.full_tensor() - expected).abs().max() < 1e-12, (name, way, out.placements)
        (out * distribute_tensor(weight, mesh)).sum().backward()
        for leaf, want in zip(leaves, gradients, strict=True):
            assert leaf.grad.placements == leaf.placements
            assert (leaf.grad.to_local() - want).abs().max() < 1e-12, (name, way, "gradient")
        done += 1
    return done


COUNTS: dict[str, Callable[[wt.Tensor], wt.Tensor]] = {
    "bincount": wt.bincount,
    "bincount weights": lambda a: wt.bincount(a, weights=a * 0.5),
    "bincount minlength": lambda a: wt.bincount(a, minlength=20),
    "one_hot": F.one_hot,
    "one_hot classes": lambda a: F.one_hot(a, 12),
}


@pytest.mark.parametrize("name", COUNTS)
def test_counts_of_the_whole(name: str) -> None:
    """The number of classes is that of all ranks' parts, not of one."""

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (3,))
        for where in ([Replicate()], [Shard(0)]):
            out = COUNTS[name](distribute_tensor(whole, mesh, where))
            assert isinstance(out, DTensor) and out.full_tensor().equal(COUNTS[name](whole))

    whole = wt.tensor([0, 3, 1, 0, 7, 2, 2])
    simulate(3, rank)


def simulate(n: int, fn: Callable[..., Any], *args: Any) -> list[Any]:
    return dist.simulate(n, fn, *args, timeout=timedelta(seconds=60))


@pytest.mark.parametrize("sizes", [(2,), (4,), (2, 2)], ids=str)
@pytest.mark.parametrize("name", OPS)
def test_op(name: str, sizes: tuple[int, ...]) -> None:
    ranks = 2 if sizes == (2,) else 4
    done = simulate(ranks, lambda: check(name, dist.init_device_mesh("cpu", sizes)))
    assert min(done) >= 2
