"""What ranks allocate and what the planner says, layout by layout; each rank is a process.

    python tests/parallel/plan_memory.py [NUMBERS of LAYOUTS; without any all]

Prints a line for each layout: bytes that the rank with most had at its peak, bytes planned, the difference;
ends with an error where one is 10 % or more.
"""

from __future__ import annotations

import gc
import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import warptape as wt
import warptape.distributed as dist
import warptape.nn.functional as F
from warptape import nn, optim
from warptape.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from warptape.models import Decoder, DecoderConfig
from warptape.parallel import parallelize
from warptape.parallel.plan import Layout, ModelShape, Program, gpt, memory_of_rank, read_model
from warptape.parallel.plan.shape import COLUMN, ROW, WHOLE, Product
from warptape.parallel.tensor import (
    ColwiseParallel,
    PrepareModuleInput,
    PrepareModuleOutput,
    Replicate,
    RowwiseParallel,
    SequenceParallel,
    Shard,
    VocabParallelCrossEntropy,
    divide,
)

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "examples"))
import train_gpt
from gpt_layouts import PLAN, Start, plan_of

LAYERS, HEADS, WIDTH, TOKENS = 8, 8, 256, 128
EXPERTS, WIDE = 8, 384  # of the model with experts, of which a token takes two
CPU = Program(
    "fp32", overhead=0.0, regather=False
)  # what this package does on CPUs, with parameters in float32
LLAMA = DecoderConfig(
    vocab_size=256,
    hidden_size=WIDTH,
    num_hidden_layers=LAYERS,
    num_attention_heads=HEADS,
    num_key_value_heads=4,
    intermediate_size=704,
    max_position_embeddings=TOKENS,
)
# (model, axes and the rest of a layout); dp * tp * pp ranks
LAYOUTS: list[tuple[str, dict[str, Any]]] = [
    ("gpt", {"dp": 2}),
    ("gpt", {"dp": 2, "zero": 1, "n_microbatches": 2}),
    ("gpt", {"dp": 2, "zero": 2, "micro_batch": 2}),
    ("gpt", {"dp": 2, "zero": 3, "micro_batch": 4}),
    ("gpt", {"tp": 2, "micro_batch": 4}),
    ("gpt", {"tp": 2, "sp": True, "micro_batch": 4}),
    ("gpt", {"pp": 2, "n_microbatches": 4, "schedule": "GPipe"}),
    ("gpt", {"pp": 2, "n_microbatches": 4, "micro_batch": 2}),
    ("gpt", {"dp": 2, "recompute": "full", "micro_batch": 8}),
    ("llama", {"dp": 2, "micro_batch": 4}),
    ("llama", {"tp": 2, "micro_batch": 4, "n_microbatches": 2}),
    ("llama", {"dp": 4, "zero": 3, "micro_batch": 2}),
    ("llama", {"dp": 2, "tp": 2, "zero": 2, "micro_batch": 2}),
    ("llama", {"tp": 4, "micro_batch": 4}),
    ("gpt", {"dp": 4, "zero": 1, "micro_batch": 2}),
    ("gpt", {"dp": 4, "zero": 3, "micro_batch": 4, "recompute": "full"}),
    ("gpt", {"dp": 2, "tp": 2, "micro_batch": 4}),
    ("gpt", {"dp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 2}),
    ("gpt", {"tp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 4}),
    ("gpt", {"pp": 4, "n_microbatches": 8, "micro_batch": 2}),
    ("gpt", {"pp": 4, "n_microbatches": 4, "micro_batch": 2, "schedule": "GPipe"}),
    ("gpt", {"pp": 4, "n_microbatches": 8, "micro_batch": 2, "schedule": "ZBH1"}),
    ("gpt", {"pp": 4, "n_microbatches": 8, "micro_batch": 2, "schedule": "Interleaved1F1B", "chunks": 2}),
    ("gpt", {"tp": 4, "sp": True, "micro_batch": 8}),
    ("gpt", {"dp": 8, "zero": 1, "micro_batch": 2}),
    ("gpt", {"dp": 8, "zero": 3, "micro_batch": 2}),
    ("gpt", {"dp": 2, "tp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 2}),
    ("gpt", {"dp": 2, "tp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 4, "zero": 1}),
    ("gpt", {"dp": 4, "pp": 2, "n_microbatches": 4, "micro_batch": 2, "recompute": "full"}),
    ("llama", {"dp": 4, "tp": 2, "zero": 3, "micro_batch": 2, "n_microbatches": 2}),
    ("gpt", {"tp": 8, "micro_batch": 8}),
    ("gpt", {"dp": 2, "tp": 4, "sp": True, "micro_batch": 8, "recompute": "full"}),
    ("gpt", {"dp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 2, "schedule": "ZBH1", "zero": 3}),
    ("gpt", {"dp": 2, "pp": 2, "n_microbatches": 4, "micro_batch": 2, "schedule": "ZBH1", "zero": 2}),
    ("gpt", {"tp": 2, "micro_batch": 8, "recompute": "full"}),
    ("gpt", {"tp": 4, "micro_batch": 8, "recompute": "full"}),
    ("experts", {"dp": 2, "ep": 2, "micro_batch": 2}),
    ("experts", {"dp": 2, "ep": 2, "micro_batch": 4, "zero": 3}),
    ("experts", {"dp": 2, "ep": 2, "micro_batch": 8, "recompute": "full"}),
    ("experts", {"dp": 4, "ep": 2, "micro_batch": 2, "zero": 1}),
    ("experts", {"dp": 2, "tp": 2, "ep": 2, "micro_batch": 4}),
    ("experts", {"dp": 2, "pp": 2, "ep": 2, "micro_batch": 2, "n_microbatches": 4}),
]
FEW = (1, 3, 5, 7)  # of two ranks, of each kind one: for the tests that always run


def gpt_plan(sequence: bool) -> dict[str, Any]:
    """The example's plan, with the sequence split between the layers or not."""
    if not sequence:
        return PLAN
    gather = PrepareModuleInput(input_layouts=Shard(1), desired_input_layouts=Replicate())
    split = PrepareModuleOutput(output_layouts=Replicate(), desired_output_layouts=Shard(0))
    out, into = RowwiseParallel(output_layouts=Shard(1)), ColwiseParallel(input_layouts=Shard(1))
    return {
        "tokens": out,
        "positions": split,
        "layers.*.norm?": SequenceParallel(),
        "layers.*.attention": [gather, divide("heads", width_of_input=True)],
        "layers.*.attention.qkv": ColwiseParallel(parts=3),
        "layers.*.attention.out": out,
        "layers.*.mlp.0": into,
        "layers.*.mlp.2": out,
        "norm": SequenceParallel(),
        "head": into,
    }


def llama_plan() -> dict[str, Any]:
    """Of warptape.models' decoder."""
    size, keys = LLAMA.num_attention_heads * LLAMA.head_dim, LLAMA.num_key_value_heads * LLAMA.head_dim
    return {
        "embed_tokens": RowwiseParallel(),
        "layers.*.self_attn": divide("heads", "kv_heads"),
        "layers.*.self_attn.qkv_proj": ColwiseParallel(parts=(size, keys, keys)),
        "layers.*.self_attn.o_proj": RowwiseParallel(),
        "layers.*.mlp.gate_up_proj": ColwiseParallel(parts=2),
        "layers.*.mlp.down_proj": RowwiseParallel(),
        "lm_head": ColwiseParallel(),
    }


def shape_of(name: str) -> ModelShape:
    if name == "llama":
        return read_model(LLAMA)
    width = WIDE if name == "experts" else WIDTH
    plain = gpt("gpt", LAYERS, width, HEADS, train_gpt.VOCABULARY, TOKENS)
    if name == "gpt":
        return plain
    hidden = 4 * width // 3
    products = (
        *plain.products[:2],
        Product("router", width, EXPERTS, WHOLE, LAYERS),
        Product("expert_up", width, 2 * hidden, COLUMN, LAYERS, expert=True),
        Product("expert_down", hidden, width, ROW, LAYERS, expert=True),
    )
    many = {"experts": EXPERTS, "top_k": 2, "expert_layers": LAYERS}
    return replace(plain, inner=2 * hidden, products=products, gated=True, **many)


def peak_of(name: str, layout: Layout) -> int:
    """Bytes that this rank has at most in a step, beyond what it had before."""
    gc.collect()
    before = wt._C._memory_stats()["allocated_bytes"]
    wt.manual_seed(0)
    mesh = layout.mesh()
    model: Any
    if name == "gpt":
        model = train_gpt.GPT(LAYERS, HEADS, WIDTH, TOKENS)
        plan = gpt_plan(layout.sp)
    elif name == "experts":
        model = train_gpt.GPT(LAYERS, HEADS, WIDE, TOKENS, EXPERTS)
        plan = plan_of(model)
    else:
        model, plan = Decoder(LLAMA), llama_plan()
    measure = VocabParallelCrossEntropy(mesh["tp"]) if layout.tp > 1 else F.cross_entropy
    if layout.recompute == "full":
        for i, layer in enumerate(model.layers):
            model.layers[i] = checkpoint_wrapper(layer)
        plan = {k.replace("layers.*.", "layers.*._checkpoint_wrapped_module."): v for k, v in plan.items()}
    layers = [Start(model), *model.layers, nn.Sequential(model.norm, model.head)] if layout.pp > 1 else None
    stages = layout.pp * layout.chunks
    balance = [LAYERS // stages] * stages
    balance[0] += 1
    balance[-1] += 1
    parallel = parallelize(
        model,
        mesh,
        loss_fn=lambda out, target: measure(out.flatten(0, 1), target.flatten()),
        plan=plan if layout.tp > 1 else None,
        layers=layers,
        balance=balance if layers else None,
        **layout.arguments(),
    )
    del model, layers
    optimizer = parallel.optimizer(optim.AdamW, lr=1e-3)
    data = wt.randint(0, 256, (2, layout.micro_batch * layout.n_microbatches, TOKENS))
    for step in range(3):
        if step == 2:
            gc.collect()
            wt._C._reset_peak_memory()
        parallel.step(data[0], target=data[1])
        optimizer.step()
        optimizer.zero_grad()
    peak = wt._C._memory_stats()["peak_allocated_bytes"] - before
    del parallel, optimizer, data
    gc.collect()
    return int(peak)


def measure(wanted: set[int]) -> None:
    """On every rank of a job: the layouts of as many ranks. Rank 0 prints a line of JSON for each."""
    dist.init_process_group()
    world = dist.get_world_size()
    for i, (name, given) in enumerate(LAYOUTS):
        layout = Layout(**given)
        if layout.ranks != world or i not in wanted:
            continue
        peaks: list[Any] = [None] * world
        dist.all_gather_object(peaks, peak_of(name, layout))
        if dist.get_rank() == 0:
            told = memory_of_rank(shape_of(name), layout, TOKENS, CPU)["memory"]
            print(
                json.dumps({"layout": f"{name} {layout}", "measured": max(peaks), "planned": round(told)}),
                flush=True,
            )
    dist.destroy_process_group()


def run(wanted: set[int], limit: float) -> Iterator[dict[str, Any]]:
    """Measures, with as many processes as each layout has ranks, and gives each row as it is known. Raises
    RuntimeError with what the ranks said where they fail, or are not done after `limit` seconds a job."""
    for world in sorted({Layout(**LAYOUTS[i][1]).ranks for i in wanted}):
        command = [sys.executable, "-m", "warptape.distributed.run", f"--nproc-per-node={world}", __file__]
        command += [str(i) for i in sorted(wanted)]
        with tempfile.TemporaryFile("w+") as errors:
            job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=errors, text=True)
            timer = threading.Timer(limit, job.terminate)
            timer.start()
            assert job.stdout is not None
            try:
                yield from (json.loads(line[line.index("{") :]) for line in job.stdout if "{" in line)
                job.wait()
            finally:
                timer.cancel()
                if job.poll() is None:
                    job.terminate()
            if job.returncode:
                errors.seek(0)
                raise RuntimeError(f"the job of {world} ranks ended with {job.returncode}: {errors.read()}")


def main() -> None:
    wanted = {int(each) for each in sys.argv[1:]} or set(range(len(LAYOUTS)))
    if "RANK" in os.environ:
        return measure(wanted)
    print("| layout | measured, MB | planned, MB | difference |\n| --- | --- | --- | --- |")
    worst = 0.0
    for row in run(wanted, 1200):
        off = row["planned"] / row["measured"] - 1
        worst = max(worst, abs(off))
        here, told = row["measured"] / 1e6, row["planned"] / 1e6
        print(f"| {row['layout']} | {here:.1f} | {told:.1f} | {off:+.1%} |", flush=True)
    print(f"largest difference {worst:.1%}", file=sys.stderr)
    sys.exit(worst >= 0.1)


if __name__ == "__main__":
    main()
