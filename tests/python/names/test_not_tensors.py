"""What is no tensor is refused with a TypeError by every function, whatever the function does first."""

from __future__ import annotations

import warnings

import pytest
import warptape as wt
from warptape import fft, linalg, special
from warptape.nn import functional

MORE = [
    "atleast_1d",
    "atleast_2d",
    "atleast_3d",
    "block_diag",
    "broadcast_tensors",
    "can_cast",
    "cartesian_prod",
]
MORE += [
    "combinations",
    "hstack",
    "istft",
    "meshgrid",
    "stft",
    "tensordot",
    "vander",
    "vstack",
    "cdist",
    "einsum",
]
NAMES = [(wt, name) for name in [*MORE, *dir(wt)] if name in MORE or callable(getattr(wt.Tensor, name, None))]
NAMES += [(module, name) for module in (fft, functional, linalg, special) for name in dir(module)]


@pytest.mark.parametrize("bad", [None, "x", object(), [], 3], ids=lambda bad: type(bad).__name__)
def test_no_attribute_errors(bad):
    good = wt.ones(2, 2)
    failed = []
    for module, name in NAMES:
        function = getattr(module, name)
        if name.startswith("_") or isinstance(function, type) or not callable(function):
            continue
        for args in ((bad,), (bad, good), (bad, good, good), (good, bad), (good, good, bad)):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                try:
                    function(*args)
                except (TypeError, RuntimeError, ValueError, IndexError, NotImplementedError):
                    pass
                except Exception as error:
                    failed.append(f"{module.__name__}.{name}{args}: {error!r}")
    assert failed == []


@pytest.mark.parametrize(
    "call, text",
    [
        (lambda: fft.fft(None), r"fft\(\): argument 'input' \(position 1\) must be Tensor, not NoneType"),
        (lambda: fft.irfftn([1.0]), r"irfftn\(\): argument 'input' \(position 1\) must be Tensor, not list"),
        (lambda: fft.fftshift("x"), "must be Tensor, not str"),
        (lambda: wt.istft(None, 4), "must be Tensor, not NoneType"),
        (lambda: wt.atleast_2d(wt.ones(1), None), "argument 'tensors' must be .*Tensor.*, not NoneType"),
        (lambda: wt.broadcast_tensors(wt.ones(1), 3), "not int"),
        (
            lambda: linalg.matrix_power(None, 2),
            r"argument 'input' \(position 1\) must be Tensor, not NoneType",
        ),
        (lambda: linalg.solve(wt.eye(2), None), r"argument 'B' \(position 2\) must be Tensor, not NoneType"),
        (lambda: linalg.eigh(wt.eye(2), 3), r"argument 'UPLO' \(position 2\) must be str, not int"),
        (lambda: wt.can_cast(None, wt.float32), "argument 'from_' .* must be torch.dtype, not NoneType"),
    ],
)
def test_names_the_argument(call, text):
    with pytest.raises(TypeError, match=text):
        call()
