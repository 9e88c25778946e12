"""Hugging Face's names of tensors: which of theirs is which of ours, and what is turned or joined."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from .layout import CheckpointException


@dataclass(frozen=True)
class NameMap:
    """From our names of tensors to theirs.

    Args:
        rename: our pattern -> theirs, or a tuple of theirs that are joined along dim 0 into ours. Each `*`
            stands for the same text in both; the first pattern that fits is taken, else a name stays. One of
            theirs may be a slice of a tensor, `name[i]` of dim 0; then all of its slices are named, in order.
        transpose: patterns of their names of matrices, or of what has such slices, that they keep as
            [inputs, outputs].
        prefix: with which their names may begin, and are written, but for those of the head.
        ignore: patterns of their names that ours need not have.
        sizes: our pattern -> the sizes along dim 0 of what is joined; for writing not needed if equal.
        older: endings of their names -> those that older files have instead, for reading.
    """

    rename: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    transpose: tuple[str, ...] = ()
    prefix: str = ""
    ignore: tuple[str, ...] = ()
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    older: Mapping[str, str] = field(default_factory=dict)

    def theirs(self, name: str) -> tuple[str, ...]:
        """Their names, without prefix, of what makes up ours.

        Args:
            name: one of ours.
        """
        for pattern, target in self.rename.items():
            texts = _fits(name, pattern)
            if texts is not None:
                targets = (target,) if isinstance(target, str) else target
                return tuple(_filled(each, texts) for each in targets)
        return (name,)

    def transposed(self, theirs: str) -> bool:
        """Whether one of theirs is kept the other way round.

        Args:
            theirs: a name in the files, without prefix.
        """
        return any(_fits(theirs, pattern) is not None for pattern in self.transpose)

    def split(self, name: str, each: list[int]) -> list[int]:
        """The rows of ours that each of theirs has, if `sizes` says it, else the same as given.

        Args:
            name: one of ours.
            each: the rows if `sizes` does not say.
        """
        fitting = (sizes for pattern, sizes in self.sizes.items() if _fits(name, pattern) is not None)
        return list(next(fitting, each))

    def ignored(self, name: str) -> bool:
        """Whether ours need not have one of theirs.

        Args:
            name: one of ours, with or without prefix.
        """
        bare = name.removeprefix(self.prefix)
        return any(_fits(bare, pattern) is not None for pattern in self.ignore)

    def candidates(self, bare: str) -> Iterator[str]:
        """What a file may call one of theirs.

        Args:
            bare: one of theirs, without prefix.
        """
        endings = ((new, old) for new, old in self.older.items() if bare.endswith(new))
        for name in (bare, *(bare.removesuffix(new) + old for new, old in endings)):
            yield from (self.prefix + name, name)


def _fits(name: str, pattern: str) -> tuple[str, ...] | None:
    """What the `*` of a pattern stand for, each for something between dots; None if it does not fit."""
    fits = re.fullmatch("([^.]*)".join(re.escape(part) for part in pattern.split("*")), name)
    return fits.groups() if fits else None


def _filled(pattern: str, texts: tuple[str, ...]) -> str:
    pieces = pattern.split("*")
    return "".join(a + b for a, b in zip(pieces, (*texts, "")))


# Names of heads, which stand beside the model with the prefix.
_HEADS = ("lm_head.", "embed_out.", "classifier.", "head.")

# nanoGPT's names are theirs; both families of models may have other ones by `rename`
GPT2 = NameMap(
    transpose=(
        "h.*.attn.c_attn.weight",
        "h.*.attn.c_proj.weight",
        "h.*.mlp.c_fc.weight",
        "h.*.mlp.c_proj.weight",
    ),
    prefix="transformer.",
    ignore=("h.*.attn.bias", "h.*.attn.masked_bias"),
)
LLAMA = NameMap(prefix="model.", ignore=("layers.*.self_attn.rotary_emb.inv_freq",))


def sliced(name: str) -> tuple[str, int | None]:
    """A name in the files, and of which slice of its dim 0; None for all of it.

    Args:
        name: one of theirs.

    >>> from warptape.distributed.checkpoint.names import sliced
    >>> sliced("layers.0.experts.down_proj[3]")
    ('layers.0.experts.down_proj', 3)
    """
    stem, bracket, index = name.removesuffix("]").partition("[")
    return (stem, int(index)) if bracket else (name, None)


class Rows(NamedTuple):
    """What of ours is one of theirs: which rows, of how many slices (0: it has none), and whether turned."""

    start: int
    rows: int
    slices: int
    turned: bool

    def of(self, values: Any) -> Any:
        """Theirs, of our tensor or array.

        Args:
            values: all of ours.
        """
        if values.ndim == 0:
            return values
        values = values[self.start : self.start + self.rows]
        if self.slices:
            values = values.reshape(self.slices, self.rows // self.slices, *values.shape[1:])
        return values.swapaxes(-1, -2) if self.turned else values


def written(
    manifest: dict[str, Any], names: NameMap, under: str
) -> Iterator[tuple[str, str, Rows, tuple[int, ...]]]:
    """(their name, ours, rows of ours, shape) of what is written.

    Args:
        manifest: of a checkpoint.
        names: which of ours is which of theirs.
        under: what the names of the model's tensors begin with there.
    """
    for name, entry in manifest["tensors"].items():
        if not name.startswith(under):
            continue
        bare, shape = name.removeprefix(under), entry["shape"]
        theirs = names.theirs(bare)
        rows = shape[0] if shape else 1
        sizes = names.split(bare, [rows // len(theirs)] * len(theirs)) if len(theirs) > 1 else [rows]
        if len(sizes) != len(theirs) or (shape and sum(sizes) != shape[0]):
            raise CheckpointException(
                f"{bare} has {shape[0]} rows, not those of {list(theirs)}: {sizes}; set NameMap.sizes"
            )
        start = 0
        for each, group in itertools.groupby(zip(map(sliced, theirs), sizes), lambda item: item[0][0]):
            items = list(group)
            rows, slices = sum(size for _, size in items), 0 if items[0][0][1] is None else len(items)
            part = (rows, *shape[1:]) if shape else ()
            turned = names.transposed(each) and len(part) == 2
            part = part[::-1] if turned and not slices else part
            if slices:
                inner = (rows // slices, *shape[1:])
                part = (slices, *(inner[::-1] if turned else inner))
            full = each if each.startswith(_HEADS) else names.prefix + each
            yield full, name, Rows(start, rows, slices, turned), part
            start += rows


def theirs_of(state_dict: Mapping[str, Any], names: NameMap) -> dict[str, Any]:
    """A model's tensors by their names. Raises CheckpointException for rows that do not divide as theirs.

    Args:
        state_dict: tensors by our names.
        names: which of ours is which of theirs.
    """
    out = {}
    manifest = {"tensors": {name: {"shape": tuple(t.shape)} for name, t in state_dict.items()}}
    for full, name, rows, _ in written(manifest, names, ""):
        out[full] = rows.of(state_dict[name].detach()).contiguous()
    return out
