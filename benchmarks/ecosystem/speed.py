"""Times of the libraries' work under PyTorch and warptape: `speed.py PYTORCH WARPTAPE [row ..]`.

Both arguments are Pythons. Each row is a function marked `@row`: it runs in a process of its own, under
either runtime, and returns seconds, one number per repetition. Processes of the two runtimes alternate, on
two threads. The ratio is the median of the rounds' ratios of medians. `--rounds N` and `--json FILE` do
what they say; `--write` puts the rows into benchmarks/results/ecosystem.md.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

PAGE = Path(__file__).resolve().parents[1] / "results" / "ecosystem.md"
HEAD = """# Libraries under PyTorch and warptape

Written by `python benchmarks/ecosystem/speed.py PYTORCH WARPTAPE --write`: each row in processes of its own,
alternately under either runtime, two threads. Seconds are medians, ratio warptape's over PyTorch's (median of
the rounds; in brackets the worst round).

"""
START = time.perf_counter()
THREADS = "2"
_ROWS: dict[str, tuple[Callable[[], list[float]], float]] = {}


def row(*, target: float) -> Callable[[Callable[[], list[float]]], Callable[[], list[float]]]:
    """Marks a row; `target` is the time wanted, over PyTorch's."""

    def mark(run: Callable[[], list[float]]) -> Callable[[], list[float]]:
        _ROWS[run.__name__] = run, target
        return run

    return mark


def timed(work: Callable[[], object], repeats: int, warmup: int = 1) -> list[float]:
    """Seconds of each of `repeats` calls, after some that do not count."""
    times = []
    for i in range(warmup + repeats):
        start = time.perf_counter()
        work()
        if i >= warmup:
            times.append(time.perf_counter() - start)
    return times


@row(target=0.5)
def import_and_first_step() -> list[float]:
    """import transformers, a tiny Llama and its first training step, from the interpreter's first line on."""
    import torch
    import transformers as hf

    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4}
    model = hf.LlamaForCausalLM(hf.LlamaConfig(vocab_size=96, **sizes))
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    ids = torch.randint(96, (2, 12))
    model(input_ids=ids, labels=ids).loss.backward()
    optimizer.step()
    return [time.perf_counter() - START]


@row(target=0.6)
def generate_110m() -> list[float]:
    """64 tokens, greedy, dynamic cache, of a Llama with 110 million parameters, in float32."""
    import torch
    import transformers as hf

    sizes = {
        "hidden_size": 768,
        "intermediate_size": 2048,
        "num_hidden_layers": 12,
        "num_attention_heads": 12,
    }
    config = hf.LlamaConfig(vocab_size=16000, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    torch.manual_seed(0)
    model = hf.LlamaForCausalLM(config).eval()
    ids = torch.randint(3, 16000, (1, 16))
    options = {"max_new_tokens": 64, "min_new_tokens": 64, "do_sample": False}
    return timed(lambda: model.generate(ids, **options), 3)


@row(target=0.8)
def trainer_step_bert_base() -> list[float]:
    """A step of Trainer with BERT-base, 4 sequences of 128 tokens, AdamW, in float32."""
    import torch
    import transformers as hf

    torch.manual_seed(0)
    model = hf.BertForMaskedLM(hf.BertConfig(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0))
    ids = torch.randint(3, 30000, (64, 128))
    rows = [{"input_ids": one, "labels": one} for one in ids]
    moments = []

    class Clock(hf.TrainerCallback):
        def on_step_end(self, args, state, control, **more):
            moments.append(time.perf_counter())

    with tempfile.TemporaryDirectory() as folder:
        options = {
            "max_steps": 6,
            "save_strategy": "no",
            "report_to": [],
            "use_cpu": True,
            "disable_tqdm": True,
        }
        args = hf.TrainingArguments(folder, per_device_train_batch_size=4, **options)
        hf.Trainer(model, args, train_dataset=rows, callbacks=[Clock()]).train()
    return [b - a for a, b in itertools.pairwise(moments[1:])]


@row(target=0.5)
def lightning_epoch() -> list[float]:
    """An epoch of lightning_epoch.py's small convolutional net."""
    from lightning_epoch import lightning_epoch as run

    return run()


def measure(python: str, name: str) -> list[float]:
    """A row's seconds in a process of its own."""
    names = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "WARPTAPE_NUM_THREADS")
    environment = {**os.environ, **dict.fromkeys(names, THREADS), "HF_HUB_OFFLINE": "1"}
    command = [python, os.path.abspath(__file__), "--run", name]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode:
        raise RuntimeError(f"{name} under {python}:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.rsplit("\n", 2)[-2])


def compare(pytorch: str, warptape: str, name: str, rounds: int) -> dict[str, object]:
    """Both runtimes' medians, and the median of the rounds' ratios."""
    ours, theirs = [], []
    for i in range(rounds):
        both = [(pytorch, theirs), (warptape, ours)]
        for python, times in both if i % 2 else reversed(both):
            times.append(statistics.median(measure(python, name)))
    ratios = sorted(a / b for a, b in zip(ours, theirs))
    target = _ROWS[name][1]
    ratio = statistics.median(ratios)
    return {
        "row": name, "warptape": statistics.median(ours),
        "pytorch": statistics.median(theirs), "ratio": ratio,
        "worst": ratios[-1], "target": target, "met": ratio <= target,
    }  # fmt: skip


def page(rows: list[dict[str, object]], rounds: int) -> str:
    """benchmarks/results/ecosystem.md."""
    lines = [HEAD, "| row | warptape | PyTorch | ratio | target |\n| --- | --- | --- | --- | --- |\n"]
    for r in rows:
        ratio = f"{r['ratio']:.2f} ({r['worst']:.2f})"
        seconds = f"{r['warptape']:.3f} s | {r['pytorch']:.3f} s"
        end = f"{r['target']}{'' if r['met'] else ', missed'}"
        lines.append(f"| {r['row']} | {seconds} | {ratio} | {end} |\n")
    load, date = os.getloadavg()[0], time.strftime("%Y-%m-%d")
    machine = f"{os.cpu_count()} processors, {platform.machine()}, load {load:.1f} at the end"
    return "".join([*lines, f"\n{rounds} rounds on {date}; {machine}.\n"])


def main() -> None:
    if sys.argv[1:2] == ["--run"]:
        print(json.dumps(_ROWS[sys.argv[2]][0]()))
        return
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("pytorch", help="a Python that has PyTorch and the libraries")
    parser.add_argument("warptape", help="one that has warptape, its wheel named torch and the libraries")
    parser.add_argument("rows", nargs="*", help=", ".join(_ROWS))
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--write", action="store_true", help="write the page of results")
    parser.add_argument("--json", help="write the rows there")
    args = parser.parse_args()
    results = []
    for name in args.rows or _ROWS:
        found = compare(args.pytorch, args.warptape, name, args.rounds)
        results.append(found)
        times = f"{found['warptape']:.3f} s, PyTorch {found['pytorch']:.3f} s"
        end = f"target {found['target']}, {'met' if found['met'] else 'missed'}"
        print(f"{name}: {times}, ratio {found['ratio']:.2f} (worst {found['worst']:.2f}), {end}", flush=True)
    if args.write:
        PAGE.write_text(page(results, args.rounds))
    if args.json:
        with open(args.json, "w") as file:
            json.dump(results, file, indent=1)


if __name__ == "__main__":
    main()
