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

import numpy as np
import warptape as wt
from model_configs import BERT, LLAVA, SMALL
from safetensors.numpy import load_file, save_file
from time_limits import seconds
from warptape.models import Decoder, DecoderConfig, Encoder, EncoderConfig
from warptape.models.llava import Llava

EOS = 256
CONTEXT = 512
TEMPLATE = (
    "{% if tools %}T{{ tools | tojson }}\n{% endif %}"
    "{% for m in messages %}{{ m.role }}:{{ m.content }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


SEEING = (  # of a model with images
    "{% for m in messages %}{{ m.role }}:{% for p in m.content %}"
    "{% if p.type == 'image' %}<image>{% else %}{{ p.text }}{% endif %}{% endfor %}{{ '\\n' }}{% endfor %}"
    "{% if add_generation_prompt %}assistant:{% endif %}"
)


def write_tokenizer(folder: Path, *special: str, template: str = TEMPLATE) -> None:
    """Bytes as tokens, 256 the end, and other special ones behind it."""
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers

    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    text = tokenizers.Tokenizer(models.BPE({c: i for i, c in enumerate(letters)}, []))
    text.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    text.decoder = decoders.ByteLevel()
    text.add_special_tokens(["<end>", *special])
    text.save(str(folder / "tokenizer.json"))
    config = {"chat_template": template, "eos_token": "<end>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))


def write_llm(folder: Path, seed: int = 0, **more: Any) -> Path:
    """A Llama with bytes for tokens and a chat template."""
    folder.mkdir(parents=True, exist_ok=True)
    wt.manual_seed(seed)
    values = {**SMALL, "vocab_size": 257, "max_position_embeddings": CONTEXT, "eos_token_id": EOS, **more}
    Decoder(DecoderConfig(**values)).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_llava(folder: Path, template: str = SEEING) -> Path:
    """A LLaVA with bytes for tokens, whose images have 20 x 20 pixels."""
    folder.mkdir(parents=True, exist_ok=True)
    wt.manual_seed(0)
    sizes = {"vocab_size": 258, "max_position_embeddings": CONTEXT, "eos_token_id": EOS}
    text = dataclasses.replace(LLAVA.text, **sizes)
    Llava(dataclasses.replace(LLAVA, text=text, image_token_id=257)).save_pretrained(folder)
    write_tokenizer(folder, "<image>", template=template)
    return folder


def write_adapter(folder: Path, model: Path, seed: int = 1) -> Path:
    """A PEFT folder for the Llama in a folder."""
    folder.mkdir()
    rng, tensors = np.random.default_rng(seed), {}
    for name, weight in load_file(str(model / "model.safetensors")).items():
        if name.endswith(("q_proj.weight", "down_proj.weight")):
            at = "base_model.model." + name.removesuffix(".weight")
            rows, columns = weight.shape
            tensors[at + ".lora_A.weight"] = rng.normal(size=(4, columns)).astype(np.float32)
            tensors[at + ".lora_B.weight"] = rng.normal(size=(rows, 4)).astype(np.float32)
    assert tensors
    save_file(tensors, str(folder / "adapter_model.safetensors"))
    settings = {"peft_type": "LORA", "lora_alpha": 8, "r": 4, "target_modules": ["q_proj", "down_proj"]}
    (folder / "adapter_config.json").write_text(json.dumps(settings))
    return folder


def write_encoder(folder: Path, base: EncoderConfig = BERT) -> Path:
    """An encoder with bytes for tokens, whose vectors are means."""
    folder.mkdir(parents=True, exist_ok=True)
    wt.manual_seed(0)
    config = dataclasses.replace(base, vocab_size=257, max_position_embeddings=64)
    Encoder(config).save_pretrained(folder)
    write_tokenizer(folder)
    return folder


def write_repository(folder: Path) -> Path:
    """Models `llm` and `bert`, a version of each; `bert` gives vectors, and has a head with one label. The
    cache is small, and soon full."""
    write_llm(folder / "llm" / "1")
    config = {"parameters": {"kv_cache_memory_bytes": 8 << 20}}
    (folder / "llm" / "config.json").write_text(json.dumps(config))
    write_encoder(folder / "bert" / "1", dataclasses.replace(BERT, task="sequence", labels=("fits",)))
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

    def __init__(self, repository: Path | str, *flags: Any, token: str | None = "secret") -> None:
        command = [sys.executable, "-m", "warptape.serve", str(repository), "--port", "0", *map(str, flags)]
        if token is not None:
            command += ["--token", token]
        self.token = token
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1
        )
        self.log: list[dict[str, Any]] = []
        self.errors: list[str] = []
        found, before = None, ""
        while found is None:  # a download says how it goes on
            line = self.process.stderr.readline()
            assert line, before
            before += line
            found = re.search(r"at (http://\S+)", line)
        self.url = found[1]
        self._threads = [
            threading.Thread(target=self._read, daemon=True),
            threading.Thread(target=lambda: self.errors.extend(self.process.stderr), daemon=True),
        ]
        for each in self._threads:
            each.start()
        end = time.monotonic() + seconds(60)
        while get(self.url + "/readyz", token, seconds(60))[0] != 200:
            assert time.monotonic() < end and self.process.poll() is None, self.errors
            time.sleep(0.02)

    def _read(self) -> None:
        for line in self.process.stdout:
            self.log.append(json.loads(line))

    def get(self, path: str) -> tuple[int, Any]:
        """Status and JSON."""
        status, body = get(self.url + path, self.token)
        return status, json.loads(body or b"null")

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        """Status and JSON."""
        headers = {"Content-Type": "application/json", "Authorization": f"Bearer {self.token}"}
        request = urllib.request.Request(self.url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=seconds(60)) as reply:
                return reply.status, json.loads(reply.read() or b"null")
        except urllib.error.HTTPError as error:
            return error.code, json.loads(error.read() or b"null")

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
