"""What benchmarks/inference.py runs in each process: the engine, transformers, llama.cpp or vLLM.

Models have real shapes and random weights: speed does not depend on their values.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from _inference_peers import LlamaCpp, Vllm

TINYLLAMA = {  # TinyLlama-1.1B's shape
    "vocab_size": 32000,
    "hidden_size": 2048,
    "intermediate_size": 5632,
    "num_hidden_layers": 22,
    "num_attention_heads": 32,
    "num_key_value_heads": 4,
    "max_position_embeddings": 8192,
}
LLAMA_8B = {  # Llama-3-8B's
    "vocab_size": 128256,
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 8192,
}
PROMPT, DECODED = 64, 32


def prompt(tokens: int, first: int = 0) -> list[int]:
    """So many tokens."""
    return [(first + 7 * i) % 30000 for i in range(tokens)]


class Engine:
    """The engine on a model that `build` makes."""

    def __init__(self, build: Any, **limits: Any) -> None:
        import warptape as wt
        from warptape.inference import LLM

        self.lib = wt
        model = build(wt)
        self.engine = LLM(model, max_num_seqs=16, kv_cache_memory_bytes=1 << 30, **limits).llm_engine
        self.bytes = weight_bytes(model)
        self.names = 0

    def add(self, tokens: list[int], count: int) -> str:
        """Queues a request; its name."""
        from warptape.inference import SamplingParams

        self.names += 1
        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True)
        self.engine.add_request(str(self.names), tokens, params)
        return str(self.names)

    def steps(self) -> list[float]:
        """Seconds of each step until nothing is left."""
        out = []
        while self.engine.has_unfinished_requests():
            start = time.perf_counter()
            self.engine.step()
            out.append(time.perf_counter() - start)
        return out

    def decode(self) -> list[float]:
        """Seconds of steps of one request."""
        self.add(prompt(PROMPT, self.names), DECODED)
        return self.steps()[1:]

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of the first token after a prompt."""
        self.add(prompt(tokens, self.names), 1)
        return [sum(self.steps())]

    def clients(self, count: int, tokens: int) -> list[float]:
        """Seconds of so many requests of 128 tokens that generate so many."""
        for i in range(count):
            self.add(prompt(128, 100 * i + self.names), tokens)
        return [sum(self.steps())]

    def long_prompt(self) -> list[float]:
        """Seconds between the tokens of a request during which a prompt of 4,096 tokens comes in."""
        generating = self.add(prompt(PROMPT, self.names), 80)
        for _ in range(16):
            self.engine.step()
        entering = self.add(prompt(4096, self.names), 1)
        out: list[float] = []
        while True:
            start = time.perf_counter()
            outputs = self.engine.step()
            out.append(time.perf_counter() - start)
            if any(each.request_id == generating and each.finished for each in outputs):
                break
        self.engine.abort_request(entering)
        return out

    def bandwidth(self) -> float:
        """Bytes a second that a sum over 1 GiB reads: the best of five."""
        x = self.lib.ones(1 << 28)
        best = 0.0
        for _ in range(5):
            start = time.perf_counter()
            x.sum()
            best = max(best, 4 * x.numel() / (time.perf_counter() - start))
        return best


def weight_bytes(model: Any) -> int:
    """Bytes of the packed weights with their scales, which each step reads."""
    from warptape.inference import PackedLinear, QuantLinear

    layers = [m for m in model.modules() if isinstance(m, (PackedLinear, QuantLinear))]
    return sum(b.numel() * b.element_size() for m in layers for b in m.buffers())


def dense(shape: dict[str, int], dtype: str) -> Any:
    """A decoder of that shape."""

    def build(wt: Any) -> Any:
        from warptape.models import Decoder, DecoderConfig

        model = Decoder(DecoderConfig(**shape), dtype=getattr(wt, dtype), device="meta")
        model.to_empty(device="cpu")
        with wt.no_grad():
            for parameter in model.parameters():
                fill(wt, parameter)
        return model.eval()

    return build


