"""Training with experts that ranks share out: the same run as one process."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
from layout_training import Seen, Start, batches, check, layout_run, loss_by, plain_run, whole
from tensor_models import GPT2, TOLERANCE, C, FusedBlock, gpt2_plan, simulate
from tensor_training import OPTIMIZERS
from warptape import nn, optim
from warptape.distributed.simulation import RankFailed
from warptape.parallel import Layout, ParallelModel, parallelize, verify
from warptape.parallel import plan as planner
from warptape.parallel import tensor as tp
from warptape.parallel.context import positions
from warptape.parallel.experts import MixtureOfExperts, SplitExperts, layer, update_biases
from warptape.parallel.experts.layer import mixtures

E, H = 4, 12


class SparseBlock(FusedBlock):
    """With a mixture of experts in the place of the feed-forward layer."""

    def __init__(self, **options: Any) -> None:
        super().__init__()
        self.c_fc = self.c_proj = None
        self.moe = MixtureOfExperts(C, H, E, 2, shared=1, **options)

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        x = x + self.attn(self.ln_1(x))
        return x + self.dropout(self.moe(self.ln_2(x)))


class Sparse(GPT2):
    """GPT2 whose layers are of experts, balanced by `balance`, with `options`, and by bias."""

    def __init__(self, balance: str, **options: Any) -> None:
        super().__init__()
        blocks = SparseBlock(balance=balance, **options), SparseBlock(balance="bias")
        self.h = nn.ModuleList(blocks)

    def forward(self, tokens: wt.Tensor) -> wt.Tensor:
        x = self.drop(self.wte(tokens) + self.wpe(positions(tokens.shape[1])))
        for block in self.h:
            x = block(x)
        return self.lm_head(self.ln_f(x))


def build(balance: str = "bias", **options: Any) -> Sparse:
    wt.manual_seed(11)
    return Sparse(balance, **options).to(wt.float64)


def loss_of(model: nn.Module, measure: Any) -> Any:
    """With the balancing losses of the layers that have one; a pipeline has the last stage's layers alone."""
    plain = loss_by(measure)
    return lambda out, target: plain(out, target) + sum(m.loss(0.05) for _, m in mixtures(model))


balanced = functools.partial(update_biases, speed=0.01)


@functools.cache
def plainly(optimizer: str, steps: int, balance: str = "bias") -> Seen:
    """In one process: by step loss, norm and gradients; the parameters last."""
    model = build(balance)
    return plain_run(model, loss_of(model, nn.CrossEntropyLoss()), optimizer, steps, balanced)


def make(
    shape: dict[str, int],
    ep: int,
    balance: str = "bias",
    of_layers: Any = (),
    split: bool = True,
    **options: Any,
) -> tuple[Any, Any]:
    mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    model = build(balance, **dict(of_layers))
    measure = tp.VocabParallelCrossEntropy(mesh["tp"]) if "tp" in shape else nn.CrossEntropyLoss()
    if "tp" in shape:
        plan = {k: v for k, v in gpt2_plan().items() if k not in ("h.*.c_fc", "h.*.c_proj")}
        experts = {f"h.*.moe.{each}": SplitExperts() for each in ("experts", "shared")}
        options["plan"] = plan | (experts if split else {})
    if "pp" in shape:
        options["layers"] = [Start(model), *model.h, nn.Sequential(model.ln_f, model.lm_head)]
    loss = loss_by(measure) if "pp" in shape else loss_of(model, measure)
    return parallelize(model, mesh, loss_fn=loss, ep=ep, **options), mesh


def train(optimizer: str, steps: int, shape: dict[str, int], ep: int, **options: Any) -> Seen:
    return layout_run(*make(shape, ep, **options), optimizer, steps, balanced)


def compare(
    optimizer: str,
    steps: int,
    shape: dict[str, int],
    ep: int,
    balance: str = "bias",
    **options: Any,
) -> float:
    """The largest difference of all ranks from one process."""
    expected = plainly(optimizer, steps, balance)
    options = {"balance": balance, "n_microbatches": 2, **options}
    body = lambda: check(train(optimizer, steps, shape, ep, **options), expected)
    return max(most for most, _ in simulate(math.prod(shape.values()), body))


