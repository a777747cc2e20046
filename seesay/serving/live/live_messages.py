"""The JSON messages of a live session, in both directions. A client's messages are hostile until they are read here."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, Literal

from pydantic import Field, ValidationError, field_validator
from pydantic_core import from_json

from seesay.errors import show
from seesay.serving.errors import ApiError, bad_request, openai_envelope
from seesay.serving.http.validation_errors import explain_invalid
from seesay.serving.requests.fields import StopTexts, Text, check_stop_words
from seesay.serving.requests.request_model import RequestModel
from seesay.values import MediaReport, StageTimings
from seesay.values.shapes import Timestamp

MAX_TEXT_BYTES = 256 << 10
"""Largest message that is a text."""

_ID = r"^[A-Za-z0-9_.:-]{1,128}$"
_MAGIC = (b"\xff\xd8\xff", b"\x89PNG\r\n\x1a\n")


class Configure(RequestModel):
    """What the session is about. Sent before its first frame and question, if at all."""

    type: Literal["configure"]
    model: str | None = None
    system: str | None = None
    max_frames: int | None = Field(None, ge=2, le=4096)


class FrameTime(RequestModel):
    """The time of the frame that follows as a binary message. Without one, it is the time since the session began."""

    type: Literal["frame"]
    time_s: float

    @field_validator("time_s")
    @classmethod
    def _check_time(cls, time_s: float) -> float:
        if not (math.isfinite(time_s) and 0 <= time_s < 1e9):
            raise ValueError(f"must be in [0, 1e9), got {time_s}")
        return time_s


class Ask(RequestModel):
    """A question about what was seen so far. `id` comes back with its answer."""

    sources: ClassVar[dict[str, tuple[str, ...]]] = {
        "max_new_tokens": ("max_tokens",),
        "random_seed": ("seed",),
        "stop_words": ("stop",),
    }

    type: Literal["ask"]
    text: str = Field(min_length=1)
    id: str | None = Field(None, pattern=_ID)
    max_tokens: int | None = Field(None, ge=1)
    temperature: float | None = Field(None, ge=0, le=2)
    top_p: float | None = Field(None, gt=0, le=1)
    top_k: int | None = Field(None, ge=-1)
    min_p: float | None = Field(None, ge=0, le=1)
    repetition_penalty: float | None = Field(None, ge=0.01, le=100)
    presence_penalty: float | None = Field(None, ge=-2, le=2)
    frequency_penalty: float | None = Field(None, ge=-2, le=2)
    seed: int | None = Field(None, ge=-(1 << 63), lt=1 << 63)
    stop: Text | StopTexts | None = None
    enable_thinking: bool | None = None

    @field_validator("stop")
    @classmethod
    def _check_stop(cls, stop: str | list[str] | None) -> str | list[str] | None:
        check_stop_words([stop] if isinstance(stop, str) else stop or [])
        return stop

    def sampling(self) -> dict[str, Any]:
        """Return the fields of `GenerationConfig`; None where the message has no value."""
        names = ("temperature", "top_p", "top_k", "min_p", "repetition_penalty")
        return {
            **{name: getattr(self, name) for name in names},
            "presence_penalty": self.presence_penalty or None,
            "frequency_penalty": self.frequency_penalty or None,
            "random_seed": None if self.seed is None else self.seed % (1 << 63),
            "stop_words": [self.stop] if isinstance(self.stop, str) else self.stop or None,
        }


class Stop(RequestModel):
    """Stop the answer that is being written. Its text so far stays in the conversation."""

    type: Literal["stop"]


_KINDS: dict[object, type[Configure | FrameTime | Ask | Stop]] = {
    "configure": Configure,
    "frame": FrameTime,
    "ask": Ask,
    "stop": Stop,
}


def read_message(text: str) -> Configure | FrameTime | Ask | Stop:
    """Return a client's message. Raises `ApiError` 400 that names what is wrong with it."""
    if (num_bytes := len(text.encode("utf-8", "surrogatepass"))) > MAX_TEXT_BYTES:
        raise bad_request(f"a text message may have {MAX_TEXT_BYTES} bytes, got {num_bytes}", code="message_too_large")
    try:
        value = from_json(text)
    except ValueError as error:
        raise bad_request(f"a text message must be a JSON object: {error}", code="invalid_json") from None
    if not isinstance(value, dict):
        raise bad_request(f"a text message must be a JSON object, got {show(value)}", code="invalid_json")
    kind = value.get("type")
    model = _KINDS.get(kind) if isinstance(kind, str) else None
    if model is None:
        known = ", ".join(map(repr, _KINDS))
        given = f"got {show(kind)}" if "type" in value else "which is missing"
        raise bad_request(f"type must be one of {known}, {given}", "type")
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise explain_invalid(error.errors(), value) from None


