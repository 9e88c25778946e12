"""Records models.json from transformers: `PYTHONPATH=tests python -m golden.record_models`, where torch and
transformers are installed beside warptape."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from model_configs import fixed_tokens, write_folder

from golden.models import FILE, NAMES


def computed(name: str, folder: Path) -> list[float]:
    """transformers' numbers for a folder, which is written."""
    write_folder(name, folder)
    kind = transformers.AutoModel if name == "bert" else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.from_numpy(fixed_tokens())
    with torch.no_grad():
        if name == "bert":
            out = model(tokens, token_type_ids=tokens % 2)
            numbers = [out.last_hidden_state[:, -1, :4].numpy(), out.pooler_output[:, :4].numpy()]
        else:
            numbers = [model(tokens).logits[:, -1, :8].numpy()]
    return np.concatenate([part.ravel() for part in numbers]).tolist()


def main() -> None:
    """All of them."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = {name: computed(name, Path(folder, name)) for name in NAMES}
    said = {"recorded from": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    FILE.write_text(json.dumps(said | {"numbers": numbers}, indent=0) + "\n")


if __name__ == "__main__":
    main()
