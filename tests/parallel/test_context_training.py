"""Training with sequences that ranks share: the same run as one process."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import tensor_training
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
import warptape.nn.functional as F
from launched import environ, launch, lines
from tensor_models import GPT2, TOLERANCE, C, V, gpt2_plan, simulate
from tensor_training import OPTIMIZERS
from warptape import nn, optim
from warptape.distributed.tensor.experimental import context_parallel
from warptape.parallel import Layout as VerifiedLayout
from warptape.parallel import model, parallelize, verify
from warptape.parallel import tensor as tp
from warptape.parallel.context import positions, ring, shard_sequence
from warptape.parallel.plan import Layout
from warptape.utils.checkpoint import checkpoint

ROWS, T = 4, 16
Seen = list[dict[str, Any]]


class Start(nn.Module):
    """Tokens [B, T] -> [B, T, C], by their places in the whole sequence."""

    def __init__(self, model: GPT2) -> None:
        super().__init__()
        self.wte, self.wpe, self.drop = model.wte, model.wpe, model.drop

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        return self.drop(self.wte(tokens) + self.wpe(positions(tokens.shape[1])))


class Long(GPT2):
    """GPT2, whose sequence may be shared, with this dropout, and then with attention's, too."""

    def __init__(self, p: float, remat: bool) -> None:
        super().__init__()
        self.wpe, self.remat = nn.Embedding(T, C), remat
        for m in self.modules():
            if isinstance(m, nn.Dropout):
                m.p = p
        for block in self.h:  # whose fused attention has it in training
            block.attn.train(p > 0)

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(positions(tokens.shape[1])))
        for block in self.h:
            x = checkpoint(block, x, use_reentrant=False) if self.remat else block(x)
        return self.lm_head(self.ln_f(x))


def build(p: float = 0.0, remat: bool = False) -> Long:
    wt.manual_seed(11)
    return Long(p, remat).to(wt.float64)


def batches(steps: int) -> list[tuple[wt.Tensor, wt.Tensor]]:
    generator = wt.Generator().manual_seed(5)
    both = [wt.randint(V, (ROWS, T + 1), generator=generator) for _ in range(steps)]
    return [(t[:, :-1], t[:, 1:]) for t in both]


def loss_by(measure: Callable[..., wt.Tensor]) -> Callable[..., wt.Tensor]:
    return lambda logits, target: measure(logits.flatten(0, 1), target.flatten())


@functools.cache
def plainly(optimizer: str, steps: int, p: float = 0.0) -> Seen:
    """In one process: by step loss, norm and gradients; the parameters last."""
    model, loss_of = build(p), loss_by(nn.CrossEntropyLoss())
    opt = OPTIMIZERS[optimizer](model.parameters())
    seen: Seen = []
    for tokens, targets in batches(steps):
        opt.zero_grad()
        loss = loss_of(model(tokens), targets)
        loss.backward()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        seen.append({"loss": loss, "norm": norm} | {k: p.grad.clone() for k, p in model.named_parameters()})
        opt.step()
    seen.append({k: v.clone() for k, v in model.state_dict().items()})
    return seen


def train(
    optimizer: str,
    steps: int,
    shape: dict[str, int],
    remat: bool = False,
    p: float = 0.0,
    sequence: bool = False,
    **options: Any,
) -> Seen:
    """As plainly, by ranks."""
    mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    measure = tp.VocabParallelCrossEntropy(mesh["tp"]) if "tp" in shape else nn.CrossEntropyLoss()
    whole = build(p, remat)
    if "tp" in shape:
        options["plan"] = gpt2_plan(sequence)
    if "pp" in shape:
        options["layers"] = [Start(whole), *whole.h, nn.Sequential(whole.ln_f, whole.lm_head)]
    options.setdefault("n_microbatches", 2)
    model = parallelize(whole, mesh, loss_fn=loss_by(measure), **options)
    cls, given = {
        "sgd": (optim.SGD, {"lr": 0.1, "momentum": 0.9}),
        "adamw": (optim.AdamW, {"lr": 1e-2, "weight_decay": 0.1}),
    }[optimizer]
    opt = model.optimizer(cls, **given)
    copies = shape.get("dp", 1)
    at = mesh.get_local_rank("dp") if "dp" in shape else 0
    seen: Seen = []
    for tokens, targets in batches(steps):
        model.zero_grad()
        loss = model.step(tokens.chunk(copies)[at], target=targets.chunk(copies)[at])
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        grads = {
            k: p.grad.full_tensor().clone() if isinstance(p, tp.DTensor) else p.grad.clone()
            for k, p in model.named_parameters()
        }
        seen.append({"loss": loss, "norm": norm} | grads)
        opt.step()
    seen.append(model.full_state_dict())
    return seen


