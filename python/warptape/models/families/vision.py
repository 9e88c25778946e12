"""SigLIP's two towers, CLIP's of images, and LLaVA, which joins one of images and a language model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import NO_TOKENS, SIZES, TOKENS, Architecture, Read, same
from .joined import JoinedNames, Part

_TEXT, _VISION = "text_model.", "vision_model."
#: What stands before names of LLaVA's tower, as transformers of several years wrote them.
_TOWERS = (
    "vision_tower.vision_model.",
    "model.vision_tower.vision_model.",
    "vision_tower.",
    "model.vision_tower.",
)

# ---- towers ----


def _tower(more: Mapping[str, str], prefix: str, width: int, ignore: tuple[str, ...] = ()) -> NameMap:
    layer, attention = "encoder.layers.*", "layers.*.self_attn"
    inside = {
        "input_layernorm": "layer_norm1",
        "self_attn.o_proj": "self_attn.out_proj",
        "post_attention_layernorm": "layer_norm2",
        "mlp.up_proj": "mlp.fc1",
        "mlp.down_proj": "mlp.fc2",
    }
    rename: dict[str, str | tuple[str, ...]] = {
        f"{attention}.qkv_proj.*": tuple(f"{layer}.self_attn.{part}_proj.*" for part in "qkv"),
        **{f"layers.*.{ours}.*": f"{layer}.{theirs}.*" for ours, theirs in inside.items()},
        "embed_positions.*": "embeddings.position_embedding.*",
        **more,
    }
    sizes = {f"{attention}.qkv_proj.*": (width,) * 3}
    return NameMap(rename, prefix=prefix, ignore=("embeddings.position_ids", *ignore), sizes=sizes)


def _vision_names(config: Any) -> NameMap:
    more = {
        "patches.*": "embeddings.patch_embedding.*",
        "class_token": "embeddings.class_embedding",
        "input_norm.*": "pre_layrnorm.*",  # their spelling
        "norm.*": "post_layernorm.*",
        "head.qkv_proj.*": "head.attention.in_proj_*",
        "head.o_proj.*": "head.attention.out_proj.*",
        "head.norm.*": "head.layernorm.*",
        "head.mlp.up_proj.*": "head.mlp.fc1.*",
        "head.mlp.down_proj.*": "head.mlp.fc2.*",
    }
    return _tower(more, _VISION, config.hidden_size)


def _text_names(config: Any) -> NameMap:
    more = {"embed_tokens.*": "embeddings.token_embedding.*", "norm.*": "final_layer_norm.*"}
    return _tower(more, _TEXT, config.hidden_size)


_SHAPE = same(
    "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act",
    "attention_dropout",
)  # fmt: skip
_BASE = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "attention_dropout": 0.0,
}
_PIXELS = {**_SHAPE, **same("image_size", "patch_size", "num_channels"), "norm_eps": "layer_norm_eps"}

TOWERS: dict[str, Architecture] = {
    "siglip_vision_model": Architecture(
        "SiglipVisionModel",
        {**_PIXELS, "head": "vision_use_head"},
        {
            **_BASE,
            "image_size": 224,
            "patch_size": 16,
            "num_channels": 3,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_eps": 1e-6,
            "head": True,
        },
        _vision_names,
        rotary=False,
    ),
    "clip_vision_model": Architecture(
        "CLIPVisionModel",
        {**_PIXELS, "initializer_range": "initializer_range"},
        {
            **_BASE,
            "image_size": 224,
            "patch_size": 32,
            "num_channels": 3,
            "hidden_act": "quick_gelu",
            "norm_eps": 1e-5,
            "initializer_range": 0.02,
        },
        _vision_names,
        implied={"class_token": True, "head": False},
        rotary=False,
    ),
}

TEXTS: dict[str, Architecture] = {
    "siglip_text_model": Architecture(
        "SiglipTextModel",
        {
            **SIZES,
            **TOKENS,
            **same("max_position_embeddings", "attention_dropout", "projection_size"),
            "norm_eps": "layer_norm_eps",
        },
        {
            **_BASE,
            **NO_TOKENS,
            "vocab_size": 32000,
            "max_position_embeddings": 64,
            "projection_size": None,
            "hidden_act": "gelu_pytorch_tanh",
            "norm_eps": 1e-6,
            "pad_token_id": 1,
            "bos_token_id": 49406,
            "eos_token_id": 49407,
        },
        _text_names,
        rotary=False,
    ),
}

# ---- models of several parts ----


def _towers(config: Any) -> NameMap:
    return JoinedNames(
        parts={
            "text": Part(config.text.names, ((_TEXT, _TEXT),)),
            "vision": Part(config.vision.names, ((_VISION, _VISION),)),
        }
    )


def _of_kind(data: Mapping[str, Any] | None, kind: str) -> dict[str, Any]:
    return {"model_type": kind, **(data or {})}


PAIRS: dict[str, Architecture] = {
    "siglip": Architecture(
        "SiglipModel",
        {"text": "text_config", "vision": "vision_config"},
        {"text": None, "vision": None},
        _towers,
        read={
            "text": Read(lambda x: _of_kind(x, "siglip_text_model"), lambda own: own.to_hf()),
            "vision": Read(lambda x: _of_kind(x, "siglip_vision_model"), lambda own: own.to_hf()),
        },
        rotary=False,
    ),
}

# What absent sizes of a Llama mean to transformers, and so to folders of LLaVA 1.5.
_LLAMA = {
    "vocab_size": 32000,
    "hidden_size": 4096,
    "intermediate_size": 11008,
    "num_hidden_layers": 32,
    "num_attention_heads": 32,
    "max_position_embeddings": 2048,
}


def _language_config(data: Mapping[str, Any]) -> dict[str, Any]:
    said = dict(data.get("text_config") or {})
    said = {"model_type": "llama", **said}
    if said["model_type"] == "llama":
        said = {**_LLAMA, **said}
    if data.get("tie_word_embeddings") is not None:
        said["tie_word_embeddings"] = data["tie_word_embeddings"]
    return said


def _llava_names(config: Any) -> NameMap:
    language = config.text.names
    prefix = language.prefix
    return JoinedNames(
        parts={
            "language_model": Part(
                language,
                ((f"language_model.{prefix}", "language_model."), ("model.language_model.", "")),
            ),
            "vision": Part(config.vision.names, tuple((each, each) for each in _TOWERS)),
            "projector": Part(
                NameMap({}), (("multi_modal_projector.",) * 2, ("model.multi_modal_projector.",) * 2)
            ),
        }
    )


LANGUAGE: dict[str, Architecture] = {
    "llava": Architecture(
        "LlavaForConditionalGeneration",
        {
            "image_token_id": "image_token_index",
            "projector_act": "projector_hidden_act",
            "projector_bias": "multimodal_projector_bias",
            "feature_layer": "vision_feature_layer",
            "features": "vision_feature_select_strategy",
        },
        {
            "image_token_id": 32000,
            "projector_act": "gelu",
            "projector_bias": True,
            "feature_layer": -2,
            "features": "default",
        },
        _llava_names,
        implied={
            "text": _language_config,
            "vision": lambda data: _of_kind(data.get("vision_config"), "clip_vision_model"),
        },
        written=lambda config: {
            "text_config": config.text.to_hf(),
            "vision_config": config.vision.to_hf(),
            "image_seq_length": config.image_tokens,
            "image_token_id": config.image_token_id,
            "tie_word_embeddings": config.text.tie_word_embeddings,
        },
        other_keys={"image_token_index": "image_token_id"},
        rotary=False,
    ),
}
