"""The Tensor class: what Python adds to the type that the C++ core defines."""

from __future__ import annotations

import builtins
import copyreg
import functools
import warnings
from collections.abc import Callable, Iterator
from typing import Any, SupportsIndex

from .. import _C
from .hooks import RemovableHandle, add_hook
from .registry import offered
from .wrappers import cloned, is_wrapper, make_wrapper_subclass, reduced


def warn_of_copy(call: str) -> None:
    """Warns of a tensor given to torch.tensor or new_tensor, which leave its history behind; `call` is what
    the user wrote."""
    warnings.warn(
        "To copy construct from a tensor, it is recommended to use sourceTensor.detach().clone() or "
        f"sourceTensor.detach().clone().requires_grad_(True), rather than {call}(sourceTensor).",
        stacklevel=3,
    )


def _overridable(method: Callable[..., Any]) -> Callable[..., Any]:
    """A method in Python that modes and subclasses may take over, as they do the ops (warptape.overrides)."""

    @functools.wraps(method)
    def call(self: Tensor, *args: Any, **kwargs: Any) -> Any:
        if (self.__class__ is not Tensor or _C._has_torch_function_mode()) and _C._has_torch_function(
            (self,)
        ):
            return _C._handle_torch_function(call, (self,), self, *args, **kwargs)
        return method(self, *args, **kwargs)

    return call


def _of_layout(name: str, layout: str) -> Callable[[Any], Any]:
    """A method that sparse tensors of some layouts have, which override it."""

    def call(self: Tensor) -> Any:
        own = getattr(type(self), name)
        if own is not call:
            return own(self)
        layout_name = "Strided" if self.layout is _C.strided else self.layout
        raise RuntimeError(f"{name} expected sparse {layout}tensor layout but got {layout_name}")

    call.__name__, call.__qualname__ = name, f"Tensor.{name}"
    call.__doc__ = f"Of a sparse {layout}tensor, see torch.sparse. RuntimeError for a dense one."
    return call


def _write_real(self: Tensor, value: Tensor | complex) -> None:
    self.real[...] = value


def _write_imag(self: Tensor, value: Tensor | complex) -> None:
    self.imag[...] = value


