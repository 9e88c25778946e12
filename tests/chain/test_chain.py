"""A chain of elementwise kernels gives what the kernels give one at a time, to the bit."""

from __future__ import annotations

import itertools
import random
import re
import shutil
from collections.abc import Iterator

import numpy as np
import pytest
from kernel_chains import DIVIDED_BY_ZERO, LIBRARY, NO_CHAIN, ROOT, Chain, Driver, Value, memory_dtype

pytestmark = pytest.mark.skipif(
    not shutil.which("g++") or not LIBRARY.exists(), reason="needs g++ and the library built in place"
)

FLOATS, INTEGERS = ("float32", "float64"), ("int64",)
PREDICATES = re.compile(r"^(eq|ne|lt|le|gt|ge|isclose|logical_.*|is.*|signbit)$")
BASES = {"Unary": 1, "Binary": 2, "Ternary": 3, "Quaternary": 4, "Quinary": 5, "Senary": 6}
SPECIAL = (0.0, -0.0, 1.0, -1.0, 0.5, np.inf, -np.inf, np.nan, 1e-40, -1e-45, 3e38, 1e30, 2.0, 1e5, -7.25)


def read_formulas() -> Iterator[tuple[str, int, str]]:
    """(slot, number of inputs, compute type) of every slot in the lists of the elementwise ops."""
    lists = ROOT / "kernels/include/kernels/elementwise/ops"
    names = ("arithmetic", "math", "activation", "loss", "loss_backward")
    text = "\n".join((lists / f"{name}.h").read_text() for name in names)
    op = r"WT_OP\(\w+, (\w+),\s*"
    known = {m[1]: (BASES[m[2]], m[3]) for m in re.finditer(op + r"(\w+)<([^>]+)>", text)}
    known |= {m[1]: (2, "kAny") for m in re.finditer(op + "IntegerDivision", text)}
    known |= {m[1]: (1, "kFloats") for m in re.finditer(r"WT_(?:SAME|ANALYTIC)\(\w+, (\w+)\);", text)}
    known |= {m[1]: (1, "kAny") for m in re.finditer(r"WT_(?:ROUNDING|FLOAT_TEST)\(\w+, (\w+)[,)]", text)}
    known["Where"] = (3, "kAny")
    for slot, formula in re.findall(r"^WT_\w+\((\w+), (\w+)[,)]", text, re.M):
        count, types = known[formula]
        for compute in (FLOATS if re.search("kFloats|kAny", types) else ()) + (
            INTEGERS if re.search("kIntegers|kAny", types) else ()
        ):
            yield slot, count, compute


FORMULAS = list(read_formulas())
SLOW = ("polygamma", "igamma", "igammac", "erfinv", "digamma", "lgamma", "special_ndtri")
OF_SIGN = ("signbit", "copysign")  # of a NaN they show which one it is


@pytest.fixture(scope="module")
def driver(tmp_path_factory: pytest.TempPathFactory) -> Driver:
    return Driver(tmp_path_factory.mktemp("chain"))


def make(rng: np.random.Generator, shape: tuple[int, ...], dtype: str, special: bool = True) -> np.ndarray:
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.5)
    if dtype.startswith(("int", "uint")):
        return np.asarray(rng.integers(0 if dtype[0] == "u" else -9, 10, shape)).astype(dtype)
    with np.errstate(all="ignore"):
        a = np.asarray(rng.standard_normal(shape) * 3).astype("float32" if dtype == "bfloat16" else dtype)
        if special:
            chosen = rng.choice(np.array(SPECIAL), shape).astype(a.dtype)
            a = np.where(rng.random(shape) < 0.15, chosen, a)
    if dtype == "bfloat16":
        return (a.view(np.uint32) >> 16).astype(np.uint16) if a.ndim else np.array(0x3FC0, np.uint16)
    return a


def bits(a: np.ndarray, dtype: str) -> np.ndarray:
    """The bits, of one NaN for all: of two that meet, the compiler's order of the operands picks the sign."""
    a = np.ascontiguousarray(a)
    if dtype == "bfloat16":
        return np.where((a & 0x7FFF) > 0x7F80, 0x7FC0, a)
    if dtype.startswith("float"):
        return np.where(np.isnan(a), a.dtype.type(np.nan), a).view(f"u{a.itemsize}")
    return a


