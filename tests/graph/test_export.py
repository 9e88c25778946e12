"""torch.export: graphs recorded from modules and functions, for sizes that vary, in files."""

from __future__ import annotations

import contextlib
import io
import random

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import _C, nn
from warptape._higher_order_ops import scan
from warptape.export import Dim, ExportedProgram, ShapesCollection, dims, export, load, save

from .mutated_text import mutated, pieces


class Network(nn.Module):
    """Tokens to logits: sizes in arange, view, reshape, slices, and buffers."""

    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.norm = nn.BatchNorm1d(16)
        self.head = nn.Linear(16, 50)

    def forward(self, ids, scale=None):
        batch, time = ids.shape
        x = self.embedding(ids) + torch.arange(time)[None, :, None].float() / 10
        x = self.layer(x)
        x = self.norm(x.reshape(batch * time, -1)).view(batch, time, 16)
        if scale is not None:
            x = x * scale
        return {"logits": self.head(x)[:, : time - 1], "count": 3}


def network():
    torch.manual_seed(0)
    return Network().eval()


def tokens(*shape):
    return torch.randint(0, 50, shape)


def through_a_file(program):
    file = io.BytesIO()
    save(program, file)
    file.seek(0)
    return load(file)


BATCH, TIME = Dim("batch", min=1, max=64), Dim("time", min=2, max=512)


def test_sizes_that_vary():
    model = network()
    program = export(model, (tokens(2, 6),), dynamic_shapes={"ids": {0: BATCH, 1: TIME}})
    assert program.range_constraints == {"batch": (1, 64), "time": (2, 512)}
    for made in (program, through_a_file(program)):
        module = made.module()
        for shape in ((2, 6), (1, 2), (5, 7), (3, 11)):
            ids = tokens(*shape)
            got, want = module(ids), model(ids)
            assert torch.equal(got["logits"], want["logits"]) and got["count"] == 3
        assert str(made) == str(program)
        assert dict(module.named_parameters()).keys() == dict(model.named_parameters()).keys()
        assert module.state_dict().keys() == model.state_dict().keys()


def test_sizes_that_do_not_fit():
    module = export(network(), (tokens(2, 6),), dynamic_shapes=({0: BATCH},)).module()
    with pytest.raises(torch.ShapeError, match=r"batch = 65 is outside of the range \[1, 64\]"):
        module(tokens(65, 6))
    with pytest.raises(torch.ShapeError, match="expected the size 6 in input 0"):
        module(tokens(2, 7))
    with pytest.raises(torch.ShapeError, match="expected 2 dims of input 0"):
        module(tokens(2, 6, 1))
    with pytest.raises(torch.DtypeError, match="expected int64 for input 0, got float32"):
        module(torch.randn(2, 6))
    with pytest.raises(torch.DeviceError):
        module(torch.zeros(2, 6, dtype=torch.int64, device="meta"))
    with pytest.raises(TypeError, match="recorded with arguments"):
        module(tokens(2, 6), torch.ones(1))


def test_equal_and_derived_sizes():
    n = Dim("n")
    f = lambda a, b: a + b[: a.shape[0]]
    program = export(f, (torch.ones(3), torch.ones(7)), dynamic_shapes=({0: n}, {0: 2 * n + 1}))
    a, b = torch.randn(5), torch.randn(11)
    assert torch.equal(program.module()(a, b), a + b[:5])
    with pytest.raises(torch.ShapeError):
        program.module()(a, torch.randn(12))
    with pytest.raises(ValueError, match="n is 3 and, in dim 0 of input 1, 4"):
        export(f, (torch.ones(3), torch.ones(4)), dynamic_shapes=({0: n}, {0: n}))


