"""Models compute what transformers computed for the same folders; models.json was recorded by
record_models.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import warptape as wt
from model_configs import fixed_tokens, write_folder
from warptape.models import Decoder, Encoder

from golden import models


@pytest.mark.parametrize("name", models.NAMES)
def test_recorded(name: str, tmp_path: Path) -> None:
    write_folder(name, tmp_path)
    tokens = wt.from_numpy(fixed_tokens())
    if name == "bert":
        out = Encoder.from_pretrained(tmp_path)(tokens, token_type_ids=tokens % 2)
        found = wt.cat([out.last_hidden_state[:, -1, :4].flatten(), out.pooler_output[:, :4].flatten()])
    else:
        found = Decoder.from_pretrained(tmp_path)(tokens)[:, -1, :8].flatten()
    expected = np.array(models.recorded()[name])
    assert np.abs(expected).max() > 0.1
    assert np.allclose(found.detach().numpy(), expected, rtol=1e-4, atol=1e-4 * np.abs(expected).max())
