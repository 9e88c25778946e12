"""Gradients of functions, products with Jacobians, Jacobians, Hessians, and maps over a batch."""

from __future__ import annotations

import numpy as np
import pytest
import warptape as wt
from warptape import func
from warptape.autograd import functional as AF

F64 = wt.float64
A = wt.tensor([[1.0, 2.0, 3.0], [0.5, -1.0, 2.0]], dtype=F64)
X = wt.tensor([0.3, -0.7, 1.1], dtype=F64)


def f(x):
    return (A @ x).sin()


def jacobian_of_f(x):
    return np.cos(A.numpy() @ x.numpy())[:, None] * A.numpy()


def close(found, expected):
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-10, atol=1e-12)


def test_grad():
    found = func.grad(lambda x: f(x).sum())(X)
    close(found, jacobian_of_f(X).sum(0))
    assert not found.requires_grad and not X.requires_grad and X.grad is None
    found, value = func.grad_and_value(lambda x: f(x).sum())(X)
    close(value, np.sin(A.numpy() @ X.numpy()).sum())
    found, aux = func.grad(lambda x: (f(x).sum(), {"y": x * 2}), has_aux=True)(X)
    close(aux["y"], 2 * X.numpy())
    by_both = func.grad(lambda x, y: (x * y.square()).sum(), argnums=(0, 1))(X, X + 1)
    close(by_both[0], (X + 1).square().numpy())
    close(by_both[1], (2 * X * (X + 1)).numpy())
    assert func.grad(lambda x: wt.ones(()))(X).tolist() == [0, 0, 0]


def test_grad_of_trees():
    params = {"w": A, "b": wt.zeros(2, dtype=F64)}
    found = func.grad(lambda p, x: (p["w"] @ x + p["b"]).square().sum())(params, X)
    y = 2 * (A @ X)
    close(found["b"], y.numpy())
    close(found["w"], np.outer(y.numpy(), X.numpy()))


def test_grad_of_grad():
    cube = lambda x: x**3
    x = wt.tensor(2.0)
    assert func.grad(func.grad(cube))(x).item() == 12
    assert func.grad(func.grad(func.grad(cube)))(x).item() == 6
    # The inner function's free variable is the outer one's argument.
    assert func.grad(lambda x: func.grad(lambda y: x * x * y)(wt.tensor(5.0)))(x).item() == 4


def test_results_stay_part_of_an_outer_tape():
    x = X.clone().requires_grad_()
    func.grad(lambda x: (x**3).sum())(x).sum().backward()
    close(x.grad, 6 * X.numpy())


def test_no_grad_between_transforms():
    """no_grad holds for what an outer transform sees of an inner one, and not within the inner one."""
    x, one = wt.tensor(2.0), wt.tensor(1.0)

    def cube(y):
        return y**3

    inner = [
        lambda x: func.grad_and_value(cube)(x)[0],
        lambda x: func.grad_and_value(cube)(x)[1],
        lambda x: func.vjp(cube, x)[0],
        lambda x: func.vjp(cube, x)[1](one)[0],
        lambda x: func.jvp(cube, (x,), (one,))[1],
        func.jacrev(cube),
        func.jacfwd(cube),
        func.hessian(cube),
        lambda x: func.grad(lambda y: y * x)(one),
        func.grad(lambda y: func.grad(cube)(y)),
    ]
    for f in inner:

        def outer(x, f=f):
            with wt.no_grad():
                return f(x)

        assert func.grad(outer)(x).item() == 0
        assert func.grad(lambda x, o=outer: o(x) * x)(x).item() == outer(x).item()
        with wt.no_grad():
            assert f(x).item() == func.vjp(f, x)[0].item() != 0
    products = []

    def late(x):
        with wt.no_grad():
            products.append(func.vjp(cube, x)[1])
        return products[-1](one)[0]

    assert func.grad(late)(x).item() == 12  # the mode where the product is taken


def test_vjp_and_jvp():
    v, t = wt.tensor([1.0, -2.0], dtype=F64), wt.tensor([0.5, 1.0, -1.0], dtype=F64)
    out, pull = func.vjp(f, X)
    close(out, f(X).numpy())
    close(pull(v)[0], v.numpy() @ jacobian_of_f(X))
    close(pull(2 * v)[0], 2 * v.numpy() @ jacobian_of_f(X))
    out, along = func.jvp(f, (X,), (t,))
    close(out, f(X).numpy())
    close(along, jacobian_of_f(X) @ t.numpy())
    pair, along = func.jvp(lambda x, y: {"sum": x + y, "product": x * y}, (X, X), (t, t))
    close(along["sum"], 2 * t.numpy())
    close(along["product"], (2 * X * t).numpy())
    assert not along["sum"].requires_grad and not pair["sum"].requires_grad


def test_jacobians():
    for jac in (func.jacrev, func.jacfwd):
        close(jac(f)(X), jacobian_of_f(X))
        by_both = jac(lambda x, y: (x * y, x), argnums=(0, 1))(X, X + 1)
        close(by_both[0][1], np.diag(X.numpy()))
        close(by_both[1][0], np.eye(3))
        assert not by_both[1][1].any()
        _found, aux = jac(lambda x: (f(x), x), has_aux=True)(X)
        close(aux, X.numpy())
    q = A.mT @ A
    close(func.hessian(lambda x: x @ q @ x)(X), (2 * q).numpy())
    close(func.jacrev(func.jacrev(lambda x: (x**3).sum()))(X), np.diag(6 * X.numpy()))


