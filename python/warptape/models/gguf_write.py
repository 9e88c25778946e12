"""What a GGUF file of a decoder says and has: the way back from `gguf_families` and `gguf_decoder`.

Keys are those of llama.cpp's conversion.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from warptape import core as wt

from ..core import Tensor
from .config import SLIDING, DecoderConfig
from .decoder import Decoder
from .gguf_families import FAMILIES, Family, names_of
from .rotary import Rotary

Metadata = dict[str, Any]


def family_of(config: DecoderConfig) -> tuple[str, Family]:
    """llama.cpp's name of an architecture, and its family. ValueError for those that have none.

    Args:
        config: of a decoder.
    """
    for name, family in FAMILIES.items():
        if config.architecture in (family.architecture, *family.also):
            return name, family
    known = sorted({n for family in FAMILIES.values() for n in (family.architecture, *family.also)})
    raise ValueError(f"a {config.architecture} model has no GGUF file; those of {', '.join(known)} have")


# ---- metadata ----


def metadata_of(config: DecoderConfig) -> Metadata:
    """Keys with the architecture's name before them, and values.

    Args:
        config: of a decoder.
    """
    of, family = family_of(config)
    out: Metadata = {
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "block_count": config.num_hidden_layers,
        "attention.head_count": config.num_attention_heads,
        "attention.head_count_kv": config.num_key_value_heads,
        "attention.key_length": config.head_dim,
        "attention.value_length": config.head_dim,
        family.eps: config.norm_eps,
        "rope.freq_base": config.rope_theta,
        "rope.dimension_count": config.rotary_width,
        "vocab_size": config.vocab_size,
    }
    out |= {**_windows(of, config), **_numbers(of, config), **_mixture(config), **_latent(config)}
    out |= _scaling(config)
    return {"general.architecture": of, **{f"{of}.{key}": value for key, value in out.items()}}


def _windows(of: str, c: DecoderConfig) -> Metadata:
    if not c.sliding_window or of in ("llama", "qwen2", "qwen3", "qwen2moe", "qwen3moe", "starcoder2"):
        return {}
    slides = [c.layer_type(i) == SLIDING for i in range(c.num_hidden_layers)]
    pattern = {} if of == "phi3" else {"attention.sliding_window_pattern": slides}
    theta = {"rope.freq_base_swa": c.local_rope_theta} if c.local_rope_theta else {}
    return {"attention.sliding_window": c.sliding_window, **pattern, **theta}


def _numbers(of: str, c: DecoderConfig) -> Metadata:
    """What some families alone have."""
    out: Metadata = {}
    if c.attention_softcap:
        out["attn_logit_softcapping"] = c.attention_softcap
    if c.logit_softcap:
        out["final_logit_softcapping"] = c.logit_softcap
    if of == "granite":
        out |= {"embedding_scale": c.embedding_scale, "residual_scale": c.residual_scale}
        out["logit_scale"] = 1 / c.logit_scale
        if c.attention_scale is not None:
            out["attention.scale"] = c.attention_scale
    if of == "gptneox":
        out["use_parallel_residual"] = c.parallel_residual
    return out


def _mixture(c: DecoderConfig) -> Metadata:
    experts = c.experts
    if experts is None:
        return {}
    out = {"expert_count": experts.count, "expert_used_count": experts.per_token}
    if c.architecture == "mixtral":  # the MLP's width is an expert's
        return {**out, "feed_forward_length": experts.width}
    out["expert_feed_forward_length"] = experts.width
    if experts.shared_width and c.latent is None:
        out["expert_shared_feed_forward_length"] = experts.shared_width
    return out


def _latent(c: DecoderConfig) -> Metadata:
    latent, experts = c.latent, c.experts
    if latent is None:
        return {}
    out: Metadata = {
        "attention.head_count_kv": 1,
        "attention.key_length": latent.kv_rank + latent.rotary_width,
        "attention.value_length": latent.kv_rank,
        "attention.key_length_mla": latent.head_dim,
        "attention.value_length_mla": latent.value_width,
        "attention.kv_lora_rank": latent.kv_rank,
        "rope.dimension_count": latent.rotary_width,
    }
    if latent.query_rank:
        out["attention.q_lora_rank"] = latent.query_rank
    if experts is not None:
        layers = range(c.num_hidden_layers)
        out |= {
            "leading_dense_block_count": sum(not experts.are_in(i) for i in layers),
            "expert_shared_count": experts.shared_width // experts.width,
            "expert_weights_scale": experts.scale,
            "expert_weights_norm": experts.normalize,
            "expert_gating_func": 2 if experts.scores == "sigmoid" else 1,
            "expert_group_count": experts.groups,
            "expert_group_used_count": experts.groups_kept,
        }
    return out


def _scaling(c: DecoderConfig) -> Metadata:
    """Of rotary positions; what is no key lies in tensors."""
    s = c.rope_scaling
    if s is None or s.rope_type == "llama3":
        return {}
    out: Metadata = {"rope.scaling.type": s.rope_type}
    if s.rope_type in ("linear", "yarn"):
        out["rope.scaling.factor"] = s.factor
    if s.rope_type in ("yarn", "longrope"):
        out["rope.scaling.original_context_length"] = s.original_max_position_embeddings
    if s.rope_type == "longrope" and s.attention_factor is not None:
        out["rope.scaling.attn_factor"] = s.attention_factor
    if s.rope_type == "yarn":
        out |= {"rope.scaling.yarn_beta_fast": s.beta_fast, "rope.scaling.yarn_beta_slow": s.beta_slow}
        if s.mscale_all_dim:
            out["rope.scaling.yarn_log_multiplier"] = 0.1 * s.mscale_all_dim
    return out


# ---- tensors ----

Made = Callable[[], Tensor]


def tensors_of(model: Decoder) -> Iterator[tuple[str, Made, tuple[int, ...]]]:
    """Each tensor's name in the file, a function that makes it, and its shape.

    Args:
        model: whose layers are floating ones.
    """
    config, seen = model.config, set()
    family = family_of(config)[1]
    names = names_of(config, family)
    for name, p in model.named_parameters():
        if id(p) in seen:
            continue
        seen.add(id(p))
        for i, (gguf_name, shaped) in enumerate(
            _parts(config, family, names.theirs(name), p.detach().to("meta"))
        ):

            def make(name: str = name, p: Tensor = p, i: int = i) -> Tensor:
                return _parts(config, family, names.theirs(name), p.detach())[i][1]

            yield gguf_name, make, tuple(shaped.shape)
    for gguf_name, table in _rotary_tables(config).items():
        yield gguf_name, partial(_same, table), tuple(table.shape)


def _same(x: Tensor) -> Tensor:
    return x


def _parts(
    config: DecoderConfig, family: Family, gguf_names: tuple[str, ...], x: Tensor
) -> list[tuple[str, Tensor]]:
    """The tensors of the file that a parameter makes up."""
    first = gguf_names[0]
    if first.endswith("[0]"):
        return _experts(config, first.removesuffix("[0]"), x)
    if ".attn_kv_b." in first and config.latent is not None:
        both = x.reshape(config.num_attention_heads, -1, x.shape[1])
        keys, values = both[:, : config.latent.plain_width], both[:, config.latent.plain_width :]
        names = (first.replace("attn_kv_b", part) for part in ("attn_k_b", "attn_v_b"))
        return list(zip(names, (keys.transpose(1, 2), values)))
    if ".ffn_gate_inp_shexp." in first:
        x = x[0]
    rows = [x.shape[0] // len(gguf_names)] * len(gguf_names)
    if len(gguf_names) == 3:
        heads = (config.num_attention_heads, config.num_key_value_heads, config.num_key_value_heads)
        rows = [count * config.head_dim for count in heads]
    parts = x.split(rows) if len(gguf_names) > 1 else (x,)
    return [(name, _turned(config, family, name, part)) for name, part in zip(gguf_names, parts)]


def _turned(config: DecoderConfig, family: Family, name: str, x: Tensor) -> Tensor:
    """Rows and values as the file has them: the way back from `ordered`."""
    width = config.head_dim
    if family.interleaved and (".attn_q." in name or ".attn_k." in name):
        return x.reshape(x.shape[0] // width, 2, width // 2, -1).transpose(1, 2).reshape(x.shape)
    if family.by_head and ".attn_qkv." in name:
        return x.reshape(x.shape[0] // (3 * width), 3, width, -1).transpose(0, 1).reshape(x.shape)
    if family.plus_one and name.endswith("norm.weight"):
        return x.float() + 1
    return x


def _experts(config: DecoderConfig, stem: str, x: Tensor) -> list[tuple[str, Tensor]]:
    """Those of a layer, one below the other here, as slices of one tensor."""
    experts = config.experts
    assert experts is not None, stem
    each = x.reshape(experts.count, x.shape[0] // experts.count, *x.shape[1:])
    kind = stem.split(".")[2]  # ffn_gate_exps
    if kind == "ffn_down_exps":
        return [(stem, each)]
    halves = (each[:, ::2], each[:, 1::2]) if experts.alternating else each.chunk(2, 1)
    return [(stem.replace(kind, f"ffn_{part}_exps"), half) for part, half in zip(("gate", "up"), halves)]


def _rotary_tables(config: DecoderConfig) -> dict[str, Tensor]:
    """Scalings that a file has as numbers for each pair."""
    s = config.rope_scaling
    if s is not None and s.rope_type == "longrope":
        assert s.long_factor is not None and s.short_factor is not None
        return {
            "rope_factors_long.weight": wt.tensor(s.long_factor),
            "rope_factors_short.weight": wt.tensor(s.short_factor),
        }
    if s is not None and s.rope_type == "llama3":
        both = (Rotary(config.head_dim, config.rope_theta, each).frequencies() for each in (None, s))
        plain, slowed = both
        return {"rope_freqs.weight": plain / slowed}
    return {}
