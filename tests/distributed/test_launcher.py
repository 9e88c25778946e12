"""One node under `python -m warptape.distributed.run`: what ranks find, what is logged, how all ends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from launched import LAUNCHER, PACKAGE, environ, launch, lines, started, until
from time_limits import seconds
from warptape.distributed.elastic.multiprocessing.errors import ProcessFailure, exit_code, root_cause

# print writes the text and the end of the line apart: lines of several ranks would mix.
HEAD = """
import json, os, signal, sys, time
rank = int(os.environ['RANK'])
def say(*words):
    sys.stdout.write(' '.join(map(str, words)) + chr(10))
"""
RECORD = "from warptape.distributed.elastic.multiprocessing.errors import record, record_uncaught\n"


@pytest.fixture
def script(tmp_path: Path):
    def write(text: str, name: str = "script.py") -> str:
        path = tmp_path / name
        path.write_text(HEAD + text)
        return str(path)

    return write


SHOW = """
say(json.dumps({'argv': sys.argv[1:], 'main': __name__, **os.environ}))
"""


def test_environment_is_torchruns(script) -> None:
    code, out, err = launch("--nproc-per-node=2", "--max-restarts=3", "--role=x", script(SHOW), "-a", "--b=1")
    assert code == 0, err
    ranks = sorted(lines(out), key=lambda rank: rank["RANK"])
    common = {
        "WORLD_SIZE": "2",
        "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0",
        "GROUP_WORLD_SIZE": "1",
        "ROLE_WORLD_SIZE": "2",
        "ROLE_NAME": "x",
        "MASTER_ADDR": "127.0.0.1",
        "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "none",
        "OMP_NUM_THREADS": "1",
        "argv": ["-a", "--b=1"],
        "main": "__main__",
    }
    assert len(ranks) == 2
    for number, rank in enumerate(ranks):
        assert {name: rank[name] for name in common} == common
        assert [rank[name] for name in ("RANK", "LOCAL_RANK", "ROLE_RANK")] == [str(number)] * 3
        assert "WARPTAPE_SECRET" not in rank and "WARPTAPE_FLIGHT_DIR" not in rank
        assert 0 < int(rank["MASTER_PORT"]) < 65536
    assert ranks[0]["WARPTAPE_JOB"] == ranks[1]["WARPTAPE_JOB"]
    assert ranks[0]["MASTER_PORT"] == ranks[1]["MASTER_PORT"]
    assert ranks[0]["TORCHELASTIC_ERROR_FILE"] != ranks[1]["TORCHELASTIC_ERROR_FILE"]


def test_ways_to_name_the_program(script, tmp_path: Path) -> None:
    path = script(SHOW, "shown.py")
    for way in (["--run-path", path, "1"], ["-m", "shown", "1"]):
        code, out, err = launch(*way, PYTHONPATH=f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}:{PACKAGE}")
        assert (code, lines(out)[0]["argv"], lines(out)[0]["main"]) == (0, ["1"], "__main__"), err
    code, out, _ = launch("--no-python", "--nproc_per_node=2", "/bin/echo", "rank", "${local_rank}")
    assert (code, sorted(out.split("\n"))) == (0, ["", "rank 0", "rank 1"])


def test_two_jobs_at_a_time_share_nothing(script) -> None:
    path = script(SHOW + "time.sleep(0.3)")
    with started([*LAUNCHER, path]) as one, started([*LAUNCHER, path]) as other:
        first, second = (lines(job.finish()[1])[0] for job in (one, other))
    for name in ("WARPTAPE_JOB", "MASTER_PORT"):
        assert first[name] != second[name]


@pytest.mark.parametrize(
    ("end", "code", "words"),
    [
        ("pass", 0, ""),
        ("sys.exit(7)", 7, "rank 1 failed first: exit code 7 (local rank 1, pid "),
        ("os.kill(os.getpid(), 9)", 137, "rank 1 failed first: killed by SIGKILL (local rank 1, pid "),
        ("raise ValueError('boom')", 1, "no traceback: decorate the main function"),
    ],
)
def test_exit_code_is_the_first_failures(script, end: str, code: int, words: str) -> None:
    got, _, err = launch(
        "--nproc-per-node=2", script(f"if rank == 1:\n    {end}\nelif {code}: time.sleep(60)")
    )
    assert got == code
    assert words in err
    assert "rank 0" not in err  # it was only stopped


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["--no-python", "/no/such/program"], 2, "cannot start /no/such/program: there is no such program"),
        (
            ["--no-python", "/etc/passwd"],
            2,
            "cannot start /etc/passwd: there is no such program, or it is not",
        ),
        (["no_such_script.py"], 2, "cannot start no_such_script.py: there is no such file"),
        (["--log-dir=/proc/nope", "x.py"], 2, "--log-dir: no logs can be written to /proc/nope"),
        (["--log-dir=/etc/passwd", "x.py"], 2, "--log-dir: no logs can be written to /etc/passwd"),
        (["--log-dir=/etc/passwd/x", "x.py"], 2, "--log-dir: no logs can be written to /etc/passwd/x"),
        ([f"--log-dir=/tmp/{'x' * 300}", "x.py"], 2, "File name too long"),
        (["--signals-to-handle=SIGKILL", "x.py"], 2, "nothing can handle SIGKILL"),
        (["--shutdown-timeout=nan", "x.py"], 2, "--shutdown-timeout: expected seconds from 0"),
        (["--shutdown-timeout=-1", "x.py"], 2, "--shutdown-timeout: expected seconds from 0"),
        (["--master-port=70000", "x.py"], 2, "--master-port: expected a port from 0 to 65535"),
        (["--rdzv-conf=join_timeout=nan", "x.py"], 2, "join_timeout: expected a number from 0"),
        ([f"--nproc-per-node={'9' * 5000}", "x.py"], 2, "--nproc-per-node: expected a positive number"),
        (["--nnodes=1:4", "x.py"], 2, "nodes that come and go have no fixed ranks: add --rdzv-backend=c10d"),
        (["--nnodes=4:1", "x.py"], 2, "expected N, or MIN:MAX with MIN from 1 to MAX, got 4:1"),
        (["--nproc-per-node=two", "x.py"], 2, "expected a positive number, auto, cpu or gpu, got two"),
        (["--rdzv-backend=etcd", "x.py"], 2, "expected static or c10d, got etcd"),
        (["--nnodes=2", "--rdzv-backend=c10d", "x.py"], 2, "several nodes need --rdzv-endpoint HOST:PORT"),
        (["--tee=5", "x.py"], 2, "--tee: expected 0 to 3"),
        (["--nnodes=2", "--master-addr=127.0.0.1", "x.py"], 2, "secrets.token_hex(32)"),
        (["--no-such-flag", "x.py"], 2, "unrecognized arguments"),
    ],
)
def test_what_cannot_be_done_is_said(script, arguments: list[str], code: int, words: str) -> None:
    path = script("")
    got, _, err = launch(*(path if each == "x.py" else each for each in arguments))
    assert got == code
    assert words in err
    assert "Traceback" not in err and (len(err.splitlines()) == 1 or "usage:" in err)


def test_root_cause_is_shown_first(script) -> None:
    """The earliest error file counts, not the first process to end."""
    code, _, err = launch(
        "--nproc-per-node=3",
        script(
            RECORD
            + """
