"""What is kept and what is computed again: minimal cuts of small networks against all cuts, programs
as text before and after the pass, and random programs, which must compute the same in no more memory."""

from __future__ import annotations

import random
from itertools import product
from typing import Any

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._C import _infinite_capacity as INFINITE
from warptape._C import _min_cut as min_cut
from warptape._C import _Program as Program

from .test_compile import peak_of
from .test_program_text import after, lines
from .test_rows import same

# ---- minimal cuts ------------------------------------------------------------------------------------------

Edges = list[tuple[int, int, int]]


def capacity(edges: Edges, sink: Any) -> int:
    """Of the cut with these nodes on the sink's side."""
    return sum(c for a, b, c in edges if not sink[a] and sink[b])


def all_cuts(nodes: int, edges: Edges) -> list[tuple[int, tuple[bool, ...]]]:
    """Between node 0 and node 1."""
    sides = ((False, True, *rest) for rest in product((False, True), repeat=nodes - 2))
    return [(capacity(edges, side), side) for side in sides]


def random_network(seed: int) -> tuple[int, Edges]:
    rng = random.Random(seed)
    nodes = rng.randint(2, 8)
    count = rng.randint(0, 3 * nodes)
    big = rng.choice((3, 100, 1 << 40))
    edges = [(rng.randrange(nodes), rng.randrange(nodes), rng.randint(0, big)) for _ in range(count)]
    return nodes, edges


def test_minimal_cuts_are_those_of_all_cuts() -> None:
    several = 0
    for seed in range(600):
        nodes, edges = random_network(seed)
        found, sink = min_cut(nodes, edges, 0, 1)
        cuts = all_cuts(nodes, edges)
        least = min(c for c, _ in cuts)
        assert found == least == capacity(edges, sink), (seed, edges)
        # Of the minimal cuts the nearest: what is on the sink's side in all of them.
        minimal = [side for c, side in cuts if c == least]
        assert sink == [all(side[k] for side in minimal) for k in range(nodes)], (seed, edges)
        several += len(minimal) > 1
    assert several > 100


def test_infinite_edges_are_not_cut() -> None:
    edges = [(0, 2, INFINITE), (2, 3, 5), (2, 4, 3), (3, 1, INFINITE), (4, 3, INFINITE)]
    assert min_cut(5, edges, 0, 1) == (8, [False, True, False, True, True])
    assert min_cut(3, [(0, 2, INFINITE), (2, 1, INFINITE)], 0, 1)[0] == INFINITE
    # What flows one way may have to flow back: by 0-2-3-1 nothing is left for 0-3 and 2-1.
    assert min_cut(4, [(0, 2, 1), (0, 3, 1), (2, 3, 1), (2, 1, 1), (3, 1, 1)], 0, 1)[0] == 2


def test_long_chains() -> None:
    n = 20000
    chain = [(k, k + 1, 2 + (k != 7777)) for k in range(2, n)]
    found, sink = min_cut(n + 1, [(0, 2, INFINITE), (n, 1, INFINITE), *chain], 0, 1)
    assert found == 2 and not sink[7777] and sink[7778]


@pytest.mark.parametrize(
    ("nodes", "edges", "ends"),
    [(2, [(0, 2, 1)], (0, 1)), (2, [(0, 1, -1)], (0, 1)), (2, [], (0, 2)), (2, [], (1, 1)), (0, [], (0, 1))],
)
def test_what_is_no_network(nodes: int, edges: Edges, ends: tuple[int, int]) -> None:
    with pytest.raises(ValueError, match="graph: "):
        min_cut(nodes, edges, *ends)


# ---- programs ----------------------------------------------------------------------------------------------

