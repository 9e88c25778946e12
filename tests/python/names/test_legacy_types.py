"""FloatTensor and its kin: what PyTorch 2.13 makes of the same calls."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import warptape as torch

KINDS = {
    "Float": torch.float32,
    "Double": torch.float64,
    "Half": torch.float16,
    "BFloat16": torch.bfloat16,
    "Long": torch.int64,
    "Int": torch.int32,
    "Short": torch.int16,
    "Char": torch.int8,
    "Byte": torch.uint8,
    "Bool": torch.bool,
}


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind(kind):
    cls, dtype = getattr(torch, f"{kind}Tensor"), KINDS[kind]
    x = cls([[1, 0], [1, 1]])
    assert x.dtype == cls.dtype == dtype and x.tolist() == [[1, 0], [1, 1]] and type(x) is torch.Tensor
    assert isinstance(x, cls) and x.type() == f"torch.{kind}Tensor"
    others = [n for n in KINDS if n != kind and isinstance(x, getattr(torch, f"{n}Tensor"))]
    assert others == [] and not isinstance(x, getattr(torch.cuda, f"{kind}Tensor"))
    for spelled in (cls, f"torch.{kind}Tensor", dtype):
        assert torch.ones(2).type(spelled).dtype == dtype
    assert pickle.loads(pickle.dumps(cls)) is cls


def test_sizes_and_data():
    assert torch.FloatTensor(2, 3).shape == (2, 3) and torch.FloatTensor().shape == (0,)
    assert torch.FloatTensor(torch.Size([2, 3])).shape == (2, 3) and torch.FloatTensor(np.int64(3)).shape == (
        3,
    )
    assert torch.FloatTensor((2, 3)).tolist() == [2, 3] and torch.LongTensor([1.5, 2]).tolist() == [1, 2]
    assert torch.LongTensor(range(3)).tolist() == [0, 1, 2] and torch.Tensor(size=(2,)).shape == (2,)
    assert torch.FloatTensor(data=[1, 2]).tolist() == [1, 2] and torch.FloatTensor(2, device="cpu").shape == (
        2,
    )
    array = np.zeros(2, np.float32)
    torch.FloatTensor(array)[0] = 5
    assert array.tolist() == [5, 0]  # on the same memory
    x = torch.ones(2)
    torch.FloatTensor(x)[0] = 5
    assert x.tolist() == [5, 1]
    assert torch.Tensor(torch.ones(2, dtype=torch.int64)).dtype == torch.int64
    assert torch.ones(2).long().new([3, 4]).dtype == torch.int64 and x.new(2, 3).shape == (2, 3)
    assert [t.tolist() for t in torch.ones(3).split(split_size=2)] == [[1, 1], [1]]
    assert [torch.arange(2).type(kind).dtype for kind in (torch.Tensor, "torch.Tensor")] == [
        torch.float32
    ] * 2
    assert issubclass(torch.nn.Parameter, torch.Tensor) and isinstance(
        torch.nn.Parameter(x), torch.FloatTensor
    )


@pytest.mark.parametrize(
    "call, error, words",
    [
        (lambda: torch.FloatTensor(3.5), TypeError, r"new\(\): data must be a sequence \(got float\)"),
        (lambda: torch.FloatTensor("a"), TypeError, "invalid data type 'str'"),
        (
            lambda: torch.FloatTensor(2, 3.5),
            TypeError,
            r"invalid combination of arguments - got \(2, 3.5\), but expected sizes that are ints",
        ),
        (lambda: torch.FloatTensor(torch.ones(2).double()), TypeError, "expected a tensor of torch.float32"),
        (lambda: torch.FloatTensor([1.0], device="cuda"), RuntimeError, "expects device type: cpu"),
        (lambda: torch.FloatTensor([1.0], dtype=1), TypeError, "unexpected keyword argument 'dtype'"),
        (lambda: torch.Tensor([[1, 2], [3]]), ValueError, "expected sequence of length 2 at dim 1"),
        (lambda: torch.ones(2).type("torch.foo"), ValueError, "invalid type: 'torch.foo'"),
        (lambda: torch.ones(2).type("FloatTensor"), ValueError, "invalid type: 'FloatTensor'"),
        (lambda: torch.set_default_tensor_type("torch.LongTensor"), TypeError, "only floating-point types"),
    ],
)
def test_errors(call, error, words):
    with pytest.raises(error, match=words):
        call()
    assert torch.get_default_dtype() == torch.float32


def test_types_of_a_gpu_that_is_not_there():
    if torch.cuda.is_available() or torch._C._build_info()["cuda"]:
        pytest.skip("built with CUDA")
    for call in (
        lambda: torch.cuda.FloatTensor(2),
        lambda: torch.set_default_tensor_type(torch.cuda.FloatTensor),
    ):
        with pytest.raises(TypeError, match=r"type torch\.cuda\.FloatTensor not available"):
            call()
    with pytest.raises(RuntimeError):
        torch.ones(2).type(torch.cuda.FloatTensor)


def test_default_type():
    try:
        torch.set_default_tensor_type(torch.DoubleTensor)
        assert torch.ones(1).dtype == torch.Tensor([1]).dtype == torch.float64
        torch.set_default_tensor_type("torch.HalfTensor")
        assert torch.get_default_dtype() == torch.float16
    finally:
        torch.set_default_tensor_type("torch.FloatTensor")
    assert torch.get_default_dtype() == torch.float32


def test_return_types():
    found = torch.tensor([[3.0, 1.0], [2.0, 5.0]]).max(0)
    assert type(found) is torch.return_types.max and isinstance(found, tuple)
    assert found.values.tolist() == [3, 5] and found.indices.tolist() == [0, 1]
    again = pickle.loads(pickle.dumps(found))
    assert type(again) is torch.return_types.max and again.values.tolist() == [3, 5]
    assert torch.return_types.sort.__name__ == "sort"
    home = torch.return_types.max.__module__
    assert repr(found) == f"{home}.max(\nvalues=tensor([3., 5.]),\nindices=tensor([0, 1]))"
