"""The quiet line below an answer, and the panel it opens: how each picture reached the model. HTML from values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from seesay.ui.conversation import Seen
from seesay.ui.thumbnails import make_thumbnail

_STAGES = {
    "fetch_s": "fetch",
    "decode_media_s": "read file",
    "preprocess_s": "resize",
    "encode_queue_s": "wait for encoder",
    "encode_s": "encode",
    "prefill_s": "read prompt",
    "decode_s": "write",
}

_SEPARATOR = " · "
_TIMES = " \u00d7 "
_REVEAL = "this.open &amp;&amp; this.scrollIntoView({block: 'nearest', behavior: 'smooth'})"


def make_line(seen: Seen) -> str:
    """Tokens in and out, those of pictures, time to the first, and pace; what is not known is left out."""
    num_in, num_out = seen.usage.get("prompt_tokens"), seen.usage.get("completion_tokens")
    num_vision = (seen.usage.get("prompt_tokens_details") or {}).get("vision_tokens")
    first_s = seen.timings.get("time_to_first_token_s") or seen.first_s
    decode_s = seen.timings.get("decode_s") or max(seen.total_s - first_s, 0.0)
    pieces = []
    if num_in:
        pieces.append(f"{num_in:,} tokens in" + (f" ({num_vision:,} image)" if num_vision else ""))
    if num_out is not None:
        pieces.append(f"{num_out:,} out")
    if first_s > 0:
        pieces.append(f"first after {format_seconds(first_s)}")
    if num_out and num_out > 1 and decode_s > 0:
        pieces.append(f"{(num_out - 1) / decode_s:,.0f} tokens/s")
    return _SEPARATOR.join(pieces)


def make_details(seen: Seen, files: Sequence[str]) -> str:
    """The line, which opens what is known beyond it. `files` are those of the conversation, as `seen.media` reports on
    them. Empty when nothing is known."""
    pieces = make_line(seen).split(_SEPARATOR)
    if not pieces[0]:
        return ""
    line = _SEPARATOR.join(f"<span>{escape(piece)}</span>" for piece in pieces)
    cards = "".join(make_card(path, report) for path, report in zip(files, seen.media))
    stages = _make_stages(seen.timings)
    if not cards and not stages:
        return f'<div class="seesay-line">{line}</div>'
    seen_as = f'<div class="seesay-heading">What the model saw</div><div class="seesay-cards">{cards}</div>'
    return (
        f'<details class="seesay-details" ontoggle="{_REVEAL}"><summary class="seesay-line">{line}</summary>'
        f'<div class="seesay-panel">{seen_as if cards else ""}{stages}</div></details>'
    )


def make_card(path: str, report: Mapping[str, Any]) -> str:
    """One picture or clip as the model received it."""
    width, height = report["width"], report["height"]
    resized_width, resized_height = report["resized_width"], report["resized_height"]
    size = f"{width}{_TIMES}{height}"
    if (width, height) != (resized_width, resized_height):
        size += f" → {resized_width}{_TIMES}{resized_height}"
    facts = [f"{size} px"]
    if report["modality"] == "video":
        facts.append(_count(report["num_frames"], "frame"))
    if report["num_tiles"] > 1 and report["modality"] != "video":
        facts.append(_count(report["num_tiles"], "tile"))
    facts += [_count(report["num_patches"], "patch", "patches"), _count(report["num_tokens"], "token")]
    origin = "from cache" if report["is_cached"] else "encoded now"
    kind = "cached" if report["is_cached"] else "fresh"
    return (
        f'<figure class="seesay-card">{make_thumbnail(path, report)}<figcaption>'
        f'<span class="seesay-name" title="{escape(Path(path).name)}">{escape(Path(path).name)}</span>'
        f"<span>{escape(' · '.join(facts))}</span>"
        f'<span class="seesay-origin seesay-{kind}">{origin}</span></figcaption></figure>'
    )


def format_seconds(seconds: float) -> str:
    """Short: 85 ms, 0.42 s, 12.3 s."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _make_stages(timings: Mapping[str, float]) -> str:
    shown = [(name, timings.get(key, 0.0)) for key, name in _STAGES.items()]
    rows = "".join(
        f"<span><b>{name}</b> {format_seconds(seconds)}</span>" for name, seconds in shown if seconds >= 0.0005
    )
    return (
        f'<div class="seesay-heading">Where the time went</div><div class="seesay-stages">{rows}</div>' if rows else ""
    )


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
