"""Other weights in an engine that runs, between two of its steps: what a trainer sends to its sampler."""

from __future__ import annotations

import os
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from warptape import core as wt
from warptape import nn

from ..core import Tensor
from ..models import Decoder
from ..utils.safetensors import SafetensorError, load_file
from .answers import Request
from .linear import Float8Linear, PackedLinear, QuantLinear
from .outputs import RequestOutput
from .pipeline_parallel import full_name, stage_of
from .ranks import Ranks
from .tensor_parallel import full_config, ranks_of, shard_of_weight

if TYPE_CHECKING:
    from ..models.adapters import Factors
    from .lora import LoRARequest

IN_FLIGHT = ("finish", "continue", "abort")


@dataclass
class NewWeights:
    """Weights that were checked and brought into the layers' order, for `LLMEngine.update_weights`.

    Attributes:
        model: whose they are.
        values: module, name of its parameter or buffer, and the new tensor.
    """

    model: nn.Module
    values: list[tuple[nn.Module, str, Tensor | None]]

    def put(self) -> None:
        """Puts them into the model. On CUDA they are copied, for graphs have the addresses; elsewhere tensors
        change places, which copies nothing."""
        with wt.no_grad():
            for module, name, new in self.values:
                old = getattr(module, name)
                if old is None or new is None:
                    setattr(module, name, new)
                elif old.device.type == "cuda":
                    old.copy_(new)
                elif isinstance(old, nn.Parameter):
                    old.data = new
                else:
                    setattr(module, name, new)


class _Place(NamedTuple):
    """Where a weight goes: a parameter or buffer of a module, with its dtype before it was packed; None: any
    floating one."""

    module: nn.Module
    name: str
    shape: tuple[int, ...]
    dtype: Any


def _places(model: nn.Module) -> Iterator[tuple[str, _Place]]:
    """Of this rank's part of a model, or of a whole one, by the names of the whole."""
    held = {*model.state_dict()}  # no buffer that is not saved
    stage = stage_of(model)
    for path, module in model.named_modules():
        if stage is not None and not stage.first and path == "embed_tokens":
            continue  # it says a dtype, and holds nothing
        dot = f"{path}." if path else ""
        if isinstance(module, (PackedLinear, QuantLinear, Float8Linear)):
            dtype = module.dtype if isinstance(module, QuantLinear) else None
            if isinstance(module, PackedLinear):
                dtype = module.packed.dtype
            shape = module.out_features, module.in_features
            yield full_name(model, f"{dot}weight"), _Place(module, "weight", shape, dtype)
            if module.bias is not None:
                bias = _Place(module, "bias", shape[:1], module.bias.dtype)
                yield full_name(model, f"{dot}bias"), bias
            continue
        for name, t in (*module.named_parameters(recurse=False), *module.named_buffers(recurse=False)):
            if f"{dot}{name}" in held:
                yield full_name(model, f"{dot}{name}"), _Place(module, name, tuple(t.shape), t.dtype)


def _shapes(model: Any, places: Mapping[str, _Place]) -> dict[str, tuple[int, ...]]:
    """Of the whole model's weights, in one order on all ranks."""
    if stage_of(model) is None and ranks_of(model) == 1:
        return {name: place.shape for name, place in places.items()}
    full = Decoder(full_config(model), device="meta")
    return {name: tuple(t.shape) for name, t in full.state_dict().items()}


def _check(name: str, t: Any, shape: tuple[int, ...], place: _Place | None, convert: bool) -> None:
    """Raises what is wrong with a weight, by what every rank of a DTensor knows of it."""
    if not isinstance(t, Tensor) and not hasattr(t, "full_tensor"):
        raise TypeError(f"update_weights: {name} must be a tensor, got {type(t).__name__}")
    if tuple(t.shape) != shape:
        raise wt.ShapeError(f"update_weights: {name} has shape {tuple(t.shape)}, the engine's has {shape}")
    if place is None:
        return  # of another rank alone
    if place.dtype is None and not t.dtype.is_floating_point:
        raise wt.DtypeError(f"update_weights: {name} is {t.dtype}, expected floating numbers")
    fits = place.dtype in (None, t.dtype) or (convert and t.dtype.is_floating_point)
    if not fits:
        raise wt.DtypeError(
            f"update_weights: {name} is {t.dtype}, the engine's is {place.dtype}; convert=True converts it"
        )
    if isinstance(place.module, QuantLinear) and place.module.order is not None:
        raise NotImplementedError(f"update_weights: {name} has a stored order of its inputs")


def _linear(weight: Tensor) -> nn.Linear:
    linear = nn.Linear(weight.shape[1], weight.shape[0], bias=False, device="meta")
    linear.weight = nn.Parameter(weight, requires_grad=False)
    return linear


