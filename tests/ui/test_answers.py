"""Finished answers in a real Chromium: they are copied as they were written, and show the frames that were seen."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from browsing import OpenPage, ask, count, text_of, wait_until_kept, wait_until_true

MARKDOWN = """# A *title*

- one & "two"
- `<b>three</b>` ![a](b)

```python
print("x" < 'y')
```

| a | b |
|---|---|
| 1 | $x^2$ |"""

SHADES = ((0, 0, 0), (250, 0, 0), (0, 250, 0), (0, 0, 250), (250, 250, 0), (250, 0, 250), (0, 250, 250), (250,) * 3)
FPS = 4


def wait_for_copy(page: Any, text: str) -> None:
    wait_until_true(page, "async text => await navigator.clipboard.readText() == text", text)


def test_a_finished_answer_is_copied_as_markdown(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    scripted.script = lambda body: iter([MARKDOWN[:40], MARKDOWN[40:]])
    page = open_page(scripted_url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, "one")
    scripted.script = lambda body: iter(["The second."])
    ask(page, "two", num=2)
    buttons = page.locator('#chat .bot-row [aria-label="Copy the answer"]')
    assert buttons.count() == 2
    buttons.nth(0).click()
    page.wait_for_selector(".bot-row .seesay-copied")
    wait_for_copy(page, MARKDOWN)
    buttons.nth(1).click()
    wait_for_copy(page, "The second.")


def test_an_answer_has_its_copy_button_when_it_is_finished(
    scripted: Any, scripted_url: str, open_page: OpenPage
) -> None:
    may_end = threading.Event()

    def write(body: dict[str, Any]) -> Iterator[str]:
        yield "It begins"
        assert may_end.wait(120)
        yield " and ends."

    scripted.script = write
    page = open_page(scripted_url)
    page.fill("#box textarea", "one")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=It begins")
    assert count(page, "#chat .bot-row .seesay-copy") == 0
    assert not page.is_visible("#chat .message-buttons-left [aria-label='Copy message']"), "Gradio's own goes away"
    may_end.set()
    page.wait_for_selector("#chat .bot-row .seesay-copy")
    assert page.get_attribute("#chat .bot-row .seesay-copy", "data-copy") == "It begins and ends."


def test_errors_have_nothing_to_copy(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    scripted.refusal = (400, {"message": "no", "type": "x", "code": None, "param": None})
    page = open_page(scripted_url)
    ask(page, "one")
    assert count(page, "#chat .bot-row .seesay-copy") == 0


def test_copying_needs_no_https(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    """Over HTTP, from another machine, browsers have no `navigator.clipboard`."""
    page = open_page(scripted_url)
    page.evaluate("document.querySelector('#box textarea').focus()")
    session = page.context.new_cdp_session(page)
    added = session.send(
        "Page.addScriptToEvaluateOnNewDocument",
        {"source": "Object.defineProperty(Navigator.prototype, 'clipboard', {get() {}, configurable: true})"},
    )
    page.reload()
    page.wait_for_selector("#box textarea")
    scripted.script = lambda body: iter([MARKDOWN])
    ask(page, "one & <b>")
    page.click("#chat .bot-row .seesay-copy")
    page.wait_for_selector(".bot-row .seesay-copied")
    page.click("#box textarea")
    page.keyboard.press("Control+V")
    assert page.input_value("#box textarea") == MARKDOWN
    page.fill("#box textarea", "")
    page.click('#chat .user-row ~ .message-buttons-right [aria-label="Copy message"]')
    page.click("#box textarea")
    page.keyboard.press("Control+V")
    assert page.input_value("#box textarea") == "one & <b>"
    session.send("Page.removeScriptToEvaluateOnNewDocument", {"identifier": added["identifier"]})
    session.detach()


# --- what the model saw of a clip -----------------------------------------------------------------------------------


def write_clip(path: Path) -> Path:
    """Write a clip with one colour per frame."""
    av = pytest.importorskip("av")
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=FPS)
        stream.height, stream.width, stream.pix_fmt = 96, 128, "yuv420p"
        for shade in SHADES:
            pixels = np.full((96, 128, 3), shade, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(pixels, format="rgb24")))
        container.mux(stream.encode(None))
    return path


READ_FRAMES = """
[...document.querySelectorAll(".seesay-frames li")].map(item => {
    const canvas = item.querySelector("canvas");
    const [red, green, blue] = canvas.getContext("2d").getImageData(canvas.width / 2, canvas.height / 2, 1, 1).data;
    return [item.innerText.trim(), red, green, blue];
})
"""


def read_frames(page: Any, num: int) -> list[Any]:
    page.wait_for_function(f"document.querySelectorAll('.seesay-frames .seesay-drawn').length == {num}")
    found: list[Any] = page.evaluate(READ_FRAMES)
    return found


def check_frames(frames: list[Any], indices: list[int]) -> None:
    """Check the times of the frames with these numbers, and the colours that the browser shows."""
    assert [text for text, *_ in frames] == [f"{index / FPS:.2f} s" for index in indices]
    for (_, *shown), index in zip(frames, indices, strict=True):
        assert all(abs(one - other) < 40 for one, other in zip(shown, SHADES[index], strict=True)), (index, shown)


def test_the_frames_that_were_seen_have_their_times(demo_url: str, open_page: OpenPage, tmp_path: Path) -> None:
    """The server takes two frames a second of a clip that has four."""
    page = open_page(demo_url)
    ask(page, "What do you see?", write_clip(tmp_path / "colours.mp4"))
    assert count(page, ".seesay-drawn") == 0, "nothing is drawn before the panel is opened"
    page.click("summary.seesay-line")
    frames = read_frames(page, 4)
    indices = [round(float(text.split()[0]) * FPS) for text, *_ in frames]
    assert indices == [0, 2, 5, 7], "as the engine samples them"
    check_frames(frames, indices)
    assert "4 frames" in text_of(page, ".seesay-card")


def make_report(**changes: Any) -> dict[str, Any]:
    report = {
        "modality": "video", "num_frames": 3, "height": 96, "width": 128, "resized_height": 84, "resized_width": 140,
        "num_tiles": 1, "num_patches": 60, "num_tokens": 15, "is_cached": False, "timestamps_s": [0.25, 1.0, 1.75],
    }  # fmt: skip
    return {**report, **changes}


def test_many_frames_scroll(
    scripted: Any,
    scripted_url: str,
    open_page: OpenPage,
    run_axe: Callable[[Any], list[str]],
    tmp_path: Path,
) -> None:
    times_s = [index / 100 for index in range(200)]
    scripted.details = {"timings": {}, "media": [make_report(num_frames=200, timestamps_s=times_s)]}
    page = open_page(scripted_url, width=390, height=844)
    ask(page, "What?", write_clip(tmp_path / "clip.mp4"))
    page.click("summary.seesay-line")
    frames = read_frames(page, 64)
    assert frames[0][0] == "0.00 s" and frames[-1][0] == "1.96 s"
    assert "64 of the 200 frames" in text_of(page, ".seesay-card")
    inside, outside = page.evaluate("(e => [e.scrollHeight, e.clientHeight])(document.querySelector('.seesay-frames'))")
    assert inside > outside and outside <= 400
    assert run_axe(page) == []


def test_frames_that_became_pictures_are_one_clip(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path
) -> None:
    """A model that takes pictures only has a report for each frame of each clip."""
    frame = make_report(modality="image", num_frames=1)
    times_s = [0.0, 0.75, 1.5, 0.25, 1.25]
    media = [{**frame, "timestamps_s": [time_s]} for time_s in times_s]
    scripted.details = {"timings": {}, "media": media}
    page = open_page(scripted_url)
    clips = [write_clip(tmp_path / "one.mp4"), write_clip(tmp_path / "two.mp4")]
    ask(page, "What?", *clips)
    page.click("summary.seesay-line")
    check_frames(read_frames(page, 5), [0, 3, 6, 1, 5])
    cards = page.locator(".seesay-card").all_inner_texts()
    assert len(cards) == 2 and "3 frames" in cards[0] and "45 tokens" in cards[0] and "2 frames" in cards[1]


def test_a_clip_that_the_browser_cannot_play_has_its_times(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path
) -> None:
    scripted.details = {"timings": {}, "media": [make_report()]}
    broken = tmp_path / "broken.mp4"
    broken.write_bytes(b"no clip")
    page = open_page(scripted_url)
    ask(page, "What?", broken)
    page.click("summary.seesay-line")
    page.wait_for_selector("text=This browser cannot play the video")
    assert page.locator(".seesay-frames").inner_text().split() == ["0.25", "s", "1.00", "s", "1.75", "s"]


def test_frames_are_drawn_again_after_a_reload(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path
) -> None:
    scripted.details = {"timings": {}, "media": [make_report()]}
    page = open_page(scripted_url)
    ask(page, "What?", write_clip(tmp_path / "clip.mp4"))
    wait_until_kept(page, 1)
    page.reload()
    page.click("summary.seesay-line")
    check_frames(read_frames(page, 3), [1, 4, 7])
