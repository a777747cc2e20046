from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

from seesay.config import GenerationConfig
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.arrival_queue import ArrivalQueue
from seesay.llm.scheduling.sequence import NO_LIMIT, EmbeddingState, Sequence
from seesay.llm.scheduling.stopping import REPEATED, Stop, check_stop
from seesay.values import MediaItem, Modality, MultimodalInput


def make_item(start: int, stop: int, slots: list[int] | None = None) -> MediaItem:
    slots = list(range(start, stop)) if slots is None else slots
    return MediaItem(
        modality=Modality.IMAGE,
        span=(start, stop),
        slots=np.array(slots, dtype=np.int64),
        hash=bytes(32),
        features={},
        num_units=1,
    )


def make_sequence(num_tokens: int = 10, items: tuple[MediaItem, ...] = (), **params: Any) -> Sequence:
    prompt = MultimodalInput(
        token_ids=np.arange(100, 100 + num_tokens), positions=np.arange(num_tokens), next_position=50, items=items
    )
    return Sequence(1, prompt, SamplingParams(**params))


def test_tokens_grow_and_views_stay_right() -> None:
    seq = make_sequence(3, max_new_tokens=2)
    early = seq.token_ids
    for token in range(1000):
        seq.append(token)
    assert seq.num_tokens == 1003 and seq.num_generated == 1000
    assert seq.token_ids[:4].tolist() == [100, 101, 102, 0]
    assert seq.generated_ids.tolist() == list(range(1000))
    assert early.tolist() == [100, 101, 102]


def test_ready_until_is_the_first_slot_that_waits() -> None:
    seq = make_sequence(20, (make_item(2, 8, [3, 4, 6]), make_item(8, 10)))
    assert seq.ready_until == 3
    seq.update_ready_until(5)
    assert seq.ready_until == 6
    seq.item_states[0] = EmbeddingState.READY
    seq.update_ready_until(0)
    assert seq.ready_until == 8
    seq.update_ready_until(10)
    assert seq.ready_until == NO_LIMIT
    assert make_sequence().ready_until == NO_LIMIT


def test_what_lies_before_the_start_does_not_wait() -> None:
    seq = make_sequence(20, (make_item(2, 8), make_item(12, 14)))
    seq.update_ready_until(10)
    assert seq.ready_until == 12


def test_an_item_without_embedding_rows_never_waits() -> None:
    seq = make_sequence(20, (make_item(2, 8, []), make_item(8, 10)))
    assert seq.ready_until == 8
    assert seq.media_end == 10 and seq.item_stops == (0, 10)
    assert make_sequence(20, (make_item(2, 8, []),)).media_end == 0


@pytest.mark.parametrize(
    "items",
    [
        (make_item(2, 12),),
        (make_item(2, 6), make_item(5, 8)),
        (make_item(2, 6, [1, 3]),),
        (make_item(2, 6, [4, 3]),),
    ],
)
def test_items_that_do_not_fit_the_prompt_are_our_bug(items: tuple[MediaItem, ...]) -> None:
    with pytest.raises(AssertionError):
        make_sequence(10, items)


@pytest.mark.parametrize(
    ("generated", "params", "stop"),
    [
        ([5], {"eos_token_ids": (7,)}, None),
        ([7], {"eos_token_ids": (7,)}, Stop("stop", 7)),
        ([7], {"eos_token_ids": (7,), "ignore_eos": True}, None),
        ([7], {"stop_token_ids": (7,), "ignore_eos": True}, Stop("stop", 7)),
        ([7], {"eos_token_ids": (7,), "min_new_tokens": 1}, None),
        ([5, 7], {"eos_token_ids": (7,), "min_new_tokens": 1}, Stop("stop", 7)),
        ([5, 5], {"max_new_tokens": 2}, Stop("length")),
        ([5, 7], {"max_new_tokens": 2, "eos_token_ids": (7,)}, Stop("stop", 7)),
        ([5, 5, 5, 5], {}, Stop("length")),
        ([5, 6, 5], {"repetition_ngram_size": 1, "repetition_ngram_threshold": 3}, None),
        ([5, 5, 5], {"repetition_ngram_size": 1, "repetition_ngram_threshold": 3}, Stop("stop", REPEATED)),
        (
            [5, 6, 5, 6],
            {"repetition_ngram_size": 2, "repetition_ngram_threshold": 2, "min_new_tokens": 3},
            Stop("stop", REPEATED),
        ),
        (
            [5, 6, 7, 5],
            {"repetition_ngram_size": 1, "repetition_ngram_threshold": 2, "ngram_window": 3},
            Stop("length"),
        ),
    ],
)
def test_check_stop(generated: list[int], params: dict[str, Any], stop: Stop | None) -> None:
    seq = make_sequence(10, **params)
    for token in generated:
        seq.append(token)
    assert check_stop(seq, generated[-1], session_len=14) == stop


def test_sampling_params_come_from_the_generation_config() -> None:
    config = GenerationConfig(
        do_sample=True, temperature=0.5, stop_token_ids=[3, 4], bad_token_ids=[9], min_new_tokens=2, random_seed=1
    )
    params = SamplingParams.from_config(config, eos_token_ids=[7, 7], stop_token_ids=[4, 5], bad_token_ids=[8])
    assert not params.greedy and params.seed == 1
    assert params.stop_token_ids == (3, 4, 5)
    assert params.banned_token_ids(1) == (9, 8, 7, 3, 4, 5)
    assert params.banned_token_ids(2) == (9, 8)
    assert SamplingParams.from_config(GenerationConfig(do_sample=True, temperature=0)).greedy
    assert SamplingParams.from_config(GenerationConfig()).greedy