def _layer(module: nn.Module, weight: Tensor) -> list[tuple[nn.Module, str, Tensor | None]]:
    """A packed layer's buffers for another weight."""
    layer_of: nn.Module
    if isinstance(module, PackedLinear):
        layer_of, names = PackedLinear(_linear(weight)), ["packed"]
    elif isinstance(module, QuantLinear):
        symmetric = module.minima is None
        layer_of = QuantLinear(_linear(weight), module.bits, module.group, symmetric, module.dtype)
        names = ["packed", "scales", "minima"]
    else:
        layer_of, names = Float8Linear(_linear(weight)), ["codes", "scales"]
    return [(module, name, getattr(layer_of, name)) for name in names]


def _given(model: Any, weights: Any, shapes: Mapping[str, Any]) -> dict[str, Any]:
    """Weights by all the names of the whole model, and no other."""
    if not isinstance(weights, Mapping):
        raise TypeError(f"update_weights: expected a state_dict, got {type(weights).__name__}")
    by_name = dict(weights)
    head, table = "lm_head.weight", "embed_tokens.weight"
    if getattr(getattr(model, "config", None), "tie_word_embeddings", False) and table in by_name:
        by_name.setdefault(head, by_name[table])
    missing, unknown = sorted(shapes.keys() - by_name.keys()), sorted(by_name.keys() - shapes.keys())
    if missing or unknown:
        raise ValueError(
            f"update_weights: {len(missing)} weights are missing, such as {missing[:3]}, and {len(unknown)} "
            f"are of nothing in the model, such as {unknown[:3]}"
        )
    return by_name


def _put_into(model: Any, name: str, t: Tensor, place: _Place) -> list[tuple[nn.Module, str, Tensor | None]]:
    """What changes in this rank's model by a whole weight."""
    part = shard_of_weight(model, name, t.detach()).to(place.dtype or t.dtype)
    if place.name == "weight" and isinstance(place.module, (PackedLinear, QuantLinear, Float8Linear)):
        return _layer(place.module, part)
    old = getattr(place.module, place.name)
    return [(place.module, place.name, part.to(old.device, copy=True))]


def prepare_weights(
    model: nn.Module, weights: Mapping[str, Any], convert: bool = False, ranks: Ranks | None = None
) -> NewWeights:
    """Checks new weights of a model that is packed for inference, and packs them beside the old ones.

    Args:
        model: is left as it is.
        weights: by the names of the whole model's own state_dict before it was packed or split: tensors, or
            DTensors, of which each rank must make this call. A tied head's weight may be left out.
        convert: whether floating weights of another dtype are converted.
        ranks: among which the model is split. Each makes this call; what fails on one fails on all.

    Raises:
        TypeError: no mapping, or something in it is no tensor.
        ValueError: names are missing, or of nothing in the model.
        ShapeError, DtypeError: a weight has another shape or dtype than the one in the model.
        NotImplementedError: a layer keeps a stored order of its inputs, as GPTQ's desc_act.
        RuntimeError: another rank alone refuses.
    """
    places = dict(_places(model))
    shapes = _shapes(model, places)

    def check() -> dict[str, Any]:
        new = _given(model, weights, shapes)
        for name, shape in shapes.items():
            _check(name, new[name], shape, places.get(name), convert)
        return new

    def pack() -> list[tuple[nn.Module, str, Tensor | None]]:
        values = []
        with wt.no_grad():
            for name in shapes:  # one after the other: no rank has two whole weights at once
                t = new[name].full_tensor() if hasattr(new[name], "full_tensor") else new[name]
                if name in places:
                    values += _put_into(model, name, t, places[name])
        return values

    new = check() if ranks is None else ranks.agreed(check)
    return NewWeights(model, pack() if ranks is None else ranks.agreed(pack))


