"""Writes the tables of docs/guides/scale.md from the planner and the published figures; draws its pictures.

python docs/figures/scale.py            tables and pictures
python docs/figures/scale.py --tables   tables alone
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import Any

from warptape.parallel import plan as planner
from warptape.parallel.plan import EFFICIENCY, Cluster, Estimate, Job, Layout, ModelShape, PlanError, Program
from warptape.parallel.plan.layout import RECOMPUTE
from warptape.parallel.plan.search import check_layout

ROOT = Path(__file__).resolve().parents[2]
PAGE = ROOT / "docs" / "guides" / "scale.md"
PUBLISHED = json.loads((ROOT / "tests" / "parallel" / "published_times.json").read_text())
Row = tuple[str, float, float]  # what, the paper's figure, the planner's


def flops_of_megatron(model: ModelShape, sequence: int) -> float:
    """Operations for a token as Megatron-LM's and MT-NLG's papers count them (equation 3): all scores, also
    those that are masked, and layers' forward twice, for they are recomputed."""
    layers, width = model.layers, model.width
    bracket = 1 + sequence / (6 * width) + model.vocabulary / (16 * layers * width)
    return 96 * layers * width**2 * bracket


def fastest(job: Job, layouts: list[Layout]) -> Estimate:
    """Of those that fit: micro-batches and chunks that a paper does not print."""
    found = []
    for layout in layouts:
        try:
            check_layout(job, layout)
        except PlanError:
            continue
        found.append(planner.estimate(job, layout))
    return min((e for e in found if e.fits), key=lambda e: e.step)


