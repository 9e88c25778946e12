"""The engine of csrc/inference while other threads add, end and look at requests."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import warptape as torch
from toy_engine import LIMITS, VOCAB, Toy
from warptape import _C
from warptape.inference import SamplingParams

CLIENTS, REQUESTS, WORDS = 6, 60, 20_000


def test_requests_come_and_go_while_tokens_are_drawn():
    engine = _C._Engine(**{**LIMITS, "vocab_size": WORDS, "max_num_seqs": 16, "max_num_batched_tokens": 128})
    logits = torch.randn(128, WORDS)
    params = SamplingParams(temperature=1.0, max_tokens=5)
    ended, aborted, failed = set(), set(), []
    start = threading.Barrier(CLIENTS + 1)

    def client(k):
        try:
            rng = np.random.default_rng(k)
            start.wait()
            for _ in range(REQUESTS):
                n = engine.add([1 + k, 2, 3] * int(rng.integers(1, 9)), params, seed=k, stop_token_ids=[])
                if rng.integers(2) and engine.abort(n):
                    aborted.add(n)
                assert engine.stats()["waiting"] >= 0
        except BaseException as error:
            failed.append(error)

    clients = [threading.Thread(target=client, args=(k,), daemon=True) for k in range(CLIENTS)]
    for t in clients:
        t.start()
    start.wait()
    while any(t.is_alive() for t in clients) or engine.stats()["waiting"] + engine.stats()["running"]:
        batch = engine.begin_step()
        if batch["requests"]:
            for number, _, _, finish, *_ in engine.finish_step(logits[: batch["logit_rows"].numel()]):
                ended |= {number} if finish else set()
    assert not failed
    assert ended | aborted == set(range(CLIENTS * REQUESTS)) and not ended & aborted
    assert engine.stats()["idle_pages"] == LIMITS["pages"]


@pytest.mark.parametrize("gone", [0, 1, 2])
def test_a_request_ends_between_the_halves_of_a_draft(gone):
    toy = Toy(num_speculative_tokens=2)
    numbers = [toy.add([5, 6, 7 + k], SamplingParams(temperature=0, max_tokens=9)) for k in range(3)]
    alone = Toy()
    want = [alone.add([5, 6, 7 + k], SamplingParams(temperature=0, max_tokens=9)) for k in range(3)]
    alone.run()
    toy.step()
    toy.step()
    batch = toy.engine.begin_draft()
    rows = batch["logit_rows"].numel()
    assert toy.engine.abort(numbers[gone]) and not toy.engine.abort(numbers[gone])
    toy.engine.finish_draft(torch.zeros(rows, VOCAB))
    toy.run()
    for k in set(range(3)) - {gone}:
        assert toy.tokens[numbers[k]] == alone.tokens[want[k]]
    assert gone not in toy.finished and toy.engine.stats()["idle_pages"] == LIMITS["pages"]


def test_a_draft_that_failed_keeps_no_request():
    toy = Toy()
    number = toy.add([5, 6, 7])
    toy.step()
    toy.engine.begin_draft()
    assert toy.engine.abort(number)
    assert toy.engine.begin_step()["requests"] == []
    assert toy.engine.stats()["idle_pages"] == LIMITS["pages"]
