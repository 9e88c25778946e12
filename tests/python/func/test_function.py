"""autograd.Function within vmap, forward mode and gradients, and what transforms refuse."""

import pytest
import warptape as wt
import warptape.autograd.forward_ad as fw
from warptape import func

F64 = wt.float64
X = wt.linspace(0.3, 1.7, 6, dtype=F64).reshape(2, 3)
V = wt.linspace(-1.0, 0.5, 6, dtype=F64).reshape(2, 3)


def close(a, b):
    assert a.shape == b.shape
    assert wt.allclose(a, b, rtol=1e-8, atol=1e-10)


class Scaled(wt.autograd.Function):
    """x sin(w)"""

    @staticmethod
    def forward(x, w):
        return x * w.sin()

    @staticmethod
    def setup_context(ctx, inputs, output):
        ctx.save_for_backward(*inputs)
        ctx.save_for_forward(*inputs)

    @staticmethod
    def backward(ctx, g):
        x, w = ctx.saved_tensors
        return g * w.sin(), g * x * w.cos()

    @staticmethod
    def jvp(ctx, x_t, w_t):
        x, w = ctx.saved_tensors
        return x_t * w.sin() + x * w.cos() * w_t


class Mapped(Scaled):
    generate_vmap_rule = True


class OwnRule(Scaled):
    @staticmethod
    def vmap(info, in_dims, x, w):
        assert info.batch_size == 2 and info.randomness == "error"
        x, w = (t if d is None else t.movedim(d, 0) for t, d in zip((x, w), in_dims))
        return OwnRule.apply(x, w), 0


def plain(x, w):
    return x * w.sin()


W = wt.linspace(0.1, 0.9, 3, dtype=F64)


@pytest.mark.parametrize("cls", [Mapped, OwnRule])
@pytest.mark.parametrize("in_dims", [(0, None), (None, 0), (0, 0)])
def test_vmap(cls, in_dims):
    args = [X if d == 0 else W for d in in_dims]
    close(func.vmap(cls.apply, in_dims)(*args), func.vmap(plain, in_dims)(*args))


@pytest.mark.parametrize("in_dims", [(0, None), (0, 0)])
def test_gradients_of_a_mapped_function(in_dims):
    args = (X, W if in_dims[1] is None else V)

    def both(op):
        one = func.vmap(func.grad(lambda x, w: (op(x, w) ** 2).sum(), (0, 1)), in_dims)(*args)
        all_of = func.grad(lambda x, w: (func.vmap(op, in_dims)(x, w) ** 2).sum(), (0, 1))(*args)
        return *one, *all_of

    for got, wanted in zip(both(Mapped.apply), both(plain)):
        close(got, wanted)


def test_forward_mode_nested_and_mapped():
    def second(op):
        slope = lambda x: func.jvp(lambda w: op(x, w).sum(), (W,), (W,))[1]
        return func.jvp(slope, (X[0],), (V[0],))

    for got, wanted in zip(second(Mapped.apply), second(plain)):
        close(got, wanted)
    for jacobian in (func.jacfwd, func.jacrev, func.hessian):
        close(jacobian(lambda w: Mapped.apply(X[0], w))(W), jacobian(lambda w: plain(X[0], w))(W))


