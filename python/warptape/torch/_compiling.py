"""What programs ask PyTorch's compiler and tracers: answers of a runtime that records calls."""

from __future__ import annotations

import contextlib
import enum
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator
from types import SimpleNamespace
from typing import Any

from .. import compiler
from ..core import offered
from .names._dynamo import config as dynamo_config
from .names._inductor import config as inductor_config

# ---- settings --------------------------------------------------------------------------------------------


class _Settings(SimpleNamespace):
    """Settings that can be set and read, and have no effect."""


class _Patch(contextlib.ContextDecorator):
    """Within it some settings have other values; "triton.cudagraphs" is one of a group."""

    def __init__(self, settings: Any, changes: dict[str, Any]) -> None:
        self._settings, self._changes = settings, changes

    def _owner(self, path: str) -> tuple[Any, str]:
        *groups, name = path.split(".")
        owner = self._settings
        for group in groups:
            owner = getattr(owner, group)
        return owner, name

    def __enter__(self) -> None:
        self._before = {}
        for path, value in self._changes.items():
            owner, name = self._owner(path)
            self._before[path] = getattr(owner, name, None)
            setattr(owner, name, value)

    def __exit__(self, *args: Any) -> None:
        for path, value in self._before.items():
            owner, name = self._owner(path)
            setattr(owner, name, value)

    def __call__(self, func: Any) -> Any:
        settings, changes = self._settings, self._changes

        def wrapped(*args: Any, **kwargs: Any) -> Any:
            with _Patch(settings, changes):
                return func(*args, **kwargs)

        return wrapped


def _patcher(settings: Any) -> Callable[..., _Patch]:
    def patch(arg1: Any = None, arg2: Any = None, **kwargs: Any) -> _Patch:
        """Within it settings have other values: patch("name", value), patch({..}) or patch(name=value)."""
        changes = {arg1: arg2} if isinstance(arg1, str) else {**(arg1 or {})}
        return _Patch(settings, changes | kwargs)

    return patch


patch_dynamo, patch_inductor = _patcher(dynamo_config), _patcher(inductor_config)
eager_numerics = _Settings(division_rounding=False, disable_ftz=False, use_pytorch_libdevice=False)
distributed_optimizations = _Settings(
    enable_overlap_scheduling=False,
    collective_bucketing=None,
    insert_overlap_deps=None,
    max_compute_pre_fetch=None,
    custom_runtime_estimation=None,
    collective_estimator="analytical",
)
functorch_config = _Settings(
    activation_memory_budget=1.0, visualize_memory_budget_pareto=False, memory_budget_pareto_dir=None
)
patch_functorch = _patcher(functorch_config)
export_config = _Settings(use_new_tracer_experimental=True)
patch_export = _patcher(export_config)
distributed_config = _Settings(compile_on_one_rank=False)
patch_distributed = _patcher(distributed_config)


def list_mode_options(mode: str | None = None, dynamic: bool | None = None) -> dict[str, Any]:
    """What the modes of torch.compile switch on in PyTorch's compiler; one mode's where it is named."""
    tuned = {"max_autotune": True, "coordinate_descent_tuning": True}
    modes: dict[str, dict[str, Any]] = {
        "default": {},
        "reduce-overhead": {"triton.cudagraphs": True},
        "max-autotune-no-cudagraphs": tuned,
        "max-autotune": {"max_autotune": True, "triton.cudagraphs": True, "coordinate_descent_tuning": True},
    }
    if mode is None:
        return modes
    if mode not in modes:
        raise RuntimeError(f"Unrecognized mode={mode}, should be one of: {', '.join(modes)}")
    return modes[mode]


# ---- torch._dynamo ---------------------------------------------------------------------------------------

counters: defaultdict[str, Counter[str]] = defaultdict(Counter)  # of graph breaks and others: none is counted


@contextlib.contextmanager
def disable_cache_limit() -> Iterator[None]:
    """Nothing: how many graphs a function may have is not limited by torch._dynamo's settings."""
    yield


def timed(model: Callable[..., Any], example_inputs: Iterable[Any], times: int = 1) -> tuple[Any, float]:
    """The result of model(*example_inputs), called some times, and the seconds of all calls."""
    example_inputs, result = [*example_inputs], None
    start = time.perf_counter()
    for _ in range(times):
        result = model(*example_inputs)
    return result, time.perf_counter() - start


def nonstrict_trace(traceable_fn: Callable[..., Any]) -> Callable[..., Any]:
    """The function: calls are recorded, and none is traced otherwise."""
    return traceable_fn


def lookup_backend(compiler_fn: Any) -> Any:
    """A backend of torch.compile: a function is one itself.

    Raises:
        ValueError: no backend has this name.
    """
    if isinstance(compiler_fn, str) and compiler_fn not in compiler.list_backends(()):
        raise ValueError(
            f"Invalid backend: {compiler_fn!r}; there are {', '.join(compiler.list_backends(()))}"
        )
    return compiler_fn


def false(*args: Any, **kwargs: Any) -> bool:
    """False: what is asked for is not here."""
    return False


def true(*args: Any, **kwargs: Any) -> bool:
    """True."""
    return True


def nothing(*args: Any, **kwargs: Any) -> None:
    """None: there is nothing to do, or to tell."""
    return


@contextlib.contextmanager
def unchanged(*args: Any, **kwargs: Any) -> Iterator[None]:
    """Within it all is as before."""
    yield


def decorates(*args: Any, **kwargs: Any) -> Callable[[Any], Any]:
    """A decorator that returns what it is given."""
    return lambda fn: fn


def empty_set(*args: Any, **kwargs: Any) -> set[Any]:
    """An empty set: sizes have no symbols here."""
    return set()


def truth(value: Any) -> bool:
    """Whether a condition on sizes holds: sizes are numbers here, so that it is known."""
    return bool(value)


class TracingContext:
    """Stands for what PyTorch's compiler knows while it traces, which it never does here."""

    @staticmethod
    def try_get() -> None:
        """None: nothing is traced."""
        return

    @staticmethod
    def get() -> Any:
        """RuntimeError: nothing is traced."""
        raise RuntimeError(
            "TracingContext.get() must be called within an ongoing trace, and none is made here"
        )


class DimDynamic(enum.Enum):
    """How PyTorch's compiler treats a size."""

    DYNAMIC = 0
    DUCK = 1
    STATIC = 2
    UNBACKED = 3
    INFER_STRIDE = 4
    OBLIVIOUS_SIZE = 5


class NodeSourceAction(enum.Enum):
    """What a pass did with a node."""

    CREATE = "create"
    REPLACE = "replace"


def current_meta() -> dict[str, Any]:
    """An empty dict: no node is made at the moment."""
    return {}


def same(value: Any, *args: Any, **kwargs: Any) -> Any:
    """The first argument."""
    return value


# ---- which ops cost much ---------------------------------------------------------------------------------

_INTENSIVE = (
    "mm bmm addmm convolution convolution_backward upsample_bilinear2d _scaled_mm _flash_attention_forward "
    "_efficient_attention_forward _scaled_dot_product_flash_attention _scaled_dot_product_efficient_attention"
)


def default_op_list() -> Any:
    """Ops of torch.ops.aten by what they cost, for checkpoints that keep the results of some.

    Returns: an object with `compute_intensive_ops`, products and convolutions, and `random_ops`.
    """
    aten = offered("root").ops.aten
    return SimpleNamespace(
        compute_intensive_ops=[getattr(aten, name) for name in _INTENSIVE.split()],
        random_ops=[aten.native_dropout, aten.rand_like, aten.randn_like],
    )
