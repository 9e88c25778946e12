"""prepare and convert of torch.ao.quantization, which work on copies of models that warptape.fx can trace.

The QConfig of each layer is its attribute `qconfig`, or that of a module that holds it.
"""

from __future__ import annotations

import copy
from typing import Any

from warptape import nn
from warptape.nn.utils.fusion import fuse_conv_bn_eval, fuse_linear_bn_eval

from .qconfig import QConfigMapping
from .quantize_fx import convert_fx, prepare_fx, prepare_qat_fx


def _mapping_of(model: nn.Module) -> QConfigMapping:
    mapping = QConfigMapping().set_global(getattr(model, "qconfig", None))
    has_qconfig = getattr(model, "qconfig", None) is not None
    for name, module in model.named_modules():
        if name and "qconfig" in module.__dict__:
            mapping.set_module_name(name, module.qconfig)  # type: ignore[arg-type]
            has_qconfig = True
    if not has_qconfig:
        raise ValueError('prepare: no module has a qconfig; set model.qconfig = get_default_qconfig("x86")')
    return mapping


def _apart(call: str, inplace: bool) -> None:
    if inplace:
        raise NotImplementedError(f"{call}: inplace=True is not supported; the result is a traced copy")


def prepare(model: nn.Module, inplace: bool = False, **unused: Any) -> nn.Module:
    """A copy with observers; see prepare_fx.

    Args:
        model: with `qconfig` attributes.
        inplace: must be False.
        **unused: without effect.
    """
    _apart("prepare", inplace)
    return prepare_fx(model, _mapping_of(model))


def prepare_qat(
    model: nn.Module, mapping: dict[type, type] | None = None, inplace: bool = False
) -> nn.Module:
    """A copy to be trained; see prepare_qat_fx.

    Args:
        model: with `qconfig` attributes.
        mapping: without effect.
        inplace: must be False.
    """
    _apart("prepare_qat", inplace)
    return prepare_qat_fx(model, _mapping_of(model))


def convert(
    module: Any, mapping: dict[type, type] | None = None, inplace: bool = False, **unused: Any
) -> nn.Module:
    """A model of integer layers; see convert_fx.

    Args:
        module: what `prepare` gave.
        mapping: without effect.
        inplace: must be False.
        **unused: without effect.
    """
    _apart("convert", inplace)
    return convert_fx(module)


def fuse_modules(model: nn.Module, modules_to_fuse: Any, inplace: bool = False, **unused: Any) -> nn.Module:
    """A model in which batch norms are folded into the layer before them; ReLUs stay, for convert() joins
    them.

    Args:
        modules_to_fuse: paths in the order of their calls, ["conv", "bn", "relu"], or a list of such lists.

    Raises: ValueError for other kinds of layers than a convolution or linear layer, a batch norm and a ReLU.
    """
    groups = [modules_to_fuse] if modules_to_fuse and isinstance(modules_to_fuse[0], str) else modules_to_fuse
    kinds = (nn.Conv2d | nn.Linear, nn.BatchNorm2d | nn.BatchNorm1d, nn.ReLU)
    model = model if inplace else copy.deepcopy(model)
    for names in groups:
        modules = [model.get_submodule(name) for name in names]
        places = [next((i for i, kind in enumerate(kinds) if isinstance(m, kind)), -1) for m in modules]
        if not places or places[0] != 0 or places != sorted(set(places)) or -1 in places:
            raise ValueError(
                f"fuse_modules: expected a layer, then a batch norm, a ReLU or both, got {names}"
            )
    for names in groups:
        layer, after = model.get_submodule(names[0]), model.get_submodule(names[-1 if len(names) == 2 else 1])
        if isinstance(after, nn.BatchNorm2d | nn.BatchNorm1d):
            fold = fuse_conv_bn_eval if isinstance(layer, nn.Conv2d) else fuse_linear_bn_eval
            _put(model, names[0], fold(layer.eval(), after.eval()).train(model.training))
            _put(model, names[1], nn.Identity())
    return model


def _put(model: nn.Module, path: str, module: nn.Module) -> None:
    parent, _, name = path.rpartition(".")
    setattr(model.get_submodule(parent), name, module)