def test_halved_sizes_must_be_divisible():
    program = export(lambda x: x.view(x.shape[0] // 2, 2), (torch.ones(4),), dynamic_shapes=({0: Dim("n")},))
    assert program.module()(torch.ones(10)).shape == (5, 2)
    with pytest.raises(torch.ShapeError, match="multiple of 2"):
        program.module()(torch.ones(5))


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda x: x.view(x.shape[0] * x.shape[0] // x.shape[0], 1) * x.shape[0] ** 2, "not linear"),
        (lambda x: x * 2 if x.shape[0] > 4 else x + 1, "other ops are called"),
        (lambda x: x + torch.tensor([1.0] * x.shape[0]), "no op made"),
        (lambda x: x * (1.0 / x.shape[0]), "no integer depends on the sizes"),
    ],
)
def test_what_depends_on_sizes_otherwise(function, message):
    with pytest.raises(NotImplementedError, match=message):
        export(function, (torch.ones(3),), dynamic_shapes=({0: Dim("n")},))
    program = export(function, (torch.ones(3),))  # for this size it is a graph
    assert torch.equal(program.module()(torch.full((3,), 2.0)), function(torch.full((3,), 2.0)))


def test_reads_are_errors_with_their_line():
    for read in (lambda x: x if x.sum() > 0 else -x, lambda x: x * x.max().item(), lambda x: x * int(x[0])):
        with pytest.raises(RuntimeError, match=r"item(\(\))? reads a tensor's value at .*test_export.py:\d+"):
            export(read, (torch.ones(3),))
    with pytest.raises(RuntimeError, match=r"tolist\(\) reads a tensor's value"):
        export(lambda x: x * torch.tensor(x.tolist()), (torch.rand(3),))
    with pytest.raises(NotImplementedError, match="backward pass cannot be traced"):
        export(lambda x: torch.autograd.grad((x * x).sum(), x)[0], (torch.ones(3, requires_grad=True),))
    with pytest.raises(NotImplementedError, match="default generator"):
        export(lambda x: x.bernoulli(generator=torch.Generator()), (torch.rand(3),))
    assert not torch.jit.is_tracing()  # nothing is recorded after an error
    assert _C._tracer() is None


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (({0: Dim("n", max=2)},), "is no n with n in"),
        (({4: Dim("n")},), "has no dim 4"),
        (({0: "n"},), "expected a Dim"),
        (({0: Dim("n")}, None), "expected 1 entries"),
        ({"y": {0: Dim("n")}}, "no argument"),
        (({0: Dim("n", min=3, max=3)},), "can be 3 alone"),
    ],
)
def test_wrong_dynamic_shapes(spec, message):
    with pytest.raises(ValueError, match=message):
        export(lambda x: x + 1, (torch.ones(3),), dynamic_shapes=spec)


def test_wrong_dims():
    for make in (
        lambda: Dim("1x"),
        lambda: Dim("inf"),
        lambda: Dim("n", min=3, max=2),
        lambda: Dim("n", min=-1),
    ):
        with pytest.raises(ValueError):
            make()
    with pytest.raises(NotImplementedError):
        Dim("n") * -1
    with pytest.raises(TypeError, match="tuple"):
        export(lambda x: x, [torch.ones(1)])


def test_automatic_dims_and_collections():
    x, y = torch.ones(3, 4), torch.ones(3, 4)
    program = export(
        torch.matmul, (x, y.T), dynamic_shapes=((Dim.DYNAMIC, Dim.STATIC), (Dim.STATIC, Dim.AUTO))
    )
    assert list(program.range_constraints) == ["s0", "s1"]
    assert program.module()(torch.ones(2, 4), torch.ones(4, 5)).shape == (2, 5)
    shapes = ShapesCollection()
    (n,) = dims("n")
    shapes[x] = shapes[y] = {0: n}
    program = export(torch.add, (x, y), dynamic_shapes=shapes)
    assert program.module()(torch.ones(7, 4), torch.ones(7, 4)).shape == (7, 4)


