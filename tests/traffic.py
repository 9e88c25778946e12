"""Random traffic on an engine against each request alone: tokens and log-probabilities equal to the bit.

As a command: python tests/traffic.py --requests 100000 [--seed 0]
"""

from __future__ import annotations

import argparse
import dataclasses
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import warptape as wt
from model_configs import CONFIGS
from safetensors.numpy import save_file
from warptape.inference import EngineArgs, LLMEngine, LoRARequest, SamplingParams
from warptape.inference.llm import prepare
from warptape.inference.runner import page_bytes
from warptape.models import Decoder

VOCAB, CONTEXT = 64, 160
# (config, dtype, quantization): what an engine serves in turn.
KINDS = [
    *itertools.product(("gpt2", "llama", "mistral", "qwen3"), ("float32", "bfloat16"), (None,)),
    ("llama", "bfloat16", "int8"),
    ("llama", "float32", "int4"),
    ("gemma3", "bfloat16", None),
    ("smollm3", "float32", None),
    ("gpt-neox", "float32", None),
    ("glm4", "bfloat16", "int8"),
    ("gemma2", "bfloat16", None),
    ("qwen2-moe", "float32", None),
    ("qwen3-moe", "bfloat16", "int8"),
    ("gpt-oss", "float32", None),
    ("deepseek-v3", "bfloat16", None),
]


def model_of(
    name: str,
    dtype: str,
    quantization: str | None,
    invariant: bool = True,
    ranks: int = 1,
    stages: int = 1,
) -> Decoder:
    """A small decoder with a context of several pages, or a rank's part of it."""
    wt.manual_seed(7)
    config = dataclasses.replace(
        CONFIGS[name],
        vocab_size=VOCAB,
        max_position_embeddings=CONTEXT,
        sliding_window=None if CONFIGS[name].sliding_window is None else 45,
    )
    return prepare(Decoder(config, dtype=getattr(wt, dtype)).eval(), quantization, invariant, ranks, stages)


def random_params(rng: np.random.Generator) -> SamplingParams:
    """Of every kind of sampling."""
    common: dict[str, Any] = {
        "max_tokens": int(rng.integers(1, 16)),
        "seed": int(rng.integers(1 << 60)),
        "logprobs": 1,
        "ignore_eos": True,
    }
    kinds: list[dict[str, Any]] = [
        {"temperature": 0.0},
        {},
        {"temperature": 0.7, "top_p": 0.8},
        {"top_k": 5, "min_p": 0.05, "stop_token_ids": [3]},
        {"allowed_token_ids": rng.choice(VOCAB, rng.integers(1, 30), replace=False).tolist()},
        {"repetition_penalty": 1.3, "presence_penalty": 0.5, "frequency_penalty": 0.2, "temperature": 0.0},
    ]
    return SamplingParams(**common, **kinds[rng.integers(len(kinds))])


def random_args(rng: np.random.Generator, draft: Decoder, ranks: int, stages: int) -> EngineArgs:
    """Limits under which pages and batches are scarce now and then."""
    kinds = 3 if stages == 1 else 2  # of speculation: no draft model in a pipeline
    return EngineArgs(
        max_num_seqs=int(rng.integers(1, 12)),
        max_num_batched_tokens=int(rng.integers(5, 120)),
        max_prefill_beside_decode=int(rng.integers(1, 60)),
        enable_prefix_caching=bool(rng.integers(2)),
        kv_cache_dtype=["auto", "auto", "int8"][rng.integers(3)],
        speculative_config=[
            None,
            {"num_speculative_tokens": 3, "prompt_lookup_min": 1},
            {"num_speculative_tokens": 2, "model": draft},
        ][rng.integers(kinds)],
        tensor_parallel_size=ranks,
        pipeline_parallel_size=stages,
    )


def write_adapters(folder: Path) -> list[LoRARequest]:
    """Two LoRA adapters for the Llama of `model_of`."""
    rng, out = np.random.default_rng(3), []
    layers = {
        "self_attn.q_proj": (24, 24),
        "self_attn.v_proj": (12, 24),
        "self_attn.o_proj": (24, 24),
        "mlp.up_proj": (36, 24),
        "mlp.down_proj": (24, 36),
    }
    shapes = {f"model.layers.{i}.{name}": shape for i in range(3) for name, shape in layers.items()}
    shapes["lm_head"] = (VOCAB, 24)
    for number in (1, 2):
        path = folder / str(number)
        path.mkdir()
        (path / "adapter_config.json").write_text('{"peft_type": "LORA", "lora_alpha": 16}')
        arrays = {}
        for name, (outputs, inputs) in shapes.items():
            arrays[f"base_model.model.{name}.lora_A.weight"] = rng.normal(size=(4, inputs)).astype(np.float32)
            arrays[f"base_model.model.{name}.lora_B.weight"] = rng.normal(size=(outputs, 4)).astype(
                np.float32
            )
        save_file(arrays, path / "adapter_model.safetensors")
        out.append(LoRARequest(str(number), number, path))
    return out


