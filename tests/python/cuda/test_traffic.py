"""Bytes that kernels move, counted access by access on the emulated device (Note [Traffic] in
tests/emulator/traffic.cpp), beside what tools/estimated_rows.py says that they must move. Needs a build with
-DWARPTAPE_EMULATED_RACES=ON, whose compiler shows accesses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[3]
sys.path[:0] = [str(ROOT / "tools"), str(ROOT / "tests")]
from emulated_kernels import SECTOR, Launch, read_traffic, too_much  # noqa: E402
from estimated_rows import ROWS, K, M, Row  # noqa: E402
from time_limits import seconds  # noqa: E402

pytestmark = pytest.mark.cuda


class Small(NamedTuple):
    """A row in small: which part of the row's work it is, and a call that does it after one that prepares."""

    share: float
    prepare: Callable[[], Any]
    run: Callable[[Any], object]


def small_rows() -> dict[str, Small]:
    import warptape as torch
    from warptape._C import _private as ops
    from warptape.nn import functional as F

    def drawn(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(*shape).to(dtype).to("cuda")

    def leaf(*shape: int) -> Any:
        return drawn(*shape).requires_grad_()

    n, rows, many = 64 * K, 256, 2 * K  # of many rows partial sums of weights are little
    weights = [drawn(K, dtype=torch.float32).requires_grad_() for _ in range(2)]
    targets = torch.arange(8).to("cuda")
    table = drawn(500, 768, dtype=torch.float32)

    def prepared_step() -> Any:
        parameters = [drawn(s, dtype=torch.float32).requires_grad_() for s in (100_000, 777, 30_000)]
        optimizer = torch.optim.AdamW(parameters, fused=True)
        for p in parameters:
            p.grad = torch.ones_like(p)
        optimizer.step()
        return optimizer

    def then_backward(make: Callable[[], Any]) -> Callable[[], Any]:
        def prepare() -> Any:
            y = make()
            return y, torch.ones_like(y)

        return prepare

    def backward(pair: Any) -> None:
        pair[0].backward(pair[1])

    def layer_norm(x: Any) -> Any:
        return F.layer_norm(x, (K,), *weights)

    def rms_norm(x: Any) -> Any:
        return F.rms_norm(x, (K,), weights[0])

    def tanh_gelu(x: Any) -> Any:
        return F.gelu(x, approximate="tanh")

    def loss(x: Any) -> Any:
        return F.cross_entropy(x, targets)

    of_rows, of_many, of_loss, of_elements = rows / (64 * K), many / (64 * K), 8 / (32 * K), n / (256 * M)
    in_rows, leaf_rows, logits = (lambda: drawn(rows, K)), (lambda: leaf(rows, K)), (lambda: leaf(8, 50304))
    steps = 130_777 / 124_439_808
    return {
        "add": Small(of_elements, lambda: (drawn(n), drawn(n)), lambda p: p[0] + p[1]),
        "GELU (tanh)": Small(of_elements, lambda: drawn(n), tanh_gelu),
        "GELU (tanh), backward": Small(of_elements, then_backward(lambda: tanh_gelu(leaf(n))), backward),
        "sum along rows": Small(
            16 / (64 * K), lambda: drawn(16, 8 * K, dtype=torch.float32), lambda x: x.sum(1)
        ),
        "softmax, forward": Small(of_rows, in_rows, lambda x: x.softmax(-1)),
        "softmax, backward": Small(of_rows, then_backward(lambda: leaf_rows().softmax(-1)), backward),
        "layer norm, forward": Small(of_rows, in_rows, layer_norm),
        "layer norm, backward": Small(of_many, then_backward(lambda: layer_norm(leaf(many, K))), backward),
        "RMS norm, forward": Small(of_rows, in_rows, rms_norm),
        "RMS norm, backward": Small(of_many, then_backward(lambda: rms_norm(leaf(many, K))), backward),
        "cross entropy, forward": Small(of_loss, logits, loss),
        "cross entropy, backward": Small(of_loss, then_backward(lambda: loss(logits())), backward),
        "AdamW, fused": Small(steps, prepared_step, lambda optimizer: optimizer.step()),
        "norm of all gradients": Small(
            steps,
            lambda: [drawn(s, dtype=torch.float32) for s in (100_000, 777, 30_000)],
            lambda x: torch._foreach_norm(x, 2),
        ),
        "embedding": Small(
            256 / (32 * K), lambda: torch.arange(256).to("cuda"), lambda x: F.embedding(x, table)
        ),
        "packed linear, one row": Small(
            512 / (16 * K),
            lambda: (drawn(1, 4 * K), ops._pack_linear_weight(drawn(512, 4 * K))),
            lambda p: ops._packed_linear(p[0], p[1], 512),
        ),
    }


def main(out: Path) -> None:
    """Prints which lines of `out` each row wrote."""
    import warptape as torch

    def lines() -> int:
        torch.cuda.synchronize()
        return len(out.read_text().splitlines()) if out.exists() else 0

    written = {}
    for name, row in small_rows().items():
        made = row.prepare()
        first = lines()
        row.run(made)
        written[name] = (row.share, first, lines())
    print(json.dumps(written))


def claimed(row: Row) -> float:
    return sum(part.bytes for part in row.parts)


def bound_by_memory() -> list[Row]:
    """Rows whose operations are few for their bytes."""
    return [row for row in ROWS if all(part.operations <= 2 * part.bytes for part in row.parts)]


class Traffic(NamedTuple):
    claimed: float  # sectors of the row
    launches: list[Launch]


@pytest.fixture(scope="module")
def traffic(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Traffic]:
    out = tmp_path_factory.mktemp("traffic") / "launches"
    done = subprocess.run(
        [sys.executable, __file__, str(out)],
        env=os.environ | {"WARPTAPE_EMULATOR_TRAFFIC": str(out), "WARPTAPE_EMULATOR_RACES": "0"},
        capture_output=True,
        text=True,
        timeout=seconds(600),
        check=False,
    )
    assert done.returncode == 0, done.stderr
    launches = read_traffic(out) if out.exists() else []
    written = json.loads(done.stdout)
    if not any(launch.requests for launch in launches[slice(*written["add"][1:])]):
        missing = "no accesses are shown: not the emulated device, or built without WARPTAPE_EMULATED_RACES"
        (pytest.fail if "WARPTAPE_EMULATED_RACES" in os.environ else pytest.skip)(missing)
    return {
        row.name: Traffic(
            claimed(row) / SECTOR * written[row.name][0], launches[slice(*written[row.name][1:])]
        )
        for row in bound_by_memory()
    }


@pytest.mark.parametrize("name", [row.name for row in bound_by_memory()])
def test_a_kernel_moves_what_its_row_says(traffic: dict[str, Traffic], name: str) -> None:
    claimed, launches = traffic[name]
    moved = sum(launch.moved for launch in launches)
    print(f"{name}: {moved / claimed:.3f} of the row's bytes", *launches, sep="\n  ")
    assert not too_much(claimed, launches), launches
    assert moved >= claimed / 1.5, launches  # or not the row's work was done


if __name__ == "__main__":
    main(Path(sys.argv[1]))
