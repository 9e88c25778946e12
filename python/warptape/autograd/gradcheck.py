"""Gradients against differences of the function's values.

A Jacobian here is a float64 array [elements of the input, elements of the output]; a complex number counts as
two elements, its parts.
"""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from .. import _C
from ..core import offered

if TYPE_CHECKING:
    import numpy as np

    from warptape import core as wt

    from ..core import Tensor

__all__ = ["GradcheckError", "gradcheck", "gradgradcheck"]


class GradcheckError(RuntimeError):
    """What gradcheck and gradgradcheck raise when a gradient is wrong.

    The message has both Jacobians where they differ.
    """


def _as_tuple(value: Any) -> tuple[Any, ...]:
    if isinstance(value, _C.TensorBase) or not isinstance(value, Iterable):
        return (value,)
    return tuple(value)


def _differentiable(values: Sequence[Any]) -> list[Tensor]:
    return [v for v in values if isinstance(v, _C.TensorBase) and v.requires_grad]


def _tensors(outputs: Any) -> list[Tensor]:
    tensors = (o for o in _as_tuple(outputs) if isinstance(o, _C.TensorBase))
    return [o for o in tensors if o.is_floating_point() or o.is_complex()]


def _array(t: Tensor) -> np.ndarray:
    """A copy of the values, flat."""
    return _parts(t.detach()).to(_C.float64).numpy().copy().reshape(-1)


def _parts(t: Tensor) -> Tensor:
    """The tensor as one of real numbers, on the same memory."""
    return _C._functions.view_as_real(t) if t.is_complex() else t


def _shown(jacobian: np.ndarray) -> str:
    return str(_C.from_numpy(jacobian))


def _check_inputs(inputs: tuple[Any, ...]) -> None:
    any_double = False
    for i, x in enumerate(inputs):
        if not isinstance(x, _C.TensorBase) or not x.requires_grad:
            continue
        any_double = True
        if x.dtype not in (_C.float64, _C.complex128):
            warnings.warn(
                f"Input #{i} requires gradient and is not a double precision floating point or complex. "
                "This check will likely fail if all the inputs are not of double precision floating point or "
                "complex. ",
                stacklevel=4,
            )
        if any(stride == 0 and size > 1 for size, stride in zip(x.shape, x.stride())):
            raise RuntimeError(
                f"The {i}th input has a dimension with stride 0. gradcheck only supports inputs that are "
                "non-overlapping to be able to compute the numerical gradients correctly. You should call "
                ".contiguous on the input before passing it to gradcheck."
            )
        x.retain_grad()
    if not any_double:
        raise ValueError(
            "gradcheck expects at least one input tensor to require gradient, "
            "but none of the them have requires_grad=True."
        )


# ---- the two Jacobians ----


def _places(x: Tensor) -> Iterator[tuple[int, ...]]:
    return itertools.product(*(range(n) for n in x.shape))


def _numerical(func: Callable[..., Any], inputs: tuple[Any, ...], eps: float) -> list[list[np.ndarray]]:
    """By central differences: one list per output, with one Jacobian per differentiable input."""
    import numpy as np

    def values() -> list[np.ndarray]:
        return [_array(o) for o in _tensors(func(*inputs))]  # recorded: func itself may call backward

    columns: list[list[np.ndarray]] = [[] for _ in values()]
    for x in _differentiable(inputs):
        data = _parts(x.data)  # changes through it are not counted, so that graphs of x stay usable
        rows: list[list[np.ndarray]] = [[] for _ in columns]
        for at in _places(data):
            old = data[at].item()
            try:
                data[at] = old - eps
                below = values()
                data[at] = old + eps
                above = values()
            finally:
                data[at] = old
            for row, low, high in zip(rows, below, above, strict=True):
                row.append((high - low) / (2 * eps))
        for column, row, o in zip(columns, rows, values(), strict=True):
            column.append(np.stack(row) if row else np.zeros((0, o.size)))
    return columns


def _vjp(output: Tensor, inputs: list[Tensor], gradient: Tensor) -> tuple[Any, ...]:
    grads: tuple[Any, ...] = _C._run_backward((output,), (gradient,), tuple(inputs), True, False, True, False)
    for x, g in zip(inputs, grads, strict=True):
        if g is not None and g.shape != x.shape:
            raise GradcheckError(
                f"Analytical gradient has incorrect size: got {tuple(g.shape)}, not {tuple(x.shape)}"
            )
    return grads


