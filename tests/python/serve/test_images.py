"""Images in chat requests: answers are the model's own, and what is no image is refused."""

import base64
import io
import os
import signal

import numpy as np
import pytest
from serving_models import SEEING, Process, write_llava, write_llm
from warptape.inference import LLM, SamplingParams
from warptape.serve.errors import ApiError
from warptape.serve.images import laid_out, part_of

Image = pytest.importorskip("PIL.Image")


def drawn(seed, width=31, height=24):
    pixels = np.random.default_rng(seed).integers(0, 256, (height, width, 3), np.uint8)
    return Image.fromarray(pixels)


def url_of(image, kind="png"):
    out = io.BytesIO()
    image.save(out, kind)
    return f"data:image/{kind};base64,{base64.b64encode(out.getvalue()).decode()}"


def part(url):
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


def message(*parts):
    every = [{"type": "text", "text": each} if isinstance(each, str) else each for each in parts]
    return [{"role": "user", "content": every}]


def asked(messages, **more):
    return {"model": "llava", "messages": messages, "max_tokens": 10, "temperature": 0, **more}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("seeing")
    write_llava(root / "llava" / "1")
    write_llm(root / "llm" / "1")
    return root


@pytest.fixture(scope="module")
def process(folder):
    with Process(folder, "--max-images", 3, "--max-image-pixels", 5000, "--access-log", "off") as process:
        yield process


@pytest.fixture(scope="module")
def llm(folder):
    return LLM(folder / "llava" / "1")


def test_answers_are_the_models_own(process, llm):
    chat = [
        *message("What is this? ", part(url_of(drawn(0))), " And ", part(url_of(drawn(1)))),
        {"role": "assistant", "content": "Noise."},
        *message("Sure?"),
    ]
    text = "user:What is this? <image> And <image>\nassistant:Noise.\nuser:Sure?\nassistant:"
    prompt = {"prompt": text, "multi_modal_data": {"image": [drawn(0), drawn(1)]}}
    expected = llm.generate(prompt, SamplingParams(temperature=0, max_tokens=10))[0]
    status, answer = process.post("/v1/chat/completions", asked(chat))
    assert status == 200, answer
    assert answer["choices"][0]["message"]["content"] == expected.outputs[0].text
    assert answer["usage"]["prompt_tokens"] == len(expected.prompt_token_ids)
    other = process.post("/v1/chat/completions", asked([*message(part(url_of(drawn(2)))), *chat[1:]]))[1]
    assert other["choices"][0]["message"]["content"] != expected.outputs[0].text
    for pid in process.worker_pids():  # the images are sent to the next process, too
        os.kill(pid, signal.SIGKILL)
    assert process.post("/v1/chat/completions", asked(chat))[1]["choices"] == answer["choices"]
    jpeg = process.post("/v1/chat/completions", asked(message(part(url_of(drawn(0), "jpeg")))))
    assert jpeg[0] == 200
    plain = process.post("/v1/chat/completions", asked(message("hi")))[1]
    expected = llm.generate("user:hi\nassistant:", SamplingParams(temperature=0, max_tokens=10))[0]
    assert plain["choices"][0]["message"]["content"] == expected.outputs[0].text


def test_what_is_refused(process):
    good = part(url_of(drawn(0)))
    cut = url_of(drawn(0))[:-200]
    for messages, more, said in (
        (message(part("https://example.com/a.png")), {}, "must be a data: URL"),
        (message(part("data:image/png,abc")), {}, "must be data:image/png;base64"),
        (message(part("data:image/png;base64,@@")), {}, "not in base64"),
        (message(part("data:image/png;base64,aGVsbG8=")), {}, "must be a PNG or JPEG file"),
        (message(part(url_of(drawn(0), "gif"))), {}, "must be a PNG or JPEG file"),
        (message(part(cut + "=" * (-len(cut.partition(",")[2]) % 4))), {}, "an image"),
        (message(part(url_of(drawn(0, 100, 51)))), {}, "may have 5000 pixels, got 100 x 51"),
        (message(*[good] * 4), {}, "may have 3 images, got 4"),
        (message({"type": "image_url"}), {}, "must be an object with a url"),
        (message(good, "<image>"), {}, "2 places for images"),
        (message("<image>"), {}, "1 places for images"),
        (message(good), {"truncate_prompt_tokens": 5}, "takes no truncated prompt"),
        (message(good), {"model": "llm"}, "llm reads no images"),
        (message({"type": "input_audio"}), {}, "got a part of type 'input_audio'"),
    ):
        status, answer = process.post("/v1/chat/completions", asked(messages, **more))
        assert status == 400 and said in answer["error"]["message"], (said, answer)
    tokens = {"model": "llava", "prompt": [1, 257], "max_tokens": 2}
    status, answer = process.post("/v1/completions", tokens)
    assert status == 400 and "1 places for images" in answer["error"]["message"]


def test_without_pillow(folder, tmp_path, monkeypatch):
    (tmp_path / "PIL").mkdir()
    (tmp_path / "PIL" / "__init__.py").write_text("raise ImportError('none here')")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{os.environ.get('PYTHONPATH', '')}")
    with Process(folder / "llava" / "1", "--name", "llava", "--access-log", "off") as process:
        status, answer = process.post("/v1/chat/completions", asked(message(part(url_of(drawn(0))))))
        assert status == 400 and "images need Pillow, which is not installed" in answer["error"]["message"]


def test_how_templates_get_images():
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    chat = [{"role": "user", "content": parts}, {"role": "assistant", "content": "c"}]
    typed = laid_out(chat, SEEING, "<image>")
    assert typed[0]["content"] == parts and typed[1]["content"] == [{"type": "text", "text": "c"}]
    plain = laid_out(chat, "{% for m in messages %}{{ m.content }}{% endfor %}", "<image>")
    assert [each["content"] for each in plain] == ["a<image>\nb", "c"]
    urls = []
    assert part_of(part("DATA:x"), "messages[0]", urls) == {"type": "image"} and urls == ["DATA:x"]
    with pytest.raises(ApiError):
        part_of({"image_url": {"url": 3}}, "messages[0]", urls)