import atexit, pathlib
told = pathlib.Path(__file__).with_name('told')
@record
def main():
    if rank == 1:
        atexit.register(time.sleep, 30)  # tells at once, ends late
        atexit.register(told.touch)
        raise ValueError('the cause')
    while rank == 2 or not told.exists():
        time.sleep(0.05)
    raise RuntimeError('peer lost')
main()
"""
        ),
    )
    report = err[err.index("warptape-run:") :]
    assert code == 1
    assert (
        report.index("rank 1 failed first") < report.index("in main") < report.index("ValueError: the cause")
    )
    assert report.index("ValueError: the cause") < report.index("rank 0, 0.")
    assert "later: exit code 1: RuntimeError: peer lost" in report
    assert "rank 2" not in report


@pytest.mark.parametrize("end", ["os.kill(os.getpid(), 9)", "os._exit(7)"])
def test_who_was_missed_failed_before_who_missed_it(script, end: str) -> None:
    """The kernel may tell of an end only after others told that they missed the rank."""
    code, _, err = launch(
        "--nproc-per-node=2",
        script(
            f"""
import warptape.distributed as dist
dist.init_process_group()
if rank == 1:
    time.sleep(0.5)
    {end}
try:
    dist.barrier()
except RuntimeError as error:
    raise ValueError("the training failed") from error
