"""Configs of Hugging Face's architectures, read and written by the declarations in `families`."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import Any

from .families import DECODERS as DECODERS
from .families import ENCODERS as ENCODERS
from .families import Architecture
from .families.declare import FULL as FULL
from .families.declare import SLIDING as SLIDING
from .parts import ExpertsConfig, LatentConfig
from .rotary import FIELDS, RotaryScaling

MOST_LAYERS = 10_000
_ONLY = {"quantization_config": None}  # of all
_PARTS: dict[str, Any] = {"experts": ExpertsConfig, "latent": LatentConfig}  # fields "experts.count" ..
#: What architectures that people ask for need beside what is here.
_LACKING = {
    "whisper": "audio: warptape.models.whisper.Whisper reads it",
    "gemma3": "images; its text part alone is gemma3_text",
    "cohere": "one norm for attention and MLP, without a bias",
    "phi": "one norm for attention and MLP",
    "mamba": "state space layers",
    "olmoe": "norms of queries and keys over all heads beside a mixture of experts",
    "granitemoe": "experts whose matrices lie as GraniteMoE's",
    "qwen3_next": "linear attention",
    **dict.fromkeys(("t5", "bart"), "attention from a decoder to an encoder"),
    "llava": "images: warptape.models.llava.Llava reads them",
    "siglip": "images: warptape.models.siglip.Siglip reads them",
    "qwen2_5_vl": "images",
}


# Keys of configs that change no result, or that other keys say.
_BESIDE = frozenset((
    "_name_or_path", "architectures", "auto_map", "chunk_size_feed_forward", "dtype", "id2label", "label2id",
    "is_encoder_decoder", "model_type", "output_attentions", "output_hidden_states", "pretraining_tp",
    "problem_type", "return_dict", "rope_parameters", "rope_scaling", "rope_theta", "partial_rotary_factor",
    "torch_dtype", "transformers_version", "use_cache", "layer_types", "num_key_value_heads", "head_dim",
))  # fmt: skip


def _nearest(table: Mapping[str, Architecture], data: Mapping[str, Any]) -> str:
    """The architecture whose name is nearly that, or else whose config has the most of these keys and the
    fewest others; and which of the keys it has not."""
    kind = data.get("model_type")
    names = difflib.get_close_matches(kind, table, 1, 0.7) if isinstance(kind, str) else []
    given = {key for key, value in data.items() if value is not None and key not in _BESIDE}
    keys = {name: {*of.keys.values(), *of.only} - _BESIDE for name, of in table.items()}
    shared = {name: len(own & given) - len(own - given) / 2 for name, own in keys.items()}
    near = names[0] if names else max(table, key=lambda name: (shared[name], name))
    if not names and len(keys[near] & given) < 4:
        return ""
    lacks = sorted(key for key in given - keys[near] if data[key] is not False)[:6]
    return f"; nearest: {near}" + (f", without {', '.join(lacks)}" if lacks else "")


def _unknown(who: str, table: Mapping[str, Architecture], data: Mapping[str, Any]) -> ValueError:
    kind = data.get("model_type")
    text = f"{who}: unknown model_type {kind!r:.40}"
    if isinstance(kind, str) and kind in _LACKING:
        text += f", which needs {_LACKING[kind]}"
    return ValueError(f"{text}{_nearest(table, data)}; supported: {', '.join(sorted(table))}")


def read(who: str, table: Mapping[str, Architecture], data: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a config of the class `who` from their dict. Raises ValueError."""
    if not isinstance(data, Mapping):
        raise ValueError(f"{who}: expected a dict, as in a config.json, got {type(data).__name__}")
    kind = data.get("model_type")
    if not isinstance(kind, str) or kind not in table:
        raise _unknown(who, table, data)
    of = table[kind]
    for key, value in {**_ONLY, **of.only}.items():
        given = data.get(key)
        if given is not None and given != value:
            only = f"only {value!r}" if value is not None else "leave it out"
            raise ValueError(f"{who}: {kind} with {key}={given!r:.80} is not supported: {only}")
    others = {key: data[other] for key, other in of.other_keys.items() if other in data}
    data = {**others, **data}
    absent = [key for name, key in of.keys.items() if key not in data and name not in of.defaults]
    if absent:
        raise ValueError(f"{who}: a {kind} config needs {', '.join(absent)}")
    out = {name: data.get(key, of.defaults.get(name)) for name, key in of.keys.items()}
    try:
        out.update({name: each.from_key(out[name]) for name, each in of.read.items()})
        out.update({name: value(data) if callable(value) else value for name, value in of.implied.items()})
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{who}: a {kind} config with a value of a wrong type: {error}") from error
    _join_parts(f"{who}: {kind}", out)
    out["architecture"] = kind
    if of.rotary:
        out.update(_read_rotary(f"{who}: {kind}", of, data))
    layers = data.get("num_hidden_layers")
    if type(layers) is int and layers <= MOST_LAYERS:  # the config refuses others
        if of.slides is not None:
            out.update(_read_window(of.slides, data, layers))
        if of.full_every is not None:
            out["layer_types"] = _read_types(of.full_every, data, layers)
    return out


