"""What programs do with state: of the module, of the thread, and what is not seen by ops."""

from __future__ import annotations

import copy
import io
import warnings

import numpy as np
import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn
from warptape._higher_order_ops.while_loop import while_loop
from warptape.export import Dim, export, load, save


def through_a_file(program):
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


class Everything(nn.Module):
    """Writes buffers, an attribute, a shared table, its input, and draws."""

    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.embedding = nn.Embedding(4, 3, max_norm=0.5)
        self.register_buffer("total", torch.ones(2, 3))
        self.calls = 0
        self.last = None

    def forward(self, x):
        x.mul_(2)
        self.total += x
        with torch.no_grad():
            self.embedding.weight.mul_(0.5)
        y = F.dropout(self.norm(x) + self.embedding(torch.tensor([0, 1])), 0.5)
        self.calls, self.last = self.calls, y
        return y + self.total


RECORDERS = {
    "export": lambda m, x: export(m, (x,)),
    "dynamic": lambda m, x: export(m, (x,), dynamic_shapes=({0: Dim("n", min=2, max=2 + len(x))},)),
    "trace": lambda m, x: torch.jit.trace(m, (x,), check_trace=False),
}


@pytest.mark.parametrize("kind", RECORDERS)
def test_recording_leaves_module_and_input_alone(kind):
    torch.manual_seed(0)
    model, x = Everything(), torch.randn(2, 3)
    before = {n: t.detach().clone() for n, t in model.state_dict().items()}
    versions = {n: t._version for n, t in model.state_dict().items()}
    given, state = x.clone(), torch.get_rng_state()
    if kind == "dynamic":  # the buffer's size cannot vary with the input's
        with pytest.raises((RuntimeError, ValueError)):
            RECORDERS[kind](model, x)
    else:
        RECORDERS[kind](model, x)
    assert torch.equal(x, given) and torch.equal(torch.get_rng_state(), state)
    for name, t in model.state_dict().items():
        assert torch.equal(t, before[name]) and t._version == versions[name], name
    assert model.last is None and model.calls == 0 and model.training
    assert all(p.grad is None and p.is_leaf for p in model.parameters())
    assert not model.total.requires_grad


def test_buffers_go_on_from_where_the_module_is():
    class Counter(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.ones(2))

        def forward(self, x):
            self.total += x
            return self.total * 2

    program = export(Counter(), (torch.ones(2),)).module()
    assert [program(torch.ones(2))[0].item() for _ in range(2)] == [4.0, 6.0]

    class Assigns(Counter):
        def forward(self, x):
            self.total = self.total + x
            return self.total

    model = Assigns()
    for record in (export, torch.jit.trace):
        with pytest.raises(NotImplementedError, match="assigns its buffer total"):
            record(model, (torch.ones(2),))
    assert torch.equal(model.total, torch.ones(2))


def test_weights_are_read_where_the_module_has_them():
    zero = {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)}
    x = torch.ones(1, 2)
    for make in (lambda m: torch.jit.trace(m, x), lambda m: export(m, (x,)).module()):
        for change in ("assign", "attribute", "call", "copy", "optimizer", "data"):
            model = make(nn.Linear(2, 2))
            if change == "assign":
                model.load_state_dict(zero, assign=True)
            elif change == "attribute":
                model.weight, model.bias = (nn.Parameter(t.clone()) for t in zero.values())
            elif change == "call":
                assert torch.equal(torch.func.functional_call(model, zero, (x,)), torch.zeros(1, 2))
                continue
            elif change == "data":
                model.weight.data, model.bias.data = torch.zeros(2, 2), torch.zeros(2)
            elif change == "copy":
                first = model(x)
                made = copy.deepcopy(model)
                with torch.no_grad():
                    for p in made.parameters():
                        p.zero_()
                assert torch.equal(model(x), first) and torch.equal(made(x), torch.zeros(1, 2))
                continue
            else:
                optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
                before = model(x)
                before.sum().backward()
                optimizer.step()
                want = F.linear(x, model.weight, model.bias)
                assert torch.equal(model(x), want) and not torch.equal(want, before)
                continue
            assert torch.equal(model(x), torch.zeros(1, 2)), change
    traced = torch.jit.trace(nn.Linear(2, 2), x)
    traced.load_state_dict(zero, assign=True)
    file = io.BytesIO()
    torch.jit.save(traced, file)
    file.seek(0)
    assert torch.equal(torch.jit.load(file)(x), torch.zeros(1, 2))


