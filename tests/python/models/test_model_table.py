"""The guide's table of architectures and kinds of files is what the declarations say."""

from __future__ import annotations

import importlib.util
from pathlib import Path

from warptape.models.families import DECODERS, ENCODERS, SPEECH

TOOL = Path(__file__).resolve().parents[3] / "tools/model_table.py"


def test_the_table_is_up_to_date() -> None:
    spec = importlib.util.spec_from_file_location("model_table", TOOL)
    assert spec is not None and spec.loader is not None
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    page = tool.PAGE.read_text()
    assert tool.written(page) == page, "run tools/model_table.py"
    assert "| `mixtral` | `MixtralForCausalLM` | yes | yes | `llama` |" in page
    assert tool.written(page.replace("`MixtralForCausalLM`", "`Other`")) == page  # a planted fault is mended


def test_families_have_the_names_that_are_listed() -> None:
    """Files are loaded when one of their architectures is asked for; the list is in another file."""
    for table in (DECODERS, ENCODERS, SPEECH):
        listed = dict.fromkeys(table._families.values(), ())
        for name, load in table._families.items():
            listed[load] = (*listed[load], name)
        assert all(tuple(load()) == names for load, names in listed.items())
        assert [*table] == [*dict(table)] and len(table) == len([*table]) and "mamba" not in table
