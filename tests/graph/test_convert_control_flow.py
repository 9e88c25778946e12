"""Converted functions do what they do unconverted, and can be recorded with both outcomes of their tests."""

import traceback

import pytest
import warptape as torch
from warptape import nn
from warptape._control_flow import NotSupportedError, convert

SCALE = 3.0


def if_else(x):
    if x.sum() > 0:
        y = x * 2
    else:
        y = x - 1
    return y * y


def if_only(x):
    if x.sum() > 0:
        x = x * SCALE
    return x + 1


def early_return(x):
    if x.sum() > 10:
        return x * 2
    if x.sum() > 0:
        x = x + 1
        return x.exp()
    return -x


def elif_chain(x):
    s = x.sum()
    if s > 10:
        k = 1.0
    elif s > 0:
        k = 2.0
    elif s > -10:
        k = 3.0
    else:
        k = 4.0
    return x * k


def temporary(x):
    if x.sum() > 0:
        t = x * 2
        y = t + 1
    else:
        y = x
    return y


def while_sum(x):
    while x.sum() < 20:
        x = x * 2 + 1
    return x


def while_counts(x):
    n = 0
    while x.abs().sum() > 1:
        x = x / 2
        n += 1
    return x, n


def if_in_while(x):
    steps = torch.zeros(())
    while steps < 5:
        if x.sum() > 3:
            x = x - 1
        else:
            if x.sum() > 0:
                x = x * 1.5
            else:
                x = x + 2
        steps = steps + 1
    return x


def while_in_if(x):
    if x.sum() > 0:
        while x.sum() > 1:
            x = x / 2
    else:
        x = x * 2
    return x


def while_break(x):
    n = torch.tensor(0)
    while n < 10:
        x = x + 1
        if x.sum() > 8:
            break
        n = n + 1
    return x, n


def while_true(x):
    while True:
        x = x + 1
        if x.sum() > 8:
            break
    return x


def while_continue(x):
    n = torch.tensor(0)
    while n < 6:
        n = n + 1
        if n % 2 == 0:
            continue
        x = x * n
    return x


def for_tensor(x):
    total = x
    for i in range((x > 0).sum()):
        total = total + x * i
    return total


def for_limits(x):
    n = (x > 0).sum()
    for i in range(n + 3, n, -1):
        x = x + i
    return x


def for_break(x):
    for i in range(10):
        if x.sum() > 5:
            break
        x = x + i
    return x


def for_tensor_break(x):
    for i in range((x < 100).sum() + 4):
        if x.sum() > 5:
            break
        x = x + i
    return x


def for_list(x):
    for k in [1.0, 2.0, 3.0]:
        if x.sum() < k:
            x = x + k
            continue
        x = x * k
    return x


def booleans(x):
    a, b = x.sum() > 0, x.max() < 3
    if a and b:
        x = x + 1
    if a or not b:
        x = x * 2
    if 0 < x.sum() < 100 and x.min() < 50:
        x = x - 3
    return x


def ternary(x):
    y = x * 2 if x.sum() > 0 else x - 2
    return y if y.max() > 1 else -y


def python_conditions(x, flag=True, *, k=3, names=("a", "b")):
    out = []
    for n in names:
        if n == "a" and flag:
            out.append(x * k)
        else:
            out.append(x)
    i = 0
    while i < k:
        i += 1
        if i == 2:
            break
    return (out[0] + out[1]) * i if not flag or k else None


def structures(x):
    d = {"a": x, "n": 1}
    if x.sum() > 0:
        d = {"a": x * 2, "n": 2}
    else:
        d = {"a": x.exp(), "n": 3}
    return d["a"] * d["n"]


def helper(x):
    if x.sum() > 0:
        return x * 5
    return x * 7


def calls_helper(x):
    return helper(x) + helper(-x)


def closure(x):
    k = 2.0

    def inner(y):
        if y.sum() > 0:
            return y * k
        return y - k

    if x.max() > 1:
        k = 5.0
    return inner(x)


def nested_functions(x):
    factors = [lambda y, n=n: y * n for n in range(1, 3)]
    if x.sum() > 0:
        x = factors[0](x)
    else:
        x = factors[1](x)
    return sum((v if v > 0 else -v) for v in x)


