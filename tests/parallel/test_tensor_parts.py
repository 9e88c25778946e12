"""Split layers, dropout and cross-entropy by parts, state_dicts, and what is refused."""

from __future__ import annotations

import copy
import gc
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from tensor_models import (
    TOLERANCE,
    B,
    C,
    Colwise,
    Llama,
    Replicate,
    Rowwise,
    Shard,
    T,
    V,
    batches,
    gpt_plan,
    llama_plan,
    mesh,
    simulate,
    train_gpt,
)
from warptape import nn
from warptape.parallel import tensor as tp

# -------------------------------------------------------------------------- layers made directly


def test_layers_made_directly_start_and_compute_as_unsplit_ones() -> None:
    wt.manual_seed(3)
    embed, up, down = nn.Embedding(V, C, padding_idx=13), nn.Linear(C, 2 * C), nn.Linear(2 * C, C)
    after = wt.rand(3)
    tokens = wt.randint(V, (B, T))
    tokens[0, :3] = 13
    out = down(up(embed(tokens)).relu())
    out.square().sum().backward()

    def rank() -> None:
        m = mesh()
        wt.manual_seed(3)
        split = (
            tp.VocabParallelEmbedding(V, C, padding_idx=13, mesh=m),
            tp.ColumnParallelLinear(C, 2 * C, mesh=m, output_layouts=Replicate()),
            tp.RowParallelLinear(2 * C, C, mesh=m, input_layouts=Replicate()),
        )
        assert wt.rand(3).equal(after)
        for a, b in zip(split, (embed, up, down), strict=True):
            for name, p in a.named_parameters():
                assert p.full_tensor().equal(b.get_parameter(name))
        y = split[2](split[1](split[0](tokens)).relu())
        assert wt.allclose(y, out, atol=1e-5)
        y.square().sum().backward()
        for a, b in zip(split, (embed, up, down), strict=True):
            for name, p in a.named_parameters():
                assert wt.allclose(p.grad.full_tensor(), b.get_parameter(name).grad, rtol=1e-4, atol=1e-4)
        assert not split[0].weight.grad.full_tensor()[13].any()

    for n in (2, 4):
        simulate(n, rank)


@pytest.mark.parametrize("kv_heads", [8, 4])
@pytest.mark.parametrize("sequence", [False, True])
def test_parallel_attention(kv_heads: int, sequence: bool) -> None:
    x = wt.randn(B, T, C, dtype=wt.float64)
    weigh = wt.randn(B, T, C, dtype=wt.float64)

    def run() -> dict[str, wt.Tensor]:
        m, cut = mesh(), sequence and dist.get_world_size() > 1
        wt.manual_seed(7)
        attention = tp.ParallelSelfAttention(
            C, 8, kv_heads, mesh=m, dropout=0.3, sequence_dim=1 if sequence else None, dtype=wt.float64
        )
        own = x.clone().requires_grad_()
        y = attention(tp.redistribute(own, Replicate(), Shard(1), m) if cut else own)
        y = tp.redistribute(y, Shard(1), Replicate(), m) if cut else y
        (y * weigh).sum().backward()
        return {"y": y.detach(), "x": own.grad} | {
            k: p.grad.full_tensor() for k, p in attention.named_parameters()
        }

    expected = simulate(1, run)[0]
    for n in (2, 4):
        for got in simulate(n, run):
            for k, value in got.items():
                assert (value - expected[k]).norm() <= TOLERANCE * expected[k].norm(), k


@pytest.mark.parametrize("dtype", [wt.float32, wt.float64, wt.bfloat16])
@pytest.mark.parametrize("dim", [0, 1, -1])
def test_dropout_draws_a_part(dtype: Any, dim: int) -> None:
    x = wt.ones(4, 12, 1028, dtype=dtype)
    wt.manual_seed(1)
    expected = [F.dropout(x, 0.4), F.dropout(x, 0.4)]

    def rank() -> None:
        m = mesh()
        wt.manual_seed(1)
        for want in expected:
            part = tp.Shard(dim).take(x, m.get_local_rank(), m.size()).requires_grad_()
            with tp.split_randomness(m, dim):
                y = F.dropout(part, 0.4)
            assert y.equal(tp.Shard(dim).take(want, m.get_local_rank(), m.size()))
            y.sum().backward()
            assert part.grad.equal(y)

    simulate(4, rank)


