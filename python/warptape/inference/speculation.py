"""Tokens that are proposed, and which one step checks: what a speculative_config says of them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from warptape import core as wt

from ..models import Decoder
from ._checks import check_types
from .pipeline_parallel import mesh_of
from .tensor_parallel import ranks_of, split_


@dataclass(kw_only=True)
class Speculation:
    """A speculative_config, checked.

    Args:
        num_speculative_tokens: that a step checks.
        method: "ngram" or "draft_model"; None: as `model` says.
        model: the draft model, or its folder.
        prompt_lookup_min, prompt_lookup_max: of the n-gram.
    """

    num_speculative_tokens: int
    method: str | None = None
    model: Any = None
    prompt_lookup_min: int = 2
    prompt_lookup_max: int = 5

    @classmethod
    def of(cls, config: Mapping[str, Any] | None) -> Speculation:
        """TypeError for what is no such dict.

        Args:
            config: the engine's speculative_config.
        """
        if not config:
            return cls(num_speculative_tokens=0)
        known = [each.name for each in fields(cls)]
        if not isinstance(config, Mapping) or not {"num_speculative_tokens"} <= {*config} <= {*known}:
            raise TypeError(
                f"speculative_config must be a dict with num_speculative_tokens and any of {known[1:]}, got "
                f"{config!r:.200}"
            )
        return cls(**config)

    def __post_init__(self) -> None:
        check_types(self)
        self.method = self.method or ("draft_model" if self.model is not None else "ngram")
        if self.method not in ("ngram", "draft_model") or (self.method == "draft_model") != (
            self.model is not None
        ):
            raise ValueError(
                "speculative_config: expected the method 'ngram', or 'draft_model' with a model, got "
                f"{self.method!r}"
            )
        if not 0 <= self.num_speculative_tokens <= 64:
            raise ValueError(f"num_speculative_tokens must be in [0, 64], got {self.num_speculative_tokens}")

    def draft_of(self, model: Decoder, ranks: int) -> Decoder | None:
        """The draft model, split among the ranks as the model is. ValueError for another vocabulary or a
        shorter context.

        Args:
            model: whose tokens it proposes.
            ranks: among which that is split.
        """
        if self.model is None:
            return None
        draft = self.model if isinstance(self.model, Decoder) else Decoder.from_pretrained(self.model)
        ours, theirs = model.config, draft.config
        if ours.vocab_size != theirs.vocab_size:
            raise ValueError(f"the draft model has {theirs.vocab_size} tokens, the model {ours.vocab_size}")
        if theirs.max_position_embeddings < ours.max_position_embeddings:
            raise ValueError(
                f"the draft model's context of {theirs.max_position_embeddings} tokens is shorter than the "
                f"model's, {ours.max_position_embeddings}"
            )
        if draft.embed_tokens.weight.dtype == wt.float16:
            draft = draft.float()  # as `prepare` has it
        if ranks_of(draft) != ranks:
            split_(draft, mesh_of(draft, ranks))
        return draft.eval()