def no_grad_within(x):
    with torch.no_grad():
        if x.sum() > 0:
            k = x.max()
        else:
            k = x.min()
    return x * k


FUNCTIONS = [
    *(if_else, if_only, early_return, elif_chain, temporary, while_sum, while_counts, if_in_while),
    *(
        while_in_if,
        while_break,
        while_true,
        while_continue,
        for_tensor,
        for_limits,
        for_break,
        for_tensor_break,
    ),
    *(for_list, booleans, ternary, python_conditions, structures, calls_helper, closure, nested_functions),
    no_grad_within,
]
INPUTS = [[1.0, 2.0, -0.5], [-1.0, -2.0, 0.5], [4.0, 5.0, 6.0], [-9.0, -8.0, 1.5], [0.1, 0.0, 0.3]]


def flat(out):
    values = out if isinstance(out, tuple) else (out,)
    return [torch.as_tensor(v) for v in values]


def outcome(fn, values):
    x = torch.tensor(values, requires_grad=True)
    out = flat(fn(x))
    total = sum(v.sum() for v in out if v.is_floating_point())
    return [v.detach() for v in out], torch.autograd.grad(total, x)[0]


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
@pytest.mark.parametrize("values", INPUTS, ids=str)
def test_values_and_gradients_stay(fn, values):
    want, want_grad = outcome(fn, values)
    got, got_grad = outcome(convert(fn), values)
    torch.testing.assert_close(got, want, rtol=0, atol=0)
    torch.testing.assert_close(got_grad, want_grad, rtol=0, atol=0)


@pytest.mark.parametrize("fn", FUNCTIONS, ids=lambda fn: fn.__name__)
def test_recorded_with_one_input_it_holds_for_others(fn):
    from warptape._graphs import record

    recorded = record(convert(fn), (torch.tensor(INPUTS[0]),), {})
    for values in INPUTS:
        want, got = fn(torch.tensor(values)), recorded(torch.tensor(values))
        torch.testing.assert_close(flat(got), flat(want), rtol=1e-6, atol=1e-6)