"""
        ),
    )
    assert code == (137 if "kill" in end else 7)
    assert f"rank 1 failed first: {'killed by SIGKILL' if 'kill' in end else 'exit code 7'}" in err


def test_the_order_of_failures() -> None:
    def failure(rank: int, time: float, exitcode: int = 1, **more: Any) -> ProcessFailure:
        return ProcessFailure(rank, rank, 100 + rank, exitcode, "host", time, **more)

    follows = failure(0, 1.0, message="DistBackendError: rank 1 has died", follows=True)
    killed, own = failure(1, 2.0, -9), failure(2, 3.0, message="ValueError: x")
    assert root_cause([follows, killed]) is killed and exit_code(killed) == 137
    assert root_cause([follows, failure(3, 4.0, 7)]).rank == 3
    assert root_cause([failure(3, 1.0, 7), killed]) is killed
    assert root_cause([own, killed, follows]) is killed
    assert root_cause([follows, failure(4, 0.5, message="DistBackendError: y", follows=True)]).rank == 4


def test_error_files_of_any_content() -> None:
    for text in ("", "[" * 100_000, '{"message": 3}', '{"message": {"message": [1], "extraInfo": 7}}', "\0x"):
        message, trace, follows = ProcessFailure.parse(text)
        assert isinstance(message, str) and isinstance(trace, str) and follows is False
    whole = ProcessFailure(1, 1, 2, 3, "h", 4.0, "m").to_json()
    assert ProcessFailure.from_json(whole).rank == 1
    for name, value in (("rank", "1"), ("exitcode", None), ("time", float("nan")), ("message", 3)):
        with pytest.raises(TypeError):
            ProcessFailure.from_json(whole | {name: value})


def test_user_signals_end_no_rank(script) -> None:
    """Neither before a rank has a handler nor after init_process_group; a handler gets them."""
    text = """
got = []
if rank == 1:
    signal.signal(signal.SIGUSR1, lambda number, frame: got.append(number))
