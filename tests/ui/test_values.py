"""What the WebUI sends and shows, without a browser."""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay.commands.arguments.options import add_generation_options
from seesay.config import EngineConfig
from seesay.errors import CheckpointError, ConfigError, MissingExtraError
from seesay.serving.client import APIError
from seesay.ui import app
from seesay.ui.chat import Settings
from seesay.ui.conversation import Seen, Turn, files_of, find_file, make_messages
from seesay.ui.details import make_details, make_line
from seesay.ui.escaping import MARK, escape_answer, escape_question, unescape
from seesay.ui.frames import format_time, group_reports, make_frames
from seesay.ui.sentences import explain
from seesay.ui.thumbnails import find_cell, make_thumbnail


def make_report(**changes: Any) -> dict[str, Any]:
    report = {
        "modality": "image", "num_frames": 1, "height": 480, "width": 640, "resized_height": 476, "resized_width": 644,
        "num_tiles": 1, "num_patches": 1564, "num_tokens": 391, "is_cached": False,
    }  # fmt: skip
    return {**report, **changes}


@pytest.fixture
def picture(tmp_path: Path) -> str:
    path = tmp_path / "<b>.png"
    Image.new("RGB", (640, 480), "red").save(path)
    return str(path)


def test_audio_is_sent_and_played(tmp_path: Path) -> None:
    for suffix, form in ((".wav", "wav"), (".OGA", "ogg"), (".m4a", "m4a")):
        path = tmp_path / f"<b>{suffix}"
        path.write_bytes(b"sound")
        [message] = make_messages((Turn(text="what?", files=(str(path),)),), "")
        assert message["content"][0] == {"type": "input_audio", "input_audio": {"data": "c291bmQ=", "format": form}}
        report = make_report(modality="audio", width=0, height=0, resized_width=0, resized_height=0, audio_s=2.54)
        details = make_details(Seen(usage={"prompt_tokens": 9}, media=(report,)), [str(path)])
        assert "<audio " in details and "&lt;b&gt;" in details and "<b>" not in details
        assert "2.5 s" in details and "391 tokens" in details and "px" not in details and "patch" not in details


def test_importing_the_ui_imports_neither_gradio_nor_torch() -> None:
    code = (
        "import sys, seesay.ui, seesay.ui.app; sys.exit(bool({'gradio', 'torch', 'transformers'} & set(sys.modules)))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


def test_missing_gradio_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(MissingExtraError, match=r"pip install .*\[ui\]"):
        app.run_webui("http://127.0.0.1:9")


def test_defaults_are_those_of_the_chat_in_a_terminal() -> None:
    parser = argparse.ArgumentParser()
    add_generation_options(parser)
    chat = parser.parse_args([])
    assert Settings(model="m").fields() | {"stream_options": None} == {
        "model": "m",
        "temperature": chat.temperature,
        "top_p": chat.top_p,
        "top_k": chat.top_k,
        "max_tokens": chat.max_new_tokens,
        "stream_options": None,
    }


def test_a_taken_port_is_told_before_a_model_is_loaded() -> None:
    pytest.importorskip("gradio")
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="choose another --server-port"):
            app.run_webui("no/such-model", server_port=taken.getsockname()[1])


def test_wrong_models_and_servers_raise_what_the_command_line_shows() -> None:
    pytest.importorskip("gradio")
    with pytest.raises(APIError, match="cannot reach the server"):
        app.run_webui("http://127.0.0.1:9", server_port=0)
    with pytest.raises(CheckpointError, match="no-such"):
        app.run_local("/no-such/folder", server_name="127.0.0.1", server_port=0)


def test_options_that_would_do_nothing_are_refused() -> None:
    pytest.importorskip("gradio")
    with pytest.raises(ConfigError, match="api_key requires the URL of a server"):
        app.run_webui("seesay-demo", server_port=0, api_key="key")
    with pytest.raises(ConfigError, match="backend_config cannot be set for a running server"):
        app.run_webui("http://127.0.0.1:9", server_port=0, backend_config=EngineConfig(session_len=5))
    with pytest.raises(ConfigError, match="max_queue cannot be set for a running server"):
        app.run_webui("http://127.0.0.1:9", server_port=0, max_queue=5)


