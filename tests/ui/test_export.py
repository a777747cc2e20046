"""Conversations as files: what is written, and what is read back."""

from __future__ import annotations

import base64
import io
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from seesay.ui.conversation import STOPPED, Turn, make_messages
from seesay.ui.export import export_json, export_markdown
from seesay.ui.imported import read_conversation
from seesay.ui.uploads import Uploads


@pytest.fixture
def files(tmp_path: Path) -> tuple[str, str]:
    picture, clip = tmp_path / "my [dog] é.png", tmp_path / "clip.mp4"
    picture.write_bytes(b"picture")
    clip.write_bytes(b"clip")
    return str(picture), str(clip)


@pytest.fixture
def uploads(tmp_path: Path) -> Uploads:
    return Uploads([tmp_path / "uploads"])


def test_markdown_has_its_files_beside_it(files: tuple[str, str]) -> None:
    picture, clip = files
    turns = (
        Turn(text="What is\n\nthis?", files=(picture, clip), answer="A **dog**.", is_done=True),
        Turn(text="", files=(picture,), error="It failed.", is_done=True),
        Turn(text="And?", answer="So", note=STOPPED, is_done=True),
    )
    file = export_markdown(turns, model="m")
    assert file.name == "seesay-what-is-this.zip"
    with zipfile.ZipFile(io.BytesIO(file.content)) as archive:
        assert archive.namelist() == ["conversation.md", "files/01-my_dog_.png", "files/02-clip.mp4"]
        assert archive.read("files/01-my_dog_.png") == b"picture" and archive.read("files/02-clip.mp4") == b"clip"
        assert archive.read("conversation.md").decode() == (
            "# Conversation with m\n\n"
            "## Question\n\n![my \\[dog\\] é.png](files/01-my_dog_.png)\n\n[clip.mp4](files/02-clip.mp4)\n\n"
            "> What is\n>\n> this?\n\n## Answer\n\nA **dog**.\n\n"
            "## Question\n\n![my \\[dog\\] é.png](files/01-my_dog_.png)\n\n## Answer\n\n*It failed.*\n\n"
            "## Question\n\n> And?\n\n## Answer\n\nSo\n\n*Stopped.*\n"
        )


def test_markdown_without_files_is_one_file() -> None:
    file = export_markdown((Turn(text="../../é?", answer="b", is_done=True),), model="m")
    assert file.name == "seesay-conversation.md" and file.content.startswith(b"# Conversation with m\n")
    assert export_markdown((), model="m").name == "seesay-conversation.md"


def test_audio_comes_back(uploads: Uploads, tmp_path: Path) -> None:
    sound = tmp_path / "a.mp3"
    sound.write_bytes(b"sound")
    turns = (Turn(text="What?", files=(str(sound),), answer="A bell.", is_done=True),)
    _, [turn] = read_conversation(export_json(turns, model="m", system_prompt="").content, uploads.write)
    assert Path(turn.files[0]).suffix == ".mp3" and Path(turn.files[0]).read_bytes() == b"sound"
    with zipfile.ZipFile(io.BytesIO(export_markdown(turns, model="m").content)) as archive:
        assert "\n[a.mp3](files/01-a.mp3)" in archive.read("conversation.md").decode()


@pytest.mark.parametrize("given", [{"data": "c291bmQ=", "format": "../x"}, {"data": 3, "format": "wav"}, {}, None, "x"])
def test_audio_that_is_none_is_refused(given: Any, uploads: Uploads) -> None:
    content = [{"type": "input_audio", "input_audio": given}]
    with pytest.raises(ValueError, match="data URL"):
        read_conversation(json.dumps([{"role": "user", "content": content}]).encode(), uploads.write)


def test_json_is_a_request_and_comes_back(files: tuple[str, str], uploads: Uploads) -> None:
    turns = (
        Turn(text="What?", files=files, answer="A dog.", is_done=True),
        Turn(text="no", error="It failed.", is_done=True),
        Turn(text="And é?", answer="So", note=STOPPED, is_done=True),
    )
    file = export_json(turns, model="m", system_prompt="Be brief.")
    body = json.loads(file.content)
    assert body == {"model": "m", "messages": make_messages(turns, "Be brief.")}
    assert file.name == "seesay-what.json" and "é" in file.content.decode()

    system_prompt, read = read_conversation(file.content, uploads.write)
    assert system_prompt == "Be brief."
    assert [(turn.text, turn.answer, len(turn.files)) for turn in read] == [("What?", "A dog.", 2), ("And é?", "So", 0)]
    paths = read[0].files
    assert [Path(path).name for path in paths] == ["image-1.png", "video-2.mp4"]
    assert [Path(path).read_bytes() for path in paths] == [b"picture", b"clip"]
    assert all(uploads.accepts(path) for path in paths)
    assert make_messages(read, "Be brief.") == body["messages"]


def test_a_running_answer_is_exported_as_far_as_it_is_written() -> None:
    file = export_json((Turn(text="a", answer="so f"),), model="m", system_prompt="")
    assert json.loads(file.content)["messages"][1] == {"role": "assistant", "content": "so f"}


