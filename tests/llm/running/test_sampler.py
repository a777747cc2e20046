"""The sampler against Transformers' logits processors, and against itself in other company."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from gpu_work import forbid_syncs
from transformers.generation import logits_process as hf

from seesay.errors import ErrorCode
from seesay.llm.plans.ngrams import find_followers
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running import sampler
from seesay.llm.running.logit_changes import start_counts
from seesay.llm.running.sampler import POINT_BITS, Sampled, choose_tokens, draw_tokens, make_draws, make_points
from seesay.llm.running.sampling_row import MaskedRows, SamplingRow

VOCAB = 50


def make_row(
    token_ids: Any = (1, 2, 3),
    num_generated: int = 1,
    *,
    seed: int = 0,
    mask: Any = None,
    processors: Any = (),
    **options: Any,
) -> SamplingRow:
    options.setdefault("greedy", False)
    params, known = SamplingParams(**options), np.array(token_ids, dtype=np.int64)
    return SamplingRow(
        seed=seed,
        params=params,
        token_ids=known,
        num_generated=num_generated,
        counts=start_counts(known[: len(known) - num_generated], params, VOCAB),
        mask=mask,
        processors=processors,
    )


def sample(logits: torch.Tensor, rows: list[SamplingRow]) -> list[Sampled]:
    return choose_tokens(logits, dict(enumerate(rows))).collect()


def make_logits(num_rows: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(num_rows, VOCAB, generator=torch.Generator().manual_seed(seed)) * 3


def expected_distribution(logits: torch.Tensor, params: SamplingParams) -> torch.Tensor:
    ids = torch.zeros(1, 1, dtype=torch.int64)
    scores: torch.Tensor = hf.TemperatureLogitsWarper(params.temperature)(ids, logits[None].clone())
    if params.top_k:
        scores = hf.TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = hf.TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = hf.MinPLogitsWarper(params.min_p)(ids, scores)
    return scores[0].softmax(-1)


FILTERS: list[dict[str, Any]] = [
    {"temperature": 1.0},
    {"temperature": 0.7},
    {"temperature": 2.0, "min_p": 0.1},
    {"temperature": 1.3, "top_k": 5},
    {"temperature": 1.5, "top_p": 0.8},
    {"temperature": 2.5, "top_k": 20, "top_p": 0.9, "min_p": 0.05},
    {"temperature": 0.9, "top_k": 1},
    {"temperature": 1.0, "top_p": 0.01},
    {"temperature": 1.0, "top_k": 1000},
]


@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_distribution_equals_transformers(filters: dict[str, Any]) -> None:
    """Evenly spread points through the inverse of the cumulative distribution count out each probability."""
    params = SamplingParams(greedy=False, **filters)
    logits = make_logits(1, seed=len(str(filters)))
    count = 20_000
    points = ((torch.arange(count) * 2 + 1) << POINT_BITS - 1) // count
    draws = torch.from_numpy(make_draws(range(count), points.tolist(), [params] * count))
    ids = torch.empty(count, dtype=torch.int64)
    draw_tokens(logits.expand(count, -1), logits.amax().expand(count), draws, ids, most=VOCAB)
    found = torch.bincount(ids, minlength=VOCAB) / count
    expected = expected_distribution(logits[0], params)
    torch.testing.assert_close(found, expected, atol=2 / count, rtol=0)
    assert set(ids.tolist()) <= set(expected.nonzero()[:, 0].tolist())


def test_rows_of_which_nothing_is_asked_need_not_be_named() -> None:
    logits = make_logits(5)
    rows = [make_row(greedy=True), make_row(seed=3), make_row(greedy=True), make_row(greedy=True, bad_token_ids=(4,))]
    named = {i: rows[i] for i in (1, 3)}
    assert choose_tokens(logits, named).collect()[:4] == sample(logits[:4], rows)
    assert choose_tokens(logits, {}).collect() == sample(logits, [make_row(greedy=True)] * 5)


def test_rows_of_all_kinds_share_a_batch() -> None:
    """Each row's draw is what it is alone: it depends on its seed, its step and its own options only."""
    rows = [make_row(seed=i * 7, token_ids=range(i + 1), **FILTERS[i]) for i in range(len(FILTERS))]
    rows.append(make_row(greedy=True))
    logits = make_logits(len(rows))
    together = [s.token_id for s in sample(logits, rows)]
    for order in (range(len(rows)), reversed(range(len(rows)))):
        for index in order:
            [alone] = sample(logits[index : index + 1], [rows[index]])
            assert alone.token_id == together[index]


