"""GGUF files: tensors as the gguf package has them, decoders as the folders they were made of, and what is
refused."""

from __future__ import annotations

import struct
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from model_configs import CONFIGS, SMALL, build, tokens
from quantized_files import (
    GGUF_MODELS,
    NUMBERS,
    OF_GGUF,
    gguf_arrays,
    gguf_bytes,
    random_blocks,
    write_decoder,
)
from warptape.distributed.checkpoint import CheckpointException
from warptape.models import Decoder, DecoderConfig, RotaryScaling
from warptape.models.gguf import GGUFFile
from warptape.models.gguf_kinds import KINDS

BLOCKS = [kind.name for kind in KINDS.values() if kind.parts is not None]


@pytest.mark.parametrize("kind", BLOCKS)
def test_blocks_are_what_the_gguf_package_makes_of_them(kind: str, tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    raw = random_blocks(kind, 6 * 512)
    (tmp_path / "x.gguf").write_bytes(gguf_bytes({"a": 1}, {"x": (kind, (6, 512), raw)}))
    got = GGUFFile(tmp_path / "x.gguf")
    assert got.shapes == {"x": (6, 512)} and got.kinds == {"x": kind}
    known = gguf.GGMLQuantizationType[kind]
    want = gguf.dequantize(np.frombuffer(raw, np.uint8).reshape(6, -1), known)
    assert np.array_equal(got.read("x").numpy(), want)
    theirs = gguf.GGUFReader(tmp_path / "x.gguf").tensors[0]
    assert np.array_equal(gguf.dequantize(theirs.data, theirs.tensor_type), want)


def test_blocks_by_hand(tmp_path: Path) -> None:
    """One block of each type, its formula written out."""
    half = struct.pack("<e", 0.5)
    counted = bytes(j | (15 - j) << 4 for j in range(16))  # low nibbles 0 .. 15, high ones 15 .. 0
    ramp = np.concatenate([np.arange(16), 15 - np.arange(16)]).astype(np.float32)
    small = bytes([9, 5, 5, 5, 3, 0, 0, 0] + [0x21] * 4)  # scales 9, 5, 5, 5, 1 ..; minima 3, 0, 0, 0, 2 ..
    q4_k = half + struct.pack("<e", 0.25) + small + counted * 8
    q6_k = bytes([0x21] * 128) + bytes([0xE4] * 64) + bytes([2] * 8 + [254] * 8) + half
    given = {
        "Q4_0": (half + counted, (ramp - 8) * 0.5),
        "Q4_1": (half + struct.pack("<e", -1.0) + counted, ramp * 0.5 - 1),
        "Q8_0": (half + bytes(range(240, 256)) + bytes(range(16)), np.arange(-16, 16) * 0.5),
        "Q4_K": (q4_k, None),
        "Q6_K": (q6_k, None),
    }
    tensors = {kind: (kind, (1, NUMBERS[kind][1]), raw) for kind, (raw, _) in given.items()}
    (tmp_path / "x.gguf").write_bytes(gguf_bytes({}, tensors))
    file = GGUFFile(tmp_path / "x.gguf")
    for kind, (_, want) in given.items():
        if want is not None:
            assert np.array_equal(file.read(kind).numpy()[0], want), kind
    low, high = np.tile(np.arange(16), 2), np.tile(15 - np.arange(16), 2)
    got = file.read("Q4_K").numpy().reshape(8, 32)
    scales, minima = [9, 5, 5, 5, 1, 1, 1, 1], [3, 0, 0, 0, 2, 2, 2, 2]
    for g in range(8):
        nibbles = low if g % 2 == 0 else high
        assert np.array_equal(got[g], 0.5 * scales[g] * nibbles - 0.25 * minima[g])
    got = file.read("Q6_K").numpy().reshape(2, 4, 32)
    for row in range(4):  # low 4 bits 1, 1, 2, 2 and high 2 bits 0, 1, 2, 3
        value = ([1, 1, 2, 2][row] + 16 * row - 32) * 0.5
        assert (got[0, row] == value * 2).all() and (got[1, row] == value * -2).all()


# ---- decoders ----


@pytest.mark.parametrize("name", ["llama", "llama-biases", "qwen2", "qwen3"])
def test_decoders(name: str, tmp_path: Path) -> None:
    """The same logits as before it was written, for each architecture and kind of rotary scaling."""
    fields = {**vars(CONFIGS[name]), "sliding_window": None, "layer_types": None, "eos_token_id": 2}
    more: dict[str, Any] = {}
    if name == "llama":
        llama3 = RotaryScaling(rope_type="llama3", factor=8.0, original_max_position_embeddings=8192)
        fields |= {"rope_scaling": llama3, "tie_word_embeddings": True}
    if name == "llama-biases":
        fields |= {"o_bias": False, "mlp_bias": False}
        more = {"llama.rope.scaling.type": "linear", "llama.rope.scaling.factor": 2.0}
    model = Decoder(DecoderConfig(**fields | {"initializer_range": 0.02})).eval()
    model.load_state_dict(build(name).state_dict() if name != "llama" else model.state_dict(), strict=False)
    write_decoder(tmp_path / "x.gguf", model, **more)
    got = Decoder.from_pretrained(tmp_path / "x.gguf")
    assert got.config == model.config and not got.training
    assert wt.equal(got(tokens()), model(tokens()))
    half = Decoder.from_pretrained(str(tmp_path / "x.gguf"), dtype=wt.bfloat16)
    assert wt.equal(half.norm.weight, model.norm.weight.bfloat16())


@pytest.mark.parametrize("name", GGUF_MODELS)
def test_families(name: str, tmp_path: Path) -> None:
    """Config and tensors as before it was written; names and sizes are those of the gguf package."""
    model = build(name)
    model.config = replace(model.config, eos_token_id=2, initializer_range=0.02, **GGUF_MODELS[name])
    model = Decoder(model.config).eval()
    with wt.no_grad():
        for p in model.parameters():
            p.add_(wt.randn(p.shape, dtype=p.dtype) * 0.2)
    write_decoder(tmp_path / "x.gguf", model)
    got = Decoder.from_pretrained(tmp_path / "x.gguf")
    assert got.config == model.config
    for (key, a), (_, b) in zip(got.named_parameters(), model.named_parameters(), strict=True):
        assert wt.allclose(a, b, rtol=0, atol=1e-6), key  # what norms have beside 1 is rounded
    gguf = pytest.importorskip("gguf")
    kind = next(n for n, of in gguf.MODEL_ARCH_NAMES.items() if of == OF_GGUF[model.config.architecture])
    known = {gguf.TENSOR_NAMES[t].replace("{bid}", "0") for t in gguf.MODEL_TENSORS[kind]}
    written = {n.rpartition(".")[0] for n in gguf_arrays(model) if not n.startswith(("blk.1", "blk.2"))}
    assert written <= known


def test_the_gguf_package_reads_the_same(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    write_decoder(tmp_path / "x.gguf", build("mistral"), flag=True, numbers=[1, 2], words=["a", "ü"])
    theirs, file = gguf.GGUFReader(tmp_path / "x.gguf"), GGUFFile(tmp_path / "x.gguf")
    assert {t.name for t in theirs.tensors} == file.shapes.keys()
    for t in theirs.tensors:
        assert np.array_equal(file.read(t.name).numpy(), t.data)
    for key, value in file.metadata.items():
        assert theirs.fields[key].contents() == value, key


def test_what_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    wt.manual_seed(0)
    model = Decoder(DecoderConfig(**SMALL)).eval()

    def refused(match: str, error: type[Exception] = ValueError) -> None:
        with pytest.raises(error, match=match):
            Decoder.from_pretrained(path)

    def metadata(**more: Any) -> None:
        write_decoder(path, model, **more)

    metadata(**{"general.architecture": "mamba"})
    refused(r"x.gguf: unknown architecture 'mamba'; supported: llama, qwen2, qwen3, qwen2moe")
    metadata(**{"general.architecture": "qwen2"})
    refused(r"a file of a qwen2 model needs qwen2.embedding_length, .*qwen2.attention.head_count")
    metadata(**{"llama.expert_count": 8, "llama.expert_used_count": 9})
    refused("ExpertsConfig: expected per_token to be at most the 8 experts")
    metadata(**{"llama.expert_count": 8, "llama.expert_used_count": 2})
    refused(r"blk.0.ffn_gate_inp.weight is missing there, for layers.0.mlp.router", CheckpointException)
    metadata(**{"llama.rope.scaling.type": "other"})
    refused("rotary scaling 'other' is not supported")
    metadata(**{"llama.rope.scaling.type": "yarn"})
    refused("x.gguf: 'rope.scaling.factor'")
    metadata(**{"llama.rope.scaling.type": "linear"})
    refused("x.gguf: expected numbers above 0")
    metadata(**{"llama.rope.dimension_count": 4})
    refused("rotary positions of 4 of 6 are not supported")
    metadata(**{"llama.block_count": 4})
    refused(r"blk.3.attn_norm.weight is missing there, for layers.3.input_layernorm", CheckpointException)
    metadata(**{"llama.block_count": 2})
    refused(r"nothing here is called blk.2.attn_norm.weight", CheckpointException)
    metadata(**{"llama.feed_forward_length": 35})
    refused(r"mlp.gate_up_proj.weight is \[70, 24\] here, and there blk.0.ffn_gate", CheckpointException)
    metadata(**{"llama.block_count": -1 & 0xFFFFFFFF})
    refused("expected num_hidden_layers to be at most 10000")
    metadata()
    whole = path.read_bytes()
    Decoder.from_pretrained(path)
    for size, match in ((len(whole) - 1, "is it truncated"), (100, "is it truncated"), (10, "too short")):
        path.write_bytes(whole[:size])
        refused(match, CheckpointException)
    path.write_bytes(b"GGML" + whole[4:])
    refused("does not begin with GGUF", CheckpointException)
    path.write_bytes(whole[:4] + struct.pack(">I", 3) + whole[8:])
    refused("only 2 and 3, little-endian", CheckpointException)
    path.write_bytes(gguf_bytes({}, {"x": ("IQ1_M", (1, 256), bytes(56))}))
    refused("'x' has type 29 .IQ1_M., supported are F32, .*convert the file", CheckpointException)
    path.write_bytes(gguf_bytes({"general.alignment": 7}, {}))
    refused("general.alignment is 7", CheckpointException)


def test_mutated_files_are_refused_or_read(tmp_path: Path) -> None:
    """Any byte of a header may be wrong: a ValueError, or numbers; never another error."""
    path, rng = tmp_path / "x.gguf", np.random.default_rng(0)
    tensors = {"x": ("Q4_0", (2, 32), random_blocks("Q4_0", 64)), "y": ("F32", (3,), bytes(12))}
    wt.manual_seed(0)
    write_decoder(path, Decoder(DecoderConfig(**SMALL | {"num_hidden_layers": 1})))
    files = [path.read_bytes(), gguf_bytes({"a": [1, 2], "b": ["x", "y"], "c": 1.0}, tensors)]
    outcomes = set()
    for i in range(600):
        changed = np.frombuffer(files[i % 2], np.uint8).copy()
        for at in rng.integers(0, min(len(changed), 1500), rng.integers(1, 4)):
            changed[at] = rng.choice([0, 255, 1, 9, rng.integers(256)])
        changed = changed[: rng.integers(len(changed) // 2, len(changed) + 1)] if i % 3 == 0 else changed
        path.write_bytes(changed.tobytes())
        try:
            file = GGUFFile(path)
            for name in file.shapes:
                file.read(name)
            Decoder.from_pretrained(path)
            outcomes.add("read")
        except ValueError:
            outcomes.add("refused")
    assert outcomes == {"read", "refused"}


def test_empty_and_nested_arrays(tmp_path: Path) -> None:
    nested = struct.pack("<IIQIQI", 9, 9, 1, 4, 1, 7)  # [[7]]
    whole = gguf_bytes({"a": [5]}, {})
    one = struct.pack("<IIQI", 9, 4, 1, 5)
    for raw, want in (
        (struct.pack("<IIQ", 9, 4, 0), []),
        (struct.pack("<IIQ", 9, 8, 0), []),
        (nested, [[7]]),
    ):
        (tmp_path / "x.gguf").write_bytes(whole.replace(one, raw))
        assert GGUFFile(tmp_path / "x.gguf").metadata == {"a": want}
