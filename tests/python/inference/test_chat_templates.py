"""Chat templates: what transformers 5.24 renders, from the files in which models keep them."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import warptape as wt
from quantized_files import gguf_bytes
from warptape.inference import LLM, SamplingParams
from warptape.inference.tokenizer import Tokenizer
from warptape.models.gguf_decoder import GGUFDecoder

tokenizers = pytest.importorskip("tokenizers")
pytest.importorskip("jinja2")

TALK = [
    {"role": "system", "content": "Be <b> & é"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "Sure ", "reasoning": "hm"},
    {"role": "tool", "content": None, "x": [1, {"a": None}]},
]
TOOLS = [{"type": "function", "function": {"name": "f", "parameters": {"b": {}, "a": {}}}}]
CONFIG = {
    "bos_token": "<s>",
    "eos_token": {"content": "</s>", "__type": "AddedToken"},
    "image_token": "<img>",
    "unk_token": None,
    "extra_special_tokens": {"my_thing": "<t>"},
}


def folder(path: Path, config: dict[str, Any], **files: str) -> Path:
    tokenizers.Tokenizer(tokenizers.models.BPE({"h": 0, "i": 1}, [])).save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps(config))
    for name, text in files.items():
        place = path / name.replace("__", "/").replace("_jinja", ".jinja")
        place.parent.mkdir(exist_ok=True)
        place.write_text(text)
    return path


# Made by transformers' apply_chat_template(tokenize=False) of a folder with the same files; None: it raises.
RENDERED: list[tuple[str, dict[str, Any], str | None]] = [
    ("{% for m in messages %}\n  {% if m.role == 'user' %}\nU:{{ m.content }}\n  {% endif %}\n{% endfor %}",
     {}, "U:hi\n"),
    ("{{ tools is defined }} {{ tools is none }} {{ documents is none }} {{ bos_token is defined }}"
     " {{ pad_token is defined }} {{ nothing is defined }}|{{ pad_token }}|{{ bos_token }}",
     {}, "True True True True False False||<s>"),
    ("{{ messages[0]|tojson }}", {}, '{"role": "system", "content": "Be <b> & é"}'),
    ("{{ tools|tojson(sort_keys=true, separators=(',',':')) }}", {"tools": TOOLS},
     '[{"function":{"name":"f","parameters":{"a":{},"b":{}}},"type":"function"}]'),
    ("{{ messages[0].content|tojson(ensure_ascii=true) }}", {}, '"Be <b> & \\u00e9"'),
    ("{% for m in messages %}{% if loop.index0 == 1 %}{% continue %}{% endif %}{{ m.role }}"
     "{% if loop.index0 == 2 %}{% break %}{% endif %}{% endfor %}", {}, "systemassistant"),
    ("{% generation %}{{ messages[1].content }}{% endgeneration %}x{% set a = 1 %}{% generation %}"
     "{% set a = 2 %}{{ a }}{% endgeneration %}{{ a }}", {}, "hix21"),
    ("{{ messages[3].content is defined }}{{ 'content' in messages[3] }}{{ messages[3].x }}"
     "{{ messages[2].reasoning_content }}{{ messages[2].thinking }}",
     {}, "FalseFalse[1, {'a': None}]hmhm"),
    ("{{ raise_exception('no') }}", {}, None),
    ("{{ 2 ** 3 }}{{ 7 % 3 }}{{ '%s-%05d' % ('a', 3) }}{{ 'ab' * 3 }}", {}, "81a-00003ababab"),
    ("{{ strftime_now('%Y') }}", {}, time.strftime("%Y")),
    ("{{ messages.append(1) }}", {}, None),
    ("{{ ''.__class__ }}{{ messages[0].__class__ }}", {}, ""),
    ("{{ x.y.z }}", {}, None),
    ("{{- ' a ' -}}\n  b\n", {}, " a b"),
    ("{{ eos_token }}{{ image_token }}{{ my }}{{ sep_token is defined }}{{ my_thing }}", {"my": [1]},
     "</s><img>[1]False<t>"),
    ("{{ {'a': 1, 'b': none}|tojson }}{{ dict(a=1) }}", {}, "{\"a\": 1, \"b\": null}{'a': 1}"),
    ("{% for m in messages[:3] %}[{{ m.role }}]{{ m.content }}{% endfor %}",
     {"continue_final_message": True}, "[system]Be <b> & é[user]hi[assistant]Sure "),
    ("{% for m in messages[:3] %}[{{ m.role }}]{{ m.content|trim }}</s>{% endfor %}",
     {"continue_final_message": True}, "[system]Be <b> & é</s>[user]hi</s>[assistant]Sure"),
    ("{% if tools %}{{ tools[0].function.name }}{% endif %}{{ documents }}",
     {"documents": [{"title": "t"}], "tools": TOOLS}, "f[{'title': 't'}]"),
]  # fmt: skip


@pytest.mark.parametrize("number", range(len(RENDERED)))
def test_what_transformers_renders(number: int, tmp_path: Path) -> None:
    template, values, expected = RENDERED[number]
    text = Tokenizer(folder(tmp_path, {**CONFIG, "chat_template": template}))
    talk = TALK[:3] if "continue_final_message" in values else TALK
    values = {"add_generation_prompt": False, **values}
    if expected is None:
        with pytest.raises(ValueError, match="the chat template refuses these messages"):
            text.apply_chat_template(talk, **values)
    else:
        assert text.apply_chat_template(talk, **values) == expected


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "T"}]


def test_places_of_templates(tmp_path: Path) -> None:
    def rendered(config: dict[str, Any], given: str | None = None, tools: Any = None, **files: str) -> str:
        place = tmp_path / str(len(list(tmp_path.iterdir())))
        place.mkdir()
        more = {} if tools is None else {"tools": tools}
        return Tokenizer(folder(place, config, **files)).apply_chat_template(TALK, given, **more)

    one = {"chat_template": "C"}
    assert rendered(one) == "C" and rendered(one, "own") == "own"
    assert rendered(one, chat_template_jinja="J") == "J"
    assert rendered({"chat_template": NAMED}) == "D"
    assert rendered({"chat_template": NAMED}, tools=TOOLS) == "T"
    assert rendered({"chat_template": NAMED}, "tool_use") == "T"
    beside = {"chat_template_jinja": "J", "additional_chat_templates__tool_use_jinja": "TU"}
    assert rendered(one, tools=TOOLS, **beside) == "TU" and rendered(one, **beside) == "J"
    with pytest.raises(ValueError, match="has no chat template, only those by the names rag"):
        rendered({"chat_template": [{"name": "rag", "template": "R"}]})
    with pytest.raises(ValueError, match="the chat template is none"):
        rendered({"chat_template": "{% if %}"})
    # Tokens of older folders.
    tokens = '{"bos_token": {"content": "<S>"}}'
    text = Tokenizer(folder(tmp_path, {"chat_template": "{{ bos_token }}", "bos_token": "<s>"}))
    (tmp_path / "special_tokens_map.json").write_text(tokens)
    assert text.apply_chat_template(TALK) == "<S>"
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(ValueError, match=r"tokenizer_config.json is no JSON"):
        Tokenizer(tmp_path).apply_chat_template(TALK)
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "mended"}')
    assert Tokenizer(tmp_path).apply_chat_template(TALK) == "mended"


def test_one_operation_does_not_fill_the_memory(tmp_path: Path) -> None:
    text = Tokenizer(folder(tmp_path, {"chat_template": "x"}))
    for template in ("{{ '%400000000d' % 1 }}", "{{ '%*d' % (400000000, 1) }}", "{{ 'x' * 99999999 }}",
                     "{{ 9 ** 99999999 }}", "{{ [1] * 99999999 }}"):  # fmt: skip
        with pytest.raises(ValueError, match="of what is too large"):
            text.apply_chat_template(TALK, template)


# ---- GGUF files, as the gguf package writes them ----

NAMES = ("<s>", "</s>", "<|im_end|>", "<eot>", "<eom>")


def write_gguf(path: Path, template: Any, **more: int) -> Path:
    gguf = pytest.importorskip("gguf")
    rng, writer = np.random.default_rng(0), gguf.GGUFWriter(str(path), "llama")
    tokens = [*NAMES, *(chr(97 + i) for i in range(26)), "ab"]
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_block_count(1)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] * len(NAMES) + [1] * 27)
    writer.add_token_merges(["a b"])
    for name, token in more.items():
        getattr(writer, f"add_{name}_token_id")(token)
    if template is not None:
        writer.add_chat_template(template)
    matrix, vector = (64, 32), (32,)
    sizes = {
        "attn_norm": vector,
        "ffn_norm": vector,
        "ffn_gate": matrix,
        "ffn_up": matrix,
        "ffn_down": (32, 64),
    }
    sizes |= {f"attn_{part}": (32, 32) for part in ("q", "k", "v", "output")}
    shapes = {f"blk.0.{name}.weight": shape for name, shape in sizes.items()}
    shapes |= {"token_embd.weight": (len(tokens), 32), "output_norm.weight": vector,
               "output.weight": (len(tokens), 32)}  # fmt: skip
    for name, shape in shapes.items():
        writer.add_tensor(name, rng.standard_normal(shape).astype(np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def test_templates_and_ends_of_gguf_files(tmp_path: Path) -> None:
    talk = "{% for m in messages %}{{ m.content }}{% endfor %}"
    llm = LLM(write_gguf(tmp_path / "one.gguf", talk, eos=1, eot=3, eom=4))
    assert llm.conversation([{"role": "user", "content": "abc"}])["prompt"] == "abc"
    for end in (1, 2, 3, 4):  # the end of a turn by its name alone, too, as llama.cpp has it
        params = SamplingParams(max_tokens=5, temperature=0, logit_bias={end: 1000.0})
        (answer,) = llm.generate("abc", params)[0].outputs
        assert (answer.finish_reason, len(answer.token_ids), answer.text) == ("stop", 1, "")
    named = Tokenizer(write_gguf(tmp_path / "named.gguf", NAMED, eos=1))
    assert named.apply_chat_template(TALK) == "D"
    assert named.apply_chat_template(TALK, tools=TOOLS) == "T"
    named.save(tmp_path)  # what `warptape pack` writes
    assert Tokenizer(tmp_path).apply_chat_template(TALK, tools=TOOLS) == "T"
    assert GGUFDecoder(write_gguf(tmp_path / "none.gguf", None, eos=1)).config.eos_token_id == (1, 2)
    with pytest.raises(ValueError, match="has no chat template"):
        Tokenizer(tmp_path / "none.gguf").apply_chat_template(TALK)


def test_kinds_of_gguf_tensors_that_are_not_read(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf")
    kinds = gguf.GGMLQuantizationType
    path = tmp_path / "x.gguf"
    from warptape.models.gguf_kinds import KINDS, OTHERS

    ours = {number: kind.name for number, kind in KINDS.items()} | OTHERS
    assert {int(kind): kind.name for kind in kinds if int(kind) in ours} == ours
    path.write_bytes(gguf_bytes({}, {"x": ("IQ1_M", (1, 256), bytes(56))}))
    with pytest.raises(wt.distributed.checkpoint.CheckpointException) as raised:
        GGUFDecoder(path)
    assert "IQ1_M" in str(raised.value) and "damaged" not in str(raised.value)
