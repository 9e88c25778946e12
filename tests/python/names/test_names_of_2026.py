"""Names that libraries of 2025 and 2026 read, with what stands behind them. Numbers are PyTorch 2.13's."""

from __future__ import annotations

import collections
import functools
import importlib
import inspect
import pickle
import subprocess
import sys
import tempfile
import threading
import warnings

import numpy as np
import pytest
import scipy.linalg
import warptape as torch
from warptape import nn
from warptape.nn import functional as F

# ---- torch.nn.grad -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("dims", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [{}, {"stride": 2, "padding": 1}, {"dilation": 2, "groups": 2}, {"stride": 3, "padding": 2}]
)
def test_gradients_of_convolutions(dims, options):
    torch.manual_seed(0)
    x = torch.randn(2, 4, *range(7, 7 + dims), dtype=torch.float64, requires_grad=True)
    w = torch.randn(6, 4 // options.get("groups", 1), *[3] * dims, dtype=torch.float64, requires_grad=True)
    y = getattr(F, f"conv{dims}d")(x, w, **options)
    g = torch.randn_like(y)
    of_x, of_w = torch.autograd.grad(y, (x, w), g)
    by_input, by_weight = (getattr(nn.grad, f"conv{dims}d_{of}") for of in ("input", "weight"))
    torch.testing.assert_close(by_input(x.shape, w.detach(), g, **options), of_x)
    torch.testing.assert_close(by_weight(x.detach(), w.shape, g, **options), of_w)
    assert not by_input(x.shape, w.detach(), g, **options).requires_grad
    assert torch.autograd.gradcheck(
        lambda w, g: by_input(x.shape, w, g, **options), (w, g.requires_grad_()), fast_mode=True
    )
    with pytest.raises(ValueError, match=f"grad.conv{dims}d_input requires specifying an input_size"):
        by_input(None, w, g)


# ---- torch.lobpcg ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("largest", [True, False])
@pytest.mark.parametrize(("m", "k"), [(3, 1), (9, 3), (40, 5)])
def test_lobpcg(m, k, largest):
    rng = np.random.default_rng(m)
    a, b = (x @ x.T + np.eye(m) for x in rng.standard_normal((2, m, m)))
    A, B = torch.from_numpy(a), torch.from_numpy(b)
    for second in (None, B):
        wanted = scipy.linalg.eigh(a, None if second is None else b, eigvals_only=True)
        wanted = wanted[::-1][:k] if largest else wanted[:k]
        E, X = torch.lobpcg(A, k, second, largest=largest, niter=-1)
        np.testing.assert_allclose(E.numpy(), wanted, 1e-8)
        right = X if second is None else B @ X
        np.testing.assert_allclose((X.mT @ right).numpy(), np.eye(k), atol=1e-9)
        assert (A @ X - right * E).norm() < 1e-5 * A.norm()
    batch = torch.stack([A, 2 * A])
    assert torch.allclose(torch.lobpcg(batch, k, largest=largest, niter=-1)[0][1], 2 * torch.lobpcg(
        A, k, largest=largest, niter=-1)[0])  # fmt: skip


def test_lobpcg_of_a_sparse_matrix_and_its_gradient():
    n = 100  # the Laplacian of a line: 2 - 2 cos(pi j / (n + 1))
    i = torch.arange(n)
    places = torch.stack([torch.cat([i, i[:-1], i[1:]]), torch.cat([i, i[1:], i[:-1]])])
    values = torch.cat([torch.full((n,), 2.0), torch.full((2 * n - 2,), -1.0)]).double()
    steps = []
    E, _ = torch.lobpcg(
        torch.sparse_coo_tensor(places, values, (n, n)), 2, tracker=lambda w: steps.append(w.ivars["istep"])
    )
    np.testing.assert_allclose(E.numpy(), 2 - 2 * np.cos(np.pi * np.arange(n, n - 2, -1) / (n + 1)), 1e-9)
    assert steps == list(range(len(steps)))
    torch.manual_seed(0)
    A = torch.randn(8, 8, dtype=torch.float64)
    A = (A + A.T).requires_grad_()
    E, X = torch.lobpcg(A, 2, niter=-1, tol=1e-12)
    w, v = torch.linalg.eigh(A)
    for mine, theirs in (
        (E[0] + 3 * E[1], w[-1] + 3 * w[-2]),
        ((X[:, 1] ** 4).sum(), (v[:, -2] ** 4).sum()),
    ):
        got, wanted = (torch.autograd.grad(s, A, retain_graph=True)[0] for s in (mine, theirs))
        torch.testing.assert_close(got, (wanted + wanted.T) / 2)
    with pytest.raises(ValueError, match=r"A rows \(=5\) is smaller than 3 x"):
        torch.lobpcg(torch.eye(5), 2)
    with pytest.raises(ValueError, match="without B"):
        torch.lobpcg(A, 1, torch.eye(8, dtype=torch.float64))


# ---- allow_mutation_on_saved_tensors -----------------------------------------------------------------------

CHANGES = {
    "zero_": lambda y, x: y.zero_(),
    "an element": lambda y, x: y.__setitem__(0, 5.0),
    "a mask": lambda y, x: y.__setitem__(y > 4, 0.0),
    "a view": lambda y, x: y[1:].mul_(7),
    "+=": lambda y, x: y.__iadd__(1),
    "twice": lambda y, x: (y.add_(1), y.mul_(2)),
    "inplace=True": lambda y, x: F.relu(y, inplace=True),
    "dropout": lambda y, x: F.dropout(y, 0.5, True, True),
    "many": lambda y, x: torch._foreach_mul_([y], 2.0),
    "the leaf": lambda y, x: x.detach().fill_(9.0),
}


@pytest.mark.parametrize("change", CHANGES)
def test_saved_tensors_may_be_changed(change):
    x = torch.tensor([1.0, 2.0, -3.0], requires_grad=True)
    with torch.autograd.graph.allow_mutation_on_saved_tensors():
        y = x * x
        z = (y * y).sum()  # x^4
        with torch.no_grad():
            CHANGES[change](y, x)
        z.backward()
    assert x.grad.tolist() == [4.0, 32.0, -108.0]


def test_saved_tensors_outside_of_their_context():
    x = torch.ones(2, requires_grad=True)
    context = torch.autograd.graph.allow_mutation_on_saved_tensors
    with context():
        y = (x * x).sum()
        with pytest.raises(RuntimeError, match="cannot be nested"), context():
            pass
    with pytest.raises(RuntimeError, match="outside of the 'allow_mutation_on_saved_tensors' context"):
        y.backward()
    z = x * 1
    loss = (z * z).sum()
    z.zero_()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()


# ---- functions as objects ----------------------------------------------------------------------------------


def test_ops_take_attributes():
    for op in (F.relu, torch.relu, torch.Tensor.relu, F.linear):
        op.mark = 1
        assert op.mark == 1 and op.__dict__["mark"] == 1 and "mark" in dir(op)
        del op.mark
        with pytest.raises(AttributeError):
            op.mark
    assert "relu" in F.relu.__doc__ or "max" in F.relu.__doc__
    before = torch.sin.__doc__
    torch.sin.__doc__ = "other"
    assert torch.sin.__doc__ == "other"
    torch.sin.__doc__ = before

    @functools.wraps(F.relu)
    def wrapped(x):
        return F.relu(x)

    assert wrapped.__name__ == "relu" and wrapped.__wrapped__ is F.relu
    assert next(iter(inspect.signature(F.relu).parameters)) == "input"
    for op in (torch.add, torch.relu):
        assert pickle.loads(pickle.dumps(op)) is op


def test_fx_sees_the_operands_of_einsum():
    for f in (
        lambda x, y: torch.einsum("ij,jk->ik", (x, y)),
        lambda x, y: torch.einsum("ij,jk->ik", [x, y]),
        lambda x, y: torch.functional.einsum("ij,jk->ik", x, y),
    ):
        traced = torch.fx.symbolic_trace(f)
        (node,) = [n for n in traced.graph.nodes if n.op == "call_function"]
        assert node.args[0] == "ij,jk->ik" and [str(a) for a in node.args[1:]] == ["x", "y"]
        x = torch.arange(4.0).view(2, 2)
        assert traced(x, x).equal(x @ x)


# ---- devices and files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["mps", "xpu", "hpu", "mtia", "ipu", "xla", "maia"])
def test_autocast_of_devices_that_are_not_here(device):
    assert torch.is_autocast_enabled(device) is False and torch.amp.is_autocast_available(device)
    default = torch.get_autocast_dtype(device)
    x = torch.ones(2, 2)
    with torch.autocast(device, dtype=torch.bfloat16):
        assert torch.is_autocast_enabled(device) and torch.get_autocast_dtype(device) == torch.bfloat16
        assert not torch.is_autocast_enabled("cpu") and (x @ x).dtype == torch.float32
        seen = []
        thread = threading.Thread(target=lambda: seen.append(torch.is_autocast_enabled(device)))
        thread.start()
        thread.join()
        with torch.autocast(device, enabled=False):
            assert not torch.is_autocast_enabled(device)
        assert torch.is_autocast_enabled(device)
    assert not torch.is_autocast_enabled(device) and seen == [False]
    assert torch.get_autocast_dtype(device) == default

    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type=device)
        def forward(ctx, x):
            return x * 2

        @staticmethod
        @torch.amp.custom_bwd(device_type=device)
        def backward(ctx, g):
            return g * 2

    leaf = torch.ones(1, requires_grad=True)
    Double.apply(leaf).backward()
    assert leaf.grad.item() == 2
    with pytest.raises(RuntimeError, match="unsupported autocast device_type 'nonsense'"):
        torch.is_autocast_enabled("nonsense")


