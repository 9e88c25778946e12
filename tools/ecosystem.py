"""Runs the scripts of benchmarks/ecosystem under PyTorch and warptape, an environment per library.

    python tools/ecosystem.py --pytorch PYTHON                   # every script
    python tools/ecosystem.py --pytorch PYTHON einops -k layers  # of these scripts the cases named like this
    python tools/ecosystem.py --pytorch PYTHON einops --check    # write nothing
    python tools/ecosystem.py --names [FILE]                     # names of torch that do not resolve

A script `X_cases.py` names what it needs in its head (inline script metadata, PEP 723). Two environments are
made for it below --environments: one without PyTorch, with the wheel of `python -m warptape.torch.wheel` and
the warptape that runs this tool (or --wheel); one that sees the PyTorch of --pytorch. Libraries come
unmodified from pip. An environment is used again while the script's requirements stay the same; --fresh
makes it anew. Each case must return the same under both: strings, integers and the places of nan and
infinity exactly, numbers within the case's tolerance of the result's largest number. Times are CPU seconds
with one thread. A case that ends its process counts as failed, and the others go on. Results join
benchmarks/results/ecosystem.json, of which tools/compatibility.py makes the page. The exit code is 1 where a
case does not agree.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import importlib.metadata
import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ecosystem_names
import tomllib
import warptape
from warptape.torch import wheel as torch_wheel

ROOT = Path(__file__).resolve().parents[1]
SCRIPTS, RESULTS = ROOT / "benchmarks" / "ecosystem", ROOT / "benchmarks" / "results" / "ecosystem.json"
CACHE = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache")) / "warptape" / "ecosystem"
THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "WARPTAPE_NUM_THREADS"), "1")
OFFLINE = {"HF_HUB_OFFLINE": "1", "WANDB_MODE": "offline", "TOKENIZERS_PARALLELISM": "false"}
RUNTIMES = ("warptape", "pytorch")


# ---- environments --------------------------------------------------------------------------------------


def requirements(script: Path) -> list[str]:
    """The dependencies that a script's head names.

    Raises:
        ValueError: the script has no inline metadata.
    """
    block = re.search(r"(?m)^# /// script$\n((?:^#.*$\n)+?)^# ///$", script.read_text())
    if not block:
        raise ValueError(
            f"{script.name}: no inline script metadata (a block between '# /// script' and '# ///')"
        )
    text = "\n".join(line[2:] for line in block[1].splitlines())
    return list(tomllib.loads(text)["dependencies"])


@dataclass
class Environments:
    """Where environments are made and what both runtimes are taken from."""

    folder: Path
    wheel: Path | None  # of warptape; None: the package that runs this tool
    pytorch: Path  # a Python that has PyTorch
    fresh: bool

    def python(self, script: Path, runtime: str) -> Path:
        """The interpreter of a script's environment, which is made where it is missing or out of date.

        Raises:
            RuntimeError: pip could not install what the script needs; its last lines are the text.
        """
        needs = requirements(script)
        home = self.folder / f"{script.stem}-{runtime}"
        source = str(self.pytorch) if runtime == "pytorch" else str(self.wheel or warptape.__path__[0])
        stamp, mark = hashlib.sha256(json.dumps([needs, source]).encode()).hexdigest(), home / "complete"
        python = home / "bin" / "python"
        if self.fresh or not mark.exists() or mark.read_text() != stamp:
            venv.create(home, clear=True, with_pip=True, symlinks=True)
            mark.unlink(missing_ok=True)
            (self._add_pytorch if runtime == "pytorch" else self._add_warptape)(home)
            # The constraint keeps pip from putting another PyTorch in this one's place.
            version = "2.13.0" if runtime == "pytorch" else str(torch_wheel.TORCH_VERSION)
            (home / "constraints.txt").write_text(f"torch=={version}\n")
            _pip(python, "-c", str(home / "constraints.txt"), *needs)
            mark.write_text(stamp)
        elif runtime == "warptape":
            _pip(python, "--no-deps", "--force-reinstall", str(torch_wheel.make_wheel(home)))
        return python

    def _add_pytorch(self, home: Path) -> None:
        """Makes the packages beside PyTorch's interpreter visible in the environment."""
        ask = "import sysconfig; print(sysconfig.get_path('purelib'))"
        found = subprocess.run([self.pytorch, "-c", ask], check=True, capture_output=True, text=True).stdout
        (_site_packages(home) / "pytorch.pth").write_text(found)

    def _add_warptape(self, home: Path) -> None:
        """Installs warptape, or a link to the package that runs this tool, and the wheel named torch."""
        python = home / "bin" / "python"
        if self.wheel:
            _pip(python, str(self.wheel))
        else:
            project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
            name, version = project["name"], warptape.__version__
            linked = torch_wheel.write_wheel(home, name, version, {}, project["dependencies"])
            _pip(python, str(linked))
            (_site_packages(home) / name).symlink_to(warptape.__path__[0])
        _pip(python, "--no-deps", str(torch_wheel.make_wheel(home)))


