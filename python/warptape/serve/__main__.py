"""`warptape serve`, also `python -m warptape.serve`: a folder of models behind HTTP and gRPC."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import fields
from typing import IO, Any

from . import admin
from .settings import Settings

EPILOG = "Orders to a server that runs: warptape serve rollback|load|unload NAME, warptape serve index."
EXPECTED = "expected a repository, REPOSITORY/<model>/<version>/ with a version's files, as models/llama/1"
ERRORS = (ValueError, OSError, ImportError)  # what wrong arguments raise: one line, no traceback


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags, those of Settings among them."""
    parser.add_argument("repository", help="a folder with REPOSITORY/<model>/<version>/")
    parser.add_argument("--token", action="append", default=[], help="a bearer token that clients must send")
    parser.add_argument("--token-file", action="append", default=[], help="a file with a token in each line")
    parser.add_argument(
        "--access-log", default="-", help="where lines of JSON go: a file, - (standard output) or off"
    )
    parser.add_argument(
        "--control", default="poll", choices=("poll", "explicit"), help="whether new versions are looked for"
    )
    parser.add_argument("--load", action="append", default=[], help="a model to begin with, if explicit")
    for each in fields(Settings):
        if isinstance(each.default, bool):
            parser.add_argument(
                "--" + each.name.replace("_", "-"), action="store_true", help=each.metadata["help"]
            )
            continue
        kind = float if "float" in str(each.type) else int if "int" in str(each.type) else str
        default = "" if each.default in (None, "") else f" (default: {each.default})"
        parser.add_argument(
            "--" + each.name.replace("_", "-"),
            type=kind,
            default=each.default,
            help=each.metadata["help"].replace("%", "%%") + default,
            metavar=kind.__name__.upper(),
        )


def tokens_of(options: argparse.Namespace) -> list[str]:
    """All tokens; lines that are empty or begin with # are none. ValueError for a file without any."""
    tokens = list(options.token)
    for path in options.token_file:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        found = [line for line in lines if line and not line.startswith("#")]
        if not found:
            raise ValueError(f"--token-file {path} has no token")
        tokens += found
    return tokens


def log_file(name: str) -> IO[str] | None:
    """Where the access log goes."""
    if name == "off":
        return None
    return sys.stdout if name == "-" else open(name, "a", encoding="utf-8")


def is_model(folder: str) -> bool:
    """Whether a folder is a model's, or that of a model with its versions, and no repository."""
    folders = [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.isdigit())]
    names = [name for each in folders if os.path.isdir(each) for name in os.listdir(each)]
    return any(name.endswith((".safetensors", ".gguf")) or name == "config.json" for name in names)


def serve(options: argparse.Namespace) -> int:
    """Runs a server until it is told to end; the exit status."""
    try:
        from .server import Server
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'warptape[serve]'") from error

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level="WARNING")
    limits: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(Settings)}
    if not os.path.isdir(options.repository):
        raise FileNotFoundError(f"{options.repository} is no folder: {EXPECTED}")
    if is_model(options.repository):
        raise ValueError(f"{options.repository} is a model's folder: {EXPECTED}")
    server = Server(
        options.repository,
        token=tokens_of(options),
        access_log=log_file(options.access_log),
        control=options.control,
        load=options.load,
        **limits,
    )
    print(f"warptape serve: {options.repository} at {server.url}", file=sys.stderr, flush=True)
    if server.models.repository is not None and not server.models.repository.names():
        text = f"warptape serve: {options.repository} has no model yet; {EXPECTED}"
        print(text, file=sys.stderr, flush=True)
    server.run()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 after a drain, 1 with a line on standard error, 2 for wrong flags."""
    given = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="warptape serve", description=__doc__, epilog=EPILOG)
    add_options(parser)
    try:
        if given[:1] and given[0] in admin.COMMANDS:
            return admin.main(given)
        return serve(parser.parse_args(given))
    except (*ERRORS, admin.OrderError) as error:
        print(f"warptape serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
