"""Docstrings of public names: each has one, what its examples print is what is printed, and the site's pages
have them all."""

from __future__ import annotations

import doctest
import importlib
import importlib.util
import inspect
import io
import pkgutil
import re
from collections.abc import Iterator
from contextlib import redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import warptape as torch
from warptape import _op_docs
from warptape._missing import find

ROOT = Path(__file__).resolve().parents[3]


def load_tool() -> ModuleType:
    spec = importlib.util.spec_from_file_location("api_pages", ROOT / "tools/api_pages.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


api_pages = load_tool()


def failures(name: str, text: str) -> str:
    """What doctest says of the examples in a text; empty where all print what is written."""
    scope = {"torch": torch, "nn": torch.nn, "F": torch.nn.functional}
    test = doctest.DocTestParser().get_doctest(text, scope, name, None, None)
    report = io.StringIO()
    with redirect_stdout(report):
        doctest.DocTestRunner(verbose=False).run(test)
    return report.getvalue()


def public() -> Iterator[Any]:
    """Public names of the modules that have a page, and of each class its methods and properties."""
    seen: dict[int, Any] = {}
    for name in api_pages.MODULES:
        for entry in api_pages.public_names(name):
            yield entry
            if inspect.isclass(entry.value) and id(entry.value) not in seen:
                seen[id(entry.value)] = entry.value
                yield from api_pages.public_members(entry.path, entry.value)


@pytest.mark.parametrize("name", _op_docs.examples())
def test_example_of_an_op(name: str) -> None:
    op = find(name)
    text = _op_docs.examples()[name]
    assert "Example::" in op.__doc__ and text.splitlines()[0] in op.__doc__
    assert failures(name, text) == ""


def test_examples_in_docstrings() -> None:
    texts = {
        text
        for entry in public()
        if not api_pages.is_op(entry.value) and ">>>" in (text := api_pages.docstring(entry))
    }
    assert len(texts) > 100
    assert [report for text in texts if (report := failures("docstring", text))] == []


def test_a_wrong_example_is_found() -> None:
    assert "Expected:\n    3" in failures("planted", ">>> torch.tensor(2).item()\n3\n")


def test_public_names_have_docstrings() -> None:
    entries = list(public())
    assert len(entries) > 4000
    assert sorted({entry.path for entry in entries if not api_pages.docstring(entry)}) == []


def test_every_public_list_has_a_page() -> None:
    """What stands in the `__all__` of a public module is described somewhere."""
    owners, left = api_pages.Owners(), []
    for info in pkgutil.walk_packages(torch.__path__, "warptape."):
        name = info.name.removeprefix("warptape.")
        if name in api_pages.MODULES or any(part[0] == "_" for part in name.split(".")):
            continue
        try:
            listed = getattr(importlib.import_module(info.name), "__all__", ())
        except ImportError:  # of a library that is not installed
            continue
        for entry in api_pages.public_names(name) if listed else ():
            if entry.path.rpartition(".")[2] in listed and id(entry.value) not in owners.found:
                left.append(entry.path)
    assert left == [], "name the module in GROUPS of tools/api_pages.py"


class Base:
    def documented(self) -> None:
        """What it does."""

    def bare(self) -> None: ...


class Derived(Base):
    size = property(lambda self: 1)
    first = property(__import__("operator").attrgetter("size"))

    def documented(self) -> None: ...

    def bare(self) -> None: ...


def test_what_has_no_docstring_is_found() -> None:
    """Also where Python has one to lend: that of attrgetter, or of object."""
    members = [
        api_pages.Entry(f"x.{name}", Derived, value)
        for name, value in vars(Derived).items()
        if name[0] != "_"
    ]
    bare = [entry.path for entry in members if not api_pages.docstring(entry)]
    assert bare == ["x.size", "x.first", "x.bare"]
    assert not api_pages.docstring(api_pages.Entry("x.Derived", None, Derived))
    assert api_pages.split_signature("f", "f(Tensor x)\n\nDoes it.") == ("f(Tensor x)", "Does it.")


def test_pages_have_the_names() -> None:
    owners = api_pages.Owners()
    page = api_pages.page("optim.lr_scheduler", owners)
    assert "## StepLR { #warptape.optim.lr_scheduler.StepLR }" in page
    assert "class StepLR(" in page and "### LRScheduler.get_last_lr {" in page
    assert "[`autocast`](amp.md)" in api_pages.page("warptape", owners)
    assert "[warptape.nn.functional](nn.functional.md)" in api_pages.index()


def test_docstrings_become_markdown() -> None:
    text = """A * b of __init__.

    Args:
        x: the `a*b`
            of it.
        *y, z: rest.

    Example::

        >>> f(
        ... 1)
        2
    """
    assert api_pages.markdown(inspect.cleandoc(text)) == (
        "A \\* b of \\_\\_init\\_\\_.\n\n**Args**\n\n- `x`: the `a*b` of it.\n- `*y, z`: rest.\n\n"
        "Example:\n\n```python\n>>> f(\n... 1)\n2\n```"
    )


# What a user of PyTorch meets first: each class says what every argument is, and shows a use.
FAMILIES = {
    "nn": torch.nn.Module,
    "optim": torch.optim.Optimizer,
    "optim.lr_scheduler": torch.optim.lr_scheduler.LRScheduler,
    "utils.data": object,
}
DEPRECATED = {"size_average", "reduce"}  # of losses: what they share says it
NO_EXAMPLE = {"DataParallel", "RNNBase", "RNNCellBase", "LRScheduler", "_LRScheduler"}  # bases, or for GPUs


def classes_of(module: str) -> dict[str, type]:
    """The public classes of a module that are of its family."""
    found = importlib.import_module(f"warptape.{module}")
    names = found.modules.__all__ if module == "nn" else getattr(found, "__all__", dir(found))
    kinds = {name: getattr(found, name, None) for name in names}
    return {n: k for n, k in kinds.items() if inspect.isclass(k) and issubclass(k, FAMILIES[module])}


def undocumented_arguments(kind: type) -> list[str]:
    """Arguments that neither the class nor a constructor of its bases names outside of examples."""
    texts = [kind.__doc__ or "", *(vars(base)["__init__"].__doc__ or "" for base in bases_with_init(kind))]
    text = re.sub(r">>>.*", "", "\n".join(texts))
    return [
        name
        for name, parameter in inspect.signature(kind).parameters.items()
        if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
        and name not in DEPRECATED
        and not re.search(rf"\b{re.escape(name)}\b", text)
    ]


def bases_with_init(kind: type) -> list[type]:
    return [base for base in kind.__mro__ if "__init__" in vars(base)]


@pytest.mark.parametrize("module", FAMILIES)
def test_classes_say_what_each_argument_is(module: str) -> None:
    classes = classes_of(module)
    assert len(classes) > {"nn": 150, "optim": 14}.get(module, 12)
    assert {name: silent for name, kind in classes.items() if (silent := undocumented_arguments(kind))} == {}


@pytest.mark.parametrize("module", FAMILIES)
def test_classes_show_a_use(module: str) -> None:
    bare = {name for name, kind in classes_of(module).items() if ">>>" not in (kind.__doc__ or "")}
    assert bare - NO_EXAMPLE == set()


def test_an_argument_without_a_word_is_found() -> None:
    class Silent(torch.nn.Module):
        """Takes `said`."""

        def __init__(self, said: int, unsaid: int) -> None:
            super().__init__()

    assert undocumented_arguments(Silent) == ["unsaid"]


def test_conv2d_explains_all_eleven_arguments() -> None:
    help_text = torch.nn.Conv2d.__init__.__doc__
    names = list(inspect.signature(torch.nn.Conv2d).parameters)
    assert len(names) == 11
    assert [name for name in names if not re.search(rf"^ *[\w, ]*\b{name}\b[\w, ]*:", help_text, re.M)] == []
