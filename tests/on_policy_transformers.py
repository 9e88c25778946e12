"""Counts tokens whose log-probability the engine and a model of transformers give different bits.

`python -m warptape.torch tests/on_policy_transformers.py 20000` where transformers is installed. Small random
Llamas, Qwen2s, Qwen3s and GPT-2s are written to folders, which the engine serves; `token_logprobs` reads what
it drew by the models themselves.
"""

from __future__ import annotations

import sys
import tempfile
from typing import Any

import warptape as torch
from warptape.inference import LLM, SamplingParams
from warptape.inference.invariant import token_logprobs

SIZES = {"vocab_size": 96, "initializer_range": 0.15, "bos_token_id": 1, "eos_token_id": 1}
LLAMAS = {
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "head_dim": 16,
}
GPT2 = {"n_embd": 64, "n_layer": 2, "n_head": 4, "n_positions": 128}
KINDS = {"Llama": LLAMAS, "Qwen2": LLAMAS, "Qwen3": LLAMAS, "GPT2": GPT2}


def round_of(kind: str, dtype: torch.dtype, seed: int, requests: int = 24) -> tuple[int, int, int]:
    """Tokens, how many differ, and how many differ by the model's own forward.

    Args:
        kind: of KINDS.
        dtype: of the weights.
        seed: of weights and draws.
        requests: how many.
    """
    import transformers

    config = getattr(transformers, f"{kind}Config")(**SIZES, **KINDS[kind])
    torch.manual_seed(seed)
    model: Any = transformers.AutoModelForCausalLM.from_config(config).to(dtype).eval()
    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        speculation = {"num_speculative_tokens": 3} if seed % 2 else None
        served = LLM(
            folder,
            skip_tokenizer_init=True,
            dtype=str(dtype).rpartition(".")[2],
            max_num_batched_tokens=64,
            speculative_config=speculation,
        )
    params = [SamplingParams(seed=seed + i, max_tokens=40, logprobs=0) for i in range(requests)]
    prompts = [[(7 * i + j) % 96 for j in range(3 + i % 30)] for i in range(requests)]
    total = different = plain = 0
    for out in served.generate(prompts, params):
        answer = out.outputs[0]
        count, tokens = len(answer.token_ids), [*out.prompt_token_ids, *answer.token_ids]
        drawn = [entry[t].logprob for entry, t in zip(answer.logprobs, answer.token_ids)]
        mine = token_logprobs(model, [tokens])[0][-count:].tolist()
        with torch.no_grad():
            logits = model(torch.tensor([tokens])).logits[0].double().log_softmax(-1)
        theirs = logits[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1).float()
        total += count
        different += sum(a != b for a, b in zip(drawn, mine, strict=True))
        plain += sum(a != b for a, b in zip(drawn, theirs[-count:].tolist()))
    return total, different, plain


def main() -> int:
    """Prints the counts; the exit status is 1 where a token differs."""
    wanted = int(sys.argv[1]) if len(sys.argv) > 1 else 5_000
    counts, seed = (0, 0, 0), 0
    while counts[0] < wanted:
        for kind in KINDS:
            for dtype in (torch.float32, torch.bfloat16):
                total, different, plain = round_of(kind, dtype, seed)
                counts = counts[0] + total, counts[1] + different, counts[2] + plain
        seed += 1
    print(f"{counts[1]} of {counts[0]} sampled tokens differ; by the models' own forward {counts[2]} do")
    return int(counts[1] > 0)


if __name__ == "__main__":
    sys.exit(main())