def test_a_seed_repeats_and_steps_differ() -> None:
    logits = torch.zeros(1, VOCAB)
    draws = [[sample(logits, [make_row(range(n + 1), seed=5)])[0].token_id for n in range(40)] for _ in range(2)]
    assert draws[0] == draws[1]
    assert len(set(draws[0])) > 15


def test_uniform_numbers_are_uniform() -> None:
    same, each = np.full(50_000, 3, dtype=np.uint64), np.arange(50_000, dtype=np.uint64)
    numbers, other = (make_points(*given) / 2**POINT_BITS for given in ((same, each), (each, same)))
    for sample in (numbers, other):
        assert sample.min() > 0 and sample.max() < 1
        counts = np.bincount((sample * 50).astype(int), minlength=50)
        assert ((counts - 1000) ** 2 / 1000).sum() < 100, "chi-square of 49 degrees of freedom, p < 1e-5"
    assert abs(np.corrcoef(numbers[1:], numbers[:-1])[0, 1]) < 0.02


def test_greedy_is_the_first_of_the_best() -> None:
    logits = make_logits(3)
    rows = [make_row(greedy=True) for i in range(3)]
    assert [s.token_id for s in sample(logits, rows)] == logits.argmax(-1).tolist()


def test_repetition_penalty_equals_transformers() -> None:
    logits = make_logits(2)
    token_ids = [4, 4, 9, 30, 31]
    rows = [make_row(token_ids, greedy=True, repetition_penalty=3.0), make_row(greedy=True)]
    processor = hf.RepetitionPenaltyLogitsProcessor(3.0)
    for seed in range(20):
        logits = make_logits(2, seed)
        expected = processor(torch.tensor([token_ids]), logits[:1].clone()).argmax().item()
        assert [s.token_id for s in sample(logits, rows)] == [expected, logits[1].argmax().item()]


def shift_plainly(logits: torch.Tensor, row: SamplingRow) -> torch.Tensor:
    """OpenAI's definition, one token at a time."""
    shifted = logits.clone()
    generated = row.token_ids[len(row.token_ids) - row.num_generated :].tolist()
    for token_id in range(VOCAB):
        count = generated.count(token_id)
        shifted[token_id] -= count * row.params.frequency_penalty + (count > 0) * row.params.presence_penalty
        shifted[token_id] += dict(row.params.logit_bias).get(token_id, 0.0)
    return shifted


SHIFTS: list[dict[str, Any]] = [
    {"presence_penalty": 1.5},
    {"frequency_penalty": 0.8},
    {"presence_penalty": -2.0, "frequency_penalty": 2.0},
    {"logit_bias": ((3, 5.0), (7, -100.0), (10**9, 9.0))},
    {"presence_penalty": 0.4, "frequency_penalty": -1.1, "logit_bias": ((5, 4.0), (6, 3.5))},
    {},
]


def test_penalties_and_biases_equal_the_plain_formula() -> None:
    """Rows of all kinds in one batch: the whole shifted distribution, seen through a processor, and the choice."""
    seen: dict[int, torch.Tensor] = {}

    def watch(key: Any) -> Any:
        def keep(token_ids: Any, logits: Any) -> Any:
            seen[key] = logits.clone()
            return logits

        return keep

    rng = np.random.default_rng(0)
    for seed in range(10):
        logits = make_logits(len(SHIFTS), seed)
        rows = [
            make_row(
                rng.integers(0, 9, 12),
                num_generated=int(rng.integers(0, 12)),
                greedy=True,
                processors=(watch(index),),
                **shift,
            )
            for index, shift in enumerate(SHIFTS)
        ]
        before = logits.clone()
        choices = sample(logits, rows)
        for index, (row, choice) in enumerate(zip(rows, choices, strict=True)):
            expected = shift_plainly(logits[index], row)
            torch.testing.assert_close(seen[index], expected, atol=1e-5, rtol=0)
            assert choice.token_id == expected.argmax()
        assert torch.equal(logits, before)


