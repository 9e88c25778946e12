"""Prove the CUDA kernels of an installed warptape on a GPU, in order of risk: a process a step.

    python benchmarks/gpu_ladder.py --out ladder.jsonl             all steps, 15 s each
    python benchmarks/gpu_ladder.py --steps softmax,attention_own  some of them
    python benchmarks/gpu_ladder.py --step softmax                 one, in this process

A step calls a family of kernels forward and backward. Each result is compared with the CPU's in float64, must
hold no NaN though memory is filled with NaN before, and must have the same bits in three runs. A step that
hangs is killed, one that crashes ends alone: the others run. The file gets a line of JSON as soon as a step
ended. Exit code 1 if any step did not pass.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

#: Of the largest number of a result: a sum of some hundred products, rounded once.
TOLERANCES = {"float64": 1e-11, "float32": 2e-5, "float16": 4e-3, "bfloat16": 3e-2}
POISON = 64 << 20  # bytes


@dataclass(frozen=True)
class Check:
    """`call(device, cast)` computes a result, or a tuple, from inputs that it casts."""

    name: str
    call: Callable[[str, Callable[[Any], Any]], Any]
    dtype: str = "float32"
    exact: bool = False  # to the bit; else within the dtype's tolerance, times `loose`
    loose: float = 1.0


@dataclass(frozen=True)
class Step:
    build: Callable[[Any], Iterator[Check]]
    env: dict[str, str] = field(default_factory=dict)
    capability: tuple[int, int] = (8, 0)
    needs: str = ""  # a variable that must name a library


# ---- one process ----------------------------------------------------------------------------------------


def poison(wt: Any) -> None:
    """Leaves blocks of all sizes behind that hold NaN, which results must overwrite."""
    sizes = [1 << k for k in range(9, 27)]
    blocks = [wt.full((n // 4,), float("nan"), device="cuda") for n in sizes if n <= POISON]
    del blocks


def flat(result: Any) -> list[Any]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def error_of(got: Any, want: Any) -> float:
    """The largest difference, as a part of the largest wanted number; infinite where a NaN is not wanted."""
    got, want = got.detach().cpu(), want.detach()
    if tuple(got.shape) != tuple(want.shape):
        return float("inf")
    if not want.numel():
        return 0.0
    got, want = got.double(), want.double()
    if not bool((got.isfinite() == want.isfinite()).all()):
        return float("inf")
    difference = (got - want).where(want.isfinite(), want.new_zeros(())).abs().max().item()
    largest = want.where(want.isfinite(), want.new_zeros(())).abs().max().item()
    return difference / max(largest, 1e-30)


def bits_of(wt: Any, x: Any) -> Any:
    """Its bytes: NaN is equal to NaN, and 0 not to -0."""
    return x.contiguous().view(-1).view(wt.uint8)


def run_check(wt: Any, check: Check) -> dict[str, Any]:
    """Three runs on the GPU beside one in float64 on the CPU."""
    low = getattr(wt, check.dtype)

    def on_gpu(x: Any) -> Any:
        return x.to(low).to("cuda") if x.is_floating_point() else x.to("cuda")

    def on_cpu(x: Any) -> Any:
        return x.to(low).double() if x.is_floating_point() else x

    want = flat(check.call("cpu", on_cpu))
    runs = []
    for _ in range(3):
        poison(wt)
        wt.manual_seed(7)
        runs.append([x.detach().cpu() for x in flat(check.call("cuda", on_gpu))])
    worst = max((error_of(g, w) for g, w in zip(runs[0], want, strict=True)), default=0.0)
    same = all(wt.equal(bits_of(wt, a), bits_of(wt, b)) for run in runs[1:] for a, b in zip(run, runs[0]))
    limit = 0.0 if check.exact else TOLERANCES[check.dtype] * check.loose
    return {"name": check.name, "error": worst, "limit": limit, "ok": worst <= limit and same, "same": same}


def run_step(name: str) -> int:
    """Prints a line of JSON for each check, then one that says the step came to its end."""
    import warptape as wt
    from _gpu_ladder_steps import STEPS

    why = ""
    if (has := tuple(wt.cuda.get_device_capability())) < STEPS[name].capability:
        why = f"needs compute capability {STEPS[name].capability}, has {has}"
    elif (needs := STEPS[name].needs) and not os.environ.get(needs):
        why = f"{needs} names no library"
    if why:
        print(json.dumps({"skipped": why, "end": True}))
        return 0
    planted = dict(part.split("=") for part in os.environ.get("GPU_LADDER_PLANT", "").split(",") if part)
    if kind := planted.get(name):
        plant(kind, wt)
    wt.backends.cudnn.allow_tf32 = False
    wt.manual_seed(7)
    ok = True
    for check in STEPS[name].build(wt):
        start = time.perf_counter()
        found = run_check(wt, check) | {"seconds": round(time.perf_counter() - start, 3)}
        if planted.get(name) == "wrong":
            found |= {"error": 1.0, "ok": False}
        ok = ok and found["ok"]
        print(json.dumps(found), flush=True)
    wt.cuda.synchronize()
    print(json.dumps({"end": True}), flush=True)
    return 0 if ok else 1


def plant(kind: str, wt: Any) -> None:
    """A fault on purpose, by which the report is tried."""
    if kind == "hang":
        signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGTERM, signal.SIGINT])
        time.sleep(3600)
    if kind == "crash":
        os.kill(os.getpid(), signal.SIGSEGV)
    if kind == "sticky":  # an index outside of its tensor, found by the kernel
        wt.arange(4, device="cuda")[wt.tensor([9], device="cuda")].cpu()


# ---- all of them ----------------------------------------------------------------------------------------


def outcome(name: str, limit: float) -> dict[str, Any]:
    """Runs the step in a process of its own, and says how it ended."""
    from _gpu_ladder_steps import STEPS

    command = [sys.executable, "-X", "faulthandler", __file__, "--step", name]
    env = os.environ | {"WARPTAPE_LAUNCH_BLOCKING": "1"} | STEPS[name].env
    start = time.perf_counter()
    process = subprocess.Popen(
        command,
        env=env | {"GPU_LADDER_LIMIT": str(limit)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    hung = False
    try:
        out, said = process.communicate(timeout=limit)
    except subprocess.TimeoutExpired:
        hung = True
        os.killpg(process.pid, signal.SIGKILL)
        out, said = process.communicate()
    lines = [json.loads(line) for line in out.splitlines() if line.startswith("{") and line.endswith("}")]
    checks = [line for line in lines if "name" in line]
    bad = [c for c in checks if not c["ok"]]
    ended = any("end" in line for line in lines)
    status = "hung" if hung else "crashed" if process.returncode < 0 else "raised" if not ended else "passed"
    if status == "passed" and bad:
        status = "wrong"
    found = {"step": name, "status": status, "seconds": round(time.perf_counter() - start, 2)}
    if skipped := next((line["skipped"] for line in lines if "skipped" in line), None):
        return {"step": name, "status": "skipped", "said": skipped}
    found |= {"checks": len(checks), "failed": bad, "worst": max((c["error"] for c in checks), default=None)}
    if status not in ("passed", "wrong"):
        found |= {"code": process.returncode, "after": checks[-1]["name"] if checks else None}
        found["said"] = said[-1500:]
    return found


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--out", type=Path, help="file of JSON lines that is appended to")
    parser.add_argument("--steps", help="comma-separated names; default: all")
    parser.add_argument("--step", help="run this one in this process")
    parser.add_argument("--limit", type=float, default=15, help="seconds of a step")
    parser.add_argument("--budget", type=float, default=600, help="seconds of all; what is left is named")
    options = parser.parse_args()
    sys.path.insert(0, str(Path(__file__).resolve().parent))
    if options.step:
        if limit := float(os.environ.get("GPU_LADDER_LIMIT", 0)):  # what Python was doing when time ran out
            faulthandler.dump_traceback_later(max(limit - 1, 0.5))
        return run_step(options.step)
    from _gpu_ladder_steps import STEPS

    if importlib.util.find_spec("warptape") is None:
        print("gpu_ladder: warptape is not installed for this Python", file=sys.stderr)
        return 2
    end, bad = time.monotonic() + options.budget, 0
    for name in options.steps.split(",") if options.steps else STEPS:
        left = end - time.monotonic()
        found = (
            outcome(name, min(options.limit, left)) if left > 3 else {"step": name, "status": "no time left"}
        )
        bad += found["status"] not in ("passed", "skipped")
        line = json.dumps(found)
        print(f"{name:24s} {found['status']:8s} {found.get('seconds', 0):6.2f} s", flush=True)
        if options.out:
            with options.out.open("a") as file:
                file.write(line + "\n")
                file.flush()
                os.fsync(file.fileno())
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