def test_whole_state_and_what_it_is():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.function, self.graph = nn.Linear(3, 3), nn.Linear(3, 3)
            self.tied, self.unused = self.function, nn.Linear(2, 2)
            self.norm = nn.BatchNorm1d(3)
            self.codes = nn.Parameter(torch.ones(3, dtype=torch.int8), requires_grad=False)
            self.graph.bias.requires_grad_(False)
            self.register_buffer("scratch", torch.ones(3), persistent=False)
            self.constant = torch.full((3,), 2.0)

        def forward(self, x):
            return self.graph(self.tied(self.norm(x))) * self.scratch * self.codes * self.constant

    model, x = Model().eval(), torch.randn(2, 3)
    program = export(model, (x,))
    trained = {n: p.requires_grad for n, p in model.named_parameters()}
    file = io.BytesIO()
    torch.jit.save(torch.jit.trace(model, (x,)), file)
    file.seek(0)
    for made in (program.module(), through_a_file(program).module(), torch.jit.load(file)):
        assert made.state_dict().keys() == model.state_dict().keys()
        assert {n: p.requires_grad for n, p in made.named_parameters()} == trained
        made.load_state_dict(model.state_dict())
        assert torch.equal(made(x), model(x))
    assert program.state_dict.keys() == model.state_dict().keys()


def test_modes_of_programs():
    program = export(nn.Dropout(0.5).train(), (torch.ones(4),)).module()
    for change in (program.eval, program.train):
        with pytest.raises(NotImplementedError, match="not supported yet"):
            change()


def gradients(f, *args):
    args = [a.detach().requires_grad_(a.is_floating_point()) for a in args]
    f(*args).sum().backward()
    return [a.grad for a in args]


def test_grad_mode_is_part_of_calls():
    def f(x):
        with torch.no_grad():
            a = x.sin()
            with torch.enable_grad():
                b = x.cos()
        with torch.inference_mode():
            c = x.exp()
        return a * b * x + c.clone()

    x = torch.tensor([1.0, 2.0])
    program = export(f, (x,))
    with torch.no_grad():
        under = export(f, (x,))
    for made in (program, through_a_file(program), under):
        assert torch.equal(gradients(made.module(), x)[0], gradients(f, x)[0])
    assert "under no_grad" in str(program) and str(under) == str(program)
    with pytest.raises(NotImplementedError, match="no_grad"):
        _ = program.graph_module


def test_autocast_is_part_of_calls():
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()
    functions = [
        lambda x: torch.einsum("ij,kj->ik", x, x),
        lambda x: torch.inner(x, x),
        lambda x: torch.linalg.multi_dot((x, x, x)),
        lambda x: attention(x[None], x[None], x[None], need_weights=False)[0],
        lambda x: x @ x,
        lambda x: F.layer_norm(x @ x, (4,)),
    ]
    x = torch.randn(4, 4)
    for f in functions:

        def cast(x, f=f):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return f(x)

        want = cast(x)
        program = export(cast, (x,))
        with torch.autocast("cpu", dtype=torch.bfloat16):
            around = export(f, (x,))
        for made in (program, through_a_file(program), around):
            got = made.module()(x)
            assert got.dtype == want.dtype and torch.equal(got, want)
        assert torch.equal(export(f, (x,)).module()(x), f(x))  # nothing of it stays


def test_stale_casts_are_not_kept():
    linear, x = nn.Linear(3, 3), torch.ones(1, 3)

    def f(x):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return torch.einsum("ij,kj->ik", x, linear.weight)

    program = export(f, (x,)).module()
    first = program(x)
    with torch.no_grad():
        linear.weight.zero_()
    assert not torch.equal(program(x), first) and torch.equal(program(x), f(x))


