"""SigLIP, CLIP's tower and LLaVA: numbers that transformers computed, texts token by token, folders in all
their spellings, and images that become pixels."""

from __future__ import annotations

import io
import json
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.numpy
import warptape as wt
from golden import models as recorded
from model_configs import CLIP, IMAGE, LLAVA, PIXELS, SIGLIP, fixed_tokens, write_folder
from warptape.distributed.checkpoint import CheckpointException
from warptape.models import Decoder
from warptape.models.images import CLIP_MEAN, ImageSettings, PillowMissingError, decoded
from warptape.models.llava import Llava, LlavaConfig
from warptape.models.siglip import Siglip, SiglipConfig
from warptape.models.vision import VisionConfig, VisionTower

N = LLAVA.image_tokens


def images() -> wt.Tensor:
    return wt.from_numpy(recorded.pixels())


def text() -> wt.Tensor:
    return wt.from_numpy(recorded.tokens_with_images(IMAGE, N))


def near(found: wt.Tensor, name: str) -> bool:
    expected = np.array(recorded.recorded("vision")[name])
    return bool(np.abs(found.flatten().detach().numpy() - expected).max() <= 1e-5 * np.abs(expected).max())


def folder_of(name: str, path: Path) -> Any:
    path.mkdir()
    write_folder(name, path)
    return (Siglip if name == "siglip" else Llava).from_pretrained(path)


def test_recorded_numbers(tmp_path: Path) -> None:
    tokens = wt.from_numpy(fixed_tokens())
    out = folder_of("siglip", tmp_path / "siglip")(images(), tokens)
    assert near(out.logits_per_image, "siglip")
    for each in (out.image_embeds, out.text_embeds):
        assert wt.allclose(each.norm(dim=-1), wt.ones(2))
    assert near(folder_of("llava", tmp_path / "llava")(text(), images())[:, -3:, :8], "llava")


def test_a_text_token_by_token(tmp_path: Path) -> None:
    model = folder_of("llava", tmp_path / "llava")
    out = model.generate(text(), images(), 20)
    assert out.shape == (1, text().shape[1] + 20)
    for at in range(text().shape[1], out.shape[1]):  # whole, without a cache
        inside = out[:, :at].clone()
        if IMAGE not in inside[0, text().shape[1] :].tolist():
            assert int(model(inside, images())[0, -1].argmax()) == int(out[0, at])
    other = model.generate(text(), images().flip(0), 20)
    assert not wt.equal(other, out)
    plain = wt.tensor([[1, 2, 3]])
    assert wt.equal(model(plain), model.language_model(plain))
    with pytest.raises(ValueError, match=r"expected 1 to \d+ new tokens, got 99"):
        model.generate(text(), images(), 99)


@pytest.mark.parametrize("name", ["siglip", "llava"])
def test_folders(name: str, tmp_path: Path) -> None:
    model = folder_of(name, tmp_path / "first")
    model.save_pretrained(tmp_path / "again")
    again = type(model).from_pretrained(tmp_path / "again")
    assert again.config == model.config == (SIGLIP if name == "siglip" else LLAVA)
    for (key, a), (_, b) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert wt.equal(a, b), key
    first, second = (
        safetensors.numpy.load_file(tmp_path / each / "model.safetensors") for each in ("first", "again")
    )
    assert first.keys() == second.keys() and all(np.array_equal(first[key], second[key]) for key in first)
    with pytest.raises(ValueError, match=f"which needs images: warptape.models.{name}"):
        Decoder.from_pretrained(tmp_path / "again")


@pytest.mark.parametrize("spelling", [
    {"vision_tower.vision_model.": "vision_tower."},
    {"vision_tower.": "model.vision_tower.", "multi_modal": "model.multi_modal",
     "language_model.lm_head.": "lm_head.", "language_model.model.": "model.language_model."},
])  # fmt: skip
def test_other_spellings_of_names(spelling: dict[str, str], tmp_path: Path) -> None:
    model = folder_of("llava", tmp_path / "llava")
    path = tmp_path / "llava" / "model.safetensors"
    renamed = {}
    for key, array in safetensors.numpy.load_file(path).items():
        old = next((each for each in spelling if key.startswith(each)), "")
        renamed[spelling.get(old, "") + key.removeprefix(old)] = array
    safetensors.numpy.save_file(renamed, path)
    again = Llava.from_pretrained(tmp_path / "llava")
    for (key, a), (_, b) in zip(again.named_parameters(), model.named_parameters(), strict=True):
        assert wt.equal(a, b), key
    del renamed[next(key for key in renamed if key.endswith("linear_2.bias"))]
    safetensors.numpy.save_file(renamed, path)
    with pytest.raises(CheckpointException, match=r"multi_modal_projector.linear_2.bias is missing there"):
        Llava.from_pretrained(tmp_path / "llava")


