"""All kinds of parallelism at once: the same training run as one process."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
import warptape.distributed.checkpoint as dcp
from layout_training import Seen, Start, batches, check, layout_run, loss_by, plain_run, whole
from tensor_models import GPT2, TOLERANCE, T, gpt2_plan, simulate
from tensor_training import OPTIMIZERS
from warptape import nn, optim
from warptape.core.placed import set_norm_stages
from warptape.distributed.simulation import RankFailed
from warptape.parallel import Layout, MixedPrecisionPolicy, ParallelModel, parallelize, verify
from warptape.parallel import tensor as tp
from warptape.parallel.pipeline.shared import SharedParameters
from warptape.parallel.pipeline.stage import PipelineStage
from warptape.utils.checkpoint import checkpoint

MICRO = 2


class Remat(nn.Module):
    """A layer that is computed once more in backward."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return checkpoint(self.inner, x, use_reentrant=False)


def build() -> GPT2:
    wt.manual_seed(11)
    return GPT2().to(wt.float64)


def layers_of(model: GPT2, remat: bool = False) -> list[nn.Module]:
    """Four; the first and the last have one weight in common."""
    blocks = [Remat(block) if remat else block for block in model.h]
    return [Start(model), *blocks, nn.Sequential(model.ln_f, model.lm_head)]


@functools.cache
def plainly(optimizer: str, steps: int) -> Seen:
    return plain_run(build(), loss_by(nn.CrossEntropyLoss()), optimizer, steps)


def make(
    shape: dict[str, int],
    zero: int,
    remat: bool = False,
    dtype: Any = wt.float64,
    change: Any = lambda m: m,
    **more: Any,
) -> tuple[Any, Any]:
    """The model in that layout, and its mesh."""
    mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
    split = shape.get("tp", 1) > 1
    measure = tp.VocabParallelCrossEntropy(mesh["tp"]) if split else nn.CrossEntropyLoss()
    model = change(build().to(dtype))
    options = {"plan": gpt2_plan(), "layers": layers_of(model, remat), "n_microbatches": MICRO, **more}
    return parallelize(model, mesh, loss_fn=loss_by(measure), zero=zero, **options), mesh


def train(optimizer: str, steps: int, shape: dict[str, int], zero: int, **more: Any) -> Seen:
    return layout_run(*make(shape, zero, **more), optimizer, steps)


def compare(optimizer: str, steps: int, shape: dict[str, int], zero: int, **more: Any) -> float:
    """The largest difference of all ranks from one process."""
    expected, ranks = plainly(optimizer, steps), math.prod(shape.values())
    found = simulate(ranks, lambda: check(train(optimizer, steps, shape, zero, **more), expected))
    assert set().union(*(names for _, names in found)) == expected[0].keys()
    return max(most for most, _ in found)


SHAPES = [{"dp": 2, "tp": 2}, {"pp": 2, "dp": 2}, {"pp": 2, "tp": 2}, {"dp": 2, "pp": 2, "tp": 2}]


def stages_of_zero(shape: dict[str, int]) -> Iterable[int]:
    """What may be shared among ranks along "dp"."""
    return range(4) if shape.get("dp", 1) > 1 else (0,)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(
    "shape, zero",
    [
        pytest.param(shape, zero, id=f"{' '.join(f'{k}={n}' for k, n in shape.items())} zero={zero}")
        for shape in SHAPES
        for zero in stages_of_zero(shape)
    ],
)
def test_training_equals_one_process(shape: dict[str, int], zero: int, optimizer: str) -> None:
    """20 steps with dropout, a tied weight, micro-batches and clipped norms. proof.py has more layouts."""
    compare(optimizer, 20, shape, zero)


@pytest.mark.parametrize(
    "schedule, chunks, zero",
    [
        ("GPipe", 1, 2),
        *(("ZBH1", 1, zero) for zero in range(4)),
        ("Interleaved1F1B", 2, 1),
        ("Interleaved1F1B", 2, 3),
        ("LoopedBFS", 2, 2),
        ("InterleavedZeroBubble", 2, 3),
        *(("ZBVZeroBubble", 2, zero) for zero in range(2)),
        ("DualPipeV", 2, 1),
    ],
)
@pytest.mark.parametrize("tp", [1, 2])
def test_schedules(schedule: str, chunks: int, zero: int, tp: int) -> None:
    compare("adamw", 4, {"pp": 2, "dp": 2, "tp": tp}, zero, schedule=schedule, chunks=chunks)