def test_parts_of_the_batch_and_of_another_dim() -> None:
    x, q = wt.ones(6, 8, 4), wt.randn(2, 4, 8, 3, 5)
    wt.manual_seed(1)
    expected = F.dropout(x, 0.5), F.scaled_dot_product_attention(q, q, q, dropout_p=0.5)

    def rank() -> None:
        grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))

        def part(t: wt.Tensor, dim: int) -> wt.Tensor:
            for where, axis in ((Shard(0), "dp"), (Shard(dim), "tp")):
                t = where.take(t, grid.get_local_rank(axis), 2)
            return t

        wt.manual_seed(1)
        with tp.split_randomness(grid["dp"], 0), tp.split_randomness(grid["tp"], 1, heads=True):
            assert F.dropout(part(x, 1), 0.5).equal(part(expected[0], 1))
            y = F.scaled_dot_product_attention(*[part(q, 2)] * 3, dropout_p=0.5)
        assert wt.allclose(y, part(expected[1], 2), rtol=1e-5, atol=1e-6)

    simulate(4, rank)


@pytest.mark.parametrize("shape", [(2, 8, 5, 6), (8, 5, 6), (2, 3, 8, 5, 6)])
def test_attention_drops_a_part_of_the_heads(shape: tuple[int, ...]) -> None:
    q, k, v = (wt.randn(shape, dtype=wt.float64) for _ in range(3))
    mask = wt.zeros(5, 5, dtype=wt.float64, requires_grad=True)
    wt.manual_seed(1)
    expected = [F.scaled_dot_product_attention(q, k, v, m, dropout_p=0.4) for m in (None, mask)]

    def rank() -> None:
        m, heads = mesh(), tp.Shard(-3)
        parts = [heads.take(x, m.get_local_rank(), m.size()) for x in (q, k, v)]
        wt.manual_seed(1)
        for mask_, want in zip((None, mask), expected, strict=True):
            with tp.split_randomness(m, heads=True):
                y = F.scaled_dot_product_attention(*parts, mask_, dropout_p=0.4)
            assert wt.allclose(y, heads.take(want, m.get_local_rank(), m.size()), rtol=1e-12)

    simulate(4, rank)


# ------------------------------------------------------------------------------ redistribution

PLACES: list[tp.Placement] = [Replicate(), tp.Partial(), Shard(0), Shard(1), Shard(-1, 2), Shard(-1, (4, 12))]


@pytest.mark.parametrize("want", [p for p in PLACES if p != tp.Partial()], ids=str)
@pytest.mark.parametrize("have", PLACES, ids=str)
def test_redistribute(have: tp.Placement, want: tp.Placement) -> None:
    x, w = wt.randn(8, 4, 16, dtype=wt.float64), wt.randn(8, 4, 16, dtype=wt.float64)

    def rank() -> None:
        m = mesh()

        def part(t: wt.Tensor, where: tp.Placement) -> wt.Tensor:
            return where.take(t, m.get_local_rank(), m.size()) if isinstance(where, Shard) else t.clone()

        own = part(x / (4 if have == tp.Partial() else 1), have).requires_grad_()
        if have == tp.Partial() and isinstance(want, Shard) and want.parts:
            with pytest.raises(ValueError, match="cannot bring Partial"):
                tp.redistribute(own, have, want, m)
            return
        y = tp.redistribute(own, have, want, m)
        assert wt.allclose(y, part(x, want), rtol=1e-14)
        (y * part(w, want)).sum().backward()
        assert own.grad.equal(part(w, have))

    simulate(4, rank)


