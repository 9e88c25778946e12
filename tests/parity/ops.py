"""One entry of PyTorch's op_db in both libraries: results, gradients, out=, errors and variants."""

from __future__ import annotations

import types
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import warptape

from . import filters
from .compare import Strictness, call_text, differences, storages, text, values_differ
from .convert import INTERNAL, find, our_function, our_value, their_tensor, without_seed

ASPECTS = (
    "missing",
    "raises",
    "value",
    "dtype",
    "shape",
    "strides",
    "view",
    "gradient",
    "gradgrad",
    "out",
    "error",
    "inplace",
    "method",
    "state",
)


@dataclass(frozen=True)
class Failure:
    """One comparison that did not hold."""

    name: str
    aspect: str
    dtype: str
    cause: str
    sample: str = ""

    @property
    def key(self) -> tuple[str, str, str]:
        """What expected_failures.txt lists."""
        return self.name, self.aspect, self.dtype


class Missing(Exception):
    """Our library has no such name."""


@dataclass(frozen=True)
class Call:
    """The arguments of one sample, for both."""

    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    @staticmethod
    def of(sample: Any) -> Call:
        return Call((sample.input, *sample.args), dict(sample.kwargs))

    def ours(self) -> Call:
        return Call(*our_value((self.args, self.kwargs)))

    def apply(self, function: Callable[..., Any]) -> Any:
        return function(*self.args, **self.kwargs)

    def leaves(self) -> list[Any]:
        """The tensors that gradients are wanted of."""

        def walk(value: Any) -> Iterator[Any]:
            if isinstance(value, (torch.Tensor, warptape.Tensor)):
                if value.requires_grad:
                    yield value
            elif isinstance(value, (list, tuple)):
                for item in value:
                    yield from walk(item)
            elif isinstance(value, dict):
                yield from walk(list(value.values()))

        return list(walk([list(self.args), self.kwargs]))


def their_function(entry: Any) -> Callable[..., Any]:
    """PyTorch's function of an entry, drawing anew at each call."""
    function = entry.op
    if isinstance(function, types.FunctionType) and "wrapper_set_seed" in function.__code__.co_names:
        known = {**function.__globals__, "wrapper_set_seed": without_seed}
        return types.FunctionType(
            function.__code__, known, function.__name__, function.__defaults__, function.__closure__
        )
    return function


def our_function_of(entry: Any) -> Callable[..., Any]:
    """The function of the same name here; Missing where there is none."""
    function, name = entry.op, entry.name
    internal = isinstance(function, types.FunctionType) and function.__module__.startswith(INTERNAL)
    for theirs, ours in ((torch, warptape), (torch.Tensor, warptape.Tensor)):
        if callable(find(theirs, name)):
            if not callable(find(ours, name)):
                raise Missing(name)
            return our_function(function) if internal else find(ours, name)
    if not internal:
        raise Missing(name)
    return our_function(function)