def _analytical(output: Tensor, inputs: list[Tensor], check_dtypes: bool) -> list[np.ndarray]:
    """By one backward pass per element of the output: one Jacobian per input."""
    import numpy as np

    jacobians = [np.zeros((_parts(x.detach()).numel(), _parts(output.detach()).numel())) for x in inputs]
    for j, at in enumerate(_places(_parts(output.detach()))):
        gradient = _C._functions.zeros_like(output.detach())
        _parts(gradient)[at] = 1.0
        for i, g in enumerate(_vjp(output, inputs, gradient)):
            if g is None:
                continue
            if check_dtypes and g.dtype != inputs[i].dtype:
                raise GradcheckError(
                    f"Gradient has dtype mismatch: got {g.dtype} for an input of {inputs[i].dtype}"
                )
            jacobians[i][:, j] = _array(g)
    return jacobians


# ---- what is checked ----


def _check_no_gradients(
    func: Callable[..., Any], inputs: tuple[Any, ...], outputs: list[Tensor], eps: float, atol: float
) -> None:
    """An output that claims not to depend on the inputs must not."""
    import numpy as np

    for o, row in zip(outputs, _numerical(func, inputs, eps), strict=True):
        if o.requires_grad:
            continue
        for jacobian in row:
            if not np.allclose(jacobian, 0.0, rtol=0.0, atol=atol, equal_nan=True):
                raise GradcheckError("Numerical gradient for function expected to be zero")


def _check_jacobians(
    func: Callable[..., Any], inputs: tuple[Any, ...], outputs: list[Tensor], options: dict[str, Any]
) -> None:
    import numpy as np

    wanted = _differentiable(inputs)
    numerical = _numerical(func, inputs, options["eps"])
    for i, output in enumerate(outputs):
        if not output.requires_grad:
            continue
        first = _analytical(output, wanted, options["check_grad_dtypes"])
        second = _analytical(output, wanted, False)
        for j, (n, a) in enumerate(zip(numerical[i], first, strict=True)):
            if not np.allclose(a, n, rtol=options["rtol"], atol=options["atol"], equal_nan=True):
                raise GradcheckError(
                    f"Jacobian mismatch for output {i} with respect to input {j},\n"
                    f"numerical:{_shown(n)}\nanalytical:{_shown(a)}\n"
                )
        for a, b in zip(first, second, strict=True):
            if a.size and not np.nanmax(np.abs(a - b), initial=0.0) <= options["nondet_tol"]:
                raise GradcheckError(
                    "Backward is not reentrant, i.e., running backward with same input and grad_output "
                    "multiple times gives different values, although analytical gradient matches numerical "
                    f"gradient. The tolerance for nondeterminism was {options['nondet_tol']}."
                )


def _check_multiplied(outputs: list[Tensor], inputs: list[Tensor]) -> None:
    """A gradient of zero gives gradients of zero."""
    for output in outputs:
        for g in _vjp(output, inputs, _C._functions.zeros_like(output.detach())):
            if g is not None and _array(g).any():
                raise GradcheckError("backward not multiplied by grad_output")


def _check_batched(func: Callable[..., Any], inputs: tuple[Any, ...]) -> None:
    """vmap of the gradient over a batch of gradients gives what one after the other gives.

    The function itself runs outside of vmap, and so may look at values and draw random numbers.
    """
    wanted = [x for x in inputs if isinstance(x, _C.TensorBase) and x.requires_grad]
    generator = _C.Generator().manual_seed(0)
    for k, output in enumerate(_tensors(func(*inputs))):
        if not output.requires_grad:
            continue
        batch = _C._functions.stack([_random_like(output, generator, False).detach() for _ in range(2)])

        def of_output(v: Tensor, output: Tensor = output) -> tuple[Tensor, ...]:
            grads = _C._gradients([output], wanted, [v], False, True)
            return tuple(
                _C._functions.zeros_like(x) if g is None else g for x, g in zip(wanted, grads, strict=True)
            )

        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of ops that are looped over
            try:
                batched = offered("func").vmap(of_output)(batch)
            except RuntimeError as error:
                raise GradcheckError(f"While computing batched gradients, got: {error}") from error
        for one, each in zip(batched, zip(*(of_output(v) for v in batch)), strict=True):
            if not _C._functions.allclose(one, _C._functions.stack(each)):
                raise GradcheckError(
                    f"For output {k}, the gradient computed with vmap over a batch of gradients differs from "
                    f"those computed one at a time:\n{one}\n{list(each)}"
                )


