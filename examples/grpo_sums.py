"""Reinforcement learning of sums by GRPO: a small decoder learns a + b from rewards alone.

    python examples/grpo_sums.py [--steps 500] [--save grpo.pt] [--svg out/grpo.svg]

The model starts from random weights. For each of 16 sums the engine draws 16 answers of two digits; half a
reward is for each digit that is right. Then answers better than the others to their sum become likelier. The
trainer's log-probabilities are those at which the engine drew: KL(trainer, sampler) is 0.0 in each step.

With --save a run that was stopped goes on from its last 50th step, with the same numbers.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Sequence
from pathlib import Path

import warptape as wt
from _common import Parser
from warptape import optim
from warptape.inference import SamplingParams
from warptape.models import Decoder, DecoderConfig
from warptape.rl import GRPOConfig, GRPOTrainer

PLUS, EQUALS = 10, 11
SUMS = [{"prompt": [a, PLUS, b, EQUALS], "total": a + b} for a in range(10) for b in range(10)]


def digits_right(completion_ids: Sequence[Sequence[int]], total: Sequence[int]) -> list[float]:
    """Half for each digit."""
    return [
        sum(digit == right for digit, right in zip(answer, divmod(wanted, 10))) / 2
        for answer, wanted in zip(completion_ids, total)
    ]


def share_right(trainer: GRPOTrainer) -> float:
    """How many of all sums the model gives by its likeliest digits."""
    likeliest = SamplingParams(temperature=0, max_tokens=2)
    outs = trainer.llm.generate([row["prompt"] for row in SUMS], likeliest)
    right = digits_right([out.outputs[0].token_ids for out in outs], [row["total"] for row in SUMS])
    return sum(each == 1 for each in right) / len(SUMS)


def make_trainer(seed: int, lr: float, answers: int) -> GRPOTrainer:
    """A decoder of two layers, and its trainer."""
    wt.manual_seed(seed)
    sizes = {"vocab_size": 12, "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
    # Weights so large that sums look different from the start: else the likeliest digit is learnt for all of
    # them, and no other one is ever drawn again.
    scale = {"initializer_range": 0.15}
    model = Decoder(DecoderConfig(num_attention_heads=4, max_position_embeddings=8, **sizes, **scale))
    config = GRPOConfig(
        num_generations=answers, prompts_per_step=16, max_completion_length=2, scale_rewards=False, seed=seed
    )
    optimizer = optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
    return GRPOTrainer(model, optimizer, SUMS, digits_right, config)


def write_curve(path: Path, rewards: Sequence[float]) -> None:
    """The rewards as a picture, each a mean of 10 steps."""
    means = [sum(rewards[i : i + 10]) / len(rewards[i : i + 10]) for i in range(0, len(rewards), 10)]
    points = " ".join(
        f"{40 + 440 * i / max(len(means) - 1, 1):.1f},{220 - 200 * m:.1f}" for i, m in enumerate(means)
    )
    axes = '<path d="M40 20V220H480" fill="none" stroke="black"/>'
    words = (
        '<text x="4" y="26">1.0</text><text x="4" y="224">0.0</text>'
        f'<text x="380" y="240">{len(rewards)} steps</text><text x="50" y="16">mean reward</text>'
    )
    line = f'<polyline points="{points}" fill="none" stroke="#1f77b4" stroke-width="2"/>'
    path.parent.mkdir(parents=True, exist_ok=True)
    head = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 500 250" font-size="13">'
    path.write_text(f"{head}{axes}{words}{line}</svg>")


def main(options: argparse.Namespace) -> list[float]:
    """Trains, and gives the rewards."""
    trainer, start = make_trainer(options.seed, options.lr, options.answers), time.perf_counter()
    if options.save and os.path.exists(options.save):
        trainer.load(options.save)
    print(f"at first {share_right(trainer):.0%} of the sums are right")
    rewards, largest, different, tokens = [], 0.0, 0, 0
    while trainer.steps < options.steps:
        report = trainer.step()
        rewards.append(report.reward)
        largest, different = max(largest, abs(report.kl_sampler)), different + report.different
        tokens += report.tokens
        if report.step % 50 == 0 or report.step == options.steps:
            print(
                f"step {report.step} reward {sum(rewards[-50:]) / len(rewards[-50:]):.3f} "
                f"KL(trainer, sampler) {report.kl_sampler} right {share_right(trainer):.0%}",
                flush=True,
            )
            if options.save:
                trainer.save(options.save)
    print(
        f"largest KL(trainer, sampler) {largest}, {different} of {tokens} tokens differ, "
        f"{time.perf_counter() - start:.0f} s"
    )
    if options.svg:
        write_curve(options.svg, rewards)
    return rewards


if __name__ == "__main__":
    parser = Parser(__doc__)
    parser.number("--steps", 500, "steps")
    parser.number("--answers", 16, "answers to each sum of a step")
    parser.add_argument("--lr", type=float, default=1e-3, help="learning rate (default 0.001)")
    parser.add_argument("--save", help="a checkpoint, from which a stopped run goes on")
    parser.add_argument("--svg", type=Path, help="where a picture of the rewards is written")
    main(parser.parse_args())
