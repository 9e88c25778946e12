"""jvp, jacfwd, hessian and linearize on functions of several ops, nested and with the tape; forward_ad."""

import pytest
import warptape as wt
import warptape.autograd.forward_ad as fw
import warptape.nn.functional as F
from warptape import func

F64 = wt.float64


def close(a, b):
    assert a.shape == b.shape
    assert wt.allclose(a, b, rtol=1e-8, atol=1e-10)


def f(x):
    return wt.softmax(x.sin() * x[0], 0)[1:] @ wt.stack([x[:-1].exp(), x[1:] ** 2], 1)


X = wt.linspace(0.3, 1.7, 5, dtype=F64)
V = wt.linspace(-1.0, 0.5, 5, dtype=F64)


def test_jvp_equals_the_jacobian_by_reverse_mode():
    out, along = func.jvp(f, (X,), (V,))
    close(out, f(X))
    close(along, func.jacrev(f)(X) @ V)
    close(func.jacfwd(f)(X), func.jacrev(f)(X))
    product = func.linearize(f, X)[1]
    close(product(V), along)
    close(product(2 * V), 2 * along)


def test_no_tape_is_kept_of_a_forward_pass():
    out, along = func.jvp(f, (X,), (V,))
    assert not out.requires_grad and not along.requires_grad
    with wt.no_grad():
        close(func.jvp(f, (X,), (V,))[1], along)


def test_hessians_agree():
    def g(x):
        return f(x).prod() + wt.linalg.norm(x) * x[2]

    want = func.jacrev(func.jacrev(g))(X)
    close(func.hessian(g)(X), want)
    close(func.jacfwd(func.jacfwd(g))(X), want)
    close(func.jacrev(func.jacfwd(g))(X), want)
    close(func.jvp(func.grad(g), (X,), (V,))[1], want @ V)
    close(func.grad(lambda x: func.jvp(g, (x,), (V,))[1])(X), want @ V)
    close(func.vmap(func.hessian(g))(wt.stack([X, X * 0.5]))[0], want)


def test_tangents_are_not_confused():
    """d/dx (x d/dy (x + y)) is 1 (Siskind and Pearlmutter, "Perturbation confusion", 2005)."""
    one = wt.tensor(1.0)

    def inner(x):
        return x * func.jvp(lambda y: x + y, (one,), (one,))[1]

    assert func.jvp(inner, (one,), (one,))[1].item() == 1.0


def test_through_the_tape():
    x = X.clone().requires_grad_()
    func.jvp(lambda y: (y**3).sum(), (x,), (V,))[1].backward()
    close(x.grad, 6 * X * V)


def test_writes_in_place():
    def g(x):
        y = x * 1
        y.mul_(x)
        z = wt.zeros(5, dtype=F64)
        z = z + y
        z[1:3] = x[:2]
        return z

    close(func.jvp(g, (X,), (V,))[1], func.jacrev(g)(X) @ V)


def test_a_module():
    net = wt.nn.Sequential(wt.nn.Linear(5, 8), wt.nn.GELU(), wt.nn.LayerNorm(8), wt.nn.Linear(8, 2)).double()
    params = {k: p.detach() for k, p in net.named_parameters()}
    along = {k: wt.ones_like(p) for k, p in params.items()}

    def call(p):
        return func.functional_call(net, p, (X[None],))

    _, got = func.jvp(call, (params,), (along,))
    rows = func.jacrev(call)(params)
    close(got, sum((rows[k] * along[k]).flatten(2).sum(2) for k in params))


@pytest.mark.parametrize(
    "each",
    [
        lambda z: (z**4).expand(3, 2).permute(0, 1),
        lambda z: wt.nn.functional.linear(z**3, wt.tensor([[1.0, 2.0], [3.0, 4.0]], dtype=z.dtype)),
        lambda z: func.jacrev(lambda z: (z**4).sum())(z),
        lambda z: (z**3).exp().softmax(0) * z.sum(),
    ],
)
def test_tangents_of_tangents_within_vmap(each):
    points = wt.tensor([[0.3, -0.1], [0.5, 0.7], [-0.4, 0.2]], dtype=wt.float64)

    def twice(z):
        return func.jacfwd(func.jacfwd(each))(z)

    close(func.vmap(twice)(points), wt.stack([twice(z) for z in points]))
    close(func.vmap(twice)(points), func.vmap(func.jacrev(func.jacrev(each)))(points))


