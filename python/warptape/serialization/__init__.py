"""save() and load(): objects that hold tensors, in files that PyTorch reads and writes too.

Loading takes a closed list of types unless told otherwise, so that a file from elsewhere cannot run code, and
checks what it reads: `docs/reference/files.md` has the details.
"""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable
from mmap import MAP_SHARED
from types import ModuleType
from typing import TYPE_CHECKING, Any, TypeAlias

from .. import _C
from .._missing import install_getattr as _install_getattr
from ..core import offer, offered
from ._allowed import add_safe_globals, clear_safe_globals, get_safe_globals, safe_globals
from ._endianness import LoadEndianness, get_default_load_endianness, set_default_load_endianness
from ._mmap import get_default_mmap_options, set_default_mmap_options

if TYPE_CHECKING:
    from warptape.core.types import FileLike

__all__ = [
    "LoadEndianness",
    "add_safe_globals",
    "clear_safe_globals",
    "default_restore_location",
    "get_crc32_options",
    "get_default_load_endianness",
    "get_default_mmap_options",
    "get_safe_globals",
    "get_unsafe_globals_in_checkpoint",
    "load",
    "location_tag",
    "normalize_storage_type",
    "safe_globals",
    "save",
    "set_crc32_options",
    "set_default_load_endianness",
    "set_default_mmap_options",
]

_checksums = True


def set_crc32_options(compute_crc32: bool) -> None:
    """Whether save() writes checksums, which it does by default.

    Without them a file is written sooner, and load(), which warns, cannot tell whether it is damaged; what
    else reads zip archives may refuse it.
    """
    global _checksums
    _checksums = compute_crc32


def get_crc32_options() -> bool:
    """Whether save() writes checksums; `set_crc32_options` chooses.

    >>> torch.serialization.get_crc32_options()
    True
    """
    return _checksums


DEFAULT_PROTOCOL = 2  # of pickle

# What load takes as map_location.
MAP_LOCATION: TypeAlias = Callable[[Any, str], Any] | _C.device | str | dict[str, str] | None


def save(
    obj: object,
    f: Any,
    pickle_module: Any = None,
    pickle_protocol: int = DEFAULT_PROTOCOL,
    _use_new_zipfile_serialization: bool = True,
    _disable_byteorder_record: bool = False,
) -> None:
    """Writes obj and the tensors in it. Tensors of one storage still share it once they are loaded.

    Args:
        f: a path, which has the whole file or keeps what it has, or a file open for writing.
        pickle_module: None; another module cannot write this format here.
        pickle_protocol: accepted; files have protocol 2, which all versions read.
        _use_new_zipfile_serialization: False writes the format that PyTorch had before 1.6, a stream without
            checksums.
        _disable_byteorder_record: leaves out the record that says which byte of a number comes first.

    Raises:
        PicklingError: an object that only exists in this process, as a lambda.
        RuntimeError: no such folder, or one storage as two dtypes.

    >>> import io
    >>> file = io.BytesIO()
    >>> torch.save({"weight": torch.ones(2)}, file)
    >>> _ = file.seek(0)
    >>> torch.load(file)
    {'weight': tensor([1., 1.])}
    """
    from ._archive import pieces
    from ._pickler import LegacyPickler, Pickler
    from .files import replace_file, write_all

    if getattr(pickle_module, "__name__", "pickle") != "pickle":
        raise ValueError(f"save: pickle_module {pickle_module.__name__!r} is not supported; leave it out")
    path = os.fspath(f) if isinstance(f, str | os.PathLike) else ""
    name = os.path.splitext(os.path.basename(path))[0].encode(errors="replace").decode()

    def parts() -> Any:
        if not _use_new_zipfile_serialization:
            return LegacyPickler(obj).pieces()
        return pieces(name or "archive", Pickler(obj).records(not _disable_byteorder_record), _checksums)

    if hasattr(f, "write"):
        write_all(f, parts())
        if callable(flush := getattr(f, "flush", None)):
            flush()  # the file may be read by its name next
    elif path:
        replace_file(path, parts())
    else:
        raise AttributeError(
            "expected 'f' to be string, path, or a file-like object with a 'write' attribute"
        )


def _weights_only(asked: bool | None, pickle_module: ModuleType | None) -> bool:
    """What load() was asked for, with what the environment says."""
    always, never = (
        os.environ.get(name, "").lower() in ("1", "y", "yes", "true")
        for name in ("TORCH_FORCE_WEIGHTS_ONLY_LOAD", "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD")
    )
    if always and never:
        raise RuntimeError(
            "Only one of TORCH_FORCE_WEIGHTS_ONLY_LOAD and TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD should be set, "
            "but both are"
        )
    if always:
        return True
    if asked is None and never:
        warnings.warn(
            "TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD is set and weights_only is not given, forcing "
            "weights_only=False: the file may run any code",
            stacklevel=3,
        )
        return False
    return pickle_module is None if asked is None else asked