def test_from_file_takes_a_device():
    with tempfile.NamedTemporaryFile() as file:
        file.write(np.arange(4, dtype=np.float32).tobytes())
        file.flush()
        options = {"dtype": torch.float32, "layout": torch.strided, "device": torch.device("cpu")}
        x = torch.from_file(file.name, shared=True, size=4, requires_grad=False, pin_memory=False, **options)
        assert x.tolist() == [0.0, 1.0, 2.0, 3.0]
        for wrong in ({"device": "meta"}, {"pin_memory": True}, {"layout": torch.sparse_coo}):
            with pytest.raises(RuntimeError, match=r"from_file|pinned"):
                torch.from_file(file.name, size=4, **(options | wrong))


# ---- helpers that libraries call ---------------------------------------------------------------------------


def test_helpers():
    from warptape._dynamo.utils import warn_once
    from warptape.utils.data._utils.worker import _generate_state

    assert _generate_state(1234567890123, 3) == [911343142, 720453872, 3335628216, 1002736992]
    assert _generate_state(0, 0) == [2968811710, 3677149159, 745650761, 2884920346]
    with pytest.raises(ValueError, match="text"):
        torch._check_tensor_all_with(ValueError, torch.tensor([True, False]), lambda: "text")
    torch._check_tensor_all_with(ValueError, torch.tensor([True, True]))
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        for _ in range(3):
            warn_once("a text that no other test has")
    assert len(seen) == 1
    clipped = torch.distributions.transforms._clipped_sigmoid(torch.tensor([-200.0, 0.0, 200.0]))
    assert clipped.tolist() == [1.1754943508222875e-38, 0.5, 0.9999998807907104]
    assert torch._printing._str(torch.ones(2)) == "tensor([1., 1.])"
    assert torch.functional.einsum is torch.einsum and torch.torch.Tensor is torch.Tensor
    assert torch.complex32 == torch.chalf != torch.complex64 and str(torch.complex32) == "torch.complex32"
    with pytest.raises(TypeError):
        torch.ones(2, dtype=torch.complex32)
    with pytest.raises(NotImplementedError, match="TorchScript"):
        torch.TensorType()
    assert torch.backends.opt_einsum.is_available() in (True, False)
    with torch.backends.opt_einsum.flags(enabled=False):
        assert not torch.backends.opt_einsum.enabled
    assert isinstance(nn.LazyLinear(2).weight, nn.parameter.UninitializedTensorMixin)
    quantization = torch.ao.quantization
    assert isinstance(quantization.FakeQuantize(), quantization.FakeQuantizeBase)
    assert torch.cuda.amp.common.amp_definitely_not_available() is not torch.cuda.is_available()


