"""A public name that vanishes is a failure: public_names.txt has them, a line for each module.

    python tests/python/names/test_public_names.py     writes the list anew

New names may be left out until the list is written anew. A name that goes on purpose is taken out of it,
where a reviewer sees it (docs/reference/versions.md).
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from types import ModuleType

LIST = Path(__file__).with_name("public_names.txt")
ROOT = Path(__file__).resolve().parents[3]


def api_pages() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_pages", ROOT / "tools/api_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def names_now() -> dict[str, list[str]]:
    """By module, the names that its page on the site describes."""
    pages = api_pages()
    return {
        pages.full(module): sorted({entry.path.rpartition(".")[2] for entry in pages.public_names(module)})
        for module in pages.MODULES
    }


def names_listed(text: str) -> dict[str, list[str]]:
    return {module: names.split() for module, names in (line.split(":") for line in text.splitlines())}


def missing(listed: dict[str, list[str]]) -> list[str]:
    """The names of a list that are not there."""
    found = []
    for module, names in listed.items():
        holder = importlib.import_module("warptape").Tensor if module == "warptape.Tensor" else None
        try:
            holder = holder or importlib.import_module(module)
        except ImportError:
            found.append(module)
            continue
        found += [f"{module}.{name}" for name in names if not hasattr(holder, name)]
    return found


def test_no_public_name_has_vanished() -> None:
    listed = names_listed(LIST.read_text())
    assert sum(map(len, listed.values())) > 2500
    assert missing(listed) == []


def test_names_that_vanished_are_found() -> None:
    planted = {"warptape.nn": ["Linear", "Lineal"], "warptape.gone": ["x"], "warptape.Tensor": ["add", "ad"]}
    assert missing(planted) == ["warptape.nn.Lineal", "warptape.gone", "warptape.Tensor.ad"]


if __name__ == "__main__":
    lines = [f"{module}: {' '.join(names)}" for module, names in names_now().items()]
    LIST.write_text("\n".join(lines) + "\n")
    print(f"{LIST.name}: {sum(len(names) for names in names_now().values())} names")