def test_gradients_of_a_stage_are_averaged_while_others_compute(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[str] = []
    backward, average = PipelineStage.backward, ParallelModel._average

    def noted(name: str, call: Any) -> Any:
        def run(*args: Any) -> Any:
            if dist.get_rank() == 0:
                seen.append(name)
            return call(*args)

        return run

    monkeypatch.setattr(PipelineStage, "backward", noted("backward", backward))
    monkeypatch.setattr(ParallelModel, "_average", staticmethod(noted("average", average)))
    compare("sgd", 1, {"pp": 2, "dp": 2}, 0, schedule="Interleaved1F1B", chunks=2)
    # Two stages, two micro-batches; last comes the weight that a stage of another rank has, too.
    assert seen == ["backward", "backward", "average", "backward", "backward", "average", "average"]


@pytest.mark.parametrize(
    "shape, zero",
    [({"dp": 2, "pp": 2}, 3), ({"pp": 2, "tp": 2}, 0), ({"dp": 2, "pp": 2}, 1), ({"dp": 2, "tp": 2}, 2)],
)
def test_activation_checkpoints(shape: dict[str, int], zero: int) -> None:
    compare("sgd", 4, shape, zero, remat=True)


@pytest.mark.parametrize(
    "shape, zero",
    [
        ({"dp": 2}, 0),
        ({"dp": 2}, 3),
        ({"dp": 2, "pp": 2}, 1),
        ({"dp": 2, "pp": 2}, 2),
        ({"dp": 2, "tp": 2}, 1),
        ({"dp": 2, "tp": 2}, 2),
    ],
)
def test_steps_add_up(shape: dict[str, int], zero: int) -> None:
    """Two batches before the optimizer, as accumulated gradients."""

    def gradients(model: Any, step: Callable[[Any, Any], Any]) -> dict[str, Any]:
        for tokens, targets in batches(2):
            step(tokens, targets)
        return dict(model.named_parameters())

    plain, loss_of = build(), loss_by(nn.CrossEntropyLoss())
    expected = gradients(plain, lambda x, y: loss_of(plain(x), y).backward())

    def rank() -> None:
        model, mesh = make(shape, zero)
        at = mesh.get_local_rank("dp")
        for name, p in gradients(
            model, lambda x, y: model.step(x.chunk(2)[at], target=y.chunk(2)[at])
        ).items():
            got, want = whole(p), expected[name].grad
            assert (got - want).norm() <= TOLERANCE * want.norm(), name

    simulate(math.prod(shape.values()), rank)


@pytest.mark.parametrize(
    "shape, zero", [({"dp": 2, "pp": 2}, 1), ({"dp": 2, "pp": 2}, 2), ({"dp": 2, "tp": 2}, 3)]
)
def test_autocast_and_evaluation(shape: dict[str, int], zero: int) -> None:
    """bfloat16 products round alike where they are not split, but sums of gradients take another order."""
    ((tokens, targets),) = batches(1)
    plain, loss_of = build().float().eval(), loss_by(nn.CrossEntropyLoss())
    cast = functools.partial(wt.autocast, "cpu", dtype=wt.bfloat16)
    with cast():
        loss = loss_of(plain(tokens), targets)
    loss.backward()
    expected, near = {k: p.grad for k, p in plain.named_parameters()}, 1e-2 if "tp" in shape else 1e-5

    def rank() -> None:
        model, mesh = make(shape, zero, dtype=wt.float32)
        at = mesh.get_local_rank("dp")
        x, y = tokens.chunk(2)[at], targets.chunk(2)[at]
        with cast():
            assert model.eval().evaluate(x, target=y).item() == pytest.approx(loss.item(), rel=near)
            assert model.step(x, target=y).item() == pytest.approx(loss.item(), rel=near)
        for name, p in model.named_parameters():
            got = whole(p)
            assert (got - expected[name]).norm() <= 0.02 * expected[name].norm() + 1e-6, name

    simulate(4, rank)


def test_sequence_parallelism_in_stages() -> None:
    """Between stages goes a part of the sequence."""
    compare("adamw", 4, {"dp": 2, "pp": 2, "tp": 2}, 1, plan=gpt2_plan(True))


@pytest.mark.parametrize("names", list(itertools.permutations(("dp", "tp", "pp"))))
def test_axes_in_any_order(names: tuple[str, ...]) -> None:
    compare("adamw", 2, dict.fromkeys(names, 2), 3)


@pytest.mark.parametrize("zero", range(4))
def test_frozen_parameters(zero: int) -> None:
    """A stage without gradients, of which the norm is that of the others."""

    def freeze(model: GPT2) -> GPT2:
        model.h[0].requires_grad_(False)
        model.wpe.requires_grad_(False)
        return model

    ((tokens, targets),) = batches(1)
    plain, loss_of = freeze(build()), loss_by(nn.CrossEntropyLoss())
    loss_of(plain(tokens), targets).backward()
    norm = nn.utils.clip_grad_norm_(plain.parameters(), 0.1)
    expected = {k: p.grad for k, p in plain.named_parameters()}

    def rank() -> None:
        model, mesh = make({"pp": 4, "dp": 2}, zero, change=freeze)
        at = mesh.get_local_rank("dp")
        model.step(tokens.chunk(2)[at], target=targets.chunk(2)[at])
        assert nn.utils.clip_grad_norm_(model.parameters(), 0.1).item() == pytest.approx(norm.item(), 1e-12)
        for name, p in model.named_parameters():
            want = expected[name]
            assert (p.grad is None) == (want is None), name
            assert want is None or (whole(p) - want).norm() <= TOLERANCE * want.norm(), name

    simulate(8, rank)


def test_verify_takes_what_parallelize_makes() -> None:
    def layout(zero: int, heads: Any) -> Layout:
        def apply(model: Any, mesh: Any) -> Any:
            loss_of = loss_by(tp.VocabParallelCrossEntropy(mesh["tp"]))
            plan = gpt2_plan() | {"h.*.attn.c_attn": heads}
            options = {"plan": plan, "layers": layers_of(model), "n_microbatches": MICRO, "zero": zero}
            return parallelize(model, mesh, loss_fn=loss_of, **options)

        def step(model: Any, tokens: wt.Tensor, targets: wt.Tensor) -> wt.Tensor:
            return model.step(tokens, target=targets)

        mesh = {"shape": (2, 2, 2), "names": ("pp", "dp", "tp"), "batch": ("dp",)}
        return Layout(8, apply, step=step, micro_batches=MICRO, **mesh)

    right, wrong = tp.ColwiseParallel(parts=3), tp.ColwiseParallel()
    layouts = {f"zero {zero}": layout(zero, right) for zero in (0, 3)} | {"heads": layout(1, wrong)}
    report = verify(build, batches(1)[0], loss_by(nn.CrossEntropyLoss()), layouts)
    found = {(row.layout, row.difference.name if row.difference else "") for row in report.rows}
    assert found == {("zero 0", ""), ("zero 3", ""), ("heads", "h.0.attn")}


class Counting(nn.Module):
    """With buffers, one of which only the model itself has, and a parameter that no module of it has."""

    def __init__(self) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.BatchNorm1d(4) for _ in range(2))
        self.register_buffer("limit", wt.arange(3))
        self.bare = nn.Parameter(wt.ones(4))


