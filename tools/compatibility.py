"""Writes docs/measurements/compatibility.md: which of PyTorch's public names are here, and how public
programs ran.

It runs with the installed warptape. PyTorch's names are those of python/warptape/torch/names.txt
(tools/torch_names.py), the programs' rows those of benchmarks/results/programs.json, which
benchmarks/programs/run.py --out writes, the counts of PyTorch's samples those of parity.json beside it, which
tools/parity.py --all writes, the libraries' rows those of ecosystem.json, which tools/ecosystem.py writes.
"""

from __future__ import annotations

import argparse
import functools
import json
import sys
import textwrap
import warnings
from pathlib import Path
from typing import Any

import pytorch_tests
import warptape
import warptape.utils.data
from warptape._missing import find, torch_names

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "benchmarks/programs"))
from _sources import SOURCES  # noqa: E402

OUT, RESULTS = ROOT / "docs" / "measurements" / "compatibility.md", ROOT / "benchmarks" / "results"
SHOWN = 40  # missing names per namespace

HEAD = """# What of PyTorch is here

Written by `python tools/compatibility.py`; do not edit. Names, arguments, defaults and errors are those of
PyTorch 2.13; `docs/explanation/differences.md` lists what is known to differ, `docs/reference/ops.md` every
op.

`python -m warptape.torch.coverage script.py` says which names a program uses and which are missing.
"""

PROGRAMS = """
## Programs

Public programs, unmodified, under `python -m warptape.torch` and under PyTorch 2.13: the same weights, data
made by the driver, sizes for a small machine, dropout off, 20 steps (`benchmarks/programs/run.py`; it takes a
folder with clones). Difference is the largest relative difference of a loss, sensitivity that of PyTorch with
itself when each weight begins one unit in the last place off, ratio warptape's time per step over PyTorch's.
Where a program has its sizes in its source (gpt.py, BERT) they are replaced as it is read; for the models
without a script of their own (GPT-2, mamba, whisper, ResNet18, UNet, mlp-mixer) the driver has the loop.
Some take smaller steps than their authors', for with those a difference in the last place grows within 20
steps, in PyTorch as here: the learning rate is 1e-5 in fast_neural_style and ResNet18, 1e-7 in UNet, and 0.5
in the Transformer language model, which at these sizes overflows with its 20; BERT has a smaller model.

| program | difference | sensitivity | ratio | warptape | PyTorch |
| --- | --- | --- | --- | --- | --- |
"""

MORE_PROGRAMS = """
More of them, by kind, with one thread each, in CPU time, in one run in each library on a machine with other
work: a ratio near 1 may be on either side of it. In programs of several ranks the losses of all ranks
count, and weights are drawn, not copied. The models of libraries of layers (vit-pytorch,
Time-Series-Library) and of repositories whose own loop wants a GPU, a data set or packages beside it are
trained by a plain loop of the driver. Learning rates are smaller than the authors' in the GANs' and
diffusion's convolutional nets, PointNet and the segmentation nets. Tasks of reinforcement learning are the
driver's (`_stubs.py`). FSDP2's example leaves the values of its blocks to what memory held before; the
driver draws them.

| program | difference | sensitivity | ratio | warptape | PyTorch |
| --- | --- | --- | --- | --- | --- |
"""

LIBRARIES = """
## Libraries

Unmodified from pip, each row in an environment without PyTorch but with the wheel that `python -m
warptape.torch.wheel` makes, and in one with PyTorch 2.13 (`python tools/ecosystem.py`; the cases are
`benchmarks/ecosystem/*_cases.py`, with tiny models and random weights). A case agrees where both return the
same: text, integers and the places of nan and infinity exactly, numbers within the case's tolerance of the
result's largest number (1e-4 where it names none). Cases that fail under PyTorch, too, do not count. Ratio is
warptape's CPU time for the cases that agree over PyTorch's, each run once with one thread, imports inside of
cases included: a hint, no measurement.

| libraries | cases | agree | largest difference | ratio |
| --- | --- | --- | --- | --- |
"""

