"""Make a model folder of what train_gpt.py trained: for warptape.inference, and for whatever reads GPT-2's.

    python examples/train_gpt.py --out run
    python examples/export_gpt.py run/checkpoint.pt gpt
    warptape generate gpt "The hungry dog"

The folder has config.json, model.safetensors and a tokenizer.json whose tokens are the 256 bytes.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from train_gpt import VOCABULARY, InputError, load_checkpoint, one_line
from warptape.models import Decoder, DecoderConfig

# Our name of a layer's parameters -> train_gpt's.
LAYER = {
    "input_layernorm": "norm1",
    "self_attn.qkv_proj": "attention.qkv",
    "self_attn.o_proj": "attention.out",
    "post_attention_layernorm": "norm2",
    "mlp.up_proj": "mlp.0",
    "mlp.down_proj": "mlp.2",
}
REST = {"embed_tokens": "tokens", "embed_positions": "positions", "norm": "norm", "lm_head": "head"}


def decoder_of(state: dict[str, Any]) -> Decoder:
    """The model of a checkpoint as warptape.models has it."""
    settings = state["settings"]
    config = DecoderConfig(
        architecture="gpt2",
        vocab_size=VOCABULARY,
        hidden_size=settings["width"],
        intermediate_size=4 * settings["width"],
        num_hidden_layers=settings["layers"],
        num_attention_heads=settings["heads"],
        max_position_embeddings=settings["block"],
        norm="layer_norm",
        norm_eps=1e-5,
        positions="learned",
        gated=False,
        hidden_act="gelu_new",
        qkv_bias=True,
        o_bias=True,
        mlp_bias=True,
        tie_word_embeddings=True,
    )
    model = Decoder(config)
    names = {f"{ours}.": f"{theirs}." for ours, theirs in REST.items()}
    for i in range(settings["layers"]):
        names |= {f"layers.{i}.{ours}.": f"layers.{i}.{theirs}." for ours, theirs in LAYER.items()}

    def theirs_of(name: str) -> str:
        stem, _, last = name.rpartition(".")
        return names[stem + "."] + last

    model.load_state_dict({name: state["model"][theirs_of(name)] for name in model.state_dict()})
    return model.eval()


def byte_tokenizer() -> dict[str, Any]:
    """A tokenizer.json of the 256 bytes. As in GPT-2, those that cannot be printed are written as the
    characters from 256 on."""
    printed = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {byte: chr(byte) for byte in printed} | {byte: chr(256 + i) for i, byte in enumerate(others)}
    level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
    model = {"type": "BPE", "vocab": {letter: byte for byte, letter in sorted(letters.items())}, "merges": []}
    return {"version": "1.0", "added_tokens": [], "pre_tokenizer": level, "decoder": level, "model": model}


def main(arguments: list[str] | None = None) -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("checkpoint", type=Path, help="train_gpt.py's checkpoint.pt")
    parser.add_argument("folder", type=Path, help="to be written")
    options = parser.parse_args(arguments)
    try:
        model = decoder_of(load_checkpoint(options.checkpoint))
        model.save_pretrained(options.folder)
        (options.folder / "tokenizer.json").write_text(json.dumps(byte_tokenizer()))
    except (InputError, OSError) as error:
        print(f"export_gpt.py: {one_line(error)}", file=sys.stderr)
        return 1
    count = sum(p.numel() for p in model.parameters())
    print(f"{options.folder}: {count} parameters")
    return 0


if __name__ == "__main__":
    sys.exit(main())
