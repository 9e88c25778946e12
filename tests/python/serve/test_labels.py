"""Rerank, score and classify, against the encoder alone and formulas; and under load, to the bit."""

from __future__ import annotations

import json
import random
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("uvicorn")
pytest.importorskip("tokenizers")
import tokenizers
import warptape as wt
from model_configs import BERT, HEADS
from serving_models import Process, write_encoder, write_tokenizer
from warptape.inference.encoding import TextEncoder
from warptape.models import Encoder

QUERY = "what is a page"
DOCUMENTS = ["a page has 32 tokens", "the sea", "pages are freed", "one two three four", "a page", ""]
CONTEXT = 64


def write(folder: Path, config: Any, **more: Any) -> Path:
    """An encoder whose tokenizer puts pairs together as BERT's does, and pads, as files of others may say."""
    folder.mkdir(parents=True)
    wt.manual_seed(3)
    Encoder(replace(config, vocab_size=257, max_position_embeddings=CONTEXT)).save_pretrained(folder)
    write_tokenizer(folder)
    path = folder / "tokenizer.json"
    text = tokenizers.Tokenizer.from_file(str(path))
    text.post_processor = tokenizers.processors.TemplateProcessing(
        single="<end> $A <end>", pair="<end> $A <end> $B:1 <end>:1", special_tokens=[("<end>", 256)]
    )
    text.enable_truncation(20)
    text.enable_padding(length=40)
    text.save(str(path))
    said = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**said, **more}))
    return folder


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("labels")
    one = replace(HEADS["bert-sequence"], labels=("fits",))
    write(root / "ranker" / "1", one)
    plain = {"sentence_transformers": {"activation_fn": "torch.nn.modules.linear.Identity"}}
    write(root / "plain" / "1", one, **plain)
    write(root / "topics" / "1", HEADS["modernbert-sequence"])
    write(root / "tagger" / "1", HEADS["bert-token"])
    write_encoder(root / "vectors" / "1", BERT)
    return root


@pytest.fixture(scope="module")
def server(folders: Path) -> Any:
    with Process(folders, token=None) as process:
        yield process


LETTERS = {c: i for i, c in enumerate(sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet()))}


def ids(text: str) -> list[int]:
    """A token for each byte."""
    plain = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    return [LETTERS[c] for part, _ in plain.pre_tokenize_str(text) for c in part]


def pair(query: str, document: str, most: int = CONTEXT) -> tuple[list[int], list[int]]:
    """As BERT puts texts together: the end of the document is cut."""
    first, second = [256, *ids(query), 256], ids(document)
    second = [*second[: max(most - len(first) - 1, 0)], 256]
    return first + second, [0] * len(first) + [1] * len(second)


def logits(folder: Path, tokens: list[int], types: list[int] | None = None) -> np.ndarray:
    """Of a text alone, by the model as it is trained."""
    model = Encoder.from_pretrained(folder)
    given = {} if types is None else {"token_type_ids": wt.tensor([types])}
    with wt.no_grad():
        return model(wt.tensor([tokens]), **given).logits[0].numpy().astype(np.float64)


def test_rerank(server: Process, folders: Path) -> None:
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    status, answer = server.post("/v1/rerank", body)
    assert status == 200, answer
    alone = [logits(folders / "ranker" / "1", *pair(QUERY, each))[0] for each in DOCUMENTS]
    expected = 1 / (1 + np.exp(-np.array(alone)))
    rows = answer["results"]
    assert [row["index"] for row in rows] == [*np.argsort(-expected, kind="stable")]
    for row in rows:
        assert row["relevance_score"] == pytest.approx(expected[row["index"]], abs=1e-6)
        assert row["document"] == {"text": DOCUMENTS[row["index"]]}
    count = sum(len(pair(QUERY, each)[0]) for each in DOCUMENTS)
    assert answer["usage"] == {"prompt_tokens": count, "total_tokens": count}
    # Cohere's: no documents, and the best alone; Jina's objects.
    objects = [{"text": each} for each in DOCUMENTS]
    _, two = server.post("/v2/rerank", {**body, "documents": objects, "top_n": 2})
    assert two["results"] == [{k: row[k] for k in ("index", "relevance_score")} for row in rows[:2]]
    _, plain = server.post("/rerank", {**body, "model": "plain", "return_documents": False})
    scores = {row["index"]: row["relevance_score"] for row in plain["results"]}
    assert [scores[i] for i in range(len(DOCUMENTS))] == pytest.approx(alone, abs=1e-6)


def test_long_documents_are_cut_and_long_pairs_refused(server: Process, folders: Path) -> None:
    long = "page " * 40
    _, answer = server.post("/v1/rerank", {"model": "ranker", "query": QUERY, "documents": [long, "page"]})
    assert answer["usage"]["total_tokens"] == CONTEXT + len(pair(QUERY, "page")[0])
    (score,) = [row["relevance_score"] for row in answer["results"] if row["index"] == 0]
    (alone,) = logits(folders / "ranker" / "1", *pair(QUERY, long))
    assert score == pytest.approx(1 / (1 + np.exp(-alone)), abs=1e-6)
    few = {"model": "ranker", "query": QUERY, "documents": [long], "max_tokens_per_doc": 3}
    assert server.post("/v1/rerank", few)[1]["usage"]["total_tokens"] == len(pair(QUERY, "pag")[0])
    both = {"model": "ranker", "text_1": QUERY, "text_2": long}
    status, error = server.post("/v1/score", both)
    assert status == 400 and error["error"]["code"] == "context_length_exceeded"
    cut = {**both, "truncate_prompt_tokens": 30}
    assert server.post("/v1/score", cut)[1]["usage"]["total_tokens"] == 30
    query = {"model": "ranker", "query": long, "documents": ["x"]}
    assert server.post("/v1/rerank", query)[0] == 400


