"""Models of transformers seen as a Decoder: its computation, by the parameters of theirs."""

from __future__ import annotations

from typing import Any

from warptape import core as wt

from ..core import Tensor
from .config import DecoderConfig
from .decoder import Decoder


def decoder_of(model: Any) -> tuple[Decoder, dict[str, Tensor]]:
    """A decoder without weights, and the weights that `func.functional_call` takes for it.

    The weights are made of the model's parameters, joined and turned where Decoder has them so, and gradients
    reach these. So a model of transformers is trained by this package's computation, and stays theirs.

    Args:
        model: of transformers, for example under `warptape.torch`; whatever has its `config` with to_dict(),
            and its names of parameters.

    Raises: ValueError for an architecture that Decoder has not, and for parameters that are missing or left
    over; TypeError for what has no such config.
    """
    described = getattr(getattr(model, "config", None), "to_dict", None)
    if described is None:
        raise TypeError(
            f"expected a Decoder, or a model of transformers with a config, got {type(model).__name__}"
        )
    decoder = Decoder(DecoderConfig.from_hf(described()), device="meta").train(model.training)
    names, held = decoder.name_map(), dict(model.named_parameters())
    used, weights = set[str](), dict[str, Tensor]()
    for name, meta in decoder.named_parameters():
        parts = []
        for hf_name in names.theirs(name):
            held_name = next((each for each in names.candidates(hf_name) if each in held), None)
            if held_name is None:
                raise ValueError(f"{type(model).__name__} has no parameter {hf_name!r}")
            used.add(held_name)
            parts.append(held[held_name].t() if names.transposed(hf_name) else held[held_name])
        weights[name] = parts[0] if len(parts) == 1 else wt.cat(parts)
        if weights[name].shape != meta.shape:
            raise ValueError(f"{name} is {list(weights[name].shape)} there and {list(meta.shape)} in Decoder")
    left = [name for name in held if name not in used and not names.ignored(name)]
    if left and not (decoder.config.tie_word_embeddings and left == ["lm_head.weight"]):
        raise ValueError(f"Decoder has nothing for the parameters {left[:3]} of {type(model).__name__}")
    return decoder, weights
