"""Sequential, ModuleList, ModuleDict, ParameterList and ParameterDict as the collections they stand for."""

from collections import OrderedDict

import pytest
import warptape as wt
from warptape import nn


def kinds(modules):
    return [type(m).__name__ for m in modules]


def three(kind):
    modules = [nn.ReLU(), nn.Tanh(), nn.Sigmoid()]
    return nn.Sequential(*modules) if kind is nn.Sequential else nn.ModuleList(modules)


both = pytest.mark.parametrize("kind", [nn.Sequential, nn.ModuleList])


@both
def test_index_slice_and_iterate(kind):
    row = three(kind)
    assert len(row) == 3
    assert kinds(row) == ["ReLU", "Tanh", "Sigmoid"]
    assert type(row[-1]) is nn.Sigmoid and row[0] is row._modules["0"]
    assert type(row[1:]) is kind and kinds(row[1:]) == ["Tanh", "Sigmoid"]
    assert kinds(row[::-2]) == ["Sigmoid", "ReLU"]
    for outside in (3, -4):
        with pytest.raises(IndexError, match="is out of range"):
            row[outside]


def test_slice_of_a_module_that_stands_twice():
    act = nn.ReLU()
    row = nn.Sequential(act, nn.Tanh(), act)
    assert kinds(row[1:]) == ["Tanh", "ReLU"]


@both
def test_change_in_place(kind):
    row = three(kind)
    row[1] = nn.GELU()
    del row[0]
    assert kinds(row) == ["GELU", "Sigmoid"] and list(row._modules) == ["0", "1"]
    assert row.append(nn.ReLU()) is row
    row.insert(0, nn.Identity())
    row.insert(-1, nn.SiLU())
    assert kinds(row) == ["Identity", "GELU", "Sigmoid", "SiLU", "ReLU"]
    assert list(row._modules) == list("01234")
    del row[1:4]
    assert kinds(row) == ["Identity", "ReLU"]
    assert type(row.pop(0)) is nn.Identity
    row.extend([nn.Tanh(), nn.Tanh()])
    row += type(row)(nn.ELU()) if kind is nn.Sequential else [nn.ELU()]
    assert kinds(row) == ["ReLU", "Tanh", "Tanh", "ELU"]
    with pytest.raises(TypeError, match="int is not a Module subclass"):
        row.append(3)


def test_sequential_runs_in_order_and_takes_names():
    row = nn.Sequential(OrderedDict(first=nn.Linear(1, 1), act=nn.ReLU()))
    assert row.first is row[0]
    with wt.no_grad():
        row.first.weight.fill_(-2)
        row.first.bias.fill_(1)
    assert row(wt.ones(1, 1)).item() == 0
    assert row(-wt.ones(1, 1)).item() == 3
    assert list(row[:1].state_dict()) == ["first.weight", "first.bias"]


def test_sequential_arithmetic():
    a, b = nn.Sequential(nn.ReLU()), nn.Sequential(nn.Tanh(), nn.ELU())
    assert kinds(a + b) == ["ReLU", "Tanh", "ELU"]
    assert kinds(b * 2) == kinds(2 * b) == ["Tanh", "ELU"] * 2
    b *= 2
    assert len(b) == 4
    with pytest.raises(ValueError, match="Non-positive multiplication"):
        a * 0
    with pytest.raises(TypeError, match="unsupported operand"):
        a * 1.5
    with pytest.raises(ValueError, match="objects of Sequential class"):
        a + [nn.ReLU()]


def test_module_list_has_no_forward_and_adds():
    row = nn.ModuleList([nn.ReLU()]) + [nn.Tanh()]
    assert kinds(row) == ["ReLU", "Tanh"]
    assert type(row.pop()) is nn.Tanh
    with pytest.raises(NotImplementedError):
        row(1)
    with pytest.raises(TypeError, match="extend should be called with an iterable, but got int"):
        row.extend(3)


