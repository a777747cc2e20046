"""The timeline of an answer: compute when its stages ran from their durations, and draw one bar per stage as HTML.

Stage times are those of `StageTimings`. The WebUI and `seesay demo --html` share this module; it imports nothing else
of the package.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

STYLE_FILE = Path(__file__).parent / "timeline.css"

_MEDIA_STAGES = {
    "fetch_s": "fetch",
    "decode_media_s": "read file",
    "preprocess_s": "resize",
    "encode_queue_s": "wait for encoder",
    "encode_s": "encode",
}
_SHORTEST_SHOWN_S = 0.0005


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A bar of the timeline. `start_s` and `end_s` are relative to the arrival of the request. `duration_s` is the
    measured time; it is longer than the bar if several media went through the stage at the same time."""

    name: str
    kind: str
    start_s: float
    end_s: float
    duration_s: float


def _kind_of_media(name: str) -> str:
    """Return the kind of a stage of media, which its colour shows."""
    if name == "encode":
        return "encode"
    return "wait" if name.startswith("wait") else "media"


def make_timeline(timings: Mapping[str, float]) -> tuple[Stage, ...]:
    """Return the stages that took at least half a millisecond, in the order in which they began.

    The stages of media follow each other from the start, and are shortened to end by the first token. The prefill ends
    with the first token, and decoding begins there. The remaining time before the prefill is waiting.
    """
    first_s = timings.get("time_to_first_token_s", 0.0)
    prefill_s = min(timings.get("prefill_s", 0.0), first_s)
    decode_s = timings.get("decode_s", 0.0)
    if first_s <= 0:
        return ()
    media = [(name, timings.get(key, 0.0)) for key, name in _MEDIA_STAGES.items()]
    media_s = sum(seconds for _, seconds in media)
    scale = min(1.0, first_s / media_s) if media_s > 0 else 1.0
    stages = []
    end_s = 0.0
    for name, seconds in media:
        kind = _kind_of_media(name)
        start_s, end_s = end_s, end_s + seconds * scale
        stages.append(Stage(name=name, kind=kind, start_s=start_s, end_s=end_s, duration_s=seconds))
    computing_s = first_s - prefill_s
    if computing_s > end_s:
        stages.append(Stage(name="wait", kind="wait", start_s=end_s, end_s=computing_s, duration_s=computing_s - end_s))
    stages.append(Stage(name="read prompt", kind="prefill", start_s=computing_s, end_s=first_s, duration_s=prefill_s))
    stages.append(Stage(name="write", kind="decode", start_s=first_s, end_s=first_s + decode_s, duration_s=decode_s))
    return tuple(stage for stage in stages if stage.duration_s >= _SHORTEST_SHOWN_S)


def draw_timeline(stages: Sequence[Stage]) -> str:
    """Return HTML of the bars with their names and durations, styled by `STYLE_FILE`. Empty without stages."""
    if not stages:
        return ""
    total_s = max(stage.end_s for stage in stages)
    rows = "".join(_draw_row(stage, total_s) for stage in stages)
    return f'<div class="seesay-timeline" role="list">{rows}</div>'


def format_seconds(seconds: float) -> str:
    """Return a short form such as 85 ms, 0.42 s, 12.3 s."""
    if seconds < 0.0995:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.2f} s" if seconds < 9.995 else f"{seconds:.1f} s"


def _draw_row(stage: Stage, total_s: float) -> str:
    left = 100 * stage.start_s / total_s
    width = 100 * (stage.end_s - stage.start_s) / total_s
    shown_s = stage.end_s - stage.start_s
    title = f"{stage.name}: from {format_seconds(stage.start_s)} to {format_seconds(stage.end_s)}"
    if stage.duration_s > 1.01 * shown_s:
        title += f", {format_seconds(stage.duration_s)} in total for several at once"
    return (
        f'<div class="seesay-stage" role="listitem" title="{escape(title)}"><b>{escape(stage.name)}</b>'
        f'<i><u class="seesay-bar seesay-bar-{stage.kind}" style="left:{left:.2f}%;width:{width:.2f}%"></u></i>'
        f"<span>{format_seconds(shown_s)}</span></div>"
    )
