"""Every block of docs/guides/serving.md runs: `sh` by bash, `python` in one namespace, in order, in a
folder with a model `Llama-3.1-8B`. `pip install` is left out, `warptape serve` goes on beside the rest."""

import contextlib
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from serving_models import get, write_llm
from time_limits import seconds

PAGE = Path(__file__).parents[3] / "docs/guides/serving.md"
WARPTAPE = f'warptape() {{ "{sys.executable}" -m warptape.inference "$@"; }}\n'


def blocks():
    return re.findall(r"^```(sh|python)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)


def free_ports():
    """Two that are free, for 8000 and 8001."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(2)]
        return [str(s.getsockname()[1]) for s in sockets]


@pytest.mark.skipif(not shutil.which("curl") or not shutil.which("bash"), reason="needs curl and bash")
def test_every_block_runs(tmp_path, monkeypatch):
    pytest.importorskip("openai")
    paths = [str(Path(each).resolve()) for each in os.environ.get("PYTHONPATH", "").split(os.pathsep) if each]
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))  # from another folder, too
    monkeypatch.chdir(tmp_path)
    write_llm(tmp_path / "Llama-3.1-8B", max_position_embeddings=1024)
    http, grpc = free_ports()
    namespace, servers, ran = {}, [], 0
    try:
        for language, text in blocks():
            text = text.replace("8000", http).replace("8001", grpc)
            if language == "python":
                exec(compile(text, str(PAGE), "exec"), namespace)
            else:
                lines = [line for line in text.splitlines() if not line.startswith("pip install")]
                begun = [line for line in lines if re.match(r"warptape serve \w+ --", line)]
                rest = WARPTAPE + "set -e\n" + "\n".join(line for line in lines if line not in begun)
                done = subprocess.run(
                    ["bash", "-c", rest], capture_output=True, text=True, timeout=seconds(60)
                )
                assert done.returncode == 0, done.stderr
                assert '"error"' not in done.stdout, done.stdout
                for line in begun:
                    servers.append(subprocess.Popen(["bash", "-c", WARPTAPE + line], start_new_session=True))
                    end = time.monotonic() + seconds(60)
                    while True:
                        with contextlib.suppress(OSError):
                            if get(f"http://127.0.0.1:{http}/readyz", "secret")[0] == 200:
                                break
                        assert time.monotonic() < end and servers[-1].poll() is None
                        time.sleep(0.05)
            ran += 1
    finally:
        for server in servers:
            os.killpg(server.pid, signal.SIGKILL)
            server.wait()
    assert ran >= 5
