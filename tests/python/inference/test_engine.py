"""The engine of csrc/inference with a model without weights."""

import numpy as np
import pytest
import warptape as torch
from toy_engine import VOCAB, Toy, next_logits
from warptape import _C
from warptape.inference import SamplingParams


def greedy(prompt, count):
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(int(next_logits(tokens).argmax()))
    return tokens[len(prompt) :]


def alone(prompt, params, **more):
    toy = Toy(enable_prefix_caching=False, max_num_batched_tokens=256)
    return answer(toy.run(), toy.add(prompt, params, **more))


def answer(toy, number):
    toy.run()
    return toy.tokens[number], toy.logprobs[number], toy.prompt_logprobs[number], toy.finished[number]


def test_greedy_tokens_are_those_of_a_plain_loop():
    toy = Toy()
    prompts = [list(range(1, 4)), [7] * 40, list(range(49))]
    numbers = [toy.add(p) for p in prompts]
    toy.run()
    for number, prompt in zip(numbers, prompts):
        assert toy.tokens[number] == greedy(prompt, 8)
        assert toy.finished[number] == "length"
    assert toy.engine.stats()["idle_pages"] == toy.limits["pages"]


def random_params(rng):
    kind = rng.integers(4)
    common = {"max_tokens": int(rng.integers(1, 40)), "seed": int(rng.integers(1 << 60)), "logprobs": 2}
    if kind == 0:
        return SamplingParams(temperature=0, **common)
    if kind == 1:
        return SamplingParams(temperature=0.7, top_p=0.8, **common)
    if kind == 2:
        return SamplingParams(top_k=5, min_p=0.05, stop_token_ids=[3, 11], min_tokens=1, **common)
    return SamplingParams(repetition_penalty=1.3, presence_penalty=0.5, logit_bias={4: 1.0}, **common)


@pytest.mark.parametrize("seed", range(25))
def test_load_never_changes_an_answer(seed):
    """Random traffic against each request alone: chunks, pages that run out, prefixes, speculation."""
    rng = np.random.default_rng(seed)
    speculative = int(rng.integers(0, 5))
    toy = Toy(
        pages=int(rng.integers(5, 30)),
        max_model_len=140,
        max_num_seqs=int(rng.integers(1, 9)),
        max_num_batched_tokens=int(rng.integers(6, 90)),
        max_prefill_beside_decode=int(rng.integers(1, 40)),
        enable_prefix_caching=bool(rng.integers(2)),
        num_speculative_tokens=speculative,
    )
    shared = rng.integers(0, VOCAB, 70).tolist()
    requests = {}
    for _ in range(40):
        prompt = shared[: rng.integers(0, 70)] + rng.integers(0, VOCAB, rng.integers(1, 30)).tolist()
        params = random_params(rng)
        of_prompt = int(rng.integers(0, 2)) if rng.integers(4) == 0 else -1
        more = {"priority": int(rng.integers(3)), "salt": int(rng.integers(2)), "prompt_logprobs": of_prompt}
        requests[toy.add(prompt, params, **more)] = prompt, params, of_prompt
        for _ in range(rng.integers(0, 6)):
            toy.step()
    toy.run()
    for number, (prompt, params, of_prompt) in requests.items():
        assert answer(toy, number) == alone(prompt, params, prompt_logprobs=of_prompt)
    stats = toy.engine.stats()
    assert stats["idle_pages"] == toy.limits["pages"] and stats["waiting"] == stats["running"] == 0
    assert toy.most_running <= toy.limits["max_num_seqs"]
    if not speculative:
        assert stats["proposed_tokens"] == 0


def test_a_wrong_page_is_noticed():
    """The property test can fail: a model that reads from wrong places gives other tokens."""
    toy = Toy()
    write = toy.forward

    def forward(batch):
        batch["page_table"][-1, -1] = toy.engine.stats()["steps"] % 2
        return write(batch)

    toy.forward = forward
    number = toy.add([1, 2, 3])
    assert toy.run().tokens[number] != greedy([1, 2, 3], 8)


def test_prefixes_are_shared():
    toy = Toy()
    prompt = list(range(40)) * 2  # 80 tokens: two full pages
    toy.add(prompt)
    toy.run()
    before = toy.engine.stats()["computed_tokens"]
    toy.add(prompt[:70])
    toy.add(prompt[:70], salt=1)
    toy.run()
    stats = toy.engine.stats()
    assert stats["cached_prompt_tokens"] == 64  # not for the other salt
    assert stats["computed_tokens"] - before == 6 + 70 + 2 * 7
    # A prompt of whole pages computes its last token's page anew: its logits are wanted.
    toy.add(prompt[:64])
    toy.run()
    assert toy.engine.stats()["cached_prompt_tokens"] == 64 + 32


