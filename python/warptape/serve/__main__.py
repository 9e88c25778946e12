"""`warptape serve`, also `python -m warptape.serve`: a model or a folder of models behind HTTP and gRPC."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from dataclasses import fields
from typing import IO, Any

from ..inference.hub_models import download, is_hub_name
from . import admin
from . import options as model_options
from .settings import Settings

EPILOG = "Orders to a server that runs: warptape serve rollback|load|unload NAME, warptape serve index."
EXPECTED = (
    "expected a model's folder, a GGUF file, owner/name of Hugging Face's hub, or a repository as models/, "
    "with models/llama/1"
)
ERRORS = (ValueError, OSError, ImportError)  # what wrong arguments raise: one line, no traceback


def add_options(parser: argparse.ArgumentParser) -> None:
    """The flags, those of Settings among them.

    Args:
        parser: gets them.
    """
    parser.add_argument(
        "model",
        help="a model's folder or GGUF file, which gets the last part of its path as name; owner/name of a "
        "model on Hugging Face's hub, which is downloaded; or a repository, REPOSITORY/<model>/<version>/",
    )
    parser.add_argument("--name", help="what clients call the model; default: see above")
    parser.add_argument("--token", action="append", default=[], help="a bearer token that clients must send")
    parser.add_argument("--token-file", action="append", default=[], help="a file with a token in each line")
    admins = "that orders need: load, unload, rollback, adapters; default: any token"
    parser.add_argument("--admin-token", action="append", default=[], help=f"a bearer token {admins}")
    parser.add_argument("--admin-token-file", action="append", default=[], help="a file with such tokens")
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
    model_options.add_flags(parser)


def tokens_of(given: list[str], files: list[str]) -> list[str]:
    """All tokens; lines that are empty or begin with # are none. ValueError for a file without any.

    Args:
        given: of the command line.
        files: with more.
    """
    tokens = list(given)
    for path in files:
        with open(path, encoding="utf-8") as file:
            lines = [line.strip() for line in file]
        kept_lines = [line for line in lines if line and not line.startswith("#")]
        if not kept_lines:
            raise ValueError(f"--token-file {path} has no token")
        tokens += kept_lines
    return tokens


def log_file(name: str) -> IO[str] | None:
    """Where the access log goes.

    Args:
        name: a path, "-" for standard output or "off".
    """
    if name == "off":
        return None
    return sys.stdout if name == "-" else open(name, "a", encoding="utf-8")


def is_model(folder: str) -> bool:
    """Whether a path is a model: its folder, a folder with its versions, or a GGUF file.

    Args:
        folder: a path.
    """
    if not os.path.isdir(folder):
        return folder.endswith(".gguf") and os.path.isfile(folder)
    folders = [folder, *(os.path.join(folder, name) for name in os.listdir(folder) if name.isdigit())]
    names = [name for each in folders if os.path.isdir(each) for name in os.listdir(each)]
    return any(name.endswith((".safetensors", ".gguf")) or name == "config.json" for name in names)


def repository_of(options: argparse.Namespace) -> Any:
    """What is to be served: a repository's folder, or a model as one.

    Args:
        options: of the command line.

    Raises: FileNotFoundError where nothing is, ValueError for options of a model beside a repository.
    """
    from .repository import ModelFolder

    given, name = options.model, options.name
    if not os.path.exists(given) and is_hub_name(given):
        name, given = name or given.partition("@")[0], download(given)
    if not os.path.isdir(given) and not is_model(given):
        raise FileNotFoundError(f"{given} is no folder: {EXPECTED}")
    parameters = model_options.given(options)
    if is_model(given):
        return ModelFolder(given, name, parameters)
    if parameters or name is not None:
        flag = model_options.OPTIONS[next(iter(parameters))].flag if parameters else "--name"
        raise ValueError(
            f"{flag} is for a single model; {given} is a repository, whose models have config.json"
        )
    return given


def serve(options: argparse.Namespace) -> int:
    """Runs a server until it is told to end; the exit status.

    Args:
        options: of the command line.
    """
    try:
        from .server import Server
    except ImportError as error:
        raise ImportError(f"{error}: pip install 'warptape[serve]'") from error

    logging.basicConfig(stream=sys.stderr, format="%(asctime)s %(levelname)s %(message)s", level="WARNING")
    limits: dict[str, Any] = {each.name: getattr(options, each.name) for each in fields(Settings)}
    server = Server(
        repository_of(options),
        token=tokens_of(options.token, options.token_file),
        admin_token=tokens_of(options.admin_token, options.admin_token_file),
        access_log=log_file(options.access_log),
        control=options.control,
        load=options.load,
        **limits,
    )
    print(f"warptape serve: {options.model} at {server.url}", file=sys.stderr, flush=True)
    if server.models.repository is not None and not server.models.repository.names():
        text = f"warptape serve: {options.model} has no model yet; {EXPECTED}"
        print(text, file=sys.stderr, flush=True)
    server.run()
    return 0


def main(arguments: list[str] | None = None) -> int:
    """The exit status: 0 after a drain, 1 with a line on standard error, 2 for wrong flags.

    Args:
        arguments: those of the process if None.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    parser = argparse.ArgumentParser(prog="warptape serve", description=__doc__, epilog=EPILOG)
    add_options(parser)
    try:
        if argv[:1] and argv[0] in admin.COMMANDS:
            return admin.main(argv)
        return serve(parser.parse_args(argv))
    except (*ERRORS, admin.OrderError) as error:
        print(f"warptape serve: {error}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
