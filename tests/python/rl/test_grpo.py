"""GRPO: its loss against a loop over tokens, the trainer's numbers beside the sampler's, resumed runs."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import on_policy
import pytest
import warptape as torch
from model_configs import build
from warptape import inference, optim
from warptape.models import Decoder, DecoderConfig, load_adapter
from warptape.rl import GRPOConfig, GRPOTrainer, group_advantages, policy_loss
from warptape.rl.losses import LOSSES, divisor_of, kl_of

sys.path.insert(0, str(Path(__file__).parents[3] / "examples"))
import grpo_sums


def loop(new, old, advantages, reference, loss_type, low, high, beta, longest):
    """The papers' formulas, token by token, in Python's numbers."""
    means, total, count, clipped = [], 0.0, 0, 0
    for mine, drawn, advantage, other in zip(new, old, advantages, reference):
        terms = []
        for a, b, c in zip(mine, drawn, other):
            ratio = math.exp(a - b)
            within = min(max(ratio, 1 - low), 1 + high)
            kl = math.exp(c - a) - (c - a) - 1
            terms.append(-min(ratio * advantage, within * advantage) + beta * kl)
            clipped += within * advantage < ratio * advantage
        means.append(sum(terms) / len(terms))
        total, count = total + sum(terms), count + len(terms)
    if loss_type == "grpo":
        return sum(means) / len(means), clipped
    return total / (count if loss_type == "dapo" else len(new) * longest), clipped


@pytest.mark.parametrize("loss_type", LOSSES)
@pytest.mark.parametrize("beta", [0.0, 0.3])
def test_losses_are_the_papers(loss_type, beta):
    rng = np.random.default_rng(0)
    lengths = [3, 1, 7, 4]
    new, old, reference = ([rng.normal(-2, 0.4, n) for n in lengths] for _ in range(3))
    advantages = [1.5, -0.7, 0.2, -1.0]
    wanted, clipped = loop(new, old, advantages, reference, loss_type, 0.2, 0.28, beta, 9)
    as_tensors = [[torch.tensor(t, dtype=torch.float32) for t in each] for each in (new, old, reference)]
    for t in as_tensors[0]:
        t.requires_grad_()
    divisor = divisor_of(lengths, loss_type, 9)
    parts = [
        policy_loss(
            as_tensors[0][part],
            as_tensors[1][part],
            advantages[part],
            epsilon=0.2,
            epsilon_high=0.28,
            loss_type=loss_type,
            divisor=divisor,
            reference=as_tensors[2][part],
            beta=beta,
        )
        for part in (slice(0, 1), slice(1, 4))
    ]
    assert sum(float(loss.detach()) for loss, _ in parts) == pytest.approx(wanted, rel=1e-5)
    assert sum(count for _, count in parts) == clipped > 0
    sum(loss for loss, _ in parts).backward()
    step = 1e-4
    new[2][3] += step
    after, _ = loop(new, old, advantages, reference, loss_type, 0.2, 0.28, beta, 9)
    assert float(as_tensors[0][2].grad[3]) == pytest.approx((after - wanted) / step, rel=2e-2, abs=1e-4)


def test_advantages_are_numpys():
    rewards = np.random.default_rng(1).normal(size=(5, 4))
    wanted = (rewards - rewards.mean(1, keepdims=True)) / (rewards.std(1, ddof=1, keepdims=True) + 1e-4)
    found = group_advantages(torch.tensor(rewards).flatten(), 4)
    np.testing.assert_allclose(found.numpy(), wanted.ravel(), rtol=1e-6)


def test_kl_is_zero_where_equal_and_positive_elsewhere():
    t = torch.tensor([-1.0, -3.0])
    assert kl_of(t, t).tolist() == [0.0, 0.0] and bool((kl_of(t, t + 0.1) > 0).all())


DATA = [{"prompt": [i, j], "wanted": (i + j) % 8} for i in range(4) for j in range(4)]


def first_is_right(completion_ids, wanted):
    return [float(answer[0] == right) for answer, right in zip(completion_ids, wanted)]


def trainer(dtype=torch.float32, seed=0, data=DATA, rewards=first_is_right, **changes):
    torch.manual_seed(seed)
    sizes = {"vocab_size": 8, "hidden_size": 32, "intermediate_size": 48, "num_hidden_layers": 1}
    model = Decoder(DecoderConfig(num_attention_heads=2, max_position_embeddings=16, **sizes)).to(dtype)
    config = GRPOConfig(**{"max_completion_length": 2, "num_generations": 4, **changes})
    optimizer = optim.AdamW(model.parameters(), lr=5e-3, weight_decay=0.0)
    scheduler = optim.lr_scheduler.ExponentialLR(optimizer, 0.999)
    return GRPOTrainer(model, optimizer, data, rewards, config, lr_scheduler=scheduler)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_the_sampler_is_the_trainer_in_each_step(dtype):
    ours = trainer(dtype, prompts_per_step=8, beta=0.01)
    reports = [ours.step() for _ in range(12)]
    assert [(r.kl_sampler, r.different) for r in reports] == [(0.0, 0)] * 12
    assert all(r.tokens == 8 * 4 * 2 for r in reports)
    assert reports[0].kl_reference == 0.0 < reports[-1].kl_reference
    assert reports[0].clipped == 0.0
    assert ours.llm.llm_engine.weights_version == 12


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
def test_an_adapter_alone_is_trained(quantization, tmp_path):
    """Of layers in few bits, too: the engine has the same codes, and each step's factors."""

    def made():
        torch.manual_seed(0)
        model = on_policy.model_of(0, {"num_key_value_heads": 2}, torch.float32)
        folder = on_policy.write_adapter(tmp_path, 1, model)
        if quantization is not None:
            inference.quantize_(model, *on_policy.BITS[quantization])
        model.requires_grad_(False)
        adapter = load_adapter(model, folder)
        factors = [t.requires_grad_() for each in adapter.factors.values() for t in each]
        config = GRPOConfig(max_completion_length=3, num_generations=4, prompts_per_step=4)
        optimizer = optim.AdamW(factors, lr=1e-2)
        return GRPOTrainer(model, optimizer, DATA, first_is_right, config, adapter=adapter)

    def factors_of(ours):
        return {name: [t.tolist() for t in each] for name, each in ours.adapter.factors.items()}

    whole = made()
    before = factors_of(whole)
    reports = [whole.step() for _ in range(4)]
    assert [(r.kl_sampler, r.different) for r in reports] == [(0.0, 0)] * 4
    assert factors_of(whole) != before and reports[0].grad_norm > 0
    first, second = made(), made()
    assert [first.step() for _ in range(2)] == reports[:2]
    first.save(tmp_path / "run.pt")
    second.load(tmp_path / "run.pt")
    assert [second.step() for _ in range(2)] == reports[2:]
    assert factors_of(second) == factors_of(whole)


