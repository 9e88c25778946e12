"""What a declaration of an architecture consists of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from ...distributed.checkpoint import LLAMA, NameMap


class Read(NamedTuple):
    """How a field is computed from the value of a key of config.json, and back.

    Args:
        from_key: the field of the value.
        to_key: the value of the field.
    """

    from_key: Callable[[Any], Any]
    to_key: Callable[[Any], Any]


@dataclass(frozen=True)
class Architecture:
    """How one of their architectures says what our config says.

    Args:
        name: what is in `architectures` of its config.
        keys: our field -> their key. A key without a default must be there. "experts.count" is the field of a
            part's config.
        defaults: our field -> what an absent key means to transformers, in their terms.
        names: from a config to the map of its tensors' names.
        implied: our fields that it has no key for: a value, or a function of their dict.
        written: their keys of which implied fields are computed, from a config.
        other_keys: their key -> another name that it goes by.
        read: field -> how it differs from the value of its key.
        only: their keys that change results -> the only value that is supported, which an absent key means.
        slides: of a layer and max_window_layers whether the layer has a sliding window, where configs say
            by use_sliding_window that there are such layers (Qwen), unless `layer_types` says it for each;
            None: it has no such key.
        full_every: one layer in so many has full attention and the others a window, unless `layer_types` says
            it for each; None: it has no such layers.
        rotary: whether it has rotary positions.
        theta: the base of rotary positions that an absent key means.
        local_theta: the base in layers with a window, where these have one of their own, which is not scaled.
        partial: the part of a head that is turned if the config does not say; None: it cannot say.
        rotary_keys: the names that its configs have for rope_theta and partial_rotary_factor.
        scalings: kinds of RotaryScaling that it takes; None: all.
        scaling: what a config without one means.
    """

    name: str
    keys: Mapping[str, str]
    defaults: Mapping[str, Any]
    names: Callable[[Any], NameMap]
    implied: Mapping[str, Any] = field(default_factory=dict)
    written: Callable[[Any], Mapping[str, Any]] | None = None
    other_keys: Mapping[str, str] = field(default_factory=dict)
    read: Mapping[str, Read] = field(default_factory=dict)
    only: Mapping[str, Any] = field(default_factory=dict)
    slides: Callable[[int, int], bool] | None = None
    full_every: int | None = None
    rotary: bool = True
    theta: float = 10000.0
    local_theta: float | None = None
    partial: float | None = None
    rotary_keys: tuple[str, str] = ("rope_theta", "partial_rotary_factor")
    scalings: tuple[str, ...] | None = None
    scaling: Mapping[str, Any] | None = None


def same(*names: str) -> dict[str, str]:
    """Fields whose keys have the same name.

    Args:
        *names: of the fields.

    >>> from warptape.models.families import same
    >>> same("vocab_size")
    {'vocab_size': 'vocab_size'}
    """
    return {name: name for name in names}


FULL, SLIDING = "full_attention", "sliding_attention"  # types of layers
TOKENS = same("bos_token_id", "eos_token_id", "pad_token_id")
NO_TOKENS = dict.fromkeys(TOKENS)
SIZES = same(
    "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads", "hidden_act"
)
BOTH_BIASES = {"qkv_bias": "attention_bias", "o_bias": "attention_bias"}
NO_BIASES = {"qkv_bias": False, "o_bias": False}
AROUND = {"norm_placement": "around"}


class Expert(NamedTuple):
    """Their names below an MLP's of what a mixture of experts consists of.

    Args:
        router: the linear layer that scores experts.
        experts: before an expert's number.
        parts: an expert's gate, up and down.
        shared: the MLP that all tokens pass.
    """

    router: str = "gate"
    experts: str = "experts"
    parts: tuple[str, str, str] = ("gate_proj", "up_proj", "down_proj")
    shared: str = "shared_experts"


def separate_names(
    config: Any,
    rename: Mapping[str, str],
    *,
    gate_up: bool = True,
    mixture: tuple[str, Expert] | None = None,
    ignore: tuple[str, ...] = (),
) -> NameMap:
    """Llama's names of tensors, with some others.

    Args:
        config: says the sizes of what is separate there and joined here.
        rename: own patterns below a layer -> Hugging Face's.
        gate_up: whether gate and up are separate there.
        mixture: what their MLP is called, and the names in it; None: it has no experts.
        ignore: more patterns of what models here need not have.
    """
    at, width = "layers.*.self_attn", config.head_dim
    key_rows = config.num_key_value_heads * width
    joined: dict[str, tuple[str, ...]] = {f"{at}.qkv_proj.*": tuple(f"{at}.{part}_proj.*" for part in "qkv")}
    rows = (config.num_attention_heads * width, key_rows, key_rows)
    sizes: dict[str, tuple[int, ...]] = {f"{at}.qkv_proj.*": rows}
    if gate_up:
        joined["layers.*.mlp.gate_up_proj.*"] = ("layers.*.mlp.gate_proj.*", "layers.*.mlp.up_proj.*")
        sizes["layers.*.mlp.gate_up_proj.*"] = (config.intermediate_size,) * 2
    others = {f"layers.*.{name}.*": f"layers.*.{hf_name}.*" for name, hf_name in rename.items()}
    if mixture is not None:
        _add_experts(config.experts, *mixture, joined, sizes)
    return NameMap({**joined, **others}, prefix=LLAMA.prefix, ignore=(*LLAMA.ignore, *ignore), sizes=sizes)


def _add_experts(
    config: Any, mlp: str, there: Expert, joined: dict[str, Any], sizes: dict[str, tuple[int, ...]]
) -> None:
    """Names of mixtures, and sizes of what is joined in them."""
    own, hf_mlp = "layers.*.mlp", f"layers.*.{mlp}"
    gate, up, down = there.parts
    each = [f"{hf_mlp}.{there.experts}.{i}" for i in range(config.count)]
    joined[f"{own}.experts.gate_up_proj.*"] = tuple(f"{e}.{part}.*" for e in each for part in (gate, up))
    joined[f"{own}.experts.down_proj.*"] = tuple(f"{e}.{down}.*" for e in each)
    sizes[f"{own}.experts.gate_up_proj.*"] = (config.width,) * 2 * config.count
    joined[f"{own}.router.*"] = f"{hf_mlp}.{there.router}.*"
    joined[f"{own}.choice_bias"] = f"{hf_mlp}.{there.router}.e_score_correction_bias"
    shared = f"{hf_mlp}.{there.shared}"
    joined[f"{own}.shared_mlp.gate_up_proj.*"] = (f"{shared}.gate_proj.*", f"{shared}.up_proj.*")
    sizes[f"{own}.shared_mlp.gate_up_proj.*"] = (config.shared_width,) * 2
    joined[f"{own}.shared_mlp.down_proj.*"] = f"{shared}.down_proj.*"
    joined[f"{own}.shared_gate.*"] = f"{hf_mlp}.shared_expert_gate.*"
