"""Adapters of requests: each answers as a model into which its adapter was merged."""

import pytest
from traffic import VOCAB, model_of, write_adapters
from warptape.inference import LLM, LoRARequest, SamplingParams
from warptape.models import load_adapter

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


def unpacked():
    return model_of("llama", "float32", None, invariant=False)


def merged(adapter, prompt):
    """What the model itself generates with the adapter in its weights."""
    import warptape as torch

    model = unpacked()
    if adapter is not None:
        load_adapter(model, adapter.lora_path).merge()
    return model.generate(torch.tensor([prompt]), 12)[0, len(prompt) :].tolist()


def test_a_batch_of_adapters(tmp_path):
    adapters = [None, *write_adapters(tmp_path)]
    prompts = [[(7 * i + j) % VOCAB for j in range(20 + i)] for i in range(6)]
    asked = [adapters[i % 3] for i in range(6)]
    llm = LLM(unpacked())
    outs = llm.generate(prompts, PARAMS, lora_request=asked)
    expected = [merged(adapter, prompt) for adapter, prompt in zip(asked, prompts)]
    assert [o.outputs[0].token_ids for o in outs] == expected
    assert [o.lora_request for o in outs] == [o.outputs[0].lora_request for o in outs] == asked
    assert (asked[1].name, asked[1].adapter_id, asked[1].path) == ("1", 1, tmp_path / "1")
    assert len({tuple(merged(adapter, prompts[0])) for adapter in adapters}) == 3  # adapters matter


def test_prefixes_are_not_shared_between_adapters(tmp_path):
    adapter, _ = write_adapters(tmp_path)
    prompt = list(range(60)) + list(range(40))
    llm = LLM(unpacked())
    for lora in (None, adapter, None, adapter):
        out = llm.generate([prompt], PARAMS, lora_request=lora)[0]
        assert out.outputs[0].token_ids == merged(lora, prompt)
    assert llm.llm_engine.stats()["cached_prompt_tokens"] == 2 * 96


def test_wrong_requests(tmp_path):
    first, second = write_adapters(tmp_path)
    llm = LLM(unpacked())
    with pytest.raises(FileNotFoundError):
        llm.generate([[1]], PARAMS, lora_request=LoRARequest("none", 3, tmp_path / "nowhere"))
    llm.generate([[1]], PARAMS, lora_request=first)
    with pytest.raises(ValueError, match="lora_int_id 1 is"):
        llm.generate([[1]], PARAMS, lora_request=LoRARequest("other", 1, second.lora_path))
    with pytest.raises(TypeError, match="must be a LoRARequest"):
        llm.generate([[1]], PARAMS, lora_request="path")
    with pytest.raises(ValueError, match="above 0"):
        LoRARequest("zero", 0, tmp_path)
    assert not llm.llm_engine.has_unfinished_requests()