SAMPLES = """
## PyTorch's samples

PyTorch's own samples of its ops, modules and optimizers (`op_db` without sparse, quantised, jiterator and
internal entries, `module_db`, `optim_db`), run here and in PyTorch by `python tools/parity.py --all`. An
entry is wholly right where values, dtypes, shapes, strides, views, gradients, second gradients, `out=`,
errors, the method and the in-place form all agree; `tests/parity/expected_failures.txt` lists what does not.

| list | entries | here | wholly right | entries with a difference in |
| --- | --- | --- | --- | --- |
"""

CASES = """
## PyTorch's tests of function transforms

The cases of its test files that pass there and use what is here, run by `python tools/eager_transforms.py`:

| file | cases | counted | pass |
| --- | --- | --- | --- |
"""

TESTS = """
## PyTorch's test files

Tests of PyTorch's own files that pass there on a CPU, and how many of them pass here, run by `python
tools/pytorch_tests.py`. A test is left out on purpose for what `LEFT_OUT` there names. Files with a part
ran only so much of their tests, chosen by a hash of the names. The files and their helpers are those of a
public copy of PyTorch 2.4, but `test_torch`, `test_foreach`, `test_modules`, `test_nn`, `test_optim`,
`test_indexing`, `test_view_ops`, `test_type_promotion`, `test_serialization`, `test_distributions` and
`test_vmap` are those of a copy of 2.7; the rows of `test_autograd`, `test_dataloader`, `nn/test_init` and
`nn/test_pruning` are older, of a fork of 2026 for another device, its words for that device put back to
PyTorch's. What does not pass under PyTorch 2.13 is not
counted. Measured on a loaded machine, where a
test that takes too long counts as failed; rows that were not run again after the last mends have the counts
of their last run.

"""

NAMES = """
## Names

PyTorch's public names that have a docstring or are constants, by namespace: {here} of {total} are here.

| namespace | here | missing |
| --- | --- | --- |
"""


@functools.cache
def objects() -> dict[str, list[Any]]:
    """By class, objects of it: what PyTorch's classes have, objects alone may have here."""
    ones = warptape.ones(2, 2)
    sparse = [ones.to_sparse(), ones.to_sparse_csr(), ones.to_sparse_csc()]
    return {
        "torch.Tensor": sparse,
        "torch.nn.Module": [warptape.nn.Module()],
        "torch.optim.Optimizer": [warptape.optim.SGD([ones], 0.1)],
        "torch.utils.data.DataLoader": [warptape.utils.data.DataLoader([0])],
    }


def has(path: str) -> bool:
    try:
        find(path)
    except (AttributeError, ImportError):
        owner, _, name = path.rpartition(".")
        return any(hasattr(one, name) for one in objects().get(owner, ()))
    return True


def time_text(ms: float) -> str:
    return f"{ms * 1e3:.3g} us" if ms < 1 else f"{ms:.3g} ms" if ms < 1e3 else f"{ms / 1e3:.3g} s"