def _site_packages(home: Path) -> Path:
    return home / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"


def _pip(python: Path, *what: str) -> None:
    command = [python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *what]
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError("pip: " + " ".join(done.stderr.strip().splitlines()[-3:]))


def versions(home: Path, needs: list[str]) -> dict[str, str]:
    """What of the named requirements is installed, with versions; NumPy goes without saying."""
    installed = {
        re.sub(r"[-_.]+", "-", d.name).lower(): d.version
        for d in importlib.metadata.distributions(path=[str(_site_packages(home))])
    }
    names = [re.split(r"[\[=<>~! ]", need)[0] for need in needs]
    return {n: installed.get(re.sub(r"[-_.]+", "-", n).lower(), "?") for n in names if n != "numpy"}


# ---- runs ----------------------------------------------------------------------------------------------


def cases(python: Path, script: Path) -> list[str]:
    """The names of a script's cases. RuntimeError where it cannot be imported."""
    done = subprocess.run(
        [python, script, "--list"],
        capture_output=True,
        text=True,
        env={**os.environ, **OFFLINE, "PYTHONPATH": ""},
    )
    if done.returncode:
        raise RuntimeError("pytorch: " + "".join(done.stderr.splitlines()[-1:]))
    return done.stdout.splitlines()[-1].split()


def run(python: Path, script: Path, names: list[str], limit: float) -> dict[str, Any]:
    """What a script's cases returned. A case that ended the process is an error, and those after it run in a
    new one; where the script ended before its first case, the key '' has the error."""
    results: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "out.json"
        environment = {**os.environ, **THREADS, **OFFLINE, "PYTHONPATH": "", "TMPDIR": folder}
        left = names
        while left:
            out.unlink(missing_ok=True)
            command = [python, script, out, *left]
            try:
                done = subprocess.run(
                    command, capture_output=True, text=True, env=environment, timeout=limit, cwd=folder
                )
                ending = f"ended with code {done.returncode}: " + "".join(done.stderr.splitlines()[-1:])
            except subprocess.TimeoutExpired:
                ending = f"took more than {limit:.0f} s"
            # Without a file the script ended before its first case.
            found = json.loads(out.read_text()) if out.exists() else {"": None}
            results.update({name: result for name, result in found.items() if result})
            left = [name for name, result in found.items() if not result]
            if left:
                results[left.pop(0)] = {"error": ending, "seconds": 0.0}
    return results


def difference(ours: Any, theirs: Any) -> float | str:
    """The largest difference of two results over PyTorch's largest number, or what else differs."""
    ours_flat, theirs_flat = list(_leaves(ours)), list(_leaves(theirs))
    if [path for path, _ in ours_flat] != [path for path, _ in theirs_flat]:
        return "results of another form"
    largest, scale = 0.0, 0.0
    for (path, a), (_, b) in zip(ours_flat, theirs_flat):
        alike = type(a) is type(b)
        if alike and isinstance(a, float) and math.isfinite(a) and math.isfinite(b):
            largest, scale = max(largest, abs(a - b)), max(scale, abs(b))
        elif not (alike and (a == b or (a != a and b != b))):  # nan alone differs from itself
            return f"{path or 'the result'}: {str(a)[:60]!r}, PyTorch has {str(b)[:60]!r}"
    return largest / scale if scale else largest


def _leaves(value: Any, path: str = "") -> Any:
    if isinstance(value, dict):
        for key, one in value.items():
            yield from _leaves(one, f"{path}[{key!r}]")
    elif isinstance(value, list):
        yield path, f"list of {len(value)}"
        for i, one in enumerate(value):
            yield from _leaves(one, f"{path}[{i}]")
    else:
        yield path, value