def test_penalties_leave_the_prompt_alone() -> None:
    logits = make_logits(1)
    best, second = logits[0].topk(2).indices.tolist()
    penalties: dict[str, Any] = {"presence_penalty": 2.0, "frequency_penalty": 2.0, "greedy": True}
    logits[0, second] = logits[0, best] - 1
    assert sample(logits, [make_row(token_ids=[best, 1], num_generated=1, **penalties)])[0].token_id == best
    assert sample(logits, [make_row(token_ids=[1, best], num_generated=1, **penalties)])[0].token_id == second


def test_plain_greedy_batches_copy_no_logits(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sampler, "adjust_logits", lambda *_: pytest.fail("the logits were copied"))
    logits = make_logits(3)
    rows = [make_row(greedy=True, ignore_eos=True, eos_token_ids=(1,), min_new_tokens=9) for i in range(3)]
    choices = sample(logits, rows)
    assert [choice.token_id for choice in choices] == logits.argmax(-1).tolist()


def test_banned_ids_are_never_chosen() -> None:
    logits = make_logits(1)
    best = logits[0].argsort(descending=True).tolist()
    [choice] = sample(logits, [make_row(greedy=True, bad_token_ids=(best[0], best[1], 10**9))])
    assert choice.token_id == best[2]


def test_min_new_tokens_holds_back_the_ends() -> None:
    logits = make_logits(1)
    best = logits[0].argsort(descending=True).tolist()
    ends: dict[str, Any] = {
        "eos_token_ids": (best[0],),
        "stop_token_ids": (best[1],),
        "min_new_tokens": 3,
        "greedy": True,
    }
    for num_generated, expected in ((0, best[2]), (2, best[2]), (3, best[0])):
        row = make_row(num_generated=num_generated, **ends)
        assert sample(logits, [row])[0].token_id == expected
    ignoring = make_row(num_generated=0, ignore_eos=True, **ends)
    assert sample(logits, [ignoring])[0].token_id == best[0]


def test_logits_processors_run_in_order_on_their_own_row() -> None:
    seen = []

    def only_seven(token_ids: Any, logits: Any) -> Any:
        seen.append((token_ids.tolist(), tuple(logits.shape)))
        return torch.full_like(logits, float("-inf")).index_fill_(0, torch.tensor([7, 8]), 1.0)

    def not_seven(token_ids: Any, logits: Any) -> Any:
        logits[7] = float("-inf")
        return logits

    logits = make_logits(2)
    before = logits.clone()
    rows = [make_row(greedy=True, processors=(only_seven, not_seven)), make_row(greedy=True)]
    assert [s.token_id for s in sample(logits, rows)] == [8, logits[1].argmax().item()]
    assert seen == [([1, 2, 3], (VOCAB,))] and torch.equal(logits, before)


@pytest.mark.parametrize("processor", [lambda t, x: x[:3], lambda t, x: None, lambda t, x: 1 / 0])
def test_a_bad_logits_processor_ends_its_own_request(processor: Any) -> None:
    rows = [make_row(processors=(processor,)), make_row(greedy=True)]
    bad, good = sample(make_logits(2), rows)
    assert bad.token_id is None and bad.error is not None and bad.error.code is ErrorCode.INVALID_REQUEST
    assert bad.error.param == "logits_processors" and good.token_id is not None