def test_symbols_tags_and_kinds_of_datasets():
    assert not isinstance(2, torch.SymInt) and not isinstance(2.0, torch.SymFloat)
    with pytest.raises(NotImplementedError, match="sizes are numbers"):
        torch.SymInt(2)
    torch.library.define("tagged::f", "(Tensor x) -> Tensor", tags=(torch.Tag.pt2_compliant_tag,))
    assert torch.Tag.pt2_compliant_tag in torch.ops.tagged.f.default.tags
    assert torch._shape_as_tensor(torch.ones(2, 3)).equal(torch.tensor([2, 3]))
    torch._assert_async(torch.tensor(1))
    with pytest.raises(RuntimeError, match="text"):
        torch._assert_async(torch.tensor(0.0), "text")
    kind = torch.utils.data.dataloader._DatasetKind
    collate = torch.utils.data.default_collate
    by_index = kind.create_fetcher(kind.Map, [1, 2, 3], True, collate, False)
    assert by_index.fetch([2, 0]).tolist() == [3, 1]
    stream = kind.create_fetcher(kind.Iterable, [1, 2, 3], True, collate, True)
    assert stream.fetch([None, None]).tolist() == [1, 2]
    with pytest.raises(StopIteration):
        stream.fetch([None, None])


def test_what_a_tensor_under_vmap_stands_for():
    functorch = importlib.import_module("warptape._functorch_c")
    assert torch._C._functorch is functorch
    x = torch.arange(6.0).view(2, 3)
    seen = []

    def look(row):
        seen.append((functorch.is_batchedtensor(row), functorch.maybe_get_level(row)))
        seen.append((functorch.get_unwrapped(row).shape, functorch.maybe_get_bdim(row)))
        return row

    torch.vmap(look, in_dims=1)(x)
    assert seen == [(True, 1), ((3, 2), 0)]
    assert not functorch.is_batchedtensor(x) and functorch.maybe_get_level(x) == -1


