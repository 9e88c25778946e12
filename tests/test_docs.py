"""Blocks of Python in README.md and docs run: page by page, one after the other in one process.

A comment above a block, `<!-- block: ... -->`, says how: `ranks=N` under the launcher, with those blocks of
the page that have the same; `alone` in a process of its own; `no-run: reason` leaves it out, and MAX_LEFT_OUT
counts these. What a block takes for granted stands above it in a comment, too, `<!-- given: ... -->`. Such a
comment that no block follows runs in its place among the blocks of one rank: there it checks their results.
"""

import functools
import importlib.util
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warptape

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LEFT_OUT = 8
GIVEN = r"^<!-- given:\n(?P<{}>(?:(?!-->).*\n)*)-->\n+"
BLOCK = re.compile(
    rf"(?:{GIVEN.format('given')})?(?:^<!-- block: (?P<words>.*) -->\n+)?"
    rf"^```python\n(?P<code>(?:(?!```).*\n)*)```$|{GIVEN.format('apart')}",
    re.MULTILINE,
)


def programs(text):
    """{(ranks, n): source} of a page, and the blocks that are left out. Lines keep their numbers."""
    found, left_out = {}, []
    for block in BLOCK.finditer(text):
        if block["apart"] is not None:
            found[1, 0] = found.get((1, 0), "") + block["apart"]
            continue
        words = block["words"] or ""
        if words.startswith("no-run: "):
            left_out.append(words)
            continue
        option = re.fullmatch(r"(?:ranks=(\d+))? ?(alone)?", words)
        assert option, f"block: {words}: expected ranks=N, alone or no-run: reason"
        key = int(option[1] or 1), len(found) + 1 if option[2] else 0
        source = found.get(key, "")
        if block["given"]:
            source += block["given"]
        source += "\n" * (text.count("\n", 0, block.start("code")) - source.count("\n")) + block["code"]
        found[key] = source
    return found, left_out


# A rank that is through first ends the store, which others may still need.
TOGETHER = "\nfrom warptape import distributed\nif distributed.is_initialized():\n    distributed.barrier()\n"


def run(source, name, ranks, folder):
    folder.mkdir(exist_ok=True)
    path = folder / f"page_{name}.py"
    path.write_text(source + (TOGETHER if ranks > 1 else ""))
    (folder / "examples").symlink_to(ROOT / "examples")
    launcher = ["-m", "warptape.distributed.run", f"--nproc-per-node={ranks}"] if ranks > 1 else []
    command = [sys.executable, *launcher, str(path)]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240)


CASES = [(page, key) for page in PAGES for key in programs(page.read_text())[0]]


@pytest.mark.parametrize(
    ("page", "key"), CASES, ids=[f"{page.stem}-{ranks}-{n}" for page, (ranks, n) in CASES]
)
def test_blocks_of_a_page_run(page, key, tmp_path):
    source = programs(page.read_text())[0][key]
    for name in re.findall(r"^# needs (\w+)$", source, re.M):
        pytest.importorskip(name)
    done = run(source, page.stem, key[0], tmp_path)
    assert done.returncode == 0, done.stderr[-3000:]


def test_few_blocks_are_left_out():
    left_out = [words for page in PAGES for words in programs(page.read_text())[1]]
    assert len(left_out) <= MAX_LEFT_OUT, left_out


def test_a_planted_fault_is_found(tmp_path):
    """In a block behind a good one, on the page's line."""
    left_out = "<!-- block: no-run: a GPU -->\n\n```python\n1 / 0\n```\n\n"
    page = "```python\nx = 1\n```\n\n" + left_out + "```python\ny = x + z\n```\n"
    found, left_out = programs(page)
    assert left_out == ["no-run: a GPU"]
    checked, _ = programs("```python\nx = 1\n```\n\n<!-- given:\nassert x == 2\n-->\n\nWords.\n")
    assert run(checked[1, 0], "checked", 1, tmp_path / "checked").returncode == 1
    done = run(found[1, 0], "page", 1, tmp_path)
    assert done.returncode == 1
    assert 'page.py", line 12' in done.stderr
    assert "'z' is not defined" in done.stderr
    with pytest.raises(AssertionError, match="expected ranks=N"):
        programs("<!-- block: rank=2 -->\n```python\n```\n")


