"""torch.jit: what is traced or scripted does what it did, and does so from a file."""

from __future__ import annotations

import io

import pytest
import warptape as torch
import warptape.nn.functional as F
from warptape import nn


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 8, 3, padding=1)
        self.norm = nn.BatchNorm2d(8)
        self.head = nn.Linear(8, 10)
        self.label = "convolutions"

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norm(self.conv(x))), 2)
        return self.head(F.adaptive_avg_pool2d(x, 1).flatten(1)), x.size(1)


def network():
    torch.manual_seed(0)
    return Convolutions().eval()


def through_a_file(made):
    file = io.BytesIO()
    torch.jit.save(made, file)
    file.seek(0)
    return torch.jit.load(file)


def test_traced_module():
    model = network()
    traced = torch.jit.trace(model, torch.randn(1, 3, 16, 16))
    assert isinstance(traced, torch.jit.ScriptModule) and not traced.training
    for made in (traced, through_a_file(traced)):
        for shape in ((1, 3, 16, 16), (4, 3, 9, 21)):  # any size for which the same ops are called
            x = torch.randn(*shape)
            assert torch.equal(made(x)[0], model(x)[0]) and made(x)[1] == 8
        with pytest.raises(torch.ShapeError, match="expected the size 3 in input 0"):
            made(torch.randn(1, 4, 16, 16))
    assert "conv2d" in traced.graph and "conv.weight" in traced.graph
    assert traced.conv.weight is model.conv.weight
    loaded = through_a_file(traced)
    assert {n for n, _ in loaded.named_parameters()} == {n for n, _ in model.named_parameters()}
    loaded.load_state_dict(traced.state_dict())


def test_traced_function():
    def f(a, b):
        return {"product": a @ b, "sums": (a.sum(), b.sum(0))}

    traced = torch.jit.trace(f, (torch.randn(2, 3), torch.randn(3, 4)))
    a, b = torch.randn(5, 3), torch.randn(3, 2)
    for made in (traced, through_a_file(traced)):
        got, want = made(a, b), f(a, b)
        assert torch.equal(got["product"], want["product"]) and torch.equal(got["sums"][1], want["sums"][1])
    assert traced.__class__ is torch.jit.ScriptFunction


def test_traced_modules_train():
    model, x = network(), torch.randn(2, 3, 8, 8)
    traced = torch.jit.trace(model, x)
    traced(x)[0].sum().backward()
    grads = [p.grad.clone() for p in model.parameters()]
    model.zero_grad()
    model(x)[0].sum().backward()
    assert all(torch.equal(p.grad, g) for p, g in zip(model.parameters(), grads, strict=True))


def test_what_python_decides_by_values_is_as_in_the_example():
    def f(x):
        return x * 2 if x.sum() > 0 else x - 1

    with pytest.warns(
        torch.jit.TracerWarning, match=r"TracerWarning: item.* reads a tensor's value at .*test_jit.py:\d+"
    ):
        traced = torch.jit.trace(f, (torch.ones(2),), check_trace=False)
    assert torch.equal(traced(-torch.ones(2)), torch.tensor([-2.0, -2.0]))


@pytest.mark.filterwarnings("ignore")
def test_check_of_traces():
    with pytest.raises(torch.jit.TracingCheckError, match="no op made"):
        torch.jit.trace(lambda x: x * torch.tensor(x.tolist()), (torch.rand(2),))
    with pytest.raises(NotImplementedError, match=r"numpy\(\) reads a tensor's value at .*test_jit.py"):
        torch.jit.trace(lambda x: x * torch.from_numpy(x.numpy().copy()), (torch.rand(2),))
    with pytest.raises(torch.jit.TracingCheckError, match=r"other ops are called"):
        torch.jit.trace(lambda x: x * 2 if x[0] > 0 else x - 1, (torch.tensor([1.0, -1.0]),))
    with pytest.raises(RuntimeError, match="example_inputs must be given"):
        torch.jit.trace(lambda x: x)