def test_logits_that_are_not_finite_end_their_own_request() -> None:
    logits = make_logits(3)
    logits[0, 5] = float("nan")
    logits[1, 5] = float("inf")
    results = sample(logits, [make_row(greedy=True), make_row(), make_row()])
    assert [s.error and s.error.code for s in results] == [ErrorCode.INTERNAL, ErrorCode.INTERNAL, None]
    assert results[2].token_id is not None


@pytest.mark.parametrize(
    ("dtype", "advice"),
    [
        (torch.float16, "try dtype='float32' or 'bfloat16'"),
        (torch.float32, "damaged weights"),
        (torch.bfloat16, "damaged"),
    ],
)
def test_logits_that_are_not_finite_are_explained_by_their_dtype(dtype: torch.dtype, advice: str) -> None:
    [result] = sample(torch.full((1, VOCAB), float("nan"), dtype=dtype), [make_row(greedy=True)])
    assert (
        result.error is not None
        and advice in result.error.message
        and str(dtype).removeprefix("torch.") in result.error.message
    )


def test_banning_every_token_says_so() -> None:
    [result] = sample(make_logits(1), [make_row(bad_token_ids=tuple(range(VOCAB)))])
    assert (
        result.error is not None
        and result.error.code is ErrorCode.INVALID_REQUEST
        and "no token is left" in result.error.message
    )


def test_logprobs_are_the_models_own() -> None:
    logits = make_logits(3)
    rows = [
        make_row(greedy=True, logprobs=2, bad_token_ids=(int(logits[0].argmax()),)),
        make_row(logprobs=0, temperature=5.0, top_k=3),
        make_row(greedy=True),
    ]
    results = sample(logits, rows)
    expected = logits.log_softmax(-1)
    assert results[2].logprobs is None
    assert list(results[1].logprobs or ()) == [results[1].token_id]
    best = logits[0].argsort(descending=True).tolist()
    assert list(results[0].logprobs or ()) == best[:2] and results[0].token_id == best[1]
    for row, result in enumerate(results[:2]):
        for token_id, logprob in (result.logprobs or {}).items():
            assert logprob == pytest.approx(expected[row, token_id].item(), abs=1e-5)


def test_the_chosen_token_is_reported_even_when_it_is_not_among_the_best() -> None:
    logits = make_logits(1)
    best = logits[0].argsort(descending=True).tolist()
    [result] = sample(logits, [make_row(greedy=True, logprobs=1, bad_token_ids=(best[0],))])
    assert list(result.logprobs or ()) == best[:2]


PENALTIES = {"repetition_penalty": 1.7, "presence_penalty": 0.6, "frequency_penalty": 0.9}
MIXED: list[dict[str, Any]] = [
    {"greedy": True},
    {"greedy": True, **PENALTIES},
    {"seed": 1, "temperature": 3.0, "top_k": 20, **PENALTIES},
    {"seed": 2, "temperature": 3.0, "top_p": 0.9},
    {"greedy": True, "presence_penalty": 2.0, "logprobs": 3},
    {"seed": 3, "temperature": 2.0, "frequency_penalty": -1.0, "bad_token_ids": (4, 5)},
    {"greedy": True, "repetition_penalty": 0.6, "logit_bias": ((2, 1.0),), "min_new_tokens": 9, "stop_token_ids": (6,)},
]


@pytest.mark.parametrize("last", [7, 8, 1], ids=["new", "generated before", "in the prompt"])
def test_a_token_that_only_the_device_knows_counts_as_if_the_host_knew_it(last: int) -> None:
    token_ids = [1, 2, 2, 8, 9, 8, last]
    previous = torch.tensor([3, last, 4])
    for seed in range(10):
        logits = make_logits(len(MIXED), seed)
        rows = [make_row(token_ids, num_generated=4, **options) for i, options in enumerate(MIXED)]
        pending = [
            make_row(token_ids[:-1], num_generated=3, **options)._replace(num_generated=4, pending=1)
            for options in MIXED
        ]
        some = [p if i % 2 else row for i, (row, p) in enumerate(zip(rows, pending, strict=True))]
        expected = sample(logits, rows)
        for late in (pending, some):
            assert choose_tokens(logits, dict(enumerate(late)), previous=previous).collect() == expected


