"""How prompts are cut by the times that steps take."""

import numpy as np
import pytest
from traffic import model_of
from warptape.inference import EngineArgs, LLMEngine, SamplingParams
from warptape.inference.pacing import FIRST, Pacer


def test_steps_stay_within_the_slowdown():
    """Against a machine whose steps take 50 ms and 9 ms more for each prompt token, with noise."""
    pacer, rng, steps = Pacer(1.5, 512), np.random.default_rng(0), []
    assert pacer.tokens() == FIRST
    for i in range(200):
        prompt = 0 if i < 5 else pacer.tokens()
        seconds = (0.05 + 0.009 * prompt) * rng.uniform(0.97, 1.03)
        pacer.observe(seconds, generating=2, prompt_tokens=prompt)
        steps.append(seconds)
    assert np.percentile(steps, 99) < 1.5 * 0.05 * 1.05
    assert pacer.tokens() == 2


def test_the_first_rows_cost_nothing():
    """As where weights are read once for all rows: 50 ms, and 9 ms for each token after the sixth."""
    pacer, steps, prompts = Pacer(1.4, 512), [], []
    for i in range(100):
        prompt = 0 if i < 5 else pacer.tokens()
        prompts.append(prompt)
        steps.append(0.05 + 0.009 * max(prompt - 6, 0))
        pacer.observe(steps[-1], generating=1, prompt_tokens=prompt)
    assert max(steps) < 1.5 * 0.05 and {*prompts[-30:]} <= {0, 6, 7, 8}


def test_a_machine_that_gets_slower():
    """What a step takes without prompts is seen while one comes in."""
    pacer, ratios = Pacer(1.4, 512), []
    for i in range(300):
        slow = 1.0 if i < 100 else 1.7
        prompt = 0 if i < 5 else pacer.tokens()
        seconds = slow * (0.05 + 0.002 * prompt)
        pacer.observe(seconds, generating=1, prompt_tokens=prompt)
        ratios.append(seconds / (slow * 0.05))
    assert max(ratios) < 1.45 and ratios[-200:].count(1.0) == pytest.approx(200 / 16, abs=1.5)
    assert pacer.tokens() in (9, 10)


def test_what_is_fast_gets_all():
    pacer = Pacer(1.5, 100)
    for _ in range(30):
        pacer.observe(0.05, generating=1, prompt_tokens=0)
        pacer.observe(0.05, generating=1, prompt_tokens=pacer.tokens())
    assert pacer.tokens() == 100
    slow = Pacer(1.1, 100)
    for prompt in (0, 4):
        slow.observe(0.05 + prompt, generating=1, prompt_tokens=prompt)
    assert slow.tokens() == 1
    slow.observe(100.0, generating=0, prompt_tokens=500)  # nobody waited
    assert slow.tokens() == 1
    with pytest.raises(ValueError, match="max_prefill_slowdown must be above 1"):
        Pacer(1.0, 5)


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