COMMAND = re.compile(r"(?:python|warptape-run).*?\s((?:examples|benchmarks|tools|tests)/\S+\.py)(.*)")


def commands(text):
    """Lines of blocks without a language that start a program of this tree."""
    for block in re.findall(r"^```(?:bash|sh|console)?\n(.*?)^```$", text, re.M | re.S):
        for line in block.splitlines():
            found = COMMAND.search(line.split("#")[0])
            if found:
                yield found[1], re.findall(r"\s(--[\w-]+)", found[2].split(" && ")[0])


PROGRAMS = sorted(
    {(path, flag) for page in PAGES for path, flags in commands(page.read_text()) for flag in ["", *flags]}
)


@pytest.mark.parametrize(("path", "flag"), PROGRAMS)
def test_programs_in_commands_have_these_flags(path, flag):
    """As their source says: the programs need not be started."""
    assert (ROOT / path).exists()
    assert flag == "" or re.search(rf'"{flag}"', (ROOT / path).read_text()), f"{path} has no {flag}"


def test_the_site_names_each_page_once():
    """.mkdocs.yml against docs/, without mkdocs."""
    yaml = pytest.importorskip("yaml")
    site = yaml.safe_load((ROOT / ".mkdocs.yml").read_text())

    def pages(entry):
        if isinstance(entry, str):
            return [entry]
        return [
            page for part in (entry if isinstance(entry, list) else entry.values()) for page in pages(part)
        ]

    docs = ROOT / "docs"
    assert sorted(pages(site["nav"])) == sorted(str(path.relative_to(docs)) for path in docs.rglob("*.md"))


def test_pictures_of_layers_are_up_to_date(tmp_path):
    """As the library says now, and the allocator has the size classes that are drawn."""
    path = ROOT / "docs/figures/layers.py"
    spec = importlib.util.spec_from_file_location("layers", path)
    layers = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(layers)
    layers.FOLDER = tmp_path
    for picture in layers.PICTURES:
        picture()
    committed = {each.name: each.read_text() for each in path.parent.glob("layers_*.svg")}
    assert {each.name: each.read_text() for each in tmp_path.iterdir()} == committed
    kept = []
    for size in (1, 512, 513, 4000, 4100, 5000, 1 << 20, (1 << 20) + 1):
        before = warptape._C._memory_stats()["allocated_bytes"]
        kept.append(warptape.empty(size, dtype=warptape.uint8))
        assert warptape._C._memory_stats()["allocated_bytes"] - before == layers.size_class(size)


@pytest.mark.slow
def test_the_site_builds(tmp_path):
    """With the API pages; links and anchors lead somewhere, and a browser loads nothing from elsewhere."""
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-q", "-f", str(ROOT / ".mkdocs.yml")]
    done = subprocess.run([*command, "-d", str(tmp_path)], capture_output=True, text=True, timeout=240)
    assert done.returncode == 0, done.stdout + done.stderr
    page = (tmp_path / "api/nn/index.html").read_text()
    assert 'id="warptape.nn.Linear"' in page
    lesson = (tmp_path / "course/07_graphs/index.html").read_text()
    assert (tmp_path / "course/07_graphs_1.svg").exists() and 'src="../07_graphs_1.svg"' in lesson
    assert "<math" in lesson and "<li>It is gone after the pass" in lesson  # of the answers
    assert 'href="course/"' in (tmp_path / "index.html").read_text()
    for each in (page, lesson):
        assert not re.findall(
            r'<(?:script|img)[^>]*src="https?:|<link[^>]*stylesheet[^>]*href="https?:', each
        )