say("ready")
time.sleep(1)
import warptape.distributed as dist
dist.init_process_group()
say("joined")
while rank == 1 and len(got) < 2: time.sleep(0.01)
dist.barrier()
say(rank, len(got))
"""
    with started([*LAUNCHER, "--nproc-per-node=2", script(text)]) as job:
        for word in ("ready\n", "joined\n"):
            for _ in range(2):
                assert job.process.stdout.readline() == word
            for number in (signal.SIGUSR1, signal.SIGUSR2):
                os.kill(job.pid, number)
        code, out, _ = job.finish()
        assert code == 0 and sorted(out.splitlines()) == ["0 0", "1 2"]


def test_uncaught_exceptions_are_recorded_without_the_decorator(script) -> None:
    code, _, err = launch(script(RECORD + "record_uncaught(); record_uncaught()\nraise ValueError('bare')"))
    assert code == 1
    assert err.count("ValueError: bare") == 2  # by the rank itself, and in the summary
    assert "no traceback" not in err


def test_log_folders_are_torchruns(script, tmp_path: Path) -> None:
    text = "say('out', rank)\nsys.stderr.write(f'err {rank}' + chr(10))\n"
    path = script(text + RECORD + "record(lambda: 1 // 0)() if rank == 1 else time.sleep(60)")
    code, out, err = launch(
        "--nproc-per-node=2", "--log-dir", tmp_path / "logs", "--rdzv-id=job/7", "-r=0:3", "-t=1:3", path
    )
    assert code == 1
    (folder,) = (tmp_path / "logs").iterdir()
    assert folder.name.startswith("job_7_")
    attempt = folder / "attempt_0"
    files = sorted(str(file.relative_to(attempt)) for file in attempt.rglob("*") if file.is_file())
    assert files == ["0/stderr.log", "0/stdout.log", "1/error.json", "1/stderr.log", "1/stdout.log"]
    for rank in range(2):
        assert (attempt / f"{rank}/stdout.log").read_text() == f"out {rank}\n"
        assert (attempt / f"{rank}/stderr.log").read_text().startswith(f"err {rank}\n")
    assert out == "[default1]:out 1\n"
    assert "[default1]:err 1\n" in err and "err 0" not in err
    message = json.loads((attempt / "1/error.json").read_text())["message"]
    assert message["message"] == "ZeroDivisionError: integer division or modulo by zero"
    assert "1 // 0" in message["extraInfo"]["py_callstack"]
    assert int(message["extraInfo"]["timestamp"]) > 1.6e9


def test_tee_keeps_lines_whole_and_all_of_them(script, tmp_path: Path) -> None:
    path = script("for i in range(2000): say(rank, i, 'x' * 200)\nsys.stdout.write('end')")
    code, out, _ = launch("--nproc-per-node=2", "--role=r", "-t=1", "--log-dir", tmp_path / "logs", path)
    assert code == 0
    for rank in range(2):
        mine = [line for line in out.splitlines() if line.startswith(f"[r{rank}]:")]
        assert mine == [f"[r{rank}]:{rank} {i} {'x' * 200}" for i in range(2000)] + [f"[r{rank}]:end"]
    assert len(out.splitlines()) == 4002


def test_filter_shows_some_ranks_only(script, tmp_path: Path) -> None:
    path = script("say('rank', rank)")
    code, out, _ = launch("--nproc-per-node=3", "--local-ranks-filter=1", path)
    assert (code, out) == (0, "rank 1\n")
    code, out, _ = launch(
        "--nproc-per-node=2", "--local-ranks-filter=0", "-t=3", "--log-dir", tmp_path / "logs", path
    )
    assert (code, out) == (0, "[default0]:rank 0\n")
    assert sorted(log.read_text() for log in tmp_path.rglob("stdout.log")) == ["rank 0\n", "rank 1\n"]


def test_all_ranks_restart_and_soon(script, tmp_path: Path) -> None:
    path = script(
        "open(sys.argv[1] + f'/{rank}', 'a').write(f'{time.time()} ')\n"
        "count = int(os.environ['TORCHELASTIC_RESTART_COUNT'])\n"
        "if count == 2: sys.exit()\n"
        "if rank == 0: time.sleep(60)\n"
        "time.sleep(0.1); open(sys.argv[1] + '/failed', 'a').write(f'{time.time()} '); sys.exit(5)\n"
    )
    times = tmp_path / "times"
    times.mkdir()
    code, _, err = launch("--nproc-per-node=2", "--max-restarts=2", path, times)
    assert code == 0
    assert "restarting (1 of 2)" in err and "restarting (2 of 2)" in err
    began = [[float(word) for word in (times / str(rank)).read_text().split()] for rank in range(2)]
    failed = [float(word) for word in (times / "failed").read_text().split()]
    assert [len(began[0]), len(began[1]), len(failed)] == [3, 3, 2]
    overhead = [max(began[0][i + 1], began[1][i + 1]) - failed[i] for i in range(2)]
    assert max(overhead) < seconds(1.0)


def test_restarts_end(script, tmp_path: Path) -> None:
    path = script("say('attempt', os.environ['TORCHELASTIC_RESTART_COUNT'])\nsys.exit(3)")
    code, _, err = launch("--max-restarts=1", "-r=1", "--log-dir", tmp_path / "logs", path)
    assert code == 3
    assert err.count("rank 0 failed first") == 2
    assert [(p.parent.parent.name, p.read_text()) for p in sorted(tmp_path.rglob("stdout.log"))] == [
        ("attempt_0", "attempt 0\n"),
        ("attempt_1", "attempt 1\n"),
    ]


CATCH = """
def caught(number, frame):
    say('caught', number)
    sys.exit(0)
