"""Texts of tokens: as the tokenizers library decodes the whole, cut anywhere, and ended at stop texts."""

from __future__ import annotations

import codecs
import itertools
import random
from pathlib import Path
from typing import Any

import pytest
from warptape.inference import RequestOutputKind, SamplingParams
from warptape.inference.answers import Completion, logprobs_of
from warptape.inference.detokenizer import byte_letters
from warptape.inference.tokenizer import Tokenizer

tokenizers = pytest.importorskip("tokenizers")
from tokenizers import decoders, models, normalizers, pre_tokenizers  # noqa: E402

TEXT = "héHw o日🎈 é本"


def numbered(pieces: list[str]) -> dict[str, int]:
    return {piece: i for i, piece in enumerate(pieces)}


def byte_level() -> Any:
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    made = tokenizers.Tokenizer(models.BPE(numbered(letters), []))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    made.add_special_tokens(["</s>"])
    made.add_tokens(["héllo"])
    return made


def sentence_pieces(strip: bool) -> Any:
    """Llama's kind: bytes for what is no piece, the first space taken off."""
    pieces = ["<unk>", "<s>", *(f"<0x{i:02X}>" for i in range(256))]
    pieces += ["▁", "▁H", "▁world", "ello", "H", "w", "o", "é", "▁é", "日"]
    made = tokenizers.Tokenizer(models.BPE(numbered(pieces), [], unk_token="<unk>", byte_fallback=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    made.decoder = decoders.Sequence([*parts, *([decoders.Strip(" ", 1, 0)] if strip else [])])
    made.add_special_tokens(["<s>", "<unk>"])
    return made


def metaspace(scheme: str) -> Any:
    pieces = ["<unk>", "▁", "▁H", "▁world", "ello", "H", "w", "o"]
    made = tokenizers.Tokenizer(models.BPE(numbered(pieces), [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
    made.decoder = decoders.Metaspace(prepend_scheme=scheme)
    made.add_special_tokens(["<unk>"])
    return made


def word_pieces() -> Any:
    pieces = ["[UNK]", "[CLS]", "hello", "##s", "world", ".", "'", "s", "##ing"]
    made = tokenizers.Tokenizer(models.WordPiece(numbered(pieces), unk_token="[UNK]"))
    made.decoder = decoders.WordPiece(cleanup=True)
    made.add_special_tokens(["[CLS]"])
    return made


def words() -> Any:
    made = tokenizers.Tokenizer(models.WordLevel(numbered(["a", "bb", "c c", "<unk>"]), unk_token="<unk>"))
    made.add_special_tokens(["<unk>"])
    return made


KINDS = {
    "bytes": byte_level,
    "pieces": lambda: sentence_pieces(True),
    "pieces-unstripped": lambda: sentence_pieces(False),
    "metaspace-first": lambda: metaspace("first"),
    "metaspace-always": lambda: metaspace("always"),
    "metaspace-never": lambda: metaspace("never"),
    "wordpiece": word_pieces,
    "no-decoder": words,
}


def saved(library: Any, folder: Path) -> Tokenizer:
    library.save(str(folder / "tokenizer.json"))
    return Tokenizer(folder)


@pytest.mark.parametrize("kind", KINDS)
def test_prompt_and_answer_are_the_text_of_all_tokens(kind: str, tmp_path: Path) -> None:
    library = KINDS[kind]()
    ours, count = saved(library, tmp_path), library.get_vocab_size()
    for seed in range(400):
        rng = random.Random(seed)
        ids = [rng.randrange(count) for _ in range(rng.randrange(1, 14))]
        if seed % 2:
            text = "".join(rng.choice(TEXT) for _ in range(8))
            ids = library.encode(text, add_special_tokens=False).ids or [0]
        cut, skip = rng.randrange(len(ids)), rng.random() < 0.5
        stream = ours.stream(skip, after=ids[:cut])
        answer = "".join(map(stream, ids[cut:])) + stream.flush()
        before, whole = (library.decode(part, skip_special_tokens=skip) for part in (ids[:cut], ids))
        # Of a run of byte tokens with a wrong one among them the library writes none; within a character a
        # prompt's text is not a beginning of the whole.
        if before.endswith("\ufffd") or ("\ufffd" in whole and kind.startswith("pieces")):
            continue
        assert before + answer == whole, (ids, cut, skip)
        again = ours.stream(skip, after=ids[:cut])
        parts = []
        for token in ids[cut:]:
            parts.append(again.bytes_of(token))
            again(token)
        assert b"".join(parts).decode(errors="replace") == answer


def cut_anywhere(rng: random.Random) -> list[bytes]:
    """Random UTF-8 with wrong bytes here and there, cut where no character ends."""
    ranges = [(0x20, 0x7E), (0x20, 0x20), (0xA1, 0x24F), (0x3041, 0x30FF), (0x1F300, 0x1F5FF)]
    text = "".join(chr(rng.randint(*rng.choice(ranges))) for _ in range(rng.randrange(1, 25))).encode()
    if rng.random() < 0.4:
        at = rng.randrange(len(text))
        text = text[:at] + bytes([rng.randrange(256)]) + text[at + rng.randrange(2) :]
    cuts = sorted({0, len(text), *(rng.randrange(len(text)) for _ in range(rng.randrange(12)))})
    return [text[a:b] for a, b in itertools.pairwise(cuts)]


def test_random_cuts_of_random_utf8(tmp_path: Path) -> None:
    """Deltas, the whole, bytes of tokens and offsets, against Python's decoder and the library's."""
    letters = {byte: letter for letter, byte in byte_letters().items()}
    samples = [cut_anywhere(random.Random(seed)) for seed in range(600)]
    pieces = sorted({piece for each in samples for piece in each})
    vocabulary = {"".join(letters[b] for b in piece): i for i, piece in enumerate(pieces)}
    library = tokenizers.Tokenizer(models.BPE(vocabulary, []))
    library.decoder = decoders.ByteLevel()
    ours, number = saved(library, tmp_path), {piece: i for i, piece in enumerate(pieces)}
    params = SamplingParams(logprobs=0, max_tokens=100)
    for cut in samples:
        ids, whole = [number[piece] for piece in cut], b"".join(cut).decode(errors="replace")
        answer, deltas = Completion(0, params, ours, None), ""
        for i, token in enumerate(ids):
            last = ("length", None) if i + 1 == len(ids) else None
            answer.add(token, [(token, -1.0, 1)], last)
            new = answer.news()
            assert new is not None and new.logprobs is not None
            deltas += new.text
        assert deltas == answer.output.text == ours.decode(ids) == library.decode(ids) == whole
        told = [each[token] for each, token in zip(answer.output.logprobs or [], ids)]
        assert [each.decoded_bytes for each in told] == cut
        assert [each.decoded_token for each in told] == [piece.decode(errors="replace") for piece in cut]
        for i, each in enumerate(told):
            known = codecs.getincrementaldecoder("utf-8")("replace").decode(b"".join(cut[:i]))
            assert each.text_offset == len(known) and whole.startswith(known)


def test_a_prompt_that_ends_within_a_character(tmp_path: Path) -> None:
    library = byte_level()
    ours = saved(library, tmp_path)
    balloon = library.encode("🎈", add_special_tokens=False).ids
    for cut in (1, 2, 3):
        stream = ours.stream(after=balloon[:cut])
        assert "".join(map(stream, balloon[cut:])) + stream.flush() == "🎈"
    stream = ours.stream(after=balloon[:2])
    assert "".join(map(stream, library.encode("a!").ids)) == "a!"


def test_tokens_of_logprobs_have_their_spaces(tmp_path: Path) -> None:
    ours = saved(sentence_pieces(True), tmp_path)
    number = ours._tokenizer.token_to_id
    tokens = [number(piece) for piece in ("▁world", "ello", "▁", "<0xE4>", "<0x41>", "<s>")]
    stream = ours.stream(False, after=tokens[:1])
    texts = [logprobs_of([(token, -1.0, 1)], stream)[token].decoded_token for token in tokens]
    assert texts == [" world", "ello", " ", "\ufffd", "A", "<s>"]


def first_end(text: str, stops: list[str], after: int) -> tuple[int, int] | None:
    """Where the stop text that is complete first begins and ends, of those that end behind `after`."""
    found = [
        (at + len(stop), at) for stop in stops for at in range(len(text)) if text.startswith(stop, at)
    ]  # fmt: skip
    found = [each for each in found if each[0] > after]
    return (min(found)[1], min(found)[0]) if found else None


@pytest.mark.parametrize("kind", ["bytes", "pieces", "metaspace-first", "wordpiece"])
def test_stop_texts_cut_the_text_that_comes_without_them(kind: str, tmp_path: Path) -> None:
    """Whole, as deltas and cumulative; stops of any length, over tokens and characters of several bytes."""
    library = KINDS[kind]()
    ours, stopped = saved(library, tmp_path), 0
    for seed in range(600):
        rng = random.Random(seed)
        text = "".join(rng.choice(TEXT if seed % 3 else "ab") for _ in range(rng.randrange(4, 30)))
        ids = library.encode(text, add_special_tokens=False).ids
        if kind == "wordpiece" or not ids:
            ids = [rng.randrange(library.get_vocab_size()) for _ in range(12)]
        stream, lengths, free = ours.stream(), [], ""
        for token in ids:
            free += stream(token)
            lengths.append(len(free))
        free += stream.flush()
        if not free or "\ufffd" in free:
            continue
        stops = []
        for _ in range(rng.randrange(1, 4)):
            at = rng.randrange(len(free))
            stops.append(free[at : at + rng.randrange(1, 13)] if rng.random() < 0.7 else "Observation:")
        include, least = rng.random() < 0.3, rng.choice([0, 0, 0, rng.randrange(1, len(ids) + 1)])
        params = SamplingParams(
            stop=stops, include_stop_str_in_output=include, min_tokens=least, max_tokens=len(ids) + 1
        )
        end = first_end(free, stops, lengths[least - 2] if least > 1 else 0)
        expected = free if end is None else free[: end[1] if include else end[0]]
        answer, joined, grown = Completion(0, params, ours, None), "", [""]
        for i, token in enumerate(ids):
            over = answer.add(token, None, ("length", None) if i + 1 == len(ids) else None)
            new = answer.news()
            joined += "" if new is None else new.text
            grown.append(answer.output.text)
            if over:
                break
        assert answer.output.text == joined == expected, (text, stops, include, least)
        assert all(later.startswith(earlier) for earlier, later in itertools.pairwise(grown))
        assert answer.output.finish_reason == ("length" if end is None else "stop")
        stopped += end is not None
    assert stopped > 100


def test_an_answer_that_is_ended_has_what_was_held_back(tmp_path: Path) -> None:
    ours = saved(byte_level(), tmp_path)
    answer = Completion(0, SamplingParams(stop="Observation:"), ours, None)
    for token in ours.encode("Obs"):
        answer.add(token, None, None)
    assert answer.output.text == ""
    answer.end("abort")
    assert (answer.output.text, answer.output.finish_reason) == ("Obs", "abort")


def test_kinds_of_output_agree_with_long_stop_texts(tmp_path: Path) -> None:
    """Against the engine: the deltas of a stream are the whole, and what grows only grows."""
    from serving_models import write_llm
    from warptape.inference import LLM

    llm = LLM(write_llm(tmp_path / "m", max_position_embeddings=128))

    def params(kind: RequestOutputKind, stop: list[str], **more: Any) -> SamplingParams:
        return SamplingParams(max_tokens=24, seed=1, stop=stop, output_kind=kind, ignore_eos=True, **more)

    for stop in ([], ["Observation:"], ["x" * 12, "yy"]):
        whole = llm.generate("Once", params(RequestOutputKind.FINAL_ONLY, stop))[0].outputs[0].text
        deltas = llm.stream("Once", params(RequestOutputKind.DELTA, stop))
        assert "".join(out.outputs[0].text for out in deltas if out.outputs) == whole
        grown = [
            out.outputs[0].text for out in llm.stream("Once", params(RequestOutputKind.CUMULATIVE, stop))
        ]
        assert grown[-1] == whole and all(b.startswith(a) for a, b in itertools.pairwise(grown))