def test_scatter_and_gather():
    from warptape.nn.parallel.scatter_gather import gather, is_namedtuple, scatter, scatter_kwargs

    x = torch.arange(5.0)
    parts = scatter({"x": [x, 3]}, ["cpu", "cpu"])
    assert [p["x"][0].tolist() for p in parts] == [[0, 1, 2], [3, 4]] and parts[1]["x"][1] == 3
    assert gather([p["x"][0] for p in parts], "cpu").equal(x)
    args, kwargs = scatter_kwargs((x,), {}, ["cpu", "cpu"])
    assert len(args) == 2 and kwargs == ({}, {})
    pair = collections.namedtuple("pair", "a b")
    assert not is_namedtuple((1, 2)) and is_namedtuple(pair(1, 2))
    first, second = scatter(pair(x, 2), ["cpu", "cpu"])
    assert first.a.tolist() == [0, 1, 2] and second == pair(second.a, 2)


PROGRAM = """
import importlib.util
assert importlib.util.find_spec("functorch") is None
import warptape
assert importlib.util.find_spec("functorch") is not None
import warptape.torch
warptape.torch.install()
import torch, functorch
from functorch import vmap, make_functional
from torch._C._functorch import is_batchedtensor
from torch._C._distributed_c10d import ProcessGroup, ReduceOp, Store
from torch.cuda.amp.common import amp_definitely_not_available
from torch.cuda.amp.grad_scaler import GradScaler
from torch.distributed.checkpoint.metadata import Metadata, MetadataIndex
from torch.utils.model_zoo import load_url
from torch.nn.grad import conv2d_input
import torch.testing._internal, torch.backends.opt_einsum
assert torch.torch.Tensor is torch.Tensor and torch._tensor_str._str(torch.ones(1)) == "tensor([1.])"
assert callable(torch.distributed.checkpoint.metadata)
assert MetadataIndex("a", [1]) == MetadataIndex("a", (1,), 5) != MetadataIndex("a")
model = torch.nn.Linear(2, 2)
f, parameters = make_functional(model)
x = torch.ones(2)
assert torch.equal(f(parameters, x), model(x))
assert vmap(torch.dot)(torch.ones(2, 3), torch.ones(2, 3)).tolist() == [3, 3]
"""


def test_names_by_import():
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
