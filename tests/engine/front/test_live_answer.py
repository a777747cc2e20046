"""What becomes of the core's outputs of one request: text, counts, times, and everything that is reported once."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import seesay.demo
from seesay.engine.front.live_answer import FrontTimes, LiveAnswer
from seesay.engine.token_messages import TokenOutput, TokenReport
from seesay.errors import ErrorCode, RequestError
from seesay.grammars.thought import ThoughtTracker
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.scheduling.stopping import REPEATED
from seesay.processors.text.detokenize import IncrementalDetokenizer
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import MediaPlace, MediaReport, Modality, OutputDelta, ThoughtRule, Usage
from seesay.values.prompt_logprobs import PromptLogprobs

TOKENIZER = Tokenizer.load(Path(seesay.demo.__file__).with_name("checkpoint"))
A, B, C, D, STOP = map(TOKENIZER.token_id, "abcd!")
NUM_PROMPT = 7
REPORT = TokenReport(num_cached_tokens=3, num_drafted=9, num_accepted=4)


def make_answer(
    *, stop_words: Sequence[str] = (), streams: bool = True, include_stop: bool = False, **options: Any
) -> LiveAnswer:
    params = {name: options.pop(name) for name in list(options) if name in SamplingParams.__dataclass_fields__}
    return LiveAnswer(
        request_id=5,
        prompt_usage=Usage(prompt_tokens=NUM_PROMPT, media_tokens=2, num_images=1),
        params=SamplingParams(**params),
        detokenizer=IncrementalDetokenizer(TOKENIZER, stop_words=stop_words, include_stop_str=include_stop),
        on_output=lambda _: None,
        streams=streams,
        keeps_stop=include_stop,
        times=options.pop("times", None) or FrontTimes(received_at=1.0),
        **options,
    )


def out(*token_ids: Any, reason: Any = None, **options: Any) -> TokenOutput:
    return TokenOutput(request_id=5, token_ids=token_ids, finish_reason=reason, **options)


def take(answer: LiveAnswer, *token_ids: Any, **options: Any) -> OutputDelta:
    delta = answer.take(out(*token_ids, **options))
    assert delta is not None and (delta.request_id, delta.prompt_tokens) == (5, NUM_PROMPT)
    return delta


def end(answer: LiveAnswer, *token_ids: Any, reason: Any = "stop", **options: Any) -> OutputDelta:
    delta = take(answer, *token_ids, reason=reason, **options)
    assert delta.usage is not None
    assert (delta.usage.prompt_tokens, delta.usage.media_tokens, delta.usage.num_images) == (NUM_PROMPT, 2, 1)
    return delta


def logprobs_of(*values: float, token_ids: Sequence[Any]) -> tuple[dict[int, float], ...]:
    """Entries for tokens, each of which has a likelier alternative."""
    return tuple({0: -0.01, token_id: value} for token_id, value in zip(token_ids, values, strict=True))


# --- tokens that come as they are made, or with the end ---------------------------------------------------------------


def test_a_streamed_answer_is_handed_out_piece_by_piece() -> None:
    answer = make_answer()
    assert (take(answer, A).text, take(answer, B, C).text) == ("a", "bc")
    last = end(answer, D, reason="length")
    assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("d", (D,), "length", None)
    assert last.usage is not None and last.usage.completion_tokens == 4


def test_an_answer_that_is_not_streamed_comes_with_its_end() -> None:
    answer = make_answer(streams=False)
    assert answer.take(out(A)) is None and answer.take(out(B, C)) is None
    last = end(answer, D, reason="length")
    assert (last.text, last.token_ids, last.finish_reason) == ("abcd", (A, B, C, D), "length")
    assert last.usage is not None and last.usage.completion_tokens == 4
    assert last.logprobs is None and last.prompt_logprobs is None and last.mean_logprob is None


@pytest.mark.parametrize("streams", [True, False])
def test_the_beginning_of_a_character_comes_with_the_end(streams: bool) -> None:
    answer = make_answer(streams=streams)
    first, second = TOKENIZER.encode("é")
    assert streams == (answer.take(out(first)) is not None)
    assert end(answer, reason="length").text == "�"
    whole = make_answer(streams=streams)
    assert ((whole.take(out(first)) or OutputDelta(request_id=5)).text, end(whole, second).text) == ("", "é")


@pytest.mark.parametrize(
    ("options", "defers"),
    [
        ({}, False), ({"streams": False}, True), ({"streams": False, "stop_words": ["x"]}, False),
        ({"streams": False, "pooling": "last"}, False), ({"stop_words": ["x"]}, False),
    ],
)  # fmt: skip
def test_tokens_may_wait_where_nobody_looks_at_them_before(options: dict[str, Any], defers: bool) -> None:
    assert make_answer(**options).defers_tokens is defers


# --- how it ends ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False])
def test_the_token_that_ended_it_is_not_part_of_it(streams: bool) -> None:
    answer = make_answer(streams=streams, stop_token_ids=(STOP,), eos_token_ids=(D,))
    answer.take(out(A))
    last = end(answer, B, STOP, stop_token_id=STOP)
    assert (last.text[-1], last.token_ids[-1], last.stop_reason) == ("b", B, STOP)
    assert last.usage is not None and last.usage.completion_tokens == 2


def test_a_stop_token_of_the_request_is_kept_where_it_asks_for_that() -> None:
    options: Any = {"include_stop": True, "stop_token_ids": (STOP,), "eos_token_ids": (D,)}
    kept = end(make_answer(**options), A, STOP, stop_token_id=STOP)
    assert (kept.text, kept.token_ids, kept.stop_reason) == ("a!", (A, STOP), STOP)
    eos = end(make_answer(**options), A, D, stop_token_id=D)
    assert (eos.text, eos.token_ids) == ("a", (A,)), "the model's own"


def test_an_answer_that_repeats_itself_keeps_its_tokens() -> None:
    last = end(make_answer(), A, B, stop_token_id=REPEATED)
    assert (last.text, last.token_ids, last.stop_reason) == ("ab", (A, B), "repetition")
    last = end(make_answer(include_stop=True), A, B, stop_token_id=REPEATED)
    assert (last.token_ids, last.stop_reason) == ((A, B), "repetition")


def test_an_error_comes_with_the_text_before() -> None:
    error = RequestError(ErrorCode.INTERNAL, "no")
    place = MediaPlace(source="messages[0].content[1]")
    report = make_media_report()
    answer = make_answer(media=(report, report), media_places=(place, None))
    last = end(answer, A, reason="error", error=error, report=REPORT)
    assert (last.finish_reason, last.error, last.text, last.media) == ("error", error, "a", ())


def test_an_error_of_a_medium_names_its_place() -> None:
    error = RequestError(ErrorCode.INVALID_MEDIA, "no")
    places = [None, MediaPlace(source="messages[0].content[1]")]
    located = end(make_answer(media_places=places), reason="error", error=error, failed_item=1).error
    assert isinstance(located, RequestError) and "messages[0].content[1]: no" in str(located)
    assert end(make_answer(media_places=places), reason="error", error=error, failed_item=0).error is error
    assert end(make_answer(media_places=places), reason="abort", failed_item=1).error is None


# --- stop words -------------------------------------------------------------------------------------------------------


def test_text_after_a_stop_word_is_dropped() -> None:
    answer = make_answer(stop_words=["b"], logprobs=1)
    assert (take(answer, A).text, answer.has_stopped) == ("a", False)
    entries = logprobs_of(-1.0, -2.0, -40.0, -40.0, token_ids=(A, B, C, D))
    assert answer.take(out(A, B, C, D, logprobs=entries)) is None, "it comes with the report"
    assert answer.has_stopped
    assert answer.take(out(D)) is None
    last = end(answer, D, reason="abort", report=REPORT)
    assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("a", (A, B), "stop", "b")
    assert last.logprobs == entries[:2] and answer.num_tokens == 3
    assert last.mean_logprob == pytest.approx(-3.0 / 3)
    assert last.usage is not None and last.usage.completion_tokens == 3


def test_a_stop_word_in_the_final_output() -> None:
    for reason in ("length", "stop"):
        last = end(make_answer(stop_words=["bc"], streams=False), A, B, C, D, reason=reason)
        assert (last.text, last.token_ids, last.finish_reason, last.stop_reason) == ("a", (A, B, C), "stop", "bc")
    kept = end(make_answer(stop_words=["bc"], include_stop=True), A, B, C, D, reason="length")
    assert (kept.text, kept.token_ids) == ("abc", (A, B, C))


def test_what_may_begin_a_stop_word_is_held_back_until_the_end() -> None:
    answer = make_answer(stop_words=["bc"])
    assert take(answer, A, B).text == "a"
    last = end(answer, reason="length")
    assert (last.text, last.finish_reason, last.stop_reason) == ("b", "length", None)


def test_an_error_after_a_stop_word_concerns_tokens_that_are_dropped() -> None:
    error = RequestError(ErrorCode.INTERNAL, "no")
    answer = make_answer(stop_words=["b"])
    assert answer.take(out(A, B)) is None
    last = end(answer, reason="error", error=error)
    assert (last.error, last.finish_reason, last.stop_reason) == (None, "stop", "b")
    before = end(make_answer(stop_words=["b"]), A, reason="error", error=error)
    assert (before.error, before.finish_reason) == (error, "error")
    together = end(make_answer(stop_words=["b"]), A, B, reason="error", error=error)
    assert (together.error, together.finish_reason, together.stop_reason) == (error, "error", None)


# --- log-probabilities ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("stop_words", [[], ["x"]])
def test_log_probabilities_go_with_their_tokens(streams: bool, stop_words: list[str]) -> None:
    answer = make_answer(streams=streams, stop_words=stop_words, logprobs=1)
    first, second = logprobs_of(-1.0, -2.0, token_ids=(A, B)), logprobs_of(-4.0, -1.0, token_ids=(C, STOP))
    middle = answer.take(out(A, B, logprobs=first))
    assert (middle is not None) == streams and (middle is None or middle.logprobs == first)
    last = end(answer, C, STOP, logprobs=second, stop_token_id=STOP)
    assert last.logprobs == (second[:1] if streams else (*first, second[0])), "not that of the token that ended it"
    assert last.mean_logprob == pytest.approx(-8.0 / 4), "with the token that ended it"


def test_the_mean_needs_tokens_and_a_request_for_it() -> None:
    assert end(make_answer(logprobs=1), reason="abort").mean_logprob is None
    entries = logprobs_of(-1.0, token_ids=(A,))
    assert end(make_answer(), A, logprobs=entries).mean_logprob is None
    assert end(make_answer(logprobs=0), A, logprobs=entries).mean_logprob == -1.0


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("stop_words", [[], ["x"]])
def test_those_of_the_prompt_come_once(streams: bool, stop_words: list[str]) -> None:
    found: Any = object.__new__(PromptLogprobs)
    answer = make_answer(streams=streams, stop_words=stop_words, prompt_logprobs=0)
    deltas = [answer.take(out(A, prompt_logprobs=found)), answer.take(out(B)), end(answer, C)]
    given = [delta.prompt_logprobs for delta in deltas if delta is not None]
    assert given == ([found, None, None] if streams else [found])


# --- thoughts ---------------------------------------------------------------------------------------------------------


def make_thought(*, is_open: bool) -> ThoughtTracker:
    rule = ThoughtRule(begin="<", end=">", begin_ids=(27,), end_ids=(29,), is_open=is_open)
    return ThoughtTracker(rule, TOKENIZER.spelling.spell)


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("stop_words", [[], ["x"]])
@pytest.mark.parametrize("is_open", [True, False])
def test_the_tokens_of_a_thought_are_counted(streams: bool, stop_words: list[str], is_open: bool) -> None:
    answer = make_answer(streams=streams, stop_words=stop_words, thought=make_thought(is_open=is_open))
    assert answer.is_thinking is is_open
    begin, finish = TOKENIZER.encode("<>")
    middle = answer.take(out(*([] if is_open else [begin]), A, B))
    last = end(answer, C, finish, D)
    assert last.is_thinking is is_open and (middle is None or middle.is_thinking is is_open)
    assert last.usage is not None and last.usage.reasoning_tokens == 3


def test_an_answer_without_a_thought() -> None:
    answer = make_answer()
    assert not answer.is_thinking and not take(answer, A).is_thinking
    last = end(answer, B)
    assert not last.is_thinking and last.usage is not None and last.usage.reasoning_tokens == 0


# --- what is reported once --------------------------------------------------------------------------------------------


def test_counts_of_the_report() -> None:
    usage = end(make_answer(), A, report=REPORT).usage
    assert usage is not None and usage.cached_tokens == 3
    assert (usage.accepted_prediction_tokens, usage.rejected_prediction_tokens) == (4, 5)
    usage = end(make_answer(), A, reason="abort").usage  # the core is gone
    assert usage is not None and usage.cached_tokens == 0


TIMES = FrontTimes(received_at=10.0, prepared_at=11.0, fetch_s=0.25, decode_media_s=0.5, preprocess_s=0.125)


def test_times_of_the_stages() -> None:
    report = TokenReport(
        encode_queue_s=0.75, encode_s=0.375, encoding_at_s=11.5, encoded_at_s=12.0, computing_at_s=12.5,
        first_token_at_s=14.0,
    )  # fmt: skip
    timings = TIMES.make_timings(report, 20.0)
    assert (timings.fetch_s, timings.decode_media_s, timings.preprocess_s) == (0.25, 0.5, 0.125)
    assert (timings.encode_queue_s, timings.encode_s) == (0.75, 0.375)
    assert (timings.prefill_s, timings.decode_s) == (1.5, 6.0)
    assert (timings.time_to_first_token_s, timings.total_s) == (4.0, 10.0)
    moments = TIMES.make_moments(report, 20.0)
    assert (moments.received_at_s, moments.prepared_at_s, moments.ended_at_s) == (10.0, 11.0, 20.0)
    assert (moments.encoding_at_s, moments.encoded_at_s) == (11.5, 12.0)
    assert (moments.computing_at_s, moments.first_token_at_s) == (12.5, 14.0)


def test_times_of_what_did_not_come_to_its_end() -> None:
    waiting = TIMES.make_timings(TokenReport(), 20.0)
    assert (waiting.prefill_s, waiting.decode_s, waiting.time_to_first_token_s, waiting.total_s) == (0, 0, 0, 10.0)
    begun = TIMES.make_timings(TokenReport(computing_at_s=12.5), 20.0)
    assert (begun.prefill_s, begun.decode_s, begun.time_to_first_token_s) == (7.5, 0, 0)


def test_the_end_has_times_and_other_pieces_have_none() -> None:
    report = TokenReport(computing_at_s=12.5, first_token_at_s=14.0)
    answer = make_answer(times=TIMES)
    first = take(answer, A)
    assert (first.timings, first.moments, first.usage) == (None, None, None)
    last = end(answer, B, report=report)
    assert last.timings is not None and last.moments is not None
    assert (last.timings.prefill_s, last.moments.first_token_at_s) == (1.5, 14.0)
    assert last.timings.total_s == last.moments.ended_at_s - 10.0


def make_media_report() -> MediaReport:
    return MediaReport(
        modality=Modality.IMAGE, num_frames=1, height=50, width=100, resized_height=100, resized_width=200, num_tiles=1,
        num_patches=1, num_tokens=1, is_cached=False,
    )  # fmt: skip


@pytest.mark.parametrize("reason", ["stop", "length"])
def test_media_are_cached_where_no_tower_ran(reason: str) -> None:
    media = (make_media_report(),) * 3
    last = end(make_answer(media=media), A, reason=reason, report=TokenReport(encoded_items=(0, 2)))
    assert [each.is_cached for each in last.media] == [False, True, False]


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_media_that_may_not_have_been_seen_are_not_reported(reason: str) -> None:
    assert end(make_answer(media=(make_media_report(),)), A, reason=reason).media == ()


def test_an_embedding_is_that_of_a_whole_prompt() -> None:
    values = np.arange(3, dtype=np.float32)
    values.flags.writeable = False
    last = end(make_answer(pooling="last", streams=False), report=TokenReport(pooled=values))
    assert torch.equal(last.pooled, torch.arange(3, dtype=torch.float32))
    for reason in ("abort", "length"):
        assert end(make_answer(pooling="last"), reason=reason, report=TokenReport(pooled=values)).pooled is None
    assert end(make_answer()).pooled is None


@pytest.mark.parametrize("kind", ["generation", "all"])
@pytest.mark.parametrize("of_logits", [True, False])
def test_outputs_of_positions_are_those_of_tokens_that_remain(kind: str, of_logits: bool) -> None:
    """A row for each position but the last; of the prompt, only the last one where `kind` is not "all"."""
    num_before = NUM_PROMPT - 1 if kind == "all" else 0
    values = np.arange(2 * (num_before + 4), dtype=np.float32).reshape(-1, 2)
    name, other = ("logits", "last_hidden_state") if of_logits else ("last_hidden_state", "logits")
    options: Any = {f"output_{name}": kind}
    report = TokenReport(logits=values) if of_logits else TokenReport(hidden_states=values)
    whole = end(make_answer(streams=False, **options), A, B, C, D, report=report)
    assert torch.equal(getattr(whole, name), torch.from_numpy(values)) and getattr(whole, other) is None
    cut = end(make_answer(stop_words=["b"], streams=False, **options), A, B, C, D, report=report)
    assert torch.equal(getattr(cut, name), torch.from_numpy(values)[: num_before + 2])


def test_outputs_of_a_prompt_that_is_not_answered_are_those_of_all_its_positions() -> None:
    values = np.zeros((NUM_PROMPT, 2), dtype=np.float32)
    last = end(make_answer(output_logits="all"), reason="length", report=TokenReport(logits=values))
    assert last.logits.shape == (NUM_PROMPT, 2) and last.token_ids == ()
