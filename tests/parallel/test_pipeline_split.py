"""Stages of an exported model, and schedules that the caller writes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import warptape as wt
import warptape.distributed as dist
from pipeline_models import simulate
from tensor_models import GPT2, Llama, T, V
from warptape import nn
from warptape.distributed.pipelining import SplitPoint, build_stage, pipe_split, pipeline
from warptape.distributed.pipelining.schedules import Schedule1F1B, ScheduleGPipe, _PipelineScheduleRuntime
from warptape.nn import functional as F
from warptape.parallel import pipeline as pp

M, ROWS = 4, 8


def loss_of(logits: wt.Tensor, target: wt.Tensor) -> wt.Tensor:
    return F.cross_entropy(logits.flatten(0, 1), target.flatten())


def batch() -> tuple[wt.Tensor, wt.Tensor]:
    both = wt.randint(V, (ROWS, T + 1), generator=wt.Generator().manual_seed(5))
    return both[:, :-1], both[:, 1:]


def build(kind: Any) -> nn.Module:
    wt.manual_seed(3)
    return kind().double().eval()


def plain(kind: Any) -> dict[str, wt.Tensor]:
    model, (x, y) = build(kind), batch()
    loss_of(model(x), y).backward()
    return {name: p.grad for name, p in model.named_parameters()}


def check(got: list[dict[str, wt.Tensor]], want: dict[str, wt.Tensor]) -> None:
    merged: dict[str, wt.Tensor] = {}
    for each in got:
        merged |= each
    assert merged.keys() == want.keys()
    for name, g in want.items():
        assert (merged[name] - g).abs().max().item() < 1e-12, name


@pytest.mark.parametrize(
    ("kind", "spec"),
    [
        (Llama, {"layers.1": SplitPoint.BEGINNING}),
        (Llama, {"layers.0": SplitPoint.END}),
        (GPT2, {"h.1": SplitPoint.BEGINNING}),  # whose output layer is the embedding
        (
            Llama,
            {
                "layers.0": SplitPoint.BEGINNING,
                "layers.1": SplitPoint.BEGINNING,
                "norm": SplitPoint.BEGINNING,
            },
        ),
    ],
)
def test_gradients_are_those_of_one_process(kind: Any, spec: dict[str, SplitPoint]) -> None:
    want, (x, y) = plain(kind), batch()
    ranks = len(spec) + 1

    def rank() -> dict[str, wt.Tensor]:
        pipe = pipeline(build(kind), (x[: ROWS // M],), split_spec=spec)
        assert pipe.num_stages == ranks
        stage = pipe.build_stage(dist.get_rank(), "cpu")
        Schedule1F1B(stage, M, loss_of).step(x, target=y)
        return {name: p.grad for name, p in stage.submod.named_parameters()}

    check(simulate(ranks, rank), want)


class Marked(nn.Module):
    """Says itself where stages begin; the last one needs what the first one has."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.three = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 2)

    def forward(self, x: wt.Tensor, scale: wt.Tensor, *, shift: wt.Tensor | None = None) -> wt.Tensor:
        first = self.one(x).tanh()
        pipe_split()
        y = self.two(first)
        pipe_split()
        y = self.three(y + first) * scale
        return y if shift is None else y + shift


def test_pipe_split_in_forward_and_values_that_later_stages_need() -> None:
    model = Marked()
    x, scale, shift = wt.randn(3, 4), wt.randn(3, 1), wt.randn(3, 2)
    pipe = pipeline(model, (x, scale), {"shift": shift})
    assert pipe.num_stages == 3
    assert [sorted(pipe.get_stage_module(i).state_dict()) for i in range(3)] == [
        [f"{name}.bias", f"{name}.weight"] for name in ("one", "two", "three")
    ]
    assert pipe.get_stage_module(0).get_parameter("one.weight").data_ptr() == model.one.weight.data_ptr()
    assert pipe(x, scale, shift=shift).equal(model(x, scale, shift=shift))
    assert model(x, scale).shape == (3, 2)  # pipe_split does nothing there
    with pytest.raises(ValueError, match="Invalid stage index 3"):
        pipe.get_stage_module(3)