def answers(output: Any) -> Any:
    """What must be equal: tokens, and log-probabilities as bits."""
    return [
        (o.token_ids, o.finish_reason, [{t: p.logprob for t, p in d.items()} for d in o.logprobs])
        for o in output.outputs
    ]


def run_alone(engine: LLMEngine, prompt: list[int], params: SamplingParams, lora: Any) -> Any:
    """A request on an engine that has nothing else to do and knows no prefix."""
    engine.add_request("alone", prompt, params, lora_request=lora)
    while engine.has_unfinished_requests():
        for output in engine.step():
            if output.finished:
                return answers(output)
    raise AssertionError("the request never finished")


def different(seed: int, requests: int, ranks: int = 1, stages: int = 1) -> int:
    """How many of so many requests had another answer alone; on several ranks each of them calls it."""
    rng = np.random.default_rng(seed)
    kind = KINDS[seed % len(KINDS)]
    with tempfile.TemporaryDirectory() as folder:
        adapters = [None, *(write_adapters(Path(folder)) if kind[0] == "llama" else [])]
        return _different(rng, kind, adapters, requests, ranks, stages)


def _different(
    rng: np.random.Generator, kind: Any, adapters: list[Any], requests: int, ranks: int, stages: int
) -> int:
    model = model_of(*kind, ranks=ranks, stages=stages)
    # llama's two heads of keys do not divide among four ranks.
    draft = model_of("gpt2" if ranks > 1 else "llama", "float32", None, ranks=ranks if stages == 1 else 1)
    args = random_args(rng, draft, ranks, stages)
    page = page_bytes(model, args.kv_cache_dtype)
    with_draft = page_bytes(draft, args.kv_cache_dtype) if "model" in (args.speculative_config or {}) else 0
    args = dataclasses.replace(args, kv_cache_memory_bytes=int(rng.integers(5, 40)) * (page + with_draft))
    engine = LLMEngine(model, None, args)
    plain = {"enable_prefix_caching": False, "kv_cache_memory_bytes": 5 * page, "tensor_parallel_size": ranks}
    plain["pipeline_parallel_size"] = stages
    lone = LLMEngine(model, None, EngineArgs(kv_cache_dtype=args.kv_cache_dtype, **plain))
    shared = rng.integers(0, VOCAB, 100).tolist()
    asked, got = {}, {}
    threads = wt.get_num_threads()

    def step() -> None:
        wt.set_num_threads(int(rng.integers(1, 5)))
        for output in engine.step():
            if output.finished:
                got[output.request_id] = answers(output)

    try:
        for i in range(requests):
            prompt = shared[: rng.integers(0, 100)] + rng.integers(0, VOCAB, rng.integers(1, 40)).tolist()
            name, params, lora = str(i), random_params(rng), adapters[rng.integers(len(adapters))]
            asked[name] = prompt, params, lora
            more = {
                "priority": int(rng.integers(3)),
                "cache_salt": str(rng.integers(2)),
                "lora_request": lora,
            }
            engine.add_request(name, prompt, params, **more)
            for _ in range(rng.integers(0, 8)):
                step()
        while engine.has_unfinished_requests():
            step()
        wt.set_num_threads(1)
        return sum(got[name] != run_alone(lone, *asked[name]) for name in asked)
    finally:
        wt.set_num_threads(threads)


def main() -> None:
    """Prints how many requests had another answer."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=100_000)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    start, done, wrong = time.monotonic(), 0, 0
    for seed in itertools.count(options.seed):
        if done >= options.requests:
            break
        wrong += different(seed, 50)
        done += 50
        if seed % 20 == 19:
            print(f"{done} requests, {wrong} different, {time.monotonic() - start:.0f} s", flush=True)
    print(f"{wrong} of {done} requests had another answer than alone")
    raise SystemExit(wrong > 0)


if __name__ == "__main__":
    main()