CASES = {
    # Two values of 4 bytes an element that are made from one of 2, which nobody else keeps.
    "narrow": (
        """
        %0: 2048 bytes in
        %9: 4 bytes out
        %1:bfloat16[1024] = op roll(%0:bfloat16[1024])
        %2[1024] = copy(%1:bfloat16[1024])
        %3[1024] = gelu(%2[1024])
        %4[4096] = op tile(%3[1024])
        %5[4096] = exp(%4[4096])
        %6[1024] = op take(%5[4096])
        %7[1024] = op cross(%6[1024], %3[1024])
        %9[] = op dot(%7[1024], %2[1024])
        """,
        """
        %0: 2048 bytes in
        %9: 4 bytes out
        %10: recomputes %2
        %11: recomputes %3
        %1:bfloat16[1024] = op roll(%0:bfloat16[1024])
        %2[1024] = copy(%1:bfloat16[1024])
        %3[1024] = gelu(%2[1024])
        %4[4096] = op tile(%3[1024])
        %5[4096] = exp(%4[4096])
        %6[1024] = op take(%5[4096])
        %10[1024] = copy(%1:bfloat16[1024])
        %11[1024] = gelu(%10[1024])
        %7[1024] = op cross(%6[1024], %11[1024])
        %9[] = op dot(%7[1024], %10[1024])
        """,
    ),
    # Backward reads the end of a chain, and its beginning is kept: what is between runs again.
    "chain": (
        """
        %0: 4096 bytes in out
        %9: 4 bytes out
        %1[1024] = mul(%0[1024], number)
        %2[1024] = tanh(%1[1024])
        %3[1024] = mul(%2[1024], number)
        %4[4096] = op tile(%3[1024])
        %5[4096] = exp(%4[4096])
        %9[] = op dot(%5[4096], %3[1024])
        """,
        """
        %0: 4096 bytes in out
        %9: 4 bytes out
        %10: recomputes %1
        %11: recomputes %2
        %12: recomputes %3
        %1[1024] = mul(%0[1024], number)
        %2[1024] = tanh(%1[1024])
        %3[1024] = mul(%2[1024], number)
        %4[4096] = op tile(%3[1024])
        %5[4096] = exp(%4[4096])
        %10[1024] = mul(%0[1024], number)
        %11[1024] = tanh(%10[1024])
        %12[1024] = mul(%11[1024], number)
        %9[] = op dot(%5[4096], %12[1024])
        """,
    ),
    # A norm, with its statistics, which are read later than its result.
    "norm": (
        """
        %0: 4096 bytes in out
        %9: 64 bytes out
        %1[16, 64], %2[16], %3[16] = kernel rows [16, 1, 7] layer_norm(%0[16, 64])
        %4[16, 64] = op roll(%1[16, 64])
        %5[16, 64] = exp(%4[16, 64])
        %6[16, 64] = op cross(%5[16, 64], %1[16, 64])
        %9[16] = op norm_backward(%6[16, 64], %2[16], %3[16])
        """,
        """
        %0: 4096 bytes in out
        %9: 64 bytes out
        %10: recomputes %1
        %11: recomputes %2
        %12: recomputes %3
        %1[16, 64], %2[16], %3[16] = kernel rows [16, 1, 7] layer_norm(%0[16, 64])
        %4[16, 64] = op roll(%1[16, 64])
        %5[16, 64] = exp(%4[16, 64])
        %10[16, 64], %11[16], %12[16] = kernel rows [16, 1, 7] layer_norm(%0[16, 64])
        %6[16, 64] = op cross(%5[16, 64], %10[16, 64])
        %9[16] = op norm_backward(%6[16, 64], %11[16], %12[16])
        """,
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_programs(name: str) -> None:
    before, expected = map(lines, CASES[name])
    assert after("recompute", before, least_recomputed_bytes=1) == expected
    assert Program.parse(expected).text() == expected


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("narrow", "%2[1024] = copy(", "%2[1024] = op dropout("),  # what draws may not run twice
        ("chain", "= tanh(", "= op cumsum("),
        ("chain", "%5[4096] = exp(%4[4096])", "%5[4096] = exp(%4[4096])\n%0[1024] = neg(%4[1024])"),
        ("chain", "%9: 4 bytes out", "%3: 4096 bytes out\n%9: 4 bytes out"),  # kept for others anyway
        ("norm", "kernel rows [16, 1, 7] ", "kernel "),  # a kernel that is not by rows may be slow
        ("norm", "%9: 64 bytes out", "%2: 64 bytes out\n%9: 64 bytes out"),  # others see the mean
    ],
)
def test_programs_that_stay(name: str, old: str, new: str) -> None:
    before, changed = CASES[name][0], CASES[name][0].replace(old, new)
    assert changed != before
    # "narrow" may still drop one of its values.
    text = after("recompute", lines(changed), least_recomputed_bytes=1)
    assert "recomputes %2" not in text and ("recomputes" not in text or name == "narrow")


