"""GRPO: answers are drawn by the engine, rewarded, and made likelier or less likely by the trainer.

Both are in one process, and compute the same: the log-probabilities at which the engine drew are the
trainer's, to the bit. So the ratio of a step's first update is 1, and no second forward pass is needed to
know the old ones.
"""

from __future__ import annotations

import copy
import inspect
import os
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..inference import LLM, LoRARequest, SamplingParams
from ..inference.invariant import token_logprobs
from ..models import Adapter, Decoder, decoder_of
from ..serialization import load, save
from .losses import LOSSES, divisor_of, group_advantages, kl_of, policy_loss

Reward = Callable[..., Sequence[float]]


@dataclass(kw_only=True)
class GRPOConfig:
    """How it is trained; trl's names.

    Args:
        num_generations: answers to each prompt.
        prompts_per_step: prompts whose answers one step is made of.
        max_completion_length: tokens of an answer.
        num_iterations: updates by the same answers.
        mini_batch: answers of one forward pass; gradients of all are added. None: all.
        epsilon, epsilon_high, loss_type, beta: see `policy_loss`. With beta the model as it was at first is
            kept as reference.
        scale_rewards: see `group_advantages`.
        reward_weights: of the reward functions; None: 1.
        mask_truncated_completions: answers that were cut at max_completion_length do not count.
        most_resamples: how often other prompts are asked in the place of those whose answers all got one
            reward (DAPO's dynamic sampling).
        max_grad_norm: gradients are scaled down to it; None: they are not.
        seed: of the order of prompts and of all draws. A step's draws depend on it and the step's number.
    """

    num_generations: int = 8
    prompts_per_step: int = 4
    max_completion_length: int = 64
    num_iterations: int = 1
    mini_batch: int | None = None
    epsilon: float = 0.2
    epsilon_high: float | None = None
    loss_type: str = "dapo"
    beta: float = 0.0
    scale_rewards: bool = True
    reward_weights: Sequence[float] | None = None
    mask_truncated_completions: bool = False
    most_resamples: int = 0
    max_grad_norm: float | None = 1.0
    seed: int = 0

    def __post_init__(self) -> None:
        if self.loss_type not in LOSSES:
            raise ValueError(f"loss_type must be one of {', '.join(LOSSES)}, got {self.loss_type!r}")
        least = {"num_generations": 2, "prompts_per_step": 1, "max_completion_length": 1, "num_iterations": 1}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} must be at least {low}, got {getattr(self, name)}")


@dataclass
class Rollout:
    """An answer.

    Args:
        prompt, tokens: the prompt's, and those that were drawn.
        logprobs: float32 [T], at which they were drawn.
        text: of the answer; empty without a tokenizer.
        truncated: whether it was cut.
        row: of the data, what reward functions get.
        rewards: of each function.
        advantage: among the answers to its prompt.
    """

    prompt: list[int]
    tokens: list[int]
    logprobs: Tensor
    text: str
    truncated: bool
    row: Mapping[str, Any]
    rewards: list[float] = field(default_factory=list)
    advantage: float = 0.0


@dataclass
class StepReport:
    """What a step was.

    Args:
        step: its number; the first is 1.
        reward, length: means over the answers.
        loss: of the first update.
        kl_sampler: KL(trainer, sampler) before the update, a mean over tokens: 0.0, for they are the same.
        different: tokens whose log-probability the trainer gives other bits than the sampler.
        tokens: drawn.
        kl_reference: KL to the reference; 0.0 without one.
        clipped: share of tokens whose ratio was clipped, of all updates.
        grad_norm: of the first update, before it was scaled.
    """

    step: int
    reward: float
    length: float
    loss: float
    kl_sampler: float
    different: int
    tokens: int
    kl_reference: float
    clipped: float
    grad_norm: float


def _sampler_of(model: nn.Module) -> Decoder:
    """A decoder with a model's weights, for the engine."""
    if isinstance(model, Decoder):
        return copy.deepcopy(model)
    decoder, weights = decoder_of(model)
    decoder.to_empty(device="cpu")
    decoder.tie_weights()
    with wt.no_grad():
        for name, parameter in decoder.named_parameters():
            parameter.data = weights[name].detach().clone()
    return decoder


