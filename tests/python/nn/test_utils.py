"""Normalised and parametrized weights, fused batch norms, and calls with other tensors."""

import copy

import numpy as np
import pytest
import warptape as wt
from warptape import nn
from warptape.func import functional_call
from warptape.nn.utils import parametrizations, parametrize

LAYERS = ["Linear(4, 3)", "Conv2d(2, 3, 2)", "ConvTranspose1d(2, 3, 2)"]
SHAPES = {"Linear": (5, 4), "Conv2d": (2, 2, 4, 4), "ConvTranspose1d": (2, 2, 5)}


def layer(text, library=wt):
    library.manual_seed(2)
    return eval("nn." + text, {"nn": library.nn})


def made(text, library=wt):
    shape = SHAPES[text.partition("(")[0]]
    return (library.arange(1.0, 1 + np.prod(shape)) * 0.7).sin().reshape(shape)


def norms(weight, dim):
    axes = tuple(d for d in range(weight.ndim) if d != dim) if dim is not None else None
    return np.sqrt((weight**2).sum(axis=axes, keepdims=dim is not None))


@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("dim", [0, 1, None, -1])
@pytest.mark.parametrize("text", LAYERS)
def test_weight_norm(text, dim):
    plain = layer(text)
    old, new = nn.utils.weight_norm(layer(text), dim=dim), parametrizations.weight_norm(layer(text), dim=dim)
    assert list(old.state_dict()) == ["bias", "weight_g", "weight_v"]
    names = ["bias", "parametrizations.weight.original0", "parametrizations.weight.original1"]
    assert list(new.state_dict()) == names
    weight = plain.weight.detach().numpy()
    expected = norms(weight, None if dim in (None, -1) else dim)
    for g in (old.weight_g, new.parametrizations.weight.original0):
        np.testing.assert_allclose(g.detach().numpy(), expected, rtol=1e-6)
    for module in (old, new):
        np.testing.assert_allclose(module(made(text)).tolist(), plain(made(text)).tolist(), atol=1e-6)
        with wt.no_grad():
            (old.weight_g if module is old else new.parametrizations.weight.original0).mul_(2)
        module(made(text))
        np.testing.assert_allclose(module.weight.detach().numpy(), 2 * weight, rtol=1e-5)
    new.load_state_dict(old.state_dict())  # the former names are understood
    nn.utils.remove_weight_norm(old)
    parametrize.remove_parametrizations(new, "weight")
    for module in (old, new):
        assert type(module) is type(plain) and set(module.state_dict()) == {"bias", "weight"}
        assert isinstance(module.weight, nn.Parameter)
        np.testing.assert_allclose(module.weight.detach().numpy(), 2 * weight, rtol=1e-5)
    with pytest.raises(ValueError, match="weight_norm of 'weight' not found"):
        nn.utils.remove_weight_norm(old)


@pytest.mark.parametrize("dim", [-1, 0, 1])
def test_weight_norm_has_first_and_second_gradients(dim):
    wt.manual_seed(0)
    v = wt.randn(3, 4, 2, dtype=wt.float64, requires_grad=True)
    g = wt.randn(wt.norm_except_dim(v, 2, dim).shape, dtype=wt.float64, requires_grad=True)
    work = lambda v, g: wt._weight_norm(v, g, dim)
    assert wt.autograd.gradcheck(work, (v, g))
    assert wt.autograd.gradgradcheck(work, (v, g))


def test_weight_norm_twice_and_its_warning():
    with pytest.warns(FutureWarning, match="deprecated in favor of"):
        module = nn.utils.weight_norm(nn.Linear(2, 2))
    with pytest.warns(FutureWarning), pytest.raises(RuntimeError, match="Cannot register two weight_norm"):
        nn.utils.weight_norm(module)