def check(driver: Driver, chain: Chain, outputs: list[Value] | None = None) -> None:
    """Outputs, new ones if none are given, against the ops one at a time, whose inputs are copied before."""
    shape = chain.shape
    copies = [Value(v.array.copy(order="K") if v.array.ndim else v.array, v.dtype) for v in chain.inputs]
    expected, worst, _ = driver.by_op(Chain(copies, chain.steps))
    values = [v.array for v in copies] + expected
    if outputs is None:
        dtypes = [chain.dtype(v) for v in chain.outputs]
        outputs = [Value(np.zeros(shape, memory_dtype(d)), d) for d in dtypes]
    status, _ = driver.run(chain, outputs, shape)
    assert status == worst, chain.steps
    for value, out in zip(chain.outputs, outputs, strict=True):
        wanted = np.broadcast_to(values[value], shape)
        wrong = np.argwhere(bits(out.array, out.dtype) != bits(wanted, out.dtype))
        if len(wrong):
            raise AssertionError(
                f"value {value} of {chain.steps}, shape {shape}: differs at {wrong[:4].tolist()}"
            )


def result_of(slot: str, compute: str) -> str:
    return "bool" if PREDICATES.match(slot) else compute


def test_formulas_are_found() -> None:
    assert len(FORMULAS) > 250
    assert {"add", "where", "gelu_backward", "pow", "exp", "floor"} <= {slot for slot, _, _ in FORMULAS} | {
        "pow"
    }


@pytest.mark.parametrize("compute", ["float32", "float64", "int64"])
def test_every_formula(driver: Driver, compute: str) -> None:
    """Between two other steps, with each input in turn the one that is in registers, and with numbers."""
    rng = np.random.default_rng(1)
    for slot, count, own in FORMULAS:
        if own != compute:
            continue
        n = 70 if slot in SLOW else 333
        plain = [Value(make(rng, (n,), compute, slot not in SLOW), compute) for _ in range(count)]
        if slot == "where":
            plain[0] = Value(make(rng, (n,), "bool"), "bool")
        result = result_of(slot, compute)
        for position in range(-1, count):
            last = count + 1
            taken = tuple(count if k == position else k for k in range(count))
            steps = [("sub", compute, (count - 1, 0), compute), (slot, compute, taken, result)]
            steps.append(("add", compute, (last, last), compute))
            check(driver, Chain(plain, steps, [last, last + 1]))
        numbers = [Value(make(rng, (), "float64", False), "float64") for _ in range(count - 1)]
        check(driver, Chain([plain[0], *numbers], [(slot, compute, tuple(range(count)), result)], [count]))


SHORT = [(slot, first) for slot in ("add", "sub", "mul") for first in (True, False)] + [("relu", True)]


@pytest.mark.parametrize("first", SHORT, ids=lambda form: f"{form[0]}{'' if form[1] else ' second'}")
def test_simple_steps_after_each_other(driver: Driver, first: tuple[str, bool]) -> None:
    """In every order, their operand in registers being the first or the second; products are rounded."""
    rng = np.random.default_rng(3)
    inputs = [Value(make(rng, (333,), "float32", special), "float32") for special in (False, True, False)]
    for second, third in itertools.product(SHORT, SHORT):
        chain = Chain(list(inputs))
        last = 0
        for k, (slot, in_front) in enumerate((first, second, third)):
            other = (1, 2, 0)[k]
            operands = (last,) if slot == "relu" else (last, other) if in_front else (other, last)
            chain.steps.append((slot, "float32", operands, "float32"))
            last = len(inputs) + k
        chain.outputs = [last]
        check(driver, chain)
        chain.outputs = [last - 1, last]
        check(driver, chain)


