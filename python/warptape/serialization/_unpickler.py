"""Reads pickles without the pickle module and without calling anything but what is on a closed list.

The stack machine that Python's pickletools documents, so far as protocols 2 to 5 write it for containers,
numbers, strings and calls. Nothing recurses, and no length in a file is believed before the bytes are there.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import IO, Any

from . import names as _names
from ._errors import FileError, UnpicklingError

# What these have runs programs or changes the process: no one may allow it.
BLOCKED_MODULES = ("os", "posix", "nt", "sys", "subprocess")
_MARK = object()
_EMPTY = {b"]": list, b"}": dict, b")": tuple, b"\x8f": set}
_CONSTANT = {b"N": None, b"\x88": True, b"\x89": False}
_NUMBER = {b"J": "<i", b"K": "<B", b"M": "<H", b"G": ">d"}
_STRING = {b"X": 4, b"\x8c": 1, b"\x8d": 8, b"U": 1, b"T": 4}  # bytes of the length in front
_OLD_STRING = (b"U", b"T")  # of Python 2
_BYTES = {b"B": 4, b"C": 1, b"\x8e": 8, b"\x96": 8}
_TUPLE = {b"\x85": 1, b"\x86": 2, b"\x87": 3}
_GET, _PUT = {b"h": 1, b"j": 4}, {b"q": 1, b"r": 4}
_LONG = {b"\x8a": 1, b"\x8b": 4}


class Unpickler:
    """One pickle of a file.

    Args:
        file: buffered, or in memory; afterwards it stands behind the pickle.
        limit: no part of the pickle can be longer.
        persistent_load: gets the ids of storages.
        encoding: of the strings of Python 2, which "bytes" leaves as they are.
    """

    def __init__(
        self, file: IO[bytes], limit: int, persistent_load: Callable[[Any], Any], encoding: str = "utf-8"
    ) -> None:
        self.file, self.limit, self.persistent_load = file, limit, persistent_load
        self.encoding = encoding
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def load(self) -> Any:
        """The object. UnpicklingError for what is damaged or not on the list."""
        try:
            return self._run()
        except UnpicklingError as error:
            raise FileError(f"load: {error}") from error.__cause__
        except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError) as error:
            raise FileError(f"load: the pickle in the file is damaged: {error}") from error
        except (RuntimeError, MemoryError) as error:
            raise FileError(f"load: {error}") from error

    # ---- the stream ----

    def read(self, count: int) -> bytes:
        """The next bytes, all of them."""
        data = self.file.read(count) if count <= self.limit else b""
        if len(data) != count:
            raise UnpicklingError("the pickle ends too early; the file is truncated")
        return data

    def number(self, width: int) -> int:
        """An unsigned number of so many bytes."""
        return int.from_bytes(self.read(width), "little")

    def line(self) -> str:
        """Text up to the end of the line."""
        data = self.file.readline(1000)
        if not data.endswith(b"\n"):
            raise UnpicklingError("a name in the pickle does not end")
        return data[:-1].decode()

    def above_mark(self) -> list[Any]:
        """Takes what lies above the last mark, and the mark."""
        at = len(self.stack) - 1
        while self.stack[at] is not _MARK:
            at -= 1
            if at < 0:
                raise UnpicklingError("the pickle is damaged: a mark is missing")
        items = self.stack[at + 1 :]
        del self.stack[at:]
        return items

    # ---- the opcodes ----

    def _run(self) -> Any:
        push = self.stack.append
        while True:
            code = self.read(1)
            if code in _CONSTANT:
                push(_CONSTANT[code])
            elif code in _PUT:
                self.memo[self.number(_PUT[code])] = self.stack[-1]
            elif code in _GET:
                push(self.memo[self.number(_GET[code])])
            elif code in _NUMBER:
                form = _NUMBER[code]
                push(struct.unpack(form, self.read(struct.calcsize(form)))[0])
            elif code in _STRING:
                data = self.read(self.number(_STRING[code]))
                if code in _OLD_STRING:
                    push(data if self.encoding == "bytes" else data.decode(self.encoding))
                else:
                    push(data.decode("utf-8", "surrogatepass"))
            elif code in _EMPTY:
                push(_EMPTY[code]())
            elif code in _TUPLE:
                count = _TUPLE[code]
                if len(self.stack) < count:
                    raise UnpicklingError("the pickle is damaged: its stack is too short")
                self.stack[-count:] = [tuple(self.stack[-count:])]
            elif code == b"(":
                push(_MARK)
            elif code == b".":
                (out,) = self.stack
                return out
            else:
                self._rare(code)

    def _rare(self, code: bytes) -> None:
        stack = self.stack
        if code in _LONG:
            stack.append(int.from_bytes(self.read(self.number(_LONG[code])), "little", signed=True))
        elif code in _BYTES:
            data = self.read(self.number(_BYTES[code]))
            stack.append(bytearray(data) if code == b"\x96" else data)
        elif code in (b"t", b"l", b"d", b"\x91"):
            items = self.above_mark()
            if code == b"d":
                stack.append(self._fill({}, items))
            elif code == b"\x91":
                stack.append(frozenset(map(_names.check_key, items)))
            else:
                stack.append(tuple(items) if code == b"t" else items)
        elif code in (b"a", b"e", b"s", b"u", b"\x90"):
            single = {b"a": 1, b"s": 2}.get(code)
            items = self.above_mark() if single is None else stack[-single:]
            if single:
                del stack[-single:]
            self._fill(stack[-1], items)
        elif code in (b"0", b"1"):
            stack.pop() if code == b"0" else self.above_mark()
        elif code == b"\x94":
            self.memo[len(self.memo)] = stack[-1]
        elif code == b"\x80":
            if self.number(1) > 5:
                raise UnpicklingError("a pickle protocol above 5")
        elif code == b"\x95":
            self.number(8)
        else:
            self._call(code)

    def _fill(self, target: object, items: list[Any]) -> Any:
        """Adds items to a container."""
        if any(i is _MARK for i in items):
            raise UnpicklingError("the pickle is damaged: a mark is left")
        if isinstance(target, list) and (type(target) is list or _names.is_allowed(type(target))):
            target.extend(items)
        elif isinstance(target, set):
            target.update(map(_names.check_key, items))
        elif isinstance(target, dict):
            if len(items) % 2:
                raise UnpicklingError("the pickle is damaged: a key without a value")
            for key, value in zip(items[::2], items[1::2]):
                target[_names.check_key(key)] = value
        else:
            raise UnpicklingError(f"cannot add items to {type(target).__name__}")
        return target

    def _call(self, code: bytes) -> None:
        stack = self.stack
        if code == b"c":
            stack.append(self.find(self.line(), self.line()))
        elif code == b"\x93":
            name, module = stack.pop(), stack.pop()
            if type(name) is not str or type(module) is not str:
                raise UnpicklingError("the pickle is damaged: a name that is no string")
            stack.append(self.find(module, name))
        elif code in (b"R", b"\x81"):
            args, what = stack.pop(), stack.pop()
            if type(args) is not tuple:
                raise UnpicklingError("the pickle is damaged: arguments that are no tuple")
            stack.append(self.make(what, args) if code == b"R" else self.new(what, args))
        elif code == b"b":
            state = stack.pop()
            self.build(stack[-1], state)
        elif code == b"Q":
            stack.append(self.persistent_load(stack.pop()))
        else:
            raise UnpicklingError(f"opcode {code!r} is not one that files of weights have")

    # ---- objects ----

    def find(self, module: str, name: str) -> Any:
        """What a name stands for."""
        if module.partition(".")[0] in BLOCKED_MODULES:
            raise UnpicklingError(
                f"Weights only load failed. Trying to load unsupported GLOBAL {module}.{name} whose module "
                f"{module} is blocked: what it has runs programs, and add_safe_globals() does not change that"
            )
        out = _names.known(module, name)
        out = _names.allowed(module, name) if out is None else out
        if out is None:
            known = name if module in ("builtins", "__builtin__") else f"{module}.{name}"
            raise UnpicklingError(
                f"Weights only load failed. Unsupported global: GLOBAL {known} is not among what "
                "weights_only=True accepts, so that a file from elsewhere cannot run code. "
                "If you trust it, allow it with "
                f"warptape.serialization.add_safe_globals([{name}]) or load with weights_only=False"
            )
        return out

    def make(self, what: Any, args: tuple[Any, ...]) -> Any:
        """what(*args), for what may be called."""
        if _names.is_allowed(what):
            return what(*args)
        maker = _names.MAKERS.get(id(what))
        if maker is None:
            name = what.__qualname__ if isinstance(what, type) else f"an object of {type(what).__name__}"
            raise UnpicklingError(f"{name} may not be called with weights_only=True")
        if maker is _names.rebuild_from_type:
            make, cls, inner, state = args
            return maker(lambda *given: self.make(make, given), cls, inner, state)
        return maker(*args)

    def new(self, cls: type, args: tuple[Any, ...]) -> Any:
        """An object of a class that a user allowed."""
        if not _names.is_allowed(cls) or not isinstance(cls, type):
            return self.make(cls, args)
        return cls.__new__(cls, *args)

    def build(self, obj: object, state: Any) -> None:
        """Gives an object its attributes."""
        if _names.is_allowed(type(obj)):
            if hasattr(obj, "__setstate__"):
                obj.__setstate__(state)
                return
            state, slots = state if isinstance(state, tuple) else (state, None)
            if state:
                obj.__dict__.update(state)
            for name, value in (slots or {}).items():
                setattr(obj, name, value)
        elif isinstance(obj, _names.collections.OrderedDict | _names.collections.Counter):
            obj.__dict__.update(state)
        elif type(obj) is not _names.Hint:
            raise UnpicklingError(f"attributes of {type(obj).__name__} cannot be set with weights_only=True")


class Survey(Unpickler):
    """Collects the names in a pickle that are neither on the closed list nor allowed; makes nothing."""

    def __init__(self, file: IO[bytes], limit: int) -> None:
        super().__init__(file, limit, lambda _: None)
        self.names: set[str] = set()

    def find(self, module: str, name: str) -> Any:
        out = _names.known(module, name)
        if out is None and _names.allowed(module, name) is None:
            self.names.add(f"{module}.{name}")
        return out

    def make(self, what: Any, args: tuple[Any, ...]) -> Any:
        return _Anything()

    def new(self, cls: type, args: tuple[Any, ...]) -> Any:
        return _Anything()

    def build(self, obj: object, state: Any) -> None:
        pass

    def _fill(self, target: object, items: list[Any]) -> Any:
        return target


class _Anything:
    """In the place of an object that was not made."""
