"""Repeats the requests of a recording, at their times or faster, and compares answers and times."""

from __future__ import annotations

import asyncio
import base64
import json
import time
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import httpx
import numpy as np

from seesay.bench.recorded import MediaFolder, Recorded
from seesay.engine.front.engine import AsyncEngine
from seesay.engine.front.recording import name_weights
from seesay.engine.front.request_batch import AsyncRequestBatch
from seesay.errors import ConfigError, SeesayError
from seesay.values import GenerationRequest, MediaPart, Modality

_SERVER_OPTIONS = frozenset(
    {
        "max_new_tokens", "temperature", "top_p", "top_k", "min_p", "repetition_penalty", "presence_penalty",
        "frequency_penalty", "logit_bias", "random_seed", "stop_words", "stop_token_ids", "ignore_eos",
        "skip_special_tokens", "spaces_between_special_tokens", "min_new_tokens", "include_stop_str_in_output",
        "max_thinking_tokens", "response_format", "allowed_token_ids", "bad_words", "logits_processors",
        "no_repeat_ngram_size", "ngram_window", "whitelist_token_ids", "repetition_ngram_size",
        "repetition_ngram_threshold", "do_sample",
    }
)  # fmt: skip
"""Options that `/generate` takes."""
_RENAMED = {"random_seed": "seed", "stop_words": "stop"}
_NO_EFFECT = frozenset({"logprobs", "prompt_logprobs"})
"""Options that change no token."""
_UNSEEN = frozenset({401, 403, 404, 405, 429})
"""HTTP statuses of a key, a route or an adapter that the server does not know, and of a full queue."""
_MOST_NAMED, _MOST_SHOWN = 10, 1000
"""Most lines that a message names, and most characters of it."""
_STRANGE = "the server's answer is not one of seesay's route /generate"


@dataclass(slots=True)
class Answer:
    """An answer to a repeated request: its tokens, how it ended, with the code and the message of an error, and the
    seconds to its first token and its end."""

    token_ids: list[int] = field(default_factory=list)
    finish_reason: str = "abort"
    error: str = ""
    message: str = ""
    first_token_s: float = 0.0
    total_s: float = 0.0


class NotRepeatableError(SeesayError):
    """A request that cannot be repeated here, and why."""


class Target(Protocol):
    """Answers repeated requests. weights: how a recording names those of the model; empty where they are not known."""

    weights: str

    def pieces(self, recorded: Recorded, media: Sequence[bytes]) -> AsyncGenerator[Answer, None]:
        """Yield the answer so far, the same object each time. Leaving early aborts the request. Raises
        `NotRepeatableError`."""
        ...

    async def write(self, token_ids: Sequence[int]) -> str:
        """Return tokens as text."""
        ...


class EngineTarget:
    """An engine in this process."""

    def __init__(self, engine: AsyncEngine) -> None:
        self._engine, self.weights = engine, name_weights(engine.weights_digest)

    async def pieces(self, recorded: Recorded, media: Sequence[bytes]) -> AsyncGenerator[Answer, None]:
        """See `Target.pieces`."""
        answer = Answer()
        request = make_request(recorded, media)
        async with aclosing(AsyncRequestBatch(self._engine, [request]).deltas()) as deltas:
            async for _, delta in deltas:
                answer.token_ids.extend(delta.token_ids)
                if delta.finish_reason is not None:
                    answer.finish_reason = delta.finish_reason
                if delta.error is not None:
                    answer.error = str(getattr(delta.error, "code", "internal_error"))
                    answer.message = str(delta.error)
                if delta.timings is not None:
                    answer.first_token_s = delta.timings.time_to_first_token_s
                    answer.total_s = delta.timings.total_s
                yield answer

    async def write(self, token_ids: Sequence[int]) -> str:
        """See `Target.write`."""
        return self._engine.tokenizer.decode(list(token_ids), skip_special_tokens=False)


class ServerTarget:
    """A seesay server, by its route `/generate`."""

    weights = ""

    def __init__(self, client: httpx.AsyncClient, url: str) -> None:
        self._client, self._url = client, url.rstrip("/").removesuffix("/v1")

    async def pieces(self, recorded: Recorded, media: Sequence[bytes]) -> AsyncGenerator[Answer, None]:
        """See `Target.pieces`."""
        answer, started_at = Answer(), time.perf_counter()
        body = make_body(recorded, media)
        async with self._client.stream("POST", f"{self._url}/generate", json=body) as response:
            if response.status_code != 200:
                _add_refusal(answer, response.status_code, await response.aread())
                yield answer
                return
            async for line in response.aiter_lines():
                if not line.startswith("data:") or line[5:].strip() == "[DONE]":
                    continue
                try:
                    _add_event(answer, json.loads(line[5:]), time.perf_counter() - started_at)
                except (ValueError, LookupError, TypeError, AttributeError):
                    raise NotRepeatableError(_STRANGE) from None
                yield answer

    async def write(self, token_ids: Sequence[int]) -> str:
        """See `Target.write`."""
        try:
            response = await self._client.post(f"{self._url}/detokenize", json={"tokens": list(token_ids)})
            return str(response.json().get("prompt", "")) if response.is_success else ""
        except (httpx.HTTPError, ValueError, AttributeError):  # it is gone, or another kind of server
            return ""


