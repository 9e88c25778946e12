"""Names of models that consist of other models."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from ...distributed.checkpoint import NameMap

_HEAD = "lm_head."


@dataclass(frozen=True)
class Part:
    """A part of a model.

    Args:
        names: of the part alone.
        under: what stands before its names in files, and before that of its head: as it is written, and then
            other ways.
    """

    names: NameMap
    under: tuple[tuple[str, str], ...]

    def written(self, bare: str) -> str:
        """One of theirs, with what stands before it.

        Args:
            bare: in the part alone.
        """
        body, head = self.under[0]
        return (head if bare.startswith(_HEAD) else body) + bare

    def bare(self, full: str) -> str | None:
        """The name in the part alone; None where it is not of this part.

        Args:
            full: as a file may have it.
        """
        for body, head in self.under:
            if full.startswith(head + _HEAD):
                return full.removeprefix(head)
            if full.startswith(body):
                return full.removeprefix(body)
        return None


@dataclass(frozen=True)
class JoinedNames(NameMap):
    """Names of a model whose children are parts.

    Args:
        parts: our name of the child -> the part.
    """

    parts: Mapping[str, Part] = field(default_factory=dict)

    def _part(self, name: str) -> tuple[Part | None, str]:
        child, _, rest = name.partition(".")
        return self.parts.get(child), rest

    def theirs(self, name: str) -> tuple[str, ...]:
        """As they are written.

        Args:
            name: one of ours.
        """
        part, rest = self._part(name)
        if part is None:
            return super().theirs(name)
        return tuple(part.written(each) for each in part.names.theirs(rest))

    def transposed(self, theirs: str) -> bool:
        """Whether one of theirs is kept the other way round.

        Args:
            theirs: a name as it is written.
        """
        each = ((part, part.bare(theirs)) for part in self.parts.values())
        return any(bare is not None and part.names.transposed(bare) for part, bare in each)

    def split(self, name: str, each: list[int]) -> list[int]:
        """The rows of ours that each of theirs has.

        Args:
            name: one of ours.
            each: the rows if it is not said.
        """
        part, rest = self._part(name)
        return super().split(name, each) if part is None else part.names.split(rest, each)

    def ignored(self, name: str) -> bool:
        """Whether ours need not have one of theirs.

        Args:
            name: one of theirs.
        """
        for part in self.parts.values():
            bare = part.bare(name)
            if bare is not None and part.names.ignored(bare):
                return True
        return super().ignored(name)

    def candidates(self, bare: str) -> Iterator[str]:
        """What a file may call one of theirs.

        Args:
            bare: as it is written.
        """
        yield bare
        for part in self.parts.values():
            inside = part.bare(bare)
            if inside is not None and part.written(inside) == bare:
                for body, head in part.under[1:]:
                    yield (head if inside.startswith(_HEAD) else body) + inside
