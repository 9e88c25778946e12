"""Models compute what transformers computed for the same folders; models.json was recorded by
record_models.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from model_configs import ENCODERS, HEADS, fixed_tokens, write_folder
from warptape.models import Decoder, Encoder

from golden import models


@pytest.mark.parametrize("name", models.NAMES)
def test_recorded(name: str, tmp_path: Path) -> None:
    write_folder(name, tmp_path)
    tokens = wt.from_numpy(fixed_tokens())
    if name in {**ENCODERS, **HEADS}:
        model = Encoder.from_pretrained(tmp_path)
        out = model(tokens, token_type_ids=None if model.config.positions == "rotary" else tokens % 2)
        assert (out.logits is None) == (name in ENCODERS) and model.config == {**ENCODERS, **HEADS}[name]
    if name in HEADS:
        found = out.logits.flatten()
    elif name in ENCODERS:
        pooled = [] if out.pooler_output is None else [out.pooler_output[:, :4].flatten()]
        found = wt.cat([out.last_hidden_state[:, -1, :4].flatten(), *pooled])
    else:
        found = Decoder.from_pretrained(tmp_path)(tokens)[:, -1, :8].flatten()
    expected = np.array(models.recorded()[name])
    assert np.abs(expected).max() > 0.1
    assert np.allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
