"""load(): first all records are read and checked, then the pickle puts the object together."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import IO, Any

from .. import _C
from ..core import Tensor, offered
from ..core.interchange import raw_bytes
from ..core.storage import TypedStorage, UntypedStorage, storage_on
from . import _endianness
from . import names as _names
from ._archive import LOCAL, Archive, Source
from ._errors import FileError, UnpicklingError
from ._unpickler import Survey, Unpickler
from .files import Mapped

_LEGACY_START = b"\x80\x02\x8a\n" + _names.LEGACY_MAGIC.to_bytes(10, "little")
_VERSIONS = range(1, 11)  # of the archive's layout, which PyTorch reads

# ---- where tensors go ----


class _PlacementFailed(BaseException):
    """Carries what went wrong in placing a storage past what calls damage whatever fails in a pickle."""


def restore(storage: UntypedStorage, location: str) -> UntypedStorage:
    """The storage at a location of a file. RuntimeError for a device that is not here."""
    if location.startswith("cuda"):
        if not offered("cuda").is_available():
            raise RuntimeError(
                "Attempting to deserialize object on a CUDA device but torch.cuda.is_available() is False. "
                "If you are running on a CPU-only machine, please use torch.load with "
                "map_location=torch.device('cpu') to map your storages to the CPU."
            )
    elif location not in ("cpu", "meta"):
        raise RuntimeError(
            f"load: don't know how to restore data location of {location!r}; set map_location='cpu'"
        )
    return storage.to(location)


def _placement(map_location: Any) -> Callable[[UntypedStorage, str], UntypedStorage]:
    """What puts a storage where map_location says."""
    if map_location is None:
        return restore
    if isinstance(map_location, dict):
        return lambda storage, location: restore(storage, str(map_location.get(location, location)))
    if callable(map_location):

        def called(storage: UntypedStorage, location: str) -> UntypedStorage:
            out = map_location(storage, location)
            out = restore(storage, location) if out is None else out
            if not isinstance(out, UntypedStorage):
                raise TypeError(f"load: map_location returned {type(out).__name__}, not a storage")
            return out

        return called
    device = str(_C.device(map_location))
    return lambda storage, location: restore(storage, device)


class _Storages:
    """Answers the pickle's persistent ids."""

    def __init__(self, held: dict[str, Tensor], map_location: Any, order: str = "little") -> None:
        self.held, self.place, self.order = held, _placement(map_location), order
        self.placed: dict[str, Tensor] = {}

    def __call__(self, pid: Any) -> UntypedStorage:
        kind, key, location, count, view = storage_id(pid)
        held = self.held.get(key)
        if held is None:
            raise UnpicklingError(f"storage {key!r} is not in the file")
        if kind.dtype.itemsize * count != held.numel():
            raise UnpicklingError(
                f"storage {key!r} has {held.numel()} bytes, not {count} elements of {kind.__name__}"
            )
        if key not in self.placed:
            if self.order == "big":
                width = kind.dtype.itemsize // (2 if kind.dtype.is_complex else 1)
                held = held.reshape(-1, width).flip(1).reshape(-1)
            try:
                self.placed[key] = self.place(storage_on(UntypedStorage, held), location)._bytes
            except Exception as error:
                raise _PlacementFailed(error) from error
        placed = self.placed[key]
        if view is not None:
            begin, end = (n * kind.dtype.itemsize for n in view)
            placed = placed[begin:end]
        return storage_on(kind if issubclass(kind, TypedStorage) else TypedStorage, placed)


def _is_module(pid: Any) -> bool:
    """Whether it stands for a class of modules, beside whose name older files have its source."""
    return type(pid) is tuple and len(pid) > 1 and type(pid[0]) is str and pid[0] == "module"


