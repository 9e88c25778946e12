"""What data pipes share: checks of the functions that they are given, files that are closed, lengths."""

from __future__ import annotations

import fnmatch
import functools
import inspect
import os
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence, Sized
from typing import Any, NoReturn

__all__ = [
    "StreamWrapper",
    "get_file_binaries_from_pathnames",
    "get_file_pathnames_from_root",
    "match_masks",
    "validate_input_col",
]


def length_of(source: Any, pipe: Any) -> int:
    """The length of what `pipe` reads. Raises TypeError where it has none."""
    if isinstance(source, Sized):
        return len(source)
    raise TypeError(f"{type(pipe).__name__} instance doesn't have valid length")


def columns_of(data: Any, input_col: Any) -> tuple[Any, ...]:
    """The arguments for a function that takes `input_col` of a sample."""
    if input_col is None:
        return (data,)
    if isinstance(input_col, list | tuple):
        return tuple(data[col] for col in input_col)
    return (data[input_col],)


def validate_input_col(fn: Callable[..., Any], input_col: Any) -> None:
    """Checks that `fn` can be called with as many positional arguments as `input_col` names.

    Raises:
        ValueError: it takes fewer, needs more, or needs arguments by keyword.
    """
    try:
        parameters = inspect.signature(fn).parameters.values()
    except ValueError:  # of a function in C that does not tell
        return
    wanted = len(input_col) if isinstance(input_col, list | tuple) else 1
    inner = fn.func if isinstance(fn, functools.partial) else fn
    name = getattr(inner, "__name__", repr(inner))
    positional = [p for p in parameters if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)]
    by_keyword = sum(p.kind is p.KEYWORD_ONLY and p.default is p.empty for p in parameters)
    if by_keyword:
        raise ValueError(
            f"The function {name} takes {by_keyword} non-default keyword-only parameters, which is not "
            "allowed."
        )
    needed = sum(p.default is p.empty for p in positional)
    many = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    if needed > wanted or (len(positional) < wanted and not many):
        raise ValueError(
            f"The function {name} takes {len(positional)} positional parameters, but {wanted} are required."
        )


def _check_unpickable_fn(fn: Callable[..., Any]) -> None:
    """Warns of a function that worker processes could not be sent. Raises TypeError for no function."""
    if not callable(fn):
        raise TypeError(f"A callable function is expected, but {type(fn)} is provided.")
    inner = fn.func if isinstance(fn, functools.partial) else fn
    what = ""
    if isinstance(inner, types.FunctionType):
        if inner.__code__.co_flags & inspect.CO_NESTED:
            what = "Local"
        elif inner.__name__ == "<lambda>":
            what = "Lambda"
    elif "<locals>" in getattr(inner, "__qualname__", type(inner).__qualname__):
        what = "Local"
    if what:
        warnings.warn(
            f"{what} function is not supported by pickle, please use regular python function or "
            "functools.partial instead.",
            stacklevel=3,
        )


def match_masks(name: str, masks: str | Sequence[str]) -> bool:
    """Whether a file's name fits any of the masks, as the shell's; no mask fits all."""
    patterns = [masks] if isinstance(masks, str) else masks
    return not masks or any(fnmatch.fnmatch(name, pattern) for pattern in patterns)


def get_file_pathnames_from_root(
    root: str,
    masks: str | Sequence[str],
    recursive: bool = False,
    abspath: bool = False,
    non_deterministic: bool = False,
) -> Iterator[str]:
    """The files in a folder whose names fit, or the file itself; sorted unless `non_deterministic`.

    Raises:
        OSError: a folder that cannot be read; after a warning.
    """

    def refuse(error: OSError) -> NoReturn:
        warnings.warn(f"{error.filename} : {error.strerror}", stacklevel=3)
        raise error

    start = os.path.abspath(root) if abspath else root
    if os.path.isfile(root):
        if match_masks(os.path.basename(root), masks):
            yield start
        return
    for path, folders, files in os.walk(start, onerror=refuse):
        if not non_deterministic:
            files.sort()
            folders.sort()  # os.walk goes on with this list
        yield from (os.path.join(path, file) for file in files if match_masks(file, masks))
        if not recursive:
            return


def get_file_binaries_from_pathnames(
    pathnames: Iterable[str] | str, mode: str, encoding: str | None = None
) -> Iterator[tuple[str, StreamWrapper]]:
    """Pairs of a path and the open file. Raises TypeError for a path that is no text."""
    for path in [pathnames] if isinstance(pathnames, str) else pathnames:
        if not isinstance(path, str):
            raise TypeError(f"Expected string type for pathname, but got {type(path)}")
        file = open(path, f"r{mode}" if mode in ("b", "t") else mode, encoding=encoding)  # noqa: SIM115
        yield path, StreamWrapper(file)


class StreamWrapper:
    """An open file that is closed when nobody has it any more; all else is the file's.

    Args:
        file_obj: what has `read` and `close`.
        parent_stream: the wrapped archive that the file lies in. Its `autoclose()` has it closed with the
            last of its members.
        name: shown by `repr`.

    Raises:
        RuntimeError: `parent_stream` is no StreamWrapper.
    """

    closed = True  # until there is a file

    def __init__(
        self, file_obj: Any, parent_stream: StreamWrapper | None = None, name: str | None = None
    ) -> None:
        if parent_stream is not None and not isinstance(parent_stream, StreamWrapper):
            raise RuntimeError(f"Parent stream should be StreamWrapper, {type(parent_stream)} was given")
        self.file_obj, self.parent_stream, self.name = file_obj, parent_stream, name
        self.child_counter, self.close_on_last_child, self.closed = 0, False, False
        if parent_stream is not None:
            parent_stream.child_counter += 1

    @classmethod
    def close_streams(cls, v: Any, depth: int = 0) -> None:
        """Closes all wrapped files in nested dicts, lists and tuples, down to depth 10."""
        if isinstance(v, StreamWrapper):
            v.close()
        elif isinstance(v, dict | list | tuple) and depth < 10:
            for part in v.values() if isinstance(v, dict) else v:
                cls.close_streams(part, depth + 1)

    def close(self) -> None:
        """Closes the file, and its archive after the last of its files if that was asked for."""
        if self.closed:
            return
        self.closed = True
        if hasattr(self.file_obj, "close"):
            self.file_obj.close()
        parent = self.parent_stream
        if parent is not None:
            parent.child_counter -= 1
            if parent.close_on_last_child and parent.child_counter == 0:
                parent.close()

    def autoclose(self) -> None:
        """Closes it with the last of its members; now if it has none open."""
        self.close_on_last_child = True
        if self.child_counter == 0:
            self.close()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.__dict__["file_obj"], name)

    def __iter__(self) -> Iterator[Any]:
        yield from self.file_obj

    def __next__(self) -> Any:
        return next(self.file_obj)

    def __repr__(self) -> str:
        return f"StreamWrapper<{'' if self.name is None else f'{self.name},'}{self.file_obj!r}>"

    def __getstate__(self) -> Any:
        return {**vars(self), "parent_stream": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)

    def __del__(self) -> None:
        self.close()
