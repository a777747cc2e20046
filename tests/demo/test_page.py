"""The demo as a page: one real run, looked at as HTML."""

from __future__ import annotations

import base64
import io
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from PIL import Image, ImageSequence

from seesay.demo import CHECKPOINT, tour
from seesay.demo.page import Answered, check_writable, make_page, write_page
from seesay.engine.front.response import Response
from seesay.errors import ConfigError
from seesay.values import StageTimings, Usage


class Outline(HTMLParser):
    """Texts by tag, addresses of pictures, and tags that are open at the end."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: dict[str, list[str]] = {}
        self.sources: list[str] = []
        self.open: list[str] = []

    def handle_starttag(self, tag: Any, attrs: Any) -> None:
        self.sources += [value for name, value in attrs if name in ("src", "href")]
        if tag not in ("meta", "img"):
            self.open.append(tag)

    def handle_endtag(self, tag: Any) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: Any) -> None:
        if data.strip() and self.open:
            self.texts.setdefault(self.open[-1], []).append(data)


def outline(html: str) -> Outline:
    parsed = Outline()
    parsed.feed(html)
    assert not parsed.open
    return parsed


@pytest.mark.skipif(not (CHECKPOINT / "config.json").is_file(), reason="the built-in checkpoint is not here")
def test_a_run_of_the_demo_becomes_a_page(tmp_path: Path) -> None:
    shown = io.StringIO()
    page = tmp_path / "new" / "demo.html"
    assert tour.run_tour(out=tmp_path / "files", device="cpu", html=page, stream=shown) == 0
    assert f"saved as a page: {page}" in shown.getvalue()
    html = page.read_text(encoding="utf-8")
    parsed = outline(html)
    assert len(parsed.texts["dt"]) == len(parsed.texts["dd"]) == 15, "five questions with answers"
    for answer in re.findall(r"^model +(.*)$", shown.getvalue(), re.M):
        assert answer in parsed.texts["dd"]
    assert len(parsed.sources) == 4, "three pictures and a clip"
    assert all(source.startswith("data:image/") for source in parsed.sources), "the page needs no other file"
    clip = Image.open(io.BytesIO(base64.b64decode(parsed.sources[3].partition(",")[2])))
    assert ImageSequence.all_frames(clip)[1:]
    assert html.count('class="seesay-timeline"') == 5
    assert html.count('class="seesay-bar seesay-bar-encode"') == 3, "the follow-up's picture was not encoded again"
    assert len(html) < 200_000


def make_answered(**changes: Any) -> Answered:
    response = Response(
        text="<b>yes</b>",
        usage=Usage(prompt_tokens=9, completion_tokens=3),
        timings=StageTimings(prefill_s=0.2, decode_s=0.1, time_to_first_token_s=0.2, total_s=0.3),
    )
    fields = {"name": "a", "title": "t: x", "question": "<i>?", "expected": "&", "response": response}
    return Answered(**{**fields, **changes})


def test_what_models_and_people_write_is_text() -> None:
    parsed = outline(make_page([make_answered()], model="<script>", ready_s=1.0))
    assert parsed.texts["dd"] == ["<i>?", "<b>yes</b>", "&"] and parsed.texts["h2"] == ["T"]
    assert parsed.texts["title"] == ["seesay demo: <script>"]


def test_an_answer_that_failed_has_no_timeline() -> None:
    answered = make_answered(response=Response(text="this model takes no video", finish_reason="error"))
    html = make_page([answered, answered], model="m", ready_s=1.0)
    assert "this model takes no video" in html
    assert '<p class="facts">' not in html and '<div class="seesay-timeline"' not in html
    assert html.count("<h2>") == 1


def test_a_page_that_cannot_be_written_is_told_before_a_model_is_loaded(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--html: cannot write .*: Is a directory"):
        tour.run_tour("no/such-model", html=tmp_path, out=tmp_path / "a", stream=io.StringIO())
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="cannot write"):
        check_writable(tmp_path / "file" / "demo.html")


def test_a_disk_that_is_full(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--html: cannot write /dev/full: No space left on device"):
        write_page(Path("/dev/full"), "<p>")
