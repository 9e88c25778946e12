"""Decoders in GGUF files: a source of their weights, and their config."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from warptape import core as wt

from ..core import Tensor
from ..distributed.checkpoint import NameMap
from ._sources import Codes, Coding
from .config import DecoderConfig
from .gguf import GGUFFile
from .gguf_families import FAMILIES, Family, names_of, ordered, yarn_of
from .rotary import Rotary, RotaryScaling

_KEYS = {
    "hidden_size": "embedding_length",
    "intermediate_size": "feed_forward_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "max_position_embeddings": "context_length",
}
_OPTIONAL = {
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "rope_theta": "rope.freq_base",
}
_LONG, _SHORT = "rope_factors_long.weight", "rope_factors_short.weight"


# Tokens that end a turn in llama.cpp's eyes, whatever the file says of them (src/llama-vocab.cpp).
ENDS = frozenset((
    "<|eot_id|>", "<|eom_id|>", "<|im_end|>", "<|end|>", "<end_of_turn>", "<|endoftext|>", "<|end_of_text|>",
    "<EOT>", "_<EOT>", "[EOT]", "< EOT >", "<｜end▁of▁sentence｜>", "<end_of_utterance>",
))  # fmt: skip
_MARKS = (3, 4)  # types of tokens: control, user-defined


class GGUFDecoder(GGUFFile):
    """A file with a decoder of one of the architectures in `gguf_families`: a source of its weights.

    Attributes:
        config: what its metadata say.
        dtype: float16 or bfloat16 where all its matrices are, else float32.
        names: of its tensors.

    Raises: CheckpointException as a GGUFFile; ValueError for other architectures, and what they lack.
    """

    names: NameMap | None

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__(path)
        self._made: dict[str, tuple[str, ...]] = {}  # a tensor -> those of the file that it is made of
        kinds = {self.kinds[name] for name, shape in self.shapes.items() if len(shape) > 1}
        try:
            self._family, self.config = self._described()
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            raise ValueError(f"{self.path}: {error}") from error
        self.names = names_of(self.config, self._family)
        self._slice_experts()
        self._join_latents()
        for name, shape in self.shapes.items():  # a matrix of one row has lost a dim there
            if ".ffn_gate_inp_shexp." in name and len(shape) == 1:
                self.shapes[name] = (1, *shape)
        self.dtype = wt.float32
        if kinds in ({"F16"}, {"BF16"}):
            self.dtype = wt.float16 if kinds == {"F16"} else wt.bfloat16

    # ---- what the metadata say ----

    def _described(self) -> tuple[Family, DecoderConfig]:
        kind = self.metadata.get("general.architecture")
        if not isinstance(kind, str) or kind not in FAMILIES:
            raise ValueError(f"unknown architecture {kind!r:.40}; supported: {', '.join(FAMILIES)}")
        family = FAMILIES[kind]
        of = {key.removeprefix(f"{kind}."): _short(value) for key, value in self.metadata.items()}
        keys = {**_KEYS, "norm_eps": family.eps}
        absent = [f"{kind}.{key}" for key in keys.values() if key not in of]
        absent += [] if "token_embd.weight" in self.shapes else ["token_embd.weight"]
        if absent:
            raise ValueError(f"a file of a {kind} model needs {', '.join(absent)}")
        fields: dict[str, Any] = {name: of[key] for name, key in keys.items()}
        fields |= {name: of[key] for name, key in _OPTIONAL.items() if key in of}
        fields.setdefault("head_dim", fields["hidden_size"] // fields["num_attention_heads"])
        if fields["num_hidden_layers"] > 10_000:
            raise ValueError("expected num_hidden_layers to be at most 10000")
        fields |= {
            "architecture": family.architecture,
            "vocab_size": self.shapes["token_embd.weight"][0],
            "tie_word_embeddings": "output.weight" not in self.shapes,
            "qkv_bias": any(f"blk.0.attn_{part}.bias" in self.shapes for part in ("q", "qkv")),
            "o_bias": "blk.0.attn_output.bias" in self.shapes,
        }
        fields |= family.fields(of, fields)
        for which, key in (("bos", "bos"), ("pad", "padding")):
            fields[f"{which}_token_id"] = self.metadata.get(f"tokenizer.ggml.{key}_token_id")
        ends = self._end_tokens()
        fields["eos_token_id"] = ends if len(ends) > 1 else next(iter(ends), None)
        turned = of.get("rope.dimension_count", fields["head_dim"])
        if fields.get("latent") is None and turned != fields["head_dim"]:
            fields["rotary_factor"] = turned / fields["head_dim"]
        config = DecoderConfig(**fields)
        if "rotary_factor" in fields and config.architecture not in ("phi3", "glm4", "gpt_neox"):
            raise ValueError(
                f"rotary positions of {turned} of {config.head_dim} are not supported: only whole heads"
            )
        return family, replace(config, rope_scaling=self._scaling(config, of))

    def _end_tokens(self) -> list[int]:
        """What ends a text, a turn or a message, as llama.cpp has it: by their keys, and by their texts."""
        keys = [self.metadata.get(f"tokenizer.ggml.{which}_token_id") for which in ("eos", "eot", "eom")]
        tokens = self.metadata.get("tokenizer.ggml.tokens", [])
        types = self.metadata.get("tokenizer.ggml.token_type", [])
        named = [i for i, kind in enumerate(types[: len(tokens)]) if kind in _MARKS and tokens[i] in ENDS]
        return list(dict.fromkeys(i for i in [*keys, *named] if isinstance(i, int)))

    def _scaling(self, config: DecoderConfig, of: Mapping[str, Any]) -> RotaryScaling | None:
        kind = of.get("rope.scaling.type", "none")
        if kind not in ("none", "linear", "yarn", "longrope"):
            raise ValueError(f"rotary scaling {kind!r:.40} is not supported")
        most, original = config.max_position_embeddings, of.get("rope.scaling.original_context_length")
        if kind == "yarn":
            return yarn_of(of, most, truncate=config.architecture != "gpt_oss")
        if _LONG in self.shapes and _SHORT in self.shapes:
            return RotaryScaling(
                rope_type="longrope",
                factor=most / (original or most),
                original_max_position_embeddings=original or most,
                attention_factor=of.get("rope.scaling.attn_factor"),
                short_factor=self._numbers(_SHORT),
                long_factor=self._numbers(_LONG),
            )
        if "rope_freqs.weight" not in self.shapes:
            if kind == "none":
                return None
            factor: Any = of.get("rope.scaling.factor")
            return RotaryScaling(rope_type="linear", factor=factor)
        # Llama 3's: the file has what each pair's speed is divided by, but not of what numbers it was made.
        frequencies = super().read("rope_freqs.weight").float()
        scaling = RotaryScaling(rope_type="llama3", factor=round(float(frequencies.max()), 4))
        pair = (Rotary(config.head_dim, config.rope_theta, each).frequencies() for each in (None, scaling))
        plain, slowed = pair
        if frequencies.shape != plain.shape or not wt.allclose(plain / slowed, frequencies, rtol=1e-4):
            raise ValueError("rope_freqs.weight is not as Llama 3 has it, which alone is supported")
        return scaling

    def _numbers(self, name: str) -> tuple[float, ...]:
        return tuple(_short(float(each)) for each in super().read(name).float().flatten())

    # ---- tensors that are not as the file has them ----

    def _slice_experts(self) -> None:
        """Experts are slices; where the rows of gate and up alternate, a slice is made of both."""
        experts = self.config.experts
        stacked = [name for name in self.shapes if "_exps." in name and len(self.shapes[name]) > 1]
        for name in stacked if experts is not None else []:
            self.slice(name)
        if experts is None or not experts.alternating:
            return
        for gate in [name for name in self.shapes if ".ffn_gate_exps." in name]:
            up, both = (gate.replace("ffn_gate", name) for name in ("ffn_up", "ffn_gate_up"))
            if self.shapes.get(up) == self.shapes[gate]:
                rows, *rest = self.shapes[gate]
                self.shapes[both], self._made[both] = (2 * rows, *rest), (gate, up)

    def _join_latents(self) -> None:
        """Of a file that has the matrices of keys, turned, and of values apart, by heads."""
        for k in [name for name in self.shapes if name.endswith(".attn_k_b.weight")]:
            v, both = (k.replace("attn_k_b", name) for name in ("attn_v_b", "attn_kv_b"))
            if len(self.shapes[k]) == len(self.shapes.get(v, ())) == 3:
                (heads, rank, keys), (_, values, _) = self.shapes[k], self.shapes[v]
                self.shapes[both], self._made[both] = (heads * (keys + values), rank), (k, v)

    def read(self, name: str) -> Tensor:
        """A tensor, as our model has it.

        Args:
            name: in `shapes`.
        """
        if name in self._made:
            first, second = (super(GGUFDecoder, self).read(part) for part in self._made[name])
            if ".attn_kv_b." in name:
                return wt.cat([first.transpose(1, 2), second], 1).flatten(0, 1)
            return _alternating(first, second)
        x = ordered(self._family, self.config.head_dim, name, super().read(name))
        if self._family.plus_one and name.endswith("norm.weight"):
            x = x.float() - 1
        return x.reshape(self.shapes[name])

    def coding(self, name: str) -> Coding | None:
        """How a matrix is stored.

        Args:
            name: in `shapes`.
        """
        if name not in self._made:
            return super().coding(name)
        kinds = {super(GGUFDecoder, self).coding(part) for part in self._made[name]}
        return kinds.pop() if len(kinds) == 1 and ".attn_kv_b." not in name else None

    def codes(self, name: str) -> Codes:
        """A matrix in few bits, as our model has it.

        Args:
            name: in `shapes`.
        """
        names = self._made.get(name, (name,))
        each = [super(GGUFDecoder, self).codes(part) for part in names]

        def rows(of_part: list[Any]) -> Any:
            if of_part[0] is None:
                return None
            if len(of_part) == 2:
                return _alternating(*of_part)
            return ordered(self._family, self.config.head_dim, name, of_part[0])

        codes, scales, minima = (rows(list(parts)) for parts in zip(*(x[1:4] for x in each)))
        return each[0]._replace(codes=codes, scales=scales, minima=minima)


def _alternating(first: Tensor, second: Tensor) -> Tensor:
    """Row after row of two tensors of one shape."""
    return wt.stack([first, second], 1).flatten(0, 1)


def _short(value: Any) -> Any:
    """A float32 as the shortest decimal that it is: 1e-06, not 9.99999997e-07."""
    return float(str(np.float32(value))) if type(value) is float else value