@pytest.mark.parametrize("norm", [nn.utils.spectral_norm, parametrizations.spectral_norm])
@pytest.mark.parametrize("text", LAYERS)
def test_spectral_norm_divides_by_the_largest_singular_value(text, norm):
    weight = layer(text).weight.detach().numpy()
    flat = np.moveaxis(weight, 1 if "Transpose" in text else 0, 0)
    largest = np.linalg.svd(flat.reshape(len(flat), -1), compute_uv=False)[0]
    module = norm(layer(text), n_power_iterations=60)
    module(made(text)).sum().backward()
    np.testing.assert_allclose(module.weight.detach().numpy(), weight / largest, rtol=2e-4)
    module.eval()
    before = [b.clone() for b in module.buffers()]
    module(made(text))
    assert all((a == b).all() for a, b in zip(before, module.buffers(), strict=True))
    if norm is nn.utils.spectral_norm:
        assert list(module.state_dict()) == ["bias", "weight_orig", "weight_u", "weight_v"]
        nn.utils.remove_spectral_norm(module)
    else:
        start = "parametrizations.weight."
        assert list(module.state_dict()) == ["bias", start + "original", start + "0._u", start + "0._v"]
        parametrize.remove_parametrizations(module, "weight")
    np.testing.assert_allclose(module.weight.detach().numpy(), weight / largest, rtol=2e-4)
    assert list(dict(module.named_parameters())) == ["bias", "weight"]


class Symmetric(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, x):
        self.calls += 1
        return x.triu() + x.triu(1).t()

    def right_inverse(self, x):
        return x.triu()


class Double(nn.Module):
    def forward(self, x):
        return 2 * x

    def right_inverse(self, x):
        return x / 2


def test_parametrizations_of_a_tensor():
    module = nn.Linear(3, 3)
    weight, start = module.weight, module.weight.tolist()
    parametrize.register_parametrization(module, "weight", Symmetric())
    parametrize.register_parametrization(module, "weight", Double())
    assert isinstance(module, nn.Linear) and type(module).__name__ == "ParametrizedLinear"
    assert parametrize.type_before_parametrizations(module) is nn.Linear
    assert parametrize.is_parametrized(module) and parametrize.is_parametrized(module, "weight")
    assert not parametrize.is_parametrized(module, "bias")
    assert module.parametrizations.weight.original is weight  # an optimizer still has what it was given
    up = np.triu(np.array(start))
    np.testing.assert_allclose(module.weight.tolist(), 2 * (up + np.triu(up, 1).T), rtol=1e-6)
    module(wt.randn(2, 3)).sum().backward()
    assert weight.grad is not None and "weight" not in dict(module.named_parameters())
    value = wt.arange(9.0).reshape(3, 3)
    module.weight = value + value.t()
    assert module.weight.tolist() == (value + value.t()).tolist()
    calls = module.parametrizations.weight[0].calls
    with parametrize.cached():
        assert module.weight is module.weight
    assert module.parametrizations.weight[0].calls == calls + 1
    twin = copy.deepcopy(module)
    assert twin.weight.tolist() == module.weight.tolist() and twin.weight is not module.weight
    with pytest.raises(RuntimeError, match="only supported through state_dict"):
        module.__getstate__()
    other = parametrize.transfer_parametrizations_and_params(module, nn.Linear(3, 3), "weight")
    assert other.weight.tolist() == module.weight.tolist()
    original = module.parametrizations.weight.original.tolist()
    parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)
    assert type(module) is nn.Linear and module.weight is weight and module.weight.tolist() == original


def test_refused_parametrizations():
    class Row(nn.Module):
        def forward(self, x):
            return x[0]

    class Halved(nn.Module):
        def forward(self, x):
            return x.double()

    for bad, match in ((Row(), "shape"), (Halved(), "dtype")):
        module = nn.Linear(3, 3)
        with pytest.raises(ValueError, match=match):
            parametrize.register_parametrization(module, "weight", bad)
        assert type(module) is nn.Linear and list(module.state_dict()) == ["weight", "bias"]
        parametrize.register_parametrization(module, "weight", bad, unsafe=True)
        assert parametrize.is_parametrized(module)
    with pytest.raises(ValueError, match="does not have a parameter"):
        parametrize.register_parametrization(nn.Linear(3, 3), "nothing", Double())
    with pytest.raises(ValueError, match="does not have a parametrization on bias"):
        parametrize.remove_parametrizations(nn.Linear(3, 3), "bias")
    module = parametrizations.weight_norm(nn.Linear(3, 3))
    with pytest.raises(ValueError, match="Cannot leave unparametrized"):
        parametrize.remove_parametrizations(module, "weight", leave_parametrized=False)


