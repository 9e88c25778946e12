"""Hugging Face's folders: a config.json, and safetensors files with their names of tensors."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from warptape import core as wt

from .. import nn
from ..core import Tensor
from ..distributed import checkpoint
from ..serialization.files import replace_file
from ..utils.safetensors import save_sharded
from ._sources import CodedLayers, Make, Source, fill, find
from .config import ConfigBase

if TYPE_CHECKING:
    from warptape.core.types import Device

CONFIG = "config.json"
LARGEST_CONFIG = 1 << 26
Self = TypeVar("Self", bound="PreTrained")


def read_json(path: str) -> Mapping[str, Any]:
    """The object in a JSON file. ValueError for anything else, FileNotFoundError.

    Args:
        path: of the file.
    """
    try:
        with open(path, "rb") as file:
            data = file.read(LARGEST_CONFIG + 1)
        if len(data) > LARGEST_CONFIG:
            raise ValueError("it is too large")
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is no config: {error}") from error
    if not isinstance(value, dict):
        raise ValueError(f"{path} is no config: expected an object, got {type(value).__name__}")
    return value


def _stored_dtype(data: Mapping[str, Any]) -> Any:
    """The dtype of a folder's weights by its config; float32 where it says none."""
    name = data.get("dtype") or data.get("torch_dtype") or "float32"
    name = str(name).removeprefix("torch.")
    if name not in ("float32", "float16", "bfloat16", "float64"):
        raise ValueError(f"dtype {name!r:.40} is not supported, only float32, float16, bfloat16 and float64")
    return getattr(wt, name)


class PreTrained(nn.Module):
    """A model that a config describes.

    Args:
        dtype, device: of the parameters.
    """

    config: Any
    config_class: type[ConfigBase]

    def __init__(self, config: Any) -> None:
        super().__init__()
        if not isinstance(config, self.config_class):
            raise TypeError(
                f"{type(self).__name__}: expected a {self.config_class.__name__}, got {type(config).__name__}"
            )
        self.config = config

    def tie_weights(self) -> None:
        """Makes one parameter of those that the config ties."""

    def name_map(self) -> checkpoint.NameMap:
        """Hugging Face's names of this model's tensors, for warptape.distributed.checkpoint too."""
        return self.config.names

    @wt.no_grad()
    def reset_parameters(self) -> None:
        """Matrices and sinks from a normal distribution, biases 0, norms 1; as GPT-2, those that add to the
        residual stream are smaller by the root of their number."""
        std = self.config.initializer_range
        residual = std / math.sqrt(2 * self.config.num_hidden_layers)
        for name, parameter in self.named_parameters():
            if parameter.ndim > 1:
                adds = name.endswith(("o_proj.weight", "down_proj.weight"))
                nn.init.normal_(parameter, std=residual if adds else std)
            elif name.endswith(".bias"):
                nn.init.zeros_(parameter)
            elif name.endswith(".sinks"):
                nn.init.normal_(parameter, std=std)

    @classmethod
    def _completed(cls, config: Any, folder: str | os.PathLike[str]) -> Any:
        """The config with what only a folder's tensors say."""
        return config

    @classmethod
    def from_pretrained(
        cls: type[Self],
        folder: str | os.PathLike[str],
        dtype: wt.dtype | None = None,
        device: Device = None,
        *,
        coded: Make | None = None,
    ) -> Self:
        """The model in a folder with `config.json` and `model.safetensors`, or several such files and their
        index. It is in evaluation mode. With an initialised process group every rank calls it.

        A folder's matrices may be stored in few bits, as `quantized.source_of` has them, and `folder` may be
        a GGUF file of a decoder: they become floating ones of `dtype`.

        Args:
            dtype: of the parameters; None: what the config says, else float32.
            device: None: the CPU.
            coded: makes a layer of a matrix that is stored in few bits, of its codes, bias and dtype
                (warptape.inference.QuantLinear.from_codes), on the CPU; None: it becomes a floating one.

        Raises:
            FileNotFoundError: no such file, or no config.json.
            ValueError: a config that is none or is not supported, and CheckpointException, which is one:
                missing, unexpected and misshapen tensors, truncated files; it names them and the file.
        """
        source: Source | None = None
        if os.path.isfile(folder):
            from .gguf_decoder import GGUFDecoder  # of the readers only the one that is needed is loaded

            source = file = GGUFDecoder(folder)
            config, dtype = file.config, file.dtype if dtype is None else dtype
        else:
            path = os.path.join(os.fspath(folder), CONFIG)
            data = dict(read_json(path))
            settings = data.pop("quantization_config", None)
            try:
                dtype = _stored_dtype(data) if dtype is None else dtype
                config = cls.config_class.from_hf(data)
            except ValueError as error:
                raise ValueError(f"{path}: {error}") from error
            config = cls._completed(config, folder)
            if settings is not None:
                from .quantized import source_of

                source = source_of(folder, settings)
        model = cls(config, dtype=dtype, device="meta")  # type: ignore[call-arg]
        if source is None:
            model.to_empty(device=device or "cpu")
            model.tie_weights()
            checkpoint.load_huggingface(model, folder, model.name_map())
            return model.eval()
        places = find(model, source.names or model.name_map(), source)
        layers = None if coded is None else CodedLayers(model, places, source, coded)
        model.to_empty(device=device or "cpu")
        model.tie_weights()
        fill(model, places, source)
        if layers is not None:
            layers.put_back()
        return model.eval()

    def save_pretrained(self, folder: str | os.PathLike[str], max_shard_size: int | str = "5GB") -> None:
        """Writes what `from_pretrained` and transformers read: config.json, safetensors files and, where they
        are several, their index. Each file is whole or is not there; the config comes last.

        Args:
            max_shard_size: bytes of a file, unless one tensor has more; also as "500MB" or "5GB".

        Raises: ValueError for a config that its architecture cannot have, and for parameters of which this
        process has a part: save a checkpoint and convert it by `save_huggingface(.., model.name_map())`.
        """
        config = self.config.to_hf()
        own = {id(p): name for name, p in reversed(list(self.named_parameters()))}
        state: dict[str, Tensor] = {name: p for name, p in self.named_parameters() if own[id(p)] == name}
        config["dtype"] = config["torch_dtype"] = str(next(iter(state.values())).dtype).rpartition(".")[2]
        save_sharded(checkpoint.theirs_of(state, self.name_map()), folder, max_shard_size)
        text = json.dumps(config, indent=2) + "\n"
        replace_file(os.path.join(os.fspath(folder), CONFIG), [text.encode()])
