import pytest
import warptape as torch
from squared_relu import squared_relu


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.float16, torch.bfloat16])
def test_values(dtype):
    x = torch.randn(5, 7, dtype=dtype).t()
    torch.testing.assert_close(squared_relu(x), torch.relu(x).square())


def test_gradient():
    x = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(squared_relu, x)


def test_registration():
    x = torch.randn(4, 3, requires_grad=True)
    torch.library.opcheck(torch.ops.squared_relu.squared_relu.default, (x,))


def test_what_it_does_not_take():
    with pytest.raises(NotImplementedError, match="not implemented for 'Long'"):
        squared_relu(torch.arange(3))