class GRPOTrainer:
    """Trains a model by rewards of what it answers.

    Args:
        model: a Decoder in float32 or bfloat16, or a model of transformers that `models.decoder_of` knows.
        optimizer: of its parameters.
        data: rows with "prompt", a list of tokens, or text where there is a tokenizer; reward functions get
            the other columns by their names.
        reward_funcs: called with `prompts`, `completions`, `completion_ids` and columns, as far as they have
            such arguments; they give a number for each answer. Prompts and completions are tokens where there
            is no tokenizer.
        config: see GRPOConfig.
        lr_scheduler: is stepped after each step, or None.
        tokenizer: a folder, or None.
        adapter: of a Decoder, neither merged nor attached, of whose factors the optimizer is: they alone are
            trained. Layers may be in int8 or int4 then (`inference.quantize_`).
        engine: further arguments of LLM, such as max_num_seqs.

    >>> from warptape.models import Decoder, DecoderConfig
    >>> from warptape.optim import AdamW
    >>> from warptape.rl import GRPOConfig, GRPOTrainer
    >>> sizes = {"vocab_size": 8, "hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1}
    >>> model = Decoder(DecoderConfig(num_attention_heads=2, max_position_embeddings=8, **sizes))
    >>> def is_long(completion_ids):
    ...     return [len(tokens) for tokens in completion_ids]
    >>> config = GRPOConfig(max_completion_length=3)
    >>> trainer = GRPOTrainer(model, AdamW(model.parameters()), [{"prompt": [1, 2]}], is_long, config)
    >>> report = trainer.step()
    >>> report.reward, report.kl_sampler
    (3.0, 0.0)
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Any,
        data: Sequence[Mapping[str, Any]],
        reward_funcs: Reward | Sequence[Reward],
        config: GRPOConfig | None = None,
        *,
        lr_scheduler: Any = None,
        tokenizer: str | os.PathLike[str] | None = None,
        adapter: Adapter | None = None,
        engine: Mapping[str, Any] | None = None,
    ) -> None:
        self.model, self.optimizer, self.config = model, optimizer, config or GRPOConfig()
        self.lr_scheduler = lr_scheduler
        self.data = list(data)
        if not self.data or not all("prompt" in row for row in self.data):
            raise ValueError("GRPOTrainer: data must have rows, and each of them a prompt")
        self.reward_funcs = [reward_funcs] if callable(reward_funcs) else list(reward_funcs)
        weights = self.config.reward_weights
        self._weights = [1.0] * len(self.reward_funcs) if weights is None else [*weights]
        if len(self._weights) != len(self.reward_funcs):
            raise ValueError(f"reward_weights: expected {len(self.reward_funcs)}, got {len(self._weights)}")
        self.reference = copy.deepcopy(model).requires_grad_(False) if self.config.beta else None
        more = {"skip_tokenizer_init": tokenizer is None, **(engine or {})}
        self.llm = LLM(_sampler_of(model), tokenizer=tokenizer, **more)
        self.adapter, self._lora = adapter, None
        if adapter is not None:
            self._lora = LoRARequest("trained", 1, "the trainer's")
            self.llm.llm_engine.update_adapter(self._lora, adapter.factors, version=1)
            adapter.attach()
        self.steps, self._asked = 0, 0  # steps that were made; prompts that were asked in them

    # ---- answers ----

    def _row(self, number: int) -> Mapping[str, Any]:
        """The data's rows in one order after another, each of which the seed and its number say."""
        epoch, at = divmod(number, len(self.data))
        order = [*range(len(self.data))]
        random.Random(f"{self.config.seed} {epoch}").shuffle(order)
        return self.data[order[at]]

    def rollouts(self) -> list[Rollout]:
        """The answers of the next step, with rewards and advantages."""
        n, wanted = self.config.num_generations, self.config.prompts_per_step
        kept: list[Rollout] = []
        left: list[Rollout] = []
        for _ in range(1 + self.config.most_resamples):
            drawn = self._draw(wanted - len(kept) // n)
            for at in range(0, len(drawn), n):
                group = drawn[at : at + n]
                equal = len({self._total(each) for each in group}) == 1
                (left if equal else kept).extend(group)
            if len(kept) == wanted * n:
                break
        return kept + left[: wanted * n - len(kept)]

    def _draw(self, count: int) -> list[Rollout]:
        """Answers to the next prompts, group by group."""
        n, first = self.config.num_generations, self._asked
        self._asked += count
        rows = [self._row(first + i) for i in range(count)]
        seeds = random.Random(f"{self.config.seed} draws {self.steps} {first}")
        params = [
            SamplingParams(
                n=n,
                temperature=1.0,
                max_tokens=self.config.max_completion_length,
                logprobs=0,
                seed=seeds.randrange(1 << 48),
            )
            for _ in rows
        ]
        outs = self.llm.generate([row["prompt"] for row in rows], params, lora_request=self._lora)
        made = []
        for row, out in zip(rows, outs):
            for answer in out.outputs:
                assert answer.logprobs is not None
                drawn = [entry[t].logprob for entry, t in zip(answer.logprobs, answer.token_ids)]
                cut = answer.finish_reason == "length"
                values = wt.tensor(drawn, dtype=wt.float32)
                made.append(Rollout(out.prompt_token_ids, answer.token_ids, values, answer.text, cut, row))
        self._reward(made)
        return made

    def _reward(self, rollouts: list[Rollout]) -> None:
        texts = self.llm.get_tokenizer() is not None
        arguments: dict[str, list[Any]] = {
            "prompts": [each.row["prompt"] for each in rollouts],
            "completions": [each.text if texts else each.tokens for each in rollouts],
            "completion_ids": [each.tokens for each in rollouts],
        }
        names = {name for each in rollouts for name in each.row if name != "prompt"}
        arguments |= {name: [each.row.get(name) for each in rollouts] for name in sorted(names)}
        for function in self.reward_funcs:
            known = inspect.signature(function).parameters
            takes_all = any(p.kind is p.VAR_KEYWORD for p in known.values())
            values = function(**{k: v for k, v in arguments.items() if takes_all or k in known})
            if len(values) != len(rollouts):
                name = getattr(function, "__name__", "a reward function")
                raise ValueError(f"{name} gave {len(values)} rewards for {len(rollouts)} answers")
            for each, value in zip(rollouts, values):
                each.rewards.append(float(value))
        totals = wt.tensor([self._total(each) for each in rollouts])
        config = self.config
        advantages = group_advantages(totals, config.num_generations, config.scale_rewards)
        for each, advantage in zip(rollouts, advantages.tolist()):
            each.advantage = advantage

    def _total(self, rollout: Rollout) -> float:
        return sum(w * r for w, r in zip(self._weights, rollout.rewards))

    # ---- steps ----

    def step(self) -> StepReport:
        """Draws answers, learns from them, and gives the engine the new weights."""
        drawn = self.rollouts()
        report = self.learn(drawn)
        if self.lr_scheduler is not None:
            self.lr_scheduler.step()
        self.steps += 1
        self._send()
        return report

    def _send(self) -> None:
        """Gives the engine what was learnt."""
        engine = self.llm.llm_engine
        if self.adapter is not None and self._lora is not None:
            engine.update_adapter(self._lora, self.adapter.factors)
        elif isinstance(self.model, Decoder):
            engine.update_weights(self.model.state_dict())
        else:
            engine.update_weights(decoder_of(self.model)[1])

    def logprobs(self, model: nn.Module, rollouts: Sequence[Rollout]) -> list[Tensor]:
        """A model's log-probabilities of the tokens of answers, with gradients where they are wanted.

        Args:
            model: the trained one, or the reference.
            rollouts: answers.
        """
        read = token_logprobs(model, [[*each.prompt, *each.tokens] for each in rollouts])
        return [values[len(each.prompt) - 1 :] for values, each in zip(read, rollouts)]

    def learn(self, rollouts: Sequence[Rollout]) -> StepReport:
        """Updates the model by answers.

        Args:
            rollouts: with advantages.
        """
        config = self.config
        counted = [each for each in rollouts if not (config.mask_truncated_completions and each.truncated)]
        lengths = [len(each.tokens) for each in counted]
        divisor = divisor_of(lengths, config.loss_type, config.max_completion_length)
        total = _Sums()
        for iteration in range(config.num_iterations):
            self.optimizer.zero_grad()
            size = config.mini_batch or max(len(counted), 1)
            for at in range(0, len(counted), size):
                self._backward(counted[at : at + size], divisor, iteration == 0, total)
            parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
            limit = float("inf") if config.max_grad_norm is None else config.max_grad_norm
            norm = float(nn.utils.clip_grad_norm_(parameters, limit))
            total.norm = norm if iteration == 0 else total.norm
            self.optimizer.step()
        tokens = max(sum(lengths), 1)
        return StepReport(
            step=self.steps + 1,
            reward=sum(map(self._total, rollouts)) / len(rollouts),
            length=sum(len(each.tokens) for each in rollouts) / len(rollouts),
            loss=total.loss,
            kl_sampler=total.kl_sampler / tokens,
            different=total.different,
            tokens=sum(lengths),
            kl_reference=total.kl_reference / tokens,
            clipped=total.clipped / tokens / config.num_iterations,
            grad_norm=total.norm,
        )

    def _backward(self, some: Sequence[Rollout], divisor: float, first: bool, total: _Sums) -> None:
        """Adds the gradients of some answers, and what there is to say of them."""
        config = self.config
        new = self.logprobs(self.model, some)
        old = [each.logprobs for each in some]
        reference = None
        if self.reference is not None:
            with wt.no_grad():
                reference = self.logprobs(self.reference, some)
        loss, clipped = policy_loss(
            new,
            old,
            [each.advantage for each in some],
            epsilon=config.epsilon,
            epsilon_high=config.epsilon_high,
            loss_type=config.loss_type,
            divisor=divisor,
            reference=reference,
            beta=config.beta,
        )
        loss.backward()
        total.clipped += clipped
        if not first:
            return
        total.loss += float(loss.detach())
        for i, (mine, drawn) in enumerate(zip(new, old)):
            mine = mine.detach()
            total.different += int((mine != drawn).sum())
            total.kl_sampler += float(kl_of(mine, drawn).sum())
            if reference is not None:
                total.kl_reference += float(kl_of(mine, reference[i]).sum())

    # ---- checkpoints ----

    def state_dict(self) -> dict[str, Any]:
        """All that a step depends on, but for the data and the functions."""
        state = {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "steps": self.steps,
            "asked": self._asked,
        }
        if self.adapter is not None:
            state["adapter"] = {name: tuple(each) for name, each in self.adapter.factors.items()}
        if self.reference is not None:
            state["reference"] = self.reference.state_dict()
        if self.lr_scheduler is not None:
            state["lr_scheduler"] = self.lr_scheduler.state_dict()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Goes on where another trainer was: its steps and these give the same bits.

        Args:
            state: of one with the same model, data, config and functions.
        """
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.reference is not None:
            self.reference.load_state_dict(state["reference"])
        if self.lr_scheduler is not None:
            self.lr_scheduler.load_state_dict(state["lr_scheduler"])
        if self.adapter is not None:
            with wt.no_grad():
                for name, factors in self.adapter.factors.items():
                    for mine, saved in zip(factors, state["adapter"][name]):
                        mine.copy_(saved)
        self.steps, self._asked = state["steps"], state["asked"]
        self._send()

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes state_dict() to a file, which takes its place at once.

        Args:
            path: of the file.
        """
        partial = f"{os.fspath(path)}.partial"
        save(self.state_dict(), partial)
        os.replace(partial, path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Reads what `save` wrote.

        Args:
            path: of the file.
        """
        self.load_state_dict(load(path))


@dataclass
class _Sums:
    """Over the answers of a step."""

    loss: float = 0.0
    kl_sampler: float = 0.0
    kl_reference: float = 0.0
    clipped: float = 0.0
    norm: float = 0.0
    different: int = 0
