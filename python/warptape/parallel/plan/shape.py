"""What of a model decides memory and time: the products of a layer, attention, the vocabulary.

Shapes: L layers, C width, F inner width, H heads, K key heads, D head size, V vocabulary, E experts.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType
from typing import Any

from ...models import DecoderConfig
from .hardware import PlanError, read_file

COLUMN, ROW, WHOLE = "column", "row", "whole"


@dataclass(frozen=True)
class Product:
    """A weight [fan_out, fan_in] of a layer and the product with it.

    Args:
        split: how tensor parallelism splits it: "column" by outputs, "row" by inputs, "whole" not at all.
        layers: in how many layers it occurs.
        expert: whether each expert has one, of which a token passes `top_k`.
    """

    name: str
    fan_in: int
    fan_out: int
    split: str
    layers: int
    bias: bool = False
    expert: bool = False

    @property
    def parameters(self) -> int:
        """Of one, in one layer."""
        return self.fan_in * self.fan_out + (self.fan_out if self.bias else 0)


@dataclass(frozen=True)
class ModelShape:
    """A transformer as its planner sees it. `products` are those of all kinds of layers.

    Args:
        qk_dim, v_dim: of one head's queries and keys, and of its values.
        inner: elements of a token that an MLP's activation works on, a mean over the layers; experts' and
            shared ones' count as often as a token passes them.
        gated: whether these are multiplied by as many others.
        norm_parameters: of one layer's norms; end_norm: of the last one. positions: learned ones.
        experts, top_k: 0 and 0 without; expert_layers: how many layers have them.
        latent: elements of a token from which latent attention makes its heads; 0: other attention.
        causal: whether half of the attention's products need not be made.
    """

    name: str
    layers: int
    width: int
    vocabulary: int
    heads: int
    kv_heads: int
    qk_dim: int
    v_dim: int
    inner: float
    products: tuple[Product, ...]
    gated: bool = False
    norm_parameters: int = 0
    positions: int = 0
    tied: bool = False
    experts: int = 0
    top_k: int = 0
    expert_layers: int = 0
    rotary: bool = False
    causal: bool = True
    sequence: int = 2048
    latent: int = 0
    end_norm: int = 0

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return (
            self.layer_parameters + self.expert_parameters + self.embedding_parameters + self.end_parameters
        )

    @property
    def layer_parameters(self) -> int:
        """Of all layers, without experts'."""
        products = sum(p.parameters * p.layers for p in self.products if not p.expert)
        return products + self.norm_parameters * self.layers

    @property
    def expert_parameters(self) -> int:
        """Of all experts in all layers."""
        return sum(p.parameters * p.layers * self.experts for p in self.products if p.expert)

    @property
    def embedding_parameters(self) -> int:
        """Of the token and position embeddings."""
        return (self.vocabulary + self.positions) * self.width

    @property
    def end_parameters(self) -> int:
        """Of the last norm and the head."""
        return self.end_norm + (0 if self.tied else self.vocabulary * self.width)

    @property
    def active_parameters(self) -> int:
        """Those that a token's products use: without embeddings, with `top_k` of the experts."""
        layers = sum(p.fan_in * p.fan_out * p.layers * (self.top_k if p.expert else 1) for p in self.products)
        return layers + self.vocabulary * self.width

    def flops_per_token(self, sequence: int, causal: bool | None = None) -> float:
        """Of forward and backward, products and attention: 6 a parameter used, and 6 for each pair of a
        token and a key it sees and each element of a head. Not causal: every pair counts, as in
        Megatron-LM's and MT-NLG's papers; causal: half of them.
        """
        seen = sequence / 2 if (self.causal if causal is None else causal) else sequence
        attention = 6 * self.layers * self.heads * (self.qk_dim + self.v_dim) * seen
        return 6 * self.active_parameters + attention