SHAPES = [
    ({"dp": 2}, 2),
    ({"dp": 4}, 2),
    ({"dp": 2, "tp": 2}, 2),
    ({"pp": 2, "dp": 2}, 2),
    ({"dp": 4, "pp": 2}, 2),
]


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("shape, ep", SHAPES, ids=str)
def test_training_equals_one_process(shape: dict[str, int], ep: int, optimizer: str) -> None:
    compare(optimizer, 20 if shape in ({"dp": 4}, {"pp": 2, "dp": 2}) else 4, shape, ep)


@pytest.mark.parametrize("shape, ep", [({"dp": 2}, 1), ({"dp": 4}, 2), ({"dp": 2, "tp": 2}, 2)], ids=str)
def test_balancing_losses_are_of_the_whole_batch(shape: dict[str, int], ep: int) -> None:
    compare("adamw", 4, shape, ep, balance="loss", n_microbatches=1, split=False)


@pytest.mark.parametrize("micro", [1, 2])
def test_losses_of_layers_in_a_pipeline(micro: int) -> None:
    """Backward adds their gradients; the loss function does not see them. Of several micro-batches each has a
    balancing loss of its own, the z loss of all is their mean."""
    weights = (0.05, 0.01) if micro == 1 else (0.0, 0.01)
    plain, plain_loss = build("loss"), loss_by(nn.CrossEntropyLoss())
    ((tokens, targets),) = batches(1)
    loss = plain_loss(plain(tokens), targets)
    (loss + plain.h[0].moe.loss(*weights)).backward()
    expected = {k: p.grad for k, p in plain.named_parameters()}

    def rank() -> None:
        given = {"n_microbatches": micro, "of_layers": {"loss_weights": weights}}
        model, mesh = make({"pp": 2, "dp": 2}, 2, "loss", **given)
        x, y = (t.chunk(2)[mesh.get_local_rank("dp")] for t in (tokens, targets))
        assert model.step(x, target=y).item() == pytest.approx(loss.item(), rel=1e-12)
        for k, p in model.named_parameters():
            assert (whole(p) - expected[k]).norm() <= TOLERANCE * expected[k].norm(), k

    simulate(4, rank)


@pytest.mark.parametrize("zero", [1, 2, 3])
@pytest.mark.parametrize(
    "shape, ep", [({"dp": 4}, 2), ({"dp": 2, "tp": 2}, 2), ({"dp": 4, "pp": 2}, 4)], ids=str
)
def test_with_sharded_states(shape: dict[str, int], ep: int, zero: int) -> None:
    compare("adamw", 4, shape, ep, zero=zero)


@pytest.mark.parametrize("attention", ["ring", "ulysses"])
@pytest.mark.parametrize("shape, ep", [({"cp": 2}, 2), ({"dp": 2, "cp": 2}, 4), ({"cp": 4}, 2)], ids=str)
def test_with_shared_sequences(shape: dict[str, int], ep: int, attention: str) -> None:
    if shape == {"cp": 4}:
        attention, ep = "ring", 2
    compare("adamw", 4, shape, ep, attention=attention)


@pytest.mark.parametrize(
    "options", [{"schedule": "ZBH1"}, {"schedule": "Interleaved1F1B", "chunks": 2}], ids=str
)
def test_schedules(options: dict[str, Any]) -> None:
    compare("adamw", 4, {"pp": 2, "dp": 2}, 2, **options)