def fill(wt: Any, t: Any) -> None:
    """Random numbers of ±0.02; one draw is repeated, which is faster than drawing gigabytes."""
    if t.ndim == 1:
        t.fill_(1.0)
        return
    row = ((wt.rand(t.shape[-1] + 1024) - 0.5) * 0.04).to(t.dtype)
    for i in range(t.shape[0]):
        start = i * 37 % 1024
        t[i] = row[start : start + t.shape[-1]]


def quantized(shape: dict[str, int], bits: int, group: int, symmetric: bool | None = None) -> Any:
    """A decoder of that shape in bfloat16, all its layers quantised; never there unquantised."""

    def build(wt: Any) -> Any:
        from warptape.inference import QuantLinear
        from warptape.models import Decoder, DecoderConfig

        model = Decoder(DecoderConfig(**shape), dtype=wt.bfloat16, device="meta")
        for path, module in [*model.named_modules()]:
            if type(module) is wt.nn.Linear:
                parent, _, last = path.rpartition(".")
                setattr(model.get_submodule(parent), last, QuantLinear(module, bits, group, symmetric))
        model.to_empty(device="cpu")
        with wt.no_grad():
            for parameter in model.parameters():
                fill(wt, parameter)
            for name, buffer in model.named_buffers():
                if name.endswith("packed"):
                    buffer.random_(0, 255)
                elif name.endswith(("scales", "minima")):
                    buffer.fill_(0.001 if name.endswith("scales") else -0.008)
        return model.eval()

    return build