class Bare(nn.Module):
    def __init__(self, model: Counting) -> None:
        super().__init__()
        self.weight = model.bare

    def forward(self, x: wt.Tensor) -> wt.Tensor:
        return x * self.weight


def test_states_have_the_names_and_values_of_one_process() -> None:
    plain = Counting()
    with wt.no_grad():
        for value in plain.state_dict().values():
            value.copy_(wt.rand(value.shape) * 9)

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("pp", "dp"))
        given = Counting()
        layers = [given.norms[0], nn.Sequential(given.norms[1], Bare(given))]
        model = parallelize(given, mesh, layers=layers, zero=3, loss_fn=lambda out, _: out.sum())
        with pytest.raises(RuntimeError, match=r"bare is \[4\] as a whole, got \[2\]"):
            model.load_state_dict(plain.state_dict() | {"bare": wt.ones(2)})
        without = {k: v for k, v in plain.state_dict().items() if k != "bare"}
        with pytest.raises(RuntimeError, match=r"missing: \['bare'\]; unexpected: \['more'\]"):
            model.load_state_dict(without | {"more": wt.ones(2)})
        model.load_state_dict(plain.state_dict())
        assert list(model.full_state_dict()) == list(plain.state_dict())
        assert all((v == plain.state_dict()[k]).all() for k, v in model.full_state_dict().items())
        mine = {k for k in plain.state_dict() if k.startswith(f"norms.{mesh.get_local_rank('pp')}.")}
        assert set(model.state_dict()) == mine | {"limit"} | ({"bare"} if dist.get_rank() > 1 else set())

    simulate(4, rank)


