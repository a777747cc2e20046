"""What crosses the link between a frontend and its core is the same on the other side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np
import pytest
from link_pair import linked, read_next

from seesay.checkpoint.tensor_source import GivenTensor
from seesay.config.grammar import Grammar
from seesay.engine import commands
from seesay.engine.process import kinds
from seesay.engine.process.link import Link
from seesay.engine.token_messages import TokenOutput, TokenReport, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import NamedProcessor, SamplingParams
from seesay.values import MediaItem, Modality, MultimodalInput, ThoughtRule
from seesay.values.prompt_logprobs import PromptLogprobs

NO_NEWS = kinds.News((), (), None)
PIXELS = np.arange(1 << 15, dtype=np.float32).reshape(-1, 2)
"""Large enough for shared memory."""
TRUTHS = [False, True]


@pytest.fixture(scope="module")
def ends() -> Iterator[tuple[Link[Any, Any], Link[Any, Any]]]:
    """The core's end of a link, and the frontend's."""
    with linked(kinds.ToCore, kinds.ToFrontend) as ends:
        yield ends


@pytest.fixture
def to_core(ends: tuple[Link[Any, Any], Link[Any, Any]]) -> Any:
    def cross(message: Any) -> Any:
        ends[1].send(message)
        return read_next(ends[0])

    return cross


@pytest.fixture
def to_frontend(ends: tuple[Link[Any, Any], Link[Any, Any]]) -> Any:
    def cross(output: TokenOutput) -> Any:
        ends[0].send(kinds.Outputs((kinds.Output.of(output, 7),), NO_NEWS))
        [found] = read_next(ends[1]).outputs
        return found.restore()

    return cross


def check(found: Any, expected: Any) -> None:
    """Both are equal, with all that is in them, and of the same types."""
    assert type(found) is type(expected)
    if isinstance(expected, np.ndarray):
        np.testing.assert_array_equal(found, expected)
        assert found.dtype == expected.dtype
    elif is_dataclass(expected) and not isinstance(expected, type):
        for field in fields(expected):
            check(getattr(found, field.name), getattr(expected, field.name))
    elif isinstance(expected, tuple):
        assert len(found) == len(expected)
        for one, other in zip(found, expected, strict=True):
            check(one, other)
    elif isinstance(expected, dict):
        assert list(found) == list(expected)
        check(tuple(found.values()), tuple(expected.values()))
    elif isinstance(expected, RequestError):
        check((found.code, found.message, found.param), (expected.code, expected.message, expected.param))
    else:
        assert found == expected


# --- requests ---------------------------------------------------------------------------------------------------------


def make_item(**options: Any) -> MediaItem:
    return MediaItem(
        modality=Modality.IMAGE,
        span=(1, 5),
        slots=np.arange(1, 5),
        hash=bytes(range(32)),
        num_units=16,
        features={"pixels": PIXELS, "grid": (1, 4, 4), "sizes": ((2, 3), (4, 5))},
        **options,
    )


def make_request(params: SamplingParams = SamplingParams(), *items: MediaItem, **options: Any) -> TokenRequest:  # noqa: B008
    prompt = MultimodalInput(
        token_ids=np.arange(9),
        positions=np.arange(18).reshape(2, 9),
        next_position=12,
        items=items,
        num_answer_tokens=2,
    )
    return TokenRequest(request_id=3, prompt=prompt, params=params, **options)


def send(to_core: Any, request: TokenRequest, *, has_arrays: bool = True) -> TokenRequest:
    """Return a request as the core gets it."""
    items = tuple(kinds.Item.of(item, has_arrays=has_arrays) for item in request.prompt.items)
    found: TokenRequest = to_core(
        kinds.Submit(kinds.Request.of(request, owner=b"owner", items=items))
    ).request.restore()
    return found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"priority": -3, "cache_salt": b"salt", "is_streamed": True, "adapter_id": 5},
        {"defers_tokens": True, "group_id": 3, "keeps_blocks": True},
        {"group_id": 0, "grammar": Grammar(kind="lark", source='start: "a"')},
        {"thought": ThoughtRule(begin="<a>", end="</a>", begin_ids=(1, 2), end_ids=(3,), is_open=True, max_tokens=0)},
        {"thought": ThoughtRule(begin="<a>", end="</a>", begin_ids=(), end_ids=(3, 4), is_open=False, max_tokens=None)},
    ],
)
def test_a_request_is_the_same_for_the_core(to_core: Any, options: dict[str, Any]) -> None:
    check(send(to_core, make_request(**options)), make_request(owner=b"owner", **options))


@pytest.mark.parametrize("is_slow", TRUTHS)
def test_a_grammar_that_takes_long_does_so_there(to_core: Any, is_slow: bool) -> None:
    """It is compiled once more, beside the steps."""
    found = send(to_core, make_request(grammar=Grammar(kind="lark", source="s", is_slow=is_slow))).grammar
    assert found is not None and found.is_slow is is_slow


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(),
        SamplingParams(greedy=False, temperature=0.5, top_k=3, seed=1 << 63, max_new_tokens=0),
        SamplingParams(logit_bias=((3, 0.5), (4, -1.0)), bad_words=("a", "b"), logprobs=0, prompt_logprobs=0),
        SamplingParams(
            logits_processors=(NamedProcessor("module:name", '{"a": 1}'), NamedProcessor("other:name", "{}")),
            pooling="mean",
        ),
    ],
)
def test_sampling_options_are_the_same(to_core: Any, params: SamplingParams) -> None:
    check(send(to_core, make_request(params)).params, params)


def test_only_options_that_differ_from_their_defaults_are_sent() -> None:
    """A request of a few tokens is a message of a few bytes."""
    params = SamplingParams(greedy=False, max_new_tokens=3)
    assert kinds.Request.of(make_request(params), owner=0, items=()).params == {"greedy": False, "max_new_tokens": 3}


@pytest.mark.parametrize("is_reloadable", TRUTHS)
def test_media_are_the_same(to_core: Any, is_reloadable: bool) -> None:
    item = make_item(is_reloadable=is_reloadable)
    check(send(to_core, make_request(SamplingParams(), item, item)).prompt.items, (item, item))


def test_arrays_stay_where_an_embedding_is_probably_cached(to_core: Any) -> None:
    [found] = send(to_core, make_request(SamplingParams(), make_item()), has_arrays=False).prompt.items
    assert not found.has_arrays and found.num_array_bytes == 0
    check(found.features, {"grid": (1, 4, 4), "sizes": ((2, 3), (4, 5))})


@pytest.mark.parametrize("param", [None, "messages"])
def test_features_may_be_refused(to_core: Any, param: str | None) -> None:
    error = RequestError(ErrorCode.INVALID_MEDIA, "no picture", param)
    check(to_core(kinds.GiveFeatures(1, 2, {}, kinds.Failure.of(error))).error.restore(), error)


# --- commands ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "command",
    [
        commands.ResetCaches(),
        commands.StageTensor(
            update_id="a", tensor=GivenTensor(name="w", dtype="F32", shape=(2, 1), data=np.arange(8, dtype=np.uint8))
        ),
        commands.DropStaged(update_id="a"),
        commands.UpdateWeights(folder="folder", is_partial=True, running="abort"),
        commands.UpdateWeights(update_id="a"),
        commands.Sleep(level=2),
        commands.WakeUp(tags=("kv_cache",)),
        commands.LoadAdapter(name="a", folder="folder"),
        commands.UnloadAdapter(name="a", running="abort"),
    ],
)
def test_a_command_is_the_same_for_the_core(to_core: Any, command: commands.Command) -> None:
    message = to_core(kinds.Do.of(5, command))
    assert message.number == 5
    check(message.restore(), command)


# --- outputs ----------------------------------------------------------------------------------------------------------

PROMPT = PromptLogprobs(
    ids=np.arange(6).reshape(3, 2), values=np.ones((3, 2), np.float32), ranks=np.arange(3, dtype=np.int32)
)
REPORT = TokenReport(
    num_cached_tokens=1, num_drafted=2, num_accepted=3, encode_queue_s=4.0, encode_s=5.0, encoding_at_s=6.0,
    encoded_at_s=7.0, computing_at_s=8.0, first_token_at_s=9.0, encoded_items=(0, 2),
    logits=np.ones((2, 3), np.float32), hidden_states=np.zeros((2, 4), np.float32), pooled=np.ones(4, np.float32),
)  # fmt: skip


@pytest.mark.parametrize(
    "values",
    [
        {},
        {"logprobs": ({3: -0.5, 4: -1.5}, {5: 0.0})},
        {"prompt_logprobs": PROMPT},
        {"finish_reason": "stop", "stop_token_id": 2},
        {"finish_reason": "length", "logprobs": ({3: -0.5},), "report": REPORT},
        {"finish_reason": "length", "prompt_logprobs": PROMPT, "report": TokenReport()},
        {"finish_reason": "error", "error": RequestError(ErrorCode.INVALID_MEDIA, "no picture"), "failed_item": 0},
    ],
)
def test_an_output_is_the_same_for_the_frontend(to_frontend: Any, values: dict[str, Any]) -> None:
    """The core numbers requests in its own way."""
    found = to_frontend(TokenOutput(request_id=1 << 40, token_ids=(1, 2), **values))
    check(found, TokenOutput(request_id=7, token_ids=(1, 2), **values))