def test_forward_mode_of_a_function_with_one_context():
    class Square(wt.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            ctx.save_for_forward(x)
            return x * x

        @staticmethod
        def jvp(ctx, x_t):
            (x,) = ctx.saved_tensors
            return 2 * x * x_t

    with fw.dual_level():
        close(fw.unpack_dual(Square.apply(fw.make_dual(X, V))).tangent, 2 * X * V)
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        func.jvp(Square.apply, (X,), (V,))
    with pytest.raises(RuntimeError, match="must override the setup_context"):
        func.grad(lambda x: Square.apply(x).sum())(X)


def test_an_input_changed_in_place_stays_itself():
    class Double(wt.autograd.Function):
        @staticmethod
        def forward(x):
            return x.mul_(2)

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.mark_dirty(inputs[0])

        @staticmethod
        def backward(ctx, g):
            return 2 * g

        @staticmethod
        def jvp(ctx, x_t):
            return x_t.mul_(2)

    with fw.dual_level():
        x = fw.make_dual(X.clone(), V.clone())
        assert Double.apply(x) is x
        close(fw.unpack_dual(x).tangent, 2 * V)
        close(fw.unpack_dual(x).primal, 2 * X)


def test_functions_that_vmap_cannot_map():
    with pytest.raises(RuntimeError, match="does not have vmap support"):
        func.vmap(Scaled.apply)(X, V)
    both = type("Both", (OwnRule,), {"generate_vmap_rule": True})
    with pytest.raises(RuntimeError, match="ambiguity"):
        func.vmap(both.apply)(X, V)
    one = type("One", (Scaled,), {"vmap": staticmethod(lambda info, dims, x, w: x)})
    with pytest.raises(RuntimeError, match="two returns"):
        func.vmap(one.apply)(X, V)
    odd = type("Odd", (Scaled,), {"vmap": staticmethod(lambda info, dims, x, w: (x, (0,)))})
    with pytest.raises(RuntimeError, match="incompatible"):
        func.vmap(odd.apply)(X, V)


def test_an_input_that_is_saved_and_returned():
    class Same(wt.autograd.Function):
        @staticmethod
        def forward(x):
            return x

        @staticmethod
        def setup_context(ctx, inputs, output):
            ctx.save_for_backward(output)

        @staticmethod
        def backward(ctx, g):
            return g

    with pytest.raises(RuntimeError, match="returned as-is"):
        Same.apply(X)


def test_views_in_place_within_vmap():
    def f(w, x):
        y = x.unsqueeze(0).mm(w)
        y.squeeze_(0)
        return (y**2).sum()

    w = wt.linspace(-1, 1, 12, dtype=F64).reshape(3, 4)
    got = func.vmap(func.grad(f), (None, 0))(w, X)
    close(got, wt.stack([func.grad(f)(w, x) for x in X]))
    assert func.vmap(lambda x: x.clone().unsqueeze_(0))(X).shape == (2, 1, 3)
    out, along = func.jvp(lambda x: x.clone().t_(), (X,), (V,))
    close(out, X.t())
    close(along, V.t())


def test_forward_mode_off():
    def f(x):
        with fw._set_fwd_grad_enabled(False):
            y = x**2
        return x**2 - y

    close(func.jvp(f, (X,), (V,))[1], 2 * X * V)
    with fw._set_fwd_grad_enabled(False):
        close(func.jvp(wt.sin, (X,), (V,))[1], X.cos() * V)


def test_refusals_within_transforms():
    for name, act in (
        ("requires_grad_", lambda x: x.requires_grad_()),
        ("retain_grad", lambda x: x.sin().retain_grad()),
        ("autograd.functional", lambda x: wt.autograd.functional.jacobian(wt.sin, x)),
        ("saved tensor hooks", lambda x: wt.autograd.graph.save_on_cpu().__enter__()),
    ):
        with pytest.raises(RuntimeError, match=name):
            func.grad(lambda x, act=act: (act(x), x.sum())[1])(X)
    with pytest.raises(RuntimeError, match="requires_grad_"):
        func.vmap(lambda x: x.requires_grad_())(X)
    with wt.autograd.graph.save_on_cpu(), pytest.raises(RuntimeError, match="saved tensor hooks"):
        func.vjp(wt.sin, X)
    with wt.autograd.graph.disable_saved_tensors_hooks("off"), pytest.raises(RuntimeError, match="off"):
        wt.autograd.graph.save_on_cpu().__enter__()
    with pytest.raises(RuntimeError, match="to be real"):
        func.jacrev(wt.conj)(wt.ones(2, dtype=wt.complex64))


def test_one_row_at_a_time_and_aux():
    close(func.jacrev(wt.sin, chunk_size=1)(W), func.jacrev(wt.sin)(W))
    jacobian, aux = func.jacfwd(lambda x: (x.sin(), {"a": x.cos()}), has_aux=True)(W)
    close(jacobian, W.cos().diag())
    close(aux["a"], W.cos())


def test_debug_unwrap_and_batch_norms():
    seen = []
    func.vmap(func.vmap(lambda x: (seen.append(func.debug_unwrap(x)), x)[1]))(X)
    assert seen[0] is X
    net = wt.nn.Sequential(wt.nn.Conv2d(1, 1, 1), wt.nn.BatchNorm2d(1))
    assert func.replace_all_batch_norm_modules_(net) is net
    assert net[1].running_mean is None and not net[1].track_running_stats