def test_what_is_handed_to_split_work_cannot_be_changed_in_place_unnoticed() -> None:
    def rank() -> None:
        m, x = mesh(), wt.randn(2, 2, C, requires_grad=True)
        with pytest.raises(RuntimeError, match="is being modified inplace"):
            tp.redistribute(x, Shard(1), Replicate(), m).mul_(3)
        split, z = tp.ColumnParallelLinear(C, C, mesh=m), x * 1
        loss = split(z).sum() + split(z.mul_(3)).sum()
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            loss.backward()

    simulate(1, rank)


def test_what_is_handed_to_split_work_is_let_go_without_the_collector() -> None:
    def rank() -> bool:
        x = wt.ones(2, 4, requires_grad=True) * 2
        layer = tp.ColumnParallelLinear(4, 4, mesh=mesh())
        layer(x).sum().backward()
        seen = weakref.ref(x)
        del x
        return seen() is None

    gc.disable()
    try:
        assert all(simulate(2, rank))
    finally:
        gc.enable()


def test_a_parameter_that_is_trained_later() -> None:
    norm, x = nn.LayerNorm(C), wt.randn(2, 4, C)
    norm(x).square().sum().backward()

    def rank() -> None:
        m, split = mesh(), nn.LayerNorm(C)
        split.requires_grad_(False)
        tp.parallelize_module(split, m, tp.SequenceParallel())
        assert not split.weight.requires_grad
        split.requires_grad_()
        split(Shard(1).take(x, m.get_local_rank(), 2)).square().sum().backward()
        assert wt.allclose(split.weight.grad, norm.weight.grad, rtol=1e-5)

    simulate(2, rank)


