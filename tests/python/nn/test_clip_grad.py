"""Clipping of gradients, and parameters as one vector."""

import math

import pytest
import warptape as wt
from warptape import nn
from warptape.nn import utils


def with_grads(*grads):
    parameters = []
    for grad in grads:
        parameter = nn.Parameter(wt.zeros(len(grad)))
        parameter.grad = wt.tensor(grad)
        parameters.append(parameter)
    return parameters


@pytest.mark.parametrize("foreach", [None, False])
@pytest.mark.parametrize("norm_type, total", [(2.0, 13.0), (1, 19.0), (math.inf, 12.0)])
def test_norm_and_scale(norm_type, total, foreach):
    parameters = with_grads([3.0, 0.0], [4.0], [-12.0]) + [nn.Parameter(wt.zeros(1))]
    norm = utils.clip_grad_norm_(parameters, 1.3, norm_type, foreach=foreach)
    assert norm.shape == () and norm.item() == pytest.approx(total)
    factor = 1.3 / (total + 1e-6)
    assert parameters[0].grad.tolist() == pytest.approx([3 * factor, 0])
    assert parameters[2].grad.tolist() == pytest.approx([-12 * factor])
    assert parameters[3].grad is None


def test_small_gradients_stay():
    parameters = with_grads([0.3, 0.4])
    before = parameters[0].grad
    assert utils.clip_grad_norm_(iter(parameters), 1.0).item() == pytest.approx(0.5)
    assert parameters[0].grad is before
    assert before.tolist() == pytest.approx([0.3, 0.4])


def test_one_tensor_and_none():
    (parameter,) = with_grads([3.0, 4.0])
    utils.clip_grad_norm_(parameter, 1.0)
    assert parameter.grad.tolist() == pytest.approx([0.6, 0.8], rel=1e-5)
    assert utils.clip_grad_norm_([nn.Parameter(wt.zeros(1))], 1.0).item() == 0
    with pytest.warns(UserWarning, match="empty generator"):
        utils.clip_grad_norm_([], 1.0)


def test_mixed_dtypes():
    a, b = with_grads([3.0], [4.0])
    b.data = b.data.double()
    b.grad = wt.tensor([4.0], dtype=wt.float64)
    assert utils.clip_grad_norm_([a, b], 0.5).item() == pytest.approx(5.0)
    assert b.grad.dtype == wt.float64 and b.grad.item() == pytest.approx(0.4, rel=1e-5)


def test_norms_that_are_not_finite():
    parameters = with_grads([math.inf], [1.0])
    with pytest.raises(RuntimeError, match="is non-finite, so it cannot be clipped"):
        utils.clip_grad_norm_(parameters, 1.0, error_if_nonfinite=True)
    assert parameters[1].grad.item() == 1
    assert utils.clip_grad_norm_(parameters, 1.0).item() == math.inf


def test_in_two_steps():
    parameters = with_grads([3.0], [4.0])
    total = utils.get_total_norm([p.grad for p in parameters])
    utils.clip_grads_with_norm_(parameters, 2.5, total)
    assert [p.grad.item() for p in parameters] == pytest.approx([1.5, 2.0], rel=1e-5)


def test_clip_value():
    parameters = with_grads([-3.0, 0.25], [9.0])
    utils.clip_grad_value_(parameters, 0.5)
    assert parameters[0].grad.tolist() == [-0.5, 0.25] and parameters[1].grad.tolist() == [0.5]


def test_deprecated_name():
    with pytest.warns(FutureWarning, match="clip_grad_norm_"):
        utils.clip_grad_norm(with_grads([1.0]), 1.0)


def test_vector_and_back():
    model = nn.Linear(2, 3)
    vector = utils.parameters_to_vector(model.parameters())
    assert vector.tolist() == [*model.weight.flatten().tolist(), *model.bias.tolist()]
    weight = model.weight
    utils.vector_to_parameters(wt.arange(9.0), model.parameters())
    assert model.weight is weight
    assert weight.tolist() == [[0, 1], [2, 3], [4, 5]] and model.bias.tolist() == [6, 7, 8]
    with pytest.raises(TypeError, match="but got: list"):
        utils.vector_to_parameters([1.0], model.parameters())
