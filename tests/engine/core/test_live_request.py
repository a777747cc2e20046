"""What a request collects until it ends: embeddings and their cost, tokens, values of positions, and its report."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch

from seesay.encoders.worker import EncodeTiming
from seesay.engine.core.live_request import LiveRequest
from seesay.engine.token_messages import TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.running.launched_step import PositionOutputs, RowResult
from seesay.llm.scheduling.sequence import EmbeddingState
from seesay.values import MediaItem, Modality, MultimodalInput
from seesay.values.prompt_logprobs import PromptLogprobs

PROMPT = 9


def make_item(place: int, name: bytes) -> MediaItem:
    return MediaItem(
        modality=Modality.IMAGE, span=(place, place + 1), slots=np.array([place]), hash=name, features={}, num_units=1
    )


def make_live(*names: bytes, length: int = PROMPT, **options: Any) -> LiveRequest:
    """A request whose prompt has an item of each name."""
    prompt = MultimodalInput(
        token_ids=np.arange(length),
        positions=np.arange(length),
        next_position=length,
        items=tuple(make_item(1 + index, name) for index, name in enumerate(names)),
    )
    return LiveRequest.make(TokenRequest(request_id=4, prompt=prompt, params=SamplingParams(**options)))


def wait_for(live: LiveRequest, *indexes: int) -> None:
    for index in indexes:
        live.sequence.item_states[index] = EmbeddingState.REQUESTED


# --- embeddings -------------------------------------------------------------------------------------------------------


def test_items_of_one_embedding_wait_for_it_together() -> None:
    live = make_live(b"a", b"b", b"a", b"a")
    wait_for(live, 0, 1, 2)
    assert live.find_waiting(b"a") == [0, 2] and live.find_waiting(b"c") == []


def test_the_cost_of_batches_is_counted_once_where_they_overlap() -> None:
    live = make_live(b"a", b"b", b"c")
    wait_for(live, 0, 1, 2)
    live.add_encoding(b"b", EncodeTiming(queue_s=0.5, encode_s=2.0, started_s=11.0))
    live.add_encoding(b"a", EncodeTiming(queue_s=0.25, encode_s=2.0, started_s=10.0))  # ended within
    live.add_encoding(b"c", EncodeTiming(queue_s=0.125, encode_s=4.0, started_s=12.0))
    report = live.take_output("stop").report
    assert report is not None
    assert (report.encode_queue_s, report.encode_s) == (0.5, 5.0)
    assert (report.encoding_at_s, report.encoded_at_s) == (10.0, 16.0)
    assert report.encoded_items == (0, 1, 2)


def test_what_was_stored_or_is_not_waited_for_costs_nothing() -> None:
    live = make_live(b"a", b"b")
    wait_for(live, 0)
    live.add_encoding(b"a", EncodeTiming())
    live.add_encoding(b"b", EncodeTiming(queue_s=1.0, encode_s=1.0, started_s=3.0))
    report = live.take_output("stop").report
    assert report is not None and (report.encode_queue_s, report.encode_s, report.encoded_items) == (0.0, 0.0, ())
    assert report.encoding_at_s is None and report.encoded_at_s is None


def test_a_lent_embedding_is_counted_when_it_is_known() -> None:
    live = make_live(b"a", b"b", b"a")
    wait_for(live, 0, 1, 2)
    live.lend(b"a")
    for index in (0, 2):
        live.sequence.item_states[index] = EmbeddingState.DONE
    assert live.find_lent(b"a") == [0, 2] and live.find_lent(b"b") == []
    live.computing_at = 12.0
    live.add_encoding(b"a", EncodeTiming(queue_s=0.5, encode_s=3.0, started_s=10.0))
    assert live.find_lent(b"a") == [] and live.encoded_items == {0, 2}
    assert live.computing_at == 13.0, "its first row was launched behind the tower"
    live.lend(b"b")
    live.add_encoding(b"b", EncodeTiming(queue_s=0.5, encode_s=0.5, started_s=10.0))
    assert live.computing_at == 13.0


# --- output -----------------------------------------------------------------------------------------------------------


def test_tokens_are_taken_once_and_the_last_output_has_the_report() -> None:
    live = make_live()
    live.add_tokens([5, 6], [{5: -0.5}, {6: -0.25}])
    first = live.take_output()
    assert (first.request_id, first.token_ids, first.logprobs) == (4, (5, 6), ({5: -0.5}, {6: -0.25}))
    assert first.finish_reason is None and first.report is None
    assert (live.take_output().token_ids, live.take_output().logprobs) == ((), None)
    live.add_tokens([7], [])
    last = live.take_output("stop", stop_token_id=7)
    assert (last.token_ids, last.logprobs, last.finish_reason, last.stop_token_id) == ((7,), None, "stop", 7)
    assert last.report is not None and last.report.logits is None and last.report.pooled is None


def test_the_first_token_has_one_time() -> None:
    live = make_live()
    before = time.perf_counter()
    live.note_token()
    first = live.first_token_at
    live.note_token()
    assert first is not None and before <= first == live.first_token_at


def make_scores(start: int, stop: int) -> PromptLogprobs:
    """Log-probabilities of the tokens at positions from `start`."""
    ids = np.arange(start, stop)[:, None]
    return PromptLogprobs(ids=ids, values=-ids.astype(np.float32), ranks=np.ones(stop - start, np.int32))


def test_scores_of_the_prompt_come_once_when_all_are_there() -> None:
    live = make_live(prompt_logprobs=0)
    live.add_row(RowResult(seq_id=4, start=0, prompt_logprobs=make_scores(1, 5)))
    assert live.take_output().prompt_logprobs is None
    live.add_row(RowResult(seq_id=4, start=2, prompt_logprobs=make_scores(3, 8)))  # again, after a preemption
    assert live.take_output().prompt_logprobs is None
    live.add_row(RowResult(seq_id=4, start=7, prompt_logprobs=make_scores(8, PROMPT)))
    found = live.take_output().prompt_logprobs
    assert found is not None and found.ids[:, 0].tolist() == list(range(1, PROMPT))
    assert live.take_output().prompt_logprobs is None and live.take_output("stop").prompt_logprobs is None


def test_a_prompt_of_one_token_has_no_scores() -> None:
    found = make_live(length=1, prompt_logprobs=0).take_output().prompt_logprobs
    assert found is not None and len(found) == 0
    assert make_live().take_output("stop").prompt_logprobs is None


def test_an_error_has_no_scores() -> None:
    live = make_live(prompt_logprobs=0)
    live.add_row(RowResult(seq_id=4, start=0, prompt_logprobs=make_scores(1, PROMPT)))
    error = RequestError(ErrorCode.INTERNAL, "no")
    last = live.take_output("error", error=error, failed_item=2)
    assert (last.prompt_logprobs, last.error, last.failed_item) == (None, error, 2)


def test_values_of_positions_are_joined_and_not_taken_twice() -> None:
    live = make_live()
    values = torch.arange(12.0).view(6, 2)
    for start, stop in ((0, 3), (1, 4), (1, 3), (4, 6)):
        piece = PositionOutputs(start=start, values=values[start:stop])
        live.add_row(RowResult(seq_id=4, start=start, logits=piece, hidden_states=piece, token_vectors=piece))
    report = live.take_output("stop").report
    assert report is not None
    for found in (report.logits, report.hidden_states, report.pooled):
        np.testing.assert_array_equal(found, values)


@pytest.mark.parametrize(("pooling", "expected"), [("mean", 6.0), ("last", 36.0)])
def test_a_sequence_that_is_pooled_begins_again_at_its_first_position(pooling: Any, expected: float) -> None:
    live = make_live(pooling=pooling)
    for start, total in ((0, 100.0), (0, 18.0), (5, 36.0)):
        live.add_row(RowResult(seq_id=4, start=start, hidden_sum=torch.full((2,), total)))
    report = live.take_output("stop").report
    assert report is not None and report.pooled is not None and report.pooled.tolist() == [expected] * 2