@pytest.mark.parametrize("seed", range(8))
def test_runs_over_two_operands(driver: Driver, seed: int) -> None:
    """Rows of simple steps, up to a third operand or another formula, on memory anyhow aligned."""
    rng = random.Random(seed)
    numbers = np.random.default_rng(seed)
    for n in (1, 100, 128, 1000, 4095, 4096, 5000, 70_001):
        inputs = []
        for _ in range(3):
            start = rng.randrange(16)
            inputs.append(
                Value(make(numbers, (start + n,), "float32", rng.random() < 0.5)[start:], "float32")
            )
        chain = Chain(inputs, [], [])
        last = rng.randrange(3)
        for k in range(rng.randrange(4, 40)):
            slot = rng.choice(["add", "sub", "mul", "relu"] if rng.random() < 0.9 else ["abs", "sqrt"])
            other = rng.randrange(2) if rng.random() < 0.9 else rng.randrange(3 + k)
            operands = (last, other) if rng.random() < 0.5 else (other, last)
            chain.steps.append(
                (slot, "float32", operands[: 2 if slot in ("add", "sub", "mul") else 1], "float32")
            )
            last = 3 + k
        chain.outputs = [last]
        check(driver, chain)


@pytest.mark.parametrize("exponent", [2.0, 3.0, 0.5, -0.5, 1.0, -1.0, -2.0, 1.7])
def test_powers(driver: Driver, exponent: float) -> None:
    rng = np.random.default_rng(7)
    for n in (*[1] * 20, 2, 333):
        for compute in ("float32", "float64"):
            x = Value(make(rng, (n,), compute), compute)
            steps = [("mul", compute, (0, 0), compute), ("pow", compute, (2, 1), compute)]
            check(driver, Chain([x, Value(np.array(exponent), "float64")], steps, [3]))


MIXED = [
    ("mul", "float32", (0, 1), "float32"),
    ("add", "float32", (3, 2), "bfloat16"),
    ("gt", "float32", (4, 0), "bool"),
    ("exp", "float32", (4,), "float32"),
    ("where", "float32", (5, 6, 1), "float32"),
    ("sub", "float32", (7, 3), "float16"),
    ("copy", "int64", (8,), "int32"),
    ("bitwise_and", "int64", (9, 5), "int64"),
    ("mul", "float64", (8, 9), "float64"),
]


def mixed(n: int) -> Chain:
    rng = np.random.default_rng(n)
    number = Value(np.array(0.3), "float64")
    return Chain(
        [Value(make(rng, (n,), "float32"), "float32") for _ in range(2)] + [number], MIXED, [4, 5, 10, 11]
    )


def test_sizes(driver: Driver) -> None:
    for n in [*range(1, 301), 511, 512, 513, 1025]:
        check(driver, mixed(n))


SIMPLE = [
    ("add", "float32", (0, 1), "float32"),
    ("mul", "float32", (3, 2), "float32"),
    ("maximum", "float32", (4, 3), "float32"),
    ("lerp", "float32", (0, 5, 1), "float32"),
    ("relu", "float32", (6,), "float32"),
]


def simple(shape: tuple[int, ...], outputs: list[int]) -> Chain:
    rng = np.random.default_rng(shape)
    inputs = [Value(make(rng, shape, "float32"), "float32") for _ in range(2)]
    return Chain([*inputs, Value(np.array(0.3), "float64")], SIMPLE, outputs)


@pytest.mark.parametrize("n", [40_000, 100_001])
def test_threads(driver: Driver, n: int) -> None:
    results = []
    for threads in (1, 2):
        driver.set_threads(threads)
        for chain in (mixed(n), simple((n,), [7, 3])):
            check(driver, chain)
            out = [Value(np.zeros(n, memory_dtype(chain.dtype(v))), chain.dtype(v)) for v in chain.outputs]
            assert driver.run(chain, out)[0] == 0
            results.append([bits(v.array, v.dtype) for v in out])
    for one, two in zip(results[:2], results[2:], strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(one, two, strict=True))


