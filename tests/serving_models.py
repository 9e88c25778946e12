"""Small models and repositories for the tests of warptape.serve, and processes that serve them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import warptape as wt
from model_configs import SMALL
from warptape.models import Decoder, DecoderConfig

EOS = 256
CONTEXT = 256
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