def test_generated_tokens_are_found_as_a_prefix_too():
    toy = Toy(max_model_len=128)
    number = toy.add([1, 2, 3], SamplingParams(temperature=0, max_tokens=70))
    toy.run()
    toy.add([1, 2, 3, *toy.tokens[number], 5])
    toy.run()
    assert toy.engine.stats()["cached_prompt_tokens"] == 64


def test_followers_wait_for_their_leader():
    toy = Toy(max_num_batched_tokens=256)
    prompt = list(range(1, 50)) + [9] * 20
    leader = toy.add(prompt)
    others = [toy.add(prompt, leader=leader) for _ in range(3)]
    toy.run()
    assert all(toy.tokens[n] == toy.tokens[leader] for n in others)
    assert toy.engine.stats()["cached_prompt_tokens"] == 3 * 64


def test_speculation_computes_fewer_steps():
    prompt = [1, 2, 3, 4, 5] * 4
    params = SamplingParams(temperature=0, max_tokens=60, logit_bias=dict.fromkeys((1, 2), 100.0))
    plain, speculative = Toy(), Toy(num_speculative_tokens=4)
    tokens = [toy.tokens[toy.add(prompt, params)] for toy in (plain.run(), speculative.run())]
    plain.run(), speculative.run()
    assert tokens[0] == tokens[1] and len(tokens[0]) == 60
    stats = speculative.engine.stats()
    assert stats["accepted_tokens"] > 0 and stats["steps"] == 60 - stats["accepted_tokens"]
    assert plain.engine.stats()["steps"] == 60


def test_proposed_tokens_of_a_caller():
    toy = Toy()
    params = SamplingParams(temperature=0, max_tokens=6)
    number = toy.add([5, 6], params)
    right = greedy([5, 6], 6)
    toy.step()
    toy.engine.propose(number, [*right[1:3], (right[3] + 1) % VOCAB, 0])
    toy.step()
    assert toy.tokens[number] == right[:4]
    with pytest.raises(IndexError, match="out of the vocabulary"):
        toy.engine.propose(number, [VOCAB])
    assert toy.run().tokens[number] == right


