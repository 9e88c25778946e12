"""Recurrent layers. Legend: T steps, B batch, N rows of a packed batch, I input_size, H hidden_size, R what
recurs (proj_size, or H), D directions, L layers, G gates."""

from __future__ import annotations

import math
import numbers
import warnings
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from warptape import _C
from warptape import core as wt
from warptape.amp.autocast_mode import is_autocast_enabled
from warptape.core import Tensor

from .. import init
from ..packed_sequence import PackedSequence
from ..parameter import Parameter
from .module import Module

if TYPE_CHECKING:
    from warptape.core.types import Device

__all__ = ["GRU", "LSTM", "RNN", "GRUCell", "LSTMCell", "RNNBase", "RNNCell", "RNNCellBase"]

_layer: Any = _C._private.recurrent_layer
_GATES = {"LSTM": 4, "GRU": 3, "RNN_TANH": 1, "RNN_RELU": 1}
_NONLINEARITIES = {"tanh": "RNN_TANH", "relu": "RNN_RELU"}


def _reset(module: Module, hidden_size: int) -> None:
    bound = 1.0 / math.sqrt(hidden_size) if hidden_size > 0 else 0
    for weight in module.parameters():
        init.uniform_(weight, -bound, bound)


class RNNBase(Module):
    """What RNN, LSTM and GRU share: the parameters, the checks and the way through layers and directions.

    forward(input, hx=None): input is [T, B, I], [B, T, I] with `batch_first`, [T, I] without a batch, or a
    PackedSequence; hx, where the states start (zeros), is [L * D, B, R], or of an LSTM a pair with [L * D, B,
    H]. Returns the output [T, B, R * D], laid out as the input, and the states after the last step.

    Parameters of layer k: weight_ih_lk [G * H, I or R * D], weight_hh_lk [G * H, R], with `bias` bias_ih_lk
    and bias_hh_lk [G * H], with `proj_size` weight_hr_lk [R, H]; those of the second direction end in
    _reverse. All start uniform within 1 / sqrt(H).
    """

    def __init__(
        self,
        mode: str,
        input_size: int,
        hidden_size: int,
        num_layers: int = 1,
        bias: bool = True,
        batch_first: bool = False,
        dropout: float = 0.0,
        bidirectional: bool = False,
        proj_size: int = 0,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """A layer of random weights. RNN, LSTM and GRU take all but `mode`, in this order.

        Args:
            mode: 'LSTM', 'GRU', 'RNN_TANH' or 'RNN_RELU'.
            input_size: I, the features of each step.
            hidden_size: H, the features of the state.
            num_layers: L; each layer reads the output of the one before.
            bias: whether the biases are there.
            batch_first: whether input and output are [B, T, features]; states are not affected.
            dropout: the probability with which outputs of each layer but the last are zeroed in training.
            bidirectional: whether a second set of weights reads from the last step to the first.
            proj_size: the size to which an LSTM's h' is projected; 0 for none.
            device, dtype: of the parameters.

        Raises: ValueError for a dropout outside [0, 1] and for sizes that are not positive.
        """
        super().__init__()
        if not isinstance(dropout, numbers.Number) or isinstance(dropout, bool) or not 0 <= dropout <= 1:
            raise ValueError(
                "dropout should be a number in range [0, 1] representing the probability of an element being "
                f"zeroed, got {dropout!r}"
            )
        if dropout > 0 and num_layers == 1:
            warnings.warn(
                "dropout option adds dropout after all but last recurrent layer, so non-zero dropout expects "
                f"num_layers greater than 1, but got dropout={dropout} and num_layers={num_layers}",
                stacklevel=2,
            )
        typed: dict[str, Any] = {"bias": (bias, bool), "batch_first": (batch_first, bool)}
        typed |= {"input_size": (input_size, int), "hidden_size": (hidden_size, int)}
        for name, (value, kind) in typed.items():
            if not isinstance(value, kind):
                raise TypeError(f"{name} should be of type {kind.__name__}, got: {type(value).__name__}")
        sizes = {"input_size": input_size, "hidden_size": hidden_size, "num_layers": num_layers}
        for name, size in sizes.items():
            if size <= 0:
                raise ValueError(f"{name} must be greater than zero, got {size}")
        if proj_size < 0:
            raise ValueError("proj_size should be a positive integer or zero to disable projections")
        if proj_size >= hidden_size:
            raise ValueError("proj_size has to be smaller than hidden_size")
        if mode not in _GATES:
            raise ValueError(f"Unrecognized RNN mode: {mode}")
        self.mode, self.input_size, self.hidden_size = mode, input_size, hidden_size
        self.num_layers, self.bias, self.batch_first = num_layers, bias, batch_first
        self.dropout, self.bidirectional, self.proj_size = float(dropout), bidirectional, proj_size
        self._all_weights: list[list[str]] = []
        gates, recurs = _GATES[mode] * hidden_size, proj_size or hidden_size
        for i in range(num_layers * self._directions):
            layer, suffix = i // self._directions, "_reverse" if i % self._directions else ""
            inputs = recurs * self._directions if layer else input_size
            shapes: dict[str, Any] = {"weight_ih": (gates, inputs), "weight_hh": (gates, recurs)}
            if bias:
                shapes |= {"bias_ih": gates, "bias_hh": gates}
            if proj_size:
                shapes["weight_hr"] = (proj_size, hidden_size)
            self._all_weights.append([f"{name}_l{layer}{suffix}" for name in shapes])
            for name, shape in zip(self._all_weights[-1], shapes.values(), strict=True):
                self.register_parameter(name, Parameter(wt.empty(shape, device=device, dtype=dtype)))
        self.reset_parameters()

    @property
    def _directions(self) -> int:
        return 2 if self.bidirectional else 1

    @property
    def all_weights(self) -> list[list[Parameter]]:
        """The parameters of each layer's directions.

        The order is that of layers, in each the forward direction first.
        """
        return [[getattr(self, name) for name in names] for names in self._all_weights]

    @property
    def _flat_weights(self) -> list[Parameter]:
        return [weight for weights in self.all_weights for weight in weights]

    def flatten_parameters(self) -> None:
        """Does nothing: no kernel here wants the parameters in one block.

        Models written for other libraries may call it.
        """

    def reset_parameters(self) -> None:
        """Draws new values for all parameters, in order.

        They are uniform within 1 / sqrt(hidden_size).
        """
        _reset(self, self.hidden_size)

    def check_input(self, input: Tensor, batch_sizes: Tensor | None) -> None:
        """Raises for an input of other dims, features or dtype than the layer takes.

        Args:
            input: [T, B, I], or [N, I] where it is packed.
            batch_sizes: of a packed input, else None.

        Raises: ValueError for another dtype, unless autocast is on; ShapeError for other dims or features.
        """
        weight = self._flat_weights[0]
        if input.dtype != weight.dtype and not any(map(is_autocast_enabled, ("cpu", "cuda"))):
            raise ValueError(
                f"RNN input dtype ({input.dtype}) does not match weight dtype ({weight.dtype}). "
                f"Convert input: input.to({weight.dtype}), or convert model: model.to({input.dtype})"
            )
        dims = 3 if batch_sizes is None else 2
        if input.dim() != dims:
            raise _C.ShapeError(f"input must have {dims} dimensions, got {input.dim()}")
        if self.input_size != input.size(-1):
            raise _C.ShapeError(
                "input.size(-1) must be equal to input_size. "
                f"Expected {self.input_size}, got {input.size(-1)}"
            )

    def get_expected_hidden_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of the first state.

        Args:
            input: [T, B, I], [B, T, I] with batch_first, or packed [N, I].
            batch_sizes: of a packed input, else None.

        Returns: [L * D, B, R].
        """
        batch = input.size(0 if self.batch_first else 1) if batch_sizes is None else int(batch_sizes[0])
        return self.num_layers * self._directions, batch, self.proj_size or self.hidden_size

    def get_expected_cell_size(self, input: Tensor, batch_sizes: Tensor | None) -> tuple[int, int, int]:
        """The shape of an LSTM's second state.

        Args:
            input: [T, B, I], [B, T, I] with batch_first, or packed [N, I].
            batch_sizes: of a packed input, else None.

        Returns: [L * D, B, H].
        """
        return *self.get_expected_hidden_size(input, batch_sizes)[:2], self.hidden_size

    def check_hidden_size(
        self, hx: Tensor, expected_hidden_size: Sequence[int], msg: str = "Expected hidden size {}, got {}"
    ) -> None:
        """ShapeError with `msg` unless hx has that shape.

        Args:
            hx: the state that was given.
            expected_hidden_size: the shape it must have.
            msg: the error's text, with a place for the expected and one for the actual shape.
        """
        if tuple(hx.shape) != tuple(expected_hidden_size):
            raise _C.ShapeError(msg.format(expected_hidden_size, list(hx.shape)))

    def check_forward_args(self, input: Tensor, hidden: Any, batch_sizes: Tensor | None) -> None:
        """Raises unless the input and where the states start fit the layer and each other.

        Args:
            input: what forward got, made 3-D, or packed.
            hidden: the states, a pair for an LSTM.
            batch_sizes: of a packed input, else None.

        Raises: ValueError or ShapeError as check_input and check_hidden_size.
        """
        self.check_input(input, batch_sizes)
        expected = self.get_expected_hidden_size(input, batch_sizes)
        if self.mode != "LSTM":
            self.check_hidden_size(hidden, expected)
            return
        self.check_hidden_size(hidden[0], expected, "Expected hidden[0] size {}, got {}")
        expected = self.get_expected_cell_size(input, batch_sizes)
        self.check_hidden_size(hidden[1], expected, "Expected hidden[1] size {}, got {}")

    def permute_hidden(self, hx: Any, permutation: Tensor | None) -> Any:
        """The states in another order of the batch.

        Args:
            hx: a state [L * D, B, R], or an LSTM's pair.
            permutation: indices [B] of the samples; None leaves hx as it is.
        """
        if permutation is None:
            return hx
        if isinstance(hx, Tensor):
            return hx.index_select(1, permutation)
        return tuple(h.index_select(1, permutation) for h in hx)

    def _zeros(self, input: Tensor, batch_sizes: Tensor | None) -> Any:
        shapes = [self.get_expected_hidden_size(input, batch_sizes)]
        if self.mode == "LSTM":
            shapes.append(self.get_expected_cell_size(input, batch_sizes))
        hx = tuple(wt.zeros(shape, dtype=input.dtype, device=input.device) for shape in shapes)
        return hx if self.mode == "LSTM" else hx[0]

    def _check_dims(self, input: Tensor, hx: Any) -> None:
        if input.dim() not in (2, 3):
            raise _C.ShapeError(
                f"{type(self).__name__}: Expected input to be 2D or 3D, got {input.dim()}D tensor instead"
            )
        states = () if hx is None else hx if self.mode == "LSTM" else (hx,)
        if any(h.dim() != input.dim() for h in states):
            described = "unbatched 2-D" if input.dim() == 2 else "batched 3-D"
            names = "hx and cx" if self.mode == "LSTM" else "hx"
            raise _C.ShapeError(
                f"For {described} input, {names} should also be {input.dim()}-D "
                f"but got ({', '.join(f'{h.dim()}-D' for h in states)}) tensors"
            )

    def forward(self, input: Any, hx: Any = None) -> tuple[Any, Any]:
        if isinstance(input, PackedSequence):
            data, batch_sizes, order, back = input
            hx = self._zeros(data, batch_sizes) if hx is None else self.permute_hidden(hx, order)
            self.check_forward_args(data, hx, batch_sizes)
            output, hidden = self._run(data, batch_sizes.tolist(), hx)
            return PackedSequence(output, batch_sizes, order, back), self.permute_hidden(hidden, back)
        self._check_dims(input, hx)
        dim = 0 if self.batch_first else 1
        if input.dim() == 2:
            pair = self.mode == "LSTM"
            if hx is not None:
                hx = tuple(h.unsqueeze(1) for h in hx) if pair else hx.unsqueeze(1)
            output, hidden = RNNBase.forward(self, input.unsqueeze(dim), hx)
            hidden = tuple(h.squeeze(1) for h in hidden) if pair else hidden.squeeze(1)
            return output.squeeze(dim), hidden
        if hx is None:
            hx = self._zeros(input, None)
        self.check_forward_args(input, hx, None)
        steps = input.transpose(0, 1) if self.batch_first else input
        t, b = steps.shape[:2]
        output, hidden = self._run(steps.reshape(t * b, self.input_size), [b] * t, hx)
        output = output.view((t, b, *output.shape[1:]))
        return output.transpose(0, 1) if self.batch_first else output, hidden

    def _run(self, data: Tensor, batch_sizes: list[int], hx: Any) -> tuple[Tensor, Any]:
        """data [N, I], step after step: the output [N, R * D] and the states."""
        first = (hx[0], hx[1]) if self.mode == "LSTM" else (hx,)
        last: list[list[Tensor]] = [[] for _ in first]
        outputs: list[Tensor] = []
        for i, weights in enumerate(self.all_weights):
            tensors: list[Tensor | None] = [*weights]
            if not self.bias:
                tensors[2:2] = [None, None]
            tensors = [*(h[i] for h in first), None][:2] + [*tensors, None][:5]
            output, *states = _layer(data, batch_sizes, *tensors, self.mode, i % self._directions == 1)
            outputs.append(output)
            for kept, state in zip(last, states, strict=True):
                kept.append(state)
            if len(outputs) == self._directions:
                data = outputs[0] if self._directions == 1 else wt.cat(outputs, -1)
                outputs = []
                if self.dropout and self.training and i + 1 < len(self._all_weights):
                    data = _C._nn.dropout(data, self.dropout)
        hidden = tuple(wt.stack(kept) for kept in last)
        return data, hidden if self.mode == "LSTM" else hidden[0]

    def extra_repr(self) -> str:
        defaults: dict[str, Any] = {"proj_size": 0, "num_layers": 1, "bias": True, "batch_first": False}
        defaults |= {"dropout": 0.0, "bidirectional": False}
        other = [f"{k}={getattr(self, k)}" for k, v in defaults.items() if getattr(self, k) != v]
        return ", ".join([f"{self.input_size}, {self.hidden_size}", *other])


class RNN(RNNBase):
    """h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it; see RNNBase for shapes.

    The constructor takes input_size, hidden_size, num_layers=1, nonlinearity='tanh' (or 'relu'), bias,
    batch_first, dropout, bidirectional, device and dtype, as RNNBase explains.

    >>> output, h = nn.RNN(4, 8, batch_first=True)(torch.zeros(2, 5, 4))
    >>> output.shape, h.shape
    (torch.Size([2, 5, 8]), torch.Size([1, 2, 8]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_projection(kwargs)
        args, given = args[:3] + args[4:], args[3:4]
        nonlinearity = given[0] if given else kwargs.pop("nonlinearity", "tanh")
        if nonlinearity not in _NONLINEARITIES:
            raise ValueError(f"Unknown nonlinearity '{nonlinearity}'. Select from 'tanh' or 'relu'.")
        super().__init__(_NONLINEARITIES[nonlinearity], *args, **kwargs)
        self.nonlinearity = nonlinearity


class LSTM(RNNBase):
    """i, f, o = sigmoid and g = tanh of W_ih x + b_ih + W_hh h + b_hh, in the order i, f, g, o; c' = f c +
    i g; h' = o tanh(c'), times weight_hr where there is a projection. See RNNBase for shapes.

    From Hochreiter and Schmidhuber, "Long Short-Term Memory" (1997), with the forget gate of Gers et al. The
    constructor takes RNNBase's arguments without `mode`.

    >>> output, (h, c) = nn.LSTM(4, 8, batch_first=True)(torch.zeros(2, 5, 4))
    >>> output.shape, h.shape, c.shape
    (torch.Size([2, 5, 8]), torch.Size([1, 2, 8]), torch.Size([1, 2, 8]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__("LSTM", *args, **kwargs)


class GRU(RNNBase):
    """r, z = sigmoid(W_ih x + b_ih + W_hh h + b_hh); n = tanh(W_in x + b_in + r (W_hn h + b_hn)), in the
    order r, z, n; h' = (1 - z) n + z h. See RNNBase for shapes.

    From Cho et al., "Learning Phrase Representations using RNN Encoder-Decoder" (2014), section 2.3. The
    constructor takes RNNBase's arguments without `mode` and proj_size.

    >>> output, h = nn.GRU(4, 8, batch_first=True)(torch.zeros(2, 5, 4))
    >>> output.shape, h.shape
    (torch.Size([2, 5, 8]), torch.Size([1, 2, 8]))
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        _no_projection(kwargs)
        super().__init__("GRU", *args, **kwargs)


def _no_projection(kwargs: dict[str, Any]) -> None:
    if "proj_size" in kwargs:
        raise ValueError("proj_size argument is only supported for LSTM, not RNN or GRU")


class RNNCellBase(Module):
    """One step: weight_ih [G * H, I], weight_hh [G * H, H], bias_ih and bias_hh [G * H], uniform within 1 /
    sqrt(H)."""

    nonlinearity = "tanh"

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool,
        num_chunks: int,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        """Parameters for a step.

        Args:
            input_size, hidden_size: I and H.
            bias: whether the biases are there.
            num_chunks: G, the number of gates.
            device, dtype: of the parameters.
        """
        super().__init__()
        self.input_size, self.hidden_size, self.bias = input_size, hidden_size, bias
        gates = num_chunks * hidden_size
        shapes = {"weight_ih": (gates, input_size), "weight_hh": (gates, hidden_size)}
        for name, shape in (shapes | {"bias_ih": (gates,), "bias_hh": (gates,)}).items():
            own = wt.empty(shape, device=device, dtype=dtype) if bias or len(shape) == 2 else None
            self.register_parameter(name, None if own is None else Parameter(own))
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Draws new values for all parameters, in order.

        They are uniform within 1 / sqrt(hidden_size).
        """
        _reset(self, self.hidden_size)

    def extra_repr(self) -> str:
        bias = "" if self.bias is True else f", bias={self.bias}"
        other = "" if self.nonlinearity == "tanh" else f", nonlinearity={self.nonlinearity}"
        return f"{self.input_size}, {self.hidden_size}{bias}{other}"

    def _step(self, mode: str, input: Tensor, first: list[Tensor] | None) -> list[Tensor]:
        """The states [B, H] (or [H]) after the step."""
        name = type(self).__name__
        if input.dim() not in (1, 2):
            raise _C.ShapeError(f"{name}: Expected input to be 1D or 2D, got {input.dim()}D instead")
        for i, h in enumerate(first or ()):
            if h.dim() not in (1, 2):
                which = f"hx[{i}]" if mode == "LSTM" else "hidden"
                raise _C.ShapeError(f"{name}: Expected {which} to be 1D or 2D, got {h.dim()}D instead")
        rows = input if input.dim() == 2 else input.unsqueeze(0)
        if rows.shape[1] != self.input_size:
            raise _C.ShapeError(
                f"{name}: input has inconsistent input_size: got {rows.shape[1]} expected {self.input_size}"
            )
        if first is None:
            zeros = wt.zeros((rows.shape[0], self.hidden_size), dtype=input.dtype, device=input.device)
            first = [zeros] * (2 if mode == "LSTM" else 1)
        elif input.dim() == 1:
            first = [h.unsqueeze(0) for h in first]
        for i, h in enumerate(first):
            if h.shape[0] != rows.shape[0]:
                raise _C.ShapeError(
                    f"{name}: Input batch size {rows.shape[0]} doesn't match hidden{i} batch size "
                    f"{h.shape[0]}"
                )
            if h.shape[1] != self.hidden_size:
                raise _C.ShapeError(
                    f"{name}: hidden{i} has inconsistent hidden_size: got {h.shape[1]}, expected "
                    f"{self.hidden_size}"
                )
        weights = (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh)
        states = _layer(rows, [rows.shape[0]], *[*first, None][:2], *weights, None, mode)[1:]
        return [h.squeeze(0) for h in states] if input.dim() == 1 else list(states)


class RNNCell(RNNCellBase):
    """One step of RNN: input [B, I] and hx [B, H] (zeros) to h' [B, H]; both may lack the batch.

    h' = tanh(W_ih x + b_ih + W_hh h + b_hh), or relu of it.

    Args:
        input_size: I.
        hidden_size: H.
        bias: whether the biases are there.
        nonlinearity: 'tanh' or 'relu'.
        device, dtype: of the parameters.

    Raises: RuntimeError in forward for another nonlinearity.

    >>> cell, h = nn.RNNCell(4, 8), None
    >>> for x in torch.zeros(5, 2, 4):
    ...     h = cell(x, h)
    >>> h.shape
    torch.Size([2, 8])
    """

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        nonlinearity: str = "tanh",
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, 1, device, dtype)
        self.nonlinearity = nonlinearity

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        if self.nonlinearity not in _NONLINEARITIES:
            raise RuntimeError(f"Unknown nonlinearity: {self.nonlinearity}")
        return self._step(_NONLINEARITIES[self.nonlinearity], input, None if hx is None else [hx])[0]


class _GatedCell(RNNCellBase):
    _mode: str

    def __init__(
        self,
        input_size: int,
        hidden_size: int,
        bias: bool = True,
        device: Device = None,
        dtype: wt.dtype | None = None,
    ) -> None:
        super().__init__(input_size, hidden_size, bias, _GATES[self._mode], device, dtype)


class LSTMCell(_GatedCell):
    """One step of LSTM: input [B, I] and the pair hx (h, c), [B, H] each (zeros), to (h', c').

    The formulas are those of LSTM; the constructor takes input_size (I), hidden_size (H), bias, device and
    dtype.

    >>> h, c = nn.LSTMCell(4, 8)(torch.zeros(2, 4))
    >>> h.shape, c.shape
    (torch.Size([2, 8]), torch.Size([2, 8]))
    """

    _mode = "LSTM"

    def forward(self, input: Tensor, hx: tuple[Tensor, Tensor] | None = None) -> tuple[Tensor, Tensor]:
        h, c = self._step("LSTM", input, None if hx is None else [*hx])
        return h, c


class GRUCell(_GatedCell):
    """One step of GRU: input [B, I] and hx [B, H] (zeros) to h' [B, H].

    The formulas are those of GRU; the constructor takes input_size (I), hidden_size (H), bias, device and
    dtype.

    >>> nn.GRUCell(4, 8)(torch.zeros(2, 4)).shape
    torch.Size([2, 8])
    """

    _mode = "GRU"

    def forward(self, input: Tensor, hx: Tensor | None = None) -> Tensor:
        return self._step("GRU", input, None if hx is None else [hx])[0]