@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("kind", [None, "matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (3, 5)])
def test_orthogonal(sizes, kind, trivial):
    wt.manual_seed(1)
    module = nn.Linear(sizes[1], sizes[0]).double()
    start = module.weight.detach().clone()
    parametrizations.orthogonal(module, "weight", kind, use_trivialization=trivial)

    def check():
        w = module.weight.detach().numpy()
        gram = w @ w.T if sizes[0] < sizes[1] else w.T @ w
        np.testing.assert_allclose(gram, np.eye(min(sizes)), atol=1e-12)

    check()
    original = module.parametrizations.weight.original
    (module.weight * wt.arange(1.0, 1 + original.numel()).reshape(sizes).double()).sum().backward()
    assert original.grad.abs().sum() > 0
    with wt.no_grad():
        original.sub_(0.1 * original.grad.tril(-1) if sizes[0] >= sizes[1] else 0.1 * original.grad.triu(1))
    check()
    q = np.linalg.qr(start.numpy() if sizes[0] >= sizes[1] else start.numpy().T)[0]
    q = wt.tensor((q if sizes[0] >= sizes[1] else q.T).tolist(), dtype=wt.float64)
    assigns = trivial or kind == "householder" or (kind is None and sizes[0] != sizes[1])
    if assigns:
        module.weight = q
        np.testing.assert_allclose(module.weight.tolist(), q.tolist(), atol=1e-12)
    else:
        with pytest.raises(NotImplementedError, match="not possible to assign"):
            module.weight = q


def test_refused_orthogonals():
    for args, match in (
        (("bias",), "matrix or batch"),
        (("weight", "qr"), "has to be one of"),
        (("x",), "no param"),
    ):
        with pytest.raises(ValueError, match=match):
            parametrizations.orthogonal(nn.Linear(2, 2), *args)


@pytest.mark.parity
@pytest.mark.parametrize("trivial", [True, False])
@pytest.mark.parametrize("kind", ["matrix_exp", "cayley", "householder"])
@pytest.mark.parametrize("sizes", [(4, 4), (5, 3), (3, 5)])
def test_orthogonal_beside_pytorch(sizes, kind, trivial):
    torch = pytest.importorskip("torch")
    found = []
    for library in (wt, torch):
        library.manual_seed(3)
        module = library.nn.Linear(sizes[1], sizes[0], bias=False)
        library.nn.utils.parametrizations.orthogonal(module, "weight", kind, use_trivialization=trivial)
        with library.no_grad():
            step = (library.arange(1.0, 1 + sizes[0] * sizes[1]).reshape(sizes)).sin() * 0.1
            original = module.parametrizations.weight.original
            original.add_(step.tril(-1) if sizes[0] >= sizes[1] else step.triu(1))
        module(library.ones(2, sizes[1])).sin().sum().backward()
        found.append(
            (list(module.state_dict()), [module.weight, *module.state_dict().values(), original.grad])
        )
    assert found[0][0] == found[1][0]
    for ours, theirs in zip(found[0][1], found[1][1], strict=True):
        np.testing.assert_allclose(ours.detach().numpy(), theirs.detach().numpy(), atol=2e-5)


@pytest.mark.parametrize(
    "text, norm",
    [("Conv2d(2, 3, 2)", "BatchNorm2d(3)"), ("ConvTranspose1d(2, 3, 2, bias=False)", "BatchNorm1d(3)"),
     ("Linear(4, 3)", "BatchNorm1d(3)"), ("Conv2d(2, 3, 2)", "BatchNorm2d(3, affine=False)")],
)  # fmt: skip
def test_fused_batch_norm(text, norm):
    first, bn = layer(text), layer(norm)
    both = nn.Sequential(first, bn)
    for scale in (1, 3):
        both(made(text) * scale)  # running statistics
    both.eval()
    if text.startswith("Linear"):
        fused = nn.utils.fuse_linear_bn_eval(first, bn)
    else:
        fused = nn.utils.fuse_conv_bn_eval(first, bn, transpose="Transpose" in text)
    np.testing.assert_allclose(fused(made(text)).tolist(), both(made(text)).tolist(), atol=1e-5)
    with pytest.raises(AssertionError, match="only for eval"):
        nn.utils.fuse_conv_bn_eval(first.train(), bn)


def test_skip_init():
    module = nn.utils.skip_init(nn.Linear, 4, 3, dtype=wt.float64)
    assert module.weight.shape == (3, 4) and module.weight.device.type == "cpu"
    assert module.weight.dtype == wt.float64 and isinstance(module.weight, nn.Parameter)
    with pytest.raises(RuntimeError, match="'device' arg"):
        nn.utils.skip_init(nn.ReLU)
    with pytest.raises(RuntimeError, match="Expected a Module"):
        nn.utils.skip_init(dict)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(2, 2, bias=False)
        self.b = nn.Linear(2, 2, bias=False)
        self.b.weight = self.a.weight
        self.register_buffer("count", wt.zeros(()))

    def forward(self, x, times=1):
        self.count = self.count + 1
        return self.b(self.a(x)) * times


def test_functional_call():
    module, x = Tied(), wt.randn(3, 2)
    own = module.a.weight
    weight = wt.randn(2, 2, requires_grad=True)
    given = {"a.weight": weight, "count": wt.ones(())}
    out = functional_call(module, given, (x,), {"times": 3})
    np.testing.assert_allclose(out.tolist(), (3 * (x @ weight.t() @ weight.t())).tolist(), atol=1e-5)
    out.sum().backward()
    assert weight.grad is not None and own.grad is None
    assert module.a.weight is own and module.b.weight is own and module.count.item() == 0
    assert given["count"].item() == 2  # what forward put in its place
    functional_call(module, {"a.weights": weight}, x)  # unknown, but of a module that there is
    untied = functional_call(module, {"a.weight": weight}, x, tie_weights=False)
    np.testing.assert_allclose(untied.tolist(), (x @ weight.t() @ own.t()).tolist(), atol=1e-5)
    split = functional_call(module, ({"a.weight": weight}, {"count": wt.ones(())}), x, strict=True)
    np.testing.assert_allclose(split.tolist(), (x @ weight.t() @ weight.t()).tolist(), atol=1e-5)


def test_functional_call_replaces_plain_attributes():
    class Scaled(nn.Module):
        shared = wt.ones(2)

        def __init__(self):
            super().__init__()
            self.scale, self.name, self.part = wt.full((2,), 2.0), "name", nn.Identity()
            self.part.shift = wt.zeros(2)

        def forward(self, x):
            return x * self.scale + self.part.shift + self.shared

    module, scale = Scaled(), wt.full((2,), 3.0, requires_grad=True)
    given = {"scale": scale, "part.shift": wt.ones(2), "shared": wt.zeros(2), "new": wt.ones(2)}
    out = functional_call(module, given, wt.ones(2))
    assert out.tolist() == [4, 4]
    out.sum().backward()
    assert scale.grad.tolist() == [1, 1]
    assert module(wt.ones(2)).tolist() == [3, 3]
    assert not {"shared", "new"} & vars(module).keys()
    with pytest.raises(TypeError, match="attribute `name`"):
        functional_call(module, {"name": scale}, wt.ones(2))


def test_refused_functional_calls():
    module, x = Tied(), wt.randn(3, 2)
    own, one = module.a.weight, wt.eye(2)
    cases = [
        ({"a.weight": one, "b.weight": wt.eye(2)}, {}, ValueError, "tied"),
        ({"c.weight": one}, {}, AttributeError, "Tied has no attribute `c`"),
        ({"a.weight": one}, {"strict": True}, RuntimeError, "Missing key.*'count'"),
        ({"a.weight": one, "count": one, "x": one}, {"strict": True}, RuntimeError, "Unexpected key.*'x'"),
        (({"a.weight": one}, {"a.weight": one}), {}, ValueError, "multiple dictionaries"),
        ([3], {}, ValueError, "to be dictionaries"),
        ({"a.weight": 3}, {}, TypeError, "3 is not an instance"),
        ({"a.weight": wt.eye(3)}, {}, RuntimeError, None),
    ]
    for given, how, kind, match in cases:
        with pytest.raises(kind, match=match):
            functional_call(module, given, x, **how)
        assert module.a.weight is own and module.b.weight is own
    with pytest.warns(FutureWarning, match=r"torch.func.functional_call"):
        nn.utils.stateless.functional_call(module, {"a.weight": one}, x)


@pytest.mark.parity
@pytest.mark.filterwarnings("ignore:.*is deprecated")
@pytest.mark.parametrize("kind", ["weight_norm", "spectral_norm"])
@pytest.mark.parametrize("place", ["utils", "utils.parametrizations"])
@pytest.mark.parametrize("text", LAYERS)
def test_normed_weights_beside_pytorch(text, place, kind):
    torch = pytest.importorskip("torch")
    found = []
    for library in (wt, torch):
        home = library.nn.utils if place == "utils" else library.nn.utils.parametrizations
        module = getattr(home, kind)(layer(text, library))
        for _ in range(2):
            module(made(text, library)).sin().sum().backward()
        state = module.state_dict()
        tensors = [*state.values(), module.weight, *(p.grad for p in module.parameters())]
        found.append((list(state), state._metadata, tensors))
    (keys, metadata, ours), (their_keys, their_metadata, theirs) = found
    assert keys == their_keys and metadata == their_metadata
    for a, b in zip(ours, theirs, strict=True):
        np.testing.assert_allclose(a.detach().numpy(), b.detach().numpy(), rtol=1e-4, atol=1e-5)


def test_names_that_programs_import():
    from warptape.nn.common_types import _size_2_t
    from warptape.nn.modules.activation import MultiheadAttention
    from warptape.nn.modules.batchnorm import _BatchNorm
    from warptape.nn.modules.dropout import _DropoutNd
    from warptape.nn.modules.flatten import Flatten
    from warptape.nn.modules.instancenorm import _InstanceNorm
    from warptape.nn.modules.pooling import _AvgPoolNd, _MaxPoolNd
    from warptape.nn.modules.utils import (
        _list_with_default,
        _pair,
        _reverse_repeat_tuple,
        _triple,
        consume_prefix_in_state_dict_if_present,
    )

    assert MultiheadAttention is nn.MultiheadAttention and Flatten is nn.Flatten and _size_2_t
    assert issubclass(nn.BatchNorm2d, _BatchNorm) and issubclass(nn.InstanceNorm1d, _InstanceNorm)
    assert issubclass(nn.Dropout, _DropoutNd) and issubclass(nn.MaxPool3d, _MaxPoolNd)
    assert issubclass(nn.AvgPool2d, _AvgPoolNd)
    assert _pair(3) == (3, 3) and _pair([1, 2]) == (1, 2) and _triple(0) == (0, 0, 0)
    assert _reverse_repeat_tuple((1, 2), 2) == (2, 2, 1, 1)
    assert _list_with_default([None, 4], [2, 3, 5]) == [3, 4]
    inner = nn.Sequential(nn.Linear(2, 2))
    outer = nn.ModuleDict({"module": inner})
    state = outer.state_dict()
    consume_prefix_in_state_dict_if_present(state, "module.")
    assert (
        list(state) == list(inner.state_dict())
        and state._metadata.keys() >= inner.state_dict()._metadata.keys()
    )
    inner.load_state_dict(state)


def test_weights_in_a_memory_format() -> None:
    net = wt.nn.Sequential(wt.nn.Conv2d(3, 4, 3), wt.nn.Linear(2, 2), wt.nn.Conv3d(3, 4, 3))
    before = net[0].weight.detach().clone()
    assert wt.nn.utils.convert_conv2d_weight_memory_format(net, wt.channels_last) is net
    assert net[0].weight.is_contiguous(memory_format=wt.channels_last)
    assert wt.equal(net[0].weight, before) and net[2].weight.is_contiguous()
    wt.nn.utils.convert_conv3d_weight_memory_format(net, wt.channels_last_3d)
    assert not net[2].weight.is_contiguous()


def test_the_older_comparison() -> None:
    nan = float("nan")
    with pytest.warns(FutureWarning, match="assert_close"):
        wt.testing.assert_allclose(wt.tensor([1, 2]), [1.0, 2.0])
    with pytest.warns(FutureWarning), pytest.raises(AssertionError):
        wt.testing.assert_allclose(wt.tensor([1.0, nan]), wt.tensor([1.1, nan]))