def test_what_configs_say() -> None:
    whole = SiglipConfig.from_hf({"model_type": "siglip"})
    assert (whole.vision.image_size, whole.vision.patches, whole.text.projection_size) == (224, 196, 768)
    said = {  # as the folder of LLaVA 1.5 has it
        "model_type": "llava",
        "image_token_index": 32000,
        "text_config": {"model_type": "llama", "max_position_embeddings": 4096, "vocab_size": 32064},
        "vision_config": {
            "hidden_size": 1024,
            "image_size": 336,
            "intermediate_size": 4096,
            "model_type": "clip_vision_model",
            "num_attention_heads": 16,
            "num_hidden_layers": 24,
            "patch_size": 14,
        },
    }
    config = LlavaConfig.from_hf(said)
    assert (config.image_tokens, config.feature_layers, config.text.hidden_size) == (576, 23, 4096)
    assert LlavaConfig.from_hf(config.to_hf()) == config
    other = {key: value for key, value in said.items() if key != "image_token_index"}
    assert LlavaConfig.from_hf({**other, "image_token_id": 7}).image_token_id == 7
    for key, value, match in (
        ("vision_feature_layer", [-2, -5], "feature_layer to be one layer, from -25 to 24"),
        ("vision_feature_select_strategy", "some", "features to be one of default, full"),
        ("image_token_index", 40000, "image_token_id to be a token of the vocabulary of 32064"),
        ("text_config", {"model_type": "gemma"}, "a gemma config needs"),
        ("vision_config", {"model_type": "pixtral"}, "unknown model_type 'pixtral'"),
    ):
        with pytest.raises(ValueError, match=match):
            LlavaConfig.from_hf({**said, key: value})
    with pytest.raises(ValueError, match="vision to be with a head of 768 numbers"):
        SiglipConfig.from_hf({"model_type": "siglip", "vision_config": {"vision_use_head": False}})
    with pytest.raises(ValueError, match="num_attention_heads to be a divisor of hidden_size, 24"):
        VisionConfig(**PIXELS | {"num_attention_heads": 5})
    with pytest.raises(ValueError, match="model with rotary positions"):
        replace(LLAVA, text=replace(LLAVA.text, embedding_scale=2.0))


def test_what_models_refuse(tmp_path: Path) -> None:
    model = folder_of("llava", tmp_path / "llava")
    with pytest.raises(
        wt.ShapeError, match=rf"expected {N} tokens {IMAGE} for each of 1 images, got {2 * N}"
    ):
        model(text(), images()[:1])
    with pytest.raises(wt.ShapeError, match="for each of 0 images"):
        model(text())
    with pytest.raises(wt.ShapeError, match=r"expected pixels \[B, 3, 20, 20\], got \[2, 3, 20, 19\]"):
        model(text(), images()[..., :19])
    siglip = Siglip(SIGLIP)
    with pytest.raises(ValueError, match="13 tokens are more than its positions, 12"):
        siglip.text_embeds(wt.zeros(1, 13, dtype=wt.int64))
    with pytest.raises(wt.ShapeError, match=r"expected tokens \[R, T\]"):
        siglip.text_embeds(wt.zeros(3, dtype=wt.int64))


def test_it_trains() -> None:
    wt.manual_seed(0)
    model = Llava(LLAVA).train()
    tokens, optimizer = text(), wt.optim.AdamW(model.parameters(), lr=3e-3)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        logits = model(tokens[:, :-1], images())
        loss = wt.nn.functional.cross_entropy(logits[0, -3:], tokens[0, -3:])
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.2 * losses[0]
    assert model.vision.patches.weight.grad is not None and model.projector.linear_1.weight.grad is not None


# ---- images ----


