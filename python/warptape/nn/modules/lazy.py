"""Layers that take the number of their input features from the first input."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from warptape import core as wt
from warptape.core import Tensor

from ..parameter import UninitializedBuffer, UninitializedParameter, is_lazy
from .batchnorm import BatchNorm1d, BatchNorm2d, BatchNorm3d, InstanceNorm1d, InstanceNorm2d, InstanceNorm3d
from .conv import Conv1d, Conv2d, Conv3d, ConvTranspose1d, ConvTranspose2d, ConvTranspose3d
from .linear import Linear

if TYPE_CHECKING:
    from warptape.core.types import Device

    from .module import Module

__all__ = [
    "LazyBatchNorm1d",
    "LazyBatchNorm2d",
    "LazyBatchNorm3d",
    "LazyConv1d",
    "LazyConv2d",
    "LazyConv3d",
    "LazyConvTranspose1d",
    "LazyConvTranspose2d",
    "LazyConvTranspose3d",
    "LazyInstanceNorm1d",
    "LazyInstanceNorm2d",
    "LazyInstanceNorm3d",
    "LazyLinear",
]


class LazyModuleMixin:
    """Put before a module's class: tensors may be uninitialised until `initialize_parameters`, which gets the
    first forward's arguments, materialises them. The module then becomes a `cls_to_become`.

    `_count` names the attribute with the number of input features, 0 until then.
    """

    cls_to_become: type | None = None
    _count = ""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        module: Any = self
        self._load_hook = module._register_load_state_dict_pre_hook(self._lazy_load_hook)
        self._initialize_hook = module.register_forward_pre_hook(self._infer_parameters, with_kwargs=True)

    def _named(self) -> list[tuple[str, Any]]:
        module: Any = self
        return [*module._parameters.items(), *module._buffers.items()]

    def has_uninitialized_params(self) -> bool:
        """Whether a parameter or buffer of this module is still to be materialised.

        After the first forward, or after a state dict was loaded, it is false.
        """
        return any(is_lazy(tensor) for _, tensor in self._named())

    def initialize_parameters(self, *args: Any, **kwargs: Any) -> None:
        """Materialises what is uninitialised, given the arguments of a forward.

        A layer of one's own overrides it and calls `materialize` of each parameter.

        Raises: NotImplementedError here.
        """
        raise NotImplementedError(f"initialize_parameters is not implemented for {type(self).__name__}")

    def reset_parameters(self) -> None:
        """As the module's own, once there is something to set.

        While parameters are uninitialised it does nothing.
        """
        if not self.has_uninitialized_params() and getattr(self, self._count) != 0:
            super().reset_parameters()  # type: ignore[misc]

    def _materialize(self, count: int, **shapes: Any) -> None:
        setattr(self, self._count, count)
        if not self.has_uninitialized_params():  # they were loaded
            return
        with wt.no_grad():
            for name, shape in shapes.items():
                tensor = getattr(self, name)
                if is_lazy(tensor):
                    tensor.materialize(shape)
        self.reset_parameters()

    def _infer_parameters(
        self, module: Module, args: tuple[Any, ...], kwargs: dict[str, Any] | None = None
    ) -> None:
        module.initialize_parameters(*args, **(kwargs or {}))
        if module.has_uninitialized_params():
            raise RuntimeError(f"module {module._get_name()} has not been fully initialized")
        for hook in ("_initialize_hook", "_load_hook"):
            getattr(module, hook).remove()
            delattr(module, hook)
        if module.cls_to_become is not None:
            module.__class__ = module.cls_to_become

    def _lazy_load_hook(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Tensors that are uninitialised take the shapes of those that are loaded."""
        for name, tensor in self._named():
            value = state_dict.get(prefix + name)
            if is_lazy(tensor) and value is not None and not is_lazy(value):
                with wt.no_grad():
                    tensor.materialize(value.shape)

    def _apply(self, fn: Callable[..., Any], recurse: bool = True) -> Any:
        buffers = self._buffers  # type: ignore[attr-defined]
        lazy = [name for name, buffer in buffers.items() if is_lazy(buffer)]
        super()._apply(fn, recurse)  # type: ignore[misc]
        for name in lazy:  # fn made a plain tensor of it
            buffers[name] = UninitializedBuffer(device=buffers[name].device, dtype=buffers[name].dtype)
        return self

    def _save_to_state_dict(self, destination: dict[str, Any], prefix: str, keep_vars: bool) -> None:
        module: Any = self
        for name, tensor in module._own_tensors():
            destination[prefix + name] = tensor if keep_vars or is_lazy(tensor) else tensor.detach()


class LazyLinear(LazyModuleMixin, Linear):
    """A Linear from as many features as the last dim of its first input has.

    Args:
        out_features: size of the output's last dimension.
        bias: whether the bias is there.
        device, dtype: of the parameters.

    >>> layer = nn.LazyLinear(4)
    >>> layer(torch.ones(2, 3)).shape, layer
    (torch.Size([2, 4]), Linear(in_features=3, out_features=4, bias=True))
    """

    cls_to_become = Linear
    _count = "in_features"

    def __init__(
        self, out_features: int, bias: bool = True, device: Device = None, dtype: wt.dtype | None = None
    ) -> None:
        super().__init__(0, 0, False, device, dtype)
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        self.out_features = out_features
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)

    def initialize_parameters(self, input: Tensor) -> None:
        n = int(input.shape[-1])
        self._materialize(n, weight=(self.out_features, n), bias=(self.out_features,))


