"""torch.library: schemas of custom ops, what they change, lists, keywords, autocast, opcheck. The schemas
that are compared with are what PyTorch 2.13 prints."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np
import pytest
import warptape as torch
from warptape._op_schema import parse_schema
from warptape.library import Library, custom_op, infer_schema, opcheck

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


# ---- torch.library as PyTorch 2.13 has it ----------------------------------------------------------------


def test_functions_come_before_or_after_their_op():
    @torch.library.impl("early::one", "CPU")
    def one(x):
        return x * 2

    library = Library("early", "FRAGMENT")
    library.impl("two", lambda x: x * 3, "CPU")
    torch.library.register_kernel("early::three", "cpu", lambda x: x * 4)
    library.impl("one.more", lambda x, y: x + y, "CPU")
    with pytest.raises(AttributeError, match=r"no torch\.ops\.early\.one yet"):
        torch.ops.early.one
    for name in ("one", "two", "three"):
        torch.library.define(f"early::{name}", "(Tensor x) -> Tensor")
    library.define("one.more(Tensor x, Tensor y) -> Tensor")
    x = torch.ones(1)
    assert [getattr(torch.ops.early, n)(x).item() for n in ("one", "two", "three")] == [2, 3, 4]
    assert torch.ops.early.one.more(x, x).item() == 2
    with pytest.raises(RuntimeError, match="same name and overload name"):
        torch.library.define("early::two", "(Tensor x) -> Tensor")
    for register in (torch.library.register_fake, torch.library.register_autograd):
        with pytest.raises(RuntimeError, match="there is no op"):
            register("early::never", len)


def test_impl_of_a_library_and_kernels_for_every_device():
    library = Library("everywhere", "DEF")
    library.define("f(Tensor x) -> Tensor")
    library.define("g(Tensor x) -> Tensor")
    library.define("h(Tensor x) -> Tensor")

    @torch.library.impl(library, "f", "CPU")
    def f(x):
        return x * 2

    @torch.library.impl(library, "g")
    def g(x):
        return x * 3

    torch.library.register_kernel("everywhere::h", ["default", "xpu"], lambda x: x + 1)
    x = torch.ones(1, requires_grad=True)
    assert torch.ops.everywhere.f(x).item() == 2 and f(x).item() == 2
    torch.ops.everywhere.g(x).backward()  # composite: it has the gradients of its ops
    assert x.grad.item() == 3 and torch.ops.everywhere.h(x).item() == 2
    library.impl("g", lambda x: x * 5, "MPS")  # for a device that is not here
    assert torch.ops.everywhere.g(x).item() == 3
    with pytest.raises(RuntimeError, match="Expected one of cpu, cuda"):
        torch.library.register_kernel("everywhere::h", "nonsense", len)


SCHEMAS = {  # what PyTorch 2.13 defines, and which arguments are written
    "(Tensor A, Tensor! out) -> ()": [False, True],
    "(Tensor A, Tensor(a!) out) -> Tensor(a!)": [False, True],
    "(Tensor A, *, Tensor!? out=None) -> Tensor": [False, True],
    "(Tensor![] xs, Tensor(a!)[] ys, Tensor(b) z) -> ()": [True, True, False],
    "(Tensor x, int n=1, float f=0.5, bool b=True, str s='a', int[] l=[1,2]) -> (Tensor, Tensor)": [False]
    * 6,
    "(Tensor x, SymInt n, Scalar s, Generator? g, Layout? y, ScalarType? d) -> (Tensor a, int b)": [False]
    * 6,
    "(Tensor? a=None, Tensor?[] b=None) -> Tensor[]": [False] * 2,
}
NO_SCHEMAS = (
    "Tensor x -> Tensor",
    "(Tensor x)",
    "(Tenso x) -> Tensor",
    "f(Tensor x) -> Tensor",
    "(int n=1, int m) -> int",
)


def test_schemas():
    for i, (schema, written) in enumerate(SCHEMAS.items()):
        torch.library.define(f"schemas::f{i}", schema)
        op = getattr(torch.ops.schemas, f"f{i}").default
        assert [a.is_write for a in op._schema.arguments] == written
        assert op._schema.is_mutable == any(written)
    for schema in NO_SCHEMAS:
        with pytest.raises(ValueError, match="expected a schema"):
            torch.library.define("schemas::none", schema)

    @torch.library.impl("schemas::f0", "cpu")
    def doubled(A, out):
        out.numpy()[:] = A.numpy() * 2  # no op sees it

    out = torch.zeros(2)
    assert torch.ops.schemas.f0(torch.ones(2), out) is None
    assert out.tolist() == [2, 2] and out._version == 1


TYPES = {  # value -> what the function gets; an exception stands for a refusal
    "int": {3: 3, True: 1, np.int64(4): 4, 1.5: None, "1": None},
    "float": {3: 3.0, np.float32(0.5): 0.5, "x": None},
    "bool": {1: True, False: False, 0.5: None},
    "str": {"a": "a", 1: None},
    "Scalar": {2: 2, 1.5: 1.5, 1j: 1j, "a": None},
    "int[]": {(1, 2): [1, 2], 3: None, (1.5,): None},
    "int[2]": {(1, 2): [1, 2], 3: [3, 3]},
    "Tensor?": {None: None, 1: RuntimeError},
    "ScalarType?": {torch.float32: torch.float32, None: None, "x": RuntimeError},
    "Device": {"cpu": torch.device("cpu"), 1.5: None},
}


@pytest.mark.parametrize("kind", TYPES)
def test_arguments_are_of_the_types_of_the_schema(kind):
    seen = []
    name = f"types::f{list(TYPES).index(kind)}"
    torch.library.define(name, f"(Tensor x, {kind} given) -> ()")
    torch.library.impl(name, "cpu", lambda x, given: seen.append(given))
    op, x = getattr(torch.ops.types, name[7:]), torch.ones(1)
    for value, wanted in TYPES[kind].items():
        if wanted is RuntimeError or (wanted is None and not kind.endswith("?")):
            with pytest.raises(RuntimeError, match=r"Expected a value of type .* for argument 'given'"):
                op(x, value)
        else:
            op(x, given=value)
            assert seen[-1] == wanted and type(seen[-1]) is type(wanted)
    if kind in ("int", "float"):
        op(x, torch.tensor(2))
        assert seen[-1] == 2 and type(seen[-1]).__name__ == kind


def test_results_are_those_of_the_schema():
    x = torch.ones(2)

    def call(returns, value):
        name = f"results::f{len(vars(torch.ops.results))}"
        torch.library.define(name, f"(Tensor x) -> {returns}")
        torch.library.impl(name, "cpu", lambda x: value)
        return getattr(torch.ops.results, name[9:])(x)

    y = torch.zeros(1)
    assert call("()", None) is None and call("float", 2) == 2.0 and call("Tensor[]", (y, y)) == [y, y]
    assert (
        call("(Tensor, int)", [y, 2]) == (y, 2) and call("Tensor?", None) is None and call("str", "a") == "a"
    )
    for returns, value in (
        ("Tensor", 1),
        ("Tensor", (y,)),
        ("()", y),
        ("(Tensor, Tensor)", (y,)),
        ("(Tensor, Tensor)", y),
        ("Tensor[]", y),
        ("int", 3.5),
    ):
        with pytest.raises(RuntimeError, match="results::f"):
            call(returns, value)


def test_vmap_calls_a_custom_op_without_a_rule_for_each_element():
    seen = []

    @torch.library.custom_op("mapped::f", mutates_args=())
    def f(x: torch.Tensor, ys: list[torch.Tensor], n: int) -> tuple[torch.Tensor, torch.Tensor]:
        seen.append(x.numpy().shape)  # plain tensors
        return x * ys[0] * n, x + ys[1]

    f.register_autograd(lambda ctx, a, b: (a * ctx.y + b, None, None), setup_context=_keep_y)
    x, y = torch.arange(6.0).reshape(2, 3), torch.ones(2)
    with pytest.warns(UserWarning, match="batching rule for mapped::f"):
        a, b = torch.vmap(lambda x: f(x, [y, y], 3), in_dims=1)(x)
    assert a.tolist() == (3 * x.T).tolist() and b.tolist() == (x.T + 1).tolist() and seen == [(2,)] * 3
    nested = torch.vmap(torch.vmap(lambda x, y: f(x, [y, y], 2)[0]))(x, x)
    assert nested.tolist() == (2 * x * x).tolist()
    gradient = torch.vmap(torch.func.grad(lambda x: sum(t.sum() for t in f(x, [y, y], 1))))(x.T)
    assert gradient.tolist() == [[2.0, 2.0]] * 3
    with pytest.raises(RuntimeError, match="dims of size 0"):
        torch.vmap(lambda x: f(x, [y, y], 1)[0])(torch.ones(0, 2))
    f.register_vmap(lambda info, in_dims, x, ys, n: ((x * 0, x * 0), (in_dims[0], in_dims[0])))
    assert torch.vmap(lambda x: f(x, [y, y], 3)[0], in_dims=1)(x).abs().sum() == 0

    @torch.library.custom_op("mapped::keyword", mutates_args=())
    def keyword(x: torch.Tensor, *, y: torch.Tensor) -> torch.Tensor:
        return x * y

    with pytest.raises(NotImplementedError, match="keyword-only tensors"):
        torch.vmap(lambda x: keyword(x, y=x))(x)


def _keep_y(ctx, inputs, output):
    ctx.y = inputs[1][0] * inputs[2]
