"""Pipes that call a function of each sample."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from ..._utils.collate import default_collate
from ..datapipe import IterDataPipe, functional_datapipe
from ..utils.common import StreamWrapper, _check_unpickable_fn, columns_of, length_of, validate_input_col


@functional_datapipe("map")
class MapperIterDataPipe(IterDataPipe[Any]):
    """Gives `fn(sample)` for each sample.

    Args:
        fn: any function; workers that are not forked need one that pickle takes.
        input_col: the index, or a list of them, of what of a sample goes to `fn`; None for the sample.
        output_col: where in the sample the result goes, -1 to append it. None: in place of `input_col`, of
            several in place of the first, and the others go.

    Raises:
        ValueError: `output_col` without `input_col` or of several, or an `fn` that does not take `input_col`.
    """

    def __init__(
        self, datapipe: Any, fn: Callable[..., Any], input_col: Any = None, output_col: Any = None
    ) -> None:
        _check_unpickable_fn(fn)
        if input_col is None and output_col is not None:
            raise ValueError("`output_col` must be None when `input_col` is None.")
        if isinstance(output_col, list | tuple):
            if len(output_col) > 1:
                raise ValueError("`output_col` must be a single-element list or tuple")
            output_col = output_col[0]
        validate_input_col(fn, input_col)
        self.datapipe, self.fn = datapipe, fn
        self.input_col, self.output_col = input_col, output_col

    def _apply_fn(self, data: Any) -> Any:
        found = self.fn(*columns_of(data, self.input_col))
        if self.input_col is None:
            return found
        out = list(data) if isinstance(data, tuple) else data
        into, spent = self.output_col, []
        if into is None:
            columns = self.input_col if isinstance(self.input_col, list | tuple) else [self.input_col]
            into, spent = columns[0], sorted(columns[1:], reverse=True)
            out[into] = found
        elif into == -1:
            out.append(found)
        else:
            out[into] = found
        for col in spent:
            del out[col]
        return tuple(out) if isinstance(data, tuple) else out

    def __iter__(self) -> Iterator[Any]:
        for data in self.datapipe:
            yield self._apply_fn(data)

    def __len__(self) -> int:
        return length_of(self.datapipe, self)


@functional_datapipe("collate")
class CollatorIterDataPipe(MapperIterDataPipe):
    """Gives `collate_fn(batch)` for each batch, or `conversion(batch)`; default_collate unless told.

    Raises:
        TypeError: no function; PyTorch's dicts of functions for data frames are not supported.
    """

    def __init__(
        self,
        datapipe: Any,
        conversion: Callable[..., Any] = default_collate,
        collate_fn: Callable[..., Any] | None = None,
    ) -> None:
        super().__init__(datapipe, conversion if collate_fn is None else collate_fn)


@functional_datapipe("filter")
class FilterIterDataPipe(IterDataPipe[Any]):
    """Gives the samples for which `filter_fn` is true; files of the others are closed.

    Args:
        filter_fn: returns a bool.
        input_col: as of `map()`.

    Raises:
        ValueError: `filter_fn` does not take `input_col`; while iterating: its result is no bool.
    """

    def __init__(self, datapipe: Any, filter_fn: Callable[..., bool], input_col: Any = None) -> None:
        _check_unpickable_fn(filter_fn)
        validate_input_col(filter_fn, input_col)
        self.datapipe, self.filter_fn, self.input_col = datapipe, filter_fn, input_col

    def __iter__(self) -> Iterator[Any]:
        for data in self.datapipe:
            keep = self.filter_fn(*columns_of(data, self.input_col))
            if not isinstance(keep, bool):
                raise ValueError(
                    "Boolean output is required for `filter_fn` of FilterIterDataPipe, got "
                    f"{type(keep).__name__}"
                )
            if keep:
                yield data
            else:
                StreamWrapper.close_streams(data)