def test_a_rank_keeps_its_experts_and_their_state() -> None:
    def rank() -> None:
        model, mesh = make({"dp": 4}, 2, zero=1)
        opt = model.optimizer(optim.AdamW)
        tokens, targets = (t.chunk(4)[mesh.get_local_rank()] for t in batches(1)[0])
        model.step(tokens, target=targets)
        opt.step()
        moments = {p: here(s["exp_avg"]).numel() for p, s in opt.state.items()}
        shared = [p for k, p in model.named_parameters() if ".experts." in k]
        assert [len(here(p)) for p in shared] == [E // 2] * 4
        kept = of_all_ranks(sum(moments.get(p, 0) for p in shared))
        assert kept == 2 * sum(here(p).numel() for p in shared)  # two of four ranks have other ones
        assert of_all_ranks(sum(moments.values())) == sum(p.numel() for p in build().parameters())
        with pytest.raises(RuntimeError, match="ranks have different experts"):
            opt.consolidate_state_dict()

    simulate(4, rank)


def here(t: Any) -> wt.Tensor:
    """This rank's part."""
    return t.to_local() if isinstance(t, tp.DTensor) else t


def of_all_ranks(value: int) -> int:
    """Over all ranks."""
    total = wt.tensor(value)
    dist.all_reduce(total)
    return int(total)


# --------------------------------------------------------------------------------- checkpoints

LAYOUTS = [
    ({"dp": 1}, 1, 0),
    ({"dp": 4}, 2, 1),
    ({"pp": 2, "dp": 2}, 2, 0),
    ({"dp": 4}, 4, 3),
    ({"dp": 2, "tp": 2}, 1, 0),
]


def resumed(path: str, layout: tuple[dict[str, int], int, int], steps: range, load: bool) -> list[float]:
    """The losses of these steps; saves at the end, or before them loads what was saved."""
    shape, ep, zero = layout
    model, mesh = make(shape, ep, zero=zero)
    opt = model.optimizer(optim.AdamW, lr=1e-2)
    state = {"model": model, "optimizer": opt, "random": wt.default_generator}
    ranks = shape.get("dp", 1)
    at = mesh.get_local_rank("dp")
    if load:
        wt.manual_seed(99)
        dcp.load(state, checkpoint_id=path)
    losses = []
    for tokens, targets in batches(steps.stop)[steps.start :]:
        model.zero_grad()
        losses.append(model.step(tokens.chunk(ranks)[at], target=targets.chunk(ranks)[at]).item())
        opt.step()
        balanced(model)
    if not load:
        dcp.save(state, checkpoint_id=path)
    return losses


def test_checkpoints_load_into_other_layouts(tmp_path: Path) -> None:
    def on(layout: tuple[dict[str, int], int, int], steps: range, load: bool, name: str) -> list[float]:
        path = str(tmp_path / name)
        return simulate(math.prod(layout[0].values()), lambda: resumed(path, layout, steps, load))[0]

    expected = on(LAYOUTS[0], range(4), False, "whole")[2:]
    for i, first in enumerate(LAYOUTS):
        on(first, range(2), False, str(i))
        for then in (LAYOUTS[i - 1], LAYOUTS[i - 2]):
            assert on(then, range(2, 4), True, str(i)) == pytest.approx(expected, rel=1e-10)


def test_states_of_one_process_are_taken() -> None:
    state = build().state_dict()
    with wt.no_grad():
        state = {k: wt.rand(v.shape, dtype=v.dtype) for k, v in state.items()}
        state["lm_head.weight"] = state["wte.weight"]

    def rank() -> None:
        model, _ = make({"dp": 2}, 2)
        model.load_state_dict(state)
        found = model.full_state_dict()
        assert all((found[k] == v).all() for k, v in state.items())

    simulate(2, rank)


# -------------------------------------------------------------------- planner, and verification


def test_layout_of_the_planner() -> None:
    expected = plainly("sgd", 1)[0]["loss"].item()

    def rank() -> None:
        layout = planner.Layout(dp=2, tp=1, ep=2, n_microbatches=2)
        model = parallelize(build(), layout, loss_fn=loss_by(nn.CrossEntropyLoss()))
        tokens, targets = (t.chunk(2)[dist.get_rank()] for t in batches(1)[0])
        assert model.step(tokens, target=targets).item() == pytest.approx(expected, abs=1e-12)
        assert len(here(model.stages[0].h[0].moe.experts.w_in)) == E // 2

    simulate(2, rank)


def verified(**options: Any) -> tuple[str, str]:
    """Where experts on four ranks first differ, and why."""

    def apply(model: Any, mesh: Any) -> Any:
        return parallelize(model, mesh, loss_fn=loss_by(nn.CrossEntropyLoss()), ep=2)

    def step(model: Any, inputs: tuple[wt.Tensor], targets: wt.Tensor) -> wt.Tensor:
        return model.step(*inputs, target=targets)

    layout = Layout(4, apply, names=("dp",), batch=("dp",), step=step)
    report = verify(build, batches(1)[0], loss_by(nn.CrossEntropyLoss()), {"ep": layout}, modes=(True,))
    difference = report.rows[0].difference
    return ("", "") if difference is None else (difference.name, difference.kind)


def test_verify_takes_shared_experts() -> None:
    assert verified() == ("", "")


# ------------------------------------------------------------------------------- planted bugs


def gradients_of_replicas(patch: pytest.MonkeyPatch) -> None:
    done = SimpleNamespace(wait=lambda: None)
    patch.setattr(ParallelModel, "_average", staticmethod(lambda gradients, group: done))


def gradients_over_all_copies(patch: pytest.MonkeyPatch) -> None:
    """Experts of other ranks are averaged with these."""
    real = ParallelModel._average
    patch.setattr(ParallelModel, "_average", staticmethod(lambda gradients, group: real(gradients, None)))


def norm_of_this_ranks_experts(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(tp.DTensor, "norm_groups", ())


def columns_as_one_matrix(patch: pytest.MonkeyPatch) -> None:
    """Gate and up are joined in one."""
    patch.setattr(SplitExperts, "placements", lambda self, m: {"w_in": tp.Shard(2), "w_out": tp.Shard(1)})


def results_not_summed(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(layer, "redistribute", lambda y, have, want, mesh: y)


def experts_of_the_next_rank(patch: pytest.MonkeyPatch) -> None:
    real = layer.place

    def wrong(p: Any, mesh: Any, where: Any) -> None:
        p.data = p.data.roll(1, 0)
        real(p, mesh, where)

    patch.setattr(layer, "place", wrong)


BUGS = [
    gradients_of_replicas,
    gradients_over_all_copies,
    norm_of_this_ranks_experts,
    experts_of_the_next_rank,
]


@pytest.mark.parametrize("bug", BUGS)
def test_comparison_finds_a_planted_bug(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly("sgd", 1)  # before the bug
    bug(monkeypatch)
    with pytest.raises(RankFailed, match="differs by"):
        compare("sgd", 1, {"dp": 4}, 2)


@pytest.mark.parametrize(
    "bug, where", [(gradients_of_replicas, "h.1.moe.experts"), (experts_of_the_next_rank, "h.0.moe")]
)
def test_verify_finds_a_planted_bug(bug: Any, where: str, monkeypatch: pytest.MonkeyPatch) -> None:
    bug(monkeypatch)
    assert verified()[0].startswith(where)


@pytest.mark.parametrize("bug", [columns_as_one_matrix, results_not_summed])
def test_comparison_finds_a_bug_in_split_experts(bug: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    plainly("sgd", 1)
    bug(monkeypatch)
    # Or tokens go to other experts on other ranks along "tp", and so other numbers of them.
    with pytest.raises(RankFailed, match=r"differs by|the ranks differ in call"):
        compare("sgd", 1, {"dp": 2, "tp": 2}, 2)


# ------------------------------------------------------------------------------ what is refused


def test_numbers_that_do_not_fit_are_refused() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        three = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        odd = build()
        odd.h[1].moe = MixtureOfExperts(C, H, 6)
        for model, over, ep, words in (
            (build(), mesh, 3, "expected ep to divide the 4 ranks along 'dp' and 'cp'"),
            (build(), mesh, 0, "got ep=0"),
            (build(), three, 4, "expected ep to divide the 2 ranks along 'dp' and 'cp'"),
            (GPT2(), mesh, 2, "the model has no MixtureOfExperts for ep=2"),
            (odd, mesh, 4, "the 6 experts of h.1.moe do not divide by 4 ranks"),
        ):
            kinds = [type(p) for p in model.parameters()]
            layers = [Start(model), *model.h, nn.Sequential(model.ln_f, model.lm_head)]
            with pytest.raises(ValueError, match=words):
                parallelize(model, over, loss_fn=nn.CrossEntropyLoss(), ep=ep, layers=layers)
            assert kinds == [type(p) for p in model.parameters()]

    simulate(4, rank)


def test_splits_that_do_not_fit_are_refused() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (5,), mesh_dim_names=("tp",))
        for name, words in (
            ("h.*.moe.experts", f"the width of an expert is {H} and does not divide among the 5 ranks"),
            ("ln_f", "ln_f: SplitExperts splits Experts, got LayerNorm"),
        ):
            with pytest.raises(ValueError, match=words):
                parallelize(build(), mesh, loss_fn=nn.CrossEntropyLoss(), plan={name: SplitExperts()})

    simulate(5, rank)
