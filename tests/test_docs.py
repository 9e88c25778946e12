"""Blocks of Python in README.md and docs run: page by page, one after the other in one process.

A comment above a block, `<!-- block: ... -->`, says how: `ranks=N` under the launcher, with those blocks of
the page that have the same; `alone` in a process of its own; `no-run: reason` leaves it out, and MAX_LEFT_OUT
counts these. What a block takes for granted stands above it in a comment, too, `<!-- given: ... -->`.
"""

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest
import warptape

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
MAX_LEFT_OUT = 8
BLOCK = re.compile(
    r"(?:^<!-- given:\n(?P<given>.*?)^-->\n+)?(?:^<!-- block: (?P<words>[^\n]*) -->\n+)?"
    r"^```python\n(?P<code>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


def programs(text):
    """{(ranks, n): source} of a page, and the blocks that are left out. Lines keep their numbers."""
    found, left_out = {}, []
    for block in BLOCK.finditer(text):
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


def run(source, name, ranks, folder):
    path = folder / f"page_{name}.py"
    path.write_text(source)
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
    assert not re.findall(r'<(?:script|img)[^>]*src="https?:|<link[^>]*stylesheet[^>]*href="https?:', page)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_links_between_pages_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#:\s]+)(?:#[^)]*)?\)", page.read_text()):
        assert (page.parent / target).exists(), target
