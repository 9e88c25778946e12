"""Configs of models as data, with Hugging Face's names, read from and written to its dicts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar

from ..distributed.checkpoint import NameMap
from . import _architectures
from ._architectures import FULL, SLIDING
from .parts import ExpertsConfig, LatentConfig
from .rotary import RotaryScaling

# Hugging Face's names; gelu_new and gelu_pytorch_tanh are both the tanh approximation.
ACTIVATIONS = ("silu", "gelu", "gelu_new", "gelu_pytorch_tanh", "relu", "quick_gelu")
Token = int | list[int] | tuple[int, ...] | None


def _is_whole(value: object) -> bool:
    return type(value) is int and 0 < value < 1 << 40


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and value >= 0


def _is_token(value: object) -> bool:
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
class ConfigBase:
    """What configs of all models and of their parts have in common: checks of their fields, and Hugging
    Face's form.

    Args:
        architecture: which names and parts.
    """

    architecture: str

    architectures: ClassVar[Mapping[str, _architectures.Architecture]]
    #: Fields whose values are configs of other models, in Hugging Face's form in the dict.
    joined: ClassVar[Mapping[str, type[ConfigBase]]] = {}

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
            if each.name == "num_hidden_layers" and value > _architectures.MOST_LAYERS:
                self._refuse(each.name, f"at most {_architectures.MOST_LAYERS}")
        self._one_of("architecture", tuple(self.architectures))

    def _set(self, name: str, value: object) -> None:
        object.__setattr__(self, name, value)  # the class is frozen once this is made

    def _default(self, name: str, value: object) -> None:
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
        values = _architectures.read(cls.__name__, cls.architectures, data)
        return cls(**values | {name: of.from_hf(values[name]) for name, of in cls.joined.items()})

    @property
    def names(self) -> NameMap:
        """Hugging Face's names of the model's tensors."""
        return self.architectures[self.architecture].names(self)

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
class Config(ConfigBase):
    """What configs of language models have in common.

    Args:
        vocab_size, hidden_size, num_hidden_layers, num_attention_heads: sizes.
        hidden_act: activation of the MLPs.
        intermediate_size: their width.
    """

    vocab_size: int
    hidden_size: int
    num_hidden_layers: int
    num_attention_heads: int
    hidden_act: str
    intermediate_size: int = None  # type: ignore[assignment]  # set below, as are others that may be None

    def __post_init__(self) -> None:
        super().__post_init__()
        self._one_of("hidden_act", ACTIVATIONS)
        self._default("intermediate_size", 4 * self.hidden_size)


@dataclass(frozen=True, kw_only=True)
class DecoderConfig(Config):
    """A decoder as data: pre-norm layers of causal attention and an MLP. The defaults are Llama's.

    Args:
        architecture: one of DecoderConfig.architectures, as "llama": whose names a folder has.
        intermediate_size: inner width of the MLP; None: four times hidden_size.
        num_key_value_heads: heads of keys and values, a divisor of num_attention_heads; None: as many.
        head_dim: None: hidden_size / num_attention_heads.
        max_position_embeddings: the context, in tokens.
        norm: "rms_norm", "rms_norm_plus_one", which multiplies by 1 + weight (Gemma), or "layer_norm";
            norm_eps is added to the mean square, or to the variance.
        norm_placement: whether attention and MLP have a norm "before" them, "after" them (OLMo 2), or both,
            "around" them (Gemma 3).
        parallel_residual: whether attention and MLP read the same input, and both are added to it.
        positions: "rotary", with base rope_theta and rope_scaling, or "learned".
        rotary_factor: the part of each head that is turned, at its front.
        rotary_interleaved: whether neighbours in a head turn together (GLM), not its two halves.
        local_rope_theta: the base in layers of sliding attention, which are not scaled; None: as in others.
        rotary_layers: for each layer whether it has rotary positions (SmolLM3); None: all.
        qkv_bias, o_bias, mlp_bias: whether queries, keys and values, the output of attention, and the MLP
            have biases.
        qkv_by_head: whether the rows of qkv_proj are sorted by heads (GPT-NeoX): of each the query, the key
            and the value.
        qk_norm: whether queries and keys pass an RMSNorm, over each head ("head"), or over all heads at once
            ("all": OLMo 2); False: neither. True means "head".
        embedding_scale, residual_scale, logit_scale: what token embeddings, the outputs of attention and MLP,
            and the logits are multiplied by.
        attention_scale: what scores are multiplied by; None: 1 / sqrt(head_dim).
        attention_softcap: c of c * tanh(score / c) (Gemma 2); None: there is none.
        attention_sinks: whether heads have scores with a weight and no value (gpt-oss).
        latent: of keys and values that are made of short vectors (DeepSeek); None: they are not. It says
            head_dim, qkv_bias means what makes these vectors, and o_bias is qkv_bias.
        experts: of MLPs that are mixtures of experts; None: none is.
        logit_softcap: c of c * tanh(logits / c); None: there is none.
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
    norm_placement: str = "before"
    parallel_residual: bool = False
    positions: str = "rotary"
    rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    rotary_factor: float = 1.0
    rotary_interleaved: bool = False
    local_rope_theta: float | None = None
    rotary_layers: tuple[bool, ...] | None = None
    qkv_bias: bool = False
    o_bias: bool = False
    mlp_bias: bool = False
    qkv_by_head: bool = False
    qk_norm: bool | str = False
    embedding_scale: float = 1.0
    residual_scale: float = 1.0
    attention_scale: float | None = None
    attention_softcap: float | None = None
    attention_sinks: bool = False
    latent: LatentConfig | None = None
    experts: ExpertsConfig | None = None
    logit_scale: float = 1.0
    logit_softcap: float | None = None
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
        self._one_of("norm", ("rms_norm", "rms_norm_plus_one", "layer_norm"))
        self._one_of("norm_placement", ("before", "after", "around"))
        self._one_of("positions", ("rotary", "learned"))
        if self.qk_norm not in (False, True, "head", "all"):
            self._refuse("qk_norm", 'False, "head" or "all"')
        if self.qk_norm is True:
            self._set("qk_norm", "head")
        if self.parallel_residual and self.norm_placement != "before":
            self._refuse("norm_placement", '"before", as its residual is parallel')
        if self.latent is not None:
            self._set("head_dim", self.latent.head_dim)
        if self.head_dim is None and self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")
        self._default("head_dim", self.hidden_size // self.num_attention_heads)
        self._default("num_key_value_heads", self.num_attention_heads)
        if self.num_attention_heads % self.num_key_value_heads:
            self._refuse(
                "num_key_value_heads", f"a divisor of num_attention_heads, {self.num_attention_heads}"
            )
        if self.qkv_by_head and self.num_key_value_heads != self.num_attention_heads:
            self._refuse("num_key_value_heads", "num_attention_heads, as qkv_proj is sorted by heads")
        if self.positions == "rotary" and (self.rotary_width < 2 or self.rotary_width % 2):
            self._refuse("head_dim", "even in the part that rotary positions turn")
        for name in (
            "rope_theta",
            "local_rope_theta",
            "logit_softcap",
            "attention_scale",
            "attention_softcap",
        ):
            if getattr(self, name) is not None and getattr(self, name) <= 0:
                self._refuse(name, "above 0")
        if self.rotary_layers is not None:
            self._check_rotary_layers(self.rotary_layers)
        if self.layer_types is not None:
            self._check_layer_types(self.layer_types)
        scaling = self.rope_scaling
        if scaling is not None and scaling.rope_type == "longrope":
            lengths = {len(x or ()) for x in (scaling.short_factor, scaling.long_factor)}
            if lengths != {self.rotary_width // 2}:
                self._refuse("rope_scaling", f"of {self.rotary_width // 2} short and long factors")
        experts = None if self.experts is None else self.experts.layers
        if experts is not None and len(experts) != self.num_hidden_layers:
            self._refuse("experts", f"of layers for each of {self.num_hidden_layers}")

    @property
    def rotary_width(self) -> int:
        """How many numbers of a head rotary positions turn."""
        if self.latent is not None:
            return self.latent.rotary_width
        return int(self.head_dim * self.rotary_factor)

    def _check_rotary_layers(self, layers: Any) -> None:
        good = isinstance(layers, tuple) and all(type(each) is bool for each in layers)
        if not good or len(layers) != self.num_hidden_layers:
            self._refuse("rotary_layers", f"True or False for each of {self.num_hidden_layers} layers")
        if all(layers):
            self._set("rotary_layers", None)

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

    def is_rotary(self, layer: int) -> bool:
        """Whether a layer has rotary positions.

        Args:
            layer: its number.
        """
        return self.positions == "rotary" and (self.rotary_layers is None or self.rotary_layers[layer])

    def layer_type(self, layer: int) -> str:
        """Whether a layer's attention slides.

        Args:
            layer: its number.
        """
        if self.layer_types is not None:
            return self.layer_types[layer]
        return FULL if self.sliding_window is None else SLIDING


@dataclass(frozen=True, kw_only=True)
class EncoderConfig(Config):
    """An encoder as data: embeddings, layers of attention over all tokens or those near by, and a pooler. The
    defaults are BERT's.

    Args:
        architecture: one of EncoderConfig.architectures, as "bert": whose names a folder has.
        max_position_embeddings: the context, in tokens; how many positions there are where they are learned.
        positions: "learned", beside token types, or "rotary", with base rope_theta and rope_scaling.
        local_rope_theta: the base in layers of sliding attention, which are not scaled.
        norm_placement: whether norms are "after" attention and MLP, or "before" them, with one at the end;
            the first layer's attention then has none, behind that of the embeddings (ModernBERT).
        norm_bias, qkv_bias, o_bias, mlp_bias: whether these have biases.
        gated: whether the MLP is gated.
        sliding_window: how far away a token may be that one sees, in layers of sliding attention.
        layer_types: "full_attention" or "sliding_attention" for each layer; None: all are full.
        positions_behind_padding: whether positions count from pad_token_id + 1, and padding has that of
            pad_token_id (RoBERTa).
        type_vocab_size: number of token types.
        hidden_act: one of ACTIVATIONS.
        norm_eps: added to the variance by LayerNorm.
        residual_dropout: of embeddings and of what is added to them; attention_dropout: of the attention.
        pooler: whether the first token's output passes a linear layer and tanh. A folder's tensors say it.
        task: "sequence" or "token", whose labels a head gives logits of; None: there is no head.
        labels: their names.
        problem_type: "regression", "single_label_classification" or "multi_label_classification"; None: it
            is not said.
        head_act: the activation behind a linear layer of the head, "tanh" or one of ACTIVATIONS; None: it has
            no such layer. head_bias: whether that has a bias, where norms come before (ModernBERT).
        head_pooling: of which state the head reads a text where there is no pooler: "cls", the first token's,
            or "mean".

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
    positions_behind_padding: bool = False
    positions: str = "learned"
    rope_theta: float = 160000.0
    local_rope_theta: float = 10000.0
    rope_scaling: RotaryScaling | None = None
    norm_placement: str = "after"
    norm_bias: bool = True
    qkv_bias: bool = True
    o_bias: bool = True
    mlp_bias: bool = True
    gated: bool = False
    sliding_window: int | None = None
    layer_types: tuple[str, ...] | None = None
    pooler: bool = field(default=True, compare=False)
    task: str | None = None
    labels: tuple[str, ...] = ()
    problem_type: str | None = None
    head_act: str | None = None
    head_bias: bool = False
    head_pooling: str = "cls"

    architectures: ClassVar[Mapping[str, _architectures.Architecture]] = _architectures.ENCODERS

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden_size % self.num_attention_heads:
            self._refuse("num_attention_heads", f"a divisor of hidden_size, {self.hidden_size}")
        padding = self.pad_token_id
        if self.positions_behind_padding and not (
            type(padding) is int and 0 <= padding < self.max_position_embeddings - 1
        ):
            self._refuse("pad_token_id", "a token's number, behind which there are positions")
        self._one_of("positions", ("learned", "rotary"))
        self._one_of("norm_placement", ("after", "before"))
        if self.positions == "rotary" and self.hidden_size // self.num_attention_heads % 2:
            self._refuse("hidden_size", "an even number for each head, as positions are rotary")
        types = self.layer_types
        if types is not None and not (
            len(types) == self.num_hidden_layers and all(each in (FULL, SLIDING) for each in types)
        ):
            self._refuse("layer_types", f"{FULL} or {SLIDING} for each of {self.num_hidden_layers} layers")
        if types is None or SLIDING not in types:  # one way to say it, so that equal configs compare equal
            self._set("layer_types", None)
            self._set("sliding_window", None)
        elif self.sliding_window is None:
            self._refuse("sliding_window", f"a number of tokens, as there are layers of {SLIDING}")
        if self.norm_placement == "before":
            self._set("pooler", False)
        self._check_head()

    def _check_head(self) -> None:
        if self.task is None:  # one way to say that there is none
            for name, value in (("labels", ()), ("problem_type", None), ("head_act", None)):
                self._set(name, value)
            self._set("head_bias", False)
            self._set("head_pooling", "cls")
            return
        self._one_of("task", ("sequence", "token"))
        self._one_of("head_pooling", ("cls", "mean"))
        if self.head_act is not None:
            self._one_of("head_act", ("tanh", *ACTIVATIONS))
        if self.problem_type is not None:
            kinds = ("single_label_classification", "multi_label_classification")
            self._one_of("problem_type", ("regression", *kinds))
        if not self.labels or not all(isinstance(each, str) for each in self.labels):
            self._refuse("labels", "names, at least one")

    @property
    def context(self) -> int:
        """The most tokens of a text."""
        if not self.positions_behind_padding:
            return self.max_position_embeddings
        return self.max_position_embeddings - self.pad_token_id - 1  # type: ignore[operator]
