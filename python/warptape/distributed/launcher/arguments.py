"""The launcher's command line: torchrun's flags, with defaults from PET_* variables as there."""

from __future__ import annotations

import argparse
import math
import os
import secrets
import shutil
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

DEFAULT_PORT = {"static": 29500, "c10d": 29400}
_RUN_PATH = "import runpy, sys; sys.argv = sys.argv[1:]; runpy.run_path(sys.argv[0], run_name='__main__')"


class UsageError(Exception):
    """The command line cannot be obeyed; the text says why and what to write instead."""


@dataclass
class Config:
    """What the command line asks for.

    Args:
        command: of the workers.
        nproc: ranks on this host.
        nnodes, min_nodes: the most and the fewest hosts.
        host, port: where hosts meet.
        max_restarts: starts after the first one.
        join_timeout, last_call, grace: seconds.
    """

    command: list[str]  # ${local_rank} in it is replaced
    nproc: int
    nnodes: int = 1  # at most; they are as many as min_nodes, or with `dynamic` between the two
    min_nodes: int = 1
    dynamic: bool = (
        False  # nodes are numbered in order of arrival, and others may take the place of lost ones
    )
    node_rank: int | None = None  # None: in order of arrival
    is_host: bool | None = None  # None: if `host` is an address of this machine
    host: str = "127.0.0.1"  # where node 0's launcher is met, and the workers' MASTER_ADDR
    port: int | None = None  # node 0's launcher; for one node the workers' MASTER_PORT, None: any free one
    run_id: str = "none"
    role: str = "default"
    max_restarts: int = 0
    join_timeout: float = 600.0  # seconds to wait for min_nodes
    last_call: float = 30.0  # and then for more
    keep_alive: tuple[int, int] = (5, 3)  # seconds between signs of life, and how many may be missed
    log_dir: str | None = None
    redirects: dict[int, int] = field(default_factory=dict)  # local rank -> 1 stdout, 2 stderr, 3 both
    tee: dict[int, int] = field(default_factory=dict)
    shown: set[int] | None = None  # local ranks whose output reaches the console; None: all
    signals: tuple[int, ...] = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT)
    grace: float = 30.0  # seconds from the first signal to SIGKILL
    secret: str = ""