def _add_refusal(answer: Answer, status: int, body: bytes) -> None:
    """Add an answer that is no stream. Raises `NotRepeatableError` where the server did not look at the request."""
    try:
        _add_error(answer, json.loads(body)["error"])
    except (ValueError, LookupError, TypeError, AttributeError):
        answer.finish_reason, answer.error = "error", "internal_error"
    if status in _UNSEEN:
        raise NotRepeatableError(f"the server answers with status {status}: {answer.message or 'it says no more'}")


def _add_error(answer: Answer, error: Any) -> None:
    answer.finish_reason, answer.error = "error", str(error.get("code") or error.get("type") or "internal_error")
    answer.message = str(error.get("message") or "")


def _add_event(answer: Answer, event: Any, passed_s: float) -> None:
    if event.get("error") is not None:
        _add_error(answer, event["error"])
        return
    if event["output_ids"] and not answer.token_ids:
        answer.first_token_s = passed_s
    answer.token_ids.extend(event["output_ids"])
    answer.total_s = passed_s
    if (reason := event["meta_info"].get("finish_reason")) is not None:
        answer.finish_reason = reason["type"]


def make_request(recorded: Recorded, media: Sequence[bytes]) -> GenerationRequest:
    """Return the request for the same answer, which streams if it is to be aborted somewhere."""
    record = recorded.record
    stop = len(record.tokens) - record.num_continued
    return GenerationRequest(
        prompt=tuple(record.tokens[:stop]),
        continuation=tuple(record.tokens[stop:]),
        gen_config=recorded.options,
        media=tuple(
            MediaPart(modality=Modality(item.modality), source=content, options=item.options, position=item.position)
            for item, content in zip(record.media, media, strict=True)
        ),
        kept_tokens=tuple(record.kept_tokens),
        adapter_name=record.adapter,
        priority=record.priority,
        streams=record.streams or record.finish_reason == "abort",
        owner=record.owner or None,
        cache_salt=record.salt,
    )


def make_body(recorded: Recorded, media: Sequence[bytes]) -> dict[str, Any]:
    """Return the body for `/generate`. Raises `NotRepeatableError` for what that does not take."""
    record, config = recorded.record, recorded.options
    for name in sorted({*record.options} - _SERVER_OPTIONS - _NO_EFFECT):
        raise NotRepeatableError(f"{name} is not an option of /generate: replay it with --model")
    fields = {name: getattr(config, name) for name in _SERVER_OPTIONS - {"do_sample"}}
    if not config.do_sample:
        fields["temperature"] = 0.0
    body = {_RENAMED.get(name, name): value for name, value in fields.items() if value is not None}
    body |= {"input_ids": [*record.tokens], "stream": True, "priority": record.priority}
    body |= _make_media_fields(recorded, media)
    others = {"cache_salt": record.salt or None, "model": record.adapter}
    return body | {name: value for name, value in others.items() if value is not None}


def _make_media_fields(recorded: Recorded, media: Sequence[bytes]) -> dict[str, Any]:
    items = recorded.record.media
    options = [dict(item.options) for item in items]
    if any(item.modality != "image" for item in items):
        raise NotRepeatableError("/generate takes no videos: replay it with --model")
    if any(chosen != options[0] for chosen in options):
        raise NotRepeatableError("its pictures have different options: replay it with --model")
    if not items:
        return {}
    return {
        "image_data": ["data:;base64," + base64.b64encode(content).decode() for content in media],
        "image_positions": [item.position for item in items],
        **({"mm_processor_kwargs": options[0]} if options[0] else {}),
    }


# --- comparing --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeated:
    """A repeated request. answer: None if it could not be repeated, and `problem` says why. differs_at: the index of
    the first token that differs, or the length where the answers end differently; None for equal ones."""

    recorded: Recorded
    answer: Answer | None = None
    differs_at: int | None = None
    problem: str = ""


def find_difference(recorded: Recorded, answer: Answer) -> int | None:
    """Return the index of the first token that differs. Of an answer that was aborted, the tokens until then count."""
    record = recorded.record
    pairs = zip(record.answer, answer.token_ids)
    for index, (before, now) in enumerate(pairs):
        if before != now:
            return index
    common = min(len(record.answer), len(answer.token_ids))
    if record.finish_reason == "abort":
        return None if common == len(record.answer) else common
    ended_alike = (record.finish_reason, record.error) == (answer.finish_reason, answer.error)
    is_equal = len(record.answer) == len(answer.token_ids) and ended_alike
    return None if is_equal else common