READS = {
    "tolist": lambda x, t: x * x.flatten().tolist()[0],
    "largest": lambda x, t: x * max(x.flatten().tolist()),
    "numpy": lambda x, t: x + torch.from_numpy(np.asarray(x.numpy()) * 2),
    "array": lambda x, t: x * float(np.asarray(x).max()),
    "bool": lambda x, t: x if x.sum() > 0 else -x,
    "int": lambda x, t: x * int(t * 4),
    "float": lambda x, t: x * float(t),
    "item": lambda x, t: x * t.item(),
    "index": lambda x, t: x[int(t)],
    "format": lambda x, t: x * float(f"{t:.3f}"),
    "repr": lambda x, t: x * len(repr(t)),
    "slope": lambda x, t: F.leaky_relu(x, t),
    "scale": lambda x, t: F.scaled_dot_product_attention(x[None], x[None], x[None], scale=t),
    "full_like": lambda x, t: torch.full_like(x, t),
    "full": lambda x, t: torch.full((2,), t),
    "fill_": lambda x, t: x.clone().fill_(t),
    "pad": lambda x, t: F.pad(x, (1, 1), value=t),
    "alpha": lambda x, t: torch.add(x, x, alpha=t),
    "eps": lambda x, t: F.layer_norm(x, (3,), eps=t),
    "delta": lambda x, t: F.huber_loss(x, x * 0, delta=t),
    "clamp": lambda x, t: x.clamp(t, 3.0),
    "masked_fill": lambda x, t: x.masked_fill(x > 0, t),
    "where": lambda x, t: torch.where(x > 0, x, t),
    "item set": lambda x, t: _set(x, t),
    "tensor": lambda x, t: x * torch.tensor(t),
    "as_tensor": lambda x, t: x * torch.as_tensor(t),
    "tensor of list": lambda x, t: x * torch.tensor([t, t, t]),
    "pow": lambda x, t: x.abs() ** t,
    "rpow": lambda x, t: 2**t * x,
    "linspace": lambda x, t: torch.linspace(0, t, 3) * x,
    "lerp": lambda x, t: torch.lerp(x, x * 2, t),
    "address": lambda x, t: x * (x.data_ptr() % 7),
    "storage": lambda x, t: x * x.untyped_storage().tolist()[0],
    "data": lambda x, t: _data(x, t),
    "detached": lambda x, t: x * t.detach().item(),
    "view": lambda x, t: x * float(t.view(1)[0]),
}


def _set(x, t):
    y = x.clone()
    y[0] = t
    return y


def _data(x, t):
    y = x.clone()
    y.data = y.data * t
    return y


@pytest.mark.parametrize("name", READS)
def test_values_that_python_reads(name):
    """Equal to eager code for other values, or refused."""
    f = READS[name]
    x, t = torch.linspace(-2, 2, 12).reshape(4, 3), torch.tensor(0.75)
    other = torch.linspace(-1, 5, 12).reshape(4, 3), torch.tensor(0.25)
    recorders = (
        lambda: export(f, (x, t)).module(),
        lambda: export(f, (x, t), dynamic_shapes=({0: Dim("n")}, None)).module(),
        lambda: torch.jit.trace(f, (x, t)),
    )
    for record in recorders:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            try:
                program = record()
            except (RuntimeError, TypeError, ValueError):
                continue
        assert torch.equal(program(*other), f(*other))


