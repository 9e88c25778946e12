"""Tokenizers in GGUF files: tokens are those of the tokenizer that was written, or of a definition."""

from __future__ import annotations

import itertools
import json
import random
import unicodedata
from pathlib import Path
from typing import Any

import pytest
import warptape as wt
from golden.tokenizers import random_text
from quantized_files import gguf_bytes, write_decoder
from warptape.inference import LLM, SamplingParams
from warptape.inference.byte_pairs import SPLITS
from warptape.inference.packed_file import save_packed
from warptape.inference.tokenizer import Tokenizer
from warptape.models import Decoder, DecoderConfig

tokenizers = pytest.importorskip("tokenizers")
TEXTS = [
    "the old man and the sea",
    "  two spaces, THE END.\n\n\tIt's 12345 o'clock; don't you'll",
    "naïve café — 東京 🎈 123",
    "",
    "theanthe sea</s> the",
]
CORPUS = ["the old man and the sea is not the land", "an old sea, the end of 12345 lands", "it's theirs"] * 4


def written(path: Path, **metadata: Any) -> Tokenizer:
    """The tokenizer of a file with these values."""
    path.write_bytes(gguf_bytes({f"tokenizer.ggml.{k}": v for k, v in metadata.items()}, {}))
    return Tokenizer(path)


def byte_pairs() -> tuple[Any, list[str], list[str]]:
    """A tokenizer that was trained, its tokens and its merges."""
    from tokenizers import decoders, models, pre_tokenizers, trainers

    made = tokenizers.Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<s>", "</s>"]
    trainer = trainers.BpeTrainer(vocab_size=330, initial_alphabet=alphabet, special_tokens=special)
    made.train_from_iterator(CORPUS, trainer)
    data = json.loads(made.to_str())["model"]
    tokens = sorted(data["vocab"], key=data["vocab"].get)
    return made, tokens, [" ".join(pair) for pair in data["merges"]]


def test_byte_pairs_of_gpt2(tmp_path: Path) -> None:
    made, tokens, merges = byte_pairs()
    assert len(merges) > 30
    types = [3, 3, *[1] * (len(tokens) - 2)]
    ours = written(tmp_path / "x.gguf", model="gpt2", tokens=tokens, merges=merges, token_type=types)
    for text in TEXTS:
        want = made.encode(text).ids
        assert ours.encode(text) == want
        assert ours.decode(want, skip_special_tokens=False) == text


@pytest.mark.parametrize(("pre", "digits"), [("llama-bpe", ["123", "45"]), ("qwen2", list("12345"))])
def test_splits_of_other_models(pre: str, digits: list[str], tmp_path: Path) -> None:
    """Digits are cut as the models have it, and all texts come back."""
    _, tokens, merges = byte_pairs()
    joined = ["12", "123", "45"]
    tokens, merges = [*tokens, *joined], [*merges, "1 2", "12 3", "4 5"]
    tokens = list(dict.fromkeys(tokens))
    values = {"model": "gpt2", "tokens": tokens, "merges": merges, "pre": pre, "bos_token_id": 0}
    ours = written(tmp_path / "x.gguf", **values)
    ids = ours.encode("12345")
    begins = pre == "llama-bpe"
    assert [tokens[i] for i in ids] == [*(["<s>"] if begins else []), *digits]
    for text in TEXTS[:2]:
        assert ours.decode(ours.encode(text, add_special_tokens=False), skip_special_tokens=False) == text


def library_splits() -> dict[str, Any]:
    """How the models' own tokenizer.json cut texts, by llama.cpp's names."""
    from tokenizers import Regex, pre_tokenizers

    level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    gpt2 = pre_tokenizers.ByteLevel(add_prefix_space=False)
    letter = r"[^\r\n\p{L}\p{N}]?"
    upper, lower = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
    rest = r" ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
    tekken = rf"{letter}{upper}*{lower}+|{letter}{upper}+{lower}*|\p{{N}}|{rest}"
    return {
        "smollm": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "refact": pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True), gpt2]),
        "gpt-2": gpt2,
        "tekken": pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(tekken), "isolated"), level]),
    }


@pytest.mark.parametrize("pre", ["smollm", "refact", "gpt-2", "tekken"])
def test_splits_are_those_of_the_models(pre: str, tmp_path: Path) -> None:
    _, tokens, merges = byte_pairs()
    values = {"model": "gpt2", "tokens": tokens, "merges": merges, "pre": pre, "add_bos_token": False}
    made = tokenizers.Tokenizer.from_str(written(tmp_path / "x.gguf", **values).library_json()).pre_tokenizer
    rng, known = random.Random(0), library_splits()[pre]
    for text in [*TEXTS, *(random_text(rng) for _ in range(100))]:
        assert made.pre_tokenize_str(text) == known.pre_tokenize_str(text), text


@pytest.mark.parametrize("pre", [*SPLITS])
def test_texts_come_back(pre: str, tmp_path: Path) -> None:
    _, tokens, merges = byte_pairs()
    ours = written(tmp_path / "x.gguf", model="gpt2", tokens=tokens, merges=merges, pre=pre)
    rng = random.Random(0)
    for text in TEXTS + [random_text(rng) for _ in range(30)]:
        want = unicodedata.normalize("NFC", text) if SPLITS[pre].composed else text
        ids = ours.encode(text, add_special_tokens=False)
        assert ours.decode(ids, skip_special_tokens=False) == want


