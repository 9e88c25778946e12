"""What a part asks of objects that come from parts above it, as types."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

from .tensor_class import Tensor


class Optimizer(Protocol):
    """What steps parameters by their gradients: `warptape.optim.Optimizer`, and what behaves as it.

    Args:
        param_groups: "params" and options of each group.
    """

    param_groups: list[dict[str, Any]]

    def step(self, *args: Any, **kwargs: Any) -> Any:
        """Changes the parameters once.

        Args:
            *args, **kwargs: as a closure.
        """
        ...


class ScalesGradients(Optimizer, Protocol):
    """An optimizer that may divide by the scale of gradients in its own step.

    GradScaler then calls it with the attributes `grad_scale` and `found_inf`.
    """

    _step_supports_amp_scaling: bool


class OwnGradients:
    """A base of classes of tensors that answer autograd.grad themselves: nested ones, DTensor."""

    __slots__ = ()

    @staticmethod
    def autograd_grad(grad: Any, *args: Any) -> Any:
        """The gradients.

        Args:
            grad: autograd.grad.
            *args: all of its arguments.
        """
        raise NotImplementedError


class TapedByValue:
    """A base of classes of tensors that the tape knows by another tensor: sparse ones by their values."""

    __slots__ = ()

    def taped_value(self) -> Tensor:
        """The tensor that the tape knows."""
        raise NotImplementedError

    def taped_gradient(self, gradient: Tensor) -> Any:
        """The gradient of this tensor.

        Args:
            gradient: of taped_value().
        """
        raise NotImplementedError


@runtime_checkable
class Stage(Protocol):
    """A stage of a pipeline: what checkpoints save of it.

    Args:
        submod: its module.
        shared: parameters that other stages have, too, by their common names.
    """

    submod: Any
    shared: dict[str, Any]


@runtime_checkable
class HasGraph(Protocol):
    """A program that is one graph of ops: traced, scripted or exported."""

    def _graph_function(self) -> Any:
        """The graph and how arguments and results nest."""
        ...


class Engine(Protocol):
    """What serves requests, a step at a time: `warptape.inference.LLMEngine`.

    `warptape.serve` runs whatever has these methods.
    """

    def encode(self, prompt: str | Sequence[int] | dict[str, Any]) -> tuple[Any, list[int]]:
        """The text of a prompt, None where it has none, and its tokens.

        Args:
            prompt: text, tokens, or a dict of both.
        """
        ...

    def draw_seed(self, params: Any) -> int:
        """The seed of a request that names none.

        Args:
            params: of the request.
        """
        ...

    @property
    def add_request(self) -> Callable[..., None]:
        """Takes a request in.

        Its arguments are name, prompt and parameters, and what else the engine knows.
        """
        ...

    def abort_request(self, request_id: str) -> Any:
        """Ends a request; what it has so far, None where there is none of this name.

        Args:
            request_id: its name.
        """
        ...

    def step(self) -> Any:
        """Runs one step of all requests that are under way.

        Returns:
            What is new of each of them.
        """
        ...


class Codes(Protocol):
    """A matrix [O, I] in codes of `bits` bits with scales and minima for G groups of inputs.

    Formats of files and tensors that are coded so offer it to layers.
    """

    @property
    def bits(self) -> int:
        """4 or 8."""
        ...

    @property
    def codes(self) -> Tensor:
        """The codes, uint8.

        Shape [O, I], or [O, I / 2] with two codes in a byte where there is a `half`.
        """
        ...

    @property
    def scales(self) -> Tensor:
        """float32 [O, G]."""
        ...

    @property
    def minima(self) -> Tensor | None:
        """The minima of the groups, float32 [O, G].

        None where the codes are symmetric about zero.
        """
        ...

    @property
    def half(self) -> int:
        """Which codes lie together in a byte.

        In a block of 2 * half codes, code i and code i + half share a byte. 0 says that each has its own.
        """
        ...
