"""HTML of the line of figures below an answer, and of the panel that it opens: how the model saw each picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from seesay.ui.conversation import Seen
from seesay.ui.frames import group_reports, make_frames
from seesay.ui.thumbnails import make_reference, make_thumbnail
from seesay.ui.timeline import draw_timeline, format_seconds, make_timeline

_SEPARATOR = " · "
_TIMES = " \u00d7 "
_MAY_BREAK = "</i> <i>"
"""Between the facts on a picture, which lines do not break."""
_REVEAL = "this.open &amp;&amp; this.scrollIntoView({block: 'nearest', behavior: 'smooth'})"


def _count_media(seen: Seen) -> str:
    counts = seen.usage.get("prompt_tokens_details") or {}
    kinds = (("vision_tokens", "image"), ("audio_tokens", "audio"))
    shares = ", ".join(f"{number:,} {kind}" for name, kind in kinds if (number := counts.get(name)))
    return f" ({shares})" if shares else ""


def make_line(seen: Seen) -> str:
    """Return tokens in (and of pictures), tokens out, time to first token, and pace. Unknown figures are left out."""
    num_in, num_out = seen.usage.get("prompt_tokens"), seen.usage.get("completion_tokens")
    first_s = seen.timings.get("time_to_first_token_s") or seen.first_s
    decode_s = seen.timings.get("decode_s") or max(seen.total_s - first_s, 0.0)
    pieces = []
    if num_in:
        pieces.append(f"{num_in:,} tokens in{_count_media(seen)}")
    if num_out is not None:
        pieces.append(f"{num_out:,} out")
    if first_s > 0:
        pieces.append(f"first after {format_seconds(first_s)}")
    if num_out and num_out > 1 and decode_s > 0:
        pieces.append(f"{(num_out - 1) / decode_s:,.0f} tokens/s")
    return _SEPARATOR.join(pieces)


def make_details(seen: Seen, files: Sequence[str], earlier_files: Sequence[str] = ()) -> str:
    """Return the line, with a panel that it opens if there are reports. Empty if nothing is known.

    files: files of the question. earlier_files: files of earlier turns, on which `seen.media` reports first.
    """
    pieces = make_line(seen).split(_SEPARATOR)
    if not pieces[0]:
        return ""
    # Keep each separator with the piece before it, so that no line on a narrow screen begins with one.
    line = " ".join(f"<span>{escape(piece)}{' ·' if piece is not pieces[-1] else ''}</span>" for piece in pieces)
    panel = _make_cards(seen, files, earlier_files) + _make_times(seen.timings)
    if not panel:
        return f'<div class="seesay-line">{line}</div>'
    return (
        f'<details class="seesay-details" ontoggle="{_REVEAL}"><summary class="seesay-line">{line}</summary>'
        f'<div class="seesay-panel">{panel}</div></details>'
    )


_FRAMES = {"video": "frame", "document": "page"}


def make_card(path: str, report: Mapping[str, Any], picture: str) -> str:
    """Return the card of one picture, video or audio as the model received it. `picture` is its HTML."""
    facts = _list_facts(report)
    listed = _MAY_BREAK.join(f"{fact}{' ·' if fact is not facts[-1] else ''}" for fact in facts)
    origin = "from cache" if report["is_cached"] else "encoded now"
    kind = "cached" if report["is_cached"] else "fresh"
    is_wide = " seesay-wide" if "seesay-frames" in picture else ""
    return (
        f'<figure class="seesay-card{is_wide}">{picture}<figcaption>'
        f'<span class="seesay-name" title="{escape(Path(path).name)}">{escape(Path(path).name)}</span>'
        f"<span><i>{listed}</i></span>"
        f'<span class="seesay-origin seesay-{kind}">{origin}</span></figcaption></figure>'
    )


def _list_facts(report: Mapping[str, Any]) -> list[str]:
    """Return the size of a picture, video or audio, and what the model made of it."""
    if audio_s := report.get("audio_s"):
        return [f"{audio_s:.1f} s", _count(report["num_tokens"], "token")]
    width, height = report["width"], report["height"]
    resized_width, resized_height = report["resized_width"], report["resized_height"]
    size = f"{width}{_TIMES}{height}"
    if (width, height) != (resized_width, resized_height):
        size += f"{_MAY_BREAK}→ {resized_width}{_TIMES}{resized_height}"
    facts = [f"{size} px"]
    if (noun := _FRAMES.get(report["modality"])) is not None:
        facts.append(_count(report["num_frames"], noun))
    if report["num_tiles"] > 1 and report["modality"] == "image":
        facts.append(_count(report["num_tiles"], "tile"))
    return [*facts, _count(report["num_patches"], "patch", "patches"), _count(report["num_tokens"], "token")]


def _make_cards(seen: Seen, files: Sequence[str], earlier_files: Sequence[str]) -> str:
    """Return the cards of this question's media, then those of earlier turns."""
    reports = group_reports([*earlier_files, *files], seen.media)
    earlier, own = reports[: len(earlier_files)], reports[len(earlier_files) :]
    html = ""
    if own:
        cards = "".join(
            make_card(path, report, make_frames(path, report) or make_thumbnail(path, report)) for path, report in own
        )
        html += f'<div class="seesay-heading">What the model saw</div><div class="seesay-cards">{cards}</div>'
    if earlier:
        heading = "From earlier in the conversation" if own else "What the model saw, from earlier in the conversation"
        cards = "".join(make_card(path, report, make_reference(path)) for path, report in earlier)
        html += f'<div class="seesay-heading">{heading}</div><div class="seesay-cards seesay-earlier">{cards}</div>'
    return html


def _make_times(timings: Mapping[str, float]) -> str:
    timeline = draw_timeline(make_timeline(timings))
    return f'<div class="seesay-heading">Where the time went</div>{timeline}' if timeline else ""


def _count(number: int, noun: str, plural: str | None = None) -> str:
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"
