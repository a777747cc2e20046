"""What OpenAI's routes write alike: ids, usage, timings, errors in a stream."""

from __future__ import annotations

import secrets
from dataclasses import asdict
from typing import Any

from starlette.requests import Request

from seesay.serving.answers import Tally
from seesay.serving.errors import ApiError, openai_envelope
from seesay.serving.streaming import make_event
from seesay.version import __version__

FINGERPRINT = f"seesay-{__version__}"
DONE = b"data: [DONE]\n\n"
# What OpenAI calls fields of `GenerationConfig`, where the names differ.
SAMPLING_PARAM_NAMES = {"max_new_tokens": "max_tokens", "random_seed": "seed", "stop_words": "stop"}
TIMINGS_HEADER = "x-seesay-timings"


def make_id(prefix: str) -> str:
    """A new id that nobody can guess."""
    return f"{prefix}{secrets.token_hex(12)}"


def wants_timings(http: Request) -> bool:
    """Whether a client asked for the stage times of its answer."""
    return http.headers.get(TIMINGS_HEADER, "").lower() in ("1", "true")


def make_usage(tally: Tally) -> dict[str, Any]:
    """OpenAI's `usage`."""
    return {
        "prompt_tokens": tally.prompt_tokens,
        "completion_tokens": tally.completion_tokens,
        "total_tokens": tally.prompt_tokens + tally.completion_tokens,
        "prompt_tokens_details": {"cached_tokens": tally.cached_tokens, "vision_tokens": tally.media_tokens},
    }


def make_details(tally: Tally) -> dict[str, Any]:
    """The `seesay` object of an answer whose client asked for timings: seconds per stage, and how each of the media was
    seen, in the prompt's order."""
    timings = {} if tally.timings is None else {k: round(v, 6) for k, v in asdict(tally.timings).items()}
    return {"timings": timings, "media": [asdict(report) for report in tally.media]}


def make_error_event(error: ApiError) -> bytes:
    """What a stream ends with that cannot go on; OpenAI's clients raise it."""
    return make_event(openai_envelope(error))
