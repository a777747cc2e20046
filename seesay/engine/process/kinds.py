"""The kinds of messages between a frontend and the core in another process.

Each kind is a `msgspec.Struct`: whatever is of no kind, or has other fields, raises when it is decoded. Knows the
engine's own values only as far as it is made from them and gives them back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from seesay.checkpoint.tensor_source import GivenTensor
from seesay.config.grammar import Grammar
from seesay.engine import commands
from seesay.engine.token_messages import CoreFacts, TokenOutput, TokenReport, TokenRequest
from seesay.errors import ErrorCode, RequestError
from seesay.llm.plans.sampling_params import NamedProcessor, SamplingParams
from seesay.values import EngineStats, FinishReason, MediaItem, Modality, MultimodalInput, ThoughtRule
from seesay.values.prompt_logprobs import PromptLogprobs

Array = npt.NDArray[Any]


class Message(msgspec.Struct, array_like=True, forbid_unknown_fields=True, tag=True):
    """Something that crosses the link. Its kind is the name of its class."""


class Piece(msgspec.Struct, array_like=True, forbid_unknown_fields=True):
    """A part of a message."""


class Failure(Piece):
    """A `RequestError`."""

    code: ErrorCode
    text: str
    param: str | None

    @classmethod
    def of(cls, error: RequestError) -> Failure:
        return cls(error.code, error.message, error.param)

    def restore(self) -> RequestError:
        return RequestError(self.code, self.text, self.param)


class Item(Piece):
    """A `MediaItem`. `has_arrays`: whether `features` holds those that are arrays."""

    modality: Modality
    span: tuple[int, int]
    slots: Array
    hash: bytes
    num_units: int
    features: dict[str, Any]
    has_arrays: bool
    is_reloadable: bool

    @classmethod
    def of(cls, item: MediaItem, *, has_arrays: bool) -> Item:
        features = dict(item.features) if has_arrays else without_arrays(item.features)
        return cls(
            item.modality, item.span, item.slots, item.hash, item.num_units, features, has_arrays, item.is_reloadable
        )

    def restore(self) -> MediaItem:
        return MediaItem(
            modality=self.modality,
            span=self.span,
            slots=self.slots,
            hash=self.hash,
            num_units=self.num_units,
            features=restore_features(self.features),
            has_arrays=self.has_arrays,
            is_reloadable=self.is_reloadable,
        )


class Thought(Piece):
    """A `ThoughtRule`."""

    begin: str
    end: str
    begin_ids: tuple[int, ...]
    end_ids: tuple[int, ...]
    is_open: bool
    max_tokens: int | None

    @classmethod
    def of(cls, rule: ThoughtRule) -> Thought:
        return cls(rule.begin, rule.end, rule.begin_ids, rule.end_ids, rule.is_open, rule.max_tokens)

    def restore(self) -> ThoughtRule:
        return ThoughtRule(
            begin=self.begin,
            end=self.end,
            begin_ids=self.begin_ids,
            end_ids=self.end_ids,
            is_open=self.is_open,
            max_tokens=self.max_tokens,
        )


class Request(Piece):
    """A `TokenRequest`. `params` are the sampling options that differ from their defaults; `owner` is bytes that are
    the same for every frontend, or a number that stands for a value of this frontend alone. `grammar` is a program's
    kind and source, and whether it takes long to compile."""

    request_id: int
    token_ids: Array
    positions: Array
    next_position: int
    num_answer_tokens: int
    items: tuple[Item, ...]
    params: dict[str, Any]
    owner: int | bytes
    priority: int
    cache_salt: bytes
    is_streamed: bool
    defers_tokens: bool
    grammar: tuple[str, str, bool] | None
    group_id: int | None
    keeps_blocks: bool
    thought: Thought | None
    adapter_id: int

    @classmethod
    def of(cls, request: TokenRequest, *, owner: int | bytes, items: tuple[Item, ...]) -> Request:
        prompt = request.prompt
        return cls(
            request.request_id,
            prompt.token_ids,
            prompt.positions,
            prompt.next_position,
            prompt.num_answer_tokens,
            items,
            _changed_fields(request.params),
            owner,
            request.priority,
            request.cache_salt,
            request.is_streamed,
            request.defers_tokens,
            None if (grammar := request.grammar) is None else (grammar.kind, grammar.source, grammar.is_slow),
            request.group_id,
            request.keeps_blocks,
            None if request.thought is None else Thought.of(request.thought),
            request.adapter_id,
        )

    def restore(self) -> TokenRequest:
        return TokenRequest(
            request_id=self.request_id,
            prompt=MultimodalInput(
                token_ids=self.token_ids,
                positions=self.positions,
                next_position=self.next_position,
                items=tuple(item.restore() for item in self.items),
                num_answer_tokens=self.num_answer_tokens,
            ),
            params=_restore_params(self.params),
            owner=self.owner,
            priority=self.priority,
            cache_salt=self.cache_salt,
            adapter_id=self.adapter_id,
            is_streamed=self.is_streamed,
            defers_tokens=self.defers_tokens,
            grammar=None if self.grammar is None else _restore_program(*self.grammar),
            group_id=self.group_id,
            keeps_blocks=self.keeps_blocks,
            thought=None if self.thought is None else self.thought.restore(),
        )


class Report(Piece):
    """A `TokenReport`."""

    num_cached_tokens: int
    encode_queue_s: float
    encode_s: float
    encoding_at_s: float | None
    encoded_at_s: float | None
    computing_at_s: float | None
    first_token_at_s: float | None
    encoded_items: tuple[int, ...]
    logits: Array | None
    hidden_states: Array | None
    pooled: Array | None
    num_drafted: int
    num_accepted: int

    @classmethod
    def of(cls, report: TokenReport) -> Report:
        return cls(*(getattr(report, name) for name in cls.__struct_fields__))

    def restore(self) -> TokenReport:
        return TokenReport(**{name: getattr(self, name) for name in self.__struct_fields__})


class Output(Piece):
    """A `TokenOutput`."""

    request_id: int
    token_ids: tuple[int, ...]
    logprobs: tuple[dict[int, float], ...] | None
    finish_reason: FinishReason | None
    stop_token_id: int | None
    error: Failure | None
    failed_item: int | None
    report: Report | None
    prompt_logprobs: tuple[Array, Array, Array] | None = None

    @classmethod
    def of(cls, output: TokenOutput, request_id: int) -> Output:
        """`request_id` is the frontend's own."""
        if output.finish_reason is None and output.logprobs is None and output.prompt_logprobs is None:
            return cls(request_id, output.token_ids, None, None, None, None, None, None)
        return cls(
            request_id,
            output.token_ids,
            None if output.logprobs is None else tuple(map(dict, output.logprobs)),
            output.finish_reason,
            output.stop_token_id,
            None if output.error is None else Failure.of(output.error),
            output.failed_item,
            None if output.report is None else Report.of(output.report),
            None if output.prompt_logprobs is None else output.prompt_logprobs.as_arrays(),
        )

    def restore(self) -> TokenOutput:
        if self.finish_reason is None and self.prompt_logprobs is None:
            return TokenOutput(request_id=self.request_id, token_ids=self.token_ids, logprobs=self.logprobs)
        return TokenOutput(
            request_id=self.request_id,
            token_ids=self.token_ids,
            logprobs=self.logprobs,
            finish_reason=self.finish_reason,
            stop_token_id=self.stop_token_id,
            error=None if self.error is None else self.error.restore(),
            failed_item=self.failed_item,
            report=None if self.report is None else self.report.restore(),
            prompt_logprobs=None if self.prompt_logprobs is None else PromptLogprobs.of(*self.prompt_logprobs),
        )


