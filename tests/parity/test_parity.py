"""PyTorch's samples of its ops, modules and optimizers: what fails is what expected_failures.txt lists."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("expecttest")  # which PyTorch's samples import

import warptape  # noqa: E402

from . import gate  # noqa: E402

pytestmark = pytest.mark.parity
ENTRIES = gate.everything()
LISTED = gate.read()


@pytest.fixture(autouse=True)
def one_thread():
    before = torch.get_num_threads(), warptape.get_num_threads()
    torch.set_num_threads(1)
    warptape.set_num_threads(1)
    yield
    torch.set_num_threads(before[0])
    warptape.set_num_threads(before[1])


@pytest.mark.parametrize("name", ENTRIES)
def test_samples(name: str) -> None:
    wrong = gate.against(name, ENTRIES[name]().failures(), LISTED)
    assert not wrong, "\n".join(wrong)


def test_the_list_names_entries() -> None:
    assert {name for name, _, _ in LISTED} <= ENTRIES.keys()
