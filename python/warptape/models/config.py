"""Configs of models as data, with Hugging Face's names, read from and written to its dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from . import _architectures
from .rotary import RotaryScaling

# Hugging Face's names; gelu_new and gelu_pytorch_tanh are both the tanh approximation.
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu")
FULL, SLIDING = "full_attention", "sliding_attention"
Token = int | list[int] | tuple[int, ...] | None


def _is_whole(value: Any) -> bool:
    return type(value) is int and 0 < value < 1 << 40


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_token(value: Any) -> bool:
    many = value if isinstance(value, (list, tuple)) else [value]
    return all(type(each) is int and abs(each) < 1 << 40 for each in many)


# What a field may be, by its annotation.
_KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {
    "int": (_is_whole, "a whole number above 0"),
    "float": (_is_number, "a finite number, not negative"),
    "bool": (lambda value: type(value) is bool, "True or False"),
    "Token": (_is_token, "a token's number, or several"),
}


@dataclass(frozen=True, kw_only=True)
class Config:
    """What configs have in common: checks of their fields, and Hugging Face's form."""

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    architecture: str
    hidden_act: str
    intermediate_size: int = None  # type: ignore[assignment]  # set below, as are others that may be None

    architectures: ClassVar[Mapping[str, _architectures.Architecture]]

    def __post_init__(self) -> None:
        for each in fields(self):
            value = getattr(self, each.name)
            kind = str(each.type).removesuffix(" | None")
            fits, what = _KINDS.get(kind, (None, ""))
            if fits and not fits(value) and (value is not None or each.default is not None):
                self._refuse(each.name, what)
            if isinstance(value, list):
                self._set(each.name, tuple(value))
            if each.name.endswith("dropout") and value > 1:
                self._refuse(each.name, "a probability")
        if self.num_hidden_layers > _architectures.MOST_LAYERS:
            self._refuse("num_hidden_layers", f"at most {_architectures.MOST_LAYERS}")
        self._one_of("architecture", tuple(self.architectures))
        self._one_of("hidden_act", ACTIVATIONS)
        self._default("intermediate_size", 4 * self.hidden_size)

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)  # the class is frozen once this is made

    def _default(self, name: str, value: Any) -> None:
        if getattr(self, name) is None:
            self._set(name, value)

    def _refuse(self, name: str, expected: str) -> None:
        got = getattr(self, name)
        raise ValueError(f"{type(self).__name__}: expected {name} to be {expected}, got {got!r:.80}")

    def _one_of(self, name: str, values: tuple[str, ...]) -> None:
        if getattr(self, name) not in values:
            self._refuse(name, "one of " + ", ".join(values))

    @classmethod
    def from_hf(cls, data: Mapping[str, Any]) -> Any:
        """The config that the dict of a `config.json` describes.

        Keys that are absent mean what they mean to transformers, but sizes must be there. Keys that change
        no result (`use_cache`, `transformers_version` ..) are passed over.

        Raises: ValueError for an unknown `model_type`, a missing size, and options that are not supported;
        it names them and lists those that are.
        """
        return cls(**_architectures.read(cls.__name__, cls.architectures, data))

    def to_hf(self) -> dict[str, Any]:
        """The dict of a `config.json` that transformers reads as the same model.

        Raises: ValueError for settings that the architecture cannot have; it names them.
        """
        data = _architectures.write(self.architectures[self.architecture], self)
        back = type(self).from_hf(data)
        names = [f.name for f in fields(self) if f.compare]
        lost = [name for name in names if getattr(back, name) != getattr(self, name)]
        if lost:
            settings = ", ".join(f"{name}={getattr(self, name)!r}" for name in lost)
            raise ValueError(f"{type(self).__name__}: a {self.architecture} model cannot have {settings}")
        return data


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """A decoder as data: pre-norm layers of causal attention and an MLP. The defaults are Llama's.

    Args:
        architecture: "llama" (2 and 3), "mistral", "qwen2", "qwen3" or "gpt2": whose names a folder has.
        intermediate_size: inner width of the MLP; None: four times hidden_size.
        num_key_value_heads: heads of keys and values, a divisor of num_attention_heads; None: as many.
        head_dim: None: hidden_size / num_attention_heads.
        max_position_embeddings: the context, in tokens.
        norm: "rms_norm" or "layer_norm"; norm_eps is added to the mean square, or to the variance.
        positions: "rotary", over whole heads, with base rope_theta and rope_scaling, or "learned".
        qkv_bias, o_bias, mlp_bias: whether queries, keys and values, the output of attention, and the MLP
            have biases.
        qk_norm: whether each head's queries and keys pass an RMSNorm.
        hidden_act: one of ACTIVATIONS; gated: act(gate(x)) * up(x) (with silu: SwiGLU), else act(up(x)).
        sliding_window: how many of the last keys, its own among them, a query sees; None: all.
        layer_types: for each layer "sliding_attention" or "full_attention"; None: all slide if there is a
            sliding_window.
        tie_word_embeddings: whether the head has the token embedding's weight.
        embedding_dropout, residual_dropout, attention_dropout: probabilities, in training.
        initializer_range: standard deviation of a new model's matrices.
        bos_token_id, eos_token_id, pad_token_id: kept for whoever generates.

    Raises: ValueError that names the field and says what it may be.
    """

    max_position_embeddings: int
    architecture: str = "llama"
    num_key_value_heads: int = None  # type: ignore[assignment]
    head_dim: int = None  # type: ignore[assignment]
    norm: str = "rms_norm"
    norm_eps: float = 1e-6
    positions: str = "rotary"
    rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    hidden_act: str = "silu"
    gated: bool = True
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    tie_word_embeddings: bool = False
    embedding_dropout: float = 0.0
    residual_dropout: float = 0.0
    attention_dropout: float = 0.0
    initializer_range: float = 0.02
    bos_token_id: Token = None
    eos_token_id: Token = None
    pad_token_id: Token = None

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = _architectures.DECODERS

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("norm", ("rms_norm", "layer_norm"))
        self._one_of("positions", ("rotary", "learned"))
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")
        self._default("head_dim", self.hidden_size // self.num_attention_heads)
        self._default("num_key_value_heads", self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            self._refuse(
                "num_key_value_heads", f"a divisor of num_attention_heads, {self.num_attention_heads}"
            )
        if self.positions == "rotary" and self.head_dim % 2:
            self._refuse("head_dim", "even, for rotary positions")
        if self.rope_theta <= 0:
            self._refuse("rope_theta", "above 0")
        if self.layer_types is not None:
            self._check_layer_types(self.layer_types)

    def _check_layer_types(self, types: Any) -> None:
        good = isinstance(types, tuple) and all(each in (FULL, SLIDING) for each in types)
        if not good or len(types) != self.num_hidden_layers:
            self._refuse("layer_types", f"{FULL} or {SLIDING} for each of {self.num_hidden_layers} layers")
        if SLIDING not in types:
            self._set("sliding_window", None)
        elif self.sliding_window is None:
            self._refuse("sliding_window", f"a number of keys, as there are layers of {SLIDING}")
        if len(set(types)) == 1:
            self._set("layer_types", None)  # one way to say it, so that equal configs compare equal

    def layer_type(self, layer: int) -> str:
        """Whether a layer's attention slides."""
        if self.layer_types is not None:
            return self.layer_types[layer]
        return FULL if self.sliding_window is None else SLIDING


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """An encoder as data: BERT's embeddings, post-norm layers of attention over all tokens, and a pooler.

    Args:
        max_position_embeddings: how many positions are learned, in tokens.
        type_vocab_size: number of token types.
        hidden_act: one of ACTIVATIONS.
        norm_eps: added to the variance by LayerNorm.
        residual_dropout: of embeddings and of what is added to them; attention_dropout: of the attention.
        pooler: whether the first token's output passes a linear layer and tanh. A folder's tensors say it.

    Raises: ValueError that names the field and says what it may be.
    """

    max_position_embeddings: int = 512
    architecture: str = "bert"
    type_vocab_size: int = 2
    hidden_act: str = "gelu"
    norm_eps: float = 1e-12
    residual_dropout: float = 0.1
    attention_dropout: float = 0.1
    initializer_range: float = 0.02
    pad_token_id: Token = None
    pooler: bool = field(default=True, compare=False)

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = _architectures.ENCODERS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")