def test_sizes_that_depend_on_values():
    computed = (
        lambda x: x[x > 0].sum() / x[x > 0].numel(),
        lambda x: torch.zeros((x > 0).nonzero().shape[0]),
        lambda x: x * torch.bincount(x.clamp(min=0).long()).shape[0],
        lambda x: x * torch.where(x > 0)[0].size(0),
        lambda x: x[x > 0].view(x[x > 0].shape[0], 1),
    )
    refused = (lambda x: x * len(x[x > 0]), lambda x: x * len(x.unique()))
    x = torch.randn(8)
    others = torch.linspace(-1, 1, 8), torch.tensor([3.0, -1, -1, -1, -1, -1, -1, 1])
    for f in computed:
        for module in (export(f, (x,)).module(), torch.jit.trace(f, (x,))):
            assert all(torch.equal(module(other), f(other)) for other in others)
    for f in refused:
        for record in (lambda f: export(f, (x,)), lambda f: torch.jit.trace(f, (x,))):
            with pytest.raises(
                NotImplementedError, match=r"a size that depends on values at .*test_export_state"
            ):
                record(f)
    f = lambda x: (x[x > 0].sum(), x[x > 0] * 2, x.clamp(min=0).unique()[1:] * 1)
    program = export(f, (torch.randn(12),)).module()
    for x in (torch.ones(12), -torch.ones(12), torch.linspace(-1, 1, 12)):
        assert all(torch.equal(a, b) for a, b in zip(program(x), f(x), strict=True))


def test_out_arguments():
    def f(x):
        y, z, both = torch.empty_like(x), torch.empty(0), (torch.empty(0), torch.empty(0, dtype=torch.int64))
        torch.mul(x, x, out=y)
        torch.add(x, 1, out=z)
        torch.max(x.view(2, 2), 0, out=both)
        return y + 0, z * 1, both[0], both[1]

    x = torch.arange(1.0, 5)
    scripted = torch.jit.script(f)
    scripted(x)
    file = io.BytesIO()
    torch.jit.save(scripted, file)
    file.seek(0)
    for made in (export(f, (x,)).module(), torch.jit.trace(f, (x,)), torch.jit.load(file)):
        assert all(torch.equal(a, b) for a, b in zip(made(x * 3), f(x * 3), strict=True))


def test_tensors_made_of_numbers_are_made_in_each_run():
    def f(x):
        y = torch.tensor([0.0, 0.0])
        y += x
        return y

    program = export(f, (torch.ones(2),)).module()
    assert [program(torch.ones(2)).tolist() for _ in range(3)] == [[1.0, 1.0]] * 3


def test_one_tensor_as_two_inputs():
    x = torch.ones(3)
    program = export(lambda a, b: a - b, (x, x)).module()
    assert torch.equal(program(x * 3, x), x * 2)
    accumulate = lambda x: while_loop(lambda a: a.sum() < 50, lambda a: (a + x,), (x,))[0]
    both = lambda x: while_loop(lambda a, b: a.sum() < 10, lambda a, b: (a + 1, b * 2), (x, x))
    assert torch.equal(export(accumulate, (x,)).module()(x), accumulate(x))
    assert all(map(torch.equal, export(both, (x,)).module()(x), both(x)))
    carried = lambda x: torch.cond(x.sum() > 0, lambda a: a.clone().add_(x), lambda a: a - x, (x,))
    assert torch.equal(export(carried, (x,)).module()(x), carried(x))


def test_arguments_in_another_order():
    a, b = torch.ones(3), torch.ones(3) * 2
    by_name = export(lambda *, a, b: a - b, (), {"a": a, "b": b}).module()
    assert torch.equal(by_name(b=b, a=a), a - b)
    in_dict = export(lambda d: d["a"] - d["b"], ({"a": a, "b": b},)).module()
    assert torch.equal(in_dict({"b": b, "a": a}), a - b)
    assert torch.equal(through_a_file(export(lambda a, b: a - b, (a, b))).module()(a, b=b), a - b)
    assert torch.equal(torch.jit.trace(nn.Identity(), (a,))(input=b), b)
    for wrong in ({"a": a}, {"a": a, "b": b, "c": a}):
        with pytest.raises(TypeError):
            by_name(**wrong)


@torch.library.custom_op("test_export::decay", mutates_args=())
def decay(x: torch.Tensor, factor: float, more: list[torch.Tensor]) -> torch.Tensor:
    out = torch.empty_like(x)
    out.numpy()[...] = np.cumsum(x.numpy()) * factor + sum(m.numpy() for m in more)
    return out


decay.register_fake(lambda x, factor, more: torch.empty_like(x))
decay.register_autograd(lambda ctx, grad: (grad * 7, None, [None] * 2))