def from_config(config: DecoderConfig, name: str = "") -> ModelShape:
    """The shape of a decoder as `warptape.models` has it.

    Args:
        config: of a model.
        name: in tables.
    """
    c = config
    C, L, d = c.hidden_size, c.num_hidden_layers, c.head_dim
    qkv = (c.num_attention_heads + 2 * c.num_key_value_heads) * d
    up = c.intermediate_size * (2 if c.gated else 1)
    products = (
        Product("qkv", C, qkv, COLUMN, L, c.qkv_bias),
        Product("out", c.num_attention_heads * d, C, ROW, L, c.o_bias),
        Product("up", C, up, COLUMN, L, c.mlp_bias),
        Product("down", c.intermediate_size, C, ROW, L, c.mlp_bias),
    )
    learned = c.positions == "learned"
    norm = C * (2 if c.norm == "layer_norm" else 1)
    per_head = 1 if c.qk_norm != "all" else (c.num_attention_heads + c.num_key_value_heads) / 2
    return ModelShape(
        name or c.architecture,
        L,
        C,
        c.vocab_size,
        c.num_attention_heads,
        c.num_key_value_heads,
        d,
        d,
        c.intermediate_size,
        products,
        c.gated,
        norm_parameters=norm * (4 if c.norm_placement == "around" else 2)
        + (int(2 * d * per_head) if c.qk_norm else 0),
        positions=c.max_position_embeddings if learned else 0,
        tied=c.tie_word_embeddings,
        rotary=not learned,
        sequence=c.max_position_embeddings,
        end_norm=norm,
    )


def gpt(
    name: str, layers: int, width: int, heads: int, vocabulary: int = 51200, sequence: int = 2048
) -> ModelShape:
    """A model of GPT-3's shape.

    Args:
        name: in tables.
        layers, width, heads: sizes.
        vocabulary, sequence: tokens in all, and of the longest input.
    """
    config = DecoderConfig(
        architecture="gpt2",
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        max_position_embeddings=sequence,
        norm="layer_norm",
        positions="learned",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        hidden_act="gelu_new",
        gated=False,
        tie_word_embeddings=True,
    )
    return from_config(config, name)


def llama(
    name: str, layers: int, width: int, inner: int, heads: int, kv_heads: int, vocabulary: int, sequence: int
) -> ModelShape:
    """A model of Llama's shape.

    Args:
        name: in tables.
        layers, width, inner: sizes; `inner` is the feed-forward's.
        heads, kv_heads: of queries, and of keys and values.
        vocabulary, sequence: tokens in all, and of the longest input.
    """
    config = DecoderConfig(
        vocab_size=vocabulary,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        num_key_value_heads=kv_heads,
        intermediate_size=inner,
        max_position_embeddings=sequence,
    )
    return from_config(config, name)


def mixture(data: Mapping[str, Any], name: str) -> ModelShape:
    """A mixture of experts from the keys of its config.json: DeepSeek-V3's, with latent attention, or
    Mixtral's and Qwen's, without."""
    C, L, V = data["hidden_size"], data["num_hidden_layers"], data["vocab_size"]
    H, F = data["num_attention_heads"], data["intermediate_size"]
    counts = [data[key] for key in ("n_routed_experts", "num_experts", "num_local_experts") if key in data]
    if not counts:
        raise KeyError("n_routed_experts")
    E = int(counts[0])
    each = data.get("moe_intermediate_size", F)
    dense = data.get("first_k_dense_replace", 0)
    shared = data.get("n_shared_experts", 0) * each
    M, k = L - dense, data["num_experts_per_tok"]
    if "kv_lora_rank" in data:
        rank, rope = int(data["kv_lora_rank"]), int(data["qk_rope_head_dim"])
        qk, v = data["qk_nope_head_dim"] + rope, data["v_head_dim"]
        K, q_rank = H, int(data.get("q_lora_rank") or C)
        latent = q_rank + rank + rope
        attention = [
            Product("q_down", C, q_rank, WHOLE, L) if q_rank != C else None,
            Product("q_up", q_rank, H * qk, COLUMN, L),
            Product("kv_down", C, rank + rope, WHOLE, L),
            Product("kv_up", rank, H * (qk - rope + v), COLUMN, L),
        ]
    else:
        K, latent = data.get("num_key_value_heads", H), 0
        qk = v = data.get("head_dim") or C // H
        attention = [Product("qkv", C, (H + 2 * K) * qk, COLUMN, L)]
    mlps = [
        *([Product("up", C, 2 * F, COLUMN, dense), Product("down", F, C, ROW, dense)] if dense else []),
        *(
            [Product("shared_up", C, 2 * shared, COLUMN, M), Product("shared_down", shared, C, ROW, M)]
            if shared
            else []
        ),
        Product("router", C, E, WHOLE, M),
        Product("expert_up", C, 2 * each, COLUMN, M, expert=True),
        Product("expert_down", each, C, ROW, M, expert=True),
    ]
    products = [p for p in (*attention, Product("out", H * v, C, ROW, L), *mlps) if p is not None]
    inner = (dense * F + M * (shared + k * each)) / L
    return ModelShape(
        name,
        L,
        C,
        V,
        H,
        K,
        qk,
        v,
        inner,
        tuple(products),
        True,
        2 * C,
        0,
        data.get("tie_word_embeddings", False),
        E,
        k,
        M,
        True,
        sequence=data.get("max_position_embeddings", 4096),
        latent=latent,
        end_norm=C,
    )


