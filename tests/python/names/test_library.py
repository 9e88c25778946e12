"""torch.library: schemas of custom ops, what they change, lists, keywords, autocast, opcheck. The schemas
that are compared with are what PyTorch 2.13 prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import warptape as torch
from warptape._op_schema import parse_schema
from warptape.library import custom_op, infer_schema, opcheck

Tensor = torch.Tensor
numbers = itertools.count()


def name():
    """Of an op that no other test has."""
    return f"testlibrary::op{next(numbers)}"


def lists(
    x: Tensor, n: int, l: list[int], k: str = "a", *, q: float = 1.5, b: bool = False
) -> tuple[Tensor, int]: ...
def objects(
    x: Tensor, y: Tensor | None, s: Sequence[float], d: torch.dtype, dev: torch.device,
    num: int | float | bool, ts: Sequence[Tensor]
) -> list[Tensor]: ...  # fmt: skip
def nothing(x: Tensor, y: Tensor | None = None) -> None: ...


def test_schemas_of_functions():
    assert infer_schema(lists, mutates_args=["x"]) == (
        '(Tensor(a0!) x, SymInt n, SymInt[] l, str k="a", *, float q=1.5, bool b=False) -> (Tensor, SymInt)'
    )
    assert infer_schema(objects, mutates_args={"ts", "y"}) == (
        "(Tensor x, Tensor(a1!)? y, float[] s, ScalarType d, Device dev, Scalar num, Tensor(a6!)[] ts) "
        "-> Tensor[]"
    )
    assert (
        infer_schema(nothing, mutates_args="unknown", op_name="foo")
        == "foo(Tensor(a0!) x, Tensor(a1!)? y=None) -> ()"
    )


def test_functions_without_a_schema():
    def untyped(x) -> Tensor: ...
    def unreturned(x: Tensor): ...
    def varargs(x: Tensor, *more: Tensor) -> None: ...
    def dicts(x: dict) -> None: ...
    def tuples(x: Sequence[int] = (1, 2)) -> Tensor: ...

    for fn, text in (
        (untyped, "Parameter x must have a type annotation"),
        (unreturned, "No return type annotation was provided"),
        (varargs, "We do not support positional-only args, varargs, or varkwargs"),
        (dicts, "Parameter x has unsupported type <class 'dict'>"),
        (tuples, "Parameter x has an unsupported default value type <class 'tuple'>"),
    ):
        with pytest.raises(ValueError, match=text):
            infer_schema(fn, mutates_args=())
    with pytest.raises(ValueError, match=r"\{'q'\} in mutates_args were not found"):
        infer_schema(nothing, mutates_args=["q"])
    with pytest.raises(ValueError, match="only Tensors or lists of Tensors can be mutated"):
        infer_schema(lists, mutates_args=["n"])
    with pytest.raises(ValueError, match="must have a type annotation"):
        custom_op(name(), untyped, mutates_args=())


def test_texts_of_schemas():
    schema = parse_schema(
        'ns::op.over(Tensor(a!)[] xs, int[2]? n=[1, 2], *, str s="a, b", float f=-1e-5, Tensor? t=None) '
        "-> (Tensor, int)"
    )
    assert (schema.name, schema.overload_name, schema.is_mutable) == ("ns::op", "over", True)
    assert [a.type for a in schema.arguments] == ["Tensor[]", "int[2]?", "str", "float", "Tensor?"]
    assert [a.default_value for a in schema.arguments] == [None, [1, 2], "a, b", -1e-5, None]
    assert [a.kwarg_only for a in schema.arguments] == [False, False, True, True, True]
    assert [a.has_default for a in schema.arguments] == [False, True, True, True, True]
    assert [r.type for r in schema.returns] == ["Tensor", "int"] and parse_schema("f() -> ()").returns == []
    for wrong in ("op(Tensor x)", "op(Tensor[x y) -> Tensor", "no schema"):
        with pytest.raises(ValueError, match="expected a"):
            parse_schema(wrong)


def test_a_decorator_keeps_schema_and_tags():
    @custom_op(name(), mutates_args=(), schema="(Tensor x, int n=2) -> Tensor", tags=["pure"])
    def op(x, n):
        return x * n

    overload = op._opoverload
    assert str(overload._schema) == f"{op._qualname}(Tensor x, int n=2) -> Tensor" and overload.tags == [
        "pure"
    ]
    assert op(torch.ones(2)).tolist() == [2.0, 2.0] and op(torch.ones(1), n=3).tolist() == [3.0]
    for arguments, text in (
        (("no",), r"\(\) Expected a value of type 'Tensor' for argument 'x' but instead found type 'str'"),
        ((), "missing value for argument 'x'"),
        ((torch.ones(1), 2, 3), "expected at most 2 argument"),
    ):
        with pytest.raises(RuntimeError, match=text):
            op(*arguments)
    with pytest.raises(RuntimeError, match="multiple values for argument 'n'"):
        op(torch.ones(1), 2, n=2)


def test_an_op_that_changes_its_argument():
    @custom_op(name(), mutates_args=("x",))
    def add_one(x: Tensor) -> None:
        x.numpy()[...] += 1

    x = torch.ones(2)
    y = x.clone().requires_grad_() * 1
    square = y.square()
    version = x._version
    assert add_one(x) is None and x.tolist() == [2.0, 2.0] and x._version > version
    assert add_one(torch.ones(2, device="meta")) is None
    with pytest.raises(RuntimeError, match="Cannot register autograd formula for non-functional operator"):
        add_one.register_autograd(lambda ctx: None)
    add_one(y.detach())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        square.sum().backward()
    assert set(opcheck(add_one, (x,)).values()) == {"SUCCESS"}


def test_results_that_are_arguments_are_refused():
    @custom_op(name(), mutates_args=())
    def same(x: Tensor) -> Tensor:
        return x.view(-1)

    with pytest.raises(RuntimeError, match="may not alias any inputs"):
        same(torch.ones(2))


def test_lists_and_keywords_have_gradients_in_their_form():
    @custom_op(name(), mutates_args=())
    def weighted(xs: Sequence[Tensor], by: Tensor, *, shift: float) -> list[Tensor]:
        return [x * by + shift for x in xs]

    seen = []

    def setup(ctx, inputs, keyword_only_inputs, output):
        seen.append((len(inputs[0]), keyword_only_inputs, len(output)))
        ctx.save_for_backward(*inputs[0], inputs[1])

    def backward(ctx, grads):
        *xs, by = ctx.saved_tensors
        return [g * by for g in grads], sum(g * x for g, x in zip(grads, xs))

    weighted.register_autograd(backward, setup_context=setup)
    a, b, by = (torch.tensor([k, 2 * k]).requires_grad_() for k in (1.0, 2.0, 3.0))
    out = weighted([a, b], by, shift=0.5)
    assert isinstance(out, list) and out[1].tolist() == [6.5, 24.5]
    (out[0].sum() + 2 * out[1].sum()).backward()
    assert (a.grad.tolist(), b.grad.tolist(), by.grad.tolist()) == ([3.0, 6.0], [6.0, 12.0], [5.0, 10.0])
    assert seen == [(2, {"shift": 0.5}, 2)]


def test_without_a_gradient_backward_says_so():
    @custom_op(name(), mutates_args=())
    def half(x: Tensor) -> Tensor:
        return x / 2

    y = half(torch.ones(2, requires_grad=True))
    with pytest.raises(
        RuntimeError, match=r"Trying to backward through testlibrary.op.* no autograd formula"
    ):
        y.sum().backward()


def test_autocast_casts_what_an_op_is_given():
    seen = []

    @custom_op(name(), mutates_args=())
    def op(x: Tensor, y: Tensor) -> Tensor:
        seen.append((x.dtype, y.dtype, torch.is_autocast_enabled("cpu")))
        return x.clone()

    torch.library.register_autocast(op, "cpu", torch.bfloat16)
    x, y = torch.ones(2), torch.ones(2, dtype=torch.int64)
    op(x, y)
    with torch.autocast("cpu"):
        assert op(x, y).dtype == torch.bfloat16
    assert seen == [(torch.float32, torch.int64, False), (torch.bfloat16, torch.int64, False)]
    with pytest.raises(ValueError, match="Unknown device type: tpu"):
        op.register_autocast("tpu", torch.bfloat16)
    with pytest.raises(NotImplementedError, match="is an op of warptape"):
        torch.library.register_autocast("torchvision::nms", "cpu", torch.float32)


def test_functions_of_devices_and_of_subclasses():
    class Marked(torch.Tensor):
        pass

    @custom_op(name(), mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x + 1

    op.register_kernel("cpu", lambda x: x + 2)
    assert op(torch.zeros(1)).item() == 2
    with op.set_kernel_enabled("cpu", False):
        assert op(torch.zeros(1)).item() == 1
    assert op(torch.zeros(1)).item() == 2 and torch.library.get_kernel(op, "CPU")(torch.zeros(1)).item() == 2

    @torch.library.register_torch_dispatch(op._qualname, Marked)
    def rule(cls, func, types, args, kwargs):
        return cls, func is op._opoverload, types, len(args), kwargs

    assert op(torch.zeros(1).as_subclass(Marked)) == (Marked, True, (Marked,), 1, {})
    with pytest.raises(TypeError, match="expected a subclass of Tensor"):
        op.register_torch_dispatch(int, rule)


def test_what_a_function_without_data_may_ask():
    found = []

    @custom_op(name(), mutates_args=())
    def op(x: Tensor) -> Tensor:
        return x.nonzero()

    @op.register_fake
    def _(x):
        ctx = torch.library.get_ctx()
        found.append(ctx)
        return x.new_empty(ctx.new_dynamic_size(), 1)

    with pytest.raises(NotImplementedError, match="sizes of meta tensors are numbers"):
        op(torch.ones(2, device="meta"))
    assert len(found) == 1
    with pytest.raises(RuntimeError, match="can only be called inside of a function of register_fake"):
        torch.library.get_ctx()


def test_a_function_for_autograd_records_itself():
    class Triple(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return op(x)

        @staticmethod
        def backward(ctx, g):
            return 30 * g

    library = torch.library.Library("testlibraryautograd", "DEF")
    library.define("triple(Tensor x) -> Tensor")
    op = torch.ops.testlibraryautograd.triple
    library.impl("triple", lambda x: 3 * x, "CPU")
    library.impl("triple", Triple.apply, "Autograd")
    library.impl("triple", torch.library.fallthrough_kernel, "Meta")
    x = torch.ones(2, requires_grad=True)
    op(x).sum().backward()
    assert x.grad.tolist() == [30.0, 30.0] and op(x.detach()).tolist() == [3.0, 3.0]


def test_opcheck_finds_what_is_wrong():
    def check(op, *args):
        return {test: str(result) for test, result in opcheck(op, args, raise_exception=False).items()}

    x = torch.ones(3, requires_grad=True)

    @custom_op(name(), mutates_args=())
    def good(x: Tensor) -> Tensor:
        return torch.from_numpy(np.sin(x.detach().numpy()))

    with pytest.raises(
        torch._opcheck.OpCheckError, match=r"test_faketensor failed with There was no fake impl"
    ):
        opcheck(good, (torch.ones(3),))
    good.register_fake(torch.empty_like)
    found = check(good, x)
    assert found.pop("test_aot_dispatch_dynamic").startswith("Trying to backward through") and {
        *found.values()
    } == {"SUCCESS"}
    good.register_autograd(
        lambda ctx, g: g * ctx.x.cos(), setup_context=lambda ctx, i, o: setattr(ctx, "x", i[0])
    )
    assert {*check(good, x).values()} == {"SUCCESS"}
    good.register_fake(lambda x: x.new_empty(4))
    assert "has the shape" in check(good, x)["test_faketensor"]
    good.register_fake(lambda x: x.new_empty(3, dtype=torch.float64))
    assert "has the dtype" in check(good, x)["test_faketensor"]

    @custom_op(name(), mutates_args=())
    def secret(x: Tensor) -> Tensor:
        x.detach().zero_()
        return torch.zeros(1)

    assert "was changed that the schema does not say is" in check(secret, torch.ones(2))["test_schema"]

    below = torch.library.Library("testopcheck", "DEF")
    below.define("below(Tensor x) -> Tensor")
    below.impl("below", lambda x: x.detach() * 2, "CompositeImplicitAutograd")
    assert "no result does" in check(torch.ops.testopcheck.below, x)["test_autograd_registration"]
    with pytest.raises(ValueError, match="op must be instance"):
        opcheck(len, (x,))
    with pytest.raises(ValueError, match="expected of"):
        opcheck(good, (x,), test_utils="test_other")


def test_triton_ops():
    @torch.library.triton_op(name(), mutates_args={})
    def op(x: Tensor) -> Tensor:
        return x + 1

    assert op(torch.ones(1)).item() == 2
    with pytest.raises((ImportError, RuntimeError), match=r"pip install triton|triton\.jit"):
        torch.library.wrap_triton(len)
