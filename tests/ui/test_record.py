"""Conversations as JSON: what goes to the browser comes back, and nothing else does."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from seesay.ui.conversation import STOPPED, Seen, Turn
from seesay.ui.record import make_record, read_record

REPORT = {
    "modality": "video", "num_frames": 4, "height": 480, "width": 640, "resized_height": 476, "resized_width": 644,
    "num_tiles": 1, "num_patches": 1564, "num_tokens": 391, "is_cached": True,
    "timestamps_s": [0.0, 0.5, 1.0, 1.5], "coordinates": "pixel",
}  # fmt: skip
SEEN = Seen(
    usage={
        "prompt_tokens": 9,
        "completion_tokens": 4,
        "prompt_tokens_details": {"vision_tokens": 6, "audio_tokens": 2},
    },
    timings={"prefill_s": 0.25, "total_s": 1.0},
    media=(REPORT,),
    first_s=0.5,
    total_s=1.5,
)
TURNS = (
    Turn(text="one", files=("/uploads/a b.mp4",), answer="yes", note="cut", seen=SEEN, is_done=True),
    Turn(text="", error="It failed.", is_done=True),
)


def accept_all(path: str) -> bool:
    return True


def read(record: Any) -> tuple[str, tuple[Turn, ...]]:
    return read_record(record, accepts=accept_all)


def test_records_come_back_through_json() -> None:
    record = json.loads(json.dumps(make_record("0123456789abcdef", TURNS)))
    assert read(record) == ("0123456789abcdef", TURNS)


def test_records_with_audio_come_back() -> None:
    sizes = dict.fromkeys(("num_frames", "height", "width", "resized_height", "resized_width"), 0)
    report = {**REPORT, **sizes, "modality": "audio", "timestamps_s": [], "audio_s": 2.5}
    turn = Turn(text="one", files=("/uploads/a.wav",), answer="yes", seen=replace(SEEN, media=(report,)), is_done=True)
    record = json.loads(json.dumps(make_record("0123456789abcdef", (turn,))))
    assert read(record)[1] == (turn,)
    record["turns"][0]["seen"]["media"][0]["modality"] = "image"
    with pytest.raises(ValueError, match="positive"):
        read(record)


def test_an_answer_that_was_being_written_was_stopped() -> None:
    turn = Turn(text="one", answer="so f")
    assert read(make_record("0123456789abcdef", (turn,)))[1] == (replace(turn, note=STOPPED, is_done=True),)


def test_what_a_server_tells_beyond_what_is_shown_is_not_kept() -> None:
    seen = Seen(usage={"prompt_tokens": 1, "x": "y" * 1000}, timings={"z_s": 1.0, "prefill_s": float("nan")})
    assert make_record("0123456789abcdef", (Turn(text="", seen=seen),))["turns"][0]["seen"] == {
        "usage": {"prompt_tokens": 1}, "timings": {}, "media": [], "first_s": 0.0, "total_s": 0.0,
    }  # fmt: skip


@pytest.mark.parametrize("times", [None, 5, ["<b>"], [-1.0], [float("nan")], [True], [0.0] * 10_001])
def test_times_that_are_none_are_not_kept(times: Any) -> None:
    seen = Seen(media=({**REPORT, "timestamps_s": times},))
    [turn] = read(make_record("0123456789abcdef", (Turn(text="", seen=seen),)))[1]
    assert turn.seen is not None and turn.seen.media[0]["timestamps_s"] == []


def test_files_count_only_where_uploads_lie() -> None:
    asked = []

    def refuse(path: str) -> bool:
        asked.append(path)
        return False

    with pytest.raises(ValueError, match="files must be uploads"):
        read_record(make_record("0123456789abcdef", TURNS), accepts=refuse)
    assert asked == ["/uploads/a b.mp4"]


def test_upload_folders_follow_links(tmp_path: Path) -> None:
    from seesay.ui.uploads import Uploads

    uploads, outside = tmp_path / "uploads", tmp_path / "outside"
    uploads.mkdir()
    outside.write_text("secret")
    (uploads / "link").symlink_to(outside)
    (uploads / "file").write_text("upload")
    folders = Uploads([uploads])
    assert folders.accepts(str(uploads / "file")) and folders.accepts(str(uploads / "gone"))
    for path in (uploads / "link", uploads / ".." / "outside", outside, "file", "", "\0", "~/x", "/etc/passwd"):
        assert not folders.accepts(str(path)), path


@pytest.mark.parametrize(
    ("place", "value"),
    [
        ("id", 5),
        ("id", "../../x"),
        ("turns", None),
        ("turns", [None]),
        ("turns", [{}] * 1001),
        ("turns.0.text", None),
        ("turns.0.text", "x" * 1_000_001),
        ("turns.0.files", ["/x"] * 101),
        ("turns.0.files", [None]),
        ("turns.0.error", 5),
        ("turns.0.seen", []),
        ("turns.0.seen.usage", None),
        ("turns.0.seen.media", [None]),
        ("turns.0.seen.media.0.width", "<b>"),
        ("turns.0.seen.media.0.width", 0),
        ("turns.0.seen.media.0.width", 1.5),
        ("turns.0.seen.media.0.width", 1 << 70),
        ("turns.0.seen.media.0.num_tiles", True),
    ],
)
def test_anything_else_is_refused(place: str, value: Any) -> None:
    record = json.loads(json.dumps(make_record("0123456789abcdef", TURNS)))
    *parents, last = (int(name) if name.isdigit() else name for name in place.split("."))
    target = record
    for name in parents:
        target = target[name]
    target[last] = value
    with pytest.raises(ValueError, match="must"):
        read(record)


@pytest.mark.parametrize("record", [None, [], "x", {}])
def test_no_record_at_all(record: Any) -> None:
    with pytest.raises(ValueError, match="id must be"):
        read(record)
