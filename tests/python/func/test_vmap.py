"""vmap beyond single ops: nesting, randomness, control flow on data, fallbacks, writes in place."""

import warnings

import pytest
import warptape as wt
from warptape import func

F = wt.nn.functional


def close(a, b):
    assert a.shape == b.shape
    assert wt.allclose(a, b, rtol=1e-5, atol=1e-6)


def looped(f, *args):
    return wt.stack([f(*each) for each in zip(*args, strict=True)])


def test_the_function_is_called_once():
    calls = []

    def f(x):
        calls.append(x.shape)
        return (x * 2).sum()

    x = wt.randn(5, 3)
    close(func.vmap(f)(x), (x * 2).sum(1))
    assert calls == [(3,)]


def test_in_and_out_dims():
    x = wt.randn(2, 5, 3)
    close(func.vmap(wt.sin, in_dims=1, out_dims=2)(x), x.sin().movedim(1, 2))
    close(func.vmap(wt.sin, in_dims=-1, out_dims=-1)(x), x.sin())
    out = func.vmap(lambda d, y: {"a": d["x"] + y, "b": y}, in_dims=({"x": 1}, None))({"x": x}, x[0, 0])
    close(out["a"], (x + x[0, 0]).movedim(1, 0))
    close(out["b"], x[0, 0].expand(5, 3))
    same, mapped = func.vmap(lambda a: (x[0], a), out_dims=(None, 0))(x)
    assert same.shape == (5, 3) and mapped.shape == x.shape
    with pytest.raises(ValueError, match="can not return a BatchedTensor when out_dim is None"):
        func.vmap(wt.sin, out_dims=None)(x)


def test_chunks_give_the_same():
    x = wt.randn(7, 3)
    close(func.vmap(wt.exp, chunk_size=3, out_dims=1)(x), x.exp().T)
    with pytest.raises(ValueError, match="chunk_size"):
        func.vmap(wt.exp, chunk_size=0)


@pytest.mark.parametrize("index", [0, slice(1, None, 2), (slice(None), 1), (None, Ellipsis, 2), -1])
def test_basic_indices(index):
    x = wt.randn(4, 5, 3)
    close(func.vmap(lambda a: a[index])(x), looped(lambda a: a[index], x))


def test_indices_that_are_mapped():
    table, rows = wt.randn(6, 3), wt.tensor([[0, 5], [2, 2], [1, 4]])
    close(func.vmap(lambda i: table[i])(rows), table[rows])
    close(func.vmap(lambda t, i: t[i], in_dims=(None, 0))(table, rows), table[rows])
    tables = wt.randn(3, 6, 3)
    close(func.vmap(lambda t, i: t[i])(tables, rows), looped(lambda t, i: t[i], tables, rows))
    close(func.vmap(lambda t, i: t[i])(tables, rows[:, 0]), looped(lambda t, i: t[i], tables, rows[:, 0]))

    def put(t, i):
        t = t.clone()
        t[i] = 1.0
        return t

    close(func.vmap(put)(tables, rows), looped(put, tables, rows))


def test_a_number_takes_no_part_in_promotion():
    x, s = wt.randn(4, 3), wt.randn(4, dtype=wt.float64)
    assert func.vmap(wt.mul)(x, s).dtype == wt.float32


def test_nested():
    x, y = wt.randn(3, 2), wt.randn(4, 2)
    close(func.vmap(lambda a: func.vmap(lambda b: wt.dot(a, b))(y))(x), x @ y.T)
    close(func.vmap(func.vmap(wt.mul, (None, 0)), (0, None))(x[:, 0], y[:, 0]), wt.outer(x[:, 0], y[:, 0]))


def test_products_of_mapped_and_shared_operands():
    a, b, v = wt.randn(3, 4, 5), wt.randn(3, 5, 2), wt.randn(3, 5)
    for one, other in ((a, b), (a, v), (v, b)):
        close(func.vmap(wt.matmul)(one, other), looped(wt.matmul, one, other))
        close(
            func.vmap(wt.matmul, in_dims=(None, 0))(one[0], other), looped(lambda o, f=one[0]: f @ o, other)
        )
        close(
            func.vmap(wt.matmul, in_dims=(0, None))(one, other[0]), looped(lambda o, s=other[0]: o @ s, one)
        )


