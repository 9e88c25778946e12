"""`warptape`, also `python -m warptape`: lists the commands and runs one of them."""

from __future__ import annotations

import difflib
import importlib.util
import os
import runpy
import sys
from pathlib import Path

from .version import __version__

# Command -> (what runs, what it does). What runs is a module, a module and its first argument, or a program
# of the source tree.
COMMANDS = {
    "train": ("examples/train_gpt.py", "train a small language model and let it write"),
    "run": ("warptape.distributed.run", "start a script on several ranks, as torchrun does"),
    "generate": ("warptape.inference generate", "continue a text by a model's folder or GGUF file"),
    "chat": ("warptape.inference chat", "talk to a model"),
    "pack": (
        "warptape.inference pack",
        "write a model as a folder that loads by mapping one file, or as a GGUF file",
    ),
    "serve": ("warptape.serve", "answer over HTTP and gRPC: OpenAI's API, KServe"),
    "plan": ("warptape.parallel.plan", "say which layouts of a model fit on a cluster, and what they cost"),
    "torch": ("warptape.torch", "run a program that is written for PyTorch, unmodified"),
    "coverage": ("warptape.torch.coverage", "list the names of torch that files use and that are missing"),
    "diagnose": ("warptape.distributed.diagnose", "say which rank holds a job up, from its flight records"),
    "diff": (
        "warptape.tools.trace",
        "say where two traced runs part: the first op, line, module, rank and step",
    ),
    "doctor": ("warptape.tools.doctor", "print what was built, what was found and what is missing"),
    "course": ("notebooks/01_quickstart.ipynb", "open the notebooks in JupyterLab"),
}


class CommandError(Exception):
    """What the user typed cannot be done; the message is the line that is shown.

    It goes to standard error, and the exit status is 1.
    """


def usage() -> str:
    """The list of commands."""
    width = max(map(len, COMMANDS))
    lines = [f"  {name:{width}}  {what}" for name, (_, what) in COMMANDS.items()]
    return "\n".join(
        [
            "usage: warptape COMMAND [arguments]",
            "",
            *lines,
            "",
            "warptape COMMAND --help says more; --version",
        ]
    )


def in_tree(path: str) -> Path:
    """A file of the source tree: of the current folder, else of the tree that this package is imported from.

    Raises: CommandError where neither has it, for an installed package has no programs and no notebooks.
    """
    for root in (Path.cwd(), Path(__file__).resolve().parents[2]):
        if (root / path).is_file():
            return root / path
    raise CommandError(f"{path} lies in warptape's source tree: change to its folder first")


def open_course(first: Path, arguments: list[str]) -> None:
    """JupyterLab at the first notebook.

    Args:
        first: that notebook.
        arguments: of JupyterLab.
    """
    if "--help" in arguments or "-h" in arguments:
        print("usage: warptape course [arguments of JupyterLab]")
        print(f"\nThe lessons are listed in {first.parent / 'README.md'}")
        return
    if importlib.util.find_spec("jupyterlab") is None:
        raise CommandError("the course needs JupyterLab: pip install 'warptape[course]'")
    os.execv(sys.executable, [sys.executable, "-m", "jupyterlab", str(first), *arguments])


def run(name: str, arguments: list[str]) -> None:
    """Runs a command in this process, as `python -m` or `python FILE` would.

    Args:
        name: of the command.
        arguments: of the command.
    """
    what, _, first = COMMANDS[name][0].partition(" ")
    sys.argv = [f"warptape {name}" if not first else "warptape", *([first] if first else []), *arguments]
    if not what.endswith((".py", ".ipynb")):
        runpy.run_module(what, run_name="__main__", alter_sys=True)
        return
    try:
        program = in_tree(what)
    except CommandError as error:
        if "--help" not in arguments and "-h" not in arguments:
            raise
        print(f"usage: warptape {name} [arguments]\n\n{COMMANDS[name][1].capitalize()}: {error}")
        return
    if name == "course":
        open_course(program, arguments)
        return
    sys.path.insert(0, str(program.parent))
    runpy.run_path(str(program), run_name="__main__")


def main(arguments: list[str] | None = None) -> int:
    """The exit status. A command may end the process with one of its own.

    Args:
        arguments: those of the process if None.
    """
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        if not argv or argv[0] in ("-h", "--help", "help"):
            print(usage())
        elif argv[0] in ("-V", "--version"):
            print(f"warptape {__version__}")
        elif argv[0] in COMMANDS:
            run(argv[0], argv[1:])
        else:
            near = difflib.get_close_matches(argv[0], COMMANDS, 1)
            hint = f"; did you mean {near[0]}?" if near else "; warptape alone lists them"
            raise CommandError(f"there is no command {argv[0]!r}{hint}")
    except CommandError as error:
        print(f"warptape: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
