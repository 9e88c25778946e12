"""Linear layers with weights in few bits: quantize_ and its configurations, as torchao.quantization.

The weights become tensors of core/coded.py, so the model keeps its modules, state_dict and files; LLM serves
it as it is.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape import nn

from ...core.coded import GROUPS, CodedTensor, Float8Tensor, QuantizedTensor
from . import qat
from ._report import QuantizationReport

if TYPE_CHECKING:
    from warptape.core.types import Device

Filter = Callable[[nn.Module, str], bool]


@dataclass
class _Config:
    """What quantize_ takes; `bits` and `group` of QuantizedTensor."""

    def make(self, weight: wt.Tensor) -> CodedTensor:
        """The weight in few bits.

        Args:
            weight: [out, in].
        """
        raise NotImplementedError

    def check(self) -> None:
        """Raises what is wrong with the settings, before anything is changed."""

    def group(self) -> int:
        """Inputs that share a scale; 0: all of an output."""
        return 0


@dataclass
class Int4WeightOnlyConfig(_Config):
    """4 bits, a scale and a minimum for each group of inputs. F.linear without gradients also rounds its
    input to 8 bits by row and group.

    Args:
        group_size: 32, 64 or 128.
    """

    group_size: int = 32

    def group(self) -> int:
        return self.group_size

    def check(self) -> None:
        if self.group_size not in GROUPS[1:]:
            raise ValueError(
                f"Int4WeightOnlyConfig: group_size must be 32, 64 or 128, got {self.group_size!r}"
            )

    def make(self, weight: wt.Tensor) -> CodedTensor:
        return QuantizedTensor.from_float(weight, 4, self.group_size)


@dataclass
class Int8WeightOnlyConfig(_Config):
    """8 bits, symmetric, a scale for each output or group of inputs. The kernels of this runtime multiply
    bytes with bytes: F.linear without gradients rounds its input to 8 bits, too, by row and group (128
    inputs).

    Args:
        group_size: None for one scale an output, or 32, 64 or 128.
    """

    group_size: int | None = None

    def group(self) -> int:
        return self.group_size or 0

    def check(self) -> None:
        if self.group_size is not None and self.group_size not in GROUPS[1:]:
            raise ValueError(
                f"{type(self).__name__}: group_size must be None, 32, 64 or 128, got {self.group_size!r}"
            )

    def make(self, weight: wt.Tensor) -> CodedTensor:
        return QuantizedTensor.from_float(weight, 8, self.group())


@dataclass
class Int8DynamicActivationInt8WeightConfig(Int8WeightOnlyConfig):
    """Weights of 8 bits, a scale for each output; the input is rounded to 8 bits by row as it comes. The same
    codes and kernels as Int8WeightOnlyConfig's."""


@dataclass
class Float8WeightOnlyConfig(_Config):
    """Weights stored as float8_e4m3fn with a scale for each output; products are of the input's dtype.

    Args:
        weight_dtype: float8_e4m3fn, which None stands for.
    """

    weight_dtype: Any = None

    def check(self) -> None:
        if self.weight_dtype not in (None, wt.float8_e4m3fn):
            raise ValueError(
                f"Float8WeightOnlyConfig: weight_dtype must be float8_e4m3fn, got {self.weight_dtype}"
            )

    def make(self, weight: wt.Tensor) -> CodedTensor:
        return Float8Tensor.from_float(weight)


@dataclass
class Float8DynamicActivationFloat8WeightConfig(_Config):
    """Products of float8, which no device of this runtime has yet: NotImplementedError."""

    def check(self) -> None:
        raise NotImplementedError(
            "Float8DynamicActivationFloat8WeightConfig: products of float8 have no kernel on any device "
            "here; Float8WeightOnlyConfig stores weights as float8"
        )


@dataclass
class QATConfig:
    """Training with weights and inputs rounded as they will be.

    Args:
        base_config: what the layers are to become.
        step: "prepare" puts qat.FakeQuantizedLinear in place of linear layers; "convert" puts linear layers
            back and quantises them by base_config.
    """

    base_config: Any = None
    step: str = "prepare"


@dataclass
class FqnToConfig:
    """Configurations by path of a layer, `re:` and a regular expression for whole paths, or `_default`; None
    leaves a layer alone. The most particular one counts."""

    fqn_to_config: Mapping[str, Any] = field(default_factory=dict)

    def of(self, name: str) -> Any:
        """The configuration of a layer.

        Args:
            name: its path.
        """
        table = self.fqn_to_config
        if name in table:
            return table[name]
        for key, config in table.items():
            if key.startswith("re:") and re.fullmatch(key[3:], name):
                return config
        return table.get("_default")


ModuleFqnToConfig = FqnToConfig


def is_linear(module: nn.Module, name: str) -> bool:
    """The default filter of quantize_: linear layers, but those whose own name is lm_head.

    Args:
        module: any.
        name: its path.
    """
    return isinstance(module, nn.Linear) and name.rpartition(".")[2] != "lm_head"


def _reason_against(module: nn.Module) -> str | None:
    if type(module) not in (nn.Linear, qat.FakeQuantizedLinear):
        return f"{type(module).__name__} is no linear layer that kernels for few bits serve"
    weight: Any = module.weight
    if isinstance(weight, CodedTensor):
        return f"its weight is a {type(weight).__name__} already"
    if not weight.is_floating_point() or weight.numel() == 0:
        return f"its weight is {weight.dtype} of shape {tuple(weight.shape)}"
    return None