def check(got: Seen, expected: Seen) -> float:
    """The largest difference. Raises AssertionError for the first that is too large."""
    most = 0.0
    for step, (have, want) in enumerate(zip(got, expected, strict=True)):
        assert have.keys() <= want.keys()
        for k, value in have.items():
            error = (value - want[k]).norm().item() / want[k].norm().item()
            most = max(most, error)
            assert error <= TOLERANCE, f"step {step}: {k} differs by {error:.1e}"
    return most


def compare(optimizer: str, steps: int, shape: dict[str, int], p: float = 0.0, **options: Any) -> float:
    expected = plainly(optimizer, steps, p)
    body = lambda: check(train(optimizer, steps, shape, p=p, **options), expected)
    return max(simulate(math.prod(shape.values()), body))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("attention", ["ring", "ulysses"])
@pytest.mark.parametrize("shape", [{"cp": 2}, {"cp": 4}, {"dp": 2, "cp": 2}], ids=str)
def test_training_equals_one_process(shape: dict[str, int], attention: str, optimizer: str) -> None:
    compare(optimizer, 20, shape, p=0.1, attention=attention)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("shape", [{"cp": 2}, {"cp": 2, "dp": 2}], ids=str)
def test_sharded_among_data_and_context_ranks(shape: dict[str, int], zero: int) -> None:
    compare("adamw", 4, shape, zero=zero, p=0.1)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize("names", [("dp", "cp", "tp"), ("cp", "tp", "dp")], ids="-".join)
def test_sharded_along_three_axes(names: tuple[str, ...], zero: int) -> None:
    compare("adamw", 4, dict.fromkeys(names, 2), zero=zero)


@pytest.mark.parametrize("attention", ["ring", "ulysses"])
@pytest.mark.parametrize(
    "shape",
    [{"cp": 2, "tp": 2}, {"pp": 2, "cp": 2}, {"dp": 2, "cp": 2, "tp": 2}, {"pp": 2, "dp": 2, "cp": 2}],
    ids=str,
)
def test_with_tensor_and_pipeline(shape: dict[str, int], attention: str) -> None:
    compare("adamw", 4, shape, p=0.1, attention=attention)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("attention", ["ring", "ulysses"])
@pytest.mark.parametrize(
    "shape", [{"cp": 2, "tp": 2}, {"cp": 2, "tp": 4}, {"dp": 2, "cp": 2, "tp": 2}], ids=str
)
def test_with_sequence_parallelism(shape: dict[str, int], attention: str, optimizer: str) -> None:
    """Which splits a rank's slices once more: one of them for each of two ranks, and halves for four."""
    if attention == "ring" or shape["tp"] == 2:  # there are four heads
        steps = 20 if len(shape) == 2 else 4
        compare(optimizer, steps, shape, p=0.1, attention=attention, sequence=True)