class Transformers:
    """transformers' LlamaForCausalLM on PyTorch."""

    def __init__(self, shape: dict[str, int], dtype: str) -> None:
        import torch
        import transformers

        torch.set_grad_enabled(False)
        self.torch = torch
        config = transformers.LlamaConfig(**shape)
        with torch.device("meta"):
            model = transformers.LlamaForCausalLM(config)
        self.model = model.to(getattr(torch, dtype)).to_empty(device="cpu").eval()
        for parameter in self.model.parameters():
            fill(torch, parameter)
        rotary = self.model.model.rotary_emb
        self.model.model.rotary_emb = type(rotary)(config)

    def decode(self) -> list[float]:
        """Seconds of steps of one request."""
        return self._generate([prompt(PROMPT)], DECODED)[1:]

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of the first token after a prompt."""
        return self._generate([prompt(tokens)], 1)

    def clients(self, count: int, tokens: int) -> list[float]:
        """Seconds of so many requests of one length as one batch: what serves it best."""
        return [sum(self._generate([prompt(128, 100 * i) for i in range(count)], tokens))]

    def _generate(self, prompts: list[list[int]], count: int) -> list[float]:
        out, step, past = [], self.torch.tensor(prompts), None
        for _ in range(count):
            start = time.perf_counter()
            result = self.model(input_ids=step, past_key_values=past, use_cache=True, logits_to_keep=1)
            past, step = result.past_key_values, result.logits[:, -1:].argmax(-1)
            out.append(time.perf_counter() - start)
        return out


class Peer:
    """An engine of _inference_peers on the prompts of these rows."""

    def __init__(self, engine: LlamaCpp | Vllm) -> None:
        self.engine, self.asked = engine, 0

    def _prompt(self, tokens: int, more: int = 0) -> list[int]:
        self.asked += 1
        return prompt(tokens, self.asked + more)

    def decode(self) -> list[float]:
        """Seconds of a token of one request."""
        return self.engine.decode(self._prompt(PROMPT), DECODED)

    def prefill(self, tokens: int) -> list[float]:
        """Seconds of the first token after a prompt."""
        return self.engine.prefill(self._prompt(tokens))

    def clients(self, count: int, tokens: int) -> list[float]:
        """Seconds of so many requests of 128 tokens that generate so many."""
        return self.engine.clients([self._prompt(128, 100 * i) for i in range(count)], tokens)


@dataclass(frozen=True)
class Row:
    """A model in a process; `result` of what `build` makes is one round: seconds by measurement."""

    name: str
    make: Callable[[], Any]
    measure: Callable[[Any], dict[str, list[float]]]
    peer: str = ""  # the library of another engine

    def build(self, lib: Any) -> Round:
        """The model, with a first pass behind it."""
        made = Round(self.make(), self.measure)
        made.subject.prefill(PROMPT)
        return made


class Round:
    """What the harness asks for its result."""

    def __init__(self, subject: Any, measure: Callable[[Any], dict[str, list[float]]]) -> None:
        self.subject, self.measure = subject, measure

    def result(self) -> dict[str, Any]:
        """One round."""
        out: dict[str, Any] = self.measure(self.subject)
        if isinstance(self.subject, Engine):
            out["bytes"], out["bandwidth"] = self.subject.bytes, self.subject.bandwidth()
        if isinstance(self.subject, Peer) and isinstance(self.subject.engine, LlamaCpp):
            out["note"] = self.subject.engine.note
        return out


def alone(subject: Any) -> dict[str, list[float]]:
    """Decoding and a prompt of 512 tokens."""
    return {"decode": subject.decode(), "prefill": subject.prefill(512)}


def all_of(subject: Any) -> dict[str, list[float]]:
    """The same, and 16 clients."""
    return {**alone(subject), "clients": subject.clients(16, 32)}


def served(subject: Any) -> dict[str, list[float]]:
    """Decoding, and 16 clients that generate 128 tokens."""
    return {"decode": subject.decode(), "clients": subject.clients(16, 128), "client_tokens": [128]}


def decoding(subject: Any) -> dict[str, list[float]]:
    """Decoding alone."""
    return {"decode": subject.decode()}


def waits(subject: Any) -> dict[str, list[float]]:
    """Steps while a long prompt comes in, and without it."""
    return {"decode": subject.decode(), "long prompt": subject.long_prompt()}


ROWS = [
    Row("bf16", lambda: Engine(dense(TINYLLAMA, "bfloat16")), all_of),
    Row("bf16, invariant=False", lambda: Engine(dense(TINYLLAMA, "bfloat16"), invariant=False), all_of),
    Row("transformers", lambda: Transformers(TINYLLAMA, "bfloat16"), all_of),
    Row(
        "bf16, max_prefill_slowdown=1.4",
        lambda: Engine(dense(TINYLLAMA, "bfloat16"), max_prefill_slowdown=1.4),
        waits,
    ),
    Row("1.1B bf16", lambda: Engine(dense(TINYLLAMA, "bfloat16")), decoding),
    Row("vLLM 1.1B bf16", lambda: Peer(Vllm(TINYLLAMA, "bfloat16")), decoding, "vllm"),
    # Codes about zero, as Q4_0 has them.
    Row("1.1B int4", lambda: Engine(quantized(TINYLLAMA, 4, 32, True)), alone),
    Row("llama.cpp 1.1B Q4_0", lambda: Peer(LlamaCpp(TINYLLAMA, "Q4_0", 1)), alone, "xllamacpp"),
    Row("1.1B int8", lambda: Engine(quantized(TINYLLAMA, 8, 0)), alone),
    Row("llama.cpp 1.1B Q8_0", lambda: Peer(LlamaCpp(TINYLLAMA, "Q8_0", 1)), alone, "xllamacpp"),
    Row("1.1B int4, clients", lambda: Engine(quantized(TINYLLAMA, 4, 32, True)), served),
    Row("llama.cpp 1.1B Q4_0, clients", lambda: Peer(LlamaCpp(TINYLLAMA, "Q4_0", 16)), served, "xllamacpp"),
    Row("8B int4 symmetric", lambda: Engine(quantized(LLAMA_8B, 4, 32, True)), alone),
    Row("llama.cpp 8B Q4_0", lambda: Peer(LlamaCpp(LLAMA_8B, "Q4_0", 1)), alone, "xllamacpp"),
    Row("llama.cpp 8B Q8_0", lambda: Peer(LlamaCpp(LLAMA_8B, "Q8_0", 1)), alone, "xllamacpp"),
    Row("8B int4", lambda: Engine(quantized(LLAMA_8B, 4, 32)), alone),
    Row("8B int8", lambda: Engine(quantized(LLAMA_8B, 8, 0)), alone),
]
