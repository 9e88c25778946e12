"""The course as pages of the site, from the stored notebooks: a hook of mkdocs, which .mkdocs.yml names.

Nothing of it is committed. Pictures become files beside the pages. Formulas become MathML, which browsers
draw themselves: a page loads nothing from elsewhere.
"""

from __future__ import annotations

import base64
import json
import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parents[1] / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURES = {"image/png": "png", "image/svg+xml": "svg"}
FORMULA = re.compile(r"\$\$(?P<block>.+?)\$\$|\$(?P<line>[^$]+?)\$", re.S)
MARK = re.compile("\ue000([0-9a-f]+)\ue001")  # a formula on its way through markdown, which would change it


def fenced(text: str, language: str) -> str:
    return f"~~~{language}\n{text.rstrip()}\n~~~"


def prose(text: str) -> str:
    """A markdown cell as the site's markdown: notebooks follow CommonMark."""
    text = FORMULA.sub(lambda found: f"\ue000{found[0].encode().hex()}\ue001", text)
    text = re.sub(r"\]\((\w+)\.ipynb\)", r"](\1.md)", text).replace("](README.md)", "](index.md)")
    text = text.replace("<details>", '<details markdown="1">')
    # Here a list needs an empty line before it.
    return re.sub(r"^((?![-*|] |\d+\. )\S.*)\n(?=[-*] |1\. )", r"\1\n\n", text, flags=re.M)


def shown(output: dict[str, Any], name: str) -> tuple[str, dict[str, bytes]]:
    """What an output of a cell shows, and the files of its pictures."""
    data = output.get("data", {})
    for kind, suffix in PICTURES.items():
        if kind in data:
            text = "".join(data[kind])
            content = base64.b64decode(text) if suffix == "png" else text.encode()
            return f"![]({name}.{suffix})", {f"{name}.{suffix}": content}
    return fenced("".join(output.get("text", data.get("text/plain", ""))), "text"), {}


def page(path: Path) -> tuple[str, dict[str, bytes]]:
    """The markdown of a notebook, and the files that it shows, by name."""
    parts: list[str] = []
    files: dict[str, bytes] = {}
    for cell in json.loads(path.read_text())["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(prose(source))
            continue
        parts.append(fenced(source, "python"))
        for output in cell["outputs"]:
            text, pictures = shown(output, f"{path.stem}_{len(files) + 1}")
            parts.append(text)
            files |= pictures
    return "\n\n".join(parts) + "\n", files


def on_config(config: Any) -> Any:
    """Of mkdocs: the pages' places in the navigation, behind the tutorials."""
    listed = re.findall(r"\[(\d\d [^\]]+)\]\((\w+)\.ipynb\)", (FOLDER / "README.md").read_text())
    lessons = [{title: f"course/{stem}.md"} for title, stem in listed]
    config.nav.insert(2, {"Course": ["course/index.md", *lessons]})
    return config


def on_files(files: Any, config: Any) -> Any:
    """Of mkdocs: the pages and their pictures."""
    from mkdocs.structure.files import File

    contents: dict[str, str | bytes] = {"index.md": prose((FOLDER / "README.md").read_text())}
    for path in NOTEBOOKS:
        contents[f"{path.stem}.md"], pictures = page(path)
        contents |= pictures
    for name, content in contents.items():
        files.append(File.generated(config, f"course/{name}", content=content))
    return files


def on_page_markdown(text: str, page: Any, **_: Any) -> str:
    """Of mkdocs: links to the notebooks lead to their pages."""
    up = "../" * page.file.src_uri.count("/")
    text = text.replace(f"]({up}../notebooks/README.md)", f"]({up}course/index.md)")
    return re.sub(rf"\]\({re.escape(up)}\.\./notebooks/(\w+)\.ipynb\)", rf"]({up}course/\1.md)", text)


def on_page_content(html: str, **_: Any) -> str:
    """Of mkdocs: formulas become MathML."""
    from latex2mathml.converter import convert

    def drawn(mark: re.Match[str]) -> str:
        found = FORMULA.fullmatch(bytes.fromhex(mark[1]).decode())
        assert found is not None
        if found["block"]:
            return convert(found["block"].strip(), display="block")
        return convert(found["line"].strip())

    return MARK.sub(drawn, html)
