"""Whisper: features, logits and greedy tokens are those of transformers, which reads what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.models.whisper import Whisper, log_mel

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
SIZES: dict[str, Any] = {
    "vocab_size": 60,
    "d_model": 24,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 3,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 40,
    "decoder_ffn_dim": 36,
    "num_mel_bins": 80,
    "max_source_positions": 50,
    "max_target_positions": 48,
    "init_std": 0.2,
    "decoder_start_token_id": 3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 2,
    "suppress_tokens": None,
    "begin_suppress_tokens": None,
}


def recording(seconds: float, seed: int) -> np.ndarray:
    """Two tones that fade, and noise."""
    t, rng = np.arange(int(seconds * 16000)) / 16000, np.random.default_rng(seed)
    tones = np.sin(2 * np.pi * 440 * t) + np.sin(2 * np.pi * (900 + 300 * t) * t)
    return 0.2 * tones * np.exp(-t) + 0.01 * rng.standard_normal(len(t))


def theirs(path: Path) -> Any:
    torch.manual_seed(0)
    model = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**SIZES)).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) * 0.2)
    model.save_pretrained(path)
    return model


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("seconds", [0.5, 3.0, 31.0])
def test_features(bins: int, seconds: float) -> None:
    extractor = transformers.WhisperFeatureExtractor(feature_size=bins)
    audio = recording(seconds, 0)
    samples = np.pad(audio[:480_000], (0, max(0, 480_000 - len(audio))))
    expected = extractor._np_extract_fbank_features(samples[None], "cpu")[0]
    assert np.abs(log_mel(audio, bins).numpy() - expected).max() < 1e-5
    usual = extractor(audio, sampling_rate=16000, return_tensors="np")["input_features"][0]
    assert np.abs(log_mel(audio, bins).numpy() - usual).max() < 1e-3  # it computes in float32


def test_logits_and_tokens(tmp_path: Path) -> None:
    other = theirs(tmp_path / "theirs")
    model = Whisper.from_pretrained(tmp_path / "theirs")
    features = np.stack([log_mel(recording(1, seed), seconds=1).numpy() for seed in range(3)])
    tokens = np.random.default_rng(0).integers(4, 60, (3, 9))
    with torch.no_grad():
        given = {"input_features": torch.from_numpy(features)}
        expected = other(**given, decoder_input_ids=torch.from_numpy(tokens)).logits.numpy()
        got = model(wt.from_numpy(features), wt.from_numpy(tokens)).detach().numpy()
        assert np.abs(got - expected).max() <= 1e-5 * np.abs(expected).max()
        start = torch.tensor([[3, 7]] * 3)
        options = {"suppress_tokens": [5, 9], "begin_suppress_tokens": [11, 12]}
        want = other.generate(**given, decoder_input_ids=start, max_new_tokens=40, num_beams=1, **options)
    ours = model.generate(wt.from_numpy(features), wt.from_numpy(start.numpy()), 40, **options).numpy()
    ours, want = ours[:, 2:], want.numpy()  # theirs leaves out what texts begin with
    count = min(ours.shape[1], want.shape[1])
    assert count > 5 and np.array_equal(ours[:, :count], want[:, :count])
    model.save_pretrained(tmp_path / "back")
    kind = transformers.WhisperForConditionalGeneration
    again, told = kind.from_pretrained(tmp_path / "back", output_loading_info=True)
    assert not any(told.values()), told
    state = other.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())