def test_random_ops():
    x = wt.zeros(4, 3)
    with pytest.raises(RuntimeError, match="randomness error mode"):
        func.vmap(lambda a: a + wt.rand(3))(x)
    same = func.vmap(lambda a: a + wt.rand(3), randomness="same")(x)
    assert (same == same[0]).all()
    different = func.vmap(lambda a: a + wt.rand(3), randomness="different")(x)
    assert len({tuple(row) for row in different.tolist()}) == 4
    nested = func.vmap(
        lambda a: func.vmap(lambda b: b + wt.rand(()), randomness="different")(a), randomness="different"
    )(x)
    assert len(set(nested.flatten().tolist())) == 12
    assert func.vmap(lambda a: F.dropout(a, training=False))(x).shape == x.shape


def test_control_flow_on_data_is_refused():
    x = wt.randn(3)
    for f in (
        lambda a: a.item(),
        lambda a: a if a > 0 else -a,
        lambda a: a.tolist(),
        lambda a: wt.tensor(a.numpy()),
    ):
        with pytest.raises(RuntimeError):
            func.vmap(f)(x)


def test_writes_in_place():
    x, y = wt.randn(3, 2), wt.randn(3, 2)
    mapped = x.clone()
    func.vmap(lambda a, b: a.add_(b))(mapped, y)
    close(mapped, x + y)
    shared = wt.zeros(2)
    with pytest.raises(RuntimeError, match="inplace arithmetic"):
        func.vmap(lambda b: shared.add_(b))(y)
    assert (shared == 0).all()


def test_a_fallback_warns_once_and_is_right():
    x = wt.randn(3, 4, 4)
    with pytest.warns(UserWarning, match="no batching rule for"):
        out = func.vmap(lambda a: wt.unique(a).sum())(x.round().clamp(-1, 1) * 0 + 1)
    assert out.tolist() == [1.0, 1.0, 1.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        func.vmap(lambda a: wt.unique(a).sum())(x * 0)


def test_gradients_of_each_sample():
    net = wt.nn.Sequential(
        wt.nn.Conv2d(2, 4, 3), wt.nn.GroupNorm(2, 4), wt.nn.ReLU(), wt.nn.Flatten(), wt.nn.Linear(64, 3)
    )
    params = dict(net.named_parameters())
    x, y = wt.randn(5, 2, 6, 6), wt.randint(0, 3, (5,))

    def loss(params, a, b):
        return F.cross_entropy(func.functional_call(net, params, (a[None],)), b[None])

    out = func.vmap(func.grad(loss), in_dims=(None, 0, 0))(params, x, y)
    for i in range(5):
        one = func.grad(loss)(params, x[i], y[i])
        for name, g in one.items():
            close(out[name][i], g)


def test_a_model_for_each_sample():
    models = [wt.nn.Sequential(wt.nn.Linear(4, 8), wt.nn.Tanh(), wt.nn.LayerNorm(8)) for _ in range(3)]
    params, buffers = func.stack_module_state(models)
    x = wt.randn(5, 4)
    out = func.vmap(lambda p, b: func.functional_call(models[0], (p, b), (x,)))(params, buffers)
    for i, m in enumerate(models):
        close(out[i], m(x))


def test_wrappers_do_not_outlive_the_transform():
    kept = []
    func.vmap(lambda a: kept.append(a) or a)(wt.randn(3))
    with pytest.raises(RuntimeError):
        kept[0].sum()
    assert "BatchedTensor" in repr(kept[0])


def test_type_as_a_mapped_tensor():
    t = wt.arange(6).reshape(2, 3)
    out = func.vmap(lambda v: t.type_as(v) * v)(wt.tensor([1.5, 2.0]))
    close(out, wt.stack([t * 1.5, t * 2.0]))


@pytest.mark.parametrize("lies", [lambda x: x, lambda x: x.t(), lambda x: x[:, ::2], lambda x: x[:, 1:]])
def test_gradients_of_a_strided_window(lies):
    x, g = lies(wt.arange(20.0).reshape(5, 4)), wt.arange(18.0).reshape(2, 3, 3)

    def gradient(v):
        return func.vjp(lambda x: x.as_strided((3, 3), (1, 2)), x)[1](v)[0]

    close(func.vmap(gradient)(g), looped(gradient, g))
