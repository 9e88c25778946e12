"""Integers are computed in their own width where all operands have it: the same values as int64, cut to the
dtype."""

import pytest
import warptape as wt

LARGEST = {wt.uint8: 255, wt.int8: 127, wt.int16: 2**15 - 1, wt.int32: 2**31 - 1}
UNARY = {
    "neg": wt.neg,
    "abs": wt.abs,
    "sign": wt.sign,
    "square": wt.square,
    "bitwise_not": wt.bitwise_not,
    "relu": wt.relu,
    "floor": wt.floor,
    "signbit": wt.signbit,
    "isfinite": wt.isfinite,
    "logical_not": wt.logical_not,
    "clamp": lambda a: a.clamp(3, 100),
    "add": lambda a: a + 7,
    "mul": lambda a: a * 3,
    "compare": lambda a: a > 5,
}
BINARY = {
    "add": wt.add,
    "add_scaled": lambda a, b: wt.add(a, b, alpha=3),
    "sub": wt.sub,
    "mul": wt.mul,
    "maximum": wt.maximum,
    "minimum": wt.minimum,
    "fmax": wt.fmax,
    "eq": wt.eq,
    "ne": wt.ne,
    "lt": wt.lt,
    "ge": wt.ge,
    "and": wt.bitwise_and,
    "or": wt.bitwise_or,
    "xor": wt.bitwise_xor,
    "logical_and": wt.logical_and,
    "logical_xor": wt.logical_xor,
    "where": lambda a, b: wt.where(a > b, a, b),
    "addcmul": lambda a, b: wt.addcmul(a, b, b, value=2),
    "left_shift": lambda a, b: wt.bitwise_left_shift(a, b & 31),
    "right_shift": lambda a, b: wt.bitwise_right_shift(a, b & 31),
}


def draw(dtype, *shape):
    low = 0 if dtype is wt.uint8 else -LARGEST[dtype] - 1
    return wt.randint(low, LARGEST[dtype] + 1, shape).to(dtype)


def layouts(dtype):
    """Pairs of tensors: contiguous, with a tail, of steps, transposed, broadcast, and of one element."""
    yield draw(dtype, 3000), draw(dtype, 3000)
    yield draw(dtype, 37, 41), draw(dtype, 37, 41)
    yield draw(dtype, 500, 2)[:, 1], draw(dtype, 500)
    yield draw(dtype, 40, 30).t(), draw(dtype, 30, 40)
    yield draw(dtype, 30, 40), draw(dtype, 40)
    yield draw(dtype, 2000), draw(dtype, 1)
    yield draw(dtype), draw(dtype)


def same(narrow, wide):
    assert wt.equal(narrow, wide.to(narrow.dtype))


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("name", UNARY)
def test_one_operand(name, dtype):
    wt.manual_seed(0)
    for a, _ in layouts(dtype):
        same(UNARY[name](a), UNARY[name](a.long()))


@pytest.mark.parametrize("dtype", LARGEST)
@pytest.mark.parametrize("name", BINARY)
def test_two_operands(name, dtype):
    wt.manual_seed(0)
    for a, b in layouts(dtype):
        same(BINARY[name](a, b), BINARY[name](a.long(), b.long()))


@pytest.mark.parametrize("dtype", LARGEST)
def test_in_place_and_across_dtypes(dtype):
    wt.manual_seed(0)
    a, b = draw(dtype, 2500), draw(dtype, 2500)
    for change in (lambda x, y: x.add_(y), lambda x, y: x.mul_(x), lambda x, y: x[1:].sub_(y[:-1])):
        mine, wide = a.clone(), a.long()
        change(mine, b)
        change(wide, b.long())
        same(mine, wide)
    other = draw(wt.int16, 2500)
    assert wt.equal((a + other).long(), (a.long() + other.long()).to((a + other).dtype).long())
    out = wt.empty(2500, dtype=wt.int64)
    assert wt.equal(wt.maximum(a, b, out=out), wt.maximum(a.long(), b.long()))


@pytest.mark.parametrize(
    "name", ["and", "or", "xor", "eq", "lt", "maximum", "mul", "add", "where", "logical_xor"]
)
def test_truth_values(name):
    wt.manual_seed(0)
    a, b = wt.rand(3001) < 0.5, wt.rand(3001) < 0.5
    same(BINARY[name](a, b), BINARY[name](a.long(), b.long()))


def test_shifts_by_more_bits_than_there_are():
    a = wt.tensor([1, -1, 5, -5, 5, -5, 3, -3, 7])
    by = wt.tensor([63, 63, 64, 64, -1, -1, 0, 1, 2])
    assert wt.bitwise_left_shift(a, by).tolist() == [-(2**63), -(2**63), 0, 0, 0, 0, 3, -6, 28]
    assert wt.bitwise_right_shift(a, by).tolist() == [0, -1, 0, -1, 0, -1, 3, -2, 1]