def test_state():
    model = network()
    program = export(model, (tokens(2, 6),))
    assert isinstance(program, ExportedProgram) and program.run_decompositions() is program
    assert program.state_dict.keys() == model.state_dict().keys()
    assert set(program.graph_signature.buffers) == dict(model.named_buffers()).keys()
    with pytest.raises(RuntimeError, match=r"exported_program\.module"):
        program(tokens(2, 6))
    module = program.module()
    loss = module(tokens(2, 6))["logits"].sum()
    loss.backward()
    assert all(p.grad is not None for p in module.parameters())
    module.double()
    assert module(tokens(2, 6))["logits"].dtype == torch.float64


def test_training_updates_buffers():
    model = nn.BatchNorm1d(4)
    module = through_a_file(export(model, (torch.randn(8, 4),))).module()
    before = module.running_mean.clone()
    x = torch.randn(8, 4) + 3
    module(x)
    want = nn.BatchNorm1d(4)
    want.running_mean.copy_(before)
    want(x)
    assert torch.equal(module.running_mean, want.running_mean) and not torch.equal(
        module.running_mean, before
    )


def test_random_ops_draw_as_eager_code():
    model = nn.Dropout(0.5)
    x = torch.randn(100)
    module = through_a_file(export(model, (x,))).module()
    torch.manual_seed(3)
    want = model(x), model(x)
    torch.manual_seed(3)
    assert all(torch.equal(module(x), w) for w in want)


def test_in_place_and_views():
    def f(x):
        y = x.clone()
        view = y[1:]
        view.mul_(2)
        y[0] = 5.0
        y += view.sum()
        return y, view

    module = through_a_file(export(f, (torch.randn(4),))).module()
    x = torch.randn(4)
    assert all(torch.equal(a, b) for a, b in zip(module(x), f(x), strict=True))


# ---- control flow -----------------------------------------------------------------------------------------


def flow(x, n):
    y = torch.cond(x.sum() > 0, lambda a: a * WEIGHT, lambda a: a - 1, (x,))
    _, z = torch.while_loop(lambda i, z: i < n, lambda i, z: (i + 1, z * 1.5), (torch.tensor(0), y))
    return scan(lambda c, r: (c + r, c * r), torch.zeros(4), torch.stack([z, z + 1, z * 2]))


WEIGHT = torch.linspace(1, 2, 4)


def test_control_flow():
    x, n = torch.randn(4), torch.tensor(3)
    module = through_a_file(export(flow, (x, n))).module()
    for case in ((x, n), (-x, torch.tensor(5)), (torch.ones(4), torch.tensor(0))):
        assert all(torch.equal(a, b) for a, b in zip(module(*case), flow(*case), strict=True))
    x = torch.randn(4, requires_grad=True)
    grads = [torch.autograd.grad(f(x, n)[1].sum(), x)[0] for f in (module, flow)]
    assert torch.equal(*grads)


def test_nested_control_flow():
    def f(x):
        inner = lambda a: torch.cond(a[0] > 1, lambda b: b * 3, lambda b: b + x, (a,))
        return torch.cond(x.sum() > 0, inner, lambda a: a.neg(), (x * 1,))

    module = through_a_file(export(f, (torch.ones(2),))).module()
    for x in (torch.tensor([2.0, 1.0]), torch.tensor([0.5, 1.0]), torch.tensor([-3.0, 1.0])):
        assert torch.equal(module(x), f(x))


def test_branches_that_differ():
    with pytest.raises(RuntimeError):
        export(lambda x: torch.cond(x.sum() > 0, lambda a: a, lambda a: a.double(), (x,)), (torch.ones(2),))
    with pytest.raises(RuntimeError):
        export(
            lambda x: torch.while_loop(lambda a: a.sum() < 9, lambda a: a[:1], (x,)),
            (torch.ones(2),),
        )


# ---- files ------------------------------------------------------------------------------------------------