def test_split_policy() -> None:
    def halves(whole: Any) -> Any:
        (relu,) = (node for node in whole.graph.nodes if "relu" in node.name)
        with whole.graph.inserting_before(relu):
            whole.graph.call_function(pipe_split)
        return whole

    model, x = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), wt.randn(2, 3)
    pipe = pipeline(model, (x,), split_policy=halves)
    assert pipe.num_stages == 2 and pipe(x).equal(model(x))
    assert list(pipe.get_stage_module(1).state_dict()) == ["2.weight", "2.bias"]
    with pytest.raises(ValueError, match="only one"):
        pipeline(model, (x,), split_spec={"1": SplitPoint.END}, split_policy=halves)
    with pytest.raises(AttributeError):
        pipeline(model, (x,), split_spec={"none": SplitPoint.END})


def test_build_stage_of_a_changed_module() -> None:
    def rank() -> Any:
        wt.manual_seed(0)
        model = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        pipe = pipeline(model, (wt.ones(1, 3),), split_spec={"1": SplitPoint.BEGINNING})
        module = pipe.get_stage_module(dist.get_rank())
        with wt.no_grad():
            for p in module.parameters():
                p.fill_(1)
        stage = build_stage(module, dist.get_rank(), pipe.info(), "cpu")
        return ScheduleGPipe(stage, 2, F.mse_loss).eval(wt.ones(2, 3))

    assert simulate(2, rank)[1].tolist() == [[13.0] * 3] * 2


def test_a_schedule_of_the_callers(tmp_path: Path) -> None:
    want, (x, y) = plain(Llama), batch()
    spec = dict.fromkeys(("layers.0", "layers.1", "norm"), SplitPoint.BEGINNING)
    file = tmp_path / "schedule.csv"
    rows = pp.looped_bfs(4, M, 2)
    file.write_text("\n".join(",".join(str(a) for a in row) + ",,0UNSHARD" for row in rows))

    def rank() -> Any:
        pipe = pipeline(build(Llama), (x[: ROWS // M],), split_spec=spec)
        stages = [pipe.build_stage(s, "cpu") for s in (dist.get_rank(), dist.get_rank() + 2)]
        schedule = _PipelineScheduleRuntime(stages, M, loss_of)
        schedule._load_csv(str(file))
        assert [a for a in schedule.actions if a.kind in pp.actions.COMPUTE] == rows[dist.get_rank()]
        schedule.step(x, target=y)
        if dist.get_rank() == 0:
            schedule._dump_csv(str(tmp_path / "full.csv"))
            schedule._load_csv(str(tmp_path / "full.csv"), format="compute_comms")
            assert [a for a in schedule.actions if a.kind in pp.actions.COMPUTE] == rows[0]
        return {name: p.grad for stage in stages for name, p in stage.submod.named_parameters()}

    check(simulate(2, rank), want)


def test_schedules_that_do_not_fit() -> None:
    def rank() -> None:
        layers = [nn.Linear(2, 2) for _ in range(2)]
        stages = [pp.PipelineStage(layer, s, 2) for s, layer in enumerate(layers)]
        schedule = _PipelineScheduleRuntime(stages, 1, F.mse_loss)
        with pytest.raises(ValueError, match="'0X0' is no action"):
            schedule._prepare_schedule_with_comms({0: ["0X0"]})
        with pytest.raises(pp.ScheduleError, match="0B0 comes before 1I0"):
            schedule._prepare_schedule_with_comms({0: ["0F0", "1F0", "0B0"]})
        with pytest.raises(ValueError, match="expected format"):
            schedule._prepare_schedule_with_comms({0: ["0F0"]}, format="other")

    simulate(1, rank)
    assert pp.get_schedule_class("_PipelineScheduleRuntime") is _PipelineScheduleRuntime