def test_messages_hold_files_before_text_and_skip_what_failed(picture: str, tmp_path: Path) -> None:
    clip = tmp_path / "clip.MP4"
    clip.write_bytes(b"clip")
    turns = (
        Turn(text="one", files=(picture, str(clip)), answer="1", is_done=True),
        Turn(text="two", files=(str(tmp_path / "gone.png"),), error="it failed", is_done=True),
        Turn(text="three", note="Stopped.", is_done=True),
        Turn(text="", files=(picture,)),
    )
    messages = make_messages(turns, " Be brief. ")
    assert messages[0] == {"role": "system", "content": "Be brief."}
    assert [message["role"] for message in messages[1:]] == ["user", "assistant", "user"]
    parts = messages[1]["content"]
    assert [part["type"] for part in parts] == ["image_url", "video_url", "text"]
    assert parts[0]["image_url"]["url"].startswith("data:image/png;base64,")
    assert parts[1]["video_url"]["url"] == "data:video/mp4;base64,Y2xpcA=="
    assert [part["type"] for part in messages[3]["content"]] == ["image_url"]
    assert files_of(turns) == [picture, str(clip), picture]
    assert make_messages((Turn(text="hi"),), "") == [{"role": "user", "content": "hi"}]


def test_every_setting_is_sent() -> None:
    """0 too, which is off: left out, it would be what the server's model recommends."""
    fields = Settings(model="m", temperature=0, top_k=0, top_p=1).fields()
    assert (fields["temperature"], fields["top_k"], fields["top_p"]) == (0, 0, 1)


def test_line_leaves_out_what_is_not_known() -> None:
    usage = {"prompt_tokens": 1234, "completion_tokens": 11, "prompt_tokens_details": {"vision_tokens": 1000}}
    timings = {"time_to_first_token_s": 0.25, "decode_s": 0.5, "total_s": 0.75}
    line = "1,234 tokens in (1,000 image) \u00b7 11 out \u00b7 first after 0.25 s \u00b7 20 tokens/s"
    assert make_line(Seen(usage=usage, timings=timings)) == line
    heard = {"prompt_tokens": 90, "prompt_tokens_details": {"vision_tokens": 20, "audio_tokens": 50}}
    assert make_line(Seen(usage=heard)) == "90 tokens in (20 image, 50 audio)"
    measured = make_line(Seen(usage={"prompt_tokens": 5, "completion_tokens": 1}, first_s=0.05, total_s=0.06))
    assert measured == "5 tokens in \u00b7 1 out \u00b7 first after 50 ms"
    assert make_line(Seen()) == "" and make_details(Seen(), ()) == ""


def test_panel_tells_how_each_picture_was_seen(picture: str) -> None:
    tiles = make_report(resized_height=896, resized_width=1344, num_tiles=7, num_tokens=1792, is_cached=True)
    clip = make_report(modality="video", num_frames=4, num_tiles=1)
    seen = Seen(usage={"prompt_tokens": 5}, timings={"encode_s": 0.1}, media=(make_report(), tiles, clip))
    html = make_details(seen, [picture, picture, "/clips/a b.mp4"])
    assert html.count("<figure") == 3 and html.count("<img") == 2 and 'src="gradio_api/file=/clips/a%20b.mp4"' in html
    text = re.sub("<[^>]*>", "", html)
    assert "640 \u00d7 480 \u2192 644 \u00d7 476 px" in text and "1,564 patches" in html and "391 tokens" in html
    assert "7 tiles" in html and "4 frames" in html
    assert html.count("from cache") == 1 and html.count("encoded now") == 2
    assert "&lt;b&gt;.png" in html and "<b>.png" not in html


def test_frames_of_a_long_clip_are_drawn_evenly() -> None:
    report = make_report(modality="video", num_frames=640, timestamps_s=[k / 2 for k in range(640)])
    html = make_frames("/a 'b\".mp4", report)
    assert html.count("<canvas") == 64 and "64 of the 640 frames" in html and "5:15.0" in html
    assert 'data-video="gradio_api/file=/a%20%27b%22.mp4"' in html
    assert make_frames("/a.png", report) == "" and make_frames("/a.mp4", make_report(modality="video")) == ""


@pytest.mark.parametrize(
    ("time_s", "shown"), [(0, "0.00 s"), (59.994, "59.99 s"), (60, "1:00.0"), (119.97, "2:00.0"), (3723.5, "1:02:03.5")]
)
def test_times_in_a_video(time_s: float, shown: str) -> None:
    assert format_time(time_s) == shown


def test_reports_on_frames_are_added_up_per_clip() -> None:
    def frame(time_s: float, **changes: Any) -> dict[str, Any]:
        return make_report(timestamps_s=[time_s], **changes)

    reports = [make_report(), frame(0.0), frame(1.0, is_cached=True), frame(0.0), make_report(num_tokens=7)]
    pairs = group_reports(["/a.png", "/b.mp4", "/c.mp4", "/d.png", "/e.png"], reports)
    assert [path for path, _ in pairs] == ["/a.png", "/b.mp4", "/c.mp4", "/d.png"]
    assert [report["num_tokens"] for _, report in pairs] == [391, 782, 391, 7]
    assert [report["modality"] for _, report in pairs] == ["image", "video", "video", "image"]
    assert pairs[1][1]["timestamps_s"] == [0.0, 1.0] and pairs[1][1]["is_cached"] is False