WEIGHTS = wt.rand(V, dtype=wt.float64, generator=wt.Generator().manual_seed(4)) + 0.5
LOSSES: dict[str, tuple[dict[str, Any], Any]] = {
    "ignore_index": ({"ignore_index": 3}, lambda t: (t != 3).sum()),
    "weights": (
        {"weight": WEIGHTS, "ignore_index": 3, "label_smoothing": 0.1},
        lambda t: WEIGHTS[t[t != 3]].sum(),
    ),
}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize(
    "shape", [{"cp": 2}, {"dp": 2, "cp": 2}, {"pp": 2, "cp": 2}, {"cp": 2, "tp": 2}], ids=str
)
def test_losses_of_what_counts(shape: dict[str, int], loss: str) -> None:
    """Few tokens that count are on rank 0, none in its first micro-batch: the mean is over all."""
    if "tp" in shape and loss == "weights":
        return  # VocabParallelCrossEntropy has none
    options, counted = LOSSES[loss]
    (tokens, targets), whole = batches(1)[0], build()
    targets = targets.clone()
    targets[:, : T // 4] = 3
    targets[0], targets[1, -T // 4 :] = 3, 3
    expected = nn.CrossEntropyLoss(**options)(whole(tokens).flatten(0, 1), targets.flatten())
    expected.backward()

    def rank() -> None:
        mesh, own = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape)), build()
        measure = nn.CrossEntropyLoss(**options)
        given: dict[str, Any] = {"n_microbatches": 2, "counted": counted}
        if "tp" in shape:
            given["plan"], measure = gpt2_plan(), tp.VocabParallelCrossEntropy(mesh["tp"], **options)
        if "pp" in shape:
            given["layers"] = [Start(own), *own.h, nn.Sequential(own.ln_f, own.lm_head)]
        model = parallelize(own, mesh, loss_fn=loss_by(measure), **given)
        copies, at = shape.get("dp", 1), mesh.get_local_rank("dp") if "dp" in shape else 0
        mine = [t.chunk(copies)[at] for t in (tokens, targets)]
        assert model.step(mine[0], target=mine[1]).item() == pytest.approx(expected.item(), abs=1e-12)
        wanted = dict(whole.named_parameters())
        for name, p in model.named_parameters():
            grad = p.grad.full_tensor() if isinstance(p, tp.DTensor) else p.grad
            assert (grad - wanted[name].grad).norm() <= TOLERANCE * wanted[name].grad.norm(), name
        loss = model.evaluate(mine[0], target=mine[1])
        assert loss.item() == pytest.approx(expected.item(), abs=1e-12)

    simulate(math.prod(shape.values()), rank)


@pytest.mark.parametrize("tp_ranks", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dim", [1, -1], ids=["tokens", "features"])
def test_dropout_of_a_part_of_slices(dim: int, tp_ranks: int) -> None:
    """Each rank draws what one process draws at its place, of a second row of the batch, too."""
    cp, t, c = 3, 6 * tp_ranks, 2 * tp_ranks
    x = wt.arange(2 * cp * t * c, dtype=wt.float64).view(2, cp * t, c) + 1

    def dropped(part: wt.Tensor) -> wt.Tensor:
        wt.manual_seed(3)
        return F.dropout(part, 0.5)

    expected = dropped(x)

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (cp, tp_ranks), mesh_dim_names=("cp", "tp"))
        group, at = mesh["cp"].get_group(), mesh.get_local_rank("tp")
        mine, want = (shard_sequence(z, 1, group).chunk(tp_ranks, dim)[at] for z in (x, expected))
        with tp.split_randomness(mesh["cp"], 1, zigzag=True), tp.split_randomness(mesh["tp"], dim):
            assert wt.equal(dropped(mine), want)

    simulate(cp * tp_ranks, rank)


def test_dropout_that_has_no_slices_is_refused() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        with pytest.raises(TypeError, match="expected counted to be callable, got int"):
            parallelize(build(), mesh, loss_fn=F.mse_loss, counted=3)  # type: ignore[arg-type]
        with tp.split_randomness(mesh, 1, zigzag=True):
            with pytest.raises(ValueError, match=r"dim 1 of .* is not two slices of a sequence"):
                F.dropout(wt.ones(2, 3), 0.5)
            with tp.split_randomness(mesh, -3), pytest.raises(ValueError, match="is split before dim"):
                F.dropout(wt.ones(2, 2, 4), 0.5)  # dim 0 counted from the end is not the batch's

    simulate(2, rank)


