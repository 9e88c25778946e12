"""Programs as text: read back as they were written, refused with the line that is wrong, passes run on them,
each with an expected text that was written by hand, and the checks of verify() on one planted bug each."""

from __future__ import annotations

import random
import re
import threading
from pathlib import Path

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._C import _Program as Program

from .mutated_text import mutated, numbers_in, pieces
from .random_programs import World

PASSES = ("remove_dead", "layout", "schedule", "recompute", "fuse", "fuse_epilogues", "fuse_prologues")


def after(pass_name, text, **options):
    """The text of the program after one pass."""
    program = Program.parse(text)
    program.run_pass(pass_name, **options)
    return program.text()


def lines(text):
    """Without the indentation of a test's source, and with short names of float32 operands: %1[4]."""
    stripped = [line.strip() for line in text.strip().splitlines()]
    out, depth = [], 0
    for line in stripped:
        depth -= line == "}"
        out.append("  " * depth + re.sub(r"(%\d+)(?=\[)", r"\1:float32", line))
        depth += line.endswith("{")
    return "\n".join(out) + "\n"


def training_step():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.LayerNorm(16), nn.Linear(16, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x, target = torch.randn(32, 8), torch.randint(0, 4, (32,))

    def step():
        unused = x @ x.T  # noqa: F841
        loss = F.cross_entropy(F.avg_pool1d(model(x).bfloat16().float(), 1), target)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        return loss, (x[:, 1:] > 0).flip(0)

    return step


def programs_of(function, least=1):
    compiled = torch.compile(function)
    compiled.region.adaptive, compiled.region.least_recomputed_bytes = False, least
    # A thread of its own: each remembers which ops cannot wait, also from other tests.
    thread = threading.Thread(target=compiled)
    thread.start()
    thread.join()
    return compiled.region.programs()


def check_program(made, least):
    """Text and program are the same thing, before the passes and after each."""
    program = made["recorded"]()
    for pass_name in (None, *PASSES):
        if pass_name:
            program.run_pass(pass_name, least)
        text = program.text()
        program = Program.parse(text)  # so the next pass sees what the text says, and nothing else
        assert program.text() == text
    assert text == made["text"]


def test_texts_are_the_programs():
    (made,) = programs_of(training_step())
    assert made["removed"] == 1 and made["moved"] and made["fused"]
    check_program(made, 1)
    kinds = ("op linear(", "gelu(", "node AvgPool1DBackward0(", "sum_to_size(", "<float32>(", "number)")
    for part in (*kinds, "@backward", "dead ", " strides [", " offset 1", "fused {", "checked rows ["):
        assert part in made["text"], part
    assert "dead" not in made["recorded"]().text() and "fused {" not in made["recorded"]().text()


def test_random_programs_as_text(pytestconfig):
    found = 0
    for seed in range(pytestconfig.getoption("--programs") // 4):
        world = World(torch, seed)
        for made in programs_of(lambda world=world: world.run(20) and list(world.live)):
            check_program(made, 1)
            found += 1
    assert found


@pytest.mark.parametrize("file", ["csrc/graph/text/program_text.cpp", "docs/guides/compile.md"])
def test_examples_of_the_documentation(file):
    source = (Path(__file__).resolve().parents[2] / file).read_text()
    prefix = "//   " if file.endswith("cpp") else ""
    (text,) = re.findall(rf"(?m)^{prefix}%0: \d.*\n(?:{prefix}(?:%|dead|fused|\[| |}}).*\n)+", source)
    text = text.replace(prefix, "")
    assert Program.parse(text).text() == text and text.count("\n") > 7


def test_who_noted_an_instruction():
    def step(x, w):
        (x @ w).tanh().sum().backward()
        w.data.add_(w.grad)
        return w.grad

    x, w = torch.randn(3, 4), torch.randn(4, 2, requires_grad=True)
    (made,) = programs_of(lambda: step(x, w))
    recorded = [(name, backward) for name, backward, *_ in made["recorded"]().instructions]
    assert [backward for name, backward in recorded if name == "tanh_backward"] == [True]
    assert [backward for name, backward in recorded if name == "matmul"] == [False, True]
    assert recorded[-1] == ("add", False)
    # The same calls in and after a backward pass are two programs: forms tell them apart.
    (outside,) = programs_of(lambda: (x @ w.detach()).tanh())
    assert "@backward" not in outside["text"]


# ---- the passes --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            """
            %0: 16 bytes in
            %4: 16 bytes out
            %1[4] = exp(%0[4])
            %2[4] = neg(%1[4])
            %3[4] = op roll(%2[4])
            %4[4] = mul(%1[4], number)
            """,
            """
            %0: 16 bytes in
            %4: 16 bytes out
            %1[4] = exp(%0[4])
            dead %2[4] = neg(%1[4])
            dead %3[4] = op roll(%2[4])
            %4[4] = mul(%1[4], number)
            """,
            id="what only the dead read is dead",
        ),
        pytest.param(
            """
            %0: 16 bytes in
            %1[4] = exp(%0[4])
            %0[4] = add(%0[4], %1[4])
            %2[4] = neg(%0[4])
            """,
            """
            %0: 16 bytes in
            %1[4] = exp(%0[4])
            %0[4] = add(%0[4], %1[4])
            dead %2[4] = neg(%0[4])
            """,
            id="what is written in place is seen",
        ),
        pytest.param(
            """
            %0: 16 bytes in
            %3: 4 bytes out
            %1[4], %2[4] = op aminmax(%0[4])
            %3[] = op sum(%2[4])
            """,
            """
            %0: 16 bytes in
            %3: 4 bytes out
            %1[4], %2[4] = op aminmax(%0[4])
            %3[] = op sum(%2[4])
            """,
            id="one result of two is enough",
        ),
    ],
)
def test_remove_dead(before, expected):
    assert after("remove_dead", lines(before)) == lines(expected)


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            """
            %0: 4096 bytes in
            %3: 4 bytes out
            %4: 4 bytes out
            %1[1024] = exp(%0[1024])
            %2[1024] = neg(%0[1024])
            %3[] = op sum(%1[1024])
            %4[] = op sum(%2[1024])
            """,
            """
            %0: 4096 bytes in
            %3: 4 bytes out
            %4: 4 bytes out
            %1[1024] = exp(%0[1024])
            [2] %3[] = op sum(%1[1024])
            %2[1024] = neg(%0[1024])
            %4[] = op sum(%2[1024])
            """,
            id="a sum frees what it reads before more is made",
        ),
        pytest.param(
            """
            %0: 4096 bytes in
            %3: 4 bytes out
            %1[1024] = exp(%0[1024])
            %1[1024] = neg(%1[1024])
            %3[] = op sum(%1[1024])
            """,
            """
            %0: 4096 bytes in
            %3: 4 bytes out
            %1[1024] = exp(%0[1024])
            %1[1024] = neg(%1[1024])
            %3[] = op sum(%1[1024])
            """,
            id="never past what it needs",
        ),
        pytest.param(
            """
            %0: 4096 bytes in
            %3: 4 bytes in out
            %4: 4 bytes out
            %1[1024] = exp(%0[1024])
            %2[1024] = neg(%0[1024])
            %3[] = op sum(%1[1024])
            %4[] = op sum(%2[1024])
            """,
            """
            %0: 4096 bytes in
            %3: 4 bytes in out
            %4: 4 bytes out
            %1[1024] = exp(%0[1024])
            %2[1024] = neg(%0[1024])
            %3[] = op sum(%1[1024])
            %4[] = op sum(%2[1024])
            """,
            id="what others see is not written before what may fail",
        ),
    ],
)
def test_schedule(before, expected):
    assert after("schedule", lines(before)) == lines(expected)


KEPT_FOR_LONG = """
    %0: 4096 bytes in out
    %4: 4 bytes out
    %1[1024] = gelu(%0[1024])
    %2[1024] = op roll(%1[1024])
    %3[1024] = exp(%2[1024])
    %4[] = op dot(%3[1024], %1[1024])
    """


def test_recompute():
    expected = """
        %0: 4096 bytes in out
        %4: 4 bytes out
        %5: recomputes %1
        %1[1024] = gelu(%0[1024])
        %2[1024] = op roll(%1[1024])
        %3[1024] = exp(%2[1024])
        %5[1024] = gelu(%0[1024])
        %4[] = op dot(%3[1024], %5[1024])
        """
    before = lines(KEPT_FOR_LONG)
    assert after("recompute", before, least_recomputed_bytes=4096) == lines(expected)
    assert after("recompute", before, least_recomputed_bytes=4097) == before
    assert Program.parse(lines(expected)).text() == lines(expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("gelu(", "op gelu("),  # ops may be slow
        ("%0: 4096 bytes in out", "%0: 4096 bytes in"),  # nobody keeps what it is made from
        ("%3[1024] = exp(%2[1024])", "%3[1024] = exp(%2[1024])\n%0[1024] = neg(%3[1024])"),  # it has changed
        ("%2[1024] = op roll(%1[1024])", "%2[1024] = op roll(%0[1024])"),  # first read behind the peak
        ("%2[1024] = op roll(%1[1024])", "%1[1] = neg(%1[1])\n%2[1024] = op roll(%1[1024])"),  # written twice
    ],
)
def test_not_recomputed(old, new):
    assert old in KEPT_FOR_LONG
    before = lines(KEPT_FOR_LONG.replace(old, new))
    assert after("recompute", before, least_recomputed_bytes=1) == before


@pytest.mark.parametrize(
    ("before", "expected"),
    [
        pytest.param(
            """
            %0: 80 bytes in
            %1: 20 bytes in
            %4: 80 bytes out
            %2[4, 5] = add(%0[4, 5], %1[5])
            %3[4, 5] = mul(%2[4, 5], number)
            %4[4, 5] = relu(%3[4, 5])
            """,
            """
            %0: 80 bytes in
            %1: 20 bytes in
            %4: 80 bytes out
            fused {
              %2[4, 5] = add(%0[4, 5], %1[5])
              %3[4, 5] = mul(%2[4, 5], number)
              %4[4, 5] = relu(%3[4, 5])
            }
            """,
            id="each reads the last",
        ),
        pytest.param(
            """
            %0: 16 bytes in
            %1: 16 bytes out
            %2: 16 bytes out
            %3: 16 bytes in
            %4: 16 bytes out
            %1[4] = exp(%0[4])
            %2[4] = neg(%0[4])
            %4[4] = neg(%3[4])
            """,
            """
            %0: 16 bytes in
            %1: 16 bytes out
            %2: 16 bytes out
            %3: 16 bytes in
            %4: 16 bytes out
            fused {
              %1[4] = exp(%0[4])
              %2[4] = neg(%0[4])
            }
            %4[4] = neg(%3[4])
            """,
            id="both read the same; the third shares nothing",
        ),
        pytest.param(
            """
            %0: 64 bytes in
            %4: 64 bytes out
            %1[4, 4] = exp(%0[4, 4])
            %2[4, 4] = op matmul(%0[4, 4], %0[4, 4])
            %4[4, 4] = relu(%1[4, 4])
            """,
            """
            %0: 64 bytes in
            %4: 64 bytes out
            [1] %2[4, 4] = op matmul(%0[4, 4], %0[4, 4])
            fused {
              %1[4, 4] = exp(%0[4, 4])
              %4[4, 4] = relu(%1[4, 4])
            }
            """,
            id="past what does not need them",
        ),
        pytest.param(
            """
            %0: 64 bytes in
            %3: 64 bytes out
            %1[4, 4] = exp(%0[4, 4])
            %2[4, 4] = op matmul(%1[4, 4], %0[4, 4])
            %3[4, 4] = add(%1[4, 4], %2[4, 4])
            """,
            """
            %0: 64 bytes in
            %3: 64 bytes out
            %1[4, 4] = exp(%0[4, 4])
            %2[4, 4] = op matmul(%1[4, 4], %0[4, 4])
            %3[4, 4] = add(%1[4, 4], %2[4, 4])
            """,
            id="not past what needs one of them",
        ),
        pytest.param(
            """
            %0: 64 bytes in out
            %1: 64 bytes out
            %0[4, 4] = exp(%0[4, 4])
            %1[4, 4] = neg(%0[4, 4] strides [1, 4])
            """,
            """
            %0: 64 bytes in out
            %1: 64 bytes out
            %0[4, 4] = exp(%0[4, 4])
            %1[4, 4] = neg(%0[4, 4] strides [1, 4])
            """,
            id="not where elements are read at another place than they are written",
        ),
        pytest.param(
            """
            %0: 16 bytes in
            %2: 64 bytes out
            %1[4] = exp(%0[4])
            %2[4, 4] = add(%1[4], %0[4])
            """,
            """
            %0: 16 bytes in
            %2: 64 bytes out
            %1[4] = exp(%0[4])
            %2[4, 4] = add(%1[4], %0[4])
            """,
            id="not of two geometries",
        ),
        pytest.param(
            """
            %0: 16 bytes in out
            %1: 16 bytes out
            %1[4] = copy(%0[4])
            %0[4] = add(%0[4], number)
            """,
            """
            %0: 16 bytes in out
            %1: 16 bytes out
            %1[4] = copy(%0[4])
            %0[4] = add(%0[4], number)
            """,
            id="not a copy of what is then written over",
        ),
    ],
)
def test_fuse(before, expected):
    assert after("fuse", lines(before)) == lines(expected)


def test_passes_have_an_order():
    fused = "fused {\n  %1:bool[] = gt<int64>(%0:int64[], number)\n  %2:bool[] = copy(%1:bool[])\n}\n"
    for pass_name in PASSES[: PASSES.index("fuse") + 1]:
        with pytest.raises(ValueError, match=f"{pass_name} takes programs before fuse"):
            after(pass_name, fused)
    with pytest.raises(ValueError, match="there is no pass 'melt'; there are remove_dead, layout, schedule"):
        after("melt", "")


# ---- what verify() refuses ---------------------------------------------------------------------------------

SOUND = """
    %0: 16 bytes in
    %3: 16 bytes out
    %1[4] = exp(%0[4])
    %2[4] = neg(%1[4])
    %1[4] = mul(%1[4], number)
    %3[4] = add(%1[4], %2[4])
    """
AGAIN = """
    %0: 16 bytes in out
    %3: 16 bytes out
    %4: recomputes %1
    %1[4] = exp(%0[4])
    %2[4] = neg(%1[4])
    %4[4] = exp(%0[4])
    %3[4] = add(%4[4], %2[4])
    """


@pytest.mark.parametrize(
    ("program", "old", "new", "message"),
    [
        (SOUND, "exp(%0[4])", "exp(%0[5])", r"0 \(exp\) reaches beyond its memory"),
        (SOUND, "exp(%0[4])", "exp(%0[4] offset 1)", r"0 \(exp\) reaches beyond its memory"),
        (SOUND, "exp(%0[4])", "exp(%0[4] strides [-1])", r"0 \(exp\) reaches beyond its memory"),
        (SOUND, "exp(%0[4])", "exp(%0[4] strides [2])", r"0 \(exp\) reaches beyond its memory"),
        (SOUND, "%3[4] = add", "dead %3[4] = add", r"3 \(add\) runs in no step"),
        (SOUND, "%2[4] = neg", "dead %2[4] = neg", r"3 \(add\) reads what a dead instruction writes"),
        (
            SOUND,
            "%1[4] = mul(%1[4], number)",
            "[0] %1[4] = copy(number)",
            r"1 \(exp\) runs before an earlier write of the same memory",
        ),
        (SOUND, "%2[4] = neg", "[0] %2[4] = neg", r"1 \(exp\) writes a memory before it was read"),
        (SOUND, "%2[4] = neg", "[2] %2[4] = neg", r"2 \(neg\) runs before what it reads is written"),
        (SOUND, "%3[4] = add", "[0] %3[4] = add", r"1 \(exp\) writes a memory before it was read"),
        (AGAIN, "%2[4] = neg(%1", "%2[4] = neg(%4", r"1 \(neg\) reads what is not computed again yet"),
        (AGAIN, "add(%4", "add(%1", r"3 \(add\) uses what was computed again under its old name"),
        (AGAIN, "%4[4] = exp(%0", "%4[4] = exp(%1", r"2 \(exp\) computes again what is still used"),
    ],
)
def test_planted_bugs(program, old, new, message):
    assert Program.parse(lines(program)).text() == lines(program)
    assert program.count(old) == 1
    with pytest.raises(ValueError, match=r"graph: line \d+: instruction " + message) as error:
        Program.parse(lines(program.replace(old, new)))
    number, name = re.search(r"line (\d+): instruction \d+ \((\w+)", str(error.value)).groups()
    assert f"= {name}(" in lines(program.replace(old, new)).splitlines()[int(number) - 1]


# ---- what the parser refuses -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("%0: 16 bytes\n%0: 16 bytes", "line 2: expected a memory that is not declared yet"),
        ("%0: -16 bytes", "line 1: expected "),
        ("%0: 16 bits", "line 1: expected 'bytes' at 'bits'"),
        ("%0: 16 bytes on moon", "line 1: expected a device"),
        ("%4294967295: 1 bytes", "line 1: expected a smaller number of a memory"),
        ("\n\n%1:float31[4] = exp(%0:float32[4])", "line 3: expected a dtype"),
        ("%1:float32[4] = (%0:float32[4])", "line 1: expected a name"),
        ("%1:float32[4] = exp(%0:float32[4]", r"line 1: expected '\)'"),
        ("%1:float32[4] = exp()", "line 1: expected "),
        ("exp(%0:float32[4])", "line 1: expected one result"),
        ("%1:float32[4] = sum_to_size(%0:float32[4], %0:float32[4])", "line 1: expected one operand"),
        ("%1:float32[-4] = op exp()", "line 1: expected smaller sizes, none of them negative"),
        ("%1:float32[1099511627776, 1099511627776, 0] = op f()", "line 1: expected smaller sizes"),
        ("%1:float32[2] strides [9223372036854775807] = op f()", "line 1: expected smaller strides"),
        ("%1:float32[4] strides [1, 1] = op f()", "line 1: expected as many strides"),
        ("%1:float32[1024] strides [1125899906842624] = op f()", "expected a smaller memory than %1"),
        ("fused {\n%1:bool[] = gt(number)\n}", "line 3: expected two instructions"),
        ("[0] op f()\n[0] op g()", "line 2: expected numbers of instructions below 2, each once, not 0"),
        ("[2] op f()\n op g()", "line 2: expected numbers of instructions below 2, each once, not 2"),
        ("%1: recomputes %0\n%0: 4 bytes out", "to be seen by nobody"),
        ("%1: recomputes %1", "to be seen by nobody and to be itself"),
        ("%1: recomputes %0\n%2: recomputes %1", "to be seen by nobody and to be itself"),
    ],
)
def test_wrong_texts(text, message):
    with pytest.raises(ValueError, match=message) as error:
        Program.parse(text)
    assert re.match(r"graph: line \d+: expected ", str(error.value))


OTHER = ("0", "-1", "9999999999999999999", "dead ", "[1]", "op ", "recomputes", "in", "number", "1048575")


def changed(words, rng):
    """The text with one to three pieces swapped, doubled, dropped or replaced."""

    def replace(words, i, kind):
        if kind == 3:  # a number by one that is as large
            numbers = numbers_in(words)
            words[rng.choice(numbers)] = words[rng.choice(numbers)]
        else:
            words[i] = rng.choice(OTHER)

    return mutated(words, rng, 5, replace)


def parsed(text):
    try:
        return Program.parse(text), ""
    except ValueError as error:
        return None, str(error)


def test_mutated_texts(pytestconfig):
    """An error that says the line, or a program that is checked, and stays sound in all
    passes."""
    (made,) = programs_of(training_step())
    texts = [made["text"], made["recorded"]().text(), lines(SOUND), lines(AGAIN), lines(KEPT_FOR_LONG)]
    texts = [pieces(text) for text in texts]
    rng = random.Random(4)
    refused = unsound = 0
    count = pytestconfig.getoption("--programs") * 50
    for _ in range(count):
        text = changed(rng.choice(texts), rng)
        program, error = parsed(text)
        if error:
            why = re.match(r"graph: line \d+: (expected |instruction \d+ \(\w+\) )", error)
            refused += why[1] == "expected "
            unsound += why[1] != "expected "
            continue
        assert Program.parse(program.text()).text() == program.text()
        if any(len(step) > 1 for step in program.steps):
            continue
        for pass_name in PASSES:
            program.run_pass(pass_name, 1)  # which checks it
            assert Program.parse(program.text()).text() == program.text()
    assert refused and unsound and refused + unsound < count
