"""A model without weights for tests of the engine: its logits are a function of the tokens that it finds in
the pages, so that a wrong page, slot, position or length gives other tokens."""

from __future__ import annotations

import numpy as np
import warptape as torch
from warptape import _C
from warptape.inference import SamplingParams

VOCAB = 50
PAGE = _C._PAGE_TOKENS
LIMITS = {
    "pages": 64,
    "max_model_len": 256,
    "vocab_size": VOCAB,
    "max_num_seqs": 8,
    "max_num_batched_tokens": 64,
    "max_prefill_beside_decode": 32,
    "enable_prefix_caching": True,
    "num_speculative_tokens": 0,
    "prompt_lookup_min": 1,
    "prompt_lookup_max": 3,
}


def next_logits(tokens) -> np.ndarray:
    """[VOCAB] of the token after these. Few likely ones, often the same: n-grams come again."""
    state = np.random.default_rng(hash(tuple(tokens[-2:])) & 0xFFFF)
    whole = np.random.default_rng(hash(tuple(tokens)) & 0xFFFFFFFF)
    return (state.normal(size=VOCAB) * 3 + whole.normal(size=VOCAB) * 0.5).astype(np.float32)


class Toy:
    """Runs a _C._Engine with the model."""

    def __init__(self, **limits):
        self.limits = {**LIMITS, **limits}
        self.engine = _C._Engine(**self.limits)
        self.memory = np.full(self.limits["pages"] * PAGE, -1)
        self.tokens: dict[int, list[int]] = {}
        self.logprobs: dict[int, list] = {}
        self.prompt_logprobs: dict[int, list] = {}
        self.cached: dict[int, int] = {}
        self.finished: dict[int, str] = {}
        self.most_running = 0
        self.batches: list[dict] = []

    def add(self, prompt, params=None, **more):
        """Its number."""
        params = params or SamplingParams(temperature=0, max_tokens=8)
        more.setdefault("seed", params.seed or 0)
        more.setdefault("stop_token_ids", list(params.stop_token_ids or ()))
        number = self.engine.add(list(prompt), params, **more)
        self.tokens[number], self.logprobs[number], self.prompt_logprobs[number] = [], [], []
        return number

    def forward(self, batch):
        """Logits [L, VOCAB] from what lies in the pages."""
        tokens = batch["tokens"].tolist()
        starts, lengths, table = (batch[name].tolist() for name in ("starts", "lengths", "page_table"))
        slots = [[table[r][p // PAGE] * PAGE + p % PAGE for p in range(n)] for r, n in enumerate(lengths)]
        written = []
        for r, n in enumerate(lengths):
            written += slots[r][n - (starts[r + 1] - starts[r]) :]
        assert len(set(written)) == len(written) == len(tokens)
        self.memory[written] = tokens
        rows = []
        for r in range(len(lengths)):
            new = starts[r + 1] - starts[r]
            seen = self.memory[slots[r]].tolist()
            rows += [next_logits(seen[: lengths[r] - new + i + 1]) for i in range(new)]
        wanted = [rows[i] for i in batch["logit_rows"].tolist()]
        return torch.tensor(np.array(wanted, dtype=np.float32).reshape(-1, VOCAB))

    def step(self):
        """Whether there was something to do."""
        batch = self.engine.begin_step()
        if not batch["requests"]:
            return False
        self.batches.append(batch)
        self.most_running = max(self.most_running, len(batch["requests"]))
        assert batch["tokens"].numel() <= self.limits["max_num_batched_tokens"]
        for number, tokens, logprobs, finish, of_prompt, cached in self.engine.finish_step(
            self.forward(batch)
        ):
            self.tokens[number] += tokens
            self.logprobs[number] += logprobs
            self.prompt_logprobs[number] += of_prompt
            self.cached[number] = cached
            if finish:
                self.finished[number] = finish
        return True

    def run(self):
        """Until nothing is left."""
        while self.step():
            pass
        return self