def test_module_list_repr_folds_equal_runs():
    row = nn.ModuleList([nn.Linear(1, 1) for _ in range(3)] + [nn.Sequential(nn.ReLU())])
    assert repr(row) == (
        "ModuleList(\n"
        "  (0-2): 3 x Linear(in_features=1, out_features=1, bias=True)\n"
        "  (3): Sequential(\n"
        "    (0): ReLU()\n"
        "  )\n"
        ")"
    )
    assert repr(nn.ModuleList()) == "ModuleList()"


def test_module_dict():
    table = nn.ModuleDict({"a": nn.ReLU()})
    table["b"] = nn.Tanh()
    table.update([("c", nn.ELU())])
    assert list(table) == list(table.keys()) == ["a", "b", "c"]
    assert "b" in table and len(table) == 3 and kinds(table.values()) == ["ReLU", "Tanh", "ELU"]
    assert type(table.pop("a")) is nn.ReLU
    del table["b"]
    assert [name for name, _ in table.items()] == ["c"]
    table.clear()
    assert len(table) == 0
    for bad, error in [(3, TypeError), ([1], TypeError), ([("a",)], ValueError), ({"a": 3}, TypeError)]:
        with pytest.raises(error):
            table.update(bad)
    with pytest.raises(KeyError):
        table["none"]


def test_parameter_list():
    row = nn.ParameterList([wt.ones(2, 3), nn.Parameter(wt.zeros(1)), "note"])
    assert len(row) == 3 and isinstance(row[0], nn.Parameter) and row[-1] == "note"
    assert [name for name, _ in row.named_parameters()] == ["0", "1"]
    row[1] = wt.ones(4)
    row.append(wt.ones(5)).extend([wt.ones(6)])
    row += [wt.ones(7)]
    assert [tuple(p.shape) for p in row if isinstance(p, nn.Parameter)] == [(2, 3), (4,), (5,), (6,), (7,)]
    assert len(row[1:3]) == 2
    with pytest.raises(IndexError):
        row[9]
    with pytest.raises(RuntimeError, match="should not be called"):
        row()
    text = repr(nn.ParameterList([wt.ones(2, 3), 5]))
    lines = text.split("\n")
    assert lines[0] == "ParameterList(" and lines[-1] == ")"
    assert lines[1].startswith("    (0): Parameter containing: [") and lines[1].endswith(
        "float32 of size 2x3]"
    )
    assert lines[2] == "    (1): Object of type: int"


def test_parameter_dict_sorts_a_plain_mapping():
    table = nn.ParameterDict({"w": wt.ones(2), "b": wt.ones(3, 1), "n": 3})
    assert list(table) == ["b", "n", "w"]
    table.update({"c": wt.ones(1), "a": wt.ones(1)})
    assert list(table) == ["b", "n", "w", "a", "c"]
    assert list(nn.ParameterDict(OrderedDict([("w", wt.ones(2)), ("b", wt.ones(3))]))) == ["w", "b"]
    lines = repr(table).split("\n")
    assert lines[1].endswith("(b): Parameter containing: [torch.FloatTensor of size 3x1]")
    assert lines[2] == "    (n): Object of type: int"


def test_parameter_dict():
    table = nn.ParameterDict([("w", wt.ones(2)), ("n", 3)])
    assert isinstance(table["w"], nn.Parameter) and table["n"] == 3
    table.update({"v": wt.zeros(1)})
    assert list(table) == ["w", "n", "v"] and "v" in table and len(table) == 3
    assert table.get("none") is None and table.get("none", 4) == 4
    assert table.setdefault("x", wt.ones(1)) is table["x"]
    assert table.popitem()[0] == "x"
    assert table.pop("n") == 3
    assert list(reversed(table)) == ["v", "w"]
    joined = table | nn.ParameterDict({"u": wt.ones(1)})
    assert list(joined) == ["w", "v", "u"] and joined["w"] is table["w"]
    assert list(joined.state_dict()) == ["w", "v", "u"]
    assert list(table.fromkeys(["a", "b"])) == ["a", "b"]
    table.clear()
    assert list(table.parameters()) == []
    with pytest.raises(TypeError, match="not a string"):
        table[3] = wt.ones(1)
    with pytest.raises((KeyError, AttributeError)):
        table["none"]