def parser(environ: Mapping[str, str] = os.environ) -> argparse.ArgumentParser:
    """The parser; PET_<NAME> in `environ` is the default of --name.

    Args:
        environ: of the process.
    """
    result = argparse.ArgumentParser(
        prog="warptape-run",
        description="Start a script as several ranks on this host, or as one of several hosts.",
        epilog="Flags are torchrun's; PET_NPROC_PER_NODE=2 and the like set defaults.",
        allow_abbrev=False,
    )

    def add(name: str, text: str, short: str | None = None, flag: bool = False, **more: object) -> None:
        dest = name.replace("-", "_")
        from_environment = environ.get("PET_" + dest.upper())
        names = [f"--{name}"] + ([f"--{dest}"] if dest != name else [])
        if short:
            names.insert(0, short)
        if flag:
            on = bool(from_environment) and from_environment != "0"
            result.add_argument(*names, dest=dest, action="store_true", default=on, help=text)
            return
        if from_environment is not None:
            more["default"] = from_environment  # argparse converts a text as if it were given
        result.add_argument(*names, dest=dest, help=text, **more)  # type: ignore[arg-type]

    add("nnodes", "number of nodes: N, or MIN:MAX (c10d)", default="1")
    add("nproc-per-node", "ranks on this node: a number, auto, cpu or gpu", default="1")
    add("rdzv-backend", "static (node ranks are given) or c10d (in order of arrival)", default="static")
    add("rdzv-endpoint", "HOST[:PORT] where node 0's launcher is met", default="")
    add("rdzv-id", "name of the job", default="none")
    add(
        "rdzv-conf",
        "key=value,...: join_timeout, last_call_timeout, keep_alive_interval, keep_alive_max_attempt",
        default="",
    )
    add("standalone", "one node, nothing shared with other jobs", flag=True)
    add("max-restarts", "start all ranks anew after a failure, at most this often", type=int, default=0)
    add("monitor-interval", "accepted; the launcher waits for events instead", type=float, default=0.1)
    methods = ["spawn", "fork", "forkserver"]
    add("start-method", "accepted; ranks are programs of their own", default="spawn", choices=methods)
    add("role", "name of the workers, in log lines", default="default")
    add("module", "run the script as python -m does", short="-m", flag=True)
    add("no-python", "execute the script itself", flag=True)
    add("run-path", "run the script by runpy.run_path", flag=True)
    add("log-dir", "folder for logs and error files", default=None)
    add("redirects", "1 stdout, 2 stderr, 3 both to files; by local rank as 0:1,1:3", short="-r", default="0")
    add("tee", "as --redirects, and to the console, too", short="-t", default="0")
    add("local-ranks-filter", "show only these local ranks' output on the console: 0,1", default="")
    add("node-rank", "rank of this node (static)", type=int, default=None)
    add("master-addr", "host of node 0 (static)", default="127.0.0.1")
    add("master-port", "port of node 0 (static)", type=int, default=None)
    add("local-addr", "address of this node, for the workers if it is node 0", default=None)
    names = "SIGTERM,SIGINT,SIGHUP,SIGQUIT"
    add(
        "signals-to-handle",
        f"signals that end the job, passed on to the ranks (default {names})",
        default=names,
    )
    grace = environ.get("TORCH_ELASTIC_SHUTDOWN_TIMEOUT", "30")
    add(
        "shutdown-timeout", "seconds from the first signal to SIGKILL (default 30)", type=float, default=grace
    )
    result.add_argument("training_script", help="script, module or program")
    result.add_argument("training_script_args", nargs=argparse.REMAINDER, help="its arguments")
    return result


