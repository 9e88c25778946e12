"""to, half, cuda and the like: what changes, and that parameters stay the objects they were."""

import pytest
import warptape as wt
from warptape import nn


def mixed():
    module = nn.Sequential(nn.Linear(2, 2))
    module.register_buffer("count", wt.zeros(1, dtype=wt.int64))
    module.register_buffer("mean", wt.zeros(1))
    return module


@pytest.mark.parametrize(
    "cast, dtype",
    [
        (lambda m: m.double(), wt.float64),
        (lambda m: m.half(), wt.float16),
        (lambda m: m.bfloat16(), wt.bfloat16),
        (lambda m: m.double().float(), wt.float32),
        (lambda m: m.to(wt.float64), wt.float64),
        (lambda m: m.to(dtype=wt.float64), wt.float64),
        (lambda m: m.to("cpu", wt.float64), wt.float64),
        (lambda m: m.to(wt.device("cpu"), wt.float64, True), wt.float64),
        (lambda m: m.to(wt.zeros(1, dtype=wt.float64)), wt.float64),
        (lambda m: m.to("cpu"), wt.float32),
        (lambda m: m.to(), wt.float32),
    ],
)
def test_casts_reach_floating_point_tensors_alone(cast, dtype):
    module = mixed()
    weight = module[0].weight
    assert cast(module) is module
    assert module[0].weight is weight and weight.dtype == dtype
    assert isinstance(weight, nn.Parameter) and weight.requires_grad and weight.is_leaf
    assert module.mean.dtype == dtype
    assert module.count.dtype == wt.int64


def test_values_survive():
    module = nn.Linear(2, 2)
    before = module.weight.tolist()
    assert module.double().weight.tolist() == before


def test_gradients_are_cast_too():
    module = nn.Linear(2, 1)
    module(wt.ones(1, 2)).sum().backward()
    module.double()
    assert module.weight.grad.dtype == wt.float64
    assert module.weight.grad.tolist() == [[1, 1]]
    module(wt.ones(1, 2, dtype=wt.float64)).sum().backward()
    assert module.weight.grad.tolist() == [[2, 2]]


def test_meta_and_back():
    module = mixed()
    module.to("meta")
    assert all(t.is_meta for t in [*module.parameters(), *module.buffers()])
    assert isinstance(module[0].weight, nn.Parameter)
    assert module.to_empty(device="cpu") is module
    assert module[0].weight.device.type == "cpu" and module[0].weight.shape == (2, 2)
    module[0].weight.data.fill_(1)
    assert module[0].weight.sum().item() == 4


def test_built_on_meta():
    module = nn.Linear(2, 3, device="meta", dtype=wt.float64)
    assert module.weight.is_meta and module.weight.dtype == wt.float64
    module.load_state_dict(nn.Linear(2, 3).double().state_dict(), assign=True)
    assert not module.weight.is_meta
    with pytest.warns(UserWarning, match="assign=True"):
        nn.Linear(2, 3, device="meta").load_state_dict(nn.Linear(2, 3).state_dict())


@pytest.mark.parametrize(
    "call, message",
    [
        (lambda m: m.to(wt.int64), "only accepts floating point"),
        (lambda m: m.to(1, 2, 3, 4), "Module.to: expected"),
        (lambda m: m.to(colour="red"), "Module.to: expected"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(TypeError, match=message):
        call(mixed())


def test_share_memory_and_cpu_return_the_module():
    module = mixed()
    assert module.cpu() is module
    assert module.share_memory() is module


def test_parameter_is_a_tensor_that_shares_storage():
    data = wt.zeros(2)
    parameter = nn.Parameter(data)
    data.fill_(5)
    assert parameter.tolist() == [5, 5]
    assert parameter.requires_grad and parameter.is_leaf and not data.requires_grad
    assert isinstance(parameter, wt.Tensor) and not isinstance(data, nn.Parameter)
    assert nn.Parameter().shape == (0,)
    assert repr(parameter).startswith("Parameter containing:\n")
    assert type(parameter * 1) is wt.Tensor
    with pytest.raises(TypeError):
        nn.Parameter([1.0])
    with pytest.raises(RuntimeError):
        nn.Parameter(wt.zeros(2, dtype=wt.int64))
