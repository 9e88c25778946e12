"""LoRA adapters (Hu et al. 2021) in PEFT's folders, merged into a model or kept apart from it.

An adapter adds scale * B A to the weight [O, I] of a linear layer: A [r, I], B [O, r], r its rank.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Mapping
from typing import Any, NamedTuple

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..distributed.checkpoint import CheckpointException
from ..utils.safetensors import SafetensorError, load_file
from .experts import Experts
from .pretrained import PreTrained, read_json

CONFIG, WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Keys of the config -> the only values that are supported, which absent ones mean.
_ONLY: dict[str, tuple[Any, ...]] = {
    "peft_type": ("LORA",),
    "bias": ("none", None),
    "use_dora": (False, None),
    "modules_to_save": (None, []),
    "layer_replication": (None,),
    "trainable_token_indices": (None,),
}
_NEEDED = ("peft_type", "lora_alpha")  # without which a config says nothing of what the matrices mean
_NAME = re.compile(r"base_model\.model\.(.+)\.lora_([AB])\.weight")


class AdapterConfigError(ValueError):
    """An adapter_config.json lacks keys.

    Attributes:
        missing: these keys.
    """

    def __init__(self, path: str, missing: tuple[str, ...]) -> None:
        super().__init__(f"{path} lacks {', '.join(missing)}: it is no config of a LoRA adapter")
        self.missing = missing


class Factors(NamedTuple):
    """What an adapter adds to a linear layer: b @ a, with the scale in b.

    Args:
        a: [R, I]; of a layer that joins several of theirs (queries, keys, values), one's below the other's.
        b: [O, R], zero where one of theirs has no say.
    """

    a: Tensor
    b: Tensor

    def to(self, like: Tensor) -> Factors:
        """With the device and dtype of a tensor.

        Args:
            like: any tensor.
        """
        return Factors(*(x.to(like.device, like.dtype) for x in self))

    def __call__(self, x: Tensor) -> Tensor:
        """[.., I] -> [.., O], what is added to the layer's output."""
        return nn.functional.linear(nn.functional.linear(x, self.a), self.b)


class Adapter:
    """An adapter for a model: `factors` by the names of the model's linear layers.

    It changes nothing until it is merged or attached, and can be taken back from both.
    """

    def __init__(self, model: PreTrained, factors: Mapping[str, Factors]) -> None:
        self.factors = dict(factors)
        self._layers = {name: model.get_submodule(name) for name in self.factors}
        self._hooks: list[Any] = []
        self._before: dict[str, Tensor] = {}

    def _check_free(self) -> None:
        if self._before or self._hooks:
            raise RuntimeError(
                f"Adapter: already {'merged' if self._before else 'attached'}; remove() it first"
            )

    @wt.no_grad()
    def merge(self) -> None:
        """Adds it to the weights, summed in float32. RuntimeError where it is in use or they are packed.

        Products cost no more than before then; `remove` takes it out again.
        """
        self._check_free()
        if not all(isinstance(layer, nn.Linear) for layer in self._layers.values()):
            raise RuntimeError("Adapter: merge it before the model's weights are packed, or attach it")
        for name, (a, b) in self.factors.items():
            weight = self._layers[name].weight
            self._before[name] = weight.detach().clone()
            weight.copy_(weight.float() + b.float() @ a.float())

    def attach(self) -> None:
        """Adds it to the outputs from now on; weights stay. RuntimeError where it is in use.

        Each layer it has computes two thin products more.
        """
        self._check_free()
        for name, layer in self._layers.items():
            layer_factors = self.factors[name]

            def add(_: object, given: Any, out: Tensor, factors: Factors = layer_factors) -> Tensor:
                return out + factors(given[0])

            self._hooks.append(layer.register_forward_hook(add))

    @wt.no_grad()
    def remove(self) -> None:
        """Makes the model what it was, to the bit."""
        for name, before in self._before.items():
            self._layers[name].weight.copy_(before)
        for hook in self._hooks:
            hook.remove()
        self._before, self._hooks = {}, []


def _scales(config: Mapping[str, Any], path: str) -> Any:
    """A function from (their name of a layer, rank) to what its product is multiplied by."""
    if missing := tuple(key for key in _NEEDED if config.get(key) is None):
        raise AdapterConfigError(path, missing)
    for key, values in _ONLY.items():
        if config.get(key, values[0]) not in values:
            raise ValueError(f"{path}: {key}={config[key]!r:.80} is not supported: only {values[0]!r}")
    root, patterns = config.get("use_rslora", False), config.get("alpha_pattern") or {}
    numbers = [config["lora_alpha"], *(patterns.values() if isinstance(patterns, Mapping) else [None])]
    if not all(type(n) in (int, float) and math.isfinite(n) for n in numbers):
        raise ValueError(
            f"{path}: expected lora_alpha, and those of alpha_pattern, to be numbers, got {numbers}"
        )

    def scale(name: str, rank: int) -> float:
        fits = (n for key, n in patterns.items() if name == key or name.endswith("." + key))
        alpha = next(fits, numbers[0])
        return alpha / (math.sqrt(rank) if root else rank)

    return scale