def _join_parts(who: str, out: dict[str, Any]) -> None:
    """Makes configs of parts of their fields, in place."""
    for part, kind in _PARTS.items():
        own = [name for name in out if name.startswith(f"{part}.")]
        if own:
            try:
                out[part] = kind(**{name.partition(".")[2]: out.pop(name) for name in own})
            except ValueError as error:
                raise ValueError(f"{who}: {error}") from error


def _field(config: Any, name: str) -> Any:
    """Of a config or one of its parts; None where it has not the part."""
    for each in name.split("."):
        config = getattr(config, each, None)
    return config


def _read_rotary(who: str, of: Architecture, data: Mapping[str, Any]) -> dict[str, Any]:
    """rope_parameters as transformers 5 writes them, or rope_theta and rope_scaling as those before did."""
    parameters = data.get("rope_parameters") or data.get("rope_scaling") or of.scaling or {}
    if not isinstance(parameters, Mapping):
        raise ValueError(f"{who}: expected rope_scaling to be a dict, got {parameters!r:.80}")
    out: dict[str, Any] = {}
    theta_key, partial_key = of.rotary_keys
    if of.local_theta is not None:
        local = parameters.get(SLIDING) or {}
        default = data.get("rope_theta", of.theta) if of.theta == of.local_theta else of.local_theta
        out["local_rope_theta"] = local.get("rope_theta", data.get("rope_local_base_freq", default))
        if local.get("rope_type", "default") != "default":
            raise ValueError(f"{who} with scaled positions in layers of {SLIDING} is not supported")
        parameters = parameters.get(FULL) or {} if FULL in parameters or SLIDING in parameters else parameters
    if any(isinstance(value, Mapping) for value in parameters.values()):
        raise ValueError(f"{who}: rope_parameters by types of layers are not supported, only one for all")
    partial = parameters.get("partial_rotary_factor", data.get(partial_key, of.partial))
    if of.partial is not None:
        out["rotary_factor"] = partial
    elif partial not in (None, 1.0):
        raise ValueError(f"{who}: {partial_key}={partial!r:.40} is not supported: only 1.0")
    out["rope_theta"] = parameters.get("rope_theta", data.get(theta_key, of.theta))
    kind = parameters.get("rope_type", parameters.get("type", "default"))
    kind = "longrope" if kind == "su" else kind  # its first name
    if kind == "default":
        return {**out, "rope_scaling": None}
    if of.scalings is not None and kind not in of.scalings:
        raise ValueError(f"{who} with rotary scaling {kind!r:.40} is not supported")
    if not isinstance(kind, str) or kind not in FIELDS:
        raise ValueError(f"{who}: rotary scaling {kind!r:.40} is not supported, only {', '.join(FIELDS)}")
    numbers = {key: parameters[key] for key in FIELDS[kind] if parameters.get(key) is not None}
    numbers = {key: value for key, value in numbers.items() if value or not key.startswith("mscale")}
    most, original = data.get("max_position_embeddings"), "original_max_position_embeddings"
    if kind in ("llama3", "yarn", "longrope"):
        numbers.setdefault(original, data.get(original, most))
    try:
        if kind in ("yarn", "longrope") and "factor" not in numbers:
            numbers["factor"] = most / numbers[original]  # type: ignore[operator]
        return {**out, "rope_scaling": RotaryScaling(rope_type=kind, **numbers)}
    except (TypeError, ValueError, ArithmeticError) as error:
        raise ValueError(f"{who}: {error}") from error


