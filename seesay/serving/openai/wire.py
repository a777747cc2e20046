"""Parts of answers that OpenAI's routes share: ids, usage, timings, errors in a stream."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from seesay.serving.errors import ApiError, openai_envelope
from seesay.serving.http.streaming import make_event
from seesay.serving.requests.submission import Tally
from seesay.version import __version__

FINGERPRINT = f"seesay-{__version__}"
DONE = b"data: [DONE]\n\n"
TIMINGS_HEADER = "x-seesay-timings"


def make_id(prefix: str) -> str:
    """Return a new id that cannot be guessed."""
    return f"{prefix}{secrets.token_hex(12)}"


def wants_timings(http: Request) -> bool:
    """Return whether the client asked for the timings of its answer."""
    return http.headers.get(TIMINGS_HEADER, "").lower() in ("1", "true")


def make_usage(tally: Tally) -> dict[str, Any]:
    """Return OpenAI's `usage`; with proposed tokens and those of audio, where there were any."""
    details = {"reasoning_tokens": tally.reasoning_tokens}
    if tally.accepted_prediction_tokens or tally.rejected_prediction_tokens:
        details["accepted_prediction_tokens"] = tally.accepted_prediction_tokens
        details["rejected_prediction_tokens"] = tally.rejected_prediction_tokens
    given = {"cached_tokens": tally.cached_tokens, "vision_tokens": tally.media_tokens - tally.audio_tokens}
    if tally.audio_tokens:
        given["audio_tokens"] = tally.audio_tokens
    return {
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        "completion_tokens_details": details,
        "prompt_tokens_details": given,
    }


def make_details(tally: Tally) -> dict[str, Any]:
    """Return the `seesay` object of an answer whose client asked for timings: seconds per stage, and how the model saw
    each picture and video, in the order of the prompt."""
    timings = {} if tally.timings is None else {k: round(v, 6) for k, v in asdict(tally.timings).items()}
    return {"timings": timings, "media": [asdict(report) for report in tally.media]}


def make_error_event(error: ApiError) -> bytes:
    """Return the event that ends a failed stream. OpenAI's clients raise it."""
    return make_event(openai_envelope(error))