def _read_pairs(path: str) -> dict[str, dict[str, Tensor]]:
    """Their names of layers -> {"A": [r, I], "B": [O, r]}."""
    try:
        tensors = load_file(path)
    except SafetensorError as error:
        raise CheckpointException(str(error)) from error
    pairs: dict[str, dict[str, Tensor]] = {}
    for name, x in tensors.items():
        match = _NAME.fullmatch(name)
        if match is None:
            raise CheckpointException(
                f"{path}: {name} is no LoRA matrix of a linear layer, which alone are supported"
            )
        pairs.setdefault(match[1], {})[match[2]] = x
    for name, pair in pairs.items():
        shapes = {part: list(x.shape) for part, x in pair.items()}
        fits = len(pair) == 2 and all(x.ndim == 2 for x in pair.values())
        if not fits or pair["A"].shape[0] != pair["B"].shape[1]:
            raise CheckpointException(
                f"{path}: expected lora_A [r, I] and lora_B [O, r] for {name}, got {shapes}"
            )
    return pairs


def _joined(
    layer: nn.Module, parts: list[tuple[str | None, int]], pairs: Mapping[str, Any], scale: Any
) -> Factors:
    """The factors of a layer whose outputs are those of several of theirs: (name or None, rows)."""
    outputs, inputs = layer.out_features, layer.in_features
    a, b, start = [], [], 0
    for name, count in parts:
        if name is not None:
            down, up = pairs[name]["A"].float(), pairs[name]["B"].float()
            there, here = [up.shape[0], down.shape[1]], [count, inputs]
            if there != here:
                raise CheckpointException(f"{name} is {there} there and {here} here")
            rest = outputs - start - count
            a.append(down)
            b.append(nn.functional.pad(up * scale(name, down.shape[0]), (0, 0, start, rest)))
        start += count
    return Factors(wt.cat(a), wt.cat(b, 1))


def load_factors(model: PreTrained, folder: str | os.PathLike[str]) -> dict[str, Factors]:
    """The factors in a PEFT folder by the names of a model's layers, in float32 on the CPU; the model may be
    on the meta device. Raises: see load_adapter.
    """
    config, path = (os.path.join(os.fspath(folder), name) for name in (CONFIG, WEIGHTS))
    scale = _scales(read_json(config), config)
    pairs, names, used = _read_pairs(path), model.name_map(), set[str]()
    of_experts = {id(x) for m in model.modules() if isinstance(m, Experts) for x in m.children()}
    factors: dict[str, Factors] = {}
    for name, layer in model.named_modules():
        if not hasattr(layer, "out_features"):
            continue  # not linear, packed or not
        bare = [each.removesuffix(".weight") for each in names.theirs(f"{name}.weight")]
        hf_names = [next((n for n in names.candidates(each) if n in pairs), None) for each in bare]
        if not any(hf_names):
            continue
        if id(layer) in of_experts:
            named = next(each for each in hf_names if each)
            raise CheckpointException(f"{path}: {named} is of an expert, which adapters cannot change here")
        used.update(each for each in hf_names if each)
        rows = names.split(f"{name}.weight", [layer.out_features // len(bare)] * len(bare))
        try:
            factors[name] = _joined(layer, list(zip(hf_names, rows)), pairs, scale)
        except CheckpointException as error:
            raise CheckpointException(f"{path}: {error}") from error
    if unknown := pairs.keys() - used:
        listed = ", ".join(sorted(unknown)[:8])
        raise CheckpointException(f"{path}: no linear layer here is called {listed}")
    return factors


def load_adapter(model: PreTrained, folder: str | os.PathLike[str]) -> Adapter:
    """The LoRA adapter in a PEFT folder, for a model: `load_adapter(model, folder).merge()`, or `.attach()`.

    Args:
        folder: with adapter_config.json and adapter_model.safetensors.

    Raises: FileNotFoundError, AdapterConfigError where the config lacks keys, ValueError for other kinds of
    adapters, and CheckpointException for a damaged file, matrices of other shapes and names of layers that
    the model has not; it names them.
    """
    like = model.embed_tokens.weight
    factors = load_factors(model, folder)
    return Adapter(model, {name: each.to(like) for name, each in factors.items()})