def course_pages():
    spec = importlib.util.spec_from_file_location("course_pages", ROOT / "tools/course_pages.py")
    tool = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(tool)
    return tool


@pytest.mark.parametrize("path", course_pages().NOTEBOOKS, ids=lambda path: path.stem)
def test_a_page_of_the_course_has_all_of_its_notebook(path):
    """Each cell, output and picture; formulas wait as marks, and links lead to pages."""
    tool = course_pages()
    text, files = tool.page(path)
    cells = json.loads(path.read_text())["cells"]
    outputs = [output for cell in cells for output in cell.get("outputs", [])]
    pictures = [output for output in outputs if set(tool.PICTURES) & set(output.get("data", {}))]
    assert len(files) == len(pictures) == text.count("![](")
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    assert text.count("\n~~~python\n") == len(code)
    assert text.count("\n~~~text\n") == len(outputs) - len(pictures)
    assert all("".join(cell["source"]).rstrip() in text for cell in code)
    words = re.sub(r"^~~~\w+\n.*?\n~~~$", "", text, flags=re.M | re.S)
    assert "$" not in words and ".ipynb)" not in words


def test_markdown_of_notebooks_becomes_that_of_the_site():
    prose = course_pages().prose
    assert prose("so\n- a\n- b") == "so\n\n- a\n- b"
    assert prose("[all](README.md)") == "[all](index.md)"
    assert prose("[x](02_y.ipynb) <details>") == '[x](02_y.md) <details markdown="1">'
    pytest.importorskip("latex2mathml")
    assert "<mi>x</mi>" in course_pages().on_page_content(prose("a $x_1$ and *b*"))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_code_fits_the_column_of_the_site(page):
    code = [block["code"] for block in BLOCK.finditer(page.read_text()) if block["code"]]
    assert [line for each in code for line in each.splitlines() if len(line) > 88] == []


GENERATED = {"reference/ops.md", "measurements/ops.md", "measurements/compatibility.md"}


def test_pages_are_short():
    long = {str(page.relative_to(ROOT / "docs")) for page in PAGES[1:] if page.read_text().count("\n") > 400}
    assert long <= GENERATED
    assert PAGES[0].read_text().count("\n") <= 130


def test_the_readmes_tables_are_for_reading():
    cells = re.findall(r"(?<=\|)[^|\n]+(?=\|)", PAGES[0].read_text())
    assert cells and [cell for cell in cells if len(re.sub(r"\]\([^)]*\)", "]", cell).split()) > 20] == []


def test_environment_variables_are_listed():
    """Each that the sources ask for by name, and no other."""
    page = (ROOT / "docs/guides/environment_variables.md").read_text()
    listed = set(re.findall(r"`(WARPTAPE_[A-Z_]+)`", page))
    files = [
        path
        for top in ("csrc", "kernels", "python/warptape")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".cpp", ".h", ".py") and "torch/" not in str(path)
    ]
    asked = {name for path in files for name in re.findall(r'"(WARPTAPE_[A-Z_]+)"', path.read_text())}
    assert listed == asked - BUILT_IN


BUILT_IN = {"WARPTAPE_CUBLAS_DIR", "WARPTAPE_CUDNN_DIR"}  # macros of the build


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target


TOPS = "csrc|kernels|python|tests|tools|docs|notebooks|examples|benchmarks|cmake"
IN_CODE = re.compile(r"`([\w.-]+(?:/[\w.-]+)*)/?`")
IN_COMMENT = re.compile(rf"(?<![\w/.<\"'])((?:{TOPS})/[\w/-]+\.(?:py|cpp|h|cuh|cu|sh))\b")
SOURCE = re.compile(r"\w\.(?:pyi?|cpp|h|cuh?|cmake|sh|ipynb|md|toml|ld)$")
INSTALLED = {"warptape/extension.h", "warptape/include/warptape.h"}  # the build puts them there


