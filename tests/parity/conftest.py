"""Importing PyTorch's samples takes seconds: the tests here are collected only when asked for."""

from pathlib import Path

import pytest


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    asked = "parity" in (config.option.markexpr or "") or config.option.keyword
    return None if asked or collection_path.suffix != ".py" else True
