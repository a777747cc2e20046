"""The demo as one self-contained HTML file: pictures, questions, answers, and timelines of the answers' stages."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING

from seesay.demo.scenes import CLIP_FPS
from seesay.engine.front.response import Response
from seesay.errors import ConfigError
from seesay.ui.timeline import STYLE_FILE as TIMELINE_STYLE_FILE
from seesay.ui.timeline import draw_timeline, format_seconds, make_timeline
from seesay.version import __version__

if TYPE_CHECKING:
    from PIL import Image

_STYLE_FILE = Path(__file__).parent / "page.css"


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """A question of the demo and its answer.

    name: a short name for a table. title: the title of the conversation, up to a colon; a new conversation begins where
    it changes. images, frames: the question's pictures, and the frames of its clip. expected: the right answer.
    """

    name: str
    title: str
    question: str
    expected: str
    response: Response
    images: tuple[Image.Image, ...] = ()
    frames: tuple[Image.Image, ...] = ()


def check_writable(path: Path) -> None:
    """Create the folder of `path`. Raises ConfigError if `path` cannot be written, before anything is computed."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a", encoding="utf-8"):
            pass
    except OSError as error:
        raise ConfigError(f"--html: cannot write {path}: {error.strerror}") from None


def write_page(path: Path, page: str) -> None:
    """Write the page. Raises ConfigError if that fails, for example on a full disk."""
    try:
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise ConfigError(f"--html: cannot write {path}: {error.strerror}") from None


def make_page(answers: Sequence[Answered], *, model: str, ready_s: float) -> str:
    """Return the page. `ready_s` is the time that the model took to load."""
    body, title = "", None
    for answered in answers:
        if answered.title != title:
            title = answered.title
            body += f"<h2>{escape(title.partition(':')[0].capitalize())}</h2>\n"
        body += _make_article(answered)
    style = _STYLE_FILE.read_text(encoding="utf-8") + TIMELINE_STYLE_FILE.read_text(encoding="utf-8")
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>seesay demo: {escape(model)}</title>
<style>
{style}</style>
</head>
<body>
<h1>seesay demo</h1>
<p class="about">{escape(model)} · seesay {__version__} · loaded in {format_seconds(ready_s)}</p>
{body}</body>
</html>
"""


def _make_article(answered: Answered) -> str:
    response = answered.response
    media = "".join(_as_img(image) for image in answered.images)
    if answered.frames:
        media += _as_clip(answered.frames)
    times = "" if response.timings is None else draw_timeline(make_timeline(asdict(response.timings)))
    right = "as drawn" if answered.title != "no picture" else "expected"
    return (
        "<article>\n"
        + (f'<div class="media">{media}</div>\n' if media else "")
        + f"<dl><dt>you</dt><dd>{escape(answered.question)}</dd>\n"
        f'<dt>model</dt><dd class="answer">{escape(response.text)}</dd>\n'
        f"<dt>{right}</dt><dd>{escape(answered.expected)}</dd></dl>\n"
        f"{times}\n{_make_facts(response)}</article>\n"
    )


def _make_facts(response: Response) -> str:
    usage, timings = response.usage, response.timings
    if usage is None or timings is None:
        return ""
    facts = [f"{usage.prompt_tokens} tokens in"]
    if usage.media_tokens:
        facts[0] += f" ({usage.media_tokens} of media)"
    if usage.cached_tokens:
        facts.append(f"{usage.cached_tokens} from the prefix cache")
    facts.append(f"{usage.completion_tokens} out")
    if timings.decode_s > 0 and usage.completion_tokens > 1:
        facts.append(f"{(usage.completion_tokens - 1) / timings.decode_s:.0f} tokens/s")
    return f'<p class="facts">{" · ".join(facts)}</p>\n'


def _as_img(image: Image.Image) -> str:
    file = io.BytesIO()
    image.save(file, "PNG", optimize=True)
    return _data_img(file.getvalue(), "png", image.size, "a drawn picture")


def _as_clip(frames: Sequence[Image.Image]) -> str:
    file = io.BytesIO()
    duration_ms = round(1000 / CLIP_FPS)
    frames[0].save(
        file, "WEBP", save_all=True, append_images=list(frames[1:]), duration=duration_ms, loop=0, lossless=True
    )
    return _data_img(file.getvalue(), "webp", frames[0].size, "a drawn clip")


def _data_img(content: bytes, kind: str, size: tuple[int, int], alt: str) -> str:
    data = base64.b64encode(content).decode()
    return f'<img src="data:image/{kind};base64,{data}" width="{size[0]}" height="{size[1]}" alt="{alt}">'