# --------------------------------------------------------------------------------- checkpoints

LAYOUTS = [({"dp": 1}, 0), ({"dp": 2, "pp": 2, "tp": 2}, 1), ({"pp": 2, "dp": 2}, 3), ({"tp": 2, "dp": 2}, 2)]


def resumed(path: str, shape: dict[str, int], zero: int, steps: range, load: bool) -> list[float]:
    """The losses of these steps; saves at the end, or before them loads what was saved."""
    model, mesh = make(shape, zero)
    opt = model.optimizer(optim.AdamW, lr=1e-2)
    state = {"model": model, "optimizer": opt, "random": wt.default_generator}
    at, ranks = (mesh.get_local_rank("dp"), mesh.size("dp")) if "dp" in shape else (0, 1)
    if load:
        wt.manual_seed(99)
        dcp.load(state, checkpoint_id=path)
    losses = []
    for tokens, targets in batches(steps.stop)[steps.start :]:
        model.zero_grad()
        losses.append(model.step(tokens.chunk(ranks)[at], target=targets.chunk(ranks)[at]).item())
        opt.step()
    if not load:
        dcp.save(state, checkpoint_id=path)
    return losses


@pytest.mark.parametrize("first", LAYOUTS, ids=str)
def test_checkpoints_load_into_other_layouts(first: tuple[dict[str, int], int], tmp_path: Path) -> None:
    """The run that goes on in another layout has the losses of one that was never stopped; in the same
    layout, to the bit."""

    def on(layout: tuple[dict[str, int], int], steps: range, load: bool, name: str = "saved") -> list[float]:
        shape, zero = layout
        path = str(tmp_path / name)
        return simulate(math.prod(shape.values()), lambda: resumed(path, shape, zero, steps, load))[0]

    on(first, range(2), load=False)
    expected = on(LAYOUTS[0], range(4), load=False, name="whole")[2:]
    for then in LAYOUTS:
        assert on(then, range(2, 4), load=True) == pytest.approx(expected, rel=1e-10)
    assert on(first, range(2, 4), load=True) == on(first, range(4), load=False, name="own")[2:]


# ------------------------------------------------------------------------------ what is refused


def refused(words: str, shape: dict[str, int], error: type[Exception] = ValueError, **more: Any) -> None:
    """An error with these words, and the model as it was; also when the other ranks do not come, for there
    was no collective."""
    ranks = math.prod(shape.values())

    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", tuple(shape.values()), mesh_dim_names=tuple(shape))
        for culprit in range(ranks):
            dist.barrier()
            if dist.get_rank() == culprit:
                model = more.get("model") or build()
                before = [(type(m), dict(m._forward_hooks)) for m in model.modules()]
                values = [(type(p), p, p.clone()) for p in model.parameters()]
                layers = layers_of(model) if isinstance(model, GPT2) else None
                given = {"loss_fn": nn.CrossEntropyLoss(), "layers": layers, "n_microbatches": 2}
                given |= {k: v for k, v in more.items() if k != "model"}
                with pytest.raises(error) as caught:
                    parallelize(model, mesh, **given)
                assert words in str(caught.value)
                assert before == [(type(m), dict(m._forward_hooks)) for m in model.modules()]
                for (kind, p, value), now in zip(values, model.parameters(), strict=True):
                    assert (
                        now is p and type(now) is kind and now.shape == value.shape and (now == value).all()
                    )

    simulate(ranks, rank)