def test_an_address_is_not_traced():
    # check_trace may see the same address in both of its runs: the allocator hands out what was freed
    with pytest.raises(NotImplementedError, match=r"data_ptr reads a tensor's value at .*test_jit\.py"):
        torch.jit.trace(lambda x: x * (x.data_ptr() % 7), torch.ones(3))


def test_example_keyword_inputs():
    traced = torch.jit.trace(
        lambda a, b=None: a - b, example_kwarg_inputs={"a": torch.ones(2), "b": torch.ones(2)}
    )
    assert torch.equal(traced(a=torch.ones(3), b=torch.zeros(3)), torch.ones(3))


def test_scripted_function():
    @torch.jit.script
    def gelu(x):
        """Doc."""
        return x * 0.5 * (1 + torch.erf(x / 1.41421))

    with pytest.raises(RuntimeError, match="call the function once"):
        gelu.save(io.BytesIO())
    x = torch.randn(4)
    assert gelu.__name__ == "gelu" and gelu.__doc__ == "Doc."
    assert torch.equal(through_a_file(gelu)(x) if gelu(x) is not None else x, gelu(x))
    assert "erf" in gelu.graph
    again = torch.jit.script(lambda x: x + 1, example_inputs=[(x,)])
    assert torch.equal(through_a_file(again)(x), x + 1)


def halve_or_double(x):
    """Python's control flow, by values."""
    n = 0
    while x.abs().sum() > 4:
        x = x / 2
        n += 1
    if x.sum() > 0 and n < 3:
        x = x * 10
    return x, n


def test_scripted_control_flow():
    scripted = torch.jit.script(halve_or_double)
    scripted(torch.ones(3))
    loaded = through_a_file(scripted)
    assert "while_loop" in scripted.graph and "cond" in scripted.graph
    for x in (torch.ones(3), torch.full((3,), 9.0), torch.full((3,), -90.0), torch.zeros(3)):
        (got, turns), (want, counted) = loaded(x), halve_or_double(x)
        assert torch.equal(got, want) and turns == counted

    @torch.jit.script
    def undefined(x):
        if x.sum() > 0:
            y = x
        return y

    undefined(torch.ones(2))
    with pytest.raises(torch.jit.NotSupportedError, match=r"(?s)'y' is .*not set.*test_jit.py"):
        _ = undefined.graph


def test_scripted_module(tmp_path):
    model = network()
    scripted = torch.jit.script(model)
    x = torch.randn(2, 3, 8, 8)
    assert torch.equal(scripted(x)[0], model(x)[0]) and scripted.label == "convolutions"
    assert list(scripted.state_dict()) == list(model.state_dict()) and not scripted.training
    scripted.train()
    assert model.training and model.norm.training
    scripted.eval()
    scripted.save(str(tmp_path / "model.pt"))
    loaded = torch.jit.load(tmp_path / "model.pt", map_location="cpu")
    assert torch.equal(loaded(x)[0], model(x)[0])


def test_wrong_input(tmp_path):
    with pytest.raises(TypeError, match="expected a function, module or class"):
        torch.jit.script(3)
    with pytest.raises(RuntimeError, match="has no graph"):
        torch.jit.save(nn.Linear(2, 2), io.BytesIO())
    (tmp_path / "text.pt").write_text("no graph at all")
    with pytest.raises(ValueError, match="graph: the file is cut"):
        torch.jit.load(tmp_path / "text.pt")
    torch.save({"a": torch.ones(2)}, tmp_path / "pickle.pt")
    with pytest.raises(ValueError, match="graph: "):
        torch.jit.load(tmp_path / "pickle.pt")
    with pytest.raises(FileNotFoundError):
        torch.jit.load(tmp_path / "none.pt")
    old = (tmp_path / "text.pt").read_bytes()
    with pytest.raises(NotImplementedError, match="no dtype for constant"):
        torch.jit.save(torch.jit.trace(lambda x: x * CONSTANT, (torch.ones(2),)), tmp_path / "text.pt")
    assert (tmp_path / "text.pt").read_bytes() == old


CONSTANT = torch.ones(2, dtype=torch.complex128)
