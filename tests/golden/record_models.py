"""Records models.json from transformers: `PYTHONPATH=tests python -m golden.record_models`, where torch and
transformers are installed beside warptape."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path

import numpy as np
import torch
import transformers
from model_configs import ENCODERS, HEADS, IMAGE, LLAVA, fixed_tokens, write_folder

from golden.models import FILE, NAMES, pixels, speech_features, speech_tokens, tokens_with_images


def computed(name: str, folder: Path) -> list[float]:
    """transformers' numbers for a folder, which is written."""
    write_folder(name, folder)
    kind = transformers.AutoModel if name in ENCODERS else transformers.AutoModelForCausalLM
    if name in HEADS:
        task = "Sequence" if HEADS[name].task == "sequence" else "Token"
        kind = getattr(transformers, f"AutoModelFor{task}Classification")
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    tokens = torch.from_numpy(fixed_tokens())
    with torch.no_grad():
        if name in ENCODERS:
            types = {} if ENCODERS[name].positions == "rotary" else {"token_type_ids": tokens % 2}
            out = model(tokens, **types)
            pooled = out.get("pooler_output")
            numbers = [out.last_hidden_state[:, -1, :4].numpy()]
            numbers += [] if pooled is None else [pooled[:, :4].numpy()]
        elif name in HEADS:
            types = {} if HEADS[name].positions == "rotary" else {"token_type_ids": tokens % 2}
            numbers = [model(tokens, **types).logits.numpy()]
        else:
            numbers = [model(tokens).logits[:, -1, :8].numpy()]
    return np.concatenate([part.ravel() for part in numbers]).tolist()


def speech(folder: Path) -> dict[str, list[float]]:
    """Whisper's logits, and features of a tone that rises."""
    write_folder("whisper", folder)
    kind = transformers.WhisperForConditionalGeneration
    model = kind.from_pretrained(folder, attn_implementation="eager").eval()
    given = torch.from_numpy(speech_features()), torch.from_numpy(speech_tokens())
    with torch.no_grad():
        logits = model(input_features=given[0], decoder_input_ids=given[1]).logits[:, -1, :8]
    t = np.arange(16000) / 16000
    sound = 0.3 * np.sin(2 * np.pi * (300 + 500 * t) * t)
    extractor = transformers.WhisperFeatureExtractor(chunk_length=1)
    features = extractor._np_extract_fbank_features(sound[None], "cpu")[0]
    return {"whisper": logits.flatten().tolist(), "features": features[::10, ::20].flatten().tolist()}


def vision(folder: Path) -> dict[str, list[float]]:
    """SigLIP's logits of two images and two texts, and LLaVA's of a text with two images."""
    numbers, given = {}, torch.from_numpy(pixels())
    for name, kind in (("siglip", "SiglipModel"), ("llava", "LlavaForConditionalGeneration")):
        write_folder(name, folder / name)
        model = getattr(transformers, kind).from_pretrained(folder / name, attn_implementation="eager").eval()
        tokens = fixed_tokens() if name == "siglip" else tokens_with_images(IMAGE, LLAVA.image_tokens)
        with torch.no_grad():
            out = model(input_ids=torch.from_numpy(tokens), pixel_values=given)
        found = out.logits_per_image if name == "siglip" else out.logits[:, -3:, :8]
        numbers[name] = found.flatten().tolist()
    return numbers


def main() -> None:
    """All of them."""
    with tempfile.TemporaryDirectory() as folder:
        numbers = {name: computed(name, Path(folder, name)) for name in NAMES}
        spoken, seen = speech(Path(folder, "speech")), vision(Path(folder, "vision"))
    said = {"recorded from": f"transformers {transformers.__version__}, torch {torch.__version__}"}
    FILE.write_text(
        json.dumps(said | {"numbers": numbers, "speech": spoken, "vision": seen}, indent=0) + "\n"
    )


if __name__ == "__main__":
    main()
