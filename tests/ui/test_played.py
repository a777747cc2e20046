"""Audio in the WebUI: a file is uploaded, sent and played, in a real Chromium."""

from __future__ import annotations

import base64
from pathlib import Path
from typing import Any

from browsing import OpenPage
from sounds import make_tone, make_wav

REPORT = {
    "modality": "audio", "num_frames": 0, "height": 0, "width": 0, "resized_height": 0, "resized_width": 0,
    "num_tiles": 1, "num_patches": 60, "num_tokens": 23, "is_cached": False, "timestamps_s": [], "audio_s": 1.5,
}  # fmt: skip
IS_READY = "[...document.querySelectorAll('audio')].every(audio => Math.abs(audio.duration - 1.5) < 0.1)"


def test_audio_is_uploaded_sent_and_played(
    scripted_url: str, scripted: Any, open_page: OpenPage, tmp_path: Path
) -> None:
    sound = tmp_path / "a long name of a sound, said by somebody.wav"
    sound.write_bytes(make_wav(make_tone(1.5)))
    scripted.script = lambda body: iter(["A tone."])
    scripted.details = {"timings": {"total_s": 1.0}, "media": [REPORT]}
    page = open_page(scripted_url)
    page.set_input_files("#box input[type=file]", str(sound))
    page.wait_for_selector("#box .thumbnail-item")
    page.fill("#box textarea", "what is this?")
    page.keyboard.press("Enter")
    page.wait_for_selector("#chat summary.seesay-line")
    part = scripted.requests[-1]["messages"][-1]["content"][0]
    assert part["type"] == "input_audio" and part["input_audio"]["format"] == "wav"
    assert base64.b64decode(part["input_audio"]["data"]) == sound.read_bytes()
    page.click("summary.seesay-line")
    page.wait_for_selector(".seesay-card audio")
    page.wait_for_function(f"document.querySelectorAll('#chat audio').length == 2 && {IS_READY}")
    assert "1.5 s" in page.inner_text(".seesay-card")
    page.evaluate("document.querySelector('#chat .seesay-strip audio').play()")
    page.wait_for_function("document.querySelector('#chat .seesay-strip audio').currentTime > 0")
    page.screenshot(path=str(tmp_path / "audio.png"))
