"""Packed folders: the same answers, mapped memory, and damaged files."""

import json

import pytest
from traffic import model_of
from warptape.inference import LLM, SamplingParams
from warptape.inference.__main__ import main
from warptape.inference.llm import prepare
from warptape.inference.packed_file import PACKED, load_packed, save_packed

PARAMS = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True, logprobs=0)
PROMPTS = [[1, 2, 3], list(range(40))]


def answers(llm):
    outs = [o.outputs[0] for o in llm.generate(PROMPTS, PARAMS)]
    return [(o.token_ids, o.cumulative_logprob) for o in outs]


@pytest.mark.parametrize("quantization", [None, "int8", "int4"])
@pytest.mark.parametrize("name, dtype", [("gpt2", "bfloat16"), ("llama", "float32"), ("qwen3", "bfloat16")])
def test_a_packed_folder_gives_the_same_answers(tmp_path, name, dtype, quantization):
    model = model_of(name, dtype, None, invariant=False)
    model.save_pretrained(tmp_path / "plain")
    expected = answers(LLM(tmp_path / "plain", quantization=quantization, skip_tokenizer_init=True))
    arguments = ["pack", str(tmp_path / "plain"), str(tmp_path / "packed")]
    assert main([*arguments, *(["--quantization", quantization] if quantization else [])]) == 0
    assert answers(LLM(tmp_path / "packed", skip_tokenizer_init=True)) == expected
    assert sorted(p.name for p in (tmp_path / "packed").iterdir()) == ["config.json", PACKED]


def test_weights_lie_in_the_file(tmp_path):
    save_packed(model_of("llama", "float32", None), tmp_path)
    model = load_packed(tmp_path)
    with open("/proc/self/maps") as maps:
        mapped = [line for line in maps if str(tmp_path / PACKED) in line]
    first, last = (int(x, 16) for x in mapped[0].split()[0].split("-"))
    weights = [*model.state_dict().values()]
    assert all(first <= w.data_ptr() < last for w in weights)


def test_damaged_folders(tmp_path):
    packed = model_of("llama", "float32", None)
    with pytest.raises(ValueError, match=r"is an nn\.Linear"):
        save_packed(model_of("llama", "float32", None, invariant=False), tmp_path)
    save_packed(prepare(packed, None, True), tmp_path)
    with pytest.raises(ValueError, match="is packed"):
        LLM(tmp_path, quantization="int8", skip_tokenizer_init=True)
    whole = (tmp_path / PACKED).read_bytes()
    (tmp_path / PACKED).write_bytes(whole[:-100])
    with pytest.raises(ValueError, match=PACKED):
        load_packed(tmp_path)
    for old, new, text in (
        (b'"warptape_packed":"1"', b'"warptape_packed":"9"', "expected version 1, got 9"),
        (b'\\"kind\\"', b'\\"mind\\"', "description of the layers is damaged"),
        (b'"norm.weight"', b'"morn.weight"', r"norm\.weight is None"),
    ):
        assert old in whole
        (tmp_path / PACKED).write_bytes(whole.replace(old, new))
        with pytest.raises(ValueError, match=text):
            load_packed(tmp_path)
    (tmp_path / PACKED).write_bytes(whole)
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "vocab_size": 65}))
    with pytest.raises(ValueError, match="expected"):
        load_packed(tmp_path)