def judge(ours: dict[str, Any] | None, theirs: dict[str, Any] | None) -> dict[str, Any]:
    """How a case went: `agrees`, `differs`, `fails` here, or `no peer` where it fails under PyTorch."""
    ours, theirs = (one or {"error": "did not run"} for one in (ours, theirs))
    times = {"seconds": ours.get("seconds"), "pytorch_seconds": theirs.get("seconds")}
    if "error" in theirs:
        return {"status": "no peer", "text": theirs["error"], **times}
    if "error" in ours:
        return {"status": "fails", "text": ours["error"], **times}
    found = difference(ours["values"], theirs["values"])
    if isinstance(found, str):
        return {"status": "differs", "text": found, **times}
    within = found <= ours["tolerance"]
    return {"status": "agrees" if within else "differs", "difference": found, **times}


def compare(script: Path, environments: Environments, wanted: str, limit: float) -> dict[str, Any]:
    """Runs a script under both runtimes and judges each case."""
    found: dict[str, Any] = {"library": script.stem.removesuffix("_cases"), "versions": {}}
    results: list[dict[str, Any]] = []
    try:
        names = [n for n in cases(environments.python(script, "pytorch"), script) if wanted in n]
        if not names:
            return {**found, "cases": {}}
        for runtime in RUNTIMES:
            python = environments.python(script, runtime)
            results.append(run(python, script, names, limit))
            if runtime == "warptape":
                found["versions"] = versions(python.parents[1], requirements(script))
    except RuntimeError as error:
        return {**found, "error": str(error), "cases": {}}
    ours, theirs = results
    for side, result in zip(RUNTIMES, results):
        if "" in result:
            found["error"] = f"{side}: {result['']['error']}"
    found["cases"] = {name: judge(ours.get(name), theirs.get(name)) for name in names}
    agreeing = [c for c in found["cases"].values() if c["status"] == "agrees"]
    if agreeing:
        theirs_sum = sum(c["pytorch_seconds"] for c in agreeing)
        found["ratio"] = sum(c["seconds"] for c in agreeing) / theirs_sum
    return {**found, "date": datetime.date.today().isoformat()}


# ---- the command ----------------------------------------------------------------------------------------


def report(found: dict[str, Any]) -> bool:
    """Prints a script's cases; whether all of them agree."""
    if "error" in found:
        print(f"{found['library']}: {found['error']}")
    for name, case in found["cases"].items():
        text = case.get("text") or f"{case['difference']:.1e}"
        print(f"{found['library']} {name}: {case['status']}: {text[:300]}", flush=True)
    statuses = {case["status"] for case in found["cases"].values()}
    return "error" not in found and bool(statuses) and statuses <= {"agrees"}


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "scripts", nargs="*", help="names of scripts without _cases.py; all where none is given"
    )
    parser.add_argument("-k", default="", metavar="TEXT", help="only cases with this in their names")
    parser.add_argument("--pytorch", type=Path, help="a Python that has PyTorch 2.13 and NumPy")
    parser.add_argument(
        "--names",
        type=Path,
        nargs="?",
        const=Path(),
        metavar="FILE",
        help="names of a list, or that installed packages use, which do not resolve: ecosystem_names.py",
    )
    parser.add_argument(
        "--wheel", type=Path, help="a wheel of warptape instead of the package that runs this"
    )
    parser.add_argument("--environments", type=Path, default=CACHE, metavar="FOLDER", help=f"default {CACHE}")
    parser.add_argument("--fresh", action="store_true", help="make the environments anew")
    parser.add_argument("--remove", action="store_true", help="remove a script's environments after its run")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS", help="of a run; default 900")
    parser.add_argument("--check", action="store_true", help="write no results")
    args = parser.parse_args()
    if args.names is not None:
        return ecosystem_names.report(args.names if args.names.is_file() else None)
    if args.pytorch is None:
        parser.error("--pytorch is needed")
    every = {path.stem.removesuffix("_cases"): path for path in sorted(SCRIPTS.glob("*_cases.py"))}
    if unknown := [name for name in args.scripts if name not in every]:
        parser.error(f"no script for {', '.join(unknown)}; there are {', '.join(every)}")
    environments = Environments(args.environments, args.wheel, args.pytorch.absolute(), args.fresh)
    agree = True
    for name in args.scripts or every:
        found = compare(every[name], environments, args.k, args.limit)
        agree &= report(found)
        if not args.check and not args.k:
            kept = (
                {row["library"]: row for row in json.loads(RESULTS.read_text())} if RESULTS.exists() else {}
            )
            kept[name] = found
            RESULTS.write_text(json.dumps([kept[key] for key in sorted(kept)], indent=1) + "\n")
        if args.remove:
            for runtime in RUNTIMES:
                shutil.rmtree(args.environments / f"{every[name].stem}-{runtime}", ignore_errors=True)
    return int(not agree)


if __name__ == "__main__":
    sys.exit(main())