# ------------------------------------------------------------------------------ cross-entropy


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_cross_entropy(
    reduction: str, smoothing: float, scale: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    logits = (wt.randn(3, 5, V, dtype=wt.float64) * scale).requires_grad_()
    targets = wt.randint(V, (3, 5))
    targets[0, 1] = targets[2, 3] = -100
    options: dict[str, Any] = {"reduction": reduction, "label_smoothing": smoothing}
    expected = F.cross_entropy(logits.flatten(0, 1), targets.flatten(), **options)
    weigh = wt.rand(expected.shape, dtype=wt.float64)
    (expected * weigh).sum().backward()
    monkeypatch.delattr(dist, "all_gather_into_tensor")  # the logits are never gathered
    monkeypatch.delattr(dist, "all_gather")

    def rank() -> None:
        m = mesh()
        part = Shard(-1).take(logits.detach(), m.get_local_rank(), m.size()).requires_grad_()
        loss = tp.vocab_parallel_cross_entropy(part, targets, m, **options)
        assert wt.allclose(loss.flatten(), expected.flatten(), rtol=1e-12, atol=1e-9)
        (loss.flatten() * weigh.flatten()).sum().backward()
        want = Shard(-1).take(logits.grad, m.get_local_rank(), m.size())
        assert wt.allclose(part.grad, want, rtol=1e-12, atol=1e-14)

    simulate(4, rank)


# ------------------------------------------------------------------------------------- state


def test_full_and_sharded_state() -> None:
    def gpt(seed: int) -> nn.Module:
        wt.manual_seed(seed)
        return train_gpt.GPT(2, 4, C, T)

    expected, other = gpt(0).state_dict(), gpt(1).state_dict()

    def rank() -> None:
        model = tp.parallelize_module(gpt(0), mesh(), gpt_plan())
        layouts, n, at = tp.parameter_layouts(model), dist.get_world_size(), dist.get_rank()
        assert model.tokens.weight is model.head.weight
        state = tp.full_state_dict(model)
        assert list(state) == list(expected)
        assert all(state[k].equal(v) for k, v in expected.items())
        assert state["tokens.weight"] is state["head.weight"]
        qkv, place = model.state_dict()["layers.0.attention.qkv.weight"], "layers.0.attention.qkv.weight"
        assert layouts[place].ranges == [(i * C + at * C // n, C // n) for i in range(3)]
        assert layouts[place].full_shape == (3 * C, C)
        assert qkv.to_local()[C // n].equal(expected[place][C + at * C // n])
        twin = copy.deepcopy(model)
        assert twin.head.weight is twin.tokens.weight
        tp.load_full_state_dict(model, other)
        assert all(v.equal(other[k]) for k, v in tp.full_state_dict(model).items())
        assert all(v.equal(expected[k]) for k, v in tp.full_state_dict(twin).items())
        with pytest.raises(RuntimeError, match=r"norm1.weight is \[16\] as a whole"):
            tp.load_full_state_dict(
                tp.parallelize_module(gpt(0), mesh(), gpt_plan(True)),
                other | {"layers.0.norm1.weight": wt.ones(3)},
            )

    for n in (2, 4):
        simulate(n, rank)


def test_a_split_model_changes_its_dtype() -> None:
    expected = nn.Linear(4, 6)

    def rank() -> None:
        split = tp.parallelize_module(copy.deepcopy(expected), mesh(), Colwise()).double()
        assert split.weight.full_tensor().equal(expected.weight.double())

    simulate(2, rank)


def test_copy_of_a_sequence_parallel_model_trains_alike() -> None:
    def rank() -> None:
        wt.manual_seed(0)
        model = tp.parallelize_module(train_gpt.GPT(1, 4, C, T).double(), mesh(), gpt_plan(True))
        tokens, _ = batches(1, V)[0]
        for m in (twin := copy.deepcopy(model), model):
            m(tokens).square().sum().backward()
        for a, b in zip(model.parameters(), twin.parameters(), strict=True):
            assert a.grad.equal(b.grad)

    simulate(2, rank)


# --------------------------------------------------------------------------------- bad input


def split(plan: Any, model: Callable[[], nn.Module] = Llama) -> Callable[[], object]:
    return lambda: tp.parallelize_module(model(), mesh(), plan)


def attention(**kwargs: Any) -> Callable[[], object]:
    return lambda: tp.ParallelSelfAttention(**{"width": C, "heads": 4, "mesh": mesh()} | kwargs)


def odd_vocabulary() -> nn.Module:
    model = Llama()
    model.embed = nn.Embedding(30, C)
    return model


def named(mesh_: Callable[[], dist.DeviceMesh]) -> Callable[[], object]:
    return lambda: tp.parallelize_module(Llama(), mesh_(), llama_plan())


REFUSED: dict[str, tuple[Callable[[], object], str]] = {
    "no module": (split({"layer.*.up": Colwise()}), r"'layer.\*.up' matches no module of Llama; .*layers"),
    "heads": (attention(heads=2), "heads is 2 and does not divide among the 4 ranks .*; make it 4 instead"),
    "kv heads": (attention(kv_heads=2), "kv_heads is 2 and does not divide"),
    "width by heads": (attention(heads=5), "width 16, heads 5"),
    "divide": (
        split({"layers.*.attn": tp.divide("kv_heads")}, lambda: Sized(6)),
        "layers.0.attn: kv_heads is 6 and does not divide among the 4 ranks",
    ),
    "no attribute": (split({"layers.*.attn": tp.divide("n_head")}), r"divide\('n_head'\) expects an int"),
    "hidden": (
        lambda: tp.ColumnParallelLinear(C, 18, mesh=mesh()),
        "out_features is 18 and does not divide among the 4 ranks of the mesh; make it 20 instead of 18",
    ),
    "parts": (
        lambda: tp.ColumnParallelLinear(C, 20, mesh=mesh(), parts=(8, 10)),
        r"out_features is 20, which is not what parts=\(8, 10\) make up",
    ),
    "vocabulary": (
        split({"embed": Rowwise()}, odd_vocabulary),
        "embed: num_embeddings is 30 and does not divide .*; make it 32 instead of 30",
    ),
    "kind": (
        split({"norm": Colwise()}),
        "norm: ColwiseParallel splits nn.Linear and nn.Embedding, got RMSNorm",
    ),
    "two ways": (
        split({"tokens": Colwise(), "head": Colwise()}, lambda: train_gpt.GPT(1, 4, C, T)),
        r"tokens.weight Shard\(dim=1.*head.weight Shard\(dim=0",
    ),
    "one of two": (
        split({"tokens": Rowwise()}, lambda: train_gpt.GPT(1, 4, C, T)),
        "head.weight not at all",
    ),
    "twice": (
        split({"head": Colwise(), "*": []} | {"hea?": Rowwise()}),
        r"head.weight is placed by two entries of the plan, Shard\(dim=0",
    ),
    "both regions": (
        split({"layers.0": tp.SequenceParallel(), "layers.*.up": Colwise()}),
        "layers.0.up.weight is placed by two entries of the plan",
    ),
    "sequence": (
        lambda: tp.parallelize_module(Llama(), mesh(), llama_plan(True))(wt.zeros(2, 7, dtype=wt.int64)),
        r"dim 1 of an activation \[2, 7, 16\] is 7 and does not divide .*; make it 8 instead of 7",
    ),
    "two axes": (
        named(lambda: dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))),
        r"expected a mesh of one axis.*mesh\['tp'\]",
    ),
    "not the world": (
        named(lambda: dist.DeviceMesh("cpu", [0, 1])),
        "has 2 ranks and the job has 4; make the product of the mesh's axes 4, or start 2 processes",
    ),
}


class Sized(nn.Module):
    def __init__(self, kv_heads: int) -> None:
        super().__init__()
        inner = nn.Module()
        inner.attn = nn.Module()
        inner.attn.kv_heads = kv_heads
        self.layers = nn.ModuleList([inner])


@pytest.mark.parametrize("case", list(REFUSED))
def test_bad_input_is_refused_on_every_rank(case: str) -> None:
    call, message = REFUSED[case]

    def rank() -> None:
        with pytest.raises(ValueError, match=message):
            call()
        t = wt.ones(2)  # no rank has begun a collective
        dist.all_reduce(t)
        assert t[0] == dist.get_world_size()

    simulate(4, rank)


def test_index_outside_of_the_vocabulary() -> None:
    def rank() -> None:
        embed = tp.VocabParallelEmbedding(V, C, mesh=mesh())
        for bad in (V, -1):
            with pytest.raises(IndexError):
                embed(wt.tensor([0, bad]))
            with pytest.raises((IndexError, RuntimeError)):
                tp.vocab_parallel_cross_entropy(wt.ones(1, V // 2), wt.tensor([bad]), mesh())

    simulate(2, rank)


def test_a_refused_plan_changes_nothing() -> None:
    def rank() -> None:
        model = Llama()
        before = {k: v.clone() for k, v in model.state_dict().items()}
        with pytest.raises(ValueError, match="kv_heads"):
            tp.parallelize_module(model, mesh(), {"embed": Rowwise(), "layers.*.attn": tp.divide("kv_heads")})
        assert all(v.equal(before[k]) for k, v in model.state_dict().items())
        assert type(model.embed) is nn.Embedding

    simulate(8, rank)


def test_part_of_a_larger_mesh() -> None:
    tokens, targets = batches(1, V)[0]
    wt.manual_seed(2)
    alone = Llama().eval()
    expected = F.cross_entropy(alone(tokens).flatten(0, 1), targets.flatten())

    def rank() -> None:
        grid = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
        wt.manual_seed(2)
        model = tp.parallelize_module(Llama().eval(), grid["tp"], llama_plan())
        loss = tp.vocab_parallel_cross_entropy(model(tokens), targets, grid["tp"])
        assert abs(loss.item() - expected.item()) < 1e-5

    simulate(4, rank)