def test_score(server: Process) -> None:
    _, ranked = server.post("/v1/rerank", {"model": "ranker", "query": QUERY, "documents": DOCUMENTS})
    scores = {row["index"]: row["relevance_score"] for row in ranked["results"]}
    for first in (QUERY, [QUERY] * len(DOCUMENTS)):
        body = {"model": "ranker", "text_1": first, "text_2": DOCUMENTS}
        data = server.post("/v1/score", body)[1]["data"]
        assert [(row["index"], row["score"]) for row in data] == sorted(scores.items())
    # Without a head: the cosine of vectors.
    body = {"model": "vectors", "input": [QUERY, *DOCUMENTS[:3]]}
    found = [np.array(row["embedding"]) for row in server.post("/v1/embeddings", body)[1]["data"]]
    body = {"model": "vectors", "text_1": QUERY, "text_2": DOCUMENTS[:3]}
    cosines = [row["score"] for row in server.post("/score", body)[1]["data"]]
    assert cosines == pytest.approx([float(found[0] @ each) for each in found[1:]], abs=1e-6)


def test_classify(server: Process, folders: Path) -> None:
    status, answer = server.post("/v1/classify", {"model": "topics", "input": ["a page", "sea"]})
    assert status == 200, answer
    for row, text in zip(answer["data"], ("a page", "sea")):
        alone = np.exp(logits(folders / "topics" / "1", [256, *ids(text), 256]))
        assert row["probs"] == pytest.approx(alone / alone.sum(), abs=1e-6)
        assert row["label"] == "ab"[int(alone.argmax())]
    given = {"model": "topics", "input": [256, *ids("sea"), 256]}
    assert server.post("/classify", given)[1]["data"][0]["probs"] == answer["data"][1]["probs"]


def test_labels_of_tokens(server: Process, folders: Path) -> None:
    text = "the sea é"
    (row,) = server.post("/v1/classify", {"model": "tagger", "input": text})[1]["data"]
    alone = np.exp(logits(folders / "tagger" / "1", [256, *ids(text), 256]))
    alone /= alone.sum(-1, keepdims=True)
    assert len(row["tokens"]) == len(text.encode())  # special tokens have no label
    for said in row["tokens"]:
        own = alone[said["index"]]
        assert said["label"] == "OBI"[int(own.argmax())] and said["score"] == pytest.approx(
            own.max(), abs=1e-6
        )
        assert said["word"] == text[said["start"] : said["end"]]


def test_one_answer_whatever_the_load(server: Process) -> None:
    rng = random.Random(0)
    bodies = []
    for i in range(48):
        texts = ["".join(rng.choice("abc de") for _ in range(rng.choice([1, 7, 7, 20]))) for _ in range(9)]
        if i % 3 == 0:
            bodies.append(("/v1/rerank", {"model": "ranker", "query": QUERY, "documents": texts}))
        else:
            bodies.append(("/v1/classify", {"model": ("topics", "tagger")[i % 2], "input": texts}))

    def asked(at: int) -> Any:
        status, answer = server.post(*bodies[at])
        assert status == 200, answer
        return answer.get("results") or answer["data"]

    alone = [asked(i) for i in range(len(bodies))]
    with ThreadPoolExecutor(12) as pool:
        assert [*pool.map(asked, range(len(bodies)))] == alone


@pytest.mark.parametrize("name", HEADS)
@pytest.mark.parametrize("more", [{}, {"dtype": "bfloat16"}, {"quantization": "int8"}])
def test_steps_change_no_bit(name: str, more: dict[str, str], tmp_path: Path) -> None:
    wt.manual_seed(0)
    config = replace(HEADS[name], max_position_embeddings=100)
    Encoder(config).save_pretrained(tmp_path)
    encoder, rng = TextEncoder(tmp_path, tokens=150, **more), random.Random(1)
    lengths = [rng.choice([1, 2, 9, 9, 31, 32, 33, 80]) for _ in range(24)]
    texts = [[rng.randrange(2, 40) for _ in range(n)] for n in lengths]
    types = [[rng.randrange(2) for _ in each] if name.startswith("bert") else None for each in texts]

    def answers(order: list[int], alone: bool) -> dict[int, list[np.ndarray]]:
        out = {}
        for i in order:
            encoder.add(i, texts[i], types[i])
            while encoder.waits() and (alone or i == order[-1]):
                for each in encoder.step():
                    said = (each.states, each.logits)
                    out[each.name] = [t.float().numpy().copy() for t in said]
        return out

    order = rng.sample(range(24), 24)
    alone, together = answers(order, True), answers(order, False)
    for i in range(24):
        assert all(np.array_equal(a, b) for a, b in zip(alone[i], together[i]))
    assert np.abs(alone[order[0]][1]).max() > 0.01


def test_what_is_refused(server: Process) -> None:
    ranker = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    for path, body in (
        ("/v1/rerank", {**ranker, "documents": []}),
        ("/v1/rerank", {**ranker, "documents": [1]}),
        ("/v1/rerank", {**ranker, "query": None}),
        ("/v1/rerank", {**ranker, "top_n": 0}),
        ("/v1/rerank", {**ranker, "more": 1}),
        ("/v1/rerank", {**ranker, "model": "topics"}),
        ("/v1/score", {"model": "ranker", "text_1": ["a", "b"], "text_2": "c"}),
        ("/v1/classify", {"model": "vectors", "input": "a"}),
        ("/v1/classify", {"model": "topics", "input": [[300]]}),
    ):
        status, answer = server.post(path, body)
        assert status == 400 and answer["error"]["message"], (path, body, answer)
    assert server.post("/v1/rerank", {**ranker, "model": "nobody"})[0] == 404