class Gate(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(3, 3)
        self.__sign = -1.0

    def forward(self, x):
        if self.linear(x).sum() > 0:
            return self.mixed(x)
        return x * self.__sign

    def mixed(self, x):
        return x * 2 if x.max() > 2 else self.linear(x)


class Loud(Gate):
    def forward(self, x):
        x = super().forward(x)
        while x.abs().sum() < 10:
            x = x * 2
        if x.sum() > 0:
            x = super().mixed(x)
        return x


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.Sequential(Gate(), nn.Tanh(), Loud())

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("kind", [Gate, Loud, Net])
def test_modules(kind):
    torch.manual_seed(3)
    module = kind()
    seen = []
    module.register_forward_hook(lambda *args: seen.append(1))
    converted = convert(module)
    for values in INPUTS:
        assert_same_module(module, converted, torch.tensor(values, requires_grad=True))
    assert len(seen) == 2 * len(INPUTS)
    assert not any("forward" in m.__dict__ for m in module.modules())


def assert_same_module(module, converted, x):
    runs = []
    for call in (module, converted):
        module.zero_grad()
        out = call(x)
        out.sum().backward()
        runs.append(
            [out.detach(), *[torch.zeros(1) if p.grad is None else p.grad for p in module.parameters()]]
        )
    torch.testing.assert_close(runs[1], runs[0], rtol=0, atol=0)


def counts_in_arm(x):
    n = 0
    while x.sum() < 10:
        if x.max() > 2:
            n += 1
        x = x + 1
    return x * n


def test_a_count_in_an_arm_of_a_loop():
    for values in INPUTS:
        torch.testing.assert_close(
            convert(counts_in_arm)(torch.tensor(values)), counts_in_arm(torch.tensor(values))
        )


def one_arm(x):
    if x.sum() > 0:
        y = x
    return y


def other_dtype(x):
    if x.sum() > 0:
        y = x
    else:
        y = x.to(torch.float64)
    return y


def other_shape(x):
    if x.sum() > 0:
        y = x
    else:
        y = x[:1]
    return y


def other_text(x):
    if x.sum() > 0:
        mode = "a"
    else:
        mode = "b"
    return mode


def growing(x):
    while x.sum() < 10:
        x = torch.cat([x, x + 1])
    return x


def set_in_loop(x):
    while x.sum() < 10:
        x = x + 1
        y = x
    return y


def tries(x):
    if x.sum() > 0:
        try:
            x = x + 1
        finally:
            pass
    return x


def yields(x):
    if x.sum() > 0:
        yield x


def returns_in_loop(x):
    while x.sum() < 10:
        x = x + 1
        if x.max() > 4:
            return x
    return x


def writes_in_place(x):
    y = x * 1
    if x.sum() > 0:
        y += 1
    return y


def writes_item(x):
    y = x * 1
    if x.sum() > 0:
        y[0] = 1
    return y


def float_range(x):
    for i in range(x.sum()):
        x = x + i
    return x


@pytest.mark.parametrize(
    ("fn", "why", "line"),
    [
        (one_arm, "'y' is .* and not set|'y' is not set and", 1),
        (other_dtype, r"'y' is float32\[3\] and float64\[3\]", 1),
        (other_shape, r"'y' is float32\[3\] and float32\[1\]", 1),
        (other_text, "'mode' is 'a' and 'b'", 1),
        (growing, r"changes a variable: 'x' is float32\[3\] and float32\[6\]", 1),
        (set_in_loop, "'y' must be set before a loop", 1),
        (tries, "cannot have try in it", 1),
        (lambda x: list(convert(yields)(x)), "cannot have yield in it", 1),
        (returns_in_loop, "cannot have return here in it", 1),
        (writes_in_place, "writes to a tensor in place", 2),
        (writes_item, r"cannot have an assignment to y\[0\] in it", 2),
        (float_range, "takes integer tensors", 1),
    ],
)
def test_what_has_no_graph_is_refused_with_its_line(fn, why, line):
    name = fn.__name__ if fn.__name__ != "<lambda>" else "yields"
    converted = convert(fn) if name != "yields" else fn
    first = globals()[name].__code__.co_firstlineno
    with pytest.raises(NotSupportedError, match=why) as error:
        converted(torch.tensor([0.5, 1.0, 0.25]))
    assert f'File "{__file__}", line {first + line}, in {name}' in str(error.value)


def test_what_cannot_be_converted():
    with pytest.raises(NotSupportedError, match="written as `def`"):
        convert(lambda x: x)
    namespace = {}
    exec("def made(x):\n    return x", namespace)
    with pytest.raises(NotSupportedError, match="source of made"):
        convert(namespace["made"])
    with pytest.raises(TypeError, match="got int"):
        convert(3)

    async def later(x):
        return x

    with pytest.raises(NotSupportedError, match="written as `def`"):
        convert(later)


def test_errors_have_the_lines_of_the_source():
    def fails(x):
        if x.sum() > 0:
            x = x + 1
            x = x @ torch.ones(7, 7)
        return x

    with pytest.raises(RuntimeError) as error:
        convert(fails)(torch.ones(3, 3))
    lines = [f.lineno for f in traceback.extract_tb(error.value.__traceback__) if f.filename == __file__]
    assert fails.__code__.co_firstlineno + 3 in lines


def test_several_elements_are_refused_as_by_python():
    with pytest.raises(RuntimeError, match="more than one"):
        convert(lambda_free)(torch.ones(3))


def lambda_free(x):
    return 1 if x > 0 else 2


def test_a_variable_that_is_not_set_stays_so():
    def unset(flag):
        if flag:
            y = 1
        return y

    assert convert(unset)(True) == 1
    with pytest.raises(NameError):
        convert(unset)(False)


def test_closures_and_globals_stay_alive():
    k = 1

    def scaled(x, by=2):
        return x * k * by * SCALE if x.sum() > 0 else x

    converted = convert(scaled)
    before = converted(torch.ones(1)).item()
    k = 5
    assert (before, converted(torch.ones(1)).item()) == (6.0, 30.0)
    assert convert(converted) is converted
