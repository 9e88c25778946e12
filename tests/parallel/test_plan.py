"""The planner: its formulas against simulated schedules, models, measured memory and published tables."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
from time_limits import seconds
from warptape import nn, optim
from warptape.models import Decoder, DecoderConfig
from warptape.parallel import parallelize
from warptape.parallel import pipeline as pp
from warptape.parallel.plan import (
    EFFICIENCY,
    GPUS,
    MODELS,
    NETWORKS,
    PARALLELIZE,
    Cluster,
    Job,
    Layout,
    Plan,
    PlanError,
    Program,
    draw,
    estimate,
    plan,
    read_gpu,
    read_model,
    read_network,
)
from warptape.parallel.plan.__main__ import main
from warptape.parallel.plan.cost_model import FUNCTIONS
from warptape.parallel.plan.search import columns_of, memory_of, time_of
from warptape.parallel.plan.step_time import FUNCTIONS as TIMES
from warptape.parallel.plan.step_time import product_time, ring_time

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "figures"), str(ROOT / "tests" / "parallel")]
import plan_memory  # noqa: E402
import scale  # noqa: E402

SMALL = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "max_position_embeddings": 16,
}


def job(layout: Layout, model: str = "gpt3-1.3b", **program: Any) -> Job:
    sequences = layout.dp * layout.micro_batch * layout.n_microbatches
    cluster = Cluster(layout.ranks, GPUS["a100"], NETWORKS["hdr200"])
    return Job(read_model(model), cluster, Program(**program), 2048, sequences)


def one(terms: dict[str, Any], name: str) -> float:
    return float(np.ravel(terms[name])[0])


@pytest.fixture(scope="module")
def found() -> Plan:
    return plan("gpt3-1.3b", 16, "a100", "hdr200", batch_tokens=2**18)


# ------------------------------------------------------------------------------- published times


def test_the_constant_is_that_of_the_first_row() -> None:
    row = scale.PUBLISHED["megatron"]["rows"][0]
    low, high = 0.4, 1.0
    for _ in range(12):
        middle = (low + high) / 2
        low, high = (middle, high) if scale.megatron(row, middle) < row["tflops"] else (low, middle)
    assert abs(low - EFFICIENCY) < 0.002


def test_megatron_table() -> None:
    errors = [abs(e) for e in scale.errors_of("megatron")]
    assert len(errors) == 9
    assert sum(errors) / 9 <= 0.04 and max(errors) <= 0.08
    rows = scale.PUBLISHED["megatron"]["rows"][1:]
    off = [abs(scale.megatron(row, 0.8 * EFFICIENCY) / row["tflops"] - 1) for row in rows]
    assert sum(off) / 9 > 0.08, "a wrong constant must be seen"


def test_page_is_up_to_date() -> None:
    page = scale.PAGE.read_text()
    assert scale.with_tables(page) == page, "run python docs/figures/scale.py"
    assert page.count("mean error") >= 4
    changed = page.replace("| 138 | 134", "| 138 | 135")
    assert changed != page and scale.with_tables(changed) == page


def test_operations_are_counted_as_the_paper_does() -> None:
    # Its section 5.1: 34 days for 300 B tokens on 1,024 devices at 140 TFLOP/s, 84 for 450 B on 3,072 at 163.
    for name, tokens, devices, tflops, days in (
        ("gpt3-175b", 3e11, 1024, 140, 34),
        ("gpt-1t", 4.5e11, 3072, 163, 84),
    ):
        flops = scale.flops_of_megatron(read_model(name), 2048) * tokens
        assert flops / devices / tflops / 1e12 / 86400 == pytest.approx(days, rel=0.03)


# --------------------------------------------------------------------------- parts of the formulas


@pytest.mark.parametrize("name", ["gpipe", "1f1b", "interleaved_1f1b", "zb_h1"])
def test_bubble_and_held_are_the_simulators(name: str) -> None:
    p, n = 4, 8
    v = 2 if name == "interleaved_1f1b" else 1
    kind = {"gpipe": "GPipe", "1f1b": "1F1B", "interleaved_1f1b": "Interleaved1F1B", "zb_h1": "ZBH1"}[name]
    layout = Layout(pp=p, schedule=kind, chunks=v, n_microbatches=n)
    j = job(layout)
    terms = time_of(j, columns_of([layout]))
    f, b, w = (one(terms, k) for k in ("stage_forward", "stage_backward", "weight_gradients"))
    if name == "zb_h1":  # the planner's stages, with the half that moves
        w = 2 * w / 2
    durations = pp.Durations(f / v, (b - w) / v, w / v)
    timeline = pp.simulate_schedule(pp.SCHEDULES[name](p * v, n), p * v, durations)
    told = one(terms, "bubble")
    if name == "zb_h1":
        assert timeline.bubble == pytest.approx((p - 1) * (f + b - 2 * w), rel=1e-6)
    sent = (p - 1) * 2 * one(terms, "send") / v if name != "zb_h1" else 0.0
    assert told - sent == pytest.approx(timeline.bubble, rel=1e-6)
    held = max(timeline.held) / v
    first = memory_of(j, columns_of([layout]))
    assert one(first, "held") == pytest.approx(held)


def test_parameters_are_those_of_the_models() -> None:
    for config in (
        DecoderConfig(**SMALL, num_key_value_heads=2, intermediate_size=48, qk_norm=True),
        plan_memory.LLAMA,
        DecoderConfig.from_hf(
            {
                "model_type": "gpt2",
                "vocab_size": 64,
                "n_embd": 32,
                "n_layer": 4,
                "n_head": 4,
                "n_positions": 16,
            }
        ),
    ):
        real = sum(p.numel() for p in Decoder(config).parameters())
        assert read_model(config).parameters == real
    sizes = {
        "gpt3-175b": 174.6,
        "llama3-405b": 405.9,
        "llama3-8b": 8.03,
        "deepseek-v3": 671.0,
        "gpt-1t": 1008.0,
    }
    for name, billions in sizes.items():
        assert read_model(name).parameters / 1e9 == pytest.approx(billions, rel=0.002)
    assert read_model("deepseek-v3").active_parameters / 1e9 == pytest.approx(37, rel=0.02)
    assert all(read_model(name).name == name for name in MODELS)


def test_messages_and_products() -> None:
    ring = lambda n, near: ring_time(8e9, n, near, 240e9, 20e9, 0.0, 0.0)
    assert ring(8, 8) == pytest.approx(7 / 8 * 8e9 / 240e9)
    assert ring(16, 8) == pytest.approx(15 / 16 * 8e9 / 160e9)  # eight adapters of 20 GB/s
    assert ring(4, 1) == pytest.approx(3 / 4 * 8e9 / 20e9)
    latency = ring_time(0.0, 16, 8, 1.0, 1.0, 1e-6, 1e-5)
    assert latency == pytest.approx(7e-6 + 1e-5)
    full = product_time(128 * 108, 256, 4096, 1e14, 1e15, 108, 2)
    assert full == pytest.approx(2 * 128 * 108 * 256 * 4096 / 1e14)
    one_more = product_time(128 * 109, 256, 4096, 1e14, 1e15, 108, 2)
    assert one_more == pytest.approx(2 * full)  # a second wave for a single tile
    assert product_time(1, 4096, 4096, 1e18, 1e12, 108, 2) == pytest.approx(2 * 4096 * 4098 / 1e12)


def test_parts_add_up() -> None:
    for layout in (Layout(2, 4, 2, sp=True, n_microbatches=4), Layout(16, zero=3, recompute="full")):
        e = estimate(job(layout), layout)
        assert sum(e.time_parts.values()) == pytest.approx(e.step)
        assert all(part >= 0 for part in (*e.time_parts.values(), *e.memory_parts.values()))


def test_explained_formulas_give_the_values(found: Plan) -> None:
    layout = replace(found.best, recompute="full")
    lines = found.explain(layout).splitlines()
    scope = {**FUNCTIONS, **TIMES}
    checked = 0
    for head, formula, numbers in zip(lines, lines[1:], lines[2:]):
        if not (formula.startswith("    = ") and numbers.startswith("    = ")):
            continue
        told, unit = re.match(r"\w+ = ([-\d.e+]+) ?(\S*?)(:|$)", head).groups()[:2]
        scaled = float(told) * {"GB": 1e9, "MB": 1e6, "ms": 1e-3}.get(unit, 1.0)
        again = float(eval(numbers[6:], scope))
        assert again == pytest.approx(scaled, rel=0.02, abs=1e-9), head
        checked += 1
    assert checked > 60


# ------------------------------------------------------------------------------------------ memory


def test_memory_of_ranks() -> None:
    """A few of the layouts; `python tests/parallel/plan_memory.py` measures all of them, in half an hour."""
    rows = list(plan_memory.run(set(plan_memory.FEW), seconds(15 * len(plan_memory.FEW))))
    assert len(rows) == len(plan_memory.FEW)
    for row in rows:
        print(row)
        assert row["planned"] == pytest.approx(row["measured"], rel=0.1), row["layout"]


def test_there_are_thirty_layouts() -> None:
    layouts = [Layout(**given) for _, given in plan_memory.LAYOUTS]
    assert len({(n, each) for (n, _), each in zip(plan_memory.LAYOUTS, layouts)}) >= 30
    assert {each.ranks for each in layouts} == {2, 4, 8}


# ------------------------------------------------------------------------------------------ search


def test_175_billion_on_1024_in_time() -> None:
    began = time.monotonic()
    big = plan("gpt3-175b", 1024, "h100", "ndr400", batch_tokens=1536 * 2048)
    best = big.best
    took = time.monotonic() - began
    assert took < seconds(5), took
    assert len(big.memory) > 100_000 and best.ranks == 1024
    assert 0.3 < big.estimate().mfu < 0.7
    fits = big.order
    assert (np.diff(big.step[fits]) >= 0).all() and not big.fits[
        np.argmin(big.step * ~big.fits + big.fits * 1e9)
    ]


def test_best_first_and_none_missing(found: Plan) -> None:
    layouts = found.layouts
    assert len(set(layouts)) == len(layouts) == int(found.fits.sum())
    steps = [found.estimate(each).step for each in (layouts[0], layouts[len(layouts) // 2], layouts[-1])]
    assert steps == sorted(steps)
    for each in layouts[:: len(layouts) // 50]:
        assert each.dp * each.tp * each.pp * each.cp == 16
    kinds = {(each.schedule, each.zero, each.recompute) for each in layouts}
    assert {k[0] for k in kinds} == {"GPipe", "1F1B", "Interleaved1F1B", "ZBH1"}
    assert {k[1] for k in kinds} == {0, 1, 2, 3} and len({k[2] for k in kinds}) == 3


def test_only_what_is_asked_for() -> None:
    some = plan("gpt3-1.3b", 16, "a100", batch_tokens=2**18, tp=(2, 4), zero=1, recompute="none", cp=1)
    assert {each.tp for each in some.layouts} == {2, 4}
    assert {(each.zero, each.recompute, each.cp) for each in some.layouts} == {(1, "none", 1)}


def test_experts_are_spread() -> None:
    found = plan(
        "deepseek-v3", 256, "h200", program=Program("fp8"), tp=1, cp=1, schedule="1F1B", micro_batch=1
    )
    assert max(each.ep for each in found.layouts) > 8
    e = found.estimate(next(each for each in found.layouts if each.ep > 8))
    assert e.time_parts["experts"] > 0


def test_table_and_scaling(found: Plan) -> None:
    table = found.table(3)
    assert len(table.splitlines()) == 6 and str(found.best) in table
    points = found.scaling([1, 16, 64, 96])
    assert [n for n, _ in points] == [1, 16, 64, 96]
    e = dict(points)[64]
    assert e is not None and e.layout.ranks == 64
    assert "devices the share of peak goes from" in found.scaling_sentence(points)


def test_pictures(found: Plan, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    points = found.scaling([16, 64])
    draw(found, tmp_path / "all.svg", points=points)
    assert "extrapolation" in (tmp_path / "all.svg").read_text()
    draw(found, tmp_path / "memory.png", "memory")
    assert (tmp_path / "memory.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(PlanError, match="svg or"):
        draw(found, tmp_path / "a.pdf")
    with pytest.raises(PlanError, match="time, memory, scaling"):
        draw(found, tmp_path / "a.svg", "bars")


def test_parallelize_takes_a_layout() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList(nn.Sequential(nn.Linear(8, 8), nn.Tanh()) for _ in range(4))

        def forward(self, x: wt.Tensor) -> wt.Tensor:
            for layer in self.layers:
                x = layer(x)
            return x

    x, y = wt.randn(2, 8, 8, generator=wt.Generator().manual_seed(3))

    def trained(layout: Layout) -> list[float]:
        def rank() -> list[float]:
            wt.manual_seed(1)
            model = Net()
            layers = list(model.layers) if layout.pp > 1 else None
            mine = parallelize(model, layout, loss_fn=nn.functional.mse_loss, layers=layers)
            optimizer = mine.optimizer(optim.SGD, lr=0.1)
            at = dist.get_rank() % layout.dp
            rows = slice(at * 8 // layout.dp, (at + 1) * 8 // layout.dp)
            losses = []
            for _ in range(3):
                losses.append(mine.step(x[rows], target=y[rows]).item())
                optimizer.step()
                optimizer.zero_grad()
            return losses

        return dist.simulate(layout.ranks, rank)[0]

    alone = trained(Layout())
    assert alone[2] < alone[0]
    for layout in (
        Layout(dp=2, zero=1, n_microbatches=2, micro_batch=2),
        Layout(pp=2, n_microbatches=4, micro_batch=2),
        Layout(dp=2, zero=3, micro_batch=4, recompute="full"),
        Layout(pp=2, n_microbatches=4, micro_batch=2, recompute="full"),
    ):
        assert trained(layout) == pytest.approx(alone, rel=1e-5), layout
    with pytest.raises(PlanError, match="selective"):
        parallelize(Net(), Layout(recompute="selective"), loss_fn=nn.functional.mse_loss)
    best = plan("gpt3-1.3b", 16, "a100", batch_tokens=2**18, **PARALLELIZE).best
    assert best.arguments()["n_microbatches"] == best.n_microbatches


# --------------------------------------------------------------------------------------- bad input


@pytest.mark.parametrize(
    "change, what",
    [
        ({"tp": 3, "dp": 2}, "6 ranks, and there are 8"),
        ({"tp": 0}, "tp to be a whole number"),
        ({"dp": 1, "pp": 8, "chunks": 5, "schedule": "Interleaved1F1B"}, "24 layers by pp=8"),
        ({"dp": 8, "n_microbatches": 3}, "a batch of 8 sequences"),
        ({"dp": 8, "ep": 2}, "0 experts by ep=2"),
        ({"dp": 8, "zero": 4}, "zero to be 0"),
        ({"pp": 8, "chunks": 3, "n_microbatches": 8}, "one stage on a rank"),
        ({"dp": 8, "recompute": "some"}, "recompute to be one of none"),
    ],
)
def test_layouts_that_do_not_divide(change: dict[str, Any], what: str) -> None:
    eight = plan("gpt3-1.3b", 8, "a100", batch_tokens=8 * 2048)
    with pytest.raises(PlanError, match=what):
        eight.estimate(replace(Layout(), **change))


def test_a_model_that_fits_nowhere() -> None:
    with pytest.raises(
        PlanError, match=r"fits in no layout of 8 a100.*GB a device.*; use \d+ of them"
    ) as error:
        plan("gpt3-175b", 8, "a100", batch_tokens=2**18)
    enough = int(re.search(r"use (\d+) of them", str(error.value))[1])
    assert plan("gpt3-175b", enough, "a100", batch_tokens=2**18).best.ranks == enough
    with pytest.raises(PlanError, match="no layout divides"):
        plan("gpt3-1.3b", 7, "a100", batch_tokens=8 * 2048)


def test_wrong_arguments(tmp_path: Path) -> None:
    cases: list[tuple[Any, str]] = [
        (lambda: read_gpu("h101"), "did you mean h100"),
        (lambda: read_network("token ring"), "unknown network"),
        (lambda: read_model("gpt5"), "unknown model"),
        (lambda: read_model(3), "got int"),
        (lambda: read_model("missing.py:model"), "no file missing.py"),
        (lambda: plan("gpt3-1.3b", 0), "gpus to be a whole number"),
        (lambda: plan("gpt3-1.3b", 8, batch_tokens=float("nan")), "batch_tokens"),
        (lambda: plan("gpt3-1.3b", 8, batch_tokens=2047), "fewer than the 2048 of one sequence"),
        (lambda: plan("gpt3-1.3b", 8, price=-1), "price"),
        (lambda: plan("gpt3-1.3b", 8, width=2), "unknown field 'width'"),
        (lambda: plan("gpt3-1.3b", 8, tp=0), "tp to be a whole number"),
        (lambda: plan("gpt3-1.3b", 8, schedule="2F2B"), "schedule to be one of"),
        (lambda: plan("gpt3-1.3b", 8, efficiency=1.5), "efficiency"),
        (lambda: Program("int3"), "unknown precision"),
        (lambda: read_gpu({"peak": 1e12}), "missing"),
        (lambda: read_gpu({"like": "h100", "memory": -1}), "memory to be a number above 0"),
        (lambda: read_gpu({"like": "h100", "colour": 1}), "unknown colour"),
        (lambda: read_network({"algorithm": "mesh"}), "ring, tree or auto"),
    ]
    for call, what in cases:
        with pytest.raises(PlanError, match=what):
            call()
    files = {
        "a.json": ("{", "malformed"),
        "b.json": ("[1]", "expected a table"),
        "c.toml": ("= 1", "malformed|no TOML"),
    }
    for name, (text, what) in files.items():
        (tmp_path / name).write_text(text)
        with pytest.raises(PlanError, match=what):
            read_gpu(str(tmp_path / name))
    with pytest.raises(PlanError, match="cannot be read"):
        read_gpu(str(tmp_path / "none.json"))


def test_files(tmp_path: Path) -> None:
    mine = tmp_path / "mine.json"
    mine.write_text('{"gpu": {"like": "h100", "memory": 96e9}, "network": {"bandwidth": 1e9, "node": 4}}')
    assert read_gpu(str(mine)).memory == 96e9 and read_gpu(str(mine)).peak == GPUS["h100"].peak
    assert read_network(str(mine)).node == 4
    if sys.version_info >= (3, 11):
        toml = tmp_path / "mine.toml"
        toml.write_text('like = "a100"\nprice = 1.0\n')
        assert read_gpu(str(toml)) == replace(GPUS["a100"], name="mine", price=1.0)
    script = tmp_path / "net.py"
    script.write_text(
        f"from warptape.models import DecoderConfig\ndef model():\n    return DecoderConfig(**{SMALL})\n"
    )
    assert read_model(f"{script}:model").layers == 4
    with script.open("a") as out:
        out.write(
            "class Callable:\n    config = model()\n    def __call__(self, x): ...\nmade = Callable()\n"
        )
    assert read_model(f"{script}:made").layers == read_model(f"{script}:Callable").layers == 4
    with pytest.raises(PlanError, match="defines no other"):
        read_model(f"{script}:other")
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"model_type": "llama", "vocab_size": 64}))
    with pytest.raises(PlanError, match=r"config\.json: .*hidden_size"):
        read_model(str(config))


def test_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    some = ["--model", "gpt3-1.3b", "--gpus", "8", "--gpu", "a100", "--batch-tokens", "131072", "--top", "2"]
    assert main([*some, "--only", "tp=2", "--explain"]) == 0
    out = capsys.readouterr().out
    assert "best first" in out and "peak_forward = " in out
    wrong = [
        (["--gpu", "abacus"], "unknown gpu 'abacus'"),
        (["--only", "tp"], "FIELD=VALUE"),
        (["--only", "tp=two"], "whole numbers"),
        (["--top", "0"], "at least 1"),
        (["--model", "gpt-1t"], "fits in no layout"),
    ]
    for more, what in wrong:
        assert main([*some, *more]) == 2
        shown = capsys.readouterr()
        assert what in shown.err and shown.err.count("\n") == 1
    command = [sys.executable, "-m", "warptape.parallel.plan", "--model", "gpt9", "--gpus", "8"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=seconds(60), check=False)
    assert done.returncode == 2 and done.stderr.count("\n") == 1 and "unknown model" in done.stderr