def storage_id(pid: Any) -> tuple[type[UntypedStorage], str, str, int, tuple[int, int] | None]:
    """Class, key, location and elements of a storage, and which of them a part of it has, in files before
    PyTorch 0.4. UnpicklingError for what is none."""
    if type(pid) is not tuple or len(pid) < 5:
        raise UnpicklingError("a persistent id that is no storage's")
    part = pid[5] if len(pid) > 5 else None  # its own key, the first element, how many
    # Python 2's strings are bytes where load() was told to leave them so.
    plain: list[Any] = [x.decode() if type(x) is bytes else x for x in pid[:5]]
    tag, kind, key, location, count = plain
    types = [type(x) for x in (tag, key, location, count)]
    if types != [str, str, str, int] or not isinstance(kind, type) or not issubclass(kind, UntypedStorage):
        raise UnpicklingError("a persistent id that is no storage's")
    if part is None:
        return kind, key, location, count, None
    if type(part) is not tuple or [type(x) for x in part[1:]] != [int, int]:
        raise UnpicklingError("a persistent id that is no storage's")
    first, size = part[1:]
    if not 0 <= first <= first + size <= count:
        raise UnpicklingError(f"a part of a storage of {count} elements that does not lie in it")
    return kind, key, location, count, (first, first + size)


# ---- both formats ----


def _trusting(module: Any, persistent_load: Callable[[Any], Any]) -> type:
    """An Unpickler that makes anything, with PyTorch's names leading here."""

    class Trusting(module.Unpickler):
        def find_class(self, path: str, name: str) -> Any:
            if path.split(".")[0] != "torch":
                return super().find_class(path, name)
            out = _names.known(path, name)
            return _names.resolve(path, name) if out is None else out

        def persistent_load(self, pid: Any) -> Any:
            return pid[1] if _is_module(pid) else persistent_load(pid)

    return Trusting


def _unpickle(file: IO[bytes], limit: int, storages: _Storages, module: Any, options: dict[str, Any]) -> Any:
    try:
        if module is None:
            return Unpickler(file, limit, storages, options.get("encoding", "utf-8")).load()
        return _trusting(module, storages)(file, **{"encoding": "utf-8", **options}).load()
    except _PlacementFailed as failed:
        raise failed.args[0] from None


def from_file(
    file: IO[bytes], map_location: Any, module: Any, options: dict[str, Any], mmap: bool, shared: bool = False
) -> Any:
    """The object in a file.

    Args:
        module: with an Unpickler, or None for the closed list.
        options: of the Unpickler.
        mmap: leave storages where they are in the file, which is a real one.
        shared: what is written to mapped storages reaches the file, which is open for writing.
    """
    source = Source(file)
    if _is_legacy(source):
        if mmap:
            raise RuntimeError("load: mmap=True needs a file of PyTorch 1.6 or newer; save it anew")
        held, end = _legacy_storages(source)
        state = _unpickle(file, source.size, _Storages(held, map_location), module, options)
        file.seek(end)  # others may have written behind it
        return state
    mapped = Mapped(file, shared) if mmap else None
    if mapped is not None:
        source.mapped = memoryview(mapped.map)
    archive = Archive(source)
    folder, order = _checked_folder(archive)
    held = _all_storages(archive, folder + "data/", mapped)
    with archive.open(folder + "data.pkl") as data:
        return _unpickle(data, source.size, _Storages(held, map_location, order), module, options)


def is_safetensors(start: bytes) -> bool:
    """Whether these are the first nine bytes of a safetensors file: the length of a JSON object, and its
    first byte."""
    return len(start) == 9 and int.from_bytes(start[:8], "little") <= 100_000_000 and start[8:] == b"{"


def from_safetensors(path: str, map_location: Any) -> dict[str, Tensor]:
    """The tensors of a safetensors file, at one device."""
    if isinstance(map_location, dict) or callable(map_location):
        kind = "dict" if isinstance(map_location, dict) else "callable"
        raise RuntimeError(
            f"Loading safetensors file with {kind} map_location is not supported. "
            "Use a device string or torch.device instead."
        )
    device = "cpu" if map_location is None else map_location
    return offered("safetensors").load_file(path, device=device)


def unsafe_names(file: IO[bytes]) -> list[str]:
    """What in a file's pickle is not on the closed list."""
    source = Source(file)
    if _is_legacy(source):
        for _ in range(3):
            Unpickler(file, source.size, lambda _: None).load()
        survey = Survey(file, source.size)
    else:
        archive = Archive(source)
        survey = Survey(archive.open(_checked_folder(archive)[0] + "data.pkl"), source.size)
    survey.load()
    return sorted(survey.names)


