"""The rows of the table that are asked of the runtime and the device under test."""

from __future__ import annotations

import pytest

from . import convert
from .driver import applies


def pytest_configure(config: pytest.Config) -> None:
    convert.device = config.getoption("--device")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Deselects what does not apply."""
    kept, left_out = [], []
    for item in items:
        params = item.callspec.params if hasattr(item, "callspec") else {}
        check = getattr(item, "originalname", "").removeprefix("test_")
        asked = "op" not in params or applies(params["op"], check, config, params.get("case"))
        (kept if asked else left_out).append(item)
    config.hook.pytest_deselected(items=left_out)
    items[:] = kept
