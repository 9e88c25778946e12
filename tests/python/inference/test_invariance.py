"""Load never changes an answer: see traffic.py."""

import pytest
from traffic import different


@pytest.mark.parametrize("seed", range(20))
def test_tokens_and_logprobs_are_those_of_the_lone_request(seed):
    assert different(seed, 50) == 0