def test_files_that_are_gone_are_an_error(tmp_path: Path) -> None:
    turns = (Turn(text="a", files=(str(tmp_path / "gone.png"),), answer="b", is_done=True),)
    with pytest.raises(OSError, match=r"gone\.png"):
        export_markdown(turns, model="m")
    with pytest.raises(OSError, match=r"gone\.png"):
        export_json(turns, model="m", system_prompt="")


def read(messages: Any, uploads: Uploads) -> Any:
    return read_conversation(json.dumps(messages).encode(), uploads.write)


def test_messages_of_others_are_read(uploads: Uploads) -> None:
    data = base64.b64encode(b"x").decode()
    messages = [
        {"role": "developer", "content": [{"type": "text", "text": "One."}]},
        {"role": "system", "content": "Two."},
        {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
        {"role": "user", "content": [{"type": "image_url", "image_url": f"data:image/jpeg;base64,{data}"}]},
        {"role": "assistant", "content": "c"},
        {"role": "assistant", "content": [{"type": "text", "text": "d"}]},
        {"role": "user", "content": [{"type": "video_url", "video_url": f"data:video/x-matroska;base64,{data}"}]},
        {"role": "assistant", "content": "e"},
    ]  # fmt: skip
    system_prompt, turns = read(messages, uploads)
    assert system_prompt == "One.\n\nTwo."
    assert [(turn.text, turn.answer, turn.note, turn.is_done) for turn in turns] == [
        ("a\nb", "", STOPPED, True), ("", "c\n\nd", "", True), ("", "e", "", True),
    ]  # fmt: skip
    assert [Path(path).name for turn in turns for path in turn.files] == ["image-1.jpg", "video-2.mkv"]


def picture(url: Any) -> list[dict[str, Any]]:
    return [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}]


@pytest.mark.parametrize(
    ("messages", "error"),
    [
        ({}, "the file has no messages"),
        ([], "the file has no messages"),
        (5, "the file has no messages"),
        ([5], r"messages\[0\] must be an object"),
        ([{"role": "user"}], "content must be a text or a list of parts"),
        ([{"role": "assistant", "content": "a"}], "the role 'assistant' cannot be shown here"),
        ([{"role": "tool", "content": "a"}], "the role 'tool' cannot be shown here"),
        ([{"role": "system", "content": "a"}], "the file has no question"),
        ([{"role": "user", "content": [5]}], "parts of the type 'None'"),
        ([{"role": "user", "content": [{"type": "sound"}]}], "parts of the type 'sound'"),
        ([{"role": "user", "content": [{"type": "text", "text": 5}]}], "texts must have at most"),
        ([{"role": "user", "content": "x" * 1_000_001}], "texts must have at most 1,000,000 characters"),
        ([{"role": "user", "content": "x"}] * 1001, "more than 1000 questions"),
        (picture("http://127.0.0.1/x.png"), "must be a data URL"),
        (picture("/etc/passwd"), "must be a data URL"),
        (picture("file:///etc/passwd"), "must be a data URL"),
        (picture("data:text/html;base64,eA=="), "must be a data URL"),
        (picture("data:image/png,x"), "the data URL is broken"),
        (picture("data:image/png;base64,x y"), "the data URL is broken"),
        (picture(None), "must be a data URL"),
        ([{"role": "user", "content": picture("data:image/png;base64,eA==")[0]["content"] * 101}], "at most 100 files"),
    ],
)  # fmt: skip
def test_what_cannot_be_imported_is_told(messages: Any, error: str, uploads: Uploads) -> None:
    with pytest.raises(ValueError, match=error):
        read(messages, uploads)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_no_json_is_told(content: bytes, uploads: Uploads) -> None:
    with pytest.raises(ValueError, match="the file is not JSON"):
        read_conversation(content, uploads.write)


def test_names_of_imported_files_are_no_paths(uploads: Uploads) -> None:
    [turn] = read(picture("data:image/../../../x;base64,eA=="), uploads)[1]
    assert Path(turn.files[0]).name == "image-1.png" and uploads.accepts(turn.files[0])


def test_new_files_are_told_and_lie_where_nobody_can_guess(tmp_path: Path) -> None:
    told: list[str] = []
    uploads = Uploads([tmp_path], on_write=told.append)
    paths = [uploads.write("a.md", b"x") for _ in range(2)]
    assert told == paths and paths[0] != paths[1]
    assert all(len(Path(path).parent.name) == 64 for path in paths)


@pytest.mark.parametrize("path", ["/etc/hostname", "uploads/x.json", None, ["/etc/hostname"]])
def test_a_browser_may_import_uploads_only(tmp_path: Path, uploads: Uploads, path: Any) -> None:
    gr = pytest.importorskip("gradio")
    from seesay.ui.chat import Conversation
    from seesay.ui.handlers import Handlers

    client, data = cast(Any, None), cast(Any, SimpleNamespace(_data={"path": path}))
    handlers = Handlers(client, lambda _: client, examples=(), examples_folder=tmp_path, uploads=uploads)
    with pytest.raises(gr.Error, match="it was not uploaded"):
        handlers.restore(Conversation(), data)