def test_a_chain_that_backward_reads_backwards() -> None:
    """Computing all of it at once would need what keeping it does: every second value runs again, alone."""
    n = 8
    text = ["%0: 4096 bytes in out", f"%{3 * n}: 4096 bytes out"]
    text += [f"%{k + 1}[1024] = tanh(%{k}[1024])" for k in range(n)]
    text += [f"%{n + 1}[1024] = op roll(%{n}[1024])"]
    text += [f"%{n + 1 + k}[1024] = op back(%{n + k}[1024], %{n + 1 - k}[1024])" for k in range(1, n)]
    text += [f"%{3 * n}[1024] = op roll(%{2 * n}[1024])"]
    program = Program.parse(lines("\n".join(text)))
    before = most_in_use(program)
    program.run_pass("recompute", 1)
    assert before == 4096 * (n + 2) and most_in_use(program) <= 4096 * (n // 2 + 3)


# ---- random programs ---------------------------------------------------------------------------------------


def most_in_use(program: Any) -> int:
    """The most bytes of memories that the program makes, each step being one instruction."""
    order = [program.instructions[i] for (i,) in program.steps]
    spans: dict[int, tuple[int, int]] = {}
    for place, (_, _, read, written) in enumerate(order):
        for memory, _ in (*read, *written):
            spans[memory] = (spans.get(memory, (place, place))[0], place)
    use = [0] * len(order)
    for memory, (first, last) in spans.items():
        size, comes_in, stays, _ = program.memories[memory]
        # What only the program holds goes after its last use.
        for place in range(0 if comes_in else first, len(order) if stays else last + 1):
            use[place] += size
    return max(use, default=0)


def results(program: Any) -> dict[int, Any]:
    """What others see afterwards: terms of the instructions' names and of what came in."""
    holds: dict[int, Any] = {
        m: ("in", m) for m, (_, comes_in, _, _) in enumerate(program.memories) if comes_in
    }
    known: dict[Any, int] = {}
    names: dict[int, int] = {}  # by storage: under which it was last written
    for (number,) in program.steps:
        name, _, read, written = program.instructions[number]
        inputs = []
        for memory, _ in read:
            storage = program.memories[memory][3]
            storage = memory if storage is None else storage
            assert names.get(storage, memory) == memory, "its contents are gone"
            inputs.append(holds.get(memory, "garbage"))
        for k, (memory, _) in enumerate(written):
            storage = program.memories[memory][3]
            names[memory if storage is None else storage] = memory
            term = (name, k, *inputs)
            holds[memory] = known.setdefault(term, len(known))
    ids = {v: k for k, v in known.items()}

    def expand(x: Any, depth: int = 6) -> Any:
        if not isinstance(x, int) or not depth:
            return x if not isinstance(x, int) else ids[x][0]
        return tuple(expand(y, depth - 1) if k > 1 else y for k, y in enumerate(ids[x]))

    return {m: expand(holds[m]) for m, (_, _, out, _) in enumerate(program.memories) if out and m in holds}


def random_text(seed: int) -> str:
    """Forward and backward of a kind: values of different sizes, in-place updates, norms, outputs."""
    rng = random.Random(seed)
    rows = 16
    widths = {0: rng.choice((8, 64))}
    declared = {0: f"%0: {4 * rows * widths[0]} bytes in" + rng.choice(("", " out"))}
    body: list[str] = []

    def operand(m: int) -> str:
        return f"%{m}:float32[{rows}, {widths[m]}]" if widths[m] > 1 else f"%{m}:float32[{rows}]"

    for _ in range(rng.randint(4, 40)):
        recent = list(widths)[-rng.choice((2, 6, 60)) :]
        x = rng.choice(recent)
        new = len(widths)
        kind = rng.choice(("one", "one", "two", "op", "op", "norm", "in place"))
        partners = [m for m in widths if widths[m] == widths[x] and widths[m] > 1]
        if kind == "in place" and widths[x] > 1:
            body.append(f"{operand(x)} = add({operand(x)}, {operand(rng.choice(partners))})")
            continue
        widths[new] = widths[x]
        if kind == "two" and partners:
            body.append(f"{operand(new)} = mul({operand(x)}, {operand(rng.choice(partners))})")
        elif kind == "norm" and widths[x] > 1:
            widths[new + 1] = 1
            body.append(f"{operand(new)}, {operand(new + 1)} = kernel rows [16, 1, 3] rms_norm({operand(x)})")
        elif kind == "op":
            widths[new] = rng.choice((8, 64, widths[x]))
            ys = rng.sample(list(widths)[:-1], min(len(widths) - 1, rng.randint(0, 2)))
            body.append(f"{operand(new)} = op mix{new}({', '.join(map(operand, [x, *ys]))})")
        else:
            body.append(f"{operand(new)} = {rng.choice(('tanh', 'exp', 'gelu'))}({operand(x)})")
        if rng.random() < 0.1:
            declared[new] = f"%{new}: {4 * rows * widths[new]} bytes out"
    last = len(widths) - 1
    declared.setdefault(last, f"%{last}: {4 * rows * widths[last]} bytes out")
    return "\n".join([*(declared[m] for m in sorted(declared)), *body]) + "\n"


def test_random_programs_compute_the_same_in_less_memory(pytestconfig: pytest.Config) -> None:
    lowered = repeated = 0
    for seed in range(4 * pytestconfig.getoption("--programs")):
        program = Program.parse(random_text(seed))
        for name in ("remove_dead", "schedule")[: seed % 3]:
            program.run_pass(name)
        before, want, size = most_in_use(program), results(program), len(program.instructions)
        program.run_pass("recompute", 1)
        assert results(program) == want, seed
        now = most_in_use(program)
        assert now <= before, seed
        lowered += now < before
        repeated += len(program.instructions) - size
        for name in ("fuse", "fuse_epilogues", "fuse_prologues"):  # each checks what it made
            program.run_pass(name, least_row_bytes=1, least_epilogue_bytes=1, least_prologue_bytes=1)
    assert lowered and repeated > lowered


# ---- training steps ----------------------------------------------------------------------------------------


class Wide(nn.Module):  # type: ignore[misc]
    """A norm that computes in float32 on bfloat16 rows, a product, a bias and GELU by hand, dropout."""

    def __init__(self, dropout: float) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(64, 256, bias=False), nn.Linear(256, 64, bias=False)
        self.bias, self.scale = nn.Parameter(torch.randn(256)), nn.Parameter(torch.randn(64))
        self.dropout = dropout
        self.up, self.down = self.up.bfloat16(), self.down.bfloat16()

    def forward(self, x: Any) -> Any:
        wide = x.float()
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-6) * self.scale
        hidden = F.gelu(self.up(normed.bfloat16()).float() + self.bias).bfloat16()
        return x + self.down(F.dropout(hidden, self.dropout))


