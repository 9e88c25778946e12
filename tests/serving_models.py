"""Small models and repositories for the tests of warptape.serve, and processes that serve them."""

from __future__ import annotations

import dataclasses
import json
import re
import signal
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

import warptape as wt
from model_configs import BERT, SMALL
from time_limits import seconds
from warptape.models import Decoder, DecoderConfig, Encoder

EOS = 256
CONTEXT = 512
TEMPLATE = (
    "{% if tools %}T{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_tokenizer(folder: Path) -> None:
    """Bytes as tokens, 256 the end."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    text = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    text.add_special_tokens(["<end>"])
    text.save(str(folder / "tokenizer.json"))
    config = {"chat_template": TEMPLATE, "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_llm(folder: Path, seed: int = 0, **more: Any) -> Path:
    """A Llama with bytes for tokens and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    wt.manual_seed(seed)
    values = {**SMALL, "vocab_size": 257, "max_position_embeddings": CONTEXT, "eos_token_id": EOS, **more}
    Decoder(DecoderConfig(**values)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_encoder(folder: Path) -> Path:
    """A BERT with bytes for tokens, whose vectors are means."""
    folder.mkdir(parents=True, exist_ok=True)
    wt.manual_seed(0)
    config = dataclasses.replace(BERT, vocab_size=257, max_position_embeddings=64)
    Encoder(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_repository(folder: Path) -> Path:
    """Models `llm` and `bert`, a version of each. The cache is small, and soon full."""
    write_llm(folder / "llm" / "1")
    config = {"parameters": {"kv_cache_memory_bytes": 8 << 20}}
    (folder / "llm" / "config.json").write_text(json.dumps(config))
    write_encoder(folder / "bert" / "1")
    return folder


def get(url: str, token: str | None = None, timeout: float = 10) -> tuple[int, bytes]:
    """(status, body)"""
    headers = {} if token is None else {"Authorization": f"Bearer {token}"}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=timeout) as reply:
            return reply.status, reply.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


class Process:
    """`python -m warptape.serve`, ready to answer; as a context manager it is ended.

    Attributes:
        log: the lines of the access log.
    """

    def __init__(self, repository: Path, *flags: Any, token: str | None = "secret") -> None:
        command = [sys.executable, "-m", "warptape.serve", str(repository), "--port", "0", *map(str, flags)]
        if token is not None:
            command += ["--token", token]
        self.token = token
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.log: list[dict[str, Any]] = []
        self.errors: list[str] = []
        first = self.process.stderr.readline()
        found = re.search(r"http://\S+", first)
        assert found, first + self.process.stderr.read()
        self.url = found[0]
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for each in self._threads:
            each.start()
        end = time.monotonic() + seconds(60)
        while get(self.url + "/readyz", token)[0] != 200:
            assert time.monotonic() < end and self.process.poll() is None, self.errors
            time.sleep(0.02)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.log.append(json.loads(line))

    def worker_pids(self) -> list[int]:
        """Of the workers that run now."""
        rows = json.loads(get(self.url + "/status.json", self.token)[1])["models"]
        return [pid for model in rows for v in model["versions"] for pid in v["pids"] if pid]

    def end(self) -> int:
        """Drains; the exit status."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(seconds(60))
        for each in self._threads:
            each.join(seconds(10))
        return status

    def __enter__(self) -> Process:
        return self

    def __exit__(self, *error: Any) -> None:
        self.process.kill()
        self.process.wait()
