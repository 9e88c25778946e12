"""Tables of rules that are keyed by what C++ declares of ops (core/op_facts.py)."""

from __future__ import annotations

import pytest
import warptape as wt
from warptape.core.op_facts import OpTable, facts_of, op_named
from warptape.utils.flop_counter import FlopCounterMode, formula_flops


@pytest.mark.parametrize(
    ("name", "facts"),
    [
        ("matmul", ("role=product",)),
        ("linear", ("role=product",)),
        ("addmm_", ("role=add_product",)),
        ("conv2d", ("role=convolution",)),
        ("relu_", ("role=pointwise",)),
        ("double", ("aliasing=conversion", "role=pointwise")),
        ("clone", ("copies", "role=pointwise")),
        ("dropout2d", ("aliasing=dropout",)),
        ("softmax", ()),
        ("no_such_op", ()),
        ("__getitem__", ()),
    ],
)
def test_facts(name: str, facts: tuple[str, ...]) -> None:
    assert facts_of(name) == facts


def test_an_op_is_found_by_its_name() -> None:
    assert op_named("add") is wt.add and op_named("linear") is wt.nn.functional.linear
    assert op_named("relu_")._role == "pointwise" and op_named("__repr__") is None


def test_a_name_goes_before_a_fact() -> None:
    table: OpTable[int] = OpTable({"role=product": 1, "linear": 2, "relu": 3, "aliasing=layout": 4})
    found = [
        table.find(name) for name in ("mm", "bmm", "linear", "relu_", "contiguous", "softmax", "__len__")
    ]
    assert found == [1, 1, 2, 3, 4, None, None]


def test_products_count_by_their_role() -> None:
    """By hand: 2 m k n, whatever the op is called, in place too."""
    a, b, c = wt.ones(3, 4), wt.ones(4, 5), wt.ones(3, 5)
    with FlopCounterMode(display=False) as counter:
        c.addmm_(a, b)
        wt.baddbmm(c[None], a[None], b[None])
        wt.mv(a, wt.ones(4))
        wt.nn.functional.conv1d(wt.ones(1, 2, 6), wt.ones(3, 2, 3))
    assert counter.get_total_flops() == 2 * 60 + 2 * 60 + 2 * 12 + 2 * 3 * 4 * 2 * 3
    assert formula_flops("relu", [(3, 4)], (3, 4)) == 0