def program_rows(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        if "error" in row:
            lines.append(f"| {row['title']} | does not run: {row['error'].replace('|', '/')} | | | | |")
            continue
        times = " | ".join(time_text(row[f"{library}_ms"]) for library in ("warptape", "torch"))
        found = f"{row['difference']:.1e} | {format(row['own'], '.1e') if row['own'] else '-'}"
        lines.append(f"| {row['title']} | {found} | {row['ratio']:.2f} | {times} |")
    return "\n".join(lines) + "\n"


def all_program_rows(rows: list[dict[str, Any]]) -> str:
    """The rows with two threads, those with one, and where the programs come from."""
    first, more = ([r for r in rows if (r["threads"] == 1) == one] for one in (False, True))
    text = program_rows(first) + (
        "\nMeasured on a quiet machine (two cores of an AMD EPYC, Zen 4) with two threads each, in elapsed\n"
        "time, in one run in each library; mamba-minimal and mlp-mixer in two, actor_critic in three.\n"
    )
    if more:
        dates = sorted({row["date"] for row in more})
        text += f"{MORE_PROGRAMS}{program_rows(more)}\nMeasured on {', '.join(dates)}.\n"
    commits = ", ".join(f"{repository} {commit}" for repository, commit in SOURCES.values())
    lines = textwrap.wrap(f"The repositories and their commits: {commits}.", 110, break_on_hyphens=False)
    return text + "\n" + "\n".join(lines) + "\n"


def library_rows(rows: list[dict[str, Any]]) -> str:
    """A script's libraries each, then a line for each case that does not agree."""
    lines, failures = [], []
    for row in rows:
        title = ", ".join(f"{name} {version}" for name, version in row["versions"].items()) or row["library"]
        counted = [case for case in row["cases"].values() if case["status"] != "no peer"]
        agreeing = [case["difference"] for case in counted if case["status"] == "agrees"]
        largest = f"{max(agreeing):.1e}" if agreeing else "-"
        ratio = f"{row['ratio']:.2f}" if "ratio" in row else "-"
        found = f"{len(counted)} | {len(agreeing)} | {largest} | {ratio}"
        lines.append(f"| {title} | {found} |")
        failures += [f"- {row['library']}: {row['error']}"] if "error" in row else []
        for name, case in row["cases"].items():
            if case["status"] != "agrees":
                text = case.get("text") or f"difference {case['difference']:.1e}"
                failures.append(f"- {row['library']} `{name}`, {case['status']}: {text[:160]}")
    dates = ", ".join(sorted({row["date"] for row in rows if "date" in row}))
    return "\n".join([*lines, "", f"Run on {dates}.", "", *(failures or ["Every case agrees."])]) + "\n"


def sample_rows(rows: list[dict[str, Any]]) -> str:
    lines = []
    for row in rows:
        failing = [f"{aspect} {count}" for aspect, count in row["failing"].items() if count]
        here = row["entries"] - row["failing"]["missing"]
        lines.append(f"| {row['list']} | {row['entries']} | {here} | {row['right']} | {', '.join(failing)} |")
    return "\n".join(lines) + "\n"


def case_rows(rows: dict[str, Any]) -> str:
    lines = [f"| {name} | {r['cases']} | {r['counted']} | {r['passed']} |" for name, r in rows.items()]
    return "\n".join(lines) + "\n"


def results(name: str) -> Any:
    path = RESULTS / name
    return json.loads(path.read_text()) if path.exists() else []


def name_rows() -> tuple[str, int, int]:
    lines, here, total = [], 0, 0
    for space, names in torch_names().items():
        missing = [name for name in names if not has(f"{space}.{name}")]
        here, total = here + len(names) - len(missing), total + len(names)
        shown = ", ".join(missing[:SHOWN])
        rest = f" and {len(missing) - SHOWN} more" if len(missing) > SHOWN else ""
        text = "all" if len(missing) == len(names) and len(names) > 1 else shown + rest
        lines.append(f"| {space} | {len(names) - len(missing)} of {len(names)} | {text} |")
    return "\n".join(lines) + "\n", here, total


def text() -> str:
    """The page."""
    warnings.simplefilter("ignore")
    table, here, total = name_rows()
    samples = SAMPLES + sample_rows(results("parity.json"))
    names = NAMES.format(here=here, total=total) + table
    cases = CASES + case_rows(results("eager_transforms.json") or {})
    if files := results("pytorch_tests.json"):
        cases += f"{TESTS}{pytorch_tests.table(files)}\n\n{pytorch_tests.left_out_table(files)}\n"
    libraries = f"{LIBRARIES}{library_rows(results('ecosystem.json'))}"
    programs = PROGRAMS + all_program_rows(results("programs.json"))
    return HEAD + libraries + programs + samples + cases + names


def main() -> int:
    """Writes the page, or compares it with what would be written."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--check", action="store_true", help="only say whether the page is out of date, with exit code 1 then"
    )
    if not parser.parse_args().check:
        OUT.write_text(text())
        print(f"{OUT.relative_to(ROOT)} written")
        return 0
    current = OUT.exists() and OUT.read_text() == text()
    print("" if current else f"{OUT.relative_to(ROOT)} is out of date: python tools/compatibility.py")
    return int(not current)


if __name__ == "__main__":
    sys.exit(main())