def test_the_leftmost_of_equal_pairs_is_merged(tmp_path: Path) -> None:
    """Where two pairs that overlap have one sum: runs of a letter, and words that begin as they end."""
    letters = ["▁", "a", "b"]
    words = [
        "aa",
        "ab",
        "ba",
        "aba",
        "aaa",
        "aaaa",
        "ababa",
        "baba",
        "▁a",
        "abab",
        "bab",
        "▁ab",
        "aab",
        "abaab",
    ]
    rng = random.Random(0)
    for trial in range(20):
        rng.shuffle(words)
        tokens = ["<unk>", "<s>", "</s>", *words[: 6 + trial % 9], *letters]
        scores = [0.0] * 3 + [-float(i) for i in range(len(tokens) - 3)]
        values = {"model": "llama", "tokens": tokens, "scores": scores, "unknown_token_id": 0,
                  "token_type": [2, 3, 3, *[1] * (len(tokens) - 3)], "add_bos_token": False}  # fmt: skip
        ours = written(tmp_path / "x.gguf", **values)
        for _ in range(50):
            text = "".join(rng.choices("ab ", [4, 3, 1], k=rng.randint(1, 12)))
            assert ours.encode(text) == merged(values, text), (tokens, text)


PIECES = ["▁the", "▁se", "▁s", "th", "he", "▁t", "▁th", "ea", "an", "▁an", "nd", "the", "sea", "▁sea", "and"]


def pieces() -> dict[str, Any]:
    """A vocabulary with scores, as llama's files have it."""
    letters = [*"▁theasndo lmi12345,.;'", "东"]
    tokens = ["<unk>", "<s>", "</s>", *(f"<0x{i:02X}>" for i in range(256)), *PIECES, *letters]
    tokens = list(dict.fromkeys(tokens))
    known = len(PIECES)
    scores = [0.0] * 259 + [-float(i) for i in range(known)] + [-100.0] * (len(tokens) - 259 - known)
    types = [2, 3, 3, *[6] * 256, *[1] * (len(tokens) - 259)]
    return {
        "model": "llama",
        "tokens": tokens,
        "scores": scores,
        "token_type": types,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "unknown_token_id": 0,
    }


def merged(values: dict[str, Any], text: str) -> list[int]:
    """By definition: the neighbours whose joined piece has the best score are joined, the leftmost of equals;
    a character without a piece becomes its bytes."""
    number = {t: i for i, t in enumerate(values["tokens"]) if values["token_type"][i] == 1}
    parts = list("▁" + text.replace(" ", "▁")) if text else []
    while True:
        pairs = [a + b for a, b in itertools.pairwise(parts)]
        scores = [(-values["scores"][number[p]], i) for i, p in enumerate(pairs) if p in number]
        if not scores:
            break
        at = min(scores)[1]
        parts[at : at + 2] = [pairs[at]]
    out = []
    for part in parts:
        out += [number[part]] if part in number else [3 + byte for byte in part.encode()]
    return out


def test_pieces_with_scores(tmp_path: Path) -> None:
    values = pieces()
    ours = written(tmp_path / "x.gguf", **values)
    texts = ["the sea and the sand", "seathe and  this, 1254", "naïve 东 sea", "andandthesea", "x"]
    for text in texts:
        assert ours.encode(text) == [1, *merged(values, text)], text
        assert ours.decode(ours.encode(text)) == text
    assert ours.encode("the</s>")[-1] == 2
    stream = ours.stream()
    assert "".join(stream(t) for t in ours.encode("é sea")) == "é sea"


def model_with(path: Path, **metadata: Any) -> Decoder:
    tokens = len(metadata.get("tokens", ())) or 300
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    wt.manual_seed(0)
    config = DecoderConfig(vocab_size=tokens, max_position_embeddings=64, **sizes)
    model = Decoder(config)
    keys = {k: "tokenizer." + ("" if k == "chat_template" else "ggml.") + k for k in metadata}
    write_decoder(path, model, **{keys[k]: v for k, v in metadata.items()})
    return model


def test_text_by_a_file_alone(tmp_path: Path) -> None:
    pytest.importorskip("jinja2")
    template = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    model_with(tmp_path / "x.gguf", **pieces(), chat_template=template)
    llm = LLM(tmp_path / "x.gguf")
    pieces_alone = dict.fromkeys(range(259), -100.0)  # random bytes make no text
    greedy = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True, logit_bias=pieces_alone)
    answer = llm.generate("the sea", greedy)[0]
    assert answer.prompt_token_ids[0] == 1
    whole = answer.prompt_token_ids + answer.outputs[0].token_ids
    assert "the sea" + answer.outputs[0].text == llm.get_tokenizer().decode(whole)
    asked = [{"role": "user", "content": "the sea"}]
    assert llm.conversation(asked)["prompt"] == "<s>the sea"
    save_packed(llm.llm_engine.runner.model, tmp_path / "packed", tmp_path / "x.gguf")
    again = LLM(tmp_path / "packed")
    assert again.generate("the sea", greedy)[0].outputs[0].token_ids == answer.outputs[0].token_ids
    assert again.conversation(asked)["prompt"] == "<s>the sea"


@pytest.mark.parametrize(
    ("changes", "error", "named"),
    [
        ({"model": "bert"}, ValueError, "model is 'bert'; supported: gpt2, llama"),
        ({"model": "gpt2", "pre": "unheard"}, ValueError, "pre is 'unheard'; supported: gpt-2, default"),
        ({"model": "gpt2", "merges": ["ab"]}, ValueError, "merges must be a list of two parts"),
        ({"scores": [0.0]}, ValueError, "scores must have one for each"),
        ({"token_type": [1]}, ValueError, "a token_type for each"),
        ({"model": None}, FileNotFoundError, "no tokenizer in it .*skip_tokenizer_init"),
    ],
)
def test_what_is_no_tokenizer(changes: dict[str, Any], error: Any, named: str, tmp_path: Path) -> None:
    values = {key: value for key, value in {**pieces(), **changes}.items() if value is not None}
    with pytest.raises(error, match=named):
        written(tmp_path / "x.gguf", **values)
