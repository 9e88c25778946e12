"""Counts tokens whose log-probability the engine and a training forward give different bits.

`python tests/on_policy.py 100000` samples so many tokens from random models under random limits of the
engine: prefix cache, chunked prefill, speculation, preemption; weights of some in int8 or int4, with an
adapter. A trainer's forward then reads the answers, put together at random, with gradients.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import warptape as torch
from warptape.inference import LLM, LoRARequest, SamplingParams, quantize_
from warptape.inference.invariant import token_logprobs
from warptape.models import Adapter, Decoder, DecoderConfig, load_adapter

VOCABULARY, CONTEXT = 96, 160
KINDS: list[dict[str, Any]] = [
    {"num_key_value_heads": 2},
    {"sliding_window": 24, "layer_types": ["sliding_attention", "full_attention"]},
    {"qkv_bias": True, "qk_norm": True, "tie_word_embeddings": True},
    {
        "norm": "layer_norm",
        "positions": "learned",
        "gated": False,
        "hidden_act": "gelu",
        "qkv_bias": True,
        "o_bias": True,
        "mlp_bias": True,
    },
]


def model_of(seed: int, kind: dict[str, Any], dtype: torch.dtype) -> Decoder:
    """A random model; the same for the same arguments. Of some nearly every token is nearly certain."""
    torch.manual_seed(seed)
    sizes = {"hidden_size": 64, "intermediate_size": 112, "num_hidden_layers": 2, "num_attention_heads": 4}
    limits = {"vocab_size": VOCABULARY, "max_position_embeddings": CONTEXT, "initializer_range": 0.15}
    sharp = {"logit_scale": 6.0} if seed % 3 == 2 else {}
    return Decoder(DecoderConfig(**{**sizes, **limits, **kind, **sharp})).to(dtype)


class Theirs(torch.nn.Module):
    """Parameters by the names of transformers' models, in no order of ours."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        config = json.loads((folder / "config.json").read_text())
        self.config = SimpleNamespace(to_dict=lambda: config)
        for name, t in sorted(torch.utils.safetensors.load_file(folder / "model.safetensors").items()):
            *path, last = name.split(".")
            place: torch.nn.Module = self
            for part in path:
                if part not in place._modules:
                    place.add_module(part, torch.nn.Module())
                place = getattr(place, part)
            place.register_parameter(last, torch.nn.Parameter(t.clone()))


BITS = {"int8": (8, 0), "int4": (4, 32)}


def write_adapter(folder: Path, seed: int, model: Decoder) -> Path:
    """A PEFT folder for the attention's outputs and the MLP's second layer."""
    torch.manual_seed(seed)
    tensors = {}
    for i, layer in enumerate(model.layers):
        for path in ("self_attn.o_proj", "mlp.down_proj"):
            linear = layer.get_submodule(path)
            name = f"base_model.model.model.layers.{i}.{path}"
            tensors[f"{name}.lora_A.weight"] = torch.randn(4, linear.in_features) * 0.3
            tensors[f"{name}.lora_B.weight"] = torch.randn(linear.out_features, 4) * 0.3
    torch.utils.safetensors.save_file(tensors, folder / "adapter_model.safetensors")
    settings = {"peft_type": "LORA", "r": 4, "lora_alpha": 4}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def learner(model: Decoder, quantization: str | None, folder: Path | None) -> Decoder:
    """What is trained: the model itself, or an adapter of its layers in few bits."""
    if quantization is not None:
        bits, group = BITS[quantization]
        quantize_(model, bits, group, ("lm_head",))
    if folder is not None:
        adapter: Adapter = load_adapter(model, folder)
        for factors in adapter.factors.values():
            for t in factors:
                t.requires_grad_()
        adapter.attach()
    return model


def traffic(draw: random.Random, seed: int, requests: int) -> tuple[list[Any], list[SamplingParams]]:
    """Random prompts, some of which begin alike, and how they are answered."""
    longest = 40 if draw.random() < 0.5 else 90
    shared = [draw.randrange(VOCABULARY) for _ in range(40)]
    prompts = []
    for _ in range(requests):
        own = [draw.randrange(VOCABULARY) for _ in range(draw.randint(2, longest))]
        prompts.append(shared + own[:20] if draw.random() < 0.4 else own)
    params = [
        SamplingParams(temperature=1.0, seed=seed + i, max_tokens=draw.randint(1, 60), logprobs=0)
        for i in range(requests)
    ]
    return prompts, params