def _read_window(slides: Callable[[int, int], bool], data: Mapping[str, Any], layers: int) -> dict[str, Any]:
    """Qwen's: by max_window_layers, unless layer_types says it for each."""
    if not data.get("use_sliding_window", False):
        return {}
    types, most = data.get("layer_types"), data.get("max_window_layers", 28)
    if types is None and type(most) is int:
        types = [SLIDING if slides(i, most) else FULL for i in range(layers)]
    return {"sliding_window": data.get("sliding_window", 4096), "layer_types": types}


def _read_types(every: int, data: Mapping[str, Any], layers: int) -> Any:
    """Of each layer, where one in so many has full attention."""
    if (types := data.get("layer_types")) is not None:
        return types
    pattern = data.get("sliding_window_pattern", data.get("_sliding_window_pattern", every))
    if type(pattern) is not int or pattern < 1:
        raise ValueError(f"expected sliding_window_pattern to be a whole number above 0, got {pattern!r:.40}")
    return [SLIDING if (i + 1) % pattern else FULL for i in range(layers)]


def write(of: Architecture, config: Any) -> dict[str, Any]:
    """Their dict of a config."""
    out: dict[str, Any] = {"architectures": [of.name], "model_type": config.architecture}
    for name, key in of.keys.items():
        value = _field(config, name)
        value = of.read[name].to_key(value) if name in of.read else value
        out[key] = list(value) if isinstance(value, tuple) else value
    if of.rotary:
        _write_rotary(out, of, config)
    if of.written is not None:
        out.update(of.written(config))
    slides = None if of.slides is None or config.sliding_window is None else of.slides
    if of.full_every is not None or slides is not None:
        out["layer_types"] = types = [config.layer_type(i) for i in range(config.num_hidden_layers)]
    if slides is not None:
        out.update(use_sliding_window=True, sliding_window=config.sliding_window)
        most = (types + [SLIDING]).index(SLIDING)
        if all(slides(i, most) == (each == SLIDING) for i, each in enumerate(types)):
            out["max_window_layers"] = most
    return out


def _written_scaling(scaling: RotaryScaling) -> dict[str, Any]:
    """What differs from what an absent key means."""
    every = asdict(scaling)
    out = {key: every[key] for key in ("rope_type", *FIELDS[scaling.rope_type])}
    for key, value in list(out.items()):
        if value is None or (key == "truncate" and value):
            del out[key]
        elif isinstance(value, tuple):
            out[key] = list(value)
    return out


def _write_rotary(out: dict[str, Any], of: Architecture, config: Any) -> None:
    """As all versions read it."""
    theta_key, partial_key = of.rotary_keys
    scaling = None if of.scaling is None else {"rope_type": "default"}  # what no scaling would mean
    if config.rope_scaling is not None:
        scaling = _written_scaling(config.rope_scaling)
        if config.rope_scaling.rope_type == "longrope":
            out["original_max_position_embeddings"] = config.rope_scaling.original_max_position_embeddings
            if scaling["factor"] == config.max_position_embeddings / out["original_max_position_embeddings"]:
                del scaling["factor"]
    out[theta_key] = config.rope_theta
    if of.partial is not None:
        out[partial_key] = config.rotary_factor
    out["rope_scaling"] = scaling
    if of.local_theta is not None:
        if of.local_theta != of.theta:
            out["rope_local_base_freq"] = config.local_rope_theta
        full = scaling or {"rope_type": "default"}
        out["rope_parameters"] = {
            FULL: {**full, "rope_theta": config.rope_theta},
            SLIDING: {"rope_type": "default", "rope_theta": config.local_rope_theta},
        }
