"""A folder of models: REPO/<model>/config.json, REPO/<model>/<version>/..., and REPO/state.json.

Nothing outside of the folder is read, no link out of it followed, and no code in it run.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import tempfile
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from ..inference.packed_file import is_packed
from ..serialization.files import replace_file
from ..utils.safetensors import SafetensorError, safe_open
from .config import CONFIG, NAME, ModelConfig, read_config
from .rollout import RolloutState

STATE = "state.json"
FORMAT = 1
PROGRAM = "model.safetensors"
GGUF = "model.gguf"
SAMPLES = ("samples.json", "samples.safetensors")
MOST_SAMPLES = 1 << 28  # bytes of a samples file
_VERSION = re.compile(r"[1-9][0-9]{0,17}")


class RepositoryError(ValueError):
    """What is wrong with a model in the repository: the message names the file."""


class Repository:
    """A folder of models.

    Args:
        root: the folder.

    Raises: RepositoryError where it is no folder.

    Attributes:
        only: whether there is one model, without which the server has nothing to do.
    """

    only = False

    def __init__(self, root: str | os.PathLike[str]) -> None:
        self.root = Path(os.path.realpath(root))
        if not self.root.is_dir():
            raise RepositoryError(f"{root}: expected a folder with models, there is none")

    def said(self, text: str) -> str:
        """A text with the paths that the user knows.

        Args:
            text: of an error.
        """
        return text

    def inside(self, path: Path) -> Path:
        """The path, where no link leads out of the repository. Raises: RepositoryError.

        Args:
            path: of a file or folder.
        """
        real = Path(os.path.realpath(path))
        if real != self.root and self.root not in real.parents:
            raise RepositoryError(f"{path}: leads out of the repository {self.root}, to {real}")
        return path

    def names(self) -> list[str]:
        """The folders that can be models."""
        names = (p.name for p in self.root.iterdir() if NAME.fullmatch(p.name) and p.is_dir())
        return sorted(names)

    def folder(self, name: str) -> Path:
        """A model's folder. Raises: RepositoryError where there is none.

        Args:
            name: of the model.
        """
        if not NAME.fullmatch(name):
            raise RepositoryError(f"{name!r:.100} is no model's name; it must match {NAME.pattern}")
        path = self.inside(self.root / name)
        if not path.is_dir():
            raise RepositoryError(f"{path}: there is no such model")
        return path

    def config(self, name: str) -> ModelConfig:
        """A model's config. Raises: ConfigError, RepositoryError.

        Args:
            name: of the model.
        """
        folder = self.folder(name)
        self.inside(folder / "config.json")
        try:
            return read_config(folder, name)
        except OSError as error:
            raise RepositoryError(f"{folder / 'config.json'}: {error.strerror or error}") from error

    def versions(self, name: str) -> list[int]:
        """The numbers of a model's versions, ascending.

        Args:
            name: of the model.
        """
        folder = self.folder(name)
        return sorted(int(p.name) for p in folder.iterdir() if _VERSION.fullmatch(p.name) and p.is_dir())

    def wanted(self, config: ModelConfig) -> int | None:
        """The version that should serve by the model's policy: the newest, or a certain one.

        Args:
            config: of the model.
        """
        versions = self.versions(config.name)
        if "specific" in config.version_policy:
            (version,) = config.version_policy["specific"]["versions"]
            return version if version in versions else None
        return versions[-1] if versions else None

    def version_folder(self, name: str, version: int) -> Path:
        """The folder of a version, none of whose files lies elsewhere. Raises: RepositoryError.

        Args:
            name, version: which.
        """
        folder = self.inside(self.folder(name) / str(version))
        if not folder.is_dir():
            raise RepositoryError(f"{folder}: there is no such version; there are {self.versions(name)}")
        for path in folder.rglob("*"):
            self.inside(path)
        return folder

    def fingerprint(self, name: str, version: int) -> tuple[Any, ...]:
        """Changes with the files of a version.

        Args:
            name, version: which.
        """
        return self._states((self.root / name / str(version)).rglob("*"))

    def digest(self, name: str, version: int) -> str:
        """Changes with the files of a version, and with the model's config.

        Args:
            name, version: which.
        """
        files = (self.fingerprint(name, version), self._states([self.root / name / CONFIG]))
        return hashlib.sha256(repr(files).encode()).hexdigest()[:32]

    @staticmethod
    def _states(paths: Iterable[Path]) -> tuple[Any, ...]:
        states = []
        for path in sorted(paths):
            try:
                stat = path.stat()
            except OSError:
                continue
            states.append((str(path), stat.st_size, stat.st_mtime_ns))
        return tuple(states)

    def find(self, config: ModelConfig, version: int) -> tuple[str, Path]:
        """A version's kind, "llm" or "program", and its file or folder.

        Raises: RepositoryError where it is neither, or not what the config's backend says.
        """
        folder = self.version_folder(config.name, version)
        program, gguf = folder / PROGRAM, folder / GGUF
        kind, path = "", folder
        if (folder / "config.json").is_file() or is_packed(folder):
            kind = "llm"
        elif gguf.is_file():
            kind, path = "llm", gguf
        elif program.is_file():
            kind, path = "program", program
        if not kind:
            raise RepositoryError(
                f"{folder}: no model in it; expected {PROGRAM} of torch.export.save, {GGUF}, or a Hugging "
                "Face folder with config.json"
            )
        if config.backend not in ("", kind):
            raise RepositoryError(f"{folder}: config.json has backend {config.backend!r}, this is {kind!r}")
        return kind, path

    # ---- the state file ----

    def read_state(self) -> dict[str, RolloutState]:
        """By model, which versions served last; empty where no server ran yet. Raises: RepositoryError."""
        path = self.root / STATE
        try:
            data = json.loads(path.read_bytes())
            if data["format"] != FORMAT:
                raise ValueError(f"format {data['format']!r:.20}, this version reads {FORMAT}")
            return {str(name): RolloutState.from_json(each) for name, each in data["models"].items()}
        except FileNotFoundError:
            return {}
        except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
            raise RepositoryError(
                f"{path}: which versions served cannot be read ({error!r}); remove the file to "
                "begin with the newest ones"
            ) from error

    def write_state(self, switches: Mapping[str, RolloutState]) -> None:
        """Replaces the state file; a power cut leaves this state or the one before.

        Raises: RepositoryError, where the file is as it was.
        """
        path = self.root / STATE
        data = {"format": FORMAT, "models": {name: s.to_json() for name, s in sorted(switches.items())}}
        try:
            replace_file(str(path), [json.dumps(data, indent=1).encode() + b"\n"])
        except (OSError, RuntimeError) as error:
            raise RepositoryError(
                f"{path}: cannot be written ({error}); the versions stay as they are"
            ) from error


class ModelFolder(Repository):
    """One model as a repository: its folder, or GGUF file, stands for version 1.

    Links in the folder are followed wherever they lead, as in a cache of Hugging Face's hub: who names the
    folder says what is served. Which version served last is not kept, and a model that cannot be loaded is an
    error of the server's start.

    Args:
        path: a model's folder, a folder with a model's versions (1/, 2/ ..), or a GGUF file.
        name: of the model; None: the last part of the path.
        parameters: of the model, before those of its config.json.

    Raises: RepositoryError for what can be no name.
    """

    only = True

    def __init__(
        self,
        path: str | os.PathLike[str],
        name: str | None = None,
        parameters: Mapping[str, Any] | None = None,
    ) -> None:
        self._model = Path(os.path.abspath(path))
        if name is None:
            name = self._model.stem if self._model.is_file() else self._model.name
        if not all(map(NAME.fullmatch, name.split("/", 1))):
            raise RepositoryError(f"{path}: {name!r:.100} is no model's name; it must match {NAME.pattern}")
        self._name, self._parameters = name, dict(parameters or {})
        self._folder = tempfile.TemporaryDirectory(prefix="warptape_serve_")
        super().__init__(self._folder.name)
        self._place = self.root / name
        self._versioned = self._model.is_dir() and any(
            _VERSION.fullmatch(p.name) for p in self._model.iterdir()
        )
        self._place.parent.mkdir(exist_ok=True)
        if self._versioned:
            self._place.symlink_to(self._model)
            return
        self._place.mkdir()
        if self._model.is_dir():
            (self._place / "1").symlink_to(self._model)
        else:
            (self._place / "1").mkdir()
            (self._place / "1" / GGUF).symlink_to(self._model)

    def inside(self, path: Path) -> Path:
        """The path: see the class."""
        return path

    def names(self) -> list[str]:
        """Its name."""
        return [self._name]

    def folder(self, name: str) -> Path:
        """A model's folder. Raises: RepositoryError where there is none.

        Args:
            name: of the model.
        """
        if name != self._name:
            raise RepositoryError(f"{name!r:.100}: there is no such model")
        return self._place

    def config(self, name: str) -> ModelConfig:
        """The config with the parameters that were given. Raises: ConfigError, RepositoryError."""
        try:
            config = super().config(name)
        except ValueError as error:
            raise RepositoryError(self.said(str(error))) from error
        return replace(config, parameters={**config.parameters, **self._parameters})

    def find(self, config: ModelConfig, version: int) -> tuple[str, Path]:
        """See Repository; the path is the one that was given, not a link to it."""
        try:
            kind, path = super().find(config, version)
        except RepositoryError as error:
            raise RepositoryError(self.said(str(error))) from error
        return kind, path if kind == "program" else Path(self.said(str(path)))

    def said(self, text: str) -> str:
        """A text with the paths that the user knows.

        Args:
            text: of an error.
        """
        places = (
            [self._place] if self._versioned else [self._place / "1" / GGUF, self._place / "1", self._place]
        )
        for place in places[self._model.is_dir() and not self._versioned :]:
            text = text.replace(str(place), str(self._model))
        return text


# ---- stored samples ----

Arrays = dict[str, np.ndarray]


def read_tensor_samples(path: Path) -> list[tuple[Arrays, Arrays]]:
    """Inputs and outputs in a safetensors file with names as `0/inputs/x` and `0/outputs/y`.

    Raises: RepositoryError.
    """
    samples: dict[int, tuple[Arrays, Arrays]] = {}
    try:
        with safe_open(os.fspath(path)) as file:
            for key in file.keys():  # noqa: SIM118
                number, side, name = key.split("/", 2)
                place = {"inputs": 0, "outputs": 1}[side]
                samples.setdefault(int(number), ({}, {}))[place][name] = file.get_tensor(key).numpy()
    except (SafetensorError, OSError, ValueError, KeyError, TypeError) as error:
        raise RepositoryError(
            f"{path}: expected tensors named as 0/inputs/NAME and 0/outputs/NAME: {error!r}"
        ) from error
    return [samples[i] for i in sorted(samples)]


def difference(expected: np.ndarray, got: np.ndarray, tolerance: float) -> str | None:
    """What is wrong with an output of a stored sample, or None.

    Args:
        expected: stored.
        got: computed.
        tolerance: relative and absolute.
    """
    if expected.shape != got.shape or expected.dtype != got.dtype:
        return f"{got.dtype}{list(got.shape)}, expected {expected.dtype}{list(expected.shape)}"
    if expected.dtype.kind != "f":
        return None if np.array_equal(expected, got) else "other values than stored"
    a, b = expected.astype(np.float64), got.astype(np.float64)
    finite = np.isfinite(a)
    if not np.array_equal(finite, np.isfinite(b)) or not np.array_equal(a[~finite], b[~finite], True):
        return "NaN or infinite at other places than stored"
    if not finite.any():
        return None
    off = float(np.abs(a - b)[finite].max())
    limit = tolerance * float(np.abs(a[finite]).max())
    return f"off by {off:.3g}, allowed are {limit:.3g}" if off > limit else None