# --- from the frontend to the core ------------------------------------------------------------------------------------


class Start(Message):
    """Load a model and begin. `engine` and `vision` are the fields of the configurations; records of loggers below
    `log_level` are not sent. `status` is that of the process before, whose weights are loaded again."""

    folder: str
    engine: dict[str, Any]
    vision: dict[str, Any]
    log_level: int
    beat_s: float
    status: commands.ModelStatus = commands.ModelStatus()


class Join(Message):
    """A frontend that did not start the process begins to ask."""


class Submit(Message):
    request: Request


class Finish(Message):
    request_id: int
    reason: FinishReason


class Abort(Message):
    request_ids: tuple[int, ...]


class EndGroup(Message):
    group_id: int


class ExpectMedia(Message):
    request_ids: tuple[int, ...]


class ForgetMedia(Message):
    request_ids: tuple[int, ...]


class GiveFeatures(Message):
    """Features that were wanted, or why they cannot be made."""

    request_id: int
    item_index: int
    features: dict[str, Any]
    error: Failure | None


class Do(Message):
    """Do the command whose class and fields these are. Answered by `Done` with the same number."""

    number: int
    name: str
    fields: dict[str, Any]

    @classmethod
    def of(cls, number: int, command: commands.Command) -> Do:
        return cls(number, type(command).__name__, {each.name: getattr(command, each.name) for each in fields(command)})

    def restore(self) -> commands.Command:
        values = {name: _tuples(value) for name, value in self.fields.items()}
        if self.name == "StageTensor":
            tensor = {name: _tuples(value) for name, value in values["tensor"].items()}
            values["tensor"] = GivenTensor(**tensor)
        command: commands.Command = _COMMANDS[self.name](**values)
        return command