def test_numbers_that_do_not_fit_are_refused() -> None:
    both = {"dp": 2, "pp": 2}
    refused("expected a mesh with axes named of", {"copies": 2, "pp": 2})
    refused("zero=1 is of ranks along 'dp' and 'cp', and the mesh has ('pp',) alone", {"pp": 2}, zero=1)
    refused("4 ranks along 'tp'; give a plan", {"tp": 4})
    refused("n_head is 4 and does not divide", {"tp": 3}, plan={"h.*.attn": tp.divide("n_head")})
    refused("'blocks.*' matches no module", {"tp": 2, "pp": 2}, plan={"blocks.*": tp.ColwiseParallel()})
    whole_model = {
        "": tp.PrepareModuleOutput(output_layouts=tp.Replicate(), desired_output_layouts=tp.Shard(1))
    }
    refused("the plan names '', in none of `layers`", {"tp": 2, "pp": 2}, plan=whole_model)
    refused("4 layers do not divide into 3 stages; make the number of layers", {"pp": 3})
    refused("use at most 4 stages", {"pp": 5}, balance="parameters")
    refused("sum to 4, got balance=[1, 2]", both, balance=[1, 2])
    refused("for 2 stages give `layers`", both, layers=None)
    refused("expected nn.Sequential, nn.ModuleList or a list", both, TypeError, layers=nn.Linear(2, 2))
    refused("wte.weight, wpe.weight", both, layers=[nn.Linear(2, 2), nn.Linear(2, 2)])
    refused("zero to be 0, 1, 2 or 3, got 4", both, zero=4)
    refused("mp_policy is for zero=2 and zero=3", both, zero=1, mp_policy=MixedPrecisionPolicy())
    refused("expected a MixedPrecisionPolicy, got str", both, TypeError, zero=2, mp_policy="bfloat16")
    refused("n_microbatches of at least 1, got 0", both, n_microbatches=0)
    refused("unknown schedule 'ZBV'", both, schedule="ZBV")
    refused("schedule '1F1B' has one stage on a rank, got chunks=2", both, chunks=2)
    refused("expected loss_fn to be callable", both, TypeError, loss_fn=None)


def test_models_that_do_not_fit_are_refused() -> None:
    both = {"dp": 2, "pp": 2}
    bare = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    refused("rank 1 along 'pp' would have no parameters", both, model=bare, layers=bare)
    frozen = nn.Linear(2, 2).requires_grad_(False)
    refused("no parameter of the model requires grad", {"dp": 2}, model=frozen)
    scaled = nn.Linear(2, 2)
    scaled.scale = nn.Parameter(wt.tensor(1.0))
    refused("scale has no dims; for zero=3", {"dp": 2}, model=scaled, zero=3)
    tied = nn.Sequential(*(nn.Linear(2, 2, bias=False) for _ in range(4)))
    tied[2].weight = tied[0].weight
    interleaved = {"schedule": "Interleaved1F1B", "chunks": 2, "zero": 2}
    refused("two stages of rank 0 along 'pp' share a parameter", both, model=tied, layers=tied, **interleaved)
    v = {"schedule": "ZBVZeroBubble", "chunks": 2}
    tied[2].weight, tied[3].weight = nn.Parameter(wt.zeros(2, 2)), tied[0].weight  # ends that lie on rank 0
    refused("two stages of rank 0 along 'pp' share a parameter", both, model=tied, layers=tied, **v, zero=2)
    refused("has two stages on a rank, got chunks=3", both, model=tied, layers=tied, **v | {"chunks": 3})


def test_a_model_is_split_once() -> None:
    def rank() -> None:
        for zero in (0, 2):
            model, mesh = make({"dp": 2}, zero)
            with pytest.raises(ValueError, match="parallel already"):
                parallelize(model, mesh, loss_fn=nn.CrossEntropyLoss())

    simulate(2, rank)


def test_sizes_of_axes_stand_for_a_mesh() -> None:
    def rank() -> None:
        options: dict[str, Any] = {"loss_fn": loss_by(nn.CrossEntropyLoss())}
        made = parallelize(build(), cp=2, **options)
        assert {name: axis.size() for name, axis in made._axes.items()} == {"dp": 2, "cp": 2, "copies": 4}
        model = build()
        by_size = parallelize(model, pp=2, dp=2, layers=layers_of(model), n_microbatches=MICRO, **options)
        assert {name: axis.mesh.tolist() for name, axis in by_size._axes.items()} == {
            "pp": [dist.get_rank() % 2, dist.get_rank() % 2 + 2],
            "dp": [dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1],
            "copies": [dist.get_rank() // 2 * 2, dist.get_rank() // 2 * 2 + 1],
        }
        mesh = dist.init_device_mesh("cpu", (4,), mesh_dim_names=("dp",))
        for sizes, says in (
            ({"cp": 3}, "cp 3 are 3 ranks, and the job has 4"),
            ({"cp": 2, "dp": 1}, "are 2 ranks, and the job has 4"),
            ({"cp": 0}, "cp to be a whole number above 0, got 0"),
            ({"mesh": mesh, "cp": 2}, "a mesh and sizes of axes"),
        ):
            with pytest.raises(ValueError, match=says):
                parallelize(build(), **sizes, **options)
        with pytest.raises(TypeError, match="expected a DeviceMesh or sizes of axes"):
            parallelize(build(), **options)

    simulate(4, rank)


def test_a_mesh_of_some_ranks_is_refused() -> None:
    def rank() -> None:
        mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))["tp"]
        with pytest.raises(ValueError, match=r"has tp 2 = 2 ranks and the job has 4; make the product 4"):
            parallelize(build(), mesh, loss_fn=nn.CrossEntropyLoss())

    simulate(4, rank)


