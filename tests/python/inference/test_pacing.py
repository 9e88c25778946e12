"""How prompts are cut by the times that steps take."""

from collections.abc import Callable

import numpy as np
import pytest
from traffic import model_of
from warptape.inference import EngineArgs, LLMEngine, SamplingParams
from warptape.inference.pacing import FIRST, RateControl, _Cost

Cost = Callable[[int, int], float]  # what n prompt tokens that see k keys add to a step of one second


def in_tiles(n: int, _: int) -> float:
    """As products in tiles of at most 6 rows: each tile beyond the first reads the weight again."""
    return 0.04 * n + 0.11 * (-(-(n + 1) // 6) - 1)


MACHINES: dict[str, Cost] = {
    "a token": lambda n, _: 0.09 * n,
    "after the sixth": lambda n, _: 0.18 * max(n - 6, 0),
    "in tiles": in_tiles,
    "by position": lambda n, k: 0.04 * n + 4e-5 * k,
    "any prompt": lambda n, k: 0.25 * (n > 0) + 0.005 * max(n - 64, 0) + 1.5e-6 * k,
}


class Clock:
    """A machine on which one request generates while prompts of 8,192 tokens come in, one after the other."""

    def __init__(self, cost: Cost, slowdown: float = 1.4, most: int = 512) -> None:
        self.pacer, self.cost, self.position = RateControl(slowdown, most), cost, 0
        for _ in range(5):
            self.pacer.observe(1.0, generating=1, prompt_tokens=0)

    def step(self, noise: float = 1.0, generating: int = 1) -> tuple[int, float]:
        """Prompt tokens of a step, and how many times as long it takes as one without, but for noise."""
        n = self.pacer.tokens()
        k = n * self.position + n * (n + 1) // 2
        self.position = (self.position + n) % 8192
        ratio = 1 + self.cost(n, k)
        self.pacer.observe(ratio * noise, generating, n, k)
        return n, ratio


def quiet(rng: np.random.Generator, _: int) -> float:
    return 1.0


def unsteady(rng: np.random.Generator, _: int) -> float:
    return float(rng.normal(1, 0.04))


def disturbed(rng: np.random.Generator, _: int) -> float:
    return float(rng.normal(1, 0.03) * (rng.uniform(1.5, 2.5) if rng.random() < 0.03 else 1))


def drifting(rng: np.random.Generator, step: int) -> float:
    return float(rng.normal(1, 0.03) * (1 + 0.3 * np.sin(step / 30)))


NOISES = [quiet, unsteady, disturbed, drifting]


@pytest.mark.parametrize("noise", NOISES, ids=lambda noise: noise.__name__)
@pytest.mark.parametrize("machine", MACHINES)
def test_steps_stay_within_the_slowdown(machine, noise):
    """What a step takes by itself: the noise is the machine's, and must not lead to longer steps."""
    ratios = []
    for seed in range(4):
        clock, rng = Clock(MACHINES[machine]), np.random.default_rng(seed)
        ratios += [clock.step(noise(rng, i))[1] for i in range(200)]
    most = 1.6 if noise is drifting else 1.5  # a step without prompts is measured every 16 steps
    assert np.percentile(ratios, 99) < most and max(ratios) < 2.2


@pytest.mark.parametrize("machine", MACHINES)
def test_prompts_get_what_fits(machine):
    """Without noise: most of the tokens that one would give who knows the costs."""
    clock, given, fitting = Clock(MACHINES[machine]), 0, 0
    for _ in range(300):
        position = clock.position
        given += clock.step()[0]
        fits = [n for n in range(1, 513) if clock.cost(n, n * position + n * (n + 1) // 2) <= 0.4]
        fitting += max(fits, default=1)
    assert given > 0.75 * fitting


@pytest.mark.parametrize("factor", [1.7, 0.6])
def test_a_machine_that_changes_its_speed(factor):
    """Steps with and without prompts alike: the longest is not longer, and none is forgotten."""
    clock = Clock(MACHINES["in tiles"])
    before = [clock.step() for _ in range(100)]
    after = [clock.step(factor) for _ in range(200)]
    assert max(ratio for _, ratio in before + after) < 1.45
    assert [n for n, _ in after].count(0) == pytest.approx(200 / 16, abs=1.5)
    assert sum(n for n, _ in after[-64:]) > 0.8 * sum(n for n, _ in before[-64:])


def test_prompts_that_become_dearer():
    """As where each of the tokens costs twice as much from some step on."""
    clock = Clock(MACHINES["a token"], slowdown=2.5)
    for _ in range(60):
        clock.step()
    clock.cost = lambda n, _: 0.18 * n
    after = [clock.step()[1] for _ in range(40)]
    assert max(after[3:]) < 2.6 and np.median(after) > 2


def test_fewer_requests_generate():
    """A step without prompts is measured again, soon."""
    clock = Clock(MACHINES["a token"])
    for _ in range(40):
        clock.step(3.0, generating=8)
    steps = [clock.step()[0] for _ in range(6)]
    assert 0 in steps


def test_costs_by_tokens_and_keys():
    """The coefficients are those of measured steps."""
    cost, rng = _Cost(), np.random.default_rng(0)
    for _ in range(100):
        n = int(rng.integers(1, 40))
        k = n * int(rng.integers(1, 4000))
        cost.add(n, k, 0.1 + 0.02 * n + 3e-6 * k)
    assert cost.coefficients() == pytest.approx((0.1, 0.02, 3e-6), rel=0.05)
    assert cost.of(10, 1000) == pytest.approx(0.303, rel=0.02)
    alike = _Cost()  # nothing tells what other steps cost: in proportion
    for _ in range(300):
        alike.add(10, 1000, 0.5)
    assert alike.of(20, 2000) == pytest.approx(1.0, rel=0.1)


def test_what_is_fast_gets_all():
    pacer = RateControl(1.5, 100)
    assert pacer.tokens() == 0  # what a step takes without prompts comes first
    for _ in range(30):
        pacer.observe(0.05, generating=1, prompt_tokens=0)
        pacer.observe(0.05, generating=1, prompt_tokens=pacer.tokens())
    assert pacer.tokens() == 100
    slow = RateControl(1.1, 100)
    slow.observe(0.05, generating=1, prompt_tokens=0)
    assert slow.tokens() == FIRST
    slow.observe(4.05, generating=1, prompt_tokens=4)
    assert slow.tokens() == 1
    slow.observe(100.0, generating=0, prompt_tokens=500)  # nobody waited
    assert slow.tokens() == 1
    with pytest.raises(ValueError, match="max_prefill_slowdown must be above 1"):
        RateControl(1.0, 5)


def test_pacing_changes_no_token():
    model = model_of("llama", "float32", None)
    prompts = [[(3 * i + j) % 60 for j in range(30 + 20 * i)] for i in range(4)]

    def answers(**limits):
        engine = LLMEngine(model, None, EngineArgs(enable_prefix_caching=False, **limits))
        out = {}
        for i, prompt in enumerate(prompts):
            engine.add_request(str(i), prompt, SamplingParams(seed=i, max_tokens=20, ignore_eos=True))
            engine.step()
        while engine.has_unfinished_requests():
            out |= {o.request_id: o.outputs[0].token_ids for o in engine.step()}
        return out, engine.stats()["steps"]

    paced, steps = answers(max_prefill_slowdown=1.001)
    plain, fewer = answers()
    assert paced == plain and steps > fewer