def contents():
    file = io.BytesIO()
    save(export(network(), (tokens(2, 6),), dynamic_shapes={"ids": {0: BATCH, 1: TIME}}), file)
    return file.getvalue()


def test_file_is_safetensors(tmp_path):
    import json

    data = contents()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8 : 8 + size])
    assert header["head.weight"]["shape"] == [50, 16] and header["__graph__"]["dtype"] == "U8"
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    from warptape.utils import safetensors

    assert torch.equal(safetensors.load_file(path)["head.weight"], network().head.weight)


def test_cut_files():
    data = contents()
    for n in [*range(0, 200, 7), *range(200, len(data), 997)]:
        with pytest.raises(ValueError, match="graph: "):
            load(io.BytesIO(data[:n]))


def test_flipped_bits():
    data = contents()
    rng = random.Random(5)
    for _ in range(2000):
        place, bit = rng.randrange(len(data)), 1 << rng.randrange(8)
        broken = bytearray(data)
        broken[place] ^= bit
        try:
            program = load(io.BytesIO(bytes(broken)))
        except (ValueError, NotImplementedError):
            continue
        # a flip that changes nothing: the case of a letter in \\u00xx, a blank
        assert str(program) and sorted(program.state_dict) == sorted(load(io.BytesIO(data)).state_dict)


def test_other_signatures():
    text = export(lambda x: x.relu(), (torch.ones(2),))._function.graph.text()
    name, number = text[text.index("relu") :].split("(")[0].split("#")
    for old, new, message in (
        (number, "0badcafe", "relu has other arguments in this version"),
        (f"{name}#", "no_such_op#", "there is no op no_such_op"),
    ):
        with pytest.raises(NotImplementedError, match=message):
            _C._OpGraph.parse(text.replace(old, new), {})


def test_mutated_texts(pytestconfig):
    """Texts with pieces swapped, doubled, dropped: an error that says the line, or a graph whose text it is;
    running that is an error of an op, or none."""
    x = torch.randn(4)
    graphs = [export(flow, (x, torch.tensor(2)))._function.graph]
    n = Dim("n")
    graphs.append(export(lambda a: F.gelu(a[1:].view(-1, 1)), (x,), dynamic_shapes=({0: n},))._function.graph)
    rng = random.Random(1)

    def replace(words, i, kind):
        words[i] = rng.choice(["0", "-1", "9999999999999999999", "None", "%3", "[", "T", "1e400", "nan"])

    ran = refused = 0
    for _ in range(pytestconfig.getoption("--programs") * 25):
        graph = rng.choice(graphs)
        constants = {graph.values[i][3]: t.clone() for i, t in graph.constants.items()}
        text = mutated(pieces(graph.text(), strings=True), rng, 4, replace)
        try:
            made = _C._OpGraph.parse(text, constants)
        except (ValueError, NotImplementedError, RuntimeError):
            refused += 1
            continue
        assert _C._OpGraph.parse(made.text(), constants).text() == made.text()
        with contextlib.suppress(RuntimeError):
            made.copy().optimise(freeze=True, gradients=False, fold_frozen_conv_bn=True)
        if "while_loop" in made.text():
            continue  # it may run for ever, as one that is written so
        ran += 1
        with contextlib.suppress(RuntimeError, ValueError, TypeError, IndexError, MemoryError):
            made.run([x, torch.tensor(2)][: len(made.inputs)])
    assert ran and refused


def test_lists_of_numbers_of_all_kinds():
    def scaled(a):
        return torch._foreach_mul([a, a, a, a], [2, 0.5, True, 1j])

    x = torch.tensor([1.0, -3.0])
    program = export(scaled, (x,))
    text = program._function.graph.text()
    assert "scalars=[2, 0.5, True, complex 0.0 1.0]" in text
    assert _C._OpGraph.parse(text, {}).text() == text
    for found, expected in zip(program.module()(x), scaled(x), strict=True):
        assert found.dtype == expected.dtype and torch.equal(found, expected)
