"""Copies and pickles of generators go on as the generator does, apart from it."""

from __future__ import annotations

import copy
import pickle

import pytest
import warptape as torch
from warptape.utils.data import RandomSampler, random_split

COPIES = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "pickle": lambda g: pickle.loads(pickle.dumps(g)),
    "clone_state": lambda g: g.clone_state(),
}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("drawn", [0, 1, 7, 700])
def test_a_copy_draws_what_the_generator_draws(how, drawn) -> None:
    g = torch.Generator().manual_seed(3)
    torch.randn(drawn, generator=g)  # an odd number leaves a normal number for the next draw
    other = COPIES[how](g)
    assert type(other) is torch.Generator and other is not g and other.device == g.device
    assert other.initial_seed() == 3 and torch.equal(other.get_state(), g.get_state())
    ours, theirs = torch.randn(5, generator=g), torch.randn(5, generator=other)
    assert torch.equal(ours, theirs)
    torch.rand(1, generator=g)
    assert not torch.equal(other.get_state(), g.get_state())


def test_what_holds_a_generator_can_be_copied() -> None:
    sampler = RandomSampler(range(9), generator=torch.Generator().manual_seed(1))
    assert list(copy.deepcopy(sampler)) == list(pickle.loads(pickle.dumps(sampler))) == list(sampler)
    parts = random_split(range(8), [4, 4], generator=torch.Generator().manual_seed(1))
    assert list(copy.deepcopy(parts[0])) == list(parts[0])


def test_the_seed_of_a_copy_of_the_default_generator() -> None:
    torch.manual_seed(2**63 + 5)
    other = copy.deepcopy(torch.default_generator)
    assert other is not torch.default_generator and other.initial_seed() == 2**63 + 5
    assert torch.equal(torch.rand(3, generator=other), torch.rand(3))


def test_what_no_generator_gave_is_refused() -> None:
    g = torch.Generator()
    state = g.get_state()
    for wrong in (None, (), (1, None), (1, None, b"x"), (1, None, torch.zeros(3))):
        with pytest.raises((TypeError, ValueError)):
            g.__setstate__(wrong)
    assert torch.equal(g.get_state(), state)
    for call in (g.graphsafe_get_state, lambda: g.graphsafe_set_state(g)):
        with pytest.raises(NotImplementedError, match="not supported in this Generator"):
            call()
