"""torch.distributed.checkpoint.hf_storage: plain safetensors files in place of a checkpoint.

Files are those of Hugging Face: model-00001-of-00002.safetensors and so on, with
model.safetensors.index.json.
"""

from __future__ import annotations

import json
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ... import core as wt
from ...core import Tensor
from ...core.placed import Placed
from ...utils.safetensors import load_file, save_file
from .layout import CheckpointException
from .plan import agree, describe, exchange, world_of
from .save import Rendezvous

if TYPE_CHECKING:
    from warptape.distributed.state import Group

__all__ = ["HuggingFaceStorageReader", "HuggingFaceStorageWriter"]
_INDEX = "model.safetensors.index.json"


def _flat(state: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    out: dict[str, Any] = {}
    for key, value in state.items():
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            value = value.state_dict()
        out |= _flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value}
    return out


class HuggingFaceStorageWriter:
    """Writes the tensors of a state to safetensors files, whole: parts are gathered, and rank 0 writes.

    Args:
        path: the folder.
        fqn_to_index_mapping: which of the files, from 1, has a tensor; all in the first by default.
        thread_count, token, consolidated_output_path, thread_count_consolidation: make no difference.
        save_distributed: files of parts, one a rank, are not written.

    Raises: NotImplementedError for save_distributed without enable_consolidation, TypeError for a state that
    has other things than tensors.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        fqn_to_index_mapping: dict[str, int] | None = None,
        thread_count: int = 1,
        save_distributed: bool = False,
        enable_consolidation: bool = False,
        thread_count_consolidation: int = 1,
        **more: Any,
    ) -> None:
        if save_distributed and not enable_consolidation:
            raise NotImplementedError(
                "HuggingFaceStorageWriter: files of parts are not written; pass enable_consolidation=True "
                "or save_distributed=False"
            )
        self.path, self.files = path, fqn_to_index_mapping or {}

    def start(
        self,
        state: Any,
        checkpoint_id: str | os.PathLike[str],
        group: Group,
        metadata: object,
        copy: bool,
        no_dist: bool,
    ) -> Callable[[], None]:
        """Gathers, for `save` and `async_save`; returns what writes. Collective.

        Args:
            state: what is saved.
            checkpoint_id: the folder.
            group: the ranks that save.
            metadata: strings for the files.
            copy: whether values are copied, so that they may change meanwhile.
            no_dist: whether this rank saves alone.
        """
        what, (rank, world) = f"save to {checkpoint_id}", world_of(group, no_dist)
        tensors, fault, cause = dict[str, Tensor](), None, None
        try:
            values = _flat(state)
            for name, value in values.items():
                if not isinstance(value, Tensor):
                    raise TypeError(
                        f"HuggingFaceStorageWriter: {name} is {type(value).__name__}, not a tensor"
                    )
        except Exception as error:
            fault, cause = describe(error), error
        reports = exchange([fault, secrets.token_hex(8)], group, world)
        agree(what, [each[0] for each in reports], cause)
        for name, value in values.items():
            full = value.full_tensor() if hasattr(value, "full_tensor") else value
            full = full.detach()
            if rank == 0:
                full = full.clone() if copy and full is not value and full.is_cpu else full.cpu()
                tensors[name] = full.contiguous()
        rendezvous = Rendezvous(rank, world, reports[0][1])

        def finish() -> None:
            fault, cause = None, None
            try:
                if rank == 0:
                    self._write(Path(checkpoint_id), tensors)
            except Exception as error:
                fault, cause = describe(error), error
            agree(what, rendezvous.broadcast([fault, *[None] * (world - 1)]), cause)

        return finish

    def _write(self, folder: Path, tensors: dict[str, Tensor]) -> None:
        """All files get their names at the end, so that a full disk leaves those before."""
        folder.mkdir(parents=True, exist_ok=True)
        count = max(self.files.values(), default=1)
        index: dict[str, str] = {}
        written: dict[Path, Path] = {}
        try:
            for number in range(1, count + 1):
                name = f"model-{number:05}-of-{count:05}.safetensors"
                own = {k: t for k, t in tensors.items() if self.files.get(k, 1) == number}
                written[folder / f".{name}.part"] = folder / name
                save_file(own, folder / f".{name}.part", metadata={"format": "pt"})
                index |= dict.fromkeys(own, name)
            size = sum(t.nbytes for t in tensors.values())
            text = json.dumps({"metadata": {"total_size": size}, "weight_map": index}, indent=2)
            written[folder / f".{_INDEX}.part"] = folder / _INDEX
            (folder / f".{_INDEX}.part").write_text(text)
            for temporary, final in written.items():
                os.replace(temporary, final)
        except BaseException:
            for temporary in written:
                temporary.unlink(missing_ok=True)
            raise
        for path in folder.glob("model-?????-of-?????.safetensors"):
            if path not in written.values():  # of a save into more or fewer files
                path.unlink(missing_ok=True)


class HuggingFaceStorageReader:
    """Reads the tensors of a state from safetensors files: of what ranks hold parts of, each its own.

    Raises: CheckpointException for a name that is not there, or has another shape.
    """

    def __init__(self, path: str | os.PathLike[str], thread_count: int = 1, **more: Any) -> None:
        self.path = path

    def read_state(
        self, state: Any, path: str | os.PathLike[str], group: Group, no_dist: bool, partial: bool
    ) -> None:
        """What `load` calls: changes the tensors in place. Collective.

        Args:
            state: what is loaded into.
            path: the folder.
            group: the ranks that load.
            no_dist: whether this rank loads alone.
            partial: whether names may be missing from the files.
        """
        what, (_, world) = f"load from {path}", world_of(group, no_dist)
        fault, cause = None, None
        objects: dict[str, Any] = {}
        parts: list[tuple[Tensor, Tensor]] = []
        try:
            objects = dict(_stateful(state))
            wanted = _flat({**state, **{k: v for k, (_, v) in objects.items()}})
            parts = list(self._parts(path, wanted, partial))
        except Exception as error:
            fault, cause = describe(error), error
        agree(what, exchange(fault, group, world), cause)
        try:
            with wt.no_grad():
                for target, value in parts:
                    target.copy_(value)
            for own, loaded in objects.values():
                own.load_state_dict(loaded)
        except Exception as error:
            fault, cause = describe(error), error
        agree(what, exchange(fault, group, world), cause)

    def _parts(
        self, path: str | os.PathLike[str], wanted: dict[str, Any], partial: bool
    ) -> Iterator[tuple[Any, Any]]:
        """(tensor here, its part of what is there)"""
        tensors: dict[str, Tensor] = {}
        for file in sorted(Path(path).glob("*.safetensors")):
            tensors |= {k: t for k, t in load_file(file).items() if k in wanted}
        for name, target in wanted.items():
            if not isinstance(target, Tensor):
                raise TypeError(f"HuggingFaceStorageReader: {name} is {type(target).__name__}, not a tensor")
            if name not in tensors:
                if partial:
                    continue
                raise CheckpointException(f"tensor {name} is missing there")
            value: Any = tensors[name]
            if value.shape != target.shape:
                raise CheckpointException(
                    f"tensor {name} is {list(value.shape)} there and {list(target.shape)} here"
                )
            into: Any = target
            if isinstance(into, Placed):
                yield into.to_local().detach(), into.like_full(value).to_local()
            else:
                yield into.detach(), value


def _stateful(state: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in state.items():
        if hasattr(value, "state_dict") and hasattr(value, "load_state_dict"):
            yield key, (value, value.state_dict())