@pytest.mark.parametrize("seed", range(8))
def test_a_request_goes_on_in_another_engine(seed):
    """Cut anywhere: what follows, and its log-probabilities, are those of the engine that is gone."""
    rng = np.random.default_rng(100 + seed)
    for _ in range(10):
        prompt, params = rng.integers(0, VOCAB, rng.integers(1, 60)).tolist(), random_params(rng)
        tokens, logprobs, _, finished = alone(prompt, params)
        cut = int(rng.integers(0, len(tokens)))
        toy = Toy(enable_prefix_caching=bool(rng.integers(2)), num_speculative_tokens=int(rng.integers(0, 4)))
        toy.add(prompt + tokens[: cut // 2], params)  # something beside it
        number = toy.add(prompt, params, generated=tokens[:cut])
        assert answer(toy, number)[:2] == (tokens[cut:], logprobs[cut:])
        assert toy.finished[number] == finished


def test_going_on_without_a_way():
    toy, params = Toy(), SamplingParams(max_tokens=3)
    with pytest.raises(ValueError, match="3 generated tokens already, and max_tokens is 3"):
        toy.add([1], params, generated=[1, 2, 3])
    with pytest.raises(IndexError, match="out of the vocabulary"):
        toy.add([1], params, generated=[VOCAB])
    with pytest.raises(ValueError, match="they came with its first token"):
        toy.add([1], params, generated=[1], prompt_logprobs=1)


def test_memory_that_runs_out_preempts_the_last():
    toy = Toy(pages=5, max_model_len=128, enable_prefix_caching=False)
    numbers = [toy.add([n] * 20, SamplingParams(temperature=0, max_tokens=50)) for n in range(4)]
    toy.run()
    assert toy.engine.stats()["preemptions"] > 0
    for n in numbers:
        assert toy.tokens[n] == greedy([n] * 20, 50)
    assert list(toy.finished) == numbers  # by arrival


def test_a_higher_priority_preempts():
    toy = Toy(max_num_seqs=1)
    params = SamplingParams(temperature=0, max_tokens=20)
    low = toy.add([1], params, priority=5)
    toy.step()
    high = toy.add([2], params, priority=1)
    toy.run()
    assert list(toy.finished) == [high, low]
    assert toy.tokens[low] == greedy([1], 20)


def test_a_failed_forward_pass_loses_nothing():
    toy = Toy()
    number = toy.add([1, 2, 3])
    toy.step()
    toy.engine.begin_step()
    with pytest.raises(RuntimeError, match="neither finished nor cancelled"):
        toy.engine.begin_step()
    with pytest.raises(ValueError, match=r"expected logits \[1, 50\]"):
        toy.engine.finish_step(torch.zeros(2, VOCAB))
    toy.engine.cancel_step()
    assert toy.run().tokens[number] == greedy([1, 2, 3], 8)


def test_abort_frees_pages_a_step_later():
    toy = Toy()
    gone, stays = toy.add([1] * 60), toy.add([2] * 60)
    toy.step()
    batch = toy.engine.begin_step()
    assert toy.engine.abort(gone) and not toy.engine.abort(gone)
    for number, tokens, *_ in toy.engine.finish_step(toy.forward(batch)):
        assert number == stays
        toy.tokens[number] += tokens
    assert toy.engine.stats()["idle_pages"] == toy.limits["pages"] - 2
    assert toy.run().tokens[stays] == greedy([2] * 60, 8)
    assert not toy.engine.abort(12345)


def words_of(*tokens):
    words = [0] * 2
    for token in tokens:
        words[token // 32] |= 1 << token % 32
    return words


def test_allowed_tokens():
    toy = Toy()
    number = toy.add([1, 2], constrained=True)
    free = toy.add([1, 2])
    words = words_of(7, 33)
    for _ in range(8):
        batch = toy.engine.begin_step()
        toy.engine.allow(number, 0, words)
        for n, tokens, *_ in toy.engine.finish_step(toy.forward(batch)):
            toy.tokens[n] += tokens
    assert set(toy.tokens[number]) <= {7, 33}
    assert toy.tokens[free] == greedy([1, 2], 8)
    with pytest.raises(ValueError, match="not added as constrained"):
        toy.engine.allow(toy.add([1]), 0, words)


def test_masks_after_proposed_tokens():
    """Each token by its own mask; none beyond the last mask, though what was proposed is right."""
    toy, params = Toy(num_speculative_tokens=4), SamplingParams(temperature=0, max_tokens=20)
    number = toy.add([5, 6], params, constrained=True)
    with pytest.raises(ValueError, match="at most 0 proposed tokens, got one after 1"):
        toy.engine.allow(number, 1, words_of(1))
    assert toy.engine.ngram(number) is None and toy.engine.ngram(99) is None  # it has no first token yet
    batch = toy.engine.begin_step()
    toy.engine.allow(number, 0, words_of(7))
    toy.engine.allow(number, 0, words_of(5))  # in its place
    toy.engine.finish_step(toy.forward(batch))
    assert toy.engine.ngram(number) == [6, 5]
    toy.engine.propose(number, [6, 8, 9, 9])
    batch = toy.engine.begin_step()
    assert batch["drafts"] == [[6, 8, 9, 9]]
    for after, token in enumerate((6, 8, 9)):
        toy.engine.allow(number, after, words_of(token))
    assert toy.engine.finish_step(toy.forward(batch))[0][1] == [6, 8, 9]
    batch = toy.engine.begin_step()
    assert batch["drafts"] == [[]] and batch["tokens"].tolist() == [9]
    toy.engine.allow(number, 0, words_of(3))
    assert toy.engine.finish_step(toy.forward(batch))[0][1] == [3]
    assert toy.engine.stats()["accepted_tokens"] == 2


def test_stop_tokens():
    right = greedy([5, 6], 8)
    params = SamplingParams(temperature=0, max_tokens=8, stop_token_ids=[right[2]])
    toy = Toy()
    number = toy.add([5, 6], params)
    toy.run()
    end = right.index(right[2]) + 1
    assert toy.tokens[number] == right[:end] and toy.finished[number] == "stop"
    later = toy.add(
        [5, 6], SamplingParams(temperature=0, max_tokens=8, min_tokens=6, stop_token_ids=[right[2]])
    )
    assert right[2] not in toy.run().tokens[later][:5]


@pytest.mark.parametrize(
    "prompt, params, error, text",
    [
        ([], {}, ValueError, "the prompt has no token"),
        ([VOCAB], {}, IndexError, "token 50 is out of the vocabulary of 50"),
        ([-1], {}, IndexError, "token -1 is out"),
        ([1] * 250, {"max_tokens": 7}, ValueError, "maximum model length is 256"),
        ([1], {"logit_bias": {VOCAB: 1.0}}, IndexError, "logit_bias"),
        ([1], {"logprobs": 51}, ValueError, "logprobs must be in"),
        ([1], {"stop_token_ids": [99]}, IndexError, "out of the vocabulary"),
    ],
)
def test_refused_requests(prompt, params, error, text):
    toy = Toy()
    with pytest.raises(error, match=text):
        toy.add(prompt, SamplingParams(**params))
    assert toy.engine.stats()["waiting"] == 0


def test_refused_limits():
    with pytest.raises(ValueError, match="needs 8 pages of 32 tokens, but there is memory for 7"):
        Toy(pages=7)
    with pytest.raises(ValueError, match="at least 1"):
        Toy(max_num_seqs=0)
    with pytest.raises(ValueError, match="prompt_lookup"):
        Toy(prompt_lookup_min=4, prompt_lookup_max=3)


def test_logprobs_are_log_softmax():
    toy = Toy()
    number = toy.add([3], SamplingParams(max_tokens=1, logprobs=3, temperature=2.0, seed=5))
    toy.run()
    expected = torch.log_softmax(torch.tensor(next_logits([3])).double(), 0)
    own, *top = toy.logprobs[number][0]
    assert own[0] == toy.tokens[number][0]
    order = expected.argsort(descending=True).tolist()
    assert [t for t, _, _ in top] == order[:3]
    assert own[2] == order.index(own[0]) + 1
    for token, value, _ in [own, *top]:
        assert value == pytest.approx(float(expected[token]), abs=1e-5)


def test_logprobs_of_the_prompt():
    toy = Toy(max_num_batched_tokens=7, pages=8)
    prompt = [(5 * i) % VOCAB for i in range(70)]
    toy.add(prompt)
    toy.run()  # its pages are known from now on
    number = toy.add(prompt, prompt_logprobs=1)
    toy.run()
    of_prompt = toy.prompt_logprobs[number]
    assert len(of_prompt) == 69 and toy.cached[number] == 0
    for i, entries in enumerate(of_prompt):
        expected = torch.log_softmax(torch.tensor(next_logits(prompt[: i + 1])).double(), 0)
        own, best = entries
        assert own[0] == prompt[i + 1] and best[0] == int(expected.argmax()) and best[2] == 1
        assert own[1] == pytest.approx(float(expected[own[0]]), abs=1e-5)
    again = toy.add(prompt)
    toy.run()
    assert toy.prompt_logprobs[again] == [] and toy.cached[again] == 64
    one = toy.add([3], prompt_logprobs=0)
    assert toy.run().prompt_logprobs[one] == []


# ---- sampling ----


def drawn(logits, count=4000, **params):
    """How often each token is drawn, by seeds 0 to count."""
    toy = Toy(vocab_size=len(logits), pages=64, max_num_seqs=1024, max_num_batched_tokens=1024)
    counts = np.zeros(len(logits))
    for first in range(0, count, 1000):
        numbers = [
            toy.engine.add([0], SamplingParams(max_tokens=1, **params), seed=first + i, stop_token_ids=[])
            for i in range(1000)
        ]
        while numbers:
            batch = toy.engine.begin_step()
            rows = torch.tensor(np.tile(np.float32(logits), (batch["logit_rows"].numel(), 1)))
            for number, tokens, *_ in toy.engine.finish_step(rows):
                counts[tokens[0]] += 1
                numbers.remove(number)
    return counts / count


def test_draws_follow_softmax():
    logits = np.array([0.0, 1.0, 2.0, -1.0, 1.5, -30.0])
    for temperature in (0.5, 1.0, 2.0):
        p = np.exp(logits / temperature)
        p /= p.sum()
        assert np.abs(drawn(logits, temperature=temperature) - p).max() < 4 * 0.5 / 4000**0.5


@pytest.mark.parametrize(
    "params, kept",
    [
        ({"top_k": 2}, [2, 4]),
        ({"top_k": -1, "top_p": 1.0}, [0, 1, 2, 3, 4]),
        ({"top_p": 0.5}, [2, 4]),  # 0.41 + 0.25
        ({"top_p": 0.4}, [2]),
        ({"min_p": 0.3}, [1, 2, 4]),  # of 0.41: 0.15, 0.41, 0.25
        ({"top_k": 3, "top_p": 0.75}, [2, 4]),  # of the three: 0.51 + 0.31
        ({"temperature": 0.0}, [2]),
        ({"temperature": 0.01}, [2]),
        ({"logit_bias": {3: 100.0}}, [3]),
    ],
)
def test_filters(params, kept):
    logits = np.array([0.0, 1.0, 2.0, -1.0, 1.5])
    p = drawn(logits, 2000, **params)
    assert sorted(np.flatnonzero(p)) == kept
    expected = np.exp(logits[kept] / (params.get("temperature") or 1))
    if len(kept) > 1:
        assert np.abs(p[kept] - expected / expected.sum()).max() < 4 * 0.5 / 2000**0.5


def test_a_large_vocabulary_top_p_keeps_what_a_sort_keeps():
    logits = np.random.default_rng(0).normal(size=5000).astype(np.float32)
    p = np.exp(logits.astype(np.float64))
    p /= p.sum()
    order = np.argsort(-p, kind="stable")
    kept = order[: np.searchsorted(np.cumsum(p[order]), 0.3) + 1]
    assert set(np.flatnonzero(drawn(logits, 4000, top_p=0.3))) <= set(kept)


# ---- scheduler and n-grams: pure functions ----


def candidate(
    running=True, priority=0, arrival=0, known=1, computed=0, drafts=0, pages=0, own=0, blocked=False
):
    return running, priority, arrival, known, computed, drafts, pages, own, blocked


def schedule(*candidates, seqs=8, tokens=64, prefill=16, idle=100):
    return _C._schedule(list(candidates), seqs, tokens, prefill, idle)


def test_those_that_generate_come_first_and_prompts_share_what_is_left():
    plan = schedule(
        candidate(known=100, computed=0, arrival=0),
        candidate(known=41, computed=40, pages=2, arrival=1),
        candidate(running=False, known=10, arrival=2),
    )
    assert plan == ([(1, 1, 0), (0, 16, 0)], [])
    assert schedule(candidate(known=100), candidate(running=False, known=10, arrival=1)) == ([(0, 64, 0)], [])
    assert schedule(candidate(known=60), candidate(running=False, known=10, arrival=1)) == (
        [(0, 60, 0), (1, 4, 0)],
        [],
    )


def test_drafts_fill_the_budget_and_go_first_where_pages_run_out():
    one = candidate(known=33, computed=32, drafts=4, pages=1)
    assert schedule(one) == ([(0, 5, 4)], [])
    assert schedule(one, tokens=3) == ([(0, 3, 2)], [])
    full = candidate(known=32, computed=31, drafts=4, pages=1, own=1)
    assert schedule(full, idle=0) == ([(0, 1, 0)], [])


def test_the_last_by_priority_and_arrival_is_preempted():
    needs = candidate(known=33, computed=32, pages=1, own=1)
    last = candidate(known=20, computed=19, pages=1, own=1, arrival=2)
    assert schedule(needs, last, idle=0) == ([(0, 1, 0)], [1])
    assert schedule(
        needs, candidate(known=20, computed=19, pages=1, own=1, arrival=2, priority=-1), idle=0
    ) == (
        [(1, 1, 0)],
        [0],
    )
    # Nobody begins in a step in which memory ran out.
    assert schedule(needs, last, candidate(running=False, known=1, arrival=1), idle=0) == ([(0, 1, 0)], [1])


def test_none_overtakes():
    large = candidate(running=False, known=200, arrival=0)
    small = candidate(running=False, known=3, arrival=1)
    assert schedule(large, small, idle=5) == ([], [])
    assert schedule(small, large, idle=5) == ([], [])
    blocked = candidate(running=False, known=200, arrival=0, blocked=True)
    assert schedule(blocked, small, idle=5) == ([(1, 3, 0)], [])


def test_shared_pages_need_no_memory():
    idle_prefix = candidate(running=False, known=65, computed=64, pages=2, own=2)
    held_prefix = candidate(running=False, known=65, computed=64, pages=2, own=0)
    assert schedule(idle_prefix, idle=2) == ([], [])
    assert schedule(idle_prefix, idle=3) == ([(0, 1, 0)], [])
    assert schedule(held_prefix, idle=1) == ([(0, 1, 0)], [])


def test_ngrams():
    propose = _C._propose_ngram
    assert propose([1, 2, 3, 9, 1, 2, 3], 1, 3, 2) == [9, 1]
    assert propose([1, 2, 8, 1, 2, 9, 2, 1, 2], 2, 3, 5) == [9, 2, 1, 2]  # the latest of equal ones
    assert propose([5, 1, 2, 7, 1, 2, 9, 5, 1, 2], 1, 3, 1) == [7]  # the longest first
    assert propose([1, 2, 3], 1, 3, 4) == []
    assert propose([1, 1], 1, 3, 4) == [1]
    assert propose([1, 2, 1], 2, 3, 4) == []