def candidates(
    layout: Layout, per_copy: int, layers: int, sizes: tuple[int, ...], interleaved: bool
) -> list[Layout]:
    """The layout with each size of micro-batch and each number of chunks."""
    out = []
    for b in sizes:
        if per_copy % b:
            continue
        n = per_copy // b
        out.append(replace(layout, micro_batch=b, n_microbatches=n))
        if interleaved and layout.pp > 1 and n % layout.pp == 0:
            for v in range(2, -(-layers // layout.pp) + 1):
                out.append(replace(out[-1], chunks=v, schedule="Interleaved1F1B"))
    return out


def megatron(row: dict[str, Any], efficiency: float = EFFICIENCY) -> float:
    """TFLOP/s of a device."""
    model = planner.gpt(f"{row['billions']} B", row["layers"], row["hidden"], row["heads"])
    return _megatron(model, row["gpus"], row["tp"], row["pp"], row["batch"], True, efficiency)


def _megatron(
    model: ModelShape, gpus: int, tp: int, pp: int, batch: int, interleaved: bool, efficiency: float
) -> float:
    cluster = Cluster(gpus, planner.read_gpu("a100"), planner.read_network("hdr200"), efficiency)
    job = Job(model, cluster, planner.MEGATRON_2021, 2048, batch)
    dp = gpus // tp // pp
    layout = Layout(dp, tp, pp, recompute="full")
    e = fastest(job, candidates(layout, batch // dp, model.layers, (1, 2, 4, 8), interleaved))
    return flops_of_megatron(model, 2048) * batch * 2048 / e.step / gpus / 1e12


def mt_nlg(row: dict[str, Any]) -> float:
    """TFLOP/s of a device; DeepSpeed's pipeline is not interleaved."""
    return _megatron(planner.read_model("mt-nlg-530b"), row["gpus"], 8, 35, 1920, False, EFFICIENCY)


def llama3(row: dict[str, Any]) -> float:
    """TFLOP/s of a device; operations are those of the model, with half of the scores."""
    model = planner.read_model("llama3-405b")
    cluster = Cluster(row["gpus"], planner.read_gpu("h100"), planner.read_network("roce400"))
    batch = row["dp"] * row["batch_per_dp"]
    job = Job(model, cluster, Program("bf16"), row["sequence"], batch)
    layout = Layout(row["dp"], row["tp"], row["pp"], row["cp"], sp=True, zero=1)
    several = candidates(layout, row["batch_per_dp"], model.layers, (1, 2, 4), True)
    if row["sequence"] == 8192:  # the paper says that nothing is recomputed then, and its schedule holds less
        e = min((planner.estimate(job, each) for each in several), key=lambda e: e.step)
    else:
        e = fastest(job, [replace(each, recompute=again) for each in several for again in RECOMPUTE])
    return model.flops_per_token(row["sequence"]) * batch * row["sequence"] / e.step / row["gpus"] / 1e12


def deepseek_v3(row: dict[str, Any]) -> float:
    """Thousands of device hours for 10^12 tokens."""
    model = planner.read_model("deepseek-v3")
    cluster = Cluster(row["gpus"], planner.read_gpu("h800"), planner.read_network("ndr400"))
    # Its report, section 3: messages to experts are hidden behind computation on 20 multiprocessors, and a
    # token goes to 4 nodes at most.
    program = Program("fp8", overlap_experts=True, router_nodes=4, communication_cores=20)
    job = Job(model, cluster, program, row["sequence"], row["batch"])
    dp = row["gpus"] // row["pp"]
    layout = Layout(dp, 1, row["pp"], ep=row["ep"], schedule="DualPipe", zero=1, recompute="selective")
    e = fastest(job, candidates(layout, row["batch"] // dp, model.layers, (1, 2, 4), False))
    return 1e12 / e.tokens_per_second * row["gpus"] / 3600 / 1e3


def _mega(r: dict[str, Any]) -> str:
    return f"{r['billions']} B, {r['gpus']}, {r['tp']}, {r['pp']}"


def _llama(r: dict[str, Any]) -> str:
    return f"{r['gpus']}, {r['tp']}, {r['cp']}, {r['pp']}, {r['sequence']}"


def _gpus(r: dict[str, Any]) -> str:
    return str(r["gpus"])


TABLES: dict[str, tuple[str, Callable[[dict[str, Any]], str], str, Callable[..., float]]] = {
    "megatron": ("parameters, GPUs, tp, pp", _mega, "tflops", megatron),
    "llama3": ("GPUs, tp, cp, pp, tokens", _llama, "tflops", llama3),
    "mt_nlg": ("GPUs", _gpus, "tflops", mt_nlg),
    "deepseek_v3": ("GPUs", _gpus, "hours", deepseek_v3),
}


@lru_cache
def rows_of(name: str) -> list[Row]:
    """Each row of a paper's table with the planner's figure."""
    _, say, key, estimate = TABLES[name]
    return [(say(row), row[key], estimate(row)) for row in PUBLISHED[name]["rows"]]


def errors_of(name: str) -> list[float]:
    """Of each row that nothing was fitted on, as a share of the paper's figure."""
    return [told / paper - 1 for _, paper, told in rows_of(name)[name == "megatron" :]]


def table_of(name: str) -> str:
    """As it stands in the page."""
    unit = {"tflops": "TFLOP/s", "hours": "1000 h"}[TABLES[name][2]]
    lines = [PUBLISHED[name]["source"] + ".", "", f"| {TABLES[name][0]} | paper, {unit} | planner | error |"]
    lines.append("| --- | --- | --- | --- |")
    for i, (what, paper, told) in enumerate(rows_of(name)):
        fitted = " (fitted)" if name == "megatron" and i == 0 else ""
        lines.append(f"| {what} | {paper:g} | {told:.1f} | {told / paper - 1:+.1%}{fitted} |")
    errors = [abs(e) for e in errors_of(name)]
    return "\n".join([*lines, "", f"mean error {100 * sum(errors) / len(errors):.1f} %"])


def with_tables(page: str) -> str:
    """The page with its tables as the planner makes them now."""
    for name in TABLES:
        block = re.compile(rf"(<!-- table {name} -->\n).*?(<!-- end -->)", re.DOTALL)
        assert block.search(page), f"{PAGE.name} has no place for the table {name}"
        page = block.sub(lambda m, name=name: m[1] + table_of(name) + "\n" + m[2], page)
    found, points = scaling()
    lines = ["| devices | tokens/s | MFU | layout |", "| --- | --- | --- | --- |"]
    for count, e in points:
        what = (
            "| fits in no layout |"
            if e is None
            else f"{e.tokens_per_second:.0f} | {e.mfu:.1%} | {e.layout} |"
        )
        lines.append(f"| {count:,} | {what}" if e else f"| {count:,} | | {what}")
    text = "\n".join([*lines, "", found.scaling_sentence(points)])
    return re.sub(
        r"(<!-- scaling -->\n).*?(<!-- end -->)", lambda m: m[1] + text + "\n" + m[2], page, flags=re.DOTALL
    )


@lru_cache
def scaling() -> tuple[planner.Plan, list[tuple[int, Estimate | None]]]:
    """GPT-3 on 1,024 devices, and on others."""
    found = planner.plan("gpt3-175b", 1024, "h100", batch_tokens=3.2e6)
    return found, found.scaling()


def main() -> None:
    """Writes and draws."""
    PAGE.write_text(with_tables(PAGE.read_text()))
    for name in TABLES:
        print(name, table_of(name).rsplit("\n", 1)[1])
    if "--tables" in sys.argv:
        return
    found, points = scaling()
    for what in ("time", "memory", "scaling"):
        planner.draw(found, ROOT / "docs" / "figures" / f"scale_{what}.svg", what, points)
    print(found.scaling_sentence(points))


if __name__ == "__main__":
    main()
