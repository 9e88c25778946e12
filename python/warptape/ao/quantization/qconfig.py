"""Which observers a model's activations and weights get, as torch.ao.quantization.qconfig and
qconfig_mapping."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, NamedTuple

from .fake_quantize import default_fake_quant, default_per_channel_weight_fake_quant
from .observer import (
    default_histogram_observer,
    default_observer,
    default_per_channel_weight_observer,
    default_placeholder_observer,
)


class QConfig(NamedTuple):
    """Factories of the observer or FakeQuantize of a layer's result and of its weight.

    Args:
        activation, weight: called without arguments.
    """

    activation: Any
    weight: Any


default_qconfig = QConfig(default_observer, default_per_channel_weight_observer)
default_dynamic_qconfig = QConfig(default_placeholder_observer, default_per_channel_weight_observer)
default_per_channel_qconfig = default_qconfig
default_qat_qconfig = QConfig(default_fake_quant, default_per_channel_weight_fake_quant)


def get_default_qconfig(backend: str = "x86", version: int = 0) -> QConfig:
    """Histograms for activations, the extremes of each channel for weights. All backends are one here.

    Args:
        backend, version: without effect.
    """
    return QConfig(default_histogram_observer, default_per_channel_weight_observer)


def get_default_qat_qconfig(backend: str = "x86", version: int = 1) -> QConfig:
    """FakeQuantize by moving averages for activations, by each channel's extremes for weights.

    Args:
        backend, version: without effect.
    """
    return default_qat_qconfig


class QConfigMapping:
    """Which QConfig a layer has; None leaves it in floats. The most particular one counts: by name, by
    regular expression, by type, for all."""

    def __init__(self) -> None:
        self.global_qconfig: QConfig | None = None
        self.object_type_qconfigs: OrderedDict[Any, QConfig | None] = OrderedDict()
        self.module_name_regex_qconfigs: OrderedDict[str, QConfig | None] = OrderedDict()
        self.module_name_qconfigs: OrderedDict[str, QConfig | None] = OrderedDict()

    @classmethod
    def from_dict(cls, qconfig_dict: dict[str, Any]) -> QConfigMapping:
        """From {"": for all, "object_type": [(type, qconfig)], "module_name": [..], ..}.

        Raises:
            ValueError: another key.
        """
        config = cls()
        for key, value in qconfig_dict.items():
            if key == "":
                config.set_global(value)
            elif key in ("object_type", "module_name_regex", "module_name"):
                for what, qconfig in value:
                    getattr(config, f"set_{key}")(what, qconfig)
            else:
                raise ValueError(f"QConfigMapping.from_dict: expected no key {key!r}")
        return config

    def set_global(self, global_qconfig: QConfig | None) -> QConfigMapping:
        """For all layers that nothing else is said of.

        Args:
            global_qconfig: None leaves them as they are.
        """
        self.global_qconfig = global_qconfig
        return self

    def set_object_type(self, object_type: Any, qconfig: QConfig | None) -> QConfigMapping:
        """For layers of a class, nn.Conv2d or nn.Linear.

        Args:
            object_type: the class.
            qconfig: None leaves them as they are.
        """
        self.object_type_qconfigs[object_type] = qconfig
        return self

    def set_module_name_regex(self, module_name_regex: str, qconfig: QConfig | None) -> QConfigMapping:
        """For layers whose path matches from its beginning; the first expression counts.

        Args:
            module_name_regex: of `re`.
            qconfig: None leaves them as they are.
        """
        self.module_name_regex_qconfigs[module_name_regex] = qconfig
        return self

    def set_module_name(self, module_name: str, qconfig: QConfig | None) -> QConfigMapping:
        """For a layer, and what it holds, by its path.

        Args:
            module_name: as "features.0".
            qconfig: None leaves it as it is.
        """
        self.module_name_qconfigs[module_name] = qconfig
        return self

    def of(self, name: str, kind: Any) -> QConfig | None:
        """The QConfig of the layer at a path.

        Args:
            name: its path.
            kind: its class.
        """
        path = name
        while path:
            if path in self.module_name_qconfigs:
                return self.module_name_qconfigs[path]
            path = path.rpartition(".")[0]
        for expression, qconfig in self.module_name_regex_qconfigs.items():
            if re.match(expression, name):
                return qconfig
        return self.object_type_qconfigs.get(kind, self.global_qconfig)


def get_default_qconfig_mapping(backend: str = "x86", version: int = 0) -> QConfigMapping:
    """get_default_qconfig() for all layers.

    Args:
        backend, version: without effect.
    """
    return QConfigMapping().set_global(get_default_qconfig(backend))


def get_default_qat_qconfig_mapping(backend: str = "x86", version: int = 1) -> QConfigMapping:
    """get_default_qat_qconfig() for all layers.

    Args:
        backend, version: without effect.
    """
    return QConfigMapping().set_global(get_default_qat_qconfig(backend))
