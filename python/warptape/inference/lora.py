"""Several LoRA adapters on one model, each for its own rows of a batch."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..models import Decoder
from .linear import PackedLinear
from .pipeline_parallel import stage_of
from .tensor_parallel import full_config, ranks_of, shard_of_adapter

if TYPE_CHECKING:
    from ..models.adapters import Factors

Rows = list[tuple[int, int, int]]  # (adapter, first row, one after the last)


@dataclass(frozen=True)
class LoRARequest:
    """An adapter to answer with: a PEFT folder. vLLM's names; `lora_int_id` is above 0 and of it alone.

    Args:
        lora_name: for people.
        lora_int_id: for the engine.
        lora_path: with adapter_config.json and weights.
    """

    lora_name: str
    lora_int_id: int
    lora_path: str | os.PathLike[str]

    def __post_init__(self) -> None:
        if not isinstance(self.lora_int_id, int) or self.lora_int_id < 1:
            raise ValueError(f"lora_int_id must be an int above 0, got {self.lora_int_id!r}")

    @property
    def name(self) -> str:
        """`lora_name`."""
        return self.lora_name

    @property
    def adapter_id(self) -> int:
        """`lora_int_id`."""
        return self.lora_int_id

    @property
    def path(self) -> str | os.PathLike[str]:
        """`lora_path`."""
        return self.lora_path


def _packed(weight: Tensor, invariant: bool) -> nn.Module:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return PackedLinear(linear) if invariant else linear


class Adapters:
    """The adapters of a model, by number; 0 is none. A layer adds to each row what that row's adapter says.
    Of a model that is split among ranks each has the parts for its own layers.

    Args:
        invariant: whether what a row gets must not depend on the other rows.
    """

    def __init__(self, model: Decoder, invariant: bool) -> None:
        self._model, self._invariant = model, invariant
        self._paths: dict[int, str] = {}
        self._layers: dict[str, dict[int, tuple[nn.Module, nn.Module]]] = {}  # by name and adapter
        self.rows: Rows = []  # of what now goes through the layers; none where no adapter is asked for

    def number(self, request: LoRARequest | None) -> int:
        """The adapter's number; it is loaded when it is first asked for.

        Raises: TypeError, ValueError for an id that another folder has, and what models.load_adapter raises.
        """
        if request is None:
            return 0
        if not isinstance(request, LoRARequest):
            raise TypeError(f"lora_request must be a LoRARequest, got {type(request).__name__}")
        number, path = request.lora_int_id, os.path.abspath(request.lora_path)
        if self._paths.get(number, path) != path:
            raise ValueError(f"lora_int_id {number} is {self._paths[number]}, not {path}")
        if number not in self._paths:
            for name, factors in self._load(path).items():
                self._add(name, number, factors)
            self._paths[number] = path
        return number

    def remove(self, number: int) -> None:
        """Forgets an adapter that no request uses; one that is not there does no harm.

        Args:
            number: of it.
        """
        self._paths.pop(number, None)
        for adapters in self._layers.values():
            adapters.pop(number, None)

    def parts(self, factors: Mapping[str, Factors]) -> dict[str, Factors]:
        """What this rank has of factors for the whole model's layers, by its own modules.

        Raises: ValueError for names of no linear layer, ShapeError for other shapes.
        """
        layers = dict(self._whole().named_modules())
        for name, (a, b) in factors.items():
            sizes = [getattr(layers.get(name), each, None) for each in ("out_features", "in_features")]
            if None in sizes:
                raise ValueError(f"adapter: no linear layer is called {name!r}")
            if a.ndim != 2 or b.ndim != 2 or sizes != [b.shape[0], a.shape[1]] or a.shape[0] != b.shape[1]:
                raise wt.ShapeError(
                    f"adapter: {name} is [out, in] = {sizes}, got a {list(a.shape)} and b {list(b.shape)}"
                )
        return self._of_rank(factors)

    def put(self, request: LoRARequest, parts: Mapping[str, Factors]) -> None:
        """Gives an adapter other factors in place of those that it has, if it is there; no folder is read.

        Args:
            request: its number.
            parts: of `parts`, in memory that nobody else changes.
        """
        number = request.lora_int_id
        self.remove(number)
        for name, factors in parts.items():
            self._add(name, number, factors)
        self._paths[number] = os.path.abspath(request.lora_path)

    def _whole(self) -> Decoder:
        """The model, or one without weights of which it is a part."""
        model = self._model
        if stage_of(model) is None and ranks_of(model) == 1:
            return model
        return Decoder(full_config(model), device="meta")

    def _load(self, path: str) -> dict[str, Factors]:
        """By the modules of this model. Every rank checks all factors, so that all of them raise."""
        from ..models.adapters import load_factors

        return self._of_rank(load_factors(self._whole(), path))

    def _of_rank(self, every: Mapping[str, Factors]) -> dict[str, Factors]:
        model, stage = self._model, stage_of(self._model)
        out = {}
        for name, factors in every.items():
            here = name if stage is None else stage.name_of(name)
            if here is not None:
                module, own = shard_of_adapter(model, here, factors)
                out[module] = own.to(model.embed_tokens.weight)
        return out

    def _add(self, name: str, number: int, factors: Factors) -> None:
        if name not in self._layers:
            adapters = self._layers[name] = {}

            def add(_: object, given: Any, out: Tensor) -> Tensor:
                for adapter, first, end in self.rows:
                    if adapter in adapters:
                        down, up = adapters[adapter]
                        # One request's rows or several: a row of the product depends on its own input alone.
                        out[..., first:end, :] += up(down(given[0][..., first:end, :]))
                return out

            self._model.get_submodule(name).register_forward_hook(add)
        down, up = (_packed(weight, self._invariant) for weight in factors)
        self._layers[name][number] = down, up

    @contextlib.contextmanager
    def step(self, adapters: list[int], starts: Tensor) -> Iterator[None]:
        """In it rows of requests go through the layers: starts[r] to starts[r + 1] - 1 are request r's.

        Args:
            adapters: number of each request's; 0 for none.
            starts: [requests + 1].
        """
        if any(adapters):
            bounds = starts.tolist()
            self.rows = _joined([(a, bounds[r], bounds[r + 1]) for r, a in enumerate(adapters)])
        try:
            yield
        finally:
            self.rows = []

    def begin_head(self, logit_rows: Tensor) -> None:
        """Says that of these rows some go on, [L].

        Args:
            logit_rows: row numbers.
        """
        if self.rows:
            own = wt.tensor([end for _, _, end in self.rows])
            counts = wt.searchsorted(logit_rows.cpu(), own).tolist()
            self.rows = [(a, at, to) for (a, _, _), at, to in zip(self.rows, [0, *counts], counts)]


def _joined(rows: Rows) -> Rows:
    """With what one adapter does to rows that follow each other done at once."""
    out: Rows = []
    for adapter, first, end in rows:
        if out and out[-1][0] == adapter:
            first = out.pop()[1]
        out.append((adapter, first, end))
    return out
