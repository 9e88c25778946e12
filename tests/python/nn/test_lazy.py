"""Lazy modules: what they are before, at and after the first forward."""

import copy
import pickle

import numpy as np
import pytest
import warptape as wt
from warptape import nn

LAZY = {
    "LazyLinear(3)": ((2, 4), "Linear(4, 3)"),
    "LazyLinear(3, bias=False)": ((4,), "Linear(4, 3, bias=False)"),
    "LazyConv1d(6, 2, groups=2)": ((2, 4, 5), "Conv1d(4, 6, 2, groups=2)"),
    "LazyConv2d(3, 2, padding='same')": ((4, 5, 5), "Conv2d(4, 3, 2, padding='same')"),
    "LazyConv3d(3, 2, bias=False)": ((2, 4, 3, 3, 3), "Conv3d(4, 3, 2, bias=False)"),
    "LazyConvTranspose1d(3, 2, 2)": ((2, 4, 5), "ConvTranspose1d(4, 3, 2, 2)"),
    "LazyConvTranspose2d(4, 2, groups=2)": ((2, 4, 5, 3), "ConvTranspose2d(4, 4, 2, groups=2)"),
    "LazyConvTranspose3d(3, 2)": ((2, 4, 2, 3, 2), "ConvTranspose3d(4, 3, 2)"),
    "LazyBatchNorm1d(momentum=0.2)": ((5, 4), "BatchNorm1d(4, momentum=0.2)"),
    "LazyBatchNorm2d(affine=False)": ((2, 4, 3, 3), "BatchNorm2d(4, affine=False)"),
    "LazyBatchNorm3d()": ((2, 4, 2, 2, 2), "BatchNorm3d(4)"),
    "LazyInstanceNorm1d(affine=True)": (
        (2, 4, 5),
        "InstanceNorm1d(4, affine=True, track_running_stats=True)",
    ),
    "LazyInstanceNorm2d(track_running_stats=False)": ((2, 4, 3, 3), "InstanceNorm2d(4, affine=True)"),
    "LazyInstanceNorm3d()": ((2, 4, 2, 2, 2), "InstanceNorm3d(4, affine=True, track_running_stats=True)"),
}
CASES = pytest.mark.parametrize("text", LAZY)


def build(text, library=wt):
    library.manual_seed(4)
    return eval("nn." + text, {"nn": library.nn})


def example(text, library=wt):
    shape = LAZY[text][0]
    return (library.arange(1.0, 1 + np.prod(shape)) * 0.9).sin().reshape(shape)


@CASES
def test_becomes_the_layer(text):
    module, plain = build(text), build(LAZY[text][1])
    x = example(text)
    assert module.has_uninitialized_params() == bool(plain.state_dict())
    wt.manual_seed(4)  # a lazy layer draws its start at the first forward
    found, expected = module(x), plain(x)
    assert type(module) is type(plain) and repr(module) == repr(plain)
    assert found.tolist() == expected.tolist()
    ours, theirs = module.state_dict(), plain.state_dict()
    assert list(ours) == list(theirs) and all((ours[k] == theirs[k]).all() for k in ours)
    assert all(type(p) is nn.Parameter and p.requires_grad for p in module.parameters())
    if found.requires_grad:
        found.sum().backward()


@CASES
def test_loads_a_layer_and_moves(text):
    if not build(text).has_uninitialized_params():
        return
    source = build(LAZY[text][1])
    for made in (
        build(text),
        copy.deepcopy(build(text)),
        pickle.loads(pickle.dumps(build(text))),
        build(text).double(),
    ):
        assert any(isinstance(p, nn.parameter.UninitializedTensorMixin) for _, p in made._named())
        assert made.has_uninitialized_params()
        made.load_state_dict(source.state_dict())
        dtype = next(iter(made.state_dict().values())).dtype
        out = made(example(text).to(dtype))
        np.testing.assert_allclose(out.tolist(), source(example(text)).tolist(), atol=1e-5)
        source = build(LAZY[text][1])  # running statistics as at the start


def test_uninitialized_tensors():
    module = nn.LazyLinear(3)
    assert repr(module.weight) == "<UninitializedParameter>" and nn.parameter.is_lazy(module.weight)
    assert isinstance(module.weight, nn.Parameter) and module.weight.dtype == wt.float32
    with pytest.raises(RuntimeError, match="Can't access the shape of an uninitialized"):
        module.weight.shape
    with pytest.raises(RuntimeError, match="Can't share memory"):
        module.weight.share_memory_()
    assert nn.parameter.is_lazy(module.state_dict()["weight"])
    with pytest.raises(RuntimeError, match="shape of an uninitialized"):
        nn.Linear(2, 3).load_state_dict(module.state_dict())
    with pytest.raises(RuntimeError, match="input to LazyConv2d"):
        nn.LazyConv2d(3, 2)(wt.ones(2, 2))
    with pytest.raises(ValueError, match="divisible by groups"):
        nn.LazyConv1d(4, 2, groups=2)(wt.ones(2, 3, 4))
    buffer = nn.UninitializedBuffer(dtype=wt.float64)
    buffer.materialize((2, 3))
    assert type(buffer) is wt.Tensor and buffer.shape == (2, 3) and buffer.dtype == wt.float64


@pytest.mark.parity
@CASES
def test_lazy_beside_pytorch(text):
    torch = pytest.importorskip("torch")
    found = []
    for library in (wt, torch):
        module = build(text, library)
        before, text_before = list(module.state_dict()), repr(module)
        out = module(example(text, library))
        found.append((before, text_before, repr(module), list(module.state_dict()), out.detach().numpy()))
    assert found[0][:4] == found[1][:4]
    np.testing.assert_allclose(found[0][4], found[1][4], atol=2e-5)
