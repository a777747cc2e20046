"""`/v1/audio/transcriptions` and `/v1/audio/translations`: the model is asked to write down what is said."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any, Literal

from fastapi import APIRouter, Request
from pydantic import Field
from starlette.responses import JSONResponse, PlainTextResponse, Response

from seesay.engine.front.engine import AsyncEngine
from seesay.errors import RequestError
from seesay.processors.media.audio_division import divide_audio
from seesay.processors.media.load import load_audio
from seesay.serving.errors import ApiError, bad_request
from seesay.serving.http.bodies import make_api_router
from seesay.serving.http.streaming import EventStream, LastEvents, describe_events, make_event
from seesay.serving.openai.answer_models import AnswerModel
from seesay.serving.openai.transcription_form import (
    AudioForm,
    TranscriptionForm,
    TranslationForm,
    describe_form,
    find_languages,
    read_form,
)
from seesay.serving.openai.wire import make_error_event
from seesay.serving.requests.caller import caller_of
from seesay.serving.requests.field_names import FieldNames
from seesay.serving.requests.state import ServerState
from seesay.serving.requests.submission import Tally
from seesay.system.thread_pool import ThreadPool
from seesay.values import (
    AudioSamples,
    GenerationRequest,
    MediaPart,
    MediaPlace,
    MediaSize,
    Message,
    Modality,
    OutputDelta,
    TextPart,
)
from seesay.vl.family import Family

_TRANSCRIBE = "Transcribe the speech in this audio word by word. Answer with the transcript alone."
_TRANSLATE = "Translate the speech in this audio into English. Answer with the translation alone."
_MEASURED_S = 30
"""Duration of audio of which tokens are counted: models see it in windows of that length, or as it is."""
_WRITTEN_PER_S, _ASKED_TOKENS = 5, 256
"""Tokens of text that a second of speech becomes, at most, and those of the question."""
_thread = ThreadPool(1, name="seesay-audio")
"""Decodes audio that may have to be divided, one at a time: an hour of it takes 230 MB."""


class AudioTokenDetails(AnswerModel):
    audio_tokens: int
    text_tokens: int


class AudioTokens(AnswerModel):
    type: Literal["tokens"] = "tokens"
    input_tokens: int
    output_tokens: int
    total_tokens: int
    input_token_details: AudioTokenDetails


class AudioDuration(AnswerModel):
    type: Literal["duration"] = "duration"
    seconds: float


class Transcription(AnswerModel):
    """What is said. The fields between are those of `verbose_json`."""

    task: Literal["transcribe", "translate"] | None = Field(None, exclude_if=lambda value: value is None)
    language: str | None = Field(None, exclude_if=lambda value: value is None)
    duration: float | None = Field(None, exclude_if=lambda value: value is None)
    text: str
    usage: AudioTokens | AudioDuration


class TranscriptEvent(AnswerModel):
    """An event of a transcript: a piece of the text, or at the end all of it."""

    type: Literal["transcript.text.delta", "transcript.text.done"]
    delta: str | None = Field(None, exclude_if=lambda value: value is None)
    text: str | None = Field(None, exclude_if=lambda value: value is None)
    usage: AudioTokens | None = Field(None, exclude_if=lambda value: value is None)


def make_router(state: ServerState) -> APIRouter:
    """Return the routes."""
    router = make_api_router("OpenAI")
    answer = "the text, as JSON; with response_format=text, as plain text"
    content = {"text/plain": {"schema": {"type": "string"}}}

    @router.post(
        "/v1/audio/transcriptions",
        response_model=Transcription,
        openapi_extra=describe_form(TranscriptionForm),
        responses={
            200: {
                "description": f"{answer}; with stream=true, events of `TranscriptEvent`",
                "content": {**content, **describe_events("TranscriptEvent")},
            }
        },
    )
    async def transcribe_audio(http: Request) -> Response:
        """Write down what is said in a file of audio."""
        content, form = await read_form(http, TranscriptionForm)
        reply = await _Reply.make(state, http, form, content)
        if form.stream:
            return EventStream(reply.stream(), render_error=make_error_event)
        return await reply.respond()

    @router.post(
        "/v1/audio/translations",
        response_model=Transcription,
        openapi_extra=describe_form(TranslationForm),
        responses={200: {"description": answer, "content": content}},
    )
    async def translate_audio(http: Request) -> Response:
        """Write down in English what is said in a file of audio."""
        content, form = await read_form(http, TranslationForm)
        reply = await _Reply.make(state, http, form, content)
        return await reply.respond()

    return router


class _Transcript:
    """The text of several pieces of audio, which are written down beside each other. text: what is known from its
    beginning, without blanks at both ends of each piece."""

    def __init__(self, num_pieces: int) -> None:
        self.text = ""
        self._raw = [""] * num_pieces
        self._ended: set[int] = set()
        self._current = 0
        self._before = ""

    def add(self, index: int, delta: OutputDelta) -> str:
        """Return what is new at the end of `text`."""
        self._raw[index] += delta.text
        if delta.finish_reason is not None:
            self._ended.add(index)
        while self._current in self._ended:
            self._before = self._join()
            self._current += 1
        num_known, self.text = len(self.text), self._join()
        return self.text[num_known:]

    def _join(self) -> str:
        piece = self._raw[self._current].strip() if self._current < len(self._raw) else ""
        return f"{self._before} {piece}" if self._before and piece else self._before or piece


@dataclass(frozen=True, slots=True)
class _Reply:
    """The answer to one form. requests: one for each piece of the audio, in order."""

    state: ServerState
    http: Request
    form: AudioForm
    names: FieldNames
    requests: Sequence[GenerationRequest]
    tally: Tally = field(default_factory=Tally)

    @classmethod
    async def make(cls, state: ServerState, http: Request, form: AudioForm, content: bytes) -> _Reply:
        """Raises `ApiError` for a form that cannot be answered. Nothing is computed yet."""
        state.check_model(form.model)
        family, names = state.engine.family, form.field_names("file")
        if Modality.AUDIO not in family.modalities:
            raise bad_request("file: this model takes no audio", "file", code="unsupported_parameter")
        pieces = await asyncio.wrap_future(_thread.submit(_divide, state, content))
        request = GenerationRequest(
            prompt="",
            gen_config=state.defaults.make_config(
                max_new_tokens=None, temperature=form.temperature or 0.0, names=names
            ),
            adapter_name=form.model,
            enable_thinking=None if state.engine.answer_format.reasoning is None else False,
            streams=isinstance(form, TranscriptionForm) and form.stream,
        )
        request = state.fit_model(request, names, http)
        media = [MediaPart(modality=Modality.AUDIO, source=piece, place=MediaPlace(source="file")) for piece in pieces]
        return cls(state, http, form, names, [_put(request, form, family, each) for each in media])

    async def respond(self) -> Response:
        """Return the whole answer."""
        answers = await self.state.answering.collect(
            self.requests, receive=self.http.receive, caller=caller_of(self.http.scope), names=self.names
        )
        transcript = _Transcript(len(answers))
        for index, answer in enumerate(answers):
            self.tally.add(index, answer.last)
            transcript.add(index, replace(answer.last, text=answer.text))
        if self.form.response_format == "text":
            return PlainTextResponse(f"{transcript.text}\n")
        if self.form.response_format == "json":
            return JSONResponse({"text": transcript.text, "usage": self._count()})
        duration_s = round(sum(report.audio_s for report in self.tally.media), 3)
        task, language = "translate", "english"
        if isinstance(self.form, TranscriptionForm):
            assert self.form.language is not None  # the form was checked
            task, language = "transcribe", find_languages()[self.form.language]
        found = {"task": task, "language": language, "duration": duration_s, "text": transcript.text}
        return JSONResponse({**found, "usage": {"type": "duration", "seconds": duration_s}})

    async def stream(self) -> AsyncGenerator[bytes, None]:
        """Yield the events: pieces of the text in the order of the audio, then all of it."""
        transcript = _Transcript(len(self.requests))
        deltas = self.state.answering.deltas(self.requests, caller=caller_of(self.http.scope), names=self.names)
        async with aclosing(deltas):
            async for index, delta in deltas:
                if delta.finish_reason is not None:
                    self.tally.add(index, delta)
                if new := transcript.add(index, delta):
                    yield make_event({"type": "transcript.text.delta", "delta": new})
        yield LastEvents(make_event({"type": "transcript.text.done", "text": transcript.text, "usage": self._count()}))

    def _count(self) -> dict[str, Any]:
        prompt, answer, media = self.tally.prompt_tokens, self.tally.completion_tokens, self.tally.media_tokens
        details = {"audio_tokens": media, "text_tokens": prompt - media}
        counts = {"input_tokens": prompt, "output_tokens": answer, "total_tokens": prompt + answer}
        return {"type": "tokens", **counts, "input_token_details": details}


def _put(request: GenerationRequest, form: AudioForm, family: Family, audio: MediaPart) -> GenerationRequest:
    """Return the request with the prompt about a piece of audio: the one that the model was trained with, where that
    says all that the form does, else a conversation."""
    own = None
    if isinstance(form, TranscriptionForm) and not form.prompt:
        own = family.write_transcription(form.language)
    if own is not None:
        return replace(request, prompt=own, media=(audio,), enable_thinking=None)
    question = TextPart(text=_ask(form, family.transcription_prompt))
    return replace(request, prompt=(Message(role="user", parts=(audio, question)),))


def _find_most_samples(engine: AsyncEngine) -> int:
    """Return the most samples that the model writes down at once, with room for the text; 0 where it takes all."""
    family = engine.family
    most = family.max_transcribed_samples or family.max_audio_samples
    measured = min(_MEASURED_S * family.audio_rate_hz, most or sys.maxsize)
    try:
        plan = family.plan_media(Modality.AUDIO, MediaSize.of_audio(measured, family.audio_rate_hz), {})
    except RequestError:  # every file is refused then
        return most
    per_sample = plan.num_tokens / measured + _WRITTEN_PER_S / family.audio_rate_hz
    room = engine.session_len - min(_ASKED_TOKENS, engine.session_len // 4)
    fitting = max(measured, int(room / per_sample))
    return min(fitting, most) if most else fitting


def _divide(state: ServerState, content: bytes) -> Sequence[bytes | AudioSamples]:
    """Return the audio in pieces that the model takes. Raises `ApiError` where it cannot be decoded."""
    family = state.engine.family
    try:
        audio = load_audio(content, rate_hz=family.audio_rate_hz, limits=state.engine.media_limits)
    except RequestError as error:
        error.param = "file"
        raise ApiError.from_error(error) from error
    pieces = divide_audio(audio, _find_most_samples(state.engine))
    return pieces if len(pieces) > 1 else [content]  # what is in a file can be recorded


def _ask(form: AudioForm, own: str) -> str:
    """Return what the model is asked. own: how it was trained to be asked for a transcript, if that is known."""
    if not isinstance(form, TranscriptionForm):
        text = _TRANSLATE
    else:
        text = own or _TRANSCRIBE
        if form.language is not None:
            text += f" The speech is in {find_languages()[form.language].capitalize()}."
    return f"{text} What was said before, or may be said: {form.prompt}" if form.prompt else text