@functools.cache
def tree():
    """Files and folders of the tree, and all ends of their paths."""
    paths = [path.relative_to(ROOT) for top in TOPS.split("|") for path in (ROOT / top).rglob("*")]
    parts = [path.parts for path in [*paths, *(path.relative_to(ROOT) for path in ROOT.iterdir())]]
    return {"/".join(part[i:]) for part in parts for i in range(len(part))}


def not_there(text):
    """Files and folders that a page names in code and that the tree has not."""
    named = {n for n in IN_CODE.findall(text) if re.match(rf"(?:{TOPS})/", n) or SOURCE.search(n)}
    return sorted(named - tree() - INSTALLED)


HAND_WRITTEN = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *(path for top in TOPS.split("|") for path in sorted((ROOT / top).rglob("*.md"))),
    *course_pages().NOTEBOOKS,
]


def test_files_that_pages_name_are_there():
    assert {str(page): found for page in HAND_WRITTEN if (found := not_there(page.read_text()))} == {}
    planted = "`tests/test_docs.py` and `test_docs.py`, but `csrc/ops/lost.cpp` and `lost.py`; `tests/`"
    assert not_there(planted) == ["csrc/ops/lost.cpp", "lost.py"]


def test_files_that_comments_name_are_there():
    sources = [
        path
        for top in ("csrc", "kernels", "python", "tests", "tools", "examples", "benchmarks")
        for path in (ROOT / top).rglob("*")
        if path.suffix in (".py", ".cpp", ".h", ".cu", ".cuh", ".cmake") and path != Path(__file__)
    ]
    named = {name: path for path in sources for name in IN_COMMENT.findall(path.read_text())}
    assert len(named) > 100
    includes = {name for name in named if (ROOT / "kernels/include" / name).exists()}
    assert {name: str(named[name]) for name in named.keys() - tree() - includes} == {}


# Comments, blocks, tables and formulas in lines of their own are no prose; others and code are a word.
NO_PROSE = re.compile(r"<!--.*?-->|^```.*?^```|^\s*\|[^\n]*$|\$\$.*?\$\$", re.M | re.S)
ONE_WORD = re.compile(r"`[^`]*`|\$[^$]*\$")
SENTENCE_ENDS = re.compile(r"\n\s*\n|\n(?=\s*(?:[-*]|\d+\.) )|\n(?=#)|(?<=[.!?:;])[)\"*_]*\s+")


def long_sentences(text):
    """Those of more than 25 words; a colon or semicolon ends one, too."""
    text = re.sub(r"(?<=\])\([^)]*\)", "", ONE_WORD.sub("code", NO_PROSE.sub("\n\n", text)))
    parts = [" ".join(part.split()) for part in SENTENCE_ENDS.split(text)]
    return [part for part in parts if len(re.findall(r"[\w'%/.-]*\w[\w'%/.-]*", part)) > 25]


def prose_of(page):
    if page.suffix == ".md":
        return page.read_text()
    cells = json.loads(page.read_text())["cells"]
    return "\n\n".join("".join(cell["source"]) for cell in cells if cell["cell_type"] == "markdown")


def test_sentences_are_short():
    tops = *ROOT.glob("*.md"), *(path for top in ("docs", "examples") for path in (ROOT / top).rglob("*.md"))
    generated = {ROOT / "docs" / name for name in GENERATED}
    pages = {*tops, ROOT / "notebooks/README.md", *course_pages().NOTEBOOKS} - generated
    assert len(pages) > 80
    assert {str(page): found for page in pages if (found := long_sentences(prose_of(page)))} == {}
    assert not long_sentences("word " * 24 + "`x = 1`.\n\n```\n" + "word " * 30 + "\n```\n")
    assert len(long_sentences("word " * 24 + "`x = 1` $a + b$.")) == 1