@pytest.mark.parametrize("n", [1, 37, 64, 300, 5000])
def test_in_place(driver: Driver, n: int) -> None:
    for outputs, into in (([7], [0]), ([3], [0]), ([3, 7], [1, 0]), ([0, 4], [None, 0]), ([5, 5], [0, None])):
        chain = simple((n,), list(outputs))
        inputs = chain.inputs
        memory = [Value(np.zeros(n, np.float32), "float32") if i is None else inputs[i] for i in into]
        check(driver, chain, memory)


def random_input(rng: np.random.Generator, shape: tuple[int, ...]) -> Value:
    dtypes = ("float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool")
    dtype = str(rng.choice(dtypes, p=(0.5, 0.1, 0.06, 0.08, 0.08, 0.06, 0.04, 0.08)))
    layout = rng.choice(
        ["full", "number", "row", "column", "strided", "transposed"], p=(0.5, 0.15, 0.1, 0.1, 0.1, 0.05)
    )
    if layout == "number":
        return Value(make(rng, (), dtype, False), dtype)
    if layout == "row":
        return Value(make(rng, shape[-1:], dtype), dtype)
    if layout == "column":
        return Value(make(rng, (*shape[:-1], 1), dtype), dtype)
    if layout == "strided":
        return Value(make(rng, (*shape[:-1], 2 * shape[-1]), dtype)[..., ::2], dtype)
    if layout == "transposed":
        return Value(make(rng, shape[::-1], dtype).T, dtype)
    return Value(make(rng, shape, dtype), dtype)


def random_chain(seed: int, largest: bool = False) -> Chain:
    rng = np.random.default_rng(seed)
    shapes = [(int(rng.integers(1, 700)),), (7, 300), (33, 20), (3, 5, 70), (2, 1030), (4, 3, 2, 9)]
    shape = shapes[rng.integers(len(shapes))]
    inputs = [Value(make(rng, shape, "float32"), "float32")]
    inputs += [random_input(rng, shape) for _ in range(23 if largest else rng.integers(1, 7))]
    chain = Chain(inputs)
    for i in range(48 if largest else rng.integers(1, 16)):
        values = len(inputs) + i
        compute = str(rng.choice(["float32", "float64", "int64", "copy"], p=(0.7, 0.1, 0.12, 0.08)))
        if compute == "copy":
            to = str(
                rng.choice(["float32", "bfloat16", "float16", "float64", "int64", "int32", "uint8", "bool"])
            )
            chain.steps.append(("copy", "float32", (int(rng.integers(values)),), to))
            continue
        fit = [(s, c) for s, c, own in FORMULAS if own == compute and s not in SLOW + OF_SIGN]
        slot, count = fit[rng.integers(len(fit))]
        taken = [int(rng.integers(values)) for _ in range(count)]
        if rng.random() < 0.6:
            taken[rng.integers(count)] = values - 1
        result = result_of(slot, compute)
        if result == "float32":
            result = str(rng.choice(["float32", "bfloat16", "float16"], p=(0.7, 0.2, 0.1)))
        elif result == "int64":
            result = str(rng.choice(["int64", "int32", "uint8", "bool"], p=(0.6, 0.2, 0.1, 0.1)))
        chain.steps.append((slot, compute, tuple(taken), result))
    chain.outputs = [len(inputs) + len(chain.steps) - 1]
    chain.outputs += [
        int(rng.integers(len(inputs) + len(chain.steps)))
        for _ in range(11 if largest else rng.integers(0, 4))
    ]
    return chain


def copies_input(chain: Chain) -> bool:
    """Whether the first output is a copy of an input."""
    value = chain.outputs[0]
    while value >= len(chain.inputs) and chain.steps[value - len(chain.inputs)][0] == "copy":
        (value,) = chain.steps[value - len(chain.inputs)][2]
    return value < len(chain.inputs)


