"""Whisper: numbers that transformers computed, texts token by token, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from golden import models as recorded
from model_configs import WHISPER, write_folder
from warptape.distributed.checkpoint import CheckpointException
from warptape.models import Decoder
from warptape.models.whisper import Whisper, WhisperConfig, log_mel, mel_filters


def sound(seed: int = 0) -> np.ndarray:
    t = np.arange(16000) / 16000
    return 0.3 * np.sin(2 * np.pi * (300 + 100 * seed + 500 * t) * t)


def features(count: int = 3) -> wt.Tensor:
    return wt.stack([log_mel(sound(i), seconds=1) for i in range(count)])


def model() -> Whisper:
    wt.manual_seed(0)
    return Whisper(WHISPER).eval()


def test_recorded_numbers(tmp_path: Path) -> None:
    write_folder("whisper", tmp_path)
    tokens = wt.from_numpy(recorded.speech_tokens())
    found = Whisper.from_pretrained(tmp_path)(wt.from_numpy(recorded.speech_features()), tokens)
    expected = np.array(recorded.recorded("speech")["whisper"])
    got = found[:, -1, :8].flatten().detach().numpy()
    assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
    assert np.abs(log_mel(sound(), seconds=1)[::10, ::20].flatten().numpy()
                  - np.array(recorded.recorded("speech")["features"])).max() < 1e-5  # fmt: skip


def test_features() -> None:
    filters = mel_filters(80)
    assert filters.shape == (201, 80) and (filters >= 0).all() and (filters.max(0) > 0).all()
    quiet = log_mel(np.zeros(100), seconds=1)
    assert quiet.shape == (80, 100) and wt.equal(quiet, wt.full((80, 100), -1.5))
    tone = log_mel(np.sin(2 * np.pi * 1000 * np.arange(16000) / 16000), seconds=1)
    loudest = int(tone[:, 50].argmax())
    assert filters[:, loudest].argmax() in range(24, 27)  # bins of 40 Hz
    assert wt.equal(log_mel(sound(), seconds=2)[:, :90], log_mel(wt.from_numpy(sound()), seconds=2)[:, :90])
    with pytest.raises(wt.ShapeError, match=r"expected samples \[N\], got \[2, 3\]"):
        log_mel(np.zeros((2, 3)))


def test_texts_token_by_token() -> None:
    whisper, x = model(), features()
    start = wt.tensor([[3, 7]] * 3)
    out = whisper.generate(x, start, 20)
    assert out.shape[0] == 3 and 3 < out.shape[1] <= 22
    ended = wt.zeros(3, dtype=wt.bool)
    for at in range(2, out.shape[1]):  # whole, without a cache
        likeliest = whisper(x, out[:, :at])[:, -1].argmax(-1)
        assert wt.equal(wt.where(ended, 2, likeliest), out[:, at])
        ended = ended | (out[:, at] == 2)
    first = int(out[0, 2])
    other = whisper.generate(x[:1], start[:1], 3, begin_suppress_tokens=[first])
    assert int(other[0, 2]) != first
    never = whisper.generate(x[:1], start[:1], 10, suppress_tokens=[*range(3, 40)])
    assert set(never[0, 2:].tolist()) <= {0, 1, 2}
    with pytest.raises(wt.ShapeError, match=r"expected features \[B, 80, 100\], got \[1, 80, 99\]"):
        whisper(x[:1, :, :99], start[:1])
    with pytest.raises(ValueError, match="25 tokens are more than its positions, 24"):
        whisper(x[:1], wt.zeros(1, 25, dtype=wt.int64))


def test_folders(tmp_path: Path) -> None:
    whisper = model()
    whisper.save_pretrained(tmp_path)
    again = Whisper.from_pretrained(tmp_path)
    assert again.config == WHISPER
    for (name, a), (_, b) in zip(again.named_parameters(), whisper.named_parameters(), strict=True):
        assert wt.equal(a, b), name
    with pytest.raises(ValueError, match="which needs audio: warptape"):
        Decoder.from_pretrained(tmp_path)
    said = json.loads((tmp_path / "config.json").read_text())
    with pytest.raises(ValueError, match="scale_embedding=True is not supported"):
        WhisperConfig.from_hf(said | {"scale_embedding": True})
    with pytest.raises(ValueError, match="encoder_attention_heads to be a divisor of hidden_size"):
        replace(WHISPER, encoder_attention_heads=5)
    (tmp_path / "config.json").write_text(json.dumps(said | {"encoder_layers": 2}))
    with pytest.raises(CheckpointException, match=r"encoder.layers.1.self_attn.q_proj.weight is missing"):
        Whisper.from_pretrained(tmp_path)


def test_it_trains() -> None:
    whisper, x = model().train(), features(2)
    tokens = wt.tensor([[3, 7, 9, 11], [3, 8, 10, 2]])
    optimizer = wt.optim.AdamW(whisper.parameters(), lr=3e-3)
    losses = []
    for _ in range(30):
        optimizer.zero_grad()
        logits = whisper(x, tokens[:, :-1])
        loss = wt.nn.functional.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