def test_steps_one_ahead_of_the_host_sample_what_steps_in_turn_do() -> None:
    """Six tokens of each row: every draw but the first has a pending token, in another order of the rows each time;
    against draws that know everything, with counts that are made anew."""
    prompt, rng = [1, 2, 2, 30], np.random.default_rng(0)
    logits = [make_logits(len(MIXED), seed) for seed in range(6)]
    in_turn = {i: list(prompt) for i in range(len(MIXED))}
    for step, scores in enumerate(logits):
        rows = [make_row(in_turn[i], num_generated=step, **options) for i, options in enumerate(MIXED)]
        for i, choice in enumerate(sample(scores, rows)):
            assert choice.token_id is not None
            in_turn[i].append(choice.token_id)

    known = {i: list(prompt) for i in in_turn}
    places: dict[int, int] = {}
    previous: Any = None
    begun = [make_row(prompt, num_generated=0, **options) for options in MIXED]
    for step, scores in enumerate(logits):
        order = rng.permutation(len(MIXED)).tolist()
        rows = [
            begun[i]._replace(token_ids=np.array(known[i]), num_generated=step, pending=places.get(i, -1))
            for i in order
        ]
        draws = choose_tokens(scores[order], dict(enumerate(rows)), previous=previous)
        if previous is not None:
            for i, place in places.items():
                known[i].append(int(previous[place]))
        previous, places = draws.token_ids, {i: place for place, i in enumerate(order)}
    for i, place in places.items():
        known[i].append(int(previous[place]))
    assert known == in_turn


def test_rows_with_penalties_share_a_batch() -> None:
    """Each row's choice is what it is alone."""
    logits = make_logits(len(MIXED))
    rows = [make_row(range(i, 2 * i + 3), num_generated=i, **options) for i, options in enumerate(MIXED)]
    together = sample(logits, rows)
    for index, row in enumerate(rows):
        [alone] = sample(logits[index : index + 1], [row])
        assert alone.token_id == together[index].token_id