class Tensor(_C.TensorBase):
    """A strided array of one dtype on one device, recorded on the tape where `requires_grad` asks for it.

    Example::

        >>> x = torch.ones(2, 3, requires_grad=True)
        >>> x.shape, x.ndim, x.dtype, x.device
        (torch.Size([2, 3]), 2, torch.float32, device(type='cpu'))
        >>> (x * 2).sum().backward()
        >>> x.grad
        tensor([[2., 2., 2.],
                [2., 2., 2.]])
        >>> x.data.requires_grad, x.is_cuda, x.T.shape
        (False, False, torch.Size([3, 2]))
    """

    def __new__(cls, *args: Any, **kwargs: Any) -> Tensor:  # noqa: D102
        return offered("legacy").legacy_tensor(cls, args, kwargs)

    _make_wrapper_subclass = staticmethod(make_wrapper_subclass)

    # Devices and layouts that are not here.
    is_xpu = is_mps = is_mtia = is_xla = is_vulkan = is_ipu = is_maia = is_mkldnn = is_sparse_csr = (
        is_nested
    ) = False

    # ---- autograd ----

    @_overridable
    def backward(
        self,
        gradient: Tensor | None = None,
        retain_graph: builtins.bool | None = None,
        create_graph: builtins.bool = False,
        inputs: Any = None,
    ) -> None:
        """Adds the gradient of this tensor with respect to every leaf to the leaf's `.grad`.

        Args:
            gradient: of this tensor's shape; may be left out for one element.
            retain_graph: keep saved tensors for another pass; defaults to `create_graph`.
            create_graph: record the pass itself, for second gradients.
            inputs: the leaves to compute gradients for; all when left out.

        Raises:
            RuntimeError: without history, with a freed graph, or when a saved tensor was changed in place.

        >>> x = torch.tensor([1.0, 2.0], requires_grad=True)
        >>> (x**2).sum().backward()
        >>> x.grad
        tensor([2., 4.])
        """
        offered("autograd").backward(self, gradient, retain_graph, create_graph, inputs=inputs)

    @_overridable
    def register_hook(self, hook: Callable[[Tensor], Tensor | None]) -> RemovableHandle:
        """Calls `hook(grad)` with this tensor's gradient; what it returns, if not None, replaces it.

        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> handle = x.register_hook(lambda grad: 2 * grad)
        >>> (3 * x).backward()
        >>> x.grad
        tensor(6.)
        """
        return add_hook(_C._hook_dict(self), hook)

    @_overridable
    def register_post_accumulate_grad_hook(self, hook: Callable[[Tensor], None]) -> RemovableHandle:
        """Calls `hook(self)` after a gradient was added to this leaf's `.grad`.

        Args:
            hook: its result is ignored.

        Returns: a handle whose `remove()` takes the hook away.
        """
        return add_hook(_C._post_accumulate_dict(self), hook)

    def _is_view(self) -> bool:
        return self._base is not None

    @_overridable
    def retain_grad(self) -> None:
        """Keeps the gradient of a tensor that is not a leaf in `.grad`.

        >>> x = torch.tensor(2.0, requires_grad=True)
        >>> y = x * 3
        >>> y.retain_grad()
        >>> (y**2).backward()
        >>> y.grad
        tensor(12.)
        """
        _C._retain_grad(self)

    # ---- copies and conversions ----

    @_overridable
    def type(
        self, dtype: _C.dtype | builtins.type | str | None = None, non_blocking: builtins.bool = False
    ) -> Any:
        """The tensor in another dtype; without an argument, the name of its legacy type.

        >>> torch.tensor([1, 2]).type()
        'torch.LongTensor'
        >>> torch.tensor([1.5]).type(torch.int64)
        tensor([1])
        """
        legacy = offered("legacy")
        if dtype is None:
            return legacy.name_of(self)
        kind, place = legacy.dtype_and_device(dtype)
        return self.to(None if place is None else _C.device(place), kind, non_blocking)

    @_overridable
    def numpy(self, *, force: builtins.bool = False) -> Any:
        """An ndarray on the same memory. RuntimeError while a gradient is required, unless forced.

        >>> torch.tensor([1, 2]).numpy()
        array([1, 2])
        """
        return _C._numpy(self.detach().cpu() if force else self)

    @_overridable
    def tolist(self) -> Any:
        """Nested lists of Python numbers; one number for a 0-dim tensor.

        >>> torch.tensor([[1, 2], [3, 4]]).tolist()
        [[1, 2], [3, 4]]
        """
        return _C._tolist(self)

    __array_priority__ = 1000  # NumPy's numbers leave operators to tensors

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        array = self.numpy()
        converted = array if dtype is None else array.astype(dtype, copy=False)
        if copy is False and converted is not array:
            raise ValueError(f"__array__: a copy is needed for {converted.dtype}, and copy=False forbids it")
        return converted.copy() if copy and converted is array else converted

    def __array_wrap__(self, array: Any, context: object = None, return_scalar: builtins.bool = False) -> Any:
        return _C.from_numpy(array.astype("uint8") if array.dtype.kind == "b" else array)

    def __dlpack__(
        self, *, stream: Any = None, max_version: Any = None, dl_device: Any = None, copy: Any = None
    ) -> Any:
        return offered("interchange").to_dlpack(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[builtins.int, builtins.int]:
        device: tuple[builtins.int, builtins.int] = offered("interchange").dlpack_device(self)
        return device

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        described: dict[str, Any] = offered("interchange").cuda_array_interface(self)
        return described

    @_overridable
    def new_tensor(
        self, data: Any, *, dtype: Any = None, device: Any = None, requires_grad: builtins.bool = False
    ) -> Tensor:
        """A tensor of data, with this tensor's dtype and device unless given.

        >>> torch.zeros(2, dtype=torch.float64).new_tensor([1, 2])
        tensor([1., 2.], dtype=torch.float64)
        """
        if not isinstance(self, _C.TensorBase):
            raise TypeError(f"new_tensor: expected a Tensor, got {builtins.type(self).__name__}")
        if isinstance(data, Tensor):
            warn_of_copy("tensor.new_tensor")
        try:
            return _C._tensor(data, dtype or self.dtype, device or self.device, requires_grad, True)
        except TypeError as error:
            raise builtins.type(error)(f"new_tensor: {error}") from None

    def new(self, *args: Any, **kwargs: Any) -> Tensor:
        """Legacy: an uninitialised tensor of the given sizes, or a tensor of data, of this dtype.

        Args:
            *args, **kwargs: sizes, or nested lists.
        """
        return offered("legacy").legacy_tensor(Tensor, args, kwargs, self.dtype, self.device)

    @_overridable
    def dim_order(self, *, ambiguity_check: Any = False) -> tuple[builtins.int, ...]:
        """The dims from the outermost to the innermost, as they lie in memory.

        Args:
            ambiguity_check: True, or memory formats of which exactly one must fit: refuse a tensor whose
                order sizes and strides leave open.

        Raises:
            RuntimeError: the order is left open, and that was to be checked.
            TypeError: an ambiguity_check that is neither a bool nor a list of memory formats.
        """
        formats = ambiguity_check if isinstance(ambiguity_check, list) else []
        if not isinstance(ambiguity_check, builtins.bool) and not (
            formats and all(isinstance(f, _C.memory_format) for f in formats)
        ):
            raise TypeError("The ambiguity_check argument must be a bool or a list of memory formats.")
        steps = {stride for stride, size in zip(self.stride(), self.shape) if size != 1}
        if ambiguity_check and len(steps) < self.ndim:
            if sum(self.is_contiguous(memory_format=f) for f in formats) != 1:
                raise RuntimeError(
                    "The tensor does not have unique dim order, or cannot map to exact one of the given "
                    "memory formats."
                )
        return tuple(builtins.sorted(range(self.ndim), key=lambda d: -self.stride(d)))

    # ---- Python's protocols ----

    T: Tensor = property(  # type: ignore[assignment]
        _C._private.numpy_T,
        doc="The tensor with its dims reversed.\n\n>>> torch.zeros(2, 3).T.shape\ntorch.Size([3, 2])",
    )
    mT: Tensor = property(  # type: ignore[assignment]
        _C._private.mT, doc="The tensor with its last two dims swapped."
    )
    H: Tensor = property(  # type: ignore[assignment]
        _C._private.matrix_H, doc="The conjugate of the transpose of a matrix."
    )
    mH: Tensor = property(  # type: ignore[assignment]
        _C._private.mH, doc="The conjugate of the tensor with its last two dims swapped."
    )
    real: Tensor = property(  # type: ignore[assignment]
        _C._functions.real, _write_real, doc="The real part, as a view; a real tensor itself."
    )
    imag: Tensor = property(  # type: ignore[assignment]
        _C._functions.imag, _write_imag, doc="The imaginary part of a complex tensor, as a view."
    )

    @property
    def layout(self) -> _C.layout:
        """How elements are stored: strided."""
        return _C.strided

    def to_sparse(self, sparse_dim: Any = None, *, layout: Any = None, **more: Any) -> Any:
        """The elements that are not zero, by coordinates unless a layout is given: a SparseTensor.

        Args:
            sparse_dim: so many leading dims are sparse; all if None.
            layout: as torch.sparse_csr.
            **more: without effect.

        >>> torch.tensor([0.0, 2.0]).to_sparse()
        tensor(indices=tensor([[1]]),
               values=tensor([2.]),
               size=(2,), nnz=1, layout=torch.sparse_coo)
        """
        if _C._has_torch_function((self,)):
            return _C._handle_torch_function(Tensor.to_sparse, (self,), self, sparse_dim, layout=layout)
        return offered("sparse").of_dense(self, sparse_dim, layout)

    def to_sparse_coo(self) -> Any:
        """The elements that are not zero, by coordinates."""
        return self.to_sparse()

    def to_sparse_csr(self, dense_dim: builtins.int | None = None) -> Any:
        """The elements of a matrix that are not zero, by compressed rows; `dense_dim` trailing dims stay
        dense."""
        return self.to_sparse(None if not dense_dim else self.ndim - dense_dim, layout=_C.sparse_csr)

    def to_sparse_csc(self, dense_dim: builtins.int | None = None) -> Any:
        """The elements of a matrix that are not zero, by compressed columns; `dense_dim` trailing dims stay
        dense."""
        return self.to_sparse(None if not dense_dim else self.ndim - dense_dim, layout=_C.sparse_csc)

    def sparse_mask(self, mask: Tensor) -> Any:
        """The elements at the places of a sparse tensor of the same size.

        Args:
            mask: a sparse tensor.

        Raises: RuntimeError for a dense one.
        """
        if not _C._has_torch_function((mask,)):
            raise RuntimeError(f"sparse_mask: expected a sparse mask, got one of layout {mask.layout}")
        return _C._handle_torch_function(Tensor.sparse_mask, (mask,), self, mask)

    def sparse_dim(self) -> builtins.int:
        """How many dims are sparse: 0."""
        return 0

    def dense_dim(self) -> builtins.int:
        """How many dims are dense: all."""
        return self.ndim

    def to_dense(self, dtype: _C.dtype | None = None, *, masked_grad: bool | None = None) -> Any:
        """The tensor itself, which is dense, in another dtype where one is given.

        Args:
            dtype: None keeps it.
            masked_grad: without effect.
        """
        return self if dtype is None else self.to(dtype)

    indices, values = _of_layout("indices", "coordinate "), _of_layout("values", "")
    coalesce, is_coalesced = (_of_layout(name, "coordinate ") for name in ("coalesce", "is_coalesced"))
    crow_indices, col_indices = (_of_layout(f"{name}_indices", "row compressed ") for name in ("crow", "col"))
    ccol_indices, row_indices = (
        _of_layout(f"{name}_indices", "column compressed ") for name in ("ccol", "row")
    )

    __div__ = _C.TensorBase.__truediv__
    __rdiv__ = _C.TensorBase.__rtruediv__
    __idiv__ = _C.TensorBase.__itruediv__
    __long__ = _C.TensorBase.__int__
    __nonzero__ = _C.TensorBase.__bool__

    def __complex__(self) -> builtins.complex:
        return builtins.complex(self.item())

    def pin_memory(self, device: Any = None) -> Tensor:
        """The tensor in page-locked memory, from which copies to a GPU need not be waited for.

        Raises:
            DeviceError: no GPU here, or a tensor that is not in host memory.
        """
        return _C._cuda_module().pin(self)

    def is_pinned(self, device: Any = None) -> builtins.bool:
        """Whether the memory is page-locked for a GPU; `device` is not looked at."""
        return _C._cuda_in_use() and _C._cuda_module().is_pinned(self)

    def record_stream(self, stream: Any) -> None:
        """Tells the allocator that `stream`, of this device, uses the tensor too: its memory stays until that
        work is done."""
        _C._cuda_module().record_stream(self, stream.device.index, stream.cuda_stream)

    def _fix_weakref(self) -> None:
        """Does nothing: an object that a weak reference gave again is as good as any other."""

    def untyped_storage(self) -> Any:
        """The bytes that this tensor views, others perhaps too."""
        return offered("storage").UntypedStorage._on(_C._storage_bytes(self))

    def storage(self) -> Any:
        """untyped_storage(), read as elements of this tensor's dtype."""
        return offered("storage").typed_class_of(self.dtype)._on(_C._storage_bytes(self))

    def storage_type(self) -> Any:
        """The class of storage()."""
        return offered("storage").storage_class_of(self.dtype)

    @_overridable
    def set_(
        self, source: Any = None, storage_offset: builtins.int = 0, size: Any = None, stride: Any = None
    ) -> Tensor:
        """Views other memory from here on: that of a tensor or storage of the same dtype, or none.

        Args:
            source: the tensor or storage; left out, the tensor becomes empty.
            storage_offset: where it begins, in elements; with `size` only.
            size: the new sizes; left out, all of a storage, or the tensor's sizes and strides.
            stride: in elements; row-major where it is left out.

        A storage that is too small for `size` grows, with new elements that are not set.

        Raises:
            RuntimeError: another dtype or device, or a tensor that requires a gradient outside of no_grad().
        """
        if self.requires_grad and _C.is_grad_enabled():
            raise RuntimeError(
                "set_: a tensor that requires a gradient cannot take on other memory; use no_grad()"
            )
        if source is None:
            source, size = self.new_empty(0), (0,)
        if isinstance(source, Tensor):
            if source.dtype != self.dtype:
                raise RuntimeError(f"set_: expected a source of {self.dtype}, got one of {source.dtype}")
            elements = source
            if size is None:
                size, stride, storage_offset = source.shape, source.stride(), source.storage_offset()
        else:
            elements = offered("storage").bytes_as(source, self.dtype)
            if size is None:
                size, stride = elements.shape, (1,)
            elif storage_offset > elements.numel() and tuple(size) == tuple(self.shape):
                raise RuntimeError(
                    f"set_: sizes {tuple(size)} from element {storage_offset} on are out of bounds for "
                    f"storage of size {source.nbytes()}"
                )
        if stride is None:
            stride, step = [], 1
            for length in reversed(size):
                stride.insert(0, step)
                step *= max(length, 1)
        return _C._set_storage(self, elements, tuple(size), tuple(stride), storage_offset)

    @_overridable
    def is_set_to(self, tensor: Tensor) -> builtins.bool:
        """Whether both view the same elements of the same memory, with the same sizes and strides."""
        place = (self.storage_offset(), self.shape, self.stride())
        return _C._storage_address(self) == _C._storage_address(tensor) and place == (
            tensor.storage_offset(),
            tensor.shape,
            tensor.stride(),
        )

    def share_memory_(self) -> Tensor:
        """Moves the tensor's storage into memory that other processes can share, and returns the tensor.

        NumPy arrays made of it before keep the memory that it had. Without effect on a GPU.
        """
        if not self.is_cuda:
            _C._share_memory(self)
        return self

    def is_shared(self) -> builtins.bool:
        """Whether the storage is in memory that processes share; always so on a GPU."""
        return _C._is_shared(self)

    def __iter__(self) -> Iterator[Tensor]:
        if self.ndim == 0:
            raise TypeError("iteration over a 0-d tensor")
        return iter(self.unbind(0))

    def __contains__(self, value: object) -> builtins.bool:
        return bool((self == value).any())

    @_overridable
    def module_load(self, other: Tensor, assign: builtins.bool = False) -> Tensor:
        """What load_state_dict swaps with this tensor of a module for `other` of the state_dict.

        Used where torch.__future__.get_swap_module_params_on_conversion(); a subclass may override it, and
        returns neither `self` nor `other`. Here it is `other` itself or, without `assign`, this tensor after
        its values were copied, detached.
        """
        return other.detach() if assign else self.copy_(other).detach()

    def __reversed__(self) -> Tensor:
        return self.flip(0) if self.ndim else self

    def __format__(self, spec: str) -> str:
        return (
            format(self.item(), spec)
            if self.ndim == 0 and not self.is_meta
            else object.__format__(self, spec)
        )

    def __repr__(self, *, tensor_contents: str | None = None) -> str:
        return offered("printing").tensor_text(self, tensor_contents)

    def _repr_html_(self) -> str | None:
        from .rich import tensor_html

        return tensor_html(self)

    def __copy__(self) -> Tensor:
        import copy

        if type(self).__reduce_ex__ is not Tensor.__reduce_ex__:
            return copy._reconstruct(self, None, *self.__reduce_ex__(4))  # type: ignore[attr-defined]
        copied = Tensor._make_subclass(type(self), self, self.requires_grad)
        copied.__dict__.update(self.__dict__)
        return copied

    def __deepcopy__(self, memo: dict[builtins.int, Any]) -> Tensor:
        if not self.is_leaf:
            raise RuntimeError(
                "Only Tensors created explicitly by the user (graph leaves) support the deepcopy protocol at "
                "the moment; use detach().clone()"
            )
        if id(self) in memo:
            return memo[id(self)]
        if is_wrapper(self) or (type(self).clone is not Tensor.clone and not self.data_ptr()):
            copy = cloned(self)  # data of its own elsewhere
            if type(copy) is not type(self):
                raise RuntimeError(
                    f"deepcopy: {type(self).__name__}.clone() returned a {type(copy).__name__}; it must "
                    "return an object of its own class"
                )
        else:
            copy = _copied(self, memo)
            copy = copy.as_subclass(type(self)) if type(self) is not Tensor else _C.TensorBase.detach(copy)
        memo[id(self)] = copy  # before what may lead back here
        copy.requires_grad = self.requires_grad
        if self.grad is not None:
            copy.grad = self.grad.__deepcopy__(memo)
        copy.__dict__.update({k: _deepcopy(v, memo) for k, v in self.__dict__.items()})
        for name in copyreg._slotnames(type(self)):  # type: ignore[attr-defined]
            if hasattr(self, name):
                setattr(copy, name, _deepcopy(getattr(self, name), memo))
        return copy

    def as_subclass(self, cls: builtins.type) -> Any:
        """The same memory, with its history, as an object of another tensor class."""
        return _C._as_subclass(self, cls)

    def __reduce_ex__(self, protocol: SupportsIndex) -> tuple[Any, ...]:
        if is_wrapper(self):
            return reduced(self)
        state = (_C._tensor_bytes(self), self.dtype, tuple(self.shape), self.requires_grad, str(self.device))
        return rebuild_tensor, (type(self), *state), self.__dict__ or None

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)