def test_vmap():
    batch = wt.tensor(np.random.default_rng(0).normal(size=(5, 3)))
    close(func.vmap(f)(batch), f(batch.mT).mT.numpy())
    close(func.vmap(wt.dot, in_dims=(0, None))(batch, X), (batch @ X).numpy())
    close(func.vmap(f, in_dims=1, out_dims=1)(batch.mT), f(batch.mT).numpy())
    both = func.vmap(lambda d: (d["a"] * 2, {"s": d["a"].sum()}), in_dims=({"a": 0},))({"a": batch})
    close(both[1]["s"], batch.sum(1).numpy())
    per_sample = func.vmap(func.grad(lambda w, x: (w * x).sum().square()), in_dims=(None, 0))(X, batch)
    close(per_sample, (2 * (batch @ X).unsqueeze(1) * batch).numpy())
    nested = func.vmap(func.vmap(wt.dot, in_dims=(None, 0)), in_dims=(0, None))(batch, batch)
    close(nested, (batch @ batch.mT).numpy())
    x = batch.clone().requires_grad_()
    func.vmap(lambda r: r.square().sum())(x).sum().backward()
    close(x.grad, 2 * batch.numpy())
    wt.manual_seed(0)
    same = func.vmap(lambda x: x + wt.rand(3, dtype=F64), randomness="same")(batch) - batch
    assert wt.allclose(same, same[:1].expand(5, 3))


def test_vmap_refusals():
    with pytest.raises(ValueError, match="at least one Tensor to vmap over"):
        func.vmap(f, in_dims=None)(X)
    with pytest.raises(
        ValueError, match="Got in_dim=3 for some input, but that input is a Tensor of dimensionality 1"
    ):
        func.vmap(f, in_dims=3)(X)
    with pytest.raises(ValueError, match="same size in the mapped dimension"):
        func.vmap(wt.dot)(wt.ones(2, 3), wt.ones(3, 3))
    with pytest.raises(ValueError, match="must only return Tensors"):
        func.vmap(lambda x: 1.0)(X)
    with pytest.raises(ValueError, match="in_dims is not compatible"):
        func.vmap(wt.dot, in_dims=(0,))(X, X)
    with pytest.raises(RuntimeError, match="randomness"):
        func.vmap(f, randomness="other")
    with pytest.raises(
        RuntimeError, match="Expected f\\(\\*args\\) to return a scalar tensor, got tensor with 1"
    ):
        func.grad(f)(X)
    with pytest.raises(RuntimeError, match="Got argnum=2, but only 1"):
        func.grad(f, argnums=2)(X)


def test_ensemble():
    models = [wt.nn.Linear(3, 2) for _ in range(4)]
    params, buffers = func.stack_module_state(models)
    assert params["weight"].shape == (4, 2, 3) and buffers == {} and params["weight"].is_leaf
    x = wt.rand(5, 3)
    found = func.vmap(lambda p: x @ p["weight"].mT + p["bias"])(params)
    for i, model in enumerate(models):
        assert wt.allclose(found[i], model(x))
    with pytest.raises(RuntimeError, match="same class"):
        func.stack_module_state([models[0], wt.nn.Flatten()])


def test_batched_gradients():
    x = X.clone().requires_grad_()
    units = wt.eye(2, dtype=F64)
    (found,) = wt.autograd.grad(f(x), x, units, is_grads_batched=True)
    close(found, jacobian_of_f(X))
    unused = wt.autograd.grad(f(x), (x, x.clone()), units, is_grads_batched=True, allow_unused=True)
    assert unused[1] is None and wt.vmap is func.vmap


def test_autograd_functional():
    v, t = wt.tensor([1.0, -2.0], dtype=F64), wt.tensor([0.5, 1.0, -1.0], dtype=F64)
    close(AF.jacobian(f, X), jacobian_of_f(X))
    close(AF.vjp(f, X, v)[1], v.numpy() @ jacobian_of_f(X))
    close(AF.jvp(f, X, t)[1], jacobian_of_f(X) @ t.numpy())
    q = A.mT @ A
    g = lambda x: x @ q @ x
    close(AF.hessian(g, X), 2 * q.numpy())
    out, product = AF.hvp(g, X, t)
    close(out, g(X).numpy())
    close(product, (2 * q @ t).numpy())
    close(AF.vhp(g, X, t)[1], (2 * q @ t).numpy())
    blocks = AF.hessian(lambda x, y: (x * y).sum(), (X, X))
    close(blocks[0][1], np.eye(3))
    assert not blocks[0][0].any()
    x = X.clone().requires_grad_()
    AF.jacobian(f, x, create_graph=True).sum().backward()
    assert x.grad.abs().sum() > 0
    with pytest.raises(RuntimeError, match="independent of an input"):
        AF.jacobian(lambda x, y: x, (X, X), strict=True)
    with pytest.raises(RuntimeError, match="v can only be None"):
        AF.vjp(f, X)
    with pytest.raises(RuntimeError, match="v has invalid size"):
        AF.vjp(f, X, X)
    with pytest.raises(TypeError, match="must be given as a Tensor"):
        AF.jacobian(f, 1.0)
