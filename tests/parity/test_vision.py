"""SigLIP, CLIP's tower and LLaVA: embeddings, logits and greedy tokens are those of transformers, which reads
what is written; images become the pixels that its processors make."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from warptape.models.images import ImageSettings
from warptape.models.llava import Llava
from warptape.models.siglip import Siglip
from warptape.models.vision import VisionTower

pytestmark = pytest.mark.parity
torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers")
TOWER: dict[str, Any] = {
    "hidden_size": 24,
    "intermediate_size": 36,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "image_size": 20,
    "patch_size": 6,
}
TEXT = {"vocab_size": 60, "hidden_size": 24, "intermediate_size": 36, "num_hidden_layers": 2,
        "num_attention_heads": 3, "max_position_embeddings": 16}  # fmt: skip
LLAMA = {"model_type": "llama", "vocab_size": 64, "hidden_size": 32, "intermediate_size": 48,
         "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
         "max_position_embeddings": 128}  # fmt: skip


def made(config: Any, kind: Any, path: Path) -> Any:
    """Written, with noise in every tensor."""
    torch.manual_seed(0)
    model = kind(config).eval()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(torch.randn(p.shape) * 0.2)
    model.save_pretrained(path)
    return model


def pixels() -> np.ndarray:
    return np.random.default_rng(0).standard_normal((2, 3, 20, 20)).astype(np.float32)


def near(got: wt.Tensor, expected: Any) -> bool:
    expected = expected.numpy()
    return bool(np.abs(got.detach().numpy() - expected).max() <= 1e-5 * np.abs(expected).max())


def written_back(model: Any, theirs: Any, path: Path) -> None:
    """What is written is what was read, for transformers."""
    model.save_pretrained(path)
    again, told = type(theirs).from_pretrained(path, output_loading_info=True)
    assert not any(told.values()), told
    state = theirs.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in again.state_dict().items())


def test_siglip(tmp_path: Path) -> None:
    config = transformers.SiglipConfig(text_config=TEXT, vision_config=TOWER)
    theirs = made(config, transformers.SiglipModel, tmp_path / "theirs")
    model = Siglip.from_pretrained(tmp_path / "theirs")
    tokens = np.random.default_rng(1).integers(0, 60, (3, 16))
    with torch.no_grad():
        want = theirs(input_ids=torch.from_numpy(tokens), pixel_values=torch.from_numpy(pixels()))
    got = model(wt.from_numpy(pixels()), wt.from_numpy(tokens))
    for name in ("logits_per_image", "image_embeds", "text_embeds"):
        assert near(getattr(got, name), want[name]), name
    written_back(model, theirs, tmp_path / "back")


@pytest.mark.parametrize("name", ["Siglip", "CLIP"])
def test_towers(name: str, tmp_path: Path) -> None:
    config = getattr(transformers, f"{name}VisionConfig")(**TOWER)
    theirs = made(config, getattr(transformers, f"{name}VisionModel"), tmp_path / "theirs")
    model = VisionTower.from_pretrained(tmp_path / "theirs")
    with torch.no_grad():
        want = theirs(torch.from_numpy(pixels()))
    got = model(wt.from_numpy(pixels()))
    assert near(got.last_hidden_state, want.last_hidden_state) and got.pooler_output is not None
    assert near(got.pooler_output, want.pooler_output)
    written_back(model, theirs, tmp_path / "back")


@pytest.mark.parametrize(
    ("tower", "features", "layer"),
    [("clip", "default", -2), ("clip", "full", -1), ("siglip", "full", -2), ("siglip", "full", -1)],
)
def test_llava(tower: str, features: str, layer: int, tmp_path: Path) -> None:
    head = {"vision_use_head": False} if tower == "siglip" else {}
    config = transformers.LlavaConfig(
        text_config=LLAMA,
        vision_config={**TOWER, **head, "model_type": f"{tower}_vision_model"},
        image_token_id=63,
        vision_feature_select_strategy=features,
        vision_feature_layer=layer,
    )
    theirs = made(config, transformers.LlavaForConditionalGeneration, tmp_path / "theirs")
    model = Llava.from_pretrained(tmp_path / "theirs")
    image = [63] * model.config.image_tokens
    tokens = np.array([[1, 5, *image, 7, 8, *image, 9]])
    given = {"input_ids": torch.from_numpy(tokens), "pixel_values": torch.from_numpy(pixels())}
    with torch.no_grad():
        want = theirs(**given).logits
        ends = {"eos_token_id": None, "pad_token_id": 0, "do_sample": False}
        written = theirs.generate(**given, max_new_tokens=40, **ends)
    assert near(model(wt.from_numpy(tokens), wt.from_numpy(pixels())), want)
    got = model.generate(wt.from_numpy(tokens), wt.from_numpy(pixels()), 40)
    assert np.array_equal(got.numpy(), written.numpy())
    written_back(model, theirs, tmp_path / "back")


@pytest.mark.parametrize("size", [(50, 33), (33, 50), (20, 20), (7, 64)])
def test_pixels(size: tuple[int, int], tmp_path: Path) -> None:
    Image = pytest.importorskip("PIL.Image")
    rng = np.random.default_rng(2)
    image = Image.fromarray(rng.integers(0, 256, (size[1], size[0], 3), np.uint8))
    kinds = (
        "CLIPImageProcessorPil",
        {"size": {"shortest_edge": 20}, "crop_size": {"height": 20, "width": 20}},
    )
    siglip = ("SiglipImageProcessorPil", {"size": {"height": 20, "width": 20}})
    for (name, more), own in ((kinds, ImageSettings.clip(20)), (siglip, ImageSettings.siglip(20))):
        kind = getattr(transformers, name, None) or getattr(transformers, name.removesuffix("Pil"))
        processor = kind(**more)
        want = processor(image, return_tensors="np")["pixel_values"][0]
        assert np.abs(own(image).numpy() - np.asarray(want)).max() < 1e-5, name
        folder = tmp_path / name
        folder.mkdir()
        processor.save_pretrained(folder)
        config = type("Config", (), {"image_size": 20, "class_token": "CLIP" in name})
        assert ImageSettings.of_folder(folder, config) == own