def limits_of(draw: random.Random) -> dict[str, Any]:
    """Random limits of an engine; the smaller cache makes requests wait and be preempted."""
    return {
        "max_model_len": CONTEXT,
        "max_num_seqs": draw.randint(1, 9),
        "max_num_batched_tokens": draw.choice([16, 64, 512]),
        "enable_prefix_caching": draw.random() < 0.7,
        "speculative_config": draw.choice([None, None, "ngram", "draft_model"]),
        "kv_cache_memory_bytes": draw.choice([6, 40]) * 32 * 64 * 2 * 2 * 4,
    }


def round_of(
    seed: int, requests: int, plain: bool = False, quantization: str | None = None, ranks: int = 1
) -> tuple[int, int]:
    """One model, one engine: how many tokens were drawn, and how many of them differ.

    Args:
        seed: of all choices.
        requests: how many.
        plain: reads by the model's own forward instead.
        quantization: of the layers, "int8" or "int4", which then have an adapter.
        ranks: of the engine, among which the model is split; the trainer is whole.
    """
    draw = random.Random(seed)
    kind = draw.choice(KINDS[:3] if quantization else KINDS)
    dtype = draw.choice([torch.float32, torch.bfloat16])
    limits, (prompts, params) = limits_of(draw), traffic(draw, seed, requests)
    trainer, adapter = model_of(seed, kind, dtype), None
    with tempfile.TemporaryDirectory() as folder:
        if quantization is not None:
            adapter = LoRARequest("one", 1, write_adapter(Path(folder), seed, trainer))
        learner(trainer, quantization, Path(folder) if quantization else None)

        def serve() -> Any:
            more: dict[str, Any] = {"quantization": quantization, "tensor_parallel_size": ranks}
            method = limits["speculative_config"]
            if method is not None:
                # Of the same weights, most of what a draft model proposes is taken.
                draft = model_of(seed, kind, dtype) if method == "draft_model" else None
                proposed = {"num_speculative_tokens": 3, "method": method, "model": draft}
                more["speculative_config"] = proposed
                more["kv_cache_memory_bytes"] = limits["kv_cache_memory_bytes"] * (1 if draft is None else 2)
            served = LLM(model_of(seed, kind, dtype), skip_tokenizer_init=True, **{**limits, **more})
            return served.generate(prompts, params, lora_request=adapter)

        outs = serve() if ranks == 1 else torch.distributed.simulate(ranks, serve)[0]
    draw.shuffle(outs)
    total = different = 0
    while outs:
        part = [outs.pop() for _ in range(min(len(outs), draw.randint(1, 6)))]
        sequences = [[*o.prompt_token_ids, *o.outputs[0].token_ids] for o in part]
        if plain:
            read = [_plain(trainer, s) for s in sequences]
        else:
            read = token_logprobs(trainer, sequences, tensor_parallel_size=ranks)
        for out, values in zip(part, read):
            answer = out.outputs[0]
            drawn = [entry[t].logprob for entry, t in zip(answer.logprobs, answer.token_ids)]
            mine = values[len(out.prompt_token_ids) - 1 :].tolist()
            total += len(drawn)
            different += sum(a != b for a, b in zip(drawn, mine, strict=True))
    return total, different


def _plain(model: Decoder, tokens: list[int]) -> torch.Tensor:
    logits = model(torch.tensor([tokens]))[0].double().log_softmax(-1)
    return logits[:-1].gather(1, torch.tensor(tokens[1:]).unsqueeze(1)).squeeze(1).float()


def main() -> int:
    """Prints the counts; the exit status is 1 where a token differs."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tokens", type=int, nargs="?", default=100_000)
    parser.add_argument("--plain", action="store_true", help="read by the model's own forward")
    parser.add_argument("--quantization", choices=BITS, help="layers in few bits, with an adapter")
    parser.add_argument("--ranks", type=int, default=1, help="of the engine")
    options = parser.parse_args()
    total = different = seed = 0
    while total < options.tokens:
        some, wrong = round_of(seed, 24, options.plain, options.quantization, options.ranks)
        total, different, seed = total + some, different + wrong, seed + 1
    print(f"{different} of {total} sampled tokens differ, by {seed} engines")
    return int(different > 0)


if __name__ == "__main__":
    sys.exit(main())