@pytest.mark.parametrize("name", ["gpt2", "qwen3"])
def test_models_of_transformers(name, tmp_path):
    build(name).save_pretrained(tmp_path)
    model = on_policy.Theirs(tmp_path)
    optimizer = optim.AdamW(model.parameters(), lr=1e-2)
    config = GRPOConfig(max_completion_length=3, num_generations=4, prompts_per_step=4)
    ours = GRPOTrainer(model, optimizer, DATA, first_is_right, config)
    before = weights(ours)
    reports = [ours.step() for _ in range(3)]
    assert [(r.kl_sampler, r.different) for r in reports] == [(0.0, 0)] * 3
    assert any(not torch.equal(t, before[name]) for name, t in weights(ours).items())


def test_it_learns():
    ours = trainer(prompts_per_step=16, num_generations=8)
    rewards = [ours.step().reward for _ in range(40)]
    assert sum(rewards[:5]) / 5 < 0.3 and sum(rewards[-5:]) / 5 > 0.5


def weights(of):
    return {name: t.clone() for name, t in of.model.state_dict().items()}


def test_a_resumed_run_gives_the_same_bits(tmp_path):
    changes = {"beta": 0.02, "num_iterations": 2, "mini_batch": 5, "most_resamples": 1, "prompts_per_step": 3}
    whole = trainer(**changes)
    reports = [whole.step() for _ in range(4)]
    first = trainer(**changes)
    assert [first.step() for _ in range(2)] == reports[:2]
    first.save(tmp_path / "run.pt")
    second = trainer(seed=9, **changes)  # other weights, until it loads
    second.load(tmp_path / "run.pt")
    assert [second.step() for _ in range(2)] == reports[2:]
    assert all(torch.equal(t, weights(whole)[name]) for name, t in weights(second).items())
    assert any(r.clipped > 0 for r in reports) or whole.config.num_iterations == 2


def test_answers_that_were_cut_do_not_count():
    ours = trainer(mask_truncated_completions=True)
    before = weights(ours)
    report = ours.step()  # nothing ends an answer here but its length
    assert report.tokens == 0 and report.length == 2.0
    assert all(torch.equal(t, before[name]) for name, t in weights(ours).items())


def test_groups_of_one_reward_are_asked_again():
    def of_even_sums(prompts, completion_ids):
        return [float(sum(p) % 2 == 0 and i % 2) for i, p in enumerate(prompts)]

    ours = trainer(rewards=of_even_sums, prompts_per_step=4, most_resamples=6)
    for _ in range(3):
        drawn = ours.rollouts()
        assert len(drawn) == 16
        assert all(sum(each.prompt) % 2 == 0 for each in drawn)
        assert [each.rewards for each in drawn[::2]] == [[0.0]] * 8


def test_what_has_no_meaning_is_refused():
    with pytest.raises(ValueError, match="loss_type must be one of grpo, dapo, dr_grpo"):
        GRPOConfig(loss_type="ppo")
    with pytest.raises(ValueError, match="num_generations must be at least 2"):
        GRPOConfig(num_generations=1)
    with pytest.raises(ValueError, match="each of them a prompt"):
        trainer(data=[{"question": 1}])
    with pytest.raises(ValueError, match="reward_weights: expected 1, got 2"):
        trainer(reward_weights=[1, 2])
    with pytest.raises(ValueError, match="<lambda> gave 1 rewards for 16 answers"):
        trainer(rewards=lambda prompts: [1.0]).step()


def test_the_example_learns_and_goes_on(tmp_path, capsys):
    from types import SimpleNamespace

    path = str(tmp_path / "run.pt")
    options = {"seed": 0, "lr": 1e-3, "answers": 8, "svg": tmp_path / "curve.svg"}
    whole = grpo_sums.main(SimpleNamespace(steps=60, save=None, **options))
    grpo_sums.main(SimpleNamespace(steps=50, save=path, **options))
    rest = grpo_sums.main(SimpleNamespace(steps=60, save=path, **options))
    assert rest == whole[50:]
    assert sum(rest) / 10 > sum(whole[:10]) / 10 + 0.1
    said = capsys.readouterr().out
    assert said.count("largest KL(trainer, sampler) 0.0, 0 of ") == 3
    assert (tmp_path / "curve.svg").read_text().startswith("<svg")