def test_who_needs_every_prompt_position() -> None:
    assert SamplingParams(prompt_logprobs=2).needs_prompt_outputs
    assert SamplingParams(output_logits="all").needs_prompt_outputs
    assert SamplingParams(output_last_hidden_state="all").needs_prompt_outputs
    assert SamplingParams(pooling="mean").needs_prompt_outputs
    assert not SamplingParams(output_logits="generation", logprobs=3).needs_prompt_outputs


def test_the_arrival_queue_is_sorted_and_forgiving() -> None:
    sequences = [make_sequence() for _ in range(5)]
    for arrival, seq in enumerate(sequences):
        seq.arrival = arrival
    queue = ArrivalQueue()
    for index in (3, 0, 4, 1, 3):
        queue.add(sequences[index])
    assert [seq.arrival for seq in queue] == [0, 1, 3, 4]
    assert sequences[2] not in queue and sequences[3] in queue
    queue.discard(sequences[2])
    queue.discard(sequences[0])
    assert [seq.arrival for seq in reversed(queue)] == [4, 3, 1]
    assert queue[0] is sequences[1] and len(queue) == 3


def test_the_arrays_of_one_item_are_dropped() -> None:
    items = tuple(
        dataclasses.replace(make_item(start, start + 2), hash=bytes([start]) * 32, features={"pixels": np.zeros(2)})
        for start in (1, 4, 7)
    )
    seq = make_sequence(10, items)
    seq.drop_arrays(1)
    assert [item.hash for item in seq.items] == [item.hash for item in items]
    assert [item.has_arrays for item in seq.items] == [True, False, True]


def test_positions_go_on_behind_the_prompt() -> None:
    seq = make_sequence(10)
    assert seq.num_positions == 50
    for token in range(3):
        seq.append(token)
    assert seq.num_positions == 53


def test_seeds_that_are_drawn_have_64_bits() -> None:
    drawn = [make_sequence(greedy=False).seed for _ in range(64)]
    assert max(drawn) >= 1 << 63 and max(drawn) < 1 << 64 and len(set(drawn)) == 64
    assert make_sequence().seed == 0 and make_sequence(greedy=False, seed=5).seed == 5
    assert make_sequence(seed=-1).seed == (1 << 64) - 1


def test_a_new_sequence_has_nothing_and_is_nowhere() -> None:
    seq = make_sequence(10, (make_item(2, 6),))
    assert not any((seq.num_computed, seq.num_scheduled, seq.num_pending, seq.num_foretold, seq.num_lost))
    assert not any((seq.num_drafts, seq.num_drafted, seq.num_accepted, seq.num_preemptions, seq.num_cached_tokens))
    assert (seq.arrival, seq.place, seq.adapter_slot, seq.state_slot, seq.spare_slot) == (-1,) * 5
    assert not (seq.block_ids or seq.block_keys or seq.num_registered_blocks or seq.was_admitted or seq.is_prepared)
    assert seq.shares_blocks and not seq.is_in_flight and (seq.stretch, seq.added_at_s) == (0.0, 0.0)
    assert seq.num_run_tokens == seq.num_prompt_tokens == 10 and seq.prompt_hash == b""
    assert seq.media_end == 6 and seq.item_states == [EmbeddingState.ABSENT] and not seq.waits_for_tokens
    seq.check_integrity(block_size=4, session_len=20)


def test_a_first_row_is_not_cut_short_by_a_missing_picture() -> None:
    """Neither the prompt's end nor that of the row lies behind it."""
    seq = make_sequence(20, (make_item(12, 14),))
    assert [seq.can_start(0, most) for most in (11, 12, 13)] == [True, True, False]
    assert [seq.can_start(start, 8) for start in (3, 4, 5)] == [True, True, False]
    assert make_sequence(20).can_start(0, 50)


def test_rows_that_are_lost_are_forgotten() -> None:
    seq = make_sequence(20, (make_item(2, 8),))
    seq.num_computed, seq.num_scheduled, seq.num_pending, seq.num_foretold, seq.num_drafts = 4, 10, 3, 2, 5
    seq.roll_back()
    assert (seq.num_scheduled, seq.num_pending, seq.num_foretold, seq.num_drafts) == (4, 0, 0, 0)
    assert seq.ready_until == 4


def test_without_an_answer_a_sequence_wants_none() -> None:
    assert not make_sequence(max_new_tokens=0).wants_answer and make_sequence(max_new_tokens=1).wants_answer


def test_logits_processors_wait_for_tokens() -> None:
    def leave(_: object, logits: object) -> object:
        return logits

    assert make_sequence(logits_processors=(leave,)).waits_for_tokens


def test_an_item_to_which_later_tokens_attend_is_waited_for_behind_it() -> None:
    seq = make_sequence(20, (make_item(2, 6), make_item(12, 14)))
    seq.attend_media()
    assert [seq.ready_until, seq.media_end > 14] == [2, True]
    for start in (5, 6, 9):
        seq.update_ready_until(start)
        assert seq.ready_until == start