def _is_legacy(source: Source) -> bool:
    if not source.size:
        raise EOFError("load: the file is empty (Ran out of input)")
    start = source.bytes(0, min(source.size, len(_LEGACY_START)))
    source.file.seek(source.base)
    if start == _LEGACY_START:
        return True
    if is_safetensors(start[:9]):
        raise FileError(
            "load: this is a safetensors file; read it with warptape.utils.safetensors.load_file(path), its "
            "bytes with load(data), or give a path that ends in .safetensors"
        )
    if not start.startswith(LOCAL):
        raise FileError("load: this is not a file that torch.save wrote, or its first bytes are damaged")
    return False


# ---- archives ----


def _checked_folder(archive: Archive) -> tuple[str, str]:
    """What all names begin with and the order of bytes, once what says how to read has proved right."""
    folder = next(iter(archive.records), "").partition("/")[0] + "/"
    if folder + "constants.pkl" in archive.records:
        raise FileError("load: a TorchScript archive; only what torch.save wrote can be loaded")
    for name in ("data.pkl", "version"):
        if folder + name not in archive.records:
            raise FileError(f"load: the file has no record {folder + name!r}; torch.save did not write it")
    version = archive.open(folder + "version").read(20).strip()
    if not version.isdigit() or len(version) > 2 or int(version) not in _VERSIONS:
        raise FileError(f"load: archives of version {version!r} are not known here")
    order = _endianness.default_order()
    if folder + "byteorder" in archive.records:
        order = archive.open(folder + "byteorder").read(20).decode(errors="replace")
        if order not in ("little", "big"):
            raise FileError(f"load: Unknown endianness type: {order!r}")
    if not archive.checked:
        warnings.warn(
            "load: the file has no checksums (set_crc32_options(False) at its save): damage goes unnoticed",
            stacklevel=4,
        )
    return folder, order


def _all_storages(archive: Archive, prefix: str, mapped: Mapped | None) -> dict[str, Tensor]:
    """By key, the bytes of all storages; everything in the file has been checked then."""
    held: dict[str, Tensor] = {}
    into: dict[str, memoryview | None] = {}
    for name, record in archive.records.items():
        into[name] = None
        if name.startswith(prefix):
            key = name.removeprefix(prefix)
            if mapped is not None and record.at % 8 == 0:
                held[key] = mapped.tensor(record.at, _C.uint8, (record.size,))
                if mapped.shared:  # who wrote to it left the checksum as it was
                    del into[name]
            else:
                held[key] = _C._functions.empty(record.size, dtype=_C.uint8, device="cpu")
                into[name] = raw_bytes(held[key])
    archive.fill(into)
    return held


# ---- before PyTorch 1.6 ----


def _legacy_storages(source: Source) -> tuple[dict[str, Tensor], int]:
    """By key, the bytes of all storages, and where they end; leaves the file before the pickle that needs
    them.

    Note: this format is a stream: magic number, version, facts of the machine, the object's pickle, the keys
    of its storages, then for each its number of elements and its bytes. It has no checksums.
    """
    file, limit = source.file, source.size

    def plain() -> Any:
        return Unpickler(file, limit, lambda _: None).load()

    facts = [plain(), plain(), plain()]
    if facts[:2] != [_names.LEGACY_MAGIC, _names.LEGACY_PROTOCOL] or type(facts[2]) is not dict:
        raise FileError("load: the head of the file is damaged")
    if facts[2].get("little_endian") is not True:
        raise FileError("load: the file has numbers with their high byte first; save it on another machine")
    begin, kinds = file.tell(), dict[str, tuple[type[UntypedStorage], int]]()

    def note(pid: Any) -> None:
        if not _is_module(pid):
            kind, key, _, count, _ = storage_id(pid)
            kinds[key] = kind, count

    survey = Survey(file, limit)
    survey.persistent_load = note
    survey.load()
    keys = plain()
    if type(keys) is not list or not all(type(k) is str and k in kinds for k in keys):
        raise FileError("load: the list of storages in the file is damaged")
    at, held = file.tell() - source.base, dict[str, Tensor]()
    for key in keys:
        kind, count = kinds[key]
        size = count * kind.dtype.itemsize
        if size < 0 or at + 8 + size > limit or int.from_bytes(source.bytes(at, 8), "little") != count:
            raise FileError(
                f"load: storage {key!r} is damaged or the file is truncated: not {count} elements"
            )
        held[key] = _C._functions.empty(size, dtype=_C.uint8, device="cpu")
        source.into(at + 8, raw_bytes(held[key]))
        at += 8 + size
    file.seek(begin)
    return held, source.base + at