def _choose(
    model: nn.Module, config_of: Callable[[str], Any], filter_fn: Filter
) -> tuple[dict[str, tuple[nn.Module, Any]], QuantizationReport]:
    """The layers to be changed, with their configurations."""
    report, chosen = QuantizationReport(), {}
    for name, module in model.named_modules():
        if not any(p.ndim > 1 for p in module.parameters(recurse=False)):
            continue
        config = config_of(name)
        wanted = filter_fn(module, name)
        reason = _reason_against(module)
        if reason is None and not wanted:
            reason = "left alone by the filter"
        if reason is None and config is None:
            reason = "no configuration names it"
        if reason is not None:
            report.skipped[name] = reason
        else:
            chosen[name] = (module, config)
    return chosen, report


def _check_groups(chosen: dict[str, tuple[nn.Module, Any]]) -> None:
    uneven = [
        f"{name} ({module.in_features} inputs)"  # type: ignore[union-attr]
        for name, (module, config) in chosen.items()
        if config.group() and module.in_features % config.group()  # type: ignore[operator]
    ]
    if uneven:
        raise ValueError(
            f"quantize_: groups do not divide the inputs of {', '.join(uneven)}; take another group_size, or "
            "leave these layers out by filter_fn"
        )


def quantize_(
    model: nn.Module, config: Any, filter_fn: Filter | None = None, device: Device = None
) -> QuantizationReport:
    """Puts the weights of linear layers into few bits, in place.

    Args:
        config: Int4WeightOnlyConfig, Int8WeightOnlyConfig, Int8DynamicActivationInt8WeightConfig,
            Float8WeightOnlyConfig, QATConfig or FqnToConfig.
        filter_fn: (module, path) -> whether a layer is meant; by default linear layers that are not named
            lm_head. Embeddings stay.
        device: where the model is moved to, None for nowhere.

    Returns: which layers are in few bits now, and which are not, with the reason.

    Raises: TypeError for another config, ValueError for groups that do not divide a layer's inputs and for
    weights that are not finite. The model is unchanged then.
    """
    if isinstance(config, QATConfig):
        return _quantize_for_training(model, config, filter_fn or is_linear)
    configs = list(config.fqn_to_config.values()) if isinstance(config, FqnToConfig) else [config]
    for each in configs:
        if each is not None and not isinstance(each, _Config):
            raise TypeError(
                "quantize_: expected one of the configurations, such as Int4WeightOnlyConfig(), got "
                f"{each!r:.80}"
            )
        if each is not None:
            each.check()
    config_of = config.of if isinstance(config, FqnToConfig) else lambda name: config
    chosen, report = _choose(model, config_of, filter_fn or is_linear)
    _check_groups(chosen)
    replaced: dict[int, Any] = {}
    for name, (module, own) in chosen.items():  # all are made before any takes its place
        weight: Any = module.weight
        if id(weight) not in replaced:
            try:
                replaced[id(weight)] = nn.Parameter(own.make(weight), requires_grad=False)
            except ValueError as error:
                raise ValueError(f"quantize_: {name}: {error}") from error
    for name, (module, own) in chosen.items():
        module.weight = replaced[id(module.weight)]
        report.quantized[name] = type(own).__name__
    if device is not None:
        model.to(device)
    return report


def _quantize_for_training(model: nn.Module, config: QATConfig, filter_fn: Filter) -> QuantizationReport:
    base = config.base_config
    if config.step not in ("prepare", "convert"):
        raise ValueError(f'QATConfig: step must be "prepare" or "convert", got {config.step!r}')
    if base is not None and not isinstance(base, _Config):
        raise TypeError(f"QATConfig: expected a base_config such as Int4WeightOnlyConfig(), got {base!r:.80}")
    if config.step == "convert":
        for name, module in list(model.named_modules()):
            if isinstance(module, qat.FakeQuantizedLinear):
                base = base or module.config
                qat.put(model, name, module.to_linear())
        if base is None:
            raise ValueError('QATConfig: there is no layer that the step "prepare" made')
        return quantize_(model, base, filter_fn)
    if base is None or base.group() is None or isinstance(base, Float8WeightOnlyConfig):
        raise ValueError(
            "QATConfig: training needs a base_config of integers, such as Int4WeightOnlyConfig()"
        )
    base.check()
    chosen, report = _choose(model, lambda name: base, filter_fn)
    _check_groups(chosen)
    for name, (module, _) in chosen.items():
        qat.put(model, name, qat.FakeQuantizedLinear.from_linear(module, base))
        report.quantized[name] = "FakeQuantizedLinear"
    return report


def quantize_dynamic(
    model: nn.Module,
    qconfig_spec: Any = None,
    dtype: wt.dtype | None = None,
    mapping: dict[type, type] | None = None,
    inplace: bool = False,
) -> nn.Module:
    """A copy of the model whose linear layers have weights of 8 bits, as torch.ao.quantization has it.

    Args:
        qconfig_spec: a set of classes and paths of layers, or a dict with these as keys; None: linear layers.
        dtype: None, qint8 or int8.
        inplace: change the model itself.
    """
    if dtype is not None and str(dtype).rpartition(".")[2] not in ("qint8", "int8"):
        raise ValueError(f"quantize_dynamic: dtype must be qint8, got {dtype}")
    model = model if inplace else copy.deepcopy(model)
    meant = set(qconfig_spec) if qconfig_spec is not None else {nn.Linear}

    def is_meant(module: nn.Module, name: str) -> bool:
        inside = any(
            isinstance(each, str) and (name == each or name.startswith(f"{each}.")) for each in meant
        )
        return isinstance(module, nn.Linear) and (inside or type(module) in meant)

    quantize_(model, Int8DynamicActivationInt8WeightConfig(), is_meant)
    return model