def check_format(frame: bytes) -> None:
    """Raise `ApiError` 400 for what does not begin as a JPEG, PNG or WebP does."""
    is_webp = frame[:4] == b"RIFF" and frame[8:12] == b"WEBP"
    if not (is_webp or frame.startswith(_MAGIC)):
        message = f"a frame must be a JPEG, PNG or WebP picture; these {len(frame)} bytes begin like none of them"
        raise bad_request(message, code="invalid_media")


# --- what the server sends -------------------------------------------------------------------------------------------


def make_error(error: ApiError, *, question_id: str | None = None, time_s: float | None = None) -> dict[str, object]:
    """Return the message of an error. It names the question or the frame that it is about."""
    about: dict[str, object] = {} if question_id is None else {"id": question_id}
    if time_s is not None:
        about["time_s"] = round(time_s, 3)
    return {"type": "error", **about, **openai_envelope(error)}


def make_taken(time_s: float, *, num_frames: int) -> dict[str, object]:
    """Return the message that a frame was taken. num_frames: those in the window now."""
    return {"type": "frame", "time_s": round(time_s, 3), "num_frames": num_frames}


def make_dropped(times_s: Sequence[float], *, num_dropped: int) -> dict[str, object]:
    """Return the message that frames were dropped, as they came faster than they are taken. num_dropped: all of the
    session."""
    return {"type": "dropped", "times_s": [round(time_s, 3) for time_s in times_s], "num_dropped": num_dropped}


def make_delta(question_id: str, content: str, reasoning: str) -> dict[str, object]:
    """Return a piece of an answer."""
    thoughts = {"reasoning": reasoning} if reasoning else {}
    return {"type": "answer.delta", "id": question_id, "text": content, **thoughts}


def make_done(
    question_id: str,
    *,
    text: str,
    finish_reason: str,
    usage: dict[str, Any] | None,
    timings: StageTimings | None,
    media: Sequence[MediaReport],
    timestamps: Sequence[Timestamp],
) -> dict[str, object]:
    """Return the end of an answer: its text, the times of the frames that it is about, and times that it names."""
    return {
        "type": "answer.done",
        "id": question_id,
        "text": text,
        "finish_reason": finish_reason,
        "usage": usage,
        "frames_s": [round(report.timestamps_s[0], 3) for report in media if report.timestamps_s],
        "timestamps": [{"start_s": found.start_s, "end_s": found.end_s, "label": found.label} for found in timestamps],
        "first_token_s": None if timings is None else round(timings.time_to_first_token_s, 4),
        "total_s": None if timings is None else round(timings.total_s, 4),
    }


def make_ready(
    *,
    model: str,
    max_frames: int,
    max_frame_bytes: int,
    max_frame_pixels: int,
    max_frames_per_s: float,
    idle_timeout_s: float,
    request_id: str | None,
) -> dict[str, object]:
    """Return the message that a session can begin, with its limits."""
    return {
        "type": "ready",
        "model": model,
        "max_frames": max_frames,
        "max_frame_bytes": max_frame_bytes,
        "max_frame_pixels": max_frame_pixels,
        "max_frames_per_s": max_frames_per_s,
        "idle_timeout_s": idle_timeout_s,
        "request_id": request_id,
    }