_COMMANDS: dict[str, Any] = {kind.__name__: kind for kind in get_args(commands.Command)}


class Stop(Message):
    pass


ToCore = Start | Join | Submit | Finish | Abort | EndGroup | ExpectMedia | ForgetMedia | GiveFeatures | Do | Stop


# --- from the core to the front --------------------------------------------------------------------------------------


class Hello(Message):
    """The process is there, and its end of the link is connected."""


class Started(Message):
    """The model is loaded, and requests are taken."""

    facts: CoreFacts
    status: commands.ModelStatus


class StartFailed(Message):
    """The model could not be loaded: an exception's class, its text, and its traceback; `refused` if it is a
    `RequestError`."""

    name: str
    text: str
    traceback: str
    refused: Failure | None = None


class News(Piece):
    """Changes in the core since the last news: hashes whose embedding is now stored or being made, hashes of
    which that is true no more, and the counts, unless they are sent a little later."""

    encoded: tuple[bytes, ...]
    dropped: tuple[bytes, ...]
    stats: EngineStats | None


class Outputs(Message):
    """All outputs of one step."""

    outputs: tuple[Output, ...]
    news: News


class Beat(Message):
    """Sent again and again, whatever the core does. `busy_s`: by part of the core, how long it has been in its present
    step or call."""

    busy_s: dict[str, float]
    news: News


class FeaturesWanted(Message):
    request_id: int
    item_index: int


class Done(Message):
    """A command has been done, or `failure` or `raised` says why not."""

    number: int
    failure: Failure | None
    raised: StartFailed | None
    news: News


class StatusChanged(Message):
    """The weights have changed, or what sleeps of the core."""

    status: commands.ModelStatus


class LogRecord(Message):
    """A record of the logger `name`, with its text and traceback made."""

    name: str
    level: int
    text: str


ToFrontend = Hello | Started | StartFailed | Outputs | Beat | FeaturesWanted | Done | StatusChanged | LogRecord


# --- values -----------------------------------------------------------------------------------------------------------


def without_arrays(features: Mapping[str, Any]) -> dict[str, Any]:
    """The features that are not arrays."""
    return {name: value for name, value in features.items() if not isinstance(value, np.ndarray)}


def restore_features(features: Mapping[str, Any]) -> dict[str, Any]:
    """Features as families make them: sequences in them are tuples."""
    return {name: _tuples(value) for name, value in features.items()}


def _tuples(value: Any) -> Any:
    """`value` with tuples in place of lists, at any depth."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def _changed_fields(params: SamplingParams) -> dict[str, Any]:
    """The options of `params` that differ from their defaults."""
    return {name: value for name, default in _DEFAULTS if (value := getattr(params, name)) != default}


def _restore_program(kind: str, source: str, is_slow: bool) -> Grammar:
    return Grammar(kind=kind, source=source, is_slow=is_slow)


def _restore_params(changed: Mapping[str, Any]) -> SamplingParams:
    options = {name: _tuples(value) for name, value in changed.items()}
    if "logits_processors" in options:
        options["logits_processors"] = tuple(NamedProcessor(*each) for each in options["logits_processors"])
    return SamplingParams(**options)


_DEFAULTS = [(field.name, field.default) for field in fields(SamplingParams) if field.init]
assert all(default is not MISSING for _, default in _DEFAULTS)
