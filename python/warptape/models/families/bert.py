"""BERT; RoBERTa in one language and in many, whose positions begin behind that of padding; ModernBERT."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...distributed.checkpoint import NameMap
from .declare import BOTH_BIASES, FULL, SIZES, SLIDING, Architecture, Read, same

# ---- heads ----

TASKS = {"sequence": "ForSequenceClassification", "token": "ForTokenClassification"}
_MOST_LABELS = 1 << 20


def _task(data: Mapping[str, Any]) -> str | None:
    names = [str(name) for name in data.get("architectures") or ()]
    return next((task for task, end in TASKS.items() for name in names if name.endswith(end)), None)


def _labels(data: Mapping[str, Any]) -> tuple[str, ...]:
    """Their names, in the order of the logits."""
    if _task(data) is None:
        return ()
    if data.get("id2label"):
        named = {int(number): str(label) for number, label in dict(data["id2label"]).items()}
        return tuple(named[i] for i in range(len(named)))
    return tuple(f"LABEL_{i}" for i in range(min(int(data.get("num_labels", 2)), _MOST_LABELS)))


_HEAD = {"task": _task, "labels": _labels, "problem_type": lambda data: data.get("problem_type")}


def _head_written(name: str, config: Any) -> dict[str, Any]:
    if config.task is None:
        return {}
    labels = {str(i): label for i, label in enumerate(config.labels)}
    out = {"id2label": labels, "label2id": {label: int(i) for i, label in labels.items()}}
    return {
        "architectures": [name.removesuffix("Model") + TASKS[config.task]],
        "problem_type": config.problem_type,
        **out,
    }


# ---- BERT, RoBERTa ----


_LINEAR = {"head.out.*": "classifier.*"}  # a head that is one linear layer


def _bert_names(config: Any, prefix: str = "bert.", head: Mapping[str, str] = _LINEAR) -> NameMap:
    at, layer = "layers.*.self_attn", "encoder.layer.*"
    inside = {
        "self_attn.o_proj": "attention.output.dense",
        "post_attention_layernorm": "attention.output.LayerNorm",
        "mlp.up_proj": "intermediate.dense",
        "mlp.down_proj": "output.dense",
        "post_mlp_layernorm": "output.LayerNorm",
    }
    parts = ("query", "key", "value")
    return NameMap(
        {
            "embed_tokens.*": "embeddings.word_embeddings.*",
            "embed_positions.*": "embeddings.position_embeddings.*",
            "embed_token_types.*": "embeddings.token_type_embeddings.*",
            "embed_norm.*": "embeddings.LayerNorm.*",
            f"{at}.qkv_proj.*": tuple(f"{layer}.attention.self.{part}.*" for part in parts),
            **{f"layers.*.{name}.*": f"{layer}.{hf_name}.*" for name, hf_name in inside.items()},
            "pooler.*": "pooler.dense.*",
            **head,
        },
        prefix=prefix,
        # Other heads are not part of an encoder.
        ignore=(
            "embeddings.position_ids",
            *("classifier.*", "classifier.*.*", "lm_head.*", "lm_head.*.*"),
            "qa_outputs.*",
            "cls.*.*",
            "cls.*.*.*",
            "cls.*.*.*.*",
        ),
        sizes={f"{at}.qkv_proj.*": (config.hidden_size,) * 3},
        older={"LayerNorm.weight": "LayerNorm.gamma", "LayerNorm.bias": "LayerNorm.beta"},
    )


_KEYS = {
    **SIZES,
    **same("max_position_embeddings", "type_vocab_size", "initializer_range", "pad_token_id"),
    "norm_eps": "layer_norm_eps",
    "residual_dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob",
}
_DEFAULTS = {
    "max_position_embeddings": 512,
    "type_vocab_size": 2,
    "initializer_range": 0.02,
    "pad_token_id": 0,
    "norm_eps": 1e-12,
    "hidden_act": "gelu",
    **dict.fromkeys(("residual_dropout", "attention_dropout"), 0.1),
}
_ONLY = {"position_embedding_type": "absolute", "is_decoder": False, "add_cross_attention": False}


def _roberta_names(config: Any) -> NameMap:
    if config.task != "sequence":
        return _bert_names(config, "roberta.")
    head = {"head.dense.*": "classifier.dense.*", "head.out.*": "classifier.out_proj.*"}
    return _bert_names(config, "roberta.", head)


def _roberta(name: str) -> Architecture:
    return Architecture(
        name,
        _KEYS,
        {**_DEFAULTS, "pad_token_id": 1},
        _roberta_names,
        implied={
            "positions_behind_padding": True,
            "head_act": lambda data: "tanh" if _task(data) == "sequence" else None,
            **_HEAD,
        },
        written=lambda config: _head_written(name, config),
        only=_ONLY,
        rotary=False,
    )


# ---- ModernBERT ----


def _modern_names(config: Any) -> NameMap:
    inside = {
        "input_layernorm": "attn_norm",
        "self_attn.qkv_proj": "attn.Wqkv",
        "self_attn.o_proj": "attn.Wo",
        "post_attention_layernorm": "mlp_norm",
        "mlp.gate_up_proj": "mlp.Wi",
        "mlp.down_proj": "mlp.Wo",
    }
    return NameMap(
        {
            "embed_tokens.*": "embeddings.tok_embeddings.*",
            "embed_norm.*": "embeddings.norm.*",
            **{f"layers.*.{name}.*": f"layers.*.{hf_name}.*" for name, hf_name in inside.items()},
            "norm.*": "final_norm.*",
            **_LINEAR,
        },
        prefix="model.",
        ignore=("head.*", "head.*.*", "decoder.*", "classifier.*"),
    )


def _modern_types(data: Mapping[str, Any]) -> Any:
    """One layer in so many has full attention, the first is one."""
    if (types := data.get("layer_types")) is not None:
        return types
    every = data.get("global_attn_every_n_layers", 3)
    return [SLIDING if i % every else FULL for i in range(min(data["num_hidden_layers"], 10_000))]


def _modern_written(config: Any) -> dict[str, Any]:
    """Also as transformers 4 reads it, where that can say it."""
    types = list(config.layer_types or [FULL] * config.num_hidden_layers)
    out = {"layer_types": types, "local_rope_theta": config.local_rope_theta}
    out |= _head_written("ModernBertModel", config)
    for every in range(1, len(types) + 1):
        if types == [SLIDING if i % every else FULL for i in range(len(types))]:
            return {**out, "global_attn_every_n_layers": every}
    return out


_MODERN = Architecture(
    "ModernBertModel",
    {
        **SIZES,
        **same(
            "max_position_embeddings",
            "initializer_range",
            "pad_token_id",
            "norm_eps",
            "norm_bias",
            "mlp_bias",
        ),
        **BOTH_BIASES,
        "hidden_act": "hidden_activation",
        "sliding_window": "local_attention",
        "head_act": "classifier_activation",
        "head_bias": "classifier_bias",
        "head_pooling": "classifier_pooling",
    },
    {
        "max_position_embeddings": 8192,
        "initializer_range": 0.02,
        "pad_token_id": 50283,
        "norm_eps": 1e-5,
        "hidden_act": "gelu",
        "sliding_window": 128,
        "head_act": "gelu",
        "head_pooling": "cls",
        **dict.fromkeys(("norm_bias", "mlp_bias", "qkv_bias", "o_bias", "head_bias"), False),
    },
    _modern_names,
    implied={
        "positions": "rotary",
        "norm_placement": "before",
        "gated": True,
        "residual_dropout": 0.0,
        "attention_dropout": 0.0,
        "layer_types": _modern_types,
        **_HEAD,
    },
    written=_modern_written,
    other_keys={"rope_local_base_freq": "local_rope_theta"},
    read={
        "sliding_window": Read(lambda both: both // 2 or None, lambda one: 2 * (one or 0)),
        "head_act": Read(lambda act: act, lambda act: act or "gelu"),  # which no encoder alone has
    },
    only={"embedding_dropout": 0.0, "mlp_dropout": 0.0, "attention_dropout": 0.0},
    theta=160000.0,
    local_theta=10000.0,
    rotary_keys=("global_rope_theta", "partial_rotary_factor"),
)

ENCODERS: dict[str, Architecture] = {
    "bert": Architecture(
        "BertModel",
        _KEYS,
        _DEFAULTS,
        _bert_names,
        implied=_HEAD,
        written=lambda config: _head_written("BertModel", config),
        only=_ONLY,
        rotary=False,
    ),
    "roberta": _roberta("RobertaModel"),
    "xlm-roberta": _roberta("XLMRobertaModel"),
    "modernbert": _MODERN,
}