def checkpointed(shape: dict[str, int], zero: int, folder: str, saves: bool) -> float:
    """The loss after two steps, the first of which was made before the checkpoint."""
    mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    model = parallelize(build(), mesh, loss_fn=loss_by(nn.CrossEntropyLoss()), zero=zero)
    opt = model.optimizer(optim.AdamW, lr=1e-2)
    ranks = shape.get("dp", 1)
    at = mesh.get_local_rank("dp") if "dp" in shape else 0
    tokens, targets = (t.chunk(ranks)[at] for t in batches(1)[0])
    for saved in (False, True):
        if saved and saves:
            dcp.save({"model": model, "optimizer": opt}, checkpoint_id=folder)
        elif saved:
            dcp.load({"model": model, "optimizer": opt}, checkpoint_id=folder)
        if saved or saves:
            model.zero_grad()
            model.step(tokens, target=targets)
            opt.step()
    return model.evaluate(tokens, target=targets).item()


def test_checkpoints_go_to_other_layouts(tmp_path: Path) -> None:
    folder = str(tmp_path / "saved")
    expected = simulate(4, lambda: checkpointed({"dp": 2, "cp": 2}, 3, folder, True))[0]
    for shape, zero in (({"cp": 4}, 1), ({"cp": 2}, 3), ({"dp": 2}, 2), ({"dp": 2, "cp": 2}, 0)):
        found = simulate(math.prod(shape.values()), lambda s=shape, z=zero: checkpointed(s, z, folder, False))
        assert found == pytest.approx([expected] * len(found), abs=1e-12)


def test_autocast_in_the_ring() -> None:
    q, k, v = (t.float() for t in wt.randn(3, 1, 4, 16, 8, generator=wt.Generator().manual_seed(2)))
    with wt.autocast("cpu", dtype=wt.bfloat16):
        expected = F.scaled_dot_product_attention(q, k, v, is_causal=True)

    def rank() -> None:
        parts = [shard_sequence(t, 2) for t in (q, k.bfloat16(), v)]
        with wt.autocast("cpu", dtype=wt.bfloat16):
            out = ring.ring_attention(*parts, is_causal=True)
        assert out.dtype == wt.bfloat16
        assert (out - shard_sequence(expected, 2)).abs().max() < 0.05

    simulate(2, rank)


def test_layout_of_the_planner() -> None:
    expected = plainly("sgd", 1)[0]["loss"].item()

    def rank() -> None:
        model = parallelize(build(), Layout(dp=2, cp=2), loss_fn=loss_by(nn.CrossEntropyLoss()))
        tokens, targets = (t.chunk(2)[dist.get_rank() // 2] for t in batches(1)[0])
        assert model.step(tokens, target=targets).item() == pytest.approx(expected, abs=1e-12)

    simulate(4, rank)


def test_checkpointed_layers() -> None:
    """Backward runs attention between ranks again."""
    compare("sgd", 3, {"cp": 2}, remat=True, p=0.1)


def test_context_around_a_plain_loop() -> None:
    """PyTorch's way: cut buffers, and gradients averaged by hand."""
    expected = plainly("sgd", 1)[0]

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (dist.get_world_size(),))
        model, (batch,) = build(), batches(1)
        tokens, targets = (t.contiguous() for t in batch)
        with context_parallel(mesh, buffers=[tokens, targets], buffer_seq_dims=[1, 1]):
            loss = nn.functional.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for name, p in model.named_parameters():
            assert (p.grad - expected[name]).norm() <= TOLERANCE * expected[name].norm(), name

    simulate(4, rank)


def test_memory_of_a_rank_falls_with_the_ranks() -> None:
    """Of processes, by the allocator. A rank holds its slices and, while they move, two more blocks of keys
    and values, or of their gradients."""
    script = Path(tensor_training.__file__).with_name("context_memory.py")
    path = f"{script.parent}:{environ()['PYTHONPATH']}"
    peaks = []
    for ranks in (1, 2, 4):
        code, out, err = launch(f"--nproc-per-node={ranks}", script, PYTHONPATH=path)
        assert code == 0, err
        (found,) = lines(out)
        assert len(found) == ranks
        peaks.append(max(found))
    assert peaks[1] < 0.65 * peaks[0]
    assert peaks[2] < 0.65 * peaks[1]


def test_refused() -> None:
    tokens, targets = batches(1)[0]

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2,), mesh_dim_names=("cp",))
        loss_of = loss_by(nn.CrossEntropyLoss())
        with pytest.raises(ValueError, match="expected attention of"):
            parallelize(build(), mesh, loss_fn=loss_of, attention="other")
        model = parallelize(build(), mesh, loss_fn=loss_of)
        with pytest.raises(ValueError, match=r"size 14 does not divide .* pad the sequence to 16"):
            model.step(tokens[:, :14], target=targets[:, :14])
        with pytest.raises(ValueError, match=r"one length of sequence; got \[4, 16\], \[4, 12\]"):
            model.step(tokens, target=targets[:, :12])
        with pytest.raises(ValueError, match=r"got \[4, 16\], \[4\]"):
            model.step(tokens, target=targets[:, 0])
        with pytest.raises(RuntimeError, match="with 'cp' a model is not called"):
            model(tokens)
        assert all(p.grad is None for p in model.parameters())
        assert model.evaluate(tokens, target=targets).item() > 0

    simulate(2, rank)


