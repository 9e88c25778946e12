"""The rows of the op table that are asked of the device under test: as in tests/op_table."""

from __future__ import annotations

from op_table.conftest import pytest_collection_modifyitems, pytest_configure

__all__ = ["pytest_collection_modifyitems", "pytest_configure"]