@pytest.mark.parametrize("rows", [(3, 3), (3, 4), (2, 4)])
@pytest.mark.parametrize("shape", [{"dp": 2, "pp": 2}, {"dp": 2, "tp": 2}])
def test_batches_that_do_not_fit_are_refused(shape: dict[str, int], rows: tuple[int, int]) -> None:
    """On every rank, and the next batch that fits goes through."""
    said = {
        (3, 3): [r"\(3, 8\) does not divide into 2 micro-batches; make dim 0"] * 2,
        (3, 4): [r"\(3, 8\) does not divide", "another rank along 'dp' has a batch that does not divide"],
        (2, 4): ["ranks along 'dp' have batches of 2 to 4 rows; give each as many"] * 2,
    }

    def rank() -> None:
        model, mesh = make(shape, 0)
        at = mesh.get_local_rank("dp")
        for tried in (model.step, model.step, model.evaluate)[: 3 if "pp" in shape else 2]:
            tokens = wt.zeros((rows[at], T), dtype=wt.int64)
            with pytest.raises(ValueError, match=said[rows][at]):
                tried(tokens, target=tokens)
            assert all(p.grad is None for p in model.parameters())
        tokens = wt.zeros((4, T), dtype=wt.int64)
        model.step(tokens, target=tokens)

    simulate(4, rank)


# ------------------------------------------------------------------------------- planted bugs


DONE = SimpleNamespace(wait=lambda: None)  # for what was not begun


def found(match: str) -> None:
    with pytest.raises(RankFailed, match=match):
        compare("sgd", 2, {"pp": 2, "dp": 2}, 0)


def test_a_tied_weight_that_counts_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    init = SharedParameters.__init__

    def all_count(self: Any, stages: Any, owners: Any) -> None:
        init(self, stages, owners)
        for stage in stages:
            for p in stage.submod.parameters():
                set_norm_stages(p, self.group, True)

    monkeypatch.setattr(SharedParameters, "__init__", all_count)
    found("total norm differs")


def test_gradients_that_are_not_averaged_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelModel, "_average", staticmethod(lambda gradients, group: DONE))
    found("differs")


def test_dropout_of_the_wrong_rows_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParallelModel, "_slice_of_batch", lambda self: nullcontext())
    found("differs")


@pytest.mark.parametrize("dp", [2, 3])
@pytest.mark.parametrize("n_microbatches", [1, 2])
def test_a_rank_on_which_nothing_counts_has_no_gradient(n_microbatches: int, dp: int) -> None:
    """A masked mean is 0 / 0 there, and its gradient NaN."""

    def loss_fn(out: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
        keep = (target >= 0).to(out.dtype)
        return ((out.squeeze(-1) - target.to(out.dtype)).square() * keep).sum() / keep.sum()

    x = wt.arange(8.0 * dp, dtype=wt.float64).reshape(4 * dp, 2) / 8
    target = wt.tensor([-1, -1, 2, 1, *[-1] * (4 * dp - 4)])

    def built() -> nn.Module:
        wt.manual_seed(0)
        return nn.Linear(2, 1).double()

    def rank() -> Any:
        options = {"n_microbatches": n_microbatches, "counted": lambda t: (t >= 0).sum()}
        model = parallelize(built(), loss_fn=loss_fn, dp=dp, **options)
        r = dist.get_rank()
        loss = model.step(x[4 * r : 4 * r + 4], target=target[4 * r : 4 * r + 4])
        return loss.item(), [p.grad for _, p in model.named_parameters()]

    plain = built()
    expected = loss_fn(plain(x), target)
    expected.backward()
    for loss, gradients in dist.simulate(dp, rank):
        assert loss == pytest.approx(expected.item())
        assert all(wt.allclose(g, p.grad) for g, p in zip(gradients, plain.parameters(), strict=True))