@pytest.mark.parametrize(
    "f",
    [
        lambda x: F.conv1d(x.sin().reshape(1, 1, 4), wt.tensor([[[1.0, 2.0]]], dtype=x.dtype)),
        lambda x: wt.fft.rfft(x.sin()).abs(),
        lambda x: F.max_pool1d((x**3).reshape(1, 4), 2),
        lambda x: F.embedding(wt.tensor([0, 2]), wt.outer(x, x)),
        lambda x: F.conv_transpose1d((x**2).reshape(1, 1, 4), wt.tensor([[[1.0, 2.0]]], dtype=x.dtype)),
    ],
)
def test_tangents_of_tangents_of_formulas_that_read_memory(f):
    x = wt.tensor([0.3, -0.7, 0.5, 0.9], dtype=wt.float64)
    along = wt.tensor([1.0, 2.0, -1.0, 0.5], dtype=wt.float64)

    def twice(x):
        return func.jvp(lambda y: func.jvp(f, (y,), (along,))[1], (x,), (along,))[1]

    second = func.jacrev(func.jacrev(f))(x)
    close(twice(x), (second * along).sum(-1).matmul(along))
    close(func.vmap(twice)(wt.stack([x, x * 0.5])), wt.stack([twice(x), twice(x * 0.5)]))


def test_tangent_of_a_tangent_alone():
    """The part along the outer direction of a dual number whose primal has none."""
    x = wt.tensor(2.0, dtype=wt.float64)

    def inner(y):
        return func.jvp(lambda z: func.grad(lambda u: u**3)(z), (x,), (y,))[1]

    close(func.jvp(inner, (x,), (wt.ones_like(x),))[1], 6 * x)


def test_aux_and_refusals():
    _, along, aux = func.jvp(lambda x: (x * 2, x.sum()), (X,), (V,), has_aux=True)
    close(along, 2 * V)
    assert aux.item() == X.sum().item()
    with pytest.raises(RuntimeError, match="same python structure"):
        func.jvp(f, (X,), ((V, V),))
    with pytest.raises(RuntimeError, match="doesn't match the shape"):
        func.jvp(f, (X,), (V[:2],))
    with pytest.raises(RuntimeError, match="tuple"):
        func.jvp(f, X, V)
    with pytest.raises(RuntimeError, match="at least one Tensor"):
        func.jvp(f, (), ())
    with pytest.raises(RuntimeError, match="only contain Tensors"):
        func.jvp(f, (X,), (1.0,))
    with pytest.raises(RuntimeError, match="unsupported type"):
        func.jvp(lambda x: (x, 3), (X,), (V,), has_aux=True)
    with pytest.raises(RuntimeError, match="independent of the inputs"):
        func.jvp(lambda x: wt.ones(2), (X,), (V,), strict=True)
    assert func.jvp(lambda x: wt.ones(2), (X,), (V,))[1].tolist() == [0.0, 0.0]


def test_dual_numbers():
    with pytest.raises(RuntimeError, match="no level exists"):
        fw.make_dual(X, V)
    with fw.dual_level():
        x = fw.make_dual(X, V)
        primal, tangent = fw.unpack_dual(f(x))
        close(primal, f(X))
        close(tangent, func.jvp(f, (X,), (V,))[1])
        assert fw.unpack_dual(wt.ones(2)).tangent is None
        with pytest.raises(RuntimeError, match="Nested"):
            fw.enter_dual_level()
        with pytest.raises(ValueError, match="floating point"):
            fw.make_dual(wt.arange(3), wt.arange(3))
    assert fw.unpack_dual(X).tangent is None


@pytest.mark.parametrize("use", [lambda view: view * 2, lambda view: view])
def test_a_view_older_than_its_base_s_derivative_is_refused(use) -> None:
    def stale(y):
        base = wt.zeros(3)
        view = base[1:]
        base.add_(y)
        return use(view)

    def fresh(y):
        base = wt.zeros(3)
        base.add_(y)
        return use(base[1:])

    x = wt.ones(3)
    with pytest.raises(RuntimeError, match="view was made before"):
        wt.func.jvp(stale, (x,), (x,))
    out, tangent = wt.func.jvp(fresh, (x,), (x,))
    assert wt.equal(out, tangent)