def raised(function: Callable[..., Any], *args: Any, **kwargs: Any) -> tuple[Any, Exception | None]:
    """The result of a call, or what it raised."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            return function(*args, **kwargs), None
        except Exception as error:
            return None, error


def error_text(error: BaseException) -> str:
    """An exception in one line."""
    line = " ".join(str(error).split())
    return f"{type(error).__name__}: {line[:160]}"


def expected_class(theirs: Any) -> Any:
    """The class that our exception must derive from."""
    if isinstance(theirs, tuple):
        return tuple(map(expected_class, theirs))
    if theirs.__module__ == "builtins":
        return theirs
    name = theirs.__name__.lstrip("_")
    return getattr(warptape.linalg, name, None) or getattr(warptape, name, None) or RuntimeError


class OpParity:
    """The comparisons of one entry; `limits` is the number of samples of each kind, None for all."""

    def __init__(self, entry: Any, limits: dict[str, int] | None = None) -> None:
        self.entry = entry
        self.name = filters.full_name(entry)
        self.limits = filters.SAMPLES if limits is None else limits
        self.theirs = their_function(entry)
        elementwise = type(entry).__name__ in ("UnaryUfuncInfo", "BinaryUfuncInfo")
        self.strict = Strictness(values=not filters.undefined(entry), strides=elementwise)

    def failures(self, dtypes: tuple[torch.dtype, ...] = filters.DTYPES) -> Iterator[Failure]:
        """Everything that differs."""
        torch.manual_seed(1)
        warptape.manual_seed(1)
        try:
            self.ours = our_function_of(self.entry)
        except Missing:
            yield Failure(self.name, "missing", "-", "no such name")
            return
        supported = filters.dtypes(self.entry, dtypes)
        for dtype in supported:
            yield from self.results(dtype)
            if self.entry.supports_autograd and dtype in filters.GRADIENT_DTYPES:
                yield from self.gradients(dtype)
        if supported:
            yield from self.out(supported[0])
            yield from self.errors()

    def failure(self, aspect: str, dtype: Any, cause: str, call: Call) -> Failure:
        name = "-" if dtype is None else str(dtype).rpartition(".")[2]
        return Failure(self.name, aspect, name, cause, call_text(call.args, call.kwargs))

    def samples(self, kind: str, dtype: torch.dtype, **options: bool) -> list[Any]:
        limit = self.limits.get(kind)
        found, error = raised(lambda: filters.taken(self.entry.sample_inputs("cpu", dtype, **options), limit))
        if error is not None:
            raise RuntimeError(f"{self.name}: PyTorch's samples cannot be made: {error}") from error
        return found

    # Values, dtypes, shapes, strides, views.

    def results(self, dtype: torch.dtype) -> Iterator[Failure]:
        samples = self.samples("values", dtype)
        for sample in samples:
            call = Call.of(sample)
            mine = call.ours()
            their_inputs, our_inputs = storages([call.args, call.kwargs]), storages([mine.args, mine.kwargs])
            theirs, refused = raised(call.apply, self.theirs)
            if refused is not None:
                continue
            ours, error = raised(mine.apply, self.ours)
            if error is not None:
                yield self.failure("raises", dtype, error_text(error), call)
                continue
            # Places in float32 are off by as much in both libraries: each is within 4e-6 of float64.
            wide = self.name.startswith("grid_sampler") and dtype == torch.float32
            strict = replace(self.strict, loosen=4.0) if wide else self.strict
            found = list(differences(theirs, ours, their_inputs, our_inputs, strict))
            if any(d.aspect == "value" for d in found) and (
                self.random(sample) or self.same(sample, theirs, ours)
            ):
                found = [d for d in found if d.aspect != "value"]
            for difference in found:
                yield self.failure(difference.aspect, dtype, difference.cause, call)
        yield from self.variants(dtype, filters.taken(samples, self.limits.get("variants")))

    def random(self, sample: Any) -> bool:
        """True where PyTorch differs from itself."""
        call = Call.of(sample)
        first, *others = ([t.clone() for t in tensors(raised(call.apply, self.theirs)[0])] for _ in range(12))
        pairs = ((a, b) for other in others for a, b in zip(first, other) if not a.is_meta)
        return any(a.shape != b.shape or values_differ(a, b) for a, b in pairs)

    def same(self, sample: Any, theirs: Any, ours: Any) -> bool:
        """True where the results are one up to what PyTorch leaves open (signs of eigenvectors and such):
        compared is what the sample takes gradients of."""
        process = sample.output_process_fn_grad
        a, b = raised(process, theirs)[0], raised(our_function(process), ours)[0]
        unchanged = a is theirs or a is None or b is None
        return not unchanged and not list(differences(a, b, set(), set(), Strictness()))

    # The method and the in-place form.

    def variants(self, dtype: torch.dtype, samples: list[Any]) -> Iterator[Failure]:
        forms = (
            ("method", self.entry.get_method()),
            ("inplace", self.entry.get_inplace()),
            ("inplace", self.entry.get_inplace_operator()),
        )
        for aspect, form in forms:
            name = getattr(form, "__name__", None)
            if name is None or find(torch.Tensor, name) is not form:
                continue
            if not hasattr(warptape.Tensor, name):
                yield Failure(self.name, aspect, "-", f"no Tensor.{name}")
                continue
            for sample in samples:
                if aspect == "inplace" and sample.broadcasts_input:
                    continue
                yield from self.variant(aspect, name, dtype, sample)

    def variant(self, aspect: str, name: str, dtype: torch.dtype, sample: Any) -> Iterator[Failure]:
        call = Call.of(sample)
        if not isinstance(call.args[0], torch.Tensor):
            return
        if aspect == "inplace":
            call = Call((call.args[0].clone(), *call.args[1:]), call.kwargs)
        mine = call.ours()
        sample_text = call_text(call.args, call.kwargs)
        theirs, refused = raised(call.apply, getattr(torch.Tensor, name))
        ours, error = raised(mine.apply, getattr(warptape.Tensor, name))
        cause = ""
        if refused is not None:
            if aspect == "inplace" and error is None:
                cause = f"{name}: not refused; theirs {error_text(refused)}"
        elif error is not None:
            cause = f"{name}: {error_text(error)}"
        elif theirs is call.args[0] and ours is not mine.args[0]:
            cause = f"{name}: did not return self"
        else:
            found = list(differences(theirs, ours, set(), set(), Strictness(self.strict.values)))
            if found and not (self.random(sample) or self.same(sample, theirs, ours)):
                cause = f"{name}: {found[0].aspect}: {found[0].cause}"
        if cause:
            yield Failure(self.name, aspect, str(dtype).rpartition(".")[2], cause, sample_text)

    # Gradients.

    def gradients(self, dtype: torch.dtype) -> Iterator[Failure]:
        if dtype not in self.entry.supported_backward_dtypes("cpu"):
            return
        for sample in self.samples("gradients", dtype, requires_grad=True):
            call = Call.of(sample)
            for aspect, cause in self.gradient(sample, call, dtype):
                yield self.failure(aspect, dtype, cause, call)

    def gradient(self, sample: Any, call: Call, dtype: torch.dtype) -> Iterator[tuple[str, str]]:
        mine = call.ours()
        process = sample.output_process_fn_grad
        theirs, refused = raised(lambda: process(call.apply(self.theirs)))
        if refused is not None:
            return
        ours, error = raised(lambda: our_function(process)(mine.apply(self.ours)))
        if error is not None:
            yield "gradient", f"forward: {error_text(error)}"
            return
        their_outs, our_outs = tensors(theirs), tensors(ours)
        if [t.requires_grad for t in their_outs] != [t.requires_grad for t in our_outs]:
            wanted = [t.requires_grad for t in their_outs], [t.requires_grad for t in our_outs]
            yield "gradient", f"requires_grad: ours {wanted[1]}, theirs {wanted[0]}"
            return
        twice = self.entry.supports_gradgrad and dtype == torch.float64
        steps = ("gradient", "gradgrad") if twice else ("gradient",)
        if not self.random(sample):
            # In single precision either library is within 1.2e-6 of the largest exact gradient: which digit
            # differs depends on the processor.
            loosen = 4.0 if "svd" in self.name else 1.0
            yield from backward(their_outs, our_outs, call.leaves(), mine.leaves(), steps, loosen)

    # The out= argument.

    def out(self, dtype: torch.dtype) -> Iterator[Failure]:
        if not self.entry.supports_out:
            return
        for sample in self.samples("variants", dtype):
            call = Call.of(sample)
            result, refused = raised(call.apply, self.theirs)
            many = isinstance(result, (list, tuple))
            outs = list(result) if many else [result]
            if refused is not None or not outs or not all(isinstance(t, torch.Tensor) for t in outs):
                continue
            for form, make in OUTS.items():
                cause = self.one_out(sample, [make(t) for t in outs], many)
                if cause:
                    yield self.failure("out", dtype, f"{form}: {cause}", call)

    def one_out(self, sample: Any, outs: list[torch.Tensor], many: bool) -> str:
        call = Call.of(sample)
        mine, our_outs = call.ours(), [our_value(t) for t in outs]
        pack = tuple if many else lambda tensors: tensors[0]
        _, refused = raised(lambda: self.theirs(*call.args, **call.kwargs, out=pack(outs)))
        ours, error = raised(lambda: self.ours(*mine.args, **mine.kwargs, out=pack(our_outs)))
        if refused is not None:
            if error is None:
                return f"not refused; theirs {error_text(refused)}"
            fits = isinstance(error, expected_class(type(refused)))
            return "" if fits else f"ours {error_text(error)}; theirs {error_text(refused)}"
        if error is not None:
            return error_text(error)
        back = list(ours) if many else [ours]
        if not all(a is b for a, b in zip(back, our_outs)):
            return "did not return out"
        found = list(differences(outs, our_outs, set(), set(), Strictness(self.strict.values, strides=True)))
        if not found or self.random(sample) or self.same(sample, pack(outs), pack(our_outs)):
            return ""
        return f"{found[0].aspect}: {found[0].cause}"

    # Errors.

    def errors(self) -> Iterator[Failure]:
        if self.entry.error_inputs_func is None:
            return
        inputs, _ = raised(lambda: list(self.entry.error_inputs("cpu")))
        for wrong in filters.taken(inputs or [], self.limits.get("errors")):
            call = Call.of(wrong.sample_input)
            mine, unconverted = raised(call.ours)
            if unconverted is not None:
                continue
            _, refused = raised(call.apply, self.entry.op)
            if refused is None:
                continue
            _, error = raised(mine.apply, self.ours)
            if error is None:
                yield self.failure("error", None, f"not refused; theirs {error_text(refused)}", call)
            elif not isinstance(error, expected_class(wrong.error_type)):
                yield self.failure(
                    "error", None, f"ours {error_text(error)}; theirs {error_text(refused)}", call
                )


def _strided(t: torch.Tensor) -> torch.Tensor:
    wide = torch.zeros([*t.shape, 2], dtype=t.dtype)
    return wide[..., 0]


def _other_dtype(t: torch.Tensor) -> torch.Tensor:
    """A dtype that the result may not be written to, where there is one."""
    narrow = {True: torch.float32, False: torch.int64}[t.is_complex()]
    if t.dtype in (torch.int64, torch.int32, torch.uint8):
        narrow = torch.bool
    return torch.zeros(t.shape, dtype=torch.float64 if t.dtype == torch.bool else narrow)


OUTS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "out of the shape": lambda t: torch.zeros(t.shape, dtype=t.dtype),
    "strided out": _strided,
    "empty out": lambda t: torch.zeros(0, dtype=t.dtype),
    "out of another shape": lambda t: torch.zeros([*t.shape, 2], dtype=t.dtype),
    "out of another dtype": _other_dtype,
}


def backward(
    their_outs: list[Any],
    our_outs: list[Any],
    their_leaves: list[Any],
    our_leaves: list[Any],
    steps: Any,
    loosen: float = 1.0,
) -> Iterator[tuple[str, str]]:
    """Gradients of all outputs that have some, weighted at random; then the gradients of these."""
    for step in steps:
        more = step != steps[-1]
        pairs = [(a, b) for a, b in zip(their_outs, our_outs) if a.requires_grad]
        if not pairs or not their_leaves:
            return
        weights = [cotangent(a) for a, _ in pairs]
        options = {"create_graph": more, "allow_unused": True}
        theirs, refused = raised(torch.autograd.grad, [a for a, _ in pairs], their_leaves, weights, **options)
        if refused is not None:
            return
        outs, mine = [b for _, b in pairs], our_value(weights)
        ours, error = raised(warptape.autograd.grad, outs, our_leaves, mine, **options)
        cause = gradients_differ(theirs, ours, their_leaves, loosen) if error is None else error_text(error)
        if cause:
            yield step, cause
            return
        pairs = [(a, b) for a, b in zip(theirs, ours) if a is not None and b is not None and b.requires_grad]
        their_outs, our_outs = [a for a, _ in pairs], [b for _, b in pairs]


def tensors(value: Any) -> list[Any]:
    if isinstance(value, (torch.Tensor, warptape.Tensor)):
        return [value]
    return [t for item in value for t in tensors(item)] if isinstance(value, (list, tuple)) else []


def cotangent(t: torch.Tensor) -> torch.Tensor:
    generator = torch.Generator().manual_seed(7)
    return torch.randn(t.shape, dtype=t.dtype, generator=generator)


def gradients_differ(theirs: Any, ours: Any, leaves: list[torch.Tensor], loosen: float = 1.0) -> str:
    """Where gradients differ; none at all counts as zeros."""
    for i, (a, b, leaf) in enumerate(zip(theirs, ours, leaves)):
        if a is None and b is None:
            continue
        a = torch.zeros_like(leaf) if a is None else a.detach()
        if b is not None and tuple(b.shape) != tuple(a.shape):
            return f"of tensor {i}: shape: ours {tuple(b.shape)}, theirs {tuple(a.shape)}"
        if b is not None and str(b.dtype) != str(a.dtype):
            return f"of tensor {i}: dtype: ours {b.dtype}, theirs {a.dtype}"
        bad = values_differ(a, torch.zeros_like(a) if b is None else their_tensor(b), loosen)
        if bad:
            return f"of tensor {i} {text(leaf.detach())}: {bad}"
    return ""
