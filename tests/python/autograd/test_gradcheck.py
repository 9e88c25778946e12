"""gradcheck and gradgradcheck pass right gradients and find each kind of planted error."""

from __future__ import annotations

from typing import Any

import pytest
import warptape as wt
from warptape.autograd import Function, GradcheckError, gradcheck, gradgradcheck


def leaf(*values: Any) -> wt.Tensor:
    return wt.tensor(list(values), dtype=wt.float64, requires_grad=True)


def function(forward: Any, backward: Any) -> Any:
    """y = forward(x), recorded with backward(gradient, x)."""

    class Planted(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.save_for_backward(x)
            return forward(x)

        @staticmethod
        def backward(ctx: Any, g: Any) -> Any:
            return backward(g, *ctx.saved_tensors)

    return Planted.apply


square = function(lambda x: x * x, lambda g, x: 2 * g * x)
wrong = function(lambda x: x * x, lambda g, x: 2.01 * g * x)


def test_right_gradients_pass() -> None:
    a, b = leaf(0.3, -1.2, 2.0), leaf(1.5, 0.7, -0.4)
    assert gradcheck(lambda x, y: x * y + x.exp(), (a, b)) is True
    assert gradcheck(square, a) is True
    assert gradgradcheck(lambda x, y: (x * x * y, y.exp()), (a, b)) is True
    assert a.tolist() == [0.3, -1.2, 2.0], "the inputs are put back"


def test_wrong_gradient_is_named() -> None:
    with pytest.raises(
        GradcheckError, match="Jacobian mismatch for output 0 with respect to input 0,"
    ) as error:
        gradcheck(wrong, leaf(1.0, 2.0))
    assert "numerical:" in str(error.value) and "analytical:" in str(error.value)
    assert "2.0100" in str(error.value) and "2.0000" in str(error.value)
    assert isinstance(error.value, RuntimeError)


def test_second_output_and_second_input_are_checked() -> None:
    a, b = leaf(1.0, 2.0), leaf(0.5, -1.0)
    with pytest.raises(GradcheckError, match="output 1 with respect to input 1"):
        gradcheck(lambda x, y: (x * y, x + wrong(y)), (a, b))


def test_raise_exception_false_returns_false() -> None:
    assert gradcheck(wrong, leaf(1.0), raise_exception=False) is False
    assert gradcheck(wrong, leaf(1.0), rtol=0.1) is True


def test_zero_gradient_of_a_dependent_output() -> None:
    with pytest.raises(GradcheckError, match="expected to be zero"):
        gradcheck(lambda x: (x * 2, x.detach() * 3), (leaf(1.0, 2.0),))
    assert gradcheck(lambda x: (x * 2, wt.ones(2, dtype=wt.float64)), (leaf(1.0, 2.0),))


def test_gradient_that_ignores_its_factor() -> None:
    ignores = function(lambda x: x.clone(), lambda g, x: wt.ones_like(x))
    with pytest.raises(GradcheckError, match="not multiplied by grad_output"):
        gradcheck(ignores, leaf(1.0))


def test_gradient_that_changes_between_calls() -> None:
    calls = []

    def drifting(g: Any, x: Any) -> Any:
        calls.append(1)
        return g * (1 + 1e-5 * len(calls))

    with pytest.raises(GradcheckError, match="not reentrant"):
        gradcheck(function(lambda x: x.clone(), drifting), leaf(1.0))
    calls.clear()
    assert gradcheck(function(lambda x: x.clone(), drifting), leaf(1.0), nondet_tol=1e-3)


def test_undefined_gradients() -> None:
    class Strict(Function):
        @staticmethod
        def forward(ctx: Any, x: Any) -> Any:
            ctx.set_materialize_grads(False)
            return x * 2, x * 3

        @staticmethod
        def backward(ctx: Any, g: Any, h: Any) -> Any:
            if h is None:
                raise RuntimeError("no gradient came")
            return 3 * h

    with pytest.raises(RuntimeError, match="no gradient came"):
        gradcheck(Strict.apply, leaf(1.0))


def test_wrong_second_gradient() -> None:
    x = leaf(0.5, 1.5)
    first_only = function(lambda x: x * x * x, lambda g, x: 3 * g * x.detach() * x.detach())
    assert gradcheck(first_only, x)
    with pytest.raises(GradcheckError):
        gradgradcheck(first_only, x)


def test_given_second_factors() -> None:
    x = leaf(0.5, 1.5)
    assert gradgradcheck(square, (x,), (leaf(1.0, -2.0),))
    assert gradgradcheck(square, x, gen_non_contig_grad_outputs=True)


def test_the_generator_is_left_alone() -> None:
    before = wt.get_rng_state().tolist()
    gradgradcheck(square, leaf(1.0))
    assert wt.get_rng_state().tolist() == before


def test_refused_inputs() -> None:
    with pytest.raises(ValueError, match="at least one input tensor to require gradient"):
        gradcheck(square, wt.ones(2, dtype=wt.float64))
    with pytest.warns(UserWarning, match="Input #0 requires gradient and is not a double precision"):
        gradcheck(lambda x: x * 1, wt.ones(2, requires_grad=True), raise_exception=False)
    with pytest.raises(RuntimeError, match="0th input has a dimension with stride 0"):
        gradcheck(lambda x: x * 1, leaf(1.0).expand(3))
    with pytest.raises(NotImplementedError, match="check_batched_forward_grad"):
        gradcheck(square, leaf(1.0), check_batched_forward_grad=True)


def test_forward_mode() -> None:
    a, b = leaf(0.3, -1.2, 2.0), leaf(1.5, 0.7, -0.4)
    assert gradcheck(lambda x, y: (x * y.cumsum(0), x.exp().sum()), (a, b), check_forward_ad=True)
    z = wt.tensor([1 + 2j, -0.5j], dtype=wt.complex128, requires_grad=True)
    assert gradcheck(lambda x: x * x.conj() * x, z, check_forward_ad=True)

    class Wrong(wt.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 2

        @staticmethod
        def jvp(ctx, tangent):
            return tangent * 3

    assert gradcheck(Wrong.apply, a)
    with pytest.raises(RuntimeError, match="forward"):
        gradcheck(Wrong.apply, a, check_forward_ad=True)


def test_layouts_empty_and_scalar() -> None:
    x = leaf(1.0, 2.0, 3.0, 4.0, 5.0, 6.0)
    assert gradcheck(lambda x: x * x, wt.tensor(2.0, dtype=wt.float64, requires_grad=True))
    assert gradcheck(lambda x: x * 2, wt.zeros(0, 3, dtype=wt.float64, requires_grad=True))
    assert gradcheck(lambda x: x * x, x.detach().view(2, 3).t().requires_grad_())


def test_batched_gradients() -> None:
    a, b = leaf(0.3, -1.2, 2.0), leaf(1.5, 0.7, -0.4)
    before = wt.get_rng_state()
    for check in (gradcheck, gradgradcheck):
        assert check(lambda x, y: (x * y.cumsum(0), x.exp().sum()), (a, b), check_batched_grad=True)
        assert check(lambda x, n: x[n] * x.max(), (a, wt.tensor([0, 0, 2])), check_batched_grad=True)
    assert wt.equal(before, wt.get_rng_state())


class Twice(Function):
    """2 x, with a rule for vmap that gives 3 x."""

    @staticmethod
    def forward(x: Any) -> Any:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g

    @staticmethod
    def vmap(info: Any, in_dims: Any, x: Any) -> Any:
        return 3 * x, in_dims[0]


class DoubledByTwice(Function):
    @staticmethod
    def forward(x: Any) -> Any:
        return 2 * x

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return Twice.apply(g)

    generate_vmap_rule = True


def test_planted_errors_of_batches_are_found() -> None:
    x = leaf(0.3, -1.2)
    assert gradcheck(DoubledByTwice.apply, x)
    with pytest.raises(GradcheckError, match="computed with vmap over a batch of gradients differs"):
        gradcheck(DoubledByTwice.apply, x, check_batched_grad=True)
    assert gradcheck(DoubledByTwice.apply, x, check_batched_grad=True, raise_exception=False) is False


def test_forward_over_reverse_and_alone() -> None:
    a = leaf(0.3, -1.2, 2.0)
    assert gradgradcheck(lambda x: x.exp() * x, a, check_fwd_over_rev=True)
    assert gradgradcheck(lambda x: x.sin(), a, check_fwd_over_rev=True, check_rev_over_rev=False)

    class WrongBackward(wt.autograd.Function):
        @staticmethod
        def forward(x):
            return x * 2

        @staticmethod
        def setup_context(ctx, inputs, output):
            pass

        @staticmethod
        def backward(ctx, g):
            return g * 3

        @staticmethod
        def jvp(ctx, t):
            return t * 2

    assert gradcheck(WrongBackward.apply, a, raise_exception=False) is False
    assert gradcheck(WrongBackward.apply, a, check_forward_ad=True, check_backward_ad=False)


def test_a_second_backward_through_interpolation() -> None:
    x = wt.ones(1, 1, 4, requires_grad=True)
    y = wt.nn.functional.interpolate(x, scale_factor=2.0, mode="linear").sum()
    y.backward()
    y.backward()  # nothing of the graph's values was kept, so nothing was freed
    assert x.grad is not None and x.grad.sum() == 16


def test_gradients_for_a_generator_of_inputs() -> None:
    model = wt.nn.Linear(2, 1)
    found = wt.autograd.grad((y for y in [model(wt.ones(2))]), model.parameters())
    assert [g.shape for g in found] == [(1, 2), (1,)]


class OldTwice(Function):
    """A Function that knows nothing of transforms."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return 2 * x

    @staticmethod
    def backward(ctx: Any, g: Any) -> Any:
        return 2 * g


def test_functions_that_read_values_have_batched_gradients() -> None:
    def reads(x: Any) -> Any:
        assert x.sum().item() < 9
        return OldTwice.apply(x).exp(), x.detach().round().long()

    norm = wt.nn.BatchNorm1d(2).double()  # writes its statistics
    for call, shape in ((reads, (2,)), (norm, (3, 2))):
        x = wt.randn(shape, dtype=wt.float64, requires_grad=True)
        for check in (gradcheck, gradgradcheck):
            assert check(call, [x], check_batched_grad=True)