def rebuild_tensor(
    cls: type, data: bytes, dtype: _C.dtype, shape: tuple[int, ...], requires_grad: bool, device: str
) -> Tensor:
    """Unpickles a tensor."""
    t = _C._tensor_from_bytes(data, dtype, shape)
    if device != "cpu":
        t = t.to(device)
    if cls is not Tensor:
        return Tensor._make_subclass(cls, t, requires_grad)
    return t.requires_grad_(requires_grad)


def copied_storage(t: Tensor, memo: dict[Any, Any]) -> Tensor:
    """A copy of the bytes that t views, the same one for all that view them in one deep copy, whose `memo`
    knows it."""
    data = _C._storage_bytes(t)
    key = Tensor, t.device, data.data_ptr(), data.numel()
    if key not in memo:
        memo[key] = data, data.clone()  # `data` keeps its address
    return memo[key][1]


def _copied(t: Tensor, memo: dict[builtins.int, Any]) -> Tensor:
    if t.is_meta or not t.data_ptr():
        return t.data.clone()
    strides = t.stride()
    return _C._on_storage(copied_storage(t, memo), t.dtype, tuple(t.shape), strides, t.storage_offset())


def _deepcopy(value: Any, memo: dict[builtins.int, Any]) -> Any:
    import copy

    return copy.deepcopy(value, memo)


_C._register_types(Tensor)