_DEEPSEEK_V3 = {
    "hidden_size": 7168,
    "num_hidden_layers": 61,
    "vocab_size": 129280,
    "num_attention_heads": 128,
    "intermediate_size": 18432,
    "n_routed_experts": 256,
    "n_shared_experts": 1,
    "num_experts_per_tok": 8,
    "moe_intermediate_size": 2048,
    "first_k_dense_replace": 3,
    "q_lora_rank": 1536,
    "kv_lora_rank": 512,
    "qk_nope_head_dim": 128,
    "qk_rope_head_dim": 64,
    "v_head_dim": 128,
    "max_position_embeddings": 4096,
}
MODELS: dict[str, Callable[[], ModelShape]] = {
    "gpt2-124m": lambda: gpt("gpt2-124m", 12, 768, 12, 50257, 1024),
    "gpt2-1.5b": lambda: gpt("gpt2-1.5b", 48, 1600, 25, 50257, 1024),
    "gpt3-1.3b": lambda: gpt("gpt3-1.3b", 24, 2048, 16),
    "gpt3-6.7b": lambda: gpt("gpt3-6.7b", 32, 4096, 32),
    "gpt3-13b": lambda: gpt("gpt3-13b", 40, 5120, 40),
    "gpt3-175b": lambda: gpt("gpt3-175b", 96, 12288, 96),
    "mt-nlg-530b": lambda: gpt("mt-nlg-530b", 105, 20480, 128),
    "gpt-1t": lambda: gpt("gpt-1t", 128, 25600, 160),
    "llama3-8b": lambda: llama("llama3-8b", 32, 4096, 14336, 32, 8, 128256, 8192),
    "llama3-70b": lambda: llama("llama3-70b", 80, 8192, 28672, 64, 8, 128256, 8192),
    "llama3-405b": lambda: llama("llama3-405b", 126, 16384, 53248, 128, 8, 128256, 8192),
    "deepseek-v3": lambda: mixture(_DEEPSEEK_V3, "deepseek-v3"),
}


def read_model(what: Any) -> ModelShape:
    """A shape by its name; from a config.json of Hugging Face's; from script.py:model, a DecoderConfig, a
    module with one or a ModelShape there, or a function that gives one; or from such an object.

    Raises: PlanError that says what was expected.
    """
    if isinstance(what, ModelShape):
        return what
    if isinstance(what, DecoderConfig):
        return from_config(what)
    if isinstance(getattr(what, "config", None), DecoderConfig):
        return from_config(what.config)
    if not isinstance(what, str):
        raise PlanError(
            "model: expected a name, a config.json, script.py:model, a DecoderConfig, a model with one as "
            f"`config`, or a ModelShape, got {type(what).__name__}"
        )
    if what in MODELS:
        return MODELS[what]()
    if what.endswith(".json"):
        return _from_hf(read_file(what), what)
    path, colon, name = what.rpartition(":")
    if colon and path.endswith(".py"):
        return read_model(_from_script(path, name))
    raise PlanError(
        f"unknown model {what!r}: expected one of {', '.join(MODELS)}, a config.json, or script.py:model"
    )


def _from_hf(data: Mapping[str, Any], path: str) -> ModelShape:
    name = Path(path).parent.name or Path(path).stem
    try:
        if "num_experts_per_tok" in data:
            return mixture(data, name)
        return from_config(DecoderConfig.from_hf(data), name)
    except KeyError as error:
        raise PlanError(f"{path}: {error.args[0]} is missing") from None
    except (ValueError, TypeError) as error:
        raise PlanError(f"{path}: {error}") from None


def _from_script(path: str, name: str) -> Any:
    if not Path(path).is_file():
        raise PlanError(f"model: there is no file {path}")
    spec = importlib.util.spec_from_file_location("_planned", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.path.insert(0, str(Path(path).resolve().parent))
    try:
        spec.loader.exec_module(module)
        value = getattr(module, name, None)
        # Not any callable: a model that is made already is one.
        model = value() if isinstance(value, (FunctionType, type)) else value
    except Exception as error:
        raise PlanError(f"{path}: {type(error).__name__}: {error}") from error
    finally:
        sys.path.pop(0)
    if value is None:
        raise PlanError(f"{path}: defines no {name}")
    return model
