"""torch.ops.aten: packets, overloads, schemas and what they compute."""

from __future__ import annotations

import copy
import pickle

import pytest
import warptape as torch
from warptape._aten import aten_names
from warptape._ops import OpOverload, OpOverloadPacket

aten = torch.ops.aten


def same(found, expected) -> None:
    assert torch.equal(found, expected)


def test_an_op_is_a_packet_of_overloads() -> None:
    assert isinstance(aten.add, OpOverloadPacket) and isinstance(aten.add.Tensor, OpOverload)
    assert aten.add is aten.add and aten.add.Tensor is aten.add.Tensor
    assert aten.add.overloads() == ["Tensor", "Scalar", "out", "Scalar_out"]
    assert str(aten.add.Tensor) == "aten.add.Tensor" and aten.add.Tensor.name() == "aten::add.Tensor"
    assert repr(aten.add.Tensor) == "<OpOverload(op='aten.add', overload='Tensor')>"
    assert aten.mm.default.name() == "aten::mm" and aten.add.Tensor.overloadpacket is aten.add
    assert {aten.add.Tensor: 1}[aten.add.Tensor] == 1
    for op in (aten.add, aten.add.Tensor):
        assert copy.deepcopy(op) is op and pickle.loads(pickle.dumps(op)) is op


def test_schemas_say_what_the_declarations_know() -> None:
    schema = aten.add.Tensor._schema
    assert str(schema) == "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"
    assert (schema.name, schema.overload_name, schema.is_mutable) == ("aten::add", "Tensor", False)
    assert [a.name for a in schema.arguments] == ["self", "other", "alpha"]
    assert schema.arguments[2].kwarg_only and schema.arguments[2].default_value == 1
    assert aten.add.Scalar._schema.arguments[1].type == "Scalar"
    assert aten.add_.Tensor._schema.is_mutable and aten.add.out._schema.is_mutable


def test_every_name_that_is_here_has_an_overload_and_a_schema() -> None:
    names = aten_names()
    assert len(names) > 600
    for name in names:
        for overload in getattr(aten, name).overloads():
            op = getattr(getattr(aten, name), overload)
            assert op._schema.name == f"aten::{name}" and str(op._schema).startswith(op.name() + "(")


def test_ops_take_the_dispatchers_arguments() -> None:
    x, w = torch.arange(6.0).reshape(2, 3), torch.ones(4, 3)
    same(aten.mm.default(x, w.t()), x @ w.t())
    same(aten.add(self=x, other=x, alpha=2), 3 * x)
    same(aten.mse_loss(x, x + 1, 2), torch.tensor(6.0))
    same(
        aten.cross_entropy_loss(x, torch.tensor([0, 1])),
        torch.nn.functional.cross_entropy(x, torch.tensor([0, 1])),
    )
    same(aten._softmax.default(x, 1, False), x.softmax(1))
    same(aten.embedding.default(w, torch.tensor([1])), w[1:2])
    same(aten.slice.Tensor(x, 1, 0, 2), x[:, :2])
    same(aten.index.Tensor(x, [None, torch.tensor([2])]), x[:, 2:])
    same(aten.linalg_inv.default(torch.eye(2)), torch.eye(2))
    image, kernel = torch.arange(16.0).reshape(1, 1, 4, 4), torch.ones(1, 1, 2, 2)
    sizes = ([1, 1], [0, 0], [1, 1])
    same(
        aten.convolution.default(image, kernel, None, *sizes, False, [0, 0], 1),
        torch.nn.functional.conv2d(image, kernel),
    )
    same(
        aten.convolution.default(image, kernel, None, [2, 2], *sizes[1:], True, [0, 0], 1),
        torch.nn.functional.conv_transpose2d(image, kernel, stride=2),
    )
    same(aten.tensordot(x, w, [1], [1]), x @ w.t())
    same(aten.elu(torch.tensor([2.0]), 1, 3, 1), torch.tensor([6.0]))


def test_gradients_pass_through() -> None:
    x = torch.ones(3, requires_grad=True)
    aten.mul.Tensor(x, x).sum().backward()
    same(x.grad, torch.full((3,), 2.0))


@pytest.mark.parametrize("path", ["foo", "embedding_bag", "add.foo", "mm.Tensor"])
def test_what_is_not_there_is_missing(path: str) -> None:
    owner, _, last = path.rpartition(".")
    with pytest.raises(AttributeError, match=last):
        getattr(getattr(aten, owner) if owner else aten, last)


def test_custom_ops_have_packets_too() -> None:
    @torch.library.custom_op("test_aten::twice", mutates_args=())
    def twice(x: torch.Tensor) -> torch.Tensor:
        return 2 * x

    packet = torch.ops.test_aten.twice
    assert isinstance(packet, OpOverloadPacket) and packet.default.name() == "test_aten::twice"
    assert twice._opoverload is packet.default
    same(packet.default(torch.ones(2)), torch.full((2,), 2.0))
    torch.library.register_fake(packet.default, torch.empty_like)
    assert packet(torch.ones(2, device="meta")).shape == (2,)