class _LazyChannels(LazyModuleMixin):
    _count = "in_channels"

    def initialize_parameters(self, input: Tensor, *args: Any, **kwargs: Any) -> None:
        conv: Any = self
        n = conv._n
        if input.dim() not in (n + 1, n + 2):
            raise RuntimeError(
                f"Expected {n + 1}D (unbatched) or {n + 2}D (batched) input to {type(self).__name__}, but "
                f"got input of size: {tuple(input.shape)}"
            )
        inner, outer = int(input.shape[-n - 1]), conv.out_channels
        if inner % conv.groups:
            raise ValueError("in_channels must be divisible by groups")
        first, second = (inner, outer) if conv._transposed else (outer, inner)
        shape = (first, second // conv.groups, *conv.kernel_size)
        self._materialize(inner, weight=shape, bias=(outer,))

    def _lay_out(self, out_channels: int, bias: bool, device: Device, dtype: wt.dtype | None) -> None:
        self.out_channels = out_channels
        self.weight = UninitializedParameter(device=device, dtype=dtype)
        if bias:
            self.bias = UninitializedParameter(device=device, dtype=dtype)


class _LazyConv(_LazyChannels):
    def __init__(
        self,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        dilation: int | Sequence[int] = 1,
        groups: int = 1,
        bias: bool = True,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """The arguments of the convolution but in_channels, which the first input tells.

        Args:
            out_channels: channels of the output.
            kernel_size, stride, padding, dilation, groups, bias, padding_mode, device, dtype: as of the
                convolution.
        """
        sizes = (0, 0, kernel_size, stride, padding, dilation)
        super().__init__(*sizes, groups, False, padding_mode, device, dtype)
        self._lay_out(out_channels, bias, device, dtype)


class _LazyConvTranspose(_LazyChannels):
    def __init__(
        self,
        out_channels: int,
        kernel_size: int | Sequence[int],
        stride: int | Sequence[int] = 1,
        padding: int | Sequence[int] | str = 0,
        output_padding: int | Sequence[int] = 0,
        groups: int = 1,
        bias: bool = True,
        dilation: int = 1,
        padding_mode: str = "zeros",
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """The arguments of the transposed convolution but in_channels, which the first input tells.

        Args:
            out_channels: channels of the output.
            kernel_size, stride, padding, output_padding, groups, bias, dilation, padding_mode, device, dtype:
                as of the convolution.
        """
        sizes = (0, 0, kernel_size, stride, padding, output_padding)
        super().__init__(*sizes, groups, False, dilation, padding_mode, device, dtype)
        self._lay_out(out_channels, bias, device, dtype)


class _LazyNorm(LazyModuleMixin):
    _count = "num_features"

    def __init__(
        self,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
        *,
        bias: bool = True,
    ) -> None:
        """The arguments of the norm but num_features, which the first input tells.

        Args:
            eps, momentum, affine, track_running_stats, device, dtype, bias: as of the norm.
        """
        factory: dict[str, Any] = {"device": device, "dtype": dtype}
        super().__init__(0, eps, momentum, False, False, **factory, bias=bias)
        self.affine, self.track_running_stats = affine, track_running_stats
        if affine:
            self.weight = UninitializedParameter(**factory)
            if bias:
                self.bias = UninitializedParameter(**factory)
        if track_running_stats:
            self.running_mean = UninitializedBuffer(**factory)
            self.running_var = UninitializedBuffer(**factory)
            self.num_batches_tracked = wt.tensor(0, dtype=wt.long, device=device)

    def initialize_parameters(self, input: Tensor) -> None:
        n = int(input.shape[1])
        names = ("weight", "bias", "running_mean", "running_var")
        self._materialize(n, **dict.fromkeys(names, (n,)))


def _lazy(base: type, mixin: type) -> Any:
    sizes = [2] * (base._dims[-1] - 2 if mixin is _LazyNorm else base._n)  # type: ignore[attr-defined]
    arguments = "" if mixin is _LazyNorm else "8, 1"
    doc = (
        f"A {base.__name__} of as many channels as its first input has.\n\n"
        f"The first forward gives it its parameters and turns it into a {base.__name__}.\n\n"
        f">>> layer = nn.Lazy{base.__name__}({arguments})\n"
        f">>> layer(torch.ones({', '.join(map(str, [1 + (mixin is _LazyNorm), 3, *sizes]))})).shape\n"
        f"torch.Size({[1 + (mixin is _LazyNorm), 3 if mixin is _LazyNorm else 8, *sizes]})\n"
        f">>> type(layer).__name__\n'{base.__name__}'\n"
    )
    return type(
        f"Lazy{base.__name__}", (mixin, base), {"cls_to_become": base, "__doc__": doc, "__module__": __name__}
    )


LazyConv1d, LazyConv2d, LazyConv3d = (_lazy(c, _LazyConv) for c in (Conv1d, Conv2d, Conv3d))
LazyConvTranspose1d, LazyConvTranspose2d, LazyConvTranspose3d = (
    _lazy(c, _LazyConvTranspose) for c in (ConvTranspose1d, ConvTranspose2d, ConvTranspose3d)
)
LazyBatchNorm1d, LazyBatchNorm2d, LazyBatchNorm3d = (
    _lazy(c, _LazyNorm) for c in (BatchNorm1d, BatchNorm2d, BatchNorm3d)
)
LazyInstanceNorm1d, LazyInstanceNorm2d, LazyInstanceNorm3d = (
    _lazy(c, _LazyNorm) for c in (InstanceNorm1d, InstanceNorm2d, InstanceNorm3d)
)