class Alone(nn.Module):
    """A copy whose gradients nobody averages."""

    def __init__(self, module: nn.Module, **_: Any) -> None:
        super().__init__()
        self.forward = module.forward


def average_over_data_alone(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(parallelize.__globals__, "DistributedDataParallel", Alone)


def places_of_one_slice(patch: pytest.MonkeyPatch) -> None:
    patch.setitem(globals(), "positions", wt.arange)


def missing_keys(patch: pytest.MonkeyPatch) -> None:
    real = ring._seen
    patch.setattr(ring, "_seen", lambda c, r, o, q, k: real(c, r, max(o, r), q, k))


def verified(attention: str = "ring") -> list[str]:
    """Where layouts first differ from one process, by verify."""

    def layout(*names: str) -> VerifiedLayout:
        def apply(model: Any, mesh: Any) -> Any:
            return parallelize(model, mesh, loss_fn=loss_by(nn.CrossEntropyLoss()), attention=attention)

        def step(model: Any, inputs: tuple[wt.Tensor], target: wt.Tensor) -> wt.Tensor:
            return model.step(*inputs, target=target)

        shared = {"batch": tuple(n for n in names if n == "dp"), "sequence": ("cp",)}
        return VerifiedLayout(2 ** len(names), apply, (2,) * len(names), names, step=step, **shared)

    layouts = {"cp": layout("cp"), "both": layout("dp", "cp")}
    report = verify(lambda: build(0.1), batches(1)[0], loss_by(nn.CrossEntropyLoss()), layouts)
    assert not any(row.uncompared for row in report.rows)
    return [row.difference.name if row.difference else "" for row in report.rows]


@pytest.mark.parametrize("attention", ["ring", "ulysses"])
def test_verify_takes_shared_sequences(attention: str) -> None:
    assert verified(attention) == [""] * 4


def wrong_merge(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ring, "merge", lambda out, lse, more, its: (out + more, wt.logaddexp(lse, its)))


def dropout_of_other_slices(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(model, "split_randomness", lambda mesh, dim, **_: tp.split_randomness(mesh, dim))


@pytest.mark.parametrize(
    "bug, where",
    [
        (places_of_one_slice, ["wpe"] * 4),
        (missing_keys, ["h.0.attn", ""] * 2),  # with dropout blocks are found in another way
        (wrong_merge, ["h.0.attn"] * 4),
        (average_over_data_alone, None),
        (dropout_of_other_slices, ["", "drop"] * 2),
    ],
)
def test_verify_finds_a_planted_bug(bug: Any, where: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    found = verified()
    assert all(found) if where is None else found == where


@pytest.mark.parametrize("bug", [average_over_data_alone, places_of_one_slice, missing_keys])
def test_comparison_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly("sgd", 1)  # before the bug
    bug(monkeypatch)
    with pytest.raises(dist.RankFailed, match=r"step 0: .* differs by"):
        compare("sgd", 1, {"cp": 2})