async def replay(
    requests: Sequence[Recorded], target: Target, folder: MediaFolder, *, speed: float | None
) -> list[Repeated]:
    """Repeat requests, which are in order of their arrival: at their times, `speed` times as fast, or all at once for
    None."""
    began_at = time.perf_counter()
    first = requests[0].record.arrived_at

    async def repeat(recorded: Recorded) -> Repeated:
        if speed is not None:
            due = began_at + (recorded.record.arrived_at - first) / speed
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
        return await _repeat(recorded, target, folder)

    # Tasks run in the order in which they were made.
    return await asyncio.gather(*map(repeat, requests))


async def _repeat(recorded: Recorded, target: Target, folder: MediaFolder) -> Repeated:
    record = recorded.record
    try:
        if record.unrepeatable:
            raise NotRepeatableError(record.unrepeatable)
        media = []
        for item in record.media:
            if (content := await asyncio.to_thread(folder.find, item.sha256)) is None:
                raise NotRepeatableError(f"its {item.modality} {item.sha256} is not there: see --media")
            media.append(content)
        answer = await _answer(recorded, target, media)
    except (NotRepeatableError, ConfigError, httpx.HTTPError, httpx.InvalidURL) as error:
        return Repeated(recorded=recorded, problem=str(error) or type(error).__name__)
    return Repeated(recorded=recorded, answer=answer, differs_at=find_difference(recorded, answer))


async def _answer(recorded: Recorded, target: Target, media: Sequence[bytes]) -> Answer:
    """Return the answer to a request, as much of it as came before it was aborted."""
    record = recorded.record
    is_aborted = record.finish_reason == "abort"
    answer = Answer()
    pieces = target.pieces(recorded, media)
    try:
        async with asyncio.timeout(record.total_s if is_aborted and not record.answer else None):
            async for answer in pieces:
                if is_aborted and len(answer.token_ids) >= len(record.answer) > 0:
                    break
    except TimeoutError:  # it was aborted before its first token
        pass
    finally:
        await pieces.aclose()
    return replace(answer)


def compare_times(repeated: Sequence[Repeated]) -> list[str]:
    """Return lines with the median and the 99th percentile of the times of complete answers, before and now."""
    pairs = [
        (each.recorded.record, each.answer)
        for each in repeated
        if each.answer is not None and each.answer.finish_reason in ("stop", "length")
        if each.recorded.record.finish_reason in ("stop", "length")
    ]
    lines = []
    for name, label in (("first_token_s", "first token"), ("total_s", "whole answer")):
        values = [(getattr(record, name), getattr(answer, name)) for record, answer in pairs]
        for percent in (50, 99) if values else ():
            before, now = np.percentile(np.array(values), percent, axis=0)
            ratio = f"{now / before:.2f}" if before > 0 else "-"
            lines.append(f"{label:<12}  p{percent}  {before:9.3f} s  {now:9.3f} s  ratio {ratio}")
    return lines


def list_problems(repeated: Sequence[Repeated]) -> list[str]:
    """Return a line for each reason why requests could not be repeated, with the numbers of their lines."""
    lines: dict[str, list[int]] = {}
    for each in repeated:
        if each.answer is None:
            lines.setdefault(each.problem, []).append(each.recorded.line)
    return [f"{_name_lines(sorted(found))}: not repeated: {printable(problem)}" for problem, found in lines.items()]


def list_other_weights(requests: Sequence[Recorded], weights: str) -> list[str]:
    """Return a line for each other model that answered when requests were recorded."""
    lines: dict[str, list[int]] = {}
    for each in requests:
        if weights and each.record.weights != weights:
            lines.setdefault(each.record.model, []).append(each.line)
    return [
        f"{_name_lines(sorted(found))}: answered by other weights when it was recorded, of '{printable(model)}'"
        for model, found in lines.items()
    ]


def _name_lines(numbers: Sequence[int]) -> str:
    if len(numbers) == 1:
        return f"line {numbers[0]}"
    more = f" and {len(numbers) - _MOST_NAMED} more" if len(numbers) > _MOST_NAMED else ""
    return f"lines {', '.join(map(str, numbers[:_MOST_NAMED]))}{more}"


def printable(text: str) -> str:
    """Return a text of a recording or a server for one line of a terminal: other characters are escaped."""
    shown = text[:_MOST_SHOWN]
    return "".join(each if each.isprintable() else each.encode("unicode_escape").decode() for each in shown)


async def describe_difference(each: Repeated, target: Target) -> str:
    """Return what differs in an answer: the first token, how both end, and both texts from there on."""
    assert each.answer is not None and each.differs_at is not None
    at, record, answer = each.differs_at, each.recorded.record, each.answer
    ends = [
        f"{ids[at]}" if at < len(ids) else f"the end ({': '.join(filter(None, reasons))})"
        for ids, *reasons in (
            (record.answer, record.finish_reason, record.error),
            (answer.token_ids, answer.finish_reason, answer.error, answer.message),
        )
    ]
    texts = [(await target.write(ids[max(0, at - 8) : at + 24])) for ids in (record.answer, answer.token_ids)]
    return (
        f"line {each.recorded.line}: token {at} was {printable(ends[0])}, now it is {printable(ends[1])}\n"
        f"  was: {texts[0]!r}\n  now: {texts[1]!r}"
    )
