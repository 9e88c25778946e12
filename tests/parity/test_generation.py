"""Greedy tokens of the engine against transformers' on the same random weights.

As a command, where torch and transformers are installed beside warptape:
PYTHONPATH=tests python -m parity.test_generation --prompts 200 --tokens 128
"""

from __future__ import annotations

import argparse
import dataclasses
import tempfile
from typing import Any

import numpy as np
import pytest
import warptape as wt
from model_configs import CONFIGS
from warptape.inference import LLM, SamplingParams
from warptape.models import Decoder

pytestmark = pytest.mark.parity
NAMES = ("gpt2", "llama", "mistral", "qwen2", "qwen3")
VOCAB, CONTEXT = 500, 256
CLOSE = 1e-4  # a difference counts unless the two best logits are this near


def write(name: str, folder: Any) -> None:
    """A small model of an architecture, with random weights."""
    wt.manual_seed(3)
    window = 100 if CONFIGS[name].sliding_window else None
    sizes = {"vocab_size": VOCAB, "max_position_embeddings": CONTEXT, "sliding_window": window}
    Decoder(dataclasses.replace(CONFIGS[name], **sizes)).save_pretrained(folder)


def theirs(folder: Any, prompts: np.ndarray, tokens: int) -> tuple[np.ndarray, np.ndarray]:
    """transformers' greedy tokens [prompts, tokens], and how far the two best logits are apart at each."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    step, past, out, gaps = torch.from_numpy(prompts), None, [], []
    with torch.no_grad():
        for _ in range(tokens):
            result = model(step, past_key_values=past, use_cache=True)
            past, logits = result.past_key_values, result.logits[:, -1]
            best = logits.topk(2).values
            step = logits.argmax(-1, keepdim=True)
            out.append(step[:, 0].numpy())
            gaps.append((best[:, 0] - best[:, 1]).numpy())
    return np.stack(out, 1), np.stack(gaps, 1)


def differences(name: str, count: int, tokens: int, length: int = 40) -> tuple[int, int]:
    """(prompts with another token, those of them where the logits were not close)"""
    with tempfile.TemporaryDirectory() as folder:
        write(name, folder)
        prompts = np.random.default_rng(0).integers(0, VOCAB, (count, length))
        expected, gaps = theirs(folder, prompts, tokens)
        llm = LLM(folder, skip_tokenizer_init=True)
        params = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True)
        outs = llm.generate([row.tolist() for row in prompts], params)
    other = counted = 0
    for row, gap, out in zip(expected, gaps, outs):
        different = np.flatnonzero(row != np.array(out.outputs[0].token_ids))
        other += different.size > 0
        counted += different.size > 0 and gap[different[0]] > CLOSE
    return other, counted


@pytest.mark.parametrize("name", NAMES)
def test_greedy_tokens_are_those_of_transformers(name: str) -> None:
    assert differences(name, 8, 48)[1] == 0


def main() -> None:
    """Prints the counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--prompts", type=int, default=200)
    parser.add_argument("--tokens", type=int, default=128)
    options = parser.parse_args()
    for name in NAMES:
        other, counted = differences(name, options.prompts, options.tokens)
        print(
            f"{name}: {counted} of {options.prompts} differ, {other - counted} more where logits were close"
        )


if __name__ == "__main__":
    main()