@pytest.mark.parametrize("dropout", [0.0, 0.25])
def test_training_step_of_bfloat16(dropout: float) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(*(Wide(dropout) for _ in range(3)))
    x = torch.randn(256, 64).bfloat16()

    def step() -> list[Any]:
        torch.manual_seed(1)
        loss = model(x).float().square().mean()
        loss.backward()
        out = [loss, *(p.grad for p in model.parameters())]
        model.zero_grad()
        return out

    expected = step()
    peaks = {}
    for recomputes in (False, True):
        compiled = torch.compile(step)
        compiled.region.adaptive, compiled.region.recomputes = False, recomputes
        for _ in range(2):
            assert all(same(a, b) for a, b in zip(compiled(), expected, strict=True))
        assert (compiled.explain().recomputed > 0) == recomputes
        peaks[recomputes] = peak_of(compiled)
    assert peaks[True] < 0.8 * peaks[False]


def test_norms_run_again() -> None:
    torch.manual_seed(0)
    layers = [nn.Sequential(nn.LayerNorm(64), nn.Linear(64, 64)) for _ in range(4)]
    model, x = nn.Sequential(*layers), torch.randn(512, 64)

    def step() -> list[Any]:
        loss = model(x).square().mean()
        loss.backward()
        out = [loss, *(p.grad for p in model.parameters())]
        model.zero_grad()
        return out

    expected = step()
    compiled = torch.compile(step)
    compiled.region.adaptive = False
    for _ in range(2):
        assert all(same(a, b) for a, b in zip(compiled(), expected, strict=True))
    (program,) = compiled.explain().programs
    assert program.count(" layer_norm(") > 4 and compiled.explain().recomputed >= 2


def test_what_reads_the_old_name_of_a_storage_stays_before_it_is_computed_again() -> None:
    """Also where nothing wrote it before, so that moving the read would save memory."""
    text = lines("""
        %0: 16 bytes in out
        %3: 16 bytes out
        %4: recomputes %1
        %5[4] = exp(%0[4])
        %2[4] = neg(%1[4])
        %4[4] = exp(%5[4])
        %3[4] = add(%4[4], %2[4])
        """)
    assert after("schedule", text) == Program.parse(text).text()