signal.signal(signal.{name}, caught)
say('ready')
while True: time.sleep(0.01)
"""


@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_signals_reach_the_ranks(script, name: str) -> None:
    number = getattr(signal, name)
    with started([*LAUNCHER, "--nproc-per-node=2", script(CATCH.format(name=name))]) as job:
        for _ in range(2):
            assert job.process.stdout.readline() == "ready\n"
        os.kill(job.pid, number)
        code, out, _ = job.finish()
        assert (code, out) == (128 + number, f"caught {int(number)}\n" * 2)
        assert job.left() == []


def test_user_signals_are_passed_on_and_end_nothing(script) -> None:
    text = (
        "got = []\nsignal.signal(signal.SIGUSR2, lambda number, frame: got.append('dump'))\nsay('ready')\n"
        "while not got: time.sleep(0.01)\nsay(got[0])"
    )
    with started([*LAUNCHER, script(text)]) as job:
        assert job.process.stdout.readline() == "ready\n"
        os.kill(job.pid, signal.SIGUSR2)
        assert job.finish()[:2] == (0, "dump\n")


@pytest.mark.parametrize("state", ["deaf", "stopped"])
def test_ranks_that_do_not_listen_are_killed(script, state: str) -> None:
    deaf = "signal.signal(signal.SIGTERM, signal.SIG_IGN)\nsay('ready')\n"
    rest = "time.sleep(60)" if state == "deaf" else "os.kill(os.getpid(), signal.SIGSTOP); time.sleep(60)"
    with started([*LAUNCHER, "--shutdown-timeout=0.3", script(deaf + rest)]) as job:
        assert job.process.stdout.readline() == "ready\n"
        time.sleep(0.1)
        begin = time.monotonic()
        os.kill(job.pid, signal.SIGTERM)
        assert job.finish()[0] == 128 + signal.SIGTERM
        assert 0.25 < time.monotonic() - begin < seconds(3)
        assert job.left() == []


def test_ctrl_c_of_a_job_that_a_script_began_with_ampersand(script) -> None:
    """A shell without job control has such a job ignore SIGINT."""
    with started(
        ["sh", "-c", 'trap "" INT; exec "$@"', "sh", *LAUNCHER, script("say('ready')\ntime.sleep(60)")]
    ) as job:
        assert job.process.stdout.readline() == "ready\n"
        os.kill(job.pid, signal.SIGINT)
        assert job.finish(20)[0] == 128 + signal.SIGINT
        assert job.left() == []


def test_second_ctrl_c_does_not_wait(script) -> None:
    text = "signal.signal(signal.SIGINT, signal.SIG_IGN)\nsay('ready')\ntime.sleep(60)"
    with started([*LAUNCHER, script(text)]) as job:
        assert job.process.stdout.readline() == "ready\n"
        os.kill(job.pid, signal.SIGINT)
        time.sleep(0.3)
        assert job.process.poll() is None
        os.kill(job.pid, signal.SIGINT)
        assert job.finish(5)[0] == 128 + signal.SIGINT


# A rank with children of every kind: of multiprocessing, a shell, a shell's, all of them deaf to SIGTERM.
FAMILY = """
import multiprocessing, subprocess
signal.signal(signal.SIGTERM, signal.SIG_IGN)
context = multiprocessing.get_context('fork')
child = context.Process(target=time.sleep, args=(60,))
child.start()
subprocess.Popen(['sh', '-c', 'trap "" TERM; sleep 60 & sleep 60'])
time.sleep(0.1)
say('ready')
"""


def test_kill_9_of_the_launcher_leaves_nothing(script, tmp_path: Path) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    name = f"warptape/test-{os.getpid()}"  # of an abstract socket, as the ranks meet at
    listen = f"import socket\nif rank == 0: (s := socket.socket(socket.AF_UNIX)).bind(chr(0) + {name!r})\n"
    path = script(listen + FAMILY + "time.sleep(60)")
    with started([*LAUNCHER, "--nproc-per-node=2", path], TMPDIR=str(temporary)) as job:
        for _ in range(2):
            assert job.process.stdout.readline() == "ready\n"
        assert len(job.left()) >= 2 + 2 * 4 + 1  # launcher, guard, and two families
        assert name in Path("/proc/net/unix").read_text()
        os.kill(job.pid, signal.SIGKILL)
        assert until(lambda: job.left() == [], 1.0) < seconds(1.0)
        assert list(temporary.iterdir()) == []
        assert name not in Path("/proc/net/unix").read_text()


def test_children_of_a_killed_rank_end_too(script) -> None:
    path = script(FAMILY + "os.kill(os.getpid(), 9) if rank else time.sleep(60)")
    code, _, err = launch("--nproc-per-node=2", path, TORCH_ELASTIC_SHUTDOWN_TIMEOUT="0.2")
    assert (code, "rank 1 failed first: killed by SIGKILL" in err) == (137, True)


def test_what_a_rank_leaves_running_ends_with_the_job(script) -> None:
    code, out, _ = launch("-t=1", script("import subprocess\nsubprocess.Popen(['sleep', '60'])\nsay('done')"))
    assert (code, out) == (0, "[default0]:done\n")


def test_killed_guard_does_not_matter(script) -> None:
    """Then the kernel's signal ends the ranks."""
    with started([*LAUNCHER, "--nproc-per-node=2", script("say('ready')\ntime.sleep(60)")]) as job:
        for _ in range(2):
            assert job.process.stdout.readline() == "ready\n"
        (guard,) = [p for p in job.left() if Path(f"/proc/{p}/comm").read_text() == "warptape-guard\n"]
        os.kill(guard, signal.SIGKILL)
        os.kill(job.pid, signal.SIGKILL)
        until(lambda: job.left() == [], 1.0)