@torch.library.custom_op("test_export::add_one", mutates_args=("x",))
def add_one(x: torch.Tensor) -> None:
    x.numpy()[...] += 1


def test_custom_ops_are_calls_of_graphs():
    def f(x):
        y = x * 2
        z = decay(y, 0.5, [x.detach(), x.detach() + 1])
        with torch.no_grad():
            w = y.clone()
            add_one(w)
        return z + w

    x = torch.randn(4)
    junk = [torch.full((4,), 777.0) for _ in range(50)]
    del junk
    program = export(f, (x,))
    for made in (program, through_a_file(program)):
        assert torch.equal(made.module()(x + 1), f(x + 1))
        assert torch.equal(gradients(made.module(), x)[0], gradients(f, x)[0])


class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.round()

    @staticmethod
    def backward(ctx, grad):
        return grad


def test_backward_of_functions_is_refused():
    x = torch.tensor([0.4, 0.6], requires_grad=True)
    program = export(lambda x: Straight.apply(x * 2), (x.detach(),)).module()
    assert torch.equal(program(x), (x * 2).round())
    with pytest.raises(NotImplementedError, match=r"Straight.*autograd.Function"):
        program(x).sum().backward()


def test_results_of_ops_that_return_lists_in_fx():
    x = torch.ones(4, 3)
    for f in (
        lambda x: x.split(9)[0] * 2,
        lambda x: x.chunk(1)[0] * 2,
        lambda x: torch.where(x.flatten() > 0)[0] * 2,
        lambda x: x[:1].unbind()[0] * 2,
        lambda x: torch.meshgrid(x[0])[0] * 2,
    ):
        assert torch.equal(export(f, (x,)).graph_module(x), f(x))


def test_scripted_attributes_and_effects():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 3.0

        def forward(self, x):
            return x * self.k

    scripted = torch.jit.script(Model())
    scripted.k = 5.0
    assert float(scripted(torch.ones(1))) == 5.0 and scripted.original.k == 5.0

    def appends(x):
        out = []
        for i in range(2):
            if x[i] > 0:
                out.append(x[i])
            else:
                out.append(-x[i])
        return torch.stack(out)

    def pops(x):
        out = [x, -x]
        if x.sum() > 0:
            y = out.pop()
        else:
            y = out.pop(0)
        return y

    def extends(x):
        out = []
        if x.sum() > 0:
            out += [x]
        else:
            out += [x, x]
        return torch.cat(out)

    for f in (appends, pops, extends):
        made = torch.jit.script(f)
        made(torch.tensor([1.0, -2.0]))
        with pytest.raises(torch.jit.NotSupportedError):
            made.save(io.BytesIO())


def test_traces_of_functions_that_ask_for_no_size():
    r = torch.ones
    two = torch.jit.trace(lambda a, b: a @ b.t(), (r(4, 8), r(4, 8)))
    assert two(r(2, 8), r(5, 8)).shape == (2, 5)
    linear = torch.jit.trace(nn.Linear(4, 3), (r(2, 4),))
    assert linear(r(0, 4)).shape == (0, 3) and linear(r(5, 2, 4)).shape == (5, 2, 3)
    many = torch.jit.trace(lambda *x: sum(v.sum() for v in x), tuple(r(3 + i) for i in range(6)))
    assert many(*[r(20 + i) for i in range(6)]) == sum(20 + i for i in range(6))
    rows = torch.jit.trace(lambda x: x[..., 0] * 1, (r(2, 4),))  # which dim that is goes by their number
    assert torch.equal(rows(r(7, 4)), r(7))
    with pytest.raises(torch.ShapeError):
        rows(r(7, 4, 2))


def test_random_numbers_of_python_and_counters():
    class Counts(nn.Module):
        def __init__(self):
            super().__init__()
            self.k = 0

        def forward(self, x):
            self.k += 1
            return x * (0.5 + self.k)

    import random

    for f in (lambda x: x * random.random(), Counts()):
        with pytest.raises(NotImplementedError) as caught:
            export(f, (torch.ones(3),))
        assert "sizes" not in str(caught.value)
