"""Tokenizers of folders without tokenizer.json give the tokens and texts of the packages they belong to."""

from __future__ import annotations

import contextlib
import json
import random
from pathlib import Path

import pytest
from warptape.inference.tokenizer import Tokenizer, has_tokenizer

from golden import tokenizers as recorded

pytest.importorskip("tokenizers")
NAMES = [*recorded.cases()]


@pytest.mark.parametrize("name", NAMES)
def test_recorded(name: str, tmp_path: Path) -> None:
    case = recorded.cases()[name]
    recorded.write_case(tmp_path, case)
    assert has_tokenizer(tmp_path)
    ours = Tokenizer(tmp_path)
    for text, ids, back in zip(case["texts"], case["ids"], case["back"]):
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == back
        stream = ours.stream()
        assert "".join(stream(token) for token in ids) + stream.flush() == back
    ours.save(tmp_path)  # as tokenizer.json, which is read from then on
    again = Tokenizer(tmp_path)
    assert [again.encode(text) for text in case["texts"]] == case["ids"]
    assert again.chat_template("{{ eos_token }}")[1] == ours.chat_template("x")[1]


@pytest.mark.parametrize("name", NAMES)
def test_random_texts(name: str, tmp_path: Path) -> None:
    """Beside the packages themselves, where they are installed."""
    for package in ("tiktoken", "mistral_common", "sentencepiece"):
        pytest.importorskip(package)
    from golden import record_tokenizers

    case, rng = record_tokenizers.all_cases()[name], random.Random(2)
    (tmp_path / case.file).write_bytes(case.data)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(case.config))
    ours = Tokenizer(tmp_path)
    for _ in range(500):
        text = recorded.random_text(rng)
        ids = case.encode(text)
        assert ours.encode(text) == ids, text
        assert ours.decode(ids) == case.decode(ids)


@pytest.mark.parametrize("name", ["cl100k_base", "tekken", "byte pairs", "unigram"])
def test_damaged_files(name: str, tmp_path: Path) -> None:
    case, rng = recorded.cases()[name], random.Random(0)
    recorded.write_case(tmp_path, case)
    whole = (tmp_path / case["file"]).read_bytes()
    for trial in range(60):
        damaged = bytearray(whole[: rng.randrange(len(whole))] if trial % 2 else whole)
        for _ in range(3 if damaged else 0):
            damaged[rng.randrange(len(damaged))] = rng.randrange(256)
        (tmp_path / case["file"]).write_bytes(damaged)
        with contextlib.suppress(ValueError):  # or it is another tokenizer
            Tokenizer(tmp_path)


def test_added_tokens(tmp_path: Path) -> None:
    """Behind the vocabulary, as the folders of Phi-3 and Qwen have them."""
    case = recorded.cases()["byte pairs"]
    recorded.write_case(tmp_path, case)
    there = Tokenizer(tmp_path).encode("<|end|>", add_special_tokens=False)
    assert len(there) > 1
    count = len(json.loads(Tokenizer(tmp_path).library_json())["model"]["vocab"])
    added = {str(count): {"content": "<|end|>", "special": True}, "1": {"content": "<s>", "special": True}}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    assert Tokenizer(tmp_path).encode("the<|end|>")[-1] == count
    added[str(count + 5)] = {"content": "<|far|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"added_tokens_decoder": added}))
    with pytest.raises(ValueError, match="cannot have the number"):
        Tokenizer(tmp_path)
    (tmp_path / "tokenizer_config.json").unlink()
    (tmp_path / "added_tokens.json").write_text(json.dumps({"<|end|>": count}))
    assert Tokenizer(tmp_path).encode("the<|end|>")[-1] == count


def test_numbers_of_xlm_roberta(tmp_path: Path) -> None:
    """fairseq's: <s>, <pad>, </s>, <unk>, then the pieces, then <mask>."""
    case = recorded.cases()["unigram"]
    recorded.write_case(tmp_path, {**case, "file": "sentencepiece.bpe.model", "config": {}})
    ours = Tokenizer(tmp_path)
    for text, ids in zip(case["texts"], case["ids"]):
        assert ours.encode(text) == [0, *(i + 1 if i else 3 for i in ids[:-1]), 2]
    assert ours.encode("<mask>")[1] == len(json.loads(ours.library_json())["model"]["vocab"]) - 1