def drawn(width: int, height: int, seed: int = 0) -> Any:
    Image = pytest.importorskip("PIL.Image")
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def file_of(image: Any, kind: str = "PNG", **more: Any) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **more)
    return out.getvalue()


def test_files_of_images() -> None:
    Image = pytest.importorskip("PIL.Image")
    image = drawn(30, 21)
    assert np.array_equal(np.asarray(decoded(file_of(image))), np.asarray(image))
    assert decoded(file_of(image, "JPEG")).size == (30, 21)
    assert decoded(file_of(image.convert("L"))).mode == decoded(file_of(image.convert("RGBA"))).mode == "RGB"
    exif = Image.Exif()
    exif[0x0112] = 6  # turned by a quarter
    assert decoded(file_of(image, "JPEG", exif=exif)).size == (21, 30)
    for data in (b"", b"GIF89a", file_of(image, "BMP"), file_of(image, "GIF")):
        with pytest.raises(ValueError, match="must be a PNG or JPEG file"):
            decoded(data)
    with pytest.raises(ValueError, match="may have 600 pixels, got 30 x 21"):
        decoded(file_of(image), 600)
    whole = file_of(image)
    for end in range(60, len(whole) - 20, 97):
        with pytest.raises(ValueError, match="an image"):
            decoded(whole[:end])
    assert decoded(whole[:33] + file_of(drawn(30, 21, 1))[33:]).size == (30, 21)


def test_without_pillow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(PillowMissingError, match="pip install pillow"):
        decoded(b"")


def test_settings_of_images(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    assert ImageSettings.of_folder(tmp_path, CLIP) == ImageSettings.clip(20)
    assert ImageSettings.of_folder(tmp_path, SIGLIP.vision) == ImageSettings.siglip(20)
    clip, siglip = ImageSettings.clip(20), ImageSettings.siglip(20)
    assert clip.resized(drawn(50, 33)).shape == siglip.resized(drawn(5, 99)).shape == (20, 20, 3)
    same = drawn(20, 20)
    assert np.array_equal(clip.resized(same), np.asarray(same))
    values = (np.asarray(same).transpose(2, 0, 1) / 255 - np.array(CLIP_MEAN)[:, None, None]) / np.array(
        clip.std
    )[:, None, None]
    assert np.abs(clip(same).numpy() - values).max() < 1e-6
    thread = type("Thread", (), {"size": (1, 9_000_000), "width": 1, "height": 9_000_000})()
    with pytest.raises(ValueError, match="1 x 9000000 is too long beside its shorter side"):
        clip.resized(thread)
    path = tmp_path / "preprocessor_config.json"
    said = {"size": {"shortest_edge": 24}, "crop_size": 20, "resample": 2, "image_mean": [0.1, 0.2, 0.3]}
    path.write_text(json.dumps(said))
    found = ImageSettings.of_folder(tmp_path, CLIP)
    assert (found.height, found.width, found.crop_height, found.resample) == (24, 0, 20, 2)
    assert found.mean == (0.1, 0.2, 0.3) and found.resized(drawn(50, 33)).shape == (20, 20, 3)
    for changed, match in (
        ({"crop_size": 21}, "prepared with 21 x 21 pixels, and the model takes 20 x 20"),
        ({"do_resize": False}, "expected settings of images, got do_resize: false"),
        ({"do_pad": True}, "do_pad: true"),
        ({"image_std": [1, 0, 1]}, "image_std"),
        ({"size": "large"}, "expected settings of images"),
    ):
        path.write_text(json.dumps(said | changed))
        with pytest.raises(ValueError, match=match):
            ImageSettings.of_folder(tmp_path, CLIP)
    path.unlink()
    (tmp_path / "processor_config.json").write_text(json.dumps({"image_processor": said}))
    assert ImageSettings.of_folder(tmp_path, CLIP) == found


def test_a_tower_alone(tmp_path: Path) -> None:
    wt.manual_seed(0)
    for config in (CLIP, SIGLIP.vision):
        tower = VisionTower(config).eval()
        tower.save_pretrained(tmp_path)
        again = VisionTower.from_pretrained(tmp_path)
        for a, b in zip(tower(images()), again(images()), strict=True):
            assert wt.equal(a, b)
        assert again(images()).last_hidden_state.shape == (2, 9 + config.class_token, 24)