def normalize_storage_type(storage_type: type) -> type:
    """The class of storages of that name in host memory: torch.cuda.FloatStorage -> torch.FloatStorage."""
    storage_class: type = getattr(offered("root"), storage_type.__name__)
    return storage_class


def load(
    f: FileLike,
    map_location: MAP_LOCATION | None = None,
    pickle_module: ModuleType | None = None,
    *,
    weights_only: bool | None = None,
    mmap: bool | None = None,
    **pickle_load_args: Any,
) -> Any:
    """Reads what save() or torch.save() wrote, and the tensors of a path that ends in .safetensors.

    Args:
        f: a path, or a seekable file open for reading.
        map_location: where tensors go: a device, a dict from devices in the file to devices, or a function
            of a storage and its device in the file, which returns a storage, or None to leave it there.
        pickle_module: reads with another module's Unpickler, and so as with weights_only=False.
        weights_only: accept tensors, Python's containers and numbers, and what add_safe_globals() allows.
            False runs whatever code the file has: for files that you trust. The environment variable
            TORCH_FORCE_WEIGHTS_ONLY_LOAD=1 makes it True for all loads, TORCH_FORCE_NO_WEIGHTS_ONLY_LOAD=1
            False where it is not given.
        mmap: tensors lie in the file itself, mapped; what is written to them reaches it only after
            set_default_mmap_options(mmap.MAP_SHARED).
        pickle_load_args: for the Unpickler of weights_only=False; `encoding` of the strings that Python 2
            wrote, or "bytes" to leave them so, is for both.

    Raises:
        pickle.UnpicklingError: a type that is not accepted, and (a RuntimeError too) a damaged file.
        RuntimeError: both of these variables are set, or weights_only with a pickle_module.
        EOFError: an empty file.
        FileNotFoundError: no such file.

    >>> import io
    >>> file = io.BytesIO()
    >>> torch.save(torch.tensor([1, 2]), file)
    >>> _ = file.seek(0)
    >>> torch.load(file, map_location="cpu")
    tensor([1, 2])
    """
    from . import _read

    weights_only = _weights_only(weights_only, pickle_module)
    if weights_only and pickle_module is not None:
        raise RuntimeError("Can not safely load weights when explicit pickle_module is specified")
    module = None if weights_only else (pickle_module or __import__("pickle"))
    if isinstance(f, str | os.PathLike):
        shared = bool(mmap) and get_default_mmap_options() == MAP_SHARED
        with open(f, "r+b" if shared else "rb") as file:
            if os.fsdecode(f).endswith(".safetensors") and _read.is_safetensors(file.read(9)):
                return _read.from_safetensors(os.fsdecode(f), map_location)
            file.seek(0)
            return _read.from_file(file, map_location, module, pickle_load_args, bool(mmap), shared)
    if mmap:
        raise ValueError("f must be a file path in order to use the mmap argument")
    if not all(hasattr(f, name) for name in ("seek", "tell", "read")):
        raise AttributeError(
            f"{type(f).__name__!r} object has no attribute 'seek'. You can only torch.load from a file that "
            "is seekable. Please pre-load the data into a buffer like io.BytesIO and try to load from it "
            "instead."
        )
    return _read.from_file(f, map_location, module, pickle_load_args, False)


def location_tag(storage: Any) -> str:
    """What a file says of where a storage lies: "cpu", "cuda:0", "meta"."""
    return str(storage.device)


def default_restore_location(storage: Any, location: str) -> Any:
    """The storage at a location of a file, as load() puts it there without a map_location.

    Raises:
        RuntimeError: no such device here.
    """
    from ._read import restore

    return restore(storage, location)


def get_unsafe_globals_in_checkpoint(f: FileLike) -> list[str]:
    """The names in a file that load() refuses unless they are allowed. Nothing of the file is run.

    Raises: what load() raises for a damaged file.
    """
    from . import _read

    if not isinstance(f, str | os.PathLike):
        return _read.unsafe_names(f)
    with open(f, "rb") as file:
        return _read.unsafe_names(file)


def _mapped() -> type:
    from .files import Mapped

    return Mapped


def _rebuild_coded() -> Callable[..., Any]:
    from .names import rebuild_coded

    return rebuild_coded


offer("mapped files", _mapped)
offer("rebuild_coded", _rebuild_coded)
# Private in PyTorch, too, and called all the same.
_zip_names = ("_is_zipfile", "_open_file_like", "_open_zipfile_reader", "_open_zipfile_writer")
_install_getattr(
    __name__,
    **{
        n: lambda n=n: getattr(__import__("warptape.serialization._zip").serialization._zip, n)
        for n in _zip_names
    },
)