def _check_forward(func: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    """The Jacobians of forward mode, a column of tangents at a time, against central differences."""
    import numpy as np

    jvp = offered("func").jvp
    places = [i for i, x in enumerate(inputs) if isinstance(x, _C.TensorBase) and x.requires_grad]
    primals = tuple(inputs[i].detach() for i in places)

    def of_wanted(*values: Tensor) -> tuple[Tensor, ...]:
        args = list(inputs)
        for i, value in zip(places, values, strict=True):
            args[i] = value
        return tuple(_tensors(func(*args)))

    numerical = _numerical(func, inputs, options["eps"])
    for j, x in enumerate(primals):
        rows: list[list[np.ndarray]] = [[] for _ in numerical]
        for at in _places(_parts(x)):
            tangents = [_C._functions.zeros_like(p) for p in primals]
            _parts(tangents[j])[at] = 1.0
            try:
                tangents_out = jvp(of_wanted, primals, tuple(tangents))[1]
            except RuntimeError as error:
                raise GradcheckError(f"While computing forward gradients, got: {error}") from error
            for row, tangent in zip(rows, tangents_out, strict=True):
                row.append(_array(tangent))
        for i, row in enumerate(rows):
            n = numerical[i][j]
            a = np.stack(row) if row else np.zeros_like(n)
            if not np.allclose(a, n, rtol=options["rtol"], atol=options["atol"], equal_nan=True):
                raise GradcheckError(
                    f"Jacobian of forward mode mismatch for output {i} with respect to input {j},\n"
                    f"numerical:{_shown(n)}\nanalytical:{_shown(a)}\n"
                )


def _check(func: Callable[..., Any], inputs: tuple[Any, ...], options: dict[str, Any]) -> None:
    _check_inputs(inputs)
    outputs = _tensors(func(*inputs))
    differentiable = _differentiable(outputs)
    if len(differentiable) < len(outputs):
        _check_no_gradients(func, inputs, outputs, options["eps"], options["atol"])
    if not differentiable:
        return
    if options["check_backward_ad"]:
        _check_jacobians(func, inputs, outputs, options)
        _check_multiplied(differentiable, _differentiable(inputs))
    if options["check_batched_grad"]:
        _check_batched(func, inputs)
    if options["check_forward_ad"]:
        _check_forward(func, inputs, options)


def gradcheck(
    func: Callable[..., Any],
    inputs: Any,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_batched_forward_grad: bool = False,
    check_forward_ad: bool = False,
    check_backward_ad: bool = True,
    fast_mode: bool = False,
    masked: bool | None = None,
) -> bool:
    """Compares the gradients of `func` at `inputs` with central differences of width `2 eps`.

    Every element of every Jacobian must satisfy |analytical - numerical| <= atol + rtol * |numerical|. Inputs
    that require gradients should be float64. Also checked: that a second backward gives the same (to
    `nondet_tol`), and that gradients are multiplied by those of the outputs. `fast_mode` is accepted and
    checks everything all the same; so is `check_undefined_grad`: with several outputs each gets its gradient
    alone, the others being undefined, and a backward of which all gradients are undefined is never called.
    `check_forward_ad`: the Jacobian of forward mode, too; `check_backward_ad`=False leaves that of reverse
    mode out. `check_batched_grad`: vmap over a batch of output gradients must give what they give one at a
    time.

    Raises:
        GradcheckError: a check failed (with raise_exception=False the result is False instead).
        ValueError: no input requires a gradient.
        NotImplementedError: batches of tangents are asked for.
    """
    if check_batched_forward_grad:
        raise NotImplementedError("gradcheck: check_batched_forward_grad=True is not supported")
    options = {
        "eps": eps,
        "atol": atol,
        "rtol": rtol,
        "nondet_tol": nondet_tol,
        "check_grad_dtypes": check_grad_dtypes,
        "check_batched_grad": check_batched_grad,
        "check_forward_ad": check_forward_ad,
        "check_backward_ad": check_backward_ad,
    }
    try:
        _check(func, _as_tuple(inputs), options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _random_like(output: Tensor, generator: wt.Generator, non_contiguous: bool) -> Tensor:
    """Uniform from -1 to 1; with `non_contiguous`, a view of every second element where there are several."""
    sizes = list(output.shape)
    if non_contiguous and output.numel() > 1:
        sizes.append(2)
    values = _C._functions.rand(sizes, generator=generator, dtype=output.dtype) * 2 - 1
    if len(sizes) > output.ndim:
        values = values[..., 0]
    return values.detach().requires_grad_()


def gradgradcheck(
    func: Callable[..., Any],
    inputs: Any,
    grad_outputs: Any = None,
    *,
    eps: float = 1e-6,
    atol: float = 1e-5,
    rtol: float = 1e-3,
    gen_non_contig_grad_outputs: bool = False,
    raise_exception: bool = True,
    nondet_tol: float = 0.0,
    check_undefined_grad: bool = True,
    check_grad_dtypes: bool = False,
    check_batched_grad: bool = False,
    check_fwd_over_rev: bool = False,
    check_rev_over_rev: bool = True,
    fast_mode: bool = False,
    masked: bool = False,
) -> bool:
    """gradcheck of the gradients of `func` with respect to `inputs` and to the gradients of its outputs.

    `grad_outputs` are drawn from -1 to 1 unless given; the thread's generator is left alone. Arguments and
    errors are gradcheck's; `check_fwd_over_rev` asks for forward mode of the gradients, too, and
    `check_rev_over_rev`=False leaves their reverse mode out.
    """
    inputs = _as_tuple(inputs)
    if grad_outputs is None:
        generator = _C.Generator().manual_seed(0)
        outputs = _differentiable(_tensors(func(*inputs)))
        gradients = tuple(_random_like(o, generator, gen_non_contig_grad_outputs) for o in outputs)
    else:
        gradients = _as_tuple(grad_outputs)

    def first_gradients(*args: Any) -> tuple[Any, ...]:
        primals, cotangents = args[: len(inputs)], args[len(inputs) :]
        outputs = _differentiable(_tensors(func(*primals)))
        grads = _C._run_backward(
            tuple(outputs), cotangents, tuple(_differentiable(primals)), True, True, True, False
        )
        return tuple(g for g in grads if g is not None)

    options = {
        "eps": eps,
        "atol": atol,
        "rtol": rtol,
        "nondet_tol": nondet_tol,
        "check_undefined_grad": check_undefined_grad,
        "check_grad_dtypes": check_grad_dtypes,
        "check_backward_ad": check_rev_over_rev,
        "fast_mode": fast_mode,
        "masked": masked,
    }
    try:
        gradcheck(first_gradients, inputs + gradients, **options)
        if check_batched_grad:
            _check_batched(first_gradients, inputs + gradients)
        if check_fwd_over_rev:
            _check_forward(_gradients_by_vjp(func, inputs), inputs + gradients, options)
    except GradcheckError:
        if raise_exception:
            raise
        return False
    return True


def _gradients_by_vjp(func: Callable[..., Any], inputs: tuple[Any, ...]) -> Callable[..., Any]:
    """(inputs, gradients of the outputs) -> gradients of the inputs that `inputs` says to differentiate.

    Of a form that function transforms take.
    """
    vjp = offered("func").vjp
    places = [i for i, x in enumerate(inputs) if isinstance(x, _C.TensorBase) and x.requires_grad]
    kept = [i for i, o in enumerate(_tensors(func(*inputs))) if o.requires_grad]

    def gradients(*args: Any) -> Any:
        primals = list(args[: len(inputs)])

        def outputs(*values: Tensor) -> tuple[Tensor, ...]:
            for i, value in zip(places, values, strict=True):
                primals[i] = value
            results = _tensors(func(*primals))
            return tuple(results[k] for k in kept)

        return vjp(outputs, *(primals[i] for i in places))[1](tuple(args[len(inputs) :]))

    return gradients