def read_weights(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Weights for `update_weights` from a model's folder, or from a safetensors file with the names of a
    Decoder's state_dict. Such a file may lie in shared memory, as in /dev/shm: it is mapped.

    Args:
        path: of the folder or file. It must not change until the weights were taken.

    Raises: FileNotFoundError; ValueError for a damaged file; what `Decoder.from_pretrained` raises.
    """
    if os.path.isdir(path):
        return Decoder.from_pretrained(path).state_dict()
    if not os.path.isfile(path):
        raise FileNotFoundError(f"update_weights: {os.fspath(path)} is no folder and no file")
    try:
        return load_file(path)
    except SafetensorError as error:
        raise ValueError(f"update_weights: {error}") from error


class _Engine(Protocol):
    """What an engine has, whose weights are changed between two of its steps."""

    runner: Any
    ranks: Ranks | None
    weights_version: int
    _requests: dict[str, Request]
    _salts: OrderedDict[tuple[int, bytes], int]
    _drained: list[RequestOutput]

    def abort_request(self, request_id: str) -> RequestOutput | None:
        """Ends a request."""

    def step(self) -> list[RequestOutput]:
        """Computes once."""


class UpdatesWeights:
    """The part of LLMEngine that takes new weights."""

    def __init__(self) -> None:
        self.weights_version = 0
        self._drained: list[RequestOutput] = []  # of steps that an update made

    def prepare_weights(self: _Engine, weights: Mapping[str, Any], *, convert: bool = False) -> NewWeights:
        """Checks and packs weights ahead of `update_weights`, which then only puts them in. Any thread may;
        of an engine on several ranks the one that steps, and all ranks.

        Args:
            weights, convert: as there.
        """
        return prepare_weights(self.runner.model, weights, convert, self.ranks)

    def update_weights(
        self: _Engine,
        weights: Mapping[str, Any] | NewWeights,
        *,
        version: int | None = None,
        in_flight: str = "finish",
        keep_prefix_cache: bool = False,
        convert: bool = False,
    ) -> int:
        """Gives the model other weights between two steps, and returns their version.

        All is checked and packed before anything changes: after an error the engine is as it was. Answers
        say by `weights_versions` which weights drew their tokens; the first ones are 0. A draft model and
        adapters stay as they are.

        Args:
            weights: a state_dict with the names, shapes and dtypes of the Decoder's before it was packed;
                DTensors, in any layout, of which each rank must call. Or what `prepare_weights` gave. They
                are copied. An engine on several ranks takes its part of the whole weights that each rank
                gives, and all ranks call.
            version: a number above the last one; the next one unless given.
            in_flight: what becomes of requests that are there: "finish", they are answered with the old
                weights first, within this call, and the next `step()` gives what came of it; "continue",
                they go on with the new weights, while keys and values that are there stay those of the old
                ones; "abort", they end with the finish_reason "abort", which the next `step()` tells.
            keep_prefix_cache: whether new requests may find keys and values of the old weights.
            convert: whether floating weights of another dtype are converted.

        Raises:
            TypeError: no state_dict, or something in it is no tensor.
            ValueError: names are missing or unknown, another in_flight, a version that is not above the last.
            ShapeError, DtypeError: a weight has another shape or dtype.
            NotImplementedError: a layer with a stored order of its inputs.
            RuntimeError: another rank alone refuses.

        Example::

            >>> engine.update_weights(model.state_dict(), in_flight="continue")
            1
        """
        new = _next_version(self, version, in_flight)
        if not isinstance(weights, NewWeights):
            weights = prepare_weights(self.runner.model, weights, convert, self.ranks)
        elif weights.model is not self.runner.model:
            raise ValueError("update_weights: these weights were prepared for another engine")
        _change(self, weights.put, new, in_flight, keep_prefix_cache)
        return new

    def update_adapter(
        self: _Engine,
        lora_request: LoRARequest,
        factors: Mapping[str, Factors],
        *,
        version: int | None = None,
        in_flight: str = "finish",
        keep_prefix_cache: bool = False,
    ) -> int:
        """Gives an adapter other factors between two steps, or a first time, and returns their version, which
        is one of weights, too. Its folder is not read.

        Args:
            lora_request: the adapter's.
            factors: by names of the whole model's linear layers, as `models.Adapter` has them. They are
                copied, in the dtype of the model. On several ranks each gives them all, and all call.
            version, in_flight, keep_prefix_cache: as of `update_weights`, for all requests.

        Raises:
            ValueError: a name of no linear layer; another in_flight, a version that is not above the last.
            ShapeError: factors of another shape. After an error the engine is as it was.
        """
        new = _next_version(self, version, in_flight)
        adapters = self.runner.adapters
        with wt.no_grad():
            copies = {name: type(each)(*(t.detach().clone() for t in each)) for name, each in factors.items()}
            parts = adapters.parts(copies)
        _change(self, lambda: adapters.put(lora_request, parts), new, in_flight, keep_prefix_cache)
        return new


def _next_version(engine: _Engine, version: int | None, in_flight: str) -> int:
    """The version that weights get. ValueError for one that is none, and for another in_flight."""
    if in_flight not in IN_FLIGHT:
        raise ValueError(f"update_weights: in_flight must be one of {IN_FLIGHT}, got {in_flight!r}")
    new = engine.weights_version + 1 if version is None else version
    if type(new) is not int or new <= engine.weights_version:
        raise ValueError(
            f"update_weights: version must be a number above {engine.weights_version}, got {version!r}"
        )
    return new


def _change(
    engine: _Engine, put: Callable[[], None], version: int, in_flight: str, keep_prefix_cache: bool
) -> None:
    """Puts in what was prepared, once requests that are there are as they shall be."""
    if in_flight == "finish":
        _finish(engine)
    elif in_flight == "abort":
        ended = [engine.abort_request(request_id) for request_id in [*engine._requests]]
        engine._drained += [output for output in ended if output is not None]
    put()
    if not keep_prefix_cache:
        engine._salts.clear()  # their numbers are never given again, so that nothing is found by them
    engine.weights_version = version


def _finish(engine: _Engine) -> None:
    """Answers all requests that are there."""
    outputs, engine._drained = engine._drained, []
    try:
        while engine._requests:
            outputs += engine.step()
    finally:
        engine._drained = outputs