def test_logs_without_a_folder_go_to_a_temporary_one(script, tmp_path: Path) -> None:
    code, out, err = launch("-r=3", script("say('kept')"), TMPDIR=str(tmp_path))
    assert (code, out) == (0, "")
    (log,) = tmp_path.glob("warptape_*/none_*/attempt_0/0/stdout.log")
    assert log.read_text() == "kept\n"
    assert f"logs are in {log.parents[2]}" in err


BY_ARGUMENTS = """
import sys
from warptape.distributed import run
from warptape.distributed.elastic.multiprocessing.errors import ChildFailedError
args = run.get_args_parser().parse_args(['--nproc-per-node=2', *sys.argv[1:]])
try:
    assert run.run(args) == 0
except ChildFailedError as error:
    sys.exit(f'{error.code}: {error}')
"""


def test_run_takes_what_the_parser_gives(script, tmp_path: Path) -> None:
    caller = tmp_path / "caller.py"
    caller.write_text(BY_ARGUMENTS)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, str(caller), *arguments]
        return subprocess.run(command, env=environ(), capture_output=True, text=True, timeout=seconds(60))

    done = run(script("say(rank, *sys.argv[1:])"), "x")
    assert (done.returncode, sorted(done.stdout.split("\n"))) == (0, ["", "0 x", "1 x"]), done.stderr
    failed = run(script("sys.exit(3)"))
    assert failed.returncode == 1 and "failed: exit code 3" in failed.stderr