def configure(argv: Sequence[str] | None, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration of a command line. Raises UsageError; exits as argparse does for unknown flags.

    Args:
        argv: the arguments; those of the process if None.
        environ: of the process.
    """
    return configured(parser(environ).parse_args(argv), environ)


def configured(args: argparse.Namespace, environ: Mapping[str, str] = os.environ) -> Config:
    """The configuration of what `parser` gave. Raises UsageError.

    Args:
        args: parsed.
        environ: of the process.
    """
    config = _configured(args, environ)
    script = args.training_script
    if "${local_rank}" in script or (args.module and not args.run_path):
        return config
    if args.no_python and not args.run_path:
        if shutil.which(script) is None:
            raise UsageError(f"cannot start {script}: there is no such program, or it is not executable")
    elif not os.path.exists(script):
        raise UsageError(f"cannot start {script}: there is no such file; -m runs a module")
    return config


def _configured(args: argparse.Namespace, environ: Mapping[str, str]) -> Config:
    nproc = count_processes(args.nproc_per_node)
    fewest, nnodes = count_nodes(args.nnodes)
    if args.max_restarts < 0:
        raise UsageError(f"--max-restarts: expected 0 or more, got {args.max_restarts}")
    if not 0 <= args.shutdown_timeout < math.inf:
        raise UsageError(f"--shutdown-timeout: expected seconds from 0, got {args.shutdown_timeout}")
    if args.master_port is not None and not 0 <= args.master_port < 65536:
        raise UsageError(f"--master-port: expected a port from 0 to 65535, got {args.master_port}")
    if args.rdzv_backend not in DEFAULT_PORT:
        raise UsageError(f"--rdzv-backend: expected static or c10d, got {args.rdzv_backend}")
    if fewest < nnodes and args.rdzv_backend == "static" and not args.standalone:
        raise UsageError(
            f"--nnodes={args.nnodes}: nodes that come and go have no fixed ranks: add --rdzv-backend=c10d"
        )
    config = Config(
        command=command(args, environ),
        nproc=nproc,
        nnodes=nnodes,
        min_nodes=fewest,
        run_id=args.rdzv_id,
        role=args.role,
        max_restarts=args.max_restarts,
        **rendezvous_conf(args.rdzv_conf),
        log_dir=args.log_dir or None,
        redirects=streams("--redirects", args.redirects, nproc),
        tee=streams("--tee", args.tee, nproc),
        shown=rank_filter(args.local_ranks_filter),
        signals=signal_numbers(args.signals_to_handle),
        grace=args.shutdown_timeout,
        secret=environ.get("WARPTAPE_SECRET", ""),
    )
    if args.standalone:
        config.nnodes = config.min_nodes = 1
        config.run_id = secrets.token_hex(8)
        return config
    endpoint = args.rdzv_endpoint
    static = args.rdzv_backend == "static"
    if not endpoint and static:
        endpoint = args.master_addr if args.master_port is None else f"{args.master_addr}:{args.master_port}"
    config.host, config.port = split_endpoint(endpoint) if endpoint else ("127.0.0.1", None)
    if static:
        config.node_rank = args.node_rank or 0
    if nnodes == 1:
        config.node_rank = 0
        return config
    config.dynamic = not static
    if not endpoint:
        raise UsageError("several nodes need --rdzv-endpoint HOST:PORT, the same on all of them")
    if config.node_rank is not None and not 0 <= config.node_rank < nnodes:
        raise UsageError(f"--node-rank: expected 0 to {nnodes - 1}, got {config.node_rank}")
    config.port = config.port or DEFAULT_PORT[args.rdzv_backend]
    if args.local_addr and config.node_rank == 0:
        config.host = args.local_addr
    return config


def command(args: argparse.Namespace, environ: Mapping[str, str]) -> list[str]:
    """The workers' command line.

    Args:
        args: parsed.
        environ: of the process.

    Raises: UsageError for flags that exclude each other.
    """
    rest = list(args.training_script_args)
    if rest[:1] == ["--"]:
        rest = rest[1:]
    if args.no_python and args.module and not args.run_path:
        raise UsageError("--no-python and --module exclude each other: a module needs python")
    python = [environ.get("PYTHON_EXEC", sys.executable), "-u"]
    if args.run_path:
        return [*python, "-c", _RUN_PATH, args.training_script, *rest]
    if args.no_python:
        return [args.training_script, *rest]
    if "warptape.torch._finder" in sys.modules:  # torch means warptape here: in the workers too
        python += ["-m", "warptape.torch"]
    return [*python, *(["-m"] if args.module else []), args.training_script, *rest]


def count_processes(text: str) -> int:
    """Ranks per node: a number, `cpu` (processors this process may use), `gpu`, `auto` (gpu, else cpu).

    Args:
        text: of --nproc-per-node.

    Raises: UsageError for anything else.
    """
    if text in ("auto", "gpu"):
        from warptape import cuda

        count = cuda.device_count() if cuda.is_available() else 0
        if count:
            return count
        if text == "gpu":
            raise UsageError(
                "--nproc-per-node=gpu: no CUDA device here; `python -m warptape.doctor` says more"
            )
    if text in ("auto", "cpu"):
        return len(os.sched_getaffinity(0))
    if _is_number(text) and int(text) > 0:
        return int(text)
    raise UsageError(f"--nproc-per-node: expected a positive number, auto, cpu or gpu, got {text:.50}")


def _is_number(text: str) -> bool:
    return text.isdecimal() and len(text) < 7


def count_nodes(text: str) -> tuple[int, int]:
    """(fewest, most) nodes of "4" or "2:4".

    Args:
        text: of --nnodes.

    Raises: UsageError for anything else.

    >>> from warptape.distributed.launcher.arguments import count_nodes
    >>> count_nodes("2:4")
    (2, 4)
    """
    low, colon, high = text.partition(":")
    if _is_number(low) and (_is_number(high) or not colon) and 0 < int(low) <= int(high or low):
        return int(low), int(high or low)
    raise UsageError(f"--nnodes: expected N, or MIN:MAX with MIN from 1 to MAX, got {text:.50}")


def streams(flag: str, text: str, nproc: int) -> dict[int, int]:
    """Local rank -> 0 to 3, of "3" or of "0:1,1:3".

    Args:
        flag: names the flag in the error.
        text: its value; 1 is standard output, 2 standard error, 3 both.
        nproc: ranks on this host.
    """
    try:
        if ":" not in text:
            result = dict.fromkeys(range(nproc), int(text))
        else:
            pairs = [item.split(":") for item in text.split(",")]
            result = {int(rank): int(which) for rank, which in pairs}
        if all(0 <= which <= 3 for which in result.values()):
            return result
    except ValueError:
        pass
    raise UsageError(f"{flag}: expected 0 to 3, or LOCAL_RANK:0-3 with commas between, got {text}")


def rank_filter(text: str) -> set[int] | None:
    """Local ranks of "0,1"; None for all.

    Args:
        text: of --local-ranks-filter.
    """
    if not text:
        return None
    try:
        return {int(item) for item in text.split(",")}
    except ValueError:
        raise UsageError(f"--local-ranks-filter: expected numbers with commas between, got {text}") from None


def signal_numbers(text: str) -> tuple[int, ...]:
    """Numbers of "SIGTERM,SIGINT".

    Args:
        text: of --signals-to-handle.

    Raises: UsageError for names that are none, and for signals that cannot be handled.
    """
    try:
        numbers = tuple(signal.Signals[name.strip()] for name in text.split(",") if name.strip())
    except KeyError as name:
        raise UsageError(f"--signals-to-handle: there is no signal {name}") from None
    for number in {signal.SIGKILL, signal.SIGSTOP}.intersection(numbers):
        raise UsageError(f"--signals-to-handle: nothing can handle {number.name}; leave it out")
    return numbers


def rendezvous_conf(conf: str) -> dict[str, Any]:
    """Fields of Config, of torchrun's --rdzv-conf; its other keys mean nothing here.

    Args:
        conf: "key=value" pairs with commas between.
    """
    pairs = dict(item.partition("=")[::2] for item in conf.split(",") if item)

    def number(key: str, default: float, least: float = 0.0) -> float:
        try:
            value = float(pairs.get(key, default))
        except ValueError:
            value = -1.0
        if not least <= value < 1e9:
            raise UsageError(f"--rdzv-conf: {key}: expected a number from {least:g}, got {pairs[key]}")
        return value

    result: dict[str, Any] = {
        "join_timeout": number("join_timeout", number("timeout", Config.join_timeout)),
        "last_call": number("last_call_timeout", Config.last_call),
        # The kernel counts in whole seconds.
        "keep_alive": (
            min(int(number("keep_alive_interval", Config.keep_alive[0], 1)), 32767),
            min(int(number("keep_alive_max_attempt", Config.keep_alive[1], 1)), 127),
        ),
    }
    if "is_host" in pairs:
        result["is_host"] = pairs["is_host"].lower() in ("1", "true", "t", "yes", "y")
    return result


def split_endpoint(text: str) -> tuple[str, int | None]:
    """(host, port or None) of HOST, HOST:PORT, [IPV6] or [IPV6]:PORT.

    Args:
        text: of --rdzv-endpoint.

    >>> from warptape.distributed.launcher.arguments import split_endpoint
    >>> split_endpoint("[::1]:29500")
    ('::1', 29500)
    """
    host, bracket, rest = text.partition("]")
    if bracket:
        host, port = host.removeprefix("["), rest.removeprefix(":")
    elif text.count(":") > 1:
        host, port = text, ""
    else:
        host, _, port = text.partition(":")
    if not host or (port and not (_is_number(port) and int(port) < 65536)):
        raise UsageError(f"--rdzv-endpoint: expected HOST:PORT, got {text}")
    return host, int(port) if port and int(port) else None