@pytest.mark.parametrize("part", range(10))
def test_random_chains(driver: Driver, part: int) -> None:
    driver.set_threads(1 + part % 2)
    for seed in range(100 * part, 100 * part + 100):
        chain = random_chain(seed)
        shape = chain.shape
        outputs = []
        for value in chain.outputs:
            dtype = chain.dtype(value)
            last = shape[-1] * (1 + random.Random(seed).randrange(2))
            array = np.zeros((*shape[:-1], last), memory_dtype(dtype))[..., :: last // shape[-1]]
            outputs.append(Value(array, dtype))
        first = chain.inputs[0]
        # Not a copy of an input: another output may copy what it overwrites. Chain::store puts it last then.
        if seed % 3 == 0 and chain.dtype(chain.outputs[0]) == "float32" and not copies_input(chain):
            outputs[0] = first
        check(driver, chain, outputs)


def test_largest_chains(driver: Driver) -> None:
    for seed in range(30):
        check(driver, random_chain(seed, largest=True))


@pytest.mark.parametrize("slot", ["sin", "cos"])
def test_a_value_does_not_depend_on_its_neighbours(driver: Driver, slot: str) -> None:
    """Past a bound these are libm's, lane by lane; a chain's vectors may hold other elements than an op's."""
    x = np.random.default_rng(0).uniform(-100, 100, 4096).astype("float32")
    results = []
    for neighbour in (1.0, 1e6):
        mixed = np.repeat(x, 2)
        mixed[1::2] = neighbour
        values, _, _ = driver.by_op(Chain([Value(mixed, "float32")], [(slot, "float32", (0,), "float32")]))
        results.append(values[0][::2])
    assert np.array_equal(*results)


def test_division_by_zero_is_reported(driver: Driver) -> None:
    x, y = Value(np.arange(700), "int64"), Value(np.arange(700) - 650, "int64")
    chain = Chain([x, y], [("floor_divide", "int64", (0, 1), "int64")], [2])
    out = [Value(np.zeros(700, np.int64), "int64")]
    assert driver.run(chain, out)[0] == DIVIDED_BY_ZERO
    chain.inputs[1] = Value(np.arange(700) + 1, "int64")
    assert driver.run(chain, out)[0] == 0


@pytest.mark.parametrize(("slot", "compute"), [("softmax", "float32"), ("exp", "int64"), ("gcd", "int64")])
def test_what_no_chain_runs(driver: Driver, slot: str, compute: str) -> None:
    x = Value(np.ones(4, compute), compute)
    assert driver.run(Chain([x], [(slot, compute, (0,), compute)], [1]), [x])[0] == NO_CHAIN


def test_fill_and_cast(driver: Driver) -> None:
    number = Value(np.array(2.6), "float64")
    for dtype in ("float32", "bfloat16", "int32", "bool", "int64", "float64", "uint8"):
        chain = Chain([number, Value(make(np.random.default_rng(0), (300,), "float32"), "float32")])
        chain.steps = [("copy", "float32", (0,), dtype), ("mul", "float32", (2, 1), "float32")]
        chain.outputs = [2, 3]
        check(driver, chain)


PLANTED = {
    "contracted": [("add_scaled", "float32", (2, 0, 1), "float32")],
    "not rounded": [("mul", "float32", (0, 1), "bfloat16"), ("add", "float32", (3, 2), "float32")],
    "swapped": [("mul", "float32", (0, 1), "float32"), ("sub", "float32", (2, 3), "float32")],
}


@pytest.mark.parametrize("planted", PLANTED)
def test_a_planted_difference_is_found(driver: Driver, planted: str, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    inputs = [Value(make(rng, (300,), "float32", False), "float32") for _ in range(3)]
    steps = [("mul", "float32", (0, 1), "float32"), ("add", "float32", (3, 2), "float32")]
    check(driver, Chain(inputs, steps, [4]))
    right, other = (driver.by_op(Chain(inputs, s))[0][-1] for s in (steps, PLANTED[planted]))
    if planted == "contracted" and np.array_equal(right, other):
        pytest.skip("kernels of an instruction set without fused multiply-add")
    run = driver.run

    def wrong(chain: Chain, outputs: list[Value], shape: tuple[int, ...]) -> tuple[int, float]:
        other = PLANTED[planted]
        return run(Chain(chain.inputs, other, [2 + len(other)]), outputs, shape)

    monkeypatch.setattr(driver, "run", wrong)
    with pytest.raises(AssertionError, match="differs at"):
        check(driver, Chain(inputs, steps, [4]))
