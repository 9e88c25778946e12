"""Images in prompts: an engine's tokens are those of the model alone, to the bit whatever is beside them."""

from datetime import timedelta

import numpy as np
import pytest
import warptape as wt
import warptape.distributed as dist
from golden import models as recorded
from model_configs import CLIP, IMAGE, LLAVA, SIGLIP, build, fixed_tokens
from warptape.inference import LLM, PackedLinear, SamplingParams
from warptape.inference.images import expanded
from warptape.inference.linear import pack_
from warptape.models.images import ImageSettings
from warptape.models.llava import Llava
from warptape.models.siglip import Siglip

N = LLAVA.image_tokens
GREEDY = SamplingParams(temperature=0, max_tokens=40, ignore_eos=True, logprobs=2)


def model():
    wt.manual_seed(3)
    return Llava(LLAVA).eval()


def image(seed):
    return np.random.default_rng(seed).integers(0, 256, (20, 20, 3), np.uint8)


def pixels(*seeds):
    return wt.stack([ImageSettings.clip(20).normalized(image(seed)) for seed in seeds])


def prompt(tokens, *seeds):
    return {"prompt_token_ids": tokens, "multi_modal_data": {"image": [image(seed) for seed in seeds]}}


def make(**more):
    return LLM(model(), skip_tokenizer_init=True, **more)


def answer(out):
    return out.outputs[0].token_ids, [
        [(token, each.logprob) for token, each in entries.items()] for entries in out.outputs[0].logprobs
    ]


PROMPTS = [
    prompt([1, IMAGE, 2, 3], 0),
    prompt([1, IMAGE, 2, 3], 1),
    prompt([4, IMAGE, 5, IMAGE, 6], 1, 0),
    prompt([IMAGE], 2),
    prompt([7, 8, 9] * 5),
    prompt([1, IMAGE, 2, 3], 0),
]


def test_tokens_are_the_models_own():
    outs = make().generate(PROMPTS, GREEDY)
    for asked, out, seeds in zip(PROMPTS, outs, ((0,), (1,), (1, 0), (2,), (), (0,)), strict=True):
        whole = expanded(asked["prompt_token_ids"], IMAGE, len(seeds), N)
        assert out.prompt_token_ids == whole
        given = pixels(*seeds) if seeds else None
        expected = model().generate(wt.tensor([whole]), given, 40)[0, len(whole) :].tolist()
        assert out.outputs[0].token_ids == expected
    assert outs[0].outputs[0].token_ids != outs[1].outputs[0].token_ids  # images matter
    again = prompt(expanded([1, IMAGE, 2, 3], IMAGE, 1, N), 0)
    assert make().generate(again, GREEDY)[0].outputs[0].token_ids == outs[0].outputs[0].token_ids


def test_load_changes_no_bit():
    alone = [answer(make().generate(each, GREEDY)[0]) for each in PROMPTS]
    for more in (
        {},
        {"max_num_batched_tokens": 4},
        {"max_num_seqs": 2, "max_num_batched_tokens": 7},
        {"kv_cache_memory_bytes": 5 * 2 * 3 * 2 * 32 * 6 * 4},  # 5 pages: some have to wait
    ):
        llm = make(**more)
        for _ in range(2):  # the second time much is in the cache
            assert [answer(out) for out in llm.generate(PROMPTS, GREEDY)] == alone


def test_equal_tokens_of_other_images_share_nothing():
    llm, tokens = make(), [IMAGE, *([5, 6] * 20)]
    first = answer(llm.generate(prompt(tokens, 0), GREEDY)[0])
    cached = llm.llm_engine.stats()["cached_prompt_tokens"]
    other = answer(llm.generate(prompt(tokens, 1), GREEDY)[0])
    assert llm.llm_engine.stats()["cached_prompt_tokens"] == cached and other != first
    assert answer(llm.generate(prompt(tokens, 0), GREEDY)[0]) == first
    assert llm.llm_engine.stats()["cached_prompt_tokens"] == cached + 32