def test_panel_shows_this_questions_pictures_first(picture: str) -> None:
    seen = Seen(usage={"prompt_tokens": 5}, media=(make_report(num_tokens=1), make_report(num_tokens=2)))
    html = make_details(seen, [picture], ["/earlier/a.png"])
    assert html.index("2 tokens") < html.index("From earlier in the conversation") < html.index("1 token<")
    assert 'src="gradio_api/file=/earlier/a.png" loading="lazy"' in html and html.count("data:image/webp") == 1
    only = make_details(seen, [], [picture, picture])
    assert "What the model saw, from earlier in the conversation" in only and only.count("loading=") == 2


def test_pictures_too_large_to_decode_get_no_thumbnail(tmp_path: Path) -> None:
    path = tmp_path / "bomb.png"
    Image.new("1", (20_000, 5_001)).save(path)
    assert make_thumbnail(str(path), make_report()) == ""


def test_cells_are_tiles_or_tokens_where_they_are_squares() -> None:
    assert find_cell(make_report()) == 28
    assert find_cell(make_report(resized_height=896, resized_width=1344, num_tiles=7)) == 448
    assert find_cell(make_report(num_tokens=390)) is None


def test_thumbnails_of_files_that_are_gone_or_no_pictures_are_left_out(picture: str) -> None:
    Path(picture).write_bytes(b"no picture")
    assert make_thumbnail(picture, make_report()) == make_thumbnail("/gone.png", make_report()) == ""


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (APIError("messages[2].content[0].image_url: the data URL is broken", status=400), "The data URL is broken."),
        (APIError("data URL of 1,234 characters is no picture", status=400), "This file is no picture."),
        (APIError("", status=500), "The server gave no reason."),
        (
            FileNotFoundError("x"),
            "A file of this conversation no longer exists: clear the conversation and upload it again.",
        ),
        (KeyError("x"), "Something went wrong in the WebUI (KeyError): see its log."),
    ],
)
def test_errors_are_sentences(error: Exception, sentence: str) -> None:
    assert explain(error) == sentence


def test_a_broken_picture_is_named(picture: str, tmp_path: Path) -> None:
    """The place in the request is that of one of several pictures; failed turns are not in the request."""
    dog = tmp_path / "dog.png"
    dog.write_bytes(b"png")
    failed = Turn(text="?", files=(picture,), error="It failed.", is_done=True)
    turns = (Turn(text="a", answer="b", is_done=True), failed, Turn(text="c", files=(picture, str(dog))))
    for system, index in (("", 2), ("be brief", 3)):
        assert make_messages(turns, system)[index]["content"][1]["type"] == "image_url"
        find = partial(find_file, turns, system)
        place = f"messages[{index}].content[1].image_url.url: "
        assert explain(APIError(f"{place}data URL of 9 characters is broken"), find) == "'dog.png' is broken."
        assert explain(APIError(f"{place}the image is large"), find) == "'dog.png': the image is large."
        assert explain(APIError(f"messages[{index}].content[2]: odd"), find) == "Odd."
        assert explain(APIError("messages[0].content[9]: odd"), find) == "Odd."


@pytest.mark.parametrize(
    "text",
    [
        "",
        "what does <div> do?",
        "![a](http://x/y) <img src=x> &lt; \\* 1. **b**\n    four",
        "```mermaid\nA\n```",
        "$$x$$",
    ],
)
def test_escaped_texts_come_back(text: str) -> None:
    assert unescape(escape_question(text)) == unescape(escape_answer(text)) == text
    assert "<d" not in escape_answer(text) and "![" not in escape_question(text)


def test_escaping_cannot_be_undone_by_a_text() -> None:
    evil = f"<{MARK}img src=x> {MARK}\\<b>"
    assert unescape(escape_answer(evil)) == unescape(escape_question(evil)) == evil.replace(MARK, "")
    assert f"<{MARK}img" in escape_answer(evil) and f"<{MARK}b>" in escape_answer(evil)


def test_answers_without_html_are_left_alone() -> None:
    text = "**b** a < b && c [l](http://x)\n\n- one!\n- `x`\n\n```python\na << 1\n```"
    assert escape_answer(text) == text