def make_mask(allowed: list[int]) -> np.ndarray:
    mask = np.zeros(-(-VOCAB // 32), dtype=np.uint32)
    for token_id in allowed:
        mask[token_id // 32] |= np.uint32(1) << np.uint32(token_id % 32)
    return mask.view(np.int32)


def test_a_mask_allows_some_tokens_of_its_row_alone() -> None:
    """Rows of all kinds choose the best, or draw, of what is allowed; their neighbours are as without masks."""
    rng = np.random.default_rng(0)
    for seed in range(20):
        logits = make_logits(2 * len(MIXED), seed)
        allowed = [sorted(rng.permutation(VOCAB)[: 1 + 7 * i].tolist()) for i in range(len(MIXED))]
        free = [make_row(range(9), num_generated=3, **options) for options in MIXED]
        masked = [row._replace(mask=make_mask(ids)) for row, ids in zip(free, allowed, strict=True)]
        banned = [
            make_row(range(9), 3, **{**options, "bad_token_ids": tuple(set(range(VOCAB)) - set(ids) | set(own))})
            for options, ids in zip(MIXED, allowed, strict=True)
            for own in [options.get("bad_token_ids", ())]
        ]
        chosen = sample(logits, [*masked, *free])
        expected = sample(logits, [*banned, *free])
        assert [choice.token_id for choice in chosen] == [choice.token_id for choice in expected]
        for choice, ids in zip(chosen, allowed, strict=False):
            assert choice.token_id is None or choice.token_id in ids


@pytest.mark.parametrize("num_rows", [1, 63, 64, 65, 200])
def test_masks_of_many_rows(num_rows: int) -> None:
    rng = np.random.default_rng(num_rows)
    logits, allowed = make_logits(num_rows), rng.random((num_rows, VOCAB)) < 0.2
    allowed[:, 49] = True
    rows = [make_row(greedy=True, mask=make_mask(np.flatnonzero(own).tolist())) for own in allowed]
    expected = logits.masked_fill(torch.from_numpy(~allowed), -torch.inf).argmax(-1)
    assert [choice.token_id for choice in sample(logits, rows)] == expected.tolist()


def test_a_mask_that_allows_nothing_ends_its_row_alone() -> None:
    masked, free = sample(make_logits(2), [make_row(greedy=True, mask=make_mask([])), make_row(greedy=True)])
    assert (
        masked.error is not None
        and masked.error.code is ErrorCode.INVALID_REQUEST
        and "no token is left" in masked.error.message
    )
    assert free.error is None


def test_a_processor_sees_what_a_mask_left() -> None:
    seen = []

    def negate(ids: Any, scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores)
        return -scores

    row = make_row(
        greedy=True,
        mask=make_mask([4, 9]),
        processors=(negate,),
    )
    sample(make_logits(1), [row])
    assert seen[0].isfinite().nonzero()[:, 0].tolist() == [4, 9]


def test_a_processor_lifts_nothing_that_is_forbidden() -> None:
    """A mask and bans hold, whatever a processor makes of the logits; where it leaves no other token, it is named."""

    def lift(ids: Any, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, 1.0).index_fill_(0, torch.tensor([5, 6]), 9.0)

    def only_five(ids: Any, scores: torch.Tensor) -> torch.Tensor:
        return torch.full_like(scores, float("-inf")).index_fill_(0, torch.tensor([5]), 1.0)

    masked: dict[str, Any] = {"mask": make_mask([4, 6])}
    banned: dict[str, Any] = {"bad_token_ids": (5,)}
    rows = [make_row(greedy=True, processors=(lift,), **options) for options in (masked, banned, {})]
    assert [choice.token_id for choice in sample(make_logits(3), rows)] == [6, 6, 5]
    [lost] = sample(make_logits(1), [make_row(greedy=True, processors=(only_five,), **masked)])
    assert lost.error is not None and lost.error.param == "logits_processors"


def test_equally_likely_tokens_stay_together() -> None:
    """Top-k keeps both of the second best, as in Transformers; top-p, too, whatever order a sort would give them."""
    logits = torch.tensor([[1.0, 3.0, 2.0, 0.0, 2.0]])
    for options in ({"top_k": 2}, {"top_p": 0.7}):
        rows = [make_row(seed=seed, **options) for seed in range(200)]
        chosen = {choice.token_id for choice in sample(logits.expand(200, -1), rows)}
        assert chosen == {1, 2, 4}


def test_top_k_of_one_takes_the_first_of_the_best() -> None:
    logits = torch.zeros(20, 9)
    rows = [make_row(seed=seed, top_k=1) for seed in range(20)]
    assert {choice.token_id for choice in sample(logits, rows)} == {0}


def test_what_a_graph_made_is_used_and_not_kept() -> None:
    """The next replay writes over the graph's outputs."""
    logits = make_logits(2)
    best, token_ids = logits.max(dim=-1)
    rows = [make_row(greedy=True), make_row(greedy=True, bad_token_ids=(int(token_ids[1]),))]
    draws = choose_tokens(logits, dict(enumerate(rows)), greedy_ids=(best, token_ids))
    expected = [int(token_ids[0]), int(logits[1].topk(2).indices[1])]
    token_ids.fill_(-1)
    assert draws.token_ids.tolist() == expected
    assert [choice.token_id for choice in draws.collect()] == expected


@pytest.mark.gpu
def test_a_draw_does_not_wait_for_the_gpu_and_chooses_what_the_cpu_would() -> None:
    mixed = [*MIXED, {"greedy": True, "bad_token_ids": tuple(range(40))}, {"greedy": True, "bad_token_ids": (1, 60)},
             {"greedy": True, "no_repeat_ngram_size": 2}]  # fmt: skip
    logits = make_logits(len(mixed)).bfloat16()
    rows = [make_row(range(9), num_generated=4, **options) for i, options in enumerate(mixed)]
    rows = [row._replace(pending=i % 2) for i, row in enumerate(rows)]
    previous = torch.tensor([3, 44])
    expected = [choice.token_id for choice in choose_tokens(logits, dict(enumerate(rows)), previous=previous).collect()]
    there = (logits.cuda(), dict(enumerate(rows)))
    choose_tokens(*there, previous=previous.cuda()).collect()
    previous = previous.cuda()
    with forbid_syncs():
        draws = choose_tokens(*there, previous=previous)
    assert [choice.token_id for choice in draws.collect()] == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_repeats_are_banned_with_a_token_that_the_device_alone_knows(dtype: torch.dtype) -> None:
    """A row whose last token is pending has the choice of one that knows it."""
    chance = np.random.default_rng(5)
    for size, window, whitelist in ((2, 0, ()), (3, 0, ()), (3, 6, ()), (2, 0, (1,)), (4, 9, (0, 2))):
        known = [chance.integers(0, 4, 24) for _ in range(6)]
        params: dict[str, Any] = {
            "greedy": True,
            "no_repeat_ngram_size": size,
            "ngram_window": window,
            "whitelist_token_ids": whitelist,
        }
        logits = torch.from_numpy(chance.normal(size=(6, 5))).to(dtype)
        whole = [make_row(ids, **params) for ids in known]
        expected = choose_tokens(logits, dict(enumerate(whole))).collect()
        late = [make_row(ids[:-1], **params)._replace(pending=at) for at, ids in enumerate(known)]
        previous = torch.tensor([ids[-1] for ids in known])
        found = choose_tokens(logits, dict(enumerate(late)), previous=previous).collect()
        assert [each.token_id for each in found] == [each.token_id for each in expected]
        forbidden = [find_followers(ids, size, window=window) for ids in known]
        assert any(len(ids) for ids in forbidden)
        for each, ids in zip(found, forbidden, strict=True):
            assert each.token_id not in set(ids.tolist()) - set(whitelist)


def test_rows_with_masks_alone_are_as_among_all_options() -> None:
    """What is only masked takes a shorter way, beside rows without a mask and rows with other options."""
    logits = make_logits(8)
    bits = np.random.default_rng(0).integers(-(1 << 31), 1 << 31, (4, -(-VOCAB // 32) + 1)).astype(np.int32)
    options: dict[int, dict[str, Any]] = {
        0: {"greedy": True},
        1: {},
        4: {"top_k": 5, "temperature": 0.7},
        6: {"greedy": True},
    }
    named = {i: make_row(seed=i, mask=bits[n], **given) for n, (i, given) in enumerate(options.items())}
    others = {3: make_row(seed=3, presence_penalty=1.0), 5: make_row(seed=5)}
    expected = choose_tokens(logits, dict(sorted((named | others).items()))).collect()
    drawn = [i for i, row in named.items() if row.params.is_drawn]
    seeds = np.array(drawn, np.uint64)
    points = make_points(seeds, np.array([named[i].num_tokens for i in drawn], np.uint64)).tolist()
    draws = torch.from_numpy(make_draws(drawn, points, [named[i].params for i in drawn]))
    masked = MaskedRows(list(named), bits, lambda number: list(named.values())[number])
    before = logits.clone()
    best, ids = logits.max(dim=-1)
    greedy_ids = best, ids
    options_of_draws: Any = {"draws": draws, "num_ordered": VOCAB}
    found = choose_tokens(logits, others, masked=masked, greedy_ids=greedy_ids, **options_of_draws).collect()
    assert found == expected
    assert torch.equal(logits, before)
    bits[1:3] = 0
    failed = choose_tokens(logits, others, masked=masked, **options_of_draws).collect()
    assert [i for i, choice in enumerate(failed) if choice.error] == [1, 4]
    assert failed[1].error is not None and "response_format" in str(failed[1].error)
    assert [failed[i] for i in (0, 2, 3, 5, 6, 7)] == [expected[i] for i in (0, 2, 3, 5, 6, 7)]
