"""Starts a script as several ranks: `python -m warptape.distributed.run [flags] script [arguments]`.

The flags, the variables the script finds and the log folders are torchrun's; docs/guides/distributed.md
tells more. Also installed as the command `warptape-run`.
"""

from __future__ import annotations

import argparse
import contextlib
import signal
import sys
import warnings
from collections.abc import Sequence

from .launcher.arguments import Config, UsageError, configure, configured
from .launcher.arguments import parser as get_args_parser
from .launcher.errors import ProcessFailure, summary
from .launcher.guard import Guard
from .launcher.loop import Loop
from .launcher.nodes import End, NodeLauncher, StartReport, meet
from .launcher.output import RunFolder
from .launcher.rendezvous import RendezvousError
from .launcher.workers import Start, WorkerGroup

__all__ = ["get_args_parser", "main", "run"]


class _Log:
    """The launcher's own words, on standard error."""

    def __call__(self, text: str) -> None:
        with contextlib.suppress(OSError):  # a console that is gone ends no job
            print(f"warptape-run: {text}", file=sys.stderr, flush=True)

    def failed(self, failures: Sequence[ProcessFailure], then: str) -> None:
        """Say what comes next and what failed, first things first."""
        self("\n".join([then, *([summary(failures)] if failures else [])]))


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line `argv` (sys.argv's if None) and return the exit code.

    Args:
        argv: arguments after the program's name.
    """
    log = _Log()
    try:
        config = configure(argv)
        return run(config)
    except (UsageError, RendezvousError) as error:
        log(str(error))
        return 2


def run(config: Config | argparse.Namespace) -> int:
    """Start the ranks, see them to their end, and return the exit code. From the main thread only.

    Raises: where arguments of `get_args_parser` were given, as to PyTorch's `run`:
        ChildFailedError: ranks failed, or a node was lost.
        elastic.rendezvous.RendezvousError: the nodes did not meet, or not again.
    """
    if isinstance(config, argparse.Namespace):
        _job(configured(config)).raise_error(config.training_script)
        return 0
    return _job(config).code


def _job(config: Config) -> End:
    # The children of a threaded process call exec at once; what Python warns of does not happen to them.
    warnings.filterwarnings("ignore", category=DeprecationWarning, message=".*multi-threaded.*fork.*")
    log = _Log()
    folder = RunFolder(config)
    guard = Guard()
    loop = Loop(config.signals)
    try:
        node = meet(config, loop, log)
        try:
            end = _run(config, loop, guard, folder, node, log)
        finally:
            node.close()
    finally:
        loop.close()
        guard.close()
        folder.forget()
    if end.failures:
        log.failed(end.failures, end.reason or "the job failed")
    elif end.reason:
        log(end.reason)
    return end


def _run(config: Config, loop: Loop, guard: Guard, folder: RunFolder, node: NodeLauncher, log: _Log) -> End:
    while True:
        order = node.next()
        if isinstance(order, End):
            return order
        if folder.path and not config.log_dir and order.attempt == 0:
            log(f"logs are in {folder.path}")
        try:
            node.report(_attempt(config, loop, guard, folder, node, order))
        except OSError as error:
            node.report(StartReport(lost=f"cannot start {' '.join(config.command[:3])}: {error}"))


def _attempt(
    config: Config, loop: Loop, guard: Guard, folder: RunFolder, node: NodeLauncher, start: Start
) -> StartReport:
    """One start of this node's ranks, to the end of the last of them."""
    group = WorkerGroup(config, loop, guard, folder, start)
    loop.on_user_signal = group.pass_on
    try:
        group.start()
        loop.wait(lambda: group.ended or group.failed or node.stop_wanted or bool(loop.signals))
        if not group.ended:
            group.stop(loop.signals[0] if loop.signals else signal.SIGTERM)
        return StartReport(group.failures(), group.done, loop.signals[0] if loop.signals else 0)
    finally:
        loop.on_user_signal = lambda number: None
        if not group.ended:  # not all ranks could be started
            group.stop(signal.SIGKILL)
        group.reap()


if __name__ == "__main__":
    sys.exit(main())