def test_several_answers_and_drafts():
    params = SamplingParams(temperature=1, max_tokens=20, n=3, seed=5, ignore_eos=True)
    plain = [each.token_ids for each in make().generate(PROMPTS[0], params)[0].outputs]
    drafted = make(speculative_config={"num_speculative_tokens": 3}).generate(PROMPTS[0], params)[0]
    assert [each.token_ids for each in drafted.outputs] == plain


@pytest.mark.parametrize("quantization", ["int8", None])
def test_parts_and_kinds_of_weights(quantization):
    llm = make(quantization=quantization)
    engine = llm.llm_engine
    assert type(engine.images._model.projector.linear_1) is PackedLinear  # floating, whatever the model is
    alone = answer(llm.generate(PROMPTS[2], GREEDY)[0])
    assert answer(llm.generate(PROMPTS, GREEDY)[2]) == alone


def test_two_ranks():
    def body():
        return [out.outputs[0].token_ids for out in make(tensor_parallel_size=2).generate(PROMPTS, GREEDY)]

    alone = [out.outputs[0].token_ids for out in make().generate(PROMPTS, GREEDY)]
    assert dist.simulate(2, body, timeout=timedelta(seconds=60)) == [alone] * 2


def test_what_is_refused():
    llm = make()
    for asked, error, match in (
        (prompt([1, 2], 0), ValueError, "0 places for images .token 39. and 1 images"),
        (prompt([1, IMAGE, IMAGE], 0), ValueError, "2 places .* and 1 images"),
        ([1, IMAGE], ValueError, "1 places .* and 0 images"),
        (prompt([*([IMAGE] * (N - 1)), 4, IMAGE], 0), ValueError, "must follow each other"),
        (prompt([IMAGE] * 65, *range(65)), ValueError, "at most 64 images, got 65"),
        ({"prompt_token_ids": [1], "multi_modal_data": {"audio": 1}}, ValueError, "must be {'image'"),
        (
            {"prompt_token_ids": [IMAGE], "multi_modal_data": {"image": "x"}},
            TypeError,
            "Pillow's or an array",
        ),
        (
            {"prompt_token_ids": [IMAGE], "multi_modal_data": {"image": image(0)[:19]}},
            ValueError,
            r"must be uint8 \[20, 20, 3\], got uint8 \[19, 20, 3\]",
        ),
    ):
        with pytest.raises(error, match=match):
            llm.generate(asked, GREEDY)
    with pytest.raises(ValueError, match="with images cannot be truncated"):
        llm.generate(PROMPTS[0], SamplingParams(truncate_prompt_tokens=3))
    assert not llm.llm_engine.has_unfinished_requests()
    with pytest.raises(ValueError, match="the model has no images"):
        LLM(build("llama"), skip_tokenizer_init=True).generate(prompt([IMAGE], 0))


def test_pillows_images():
    Image = pytest.importorskip("PIL.Image")
    llm = make()
    expected = answer(llm.generate(PROMPTS[0], GREEDY)[0])
    asked = {"prompt_token_ids": [1, IMAGE, 2, 3]}
    for given in (Image.fromarray(image(0)), [Image.fromarray(image(0)).convert("RGBA")]):
        out = llm.generate({**asked, "multi_modal_data": {"image": given}}, GREEDY)[0]
        assert answer(out) == expected


def test_siglip_alone_and_beside_others():
    wt.manual_seed(4)
    siglip = Siglip(SIGLIP).eval()
    tokens = wt.from_numpy(fixed_tokens()).repeat(4, 1)
    seen = wt.from_numpy(recorded.pixels()).repeat(4, 1, 1, 1) * wt.arange(1, 9)[:, None, None, None]
    before = siglip(seen, tokens)
    siglip.vision.patches.packed = PackedLinear(siglip.vision.patches.linear())
    pack_(siglip)
    with wt.inference_mode():
        out = siglip(seen, tokens)
        assert wt.allclose(out.logits_per_image, before.logits_per_image, atol=1e-5)
        for i in range(8):
            alone = siglip(seen[i : i + 1], tokens[i : i + 1])
            assert wt.equal(alone.image_embeds[0], out.image_embeds[i])
            assert wt.equal(alone.text_embeds[0], out.text_embeds[i])
    assert CLIP.patches == SIGLIP.vision.patches
