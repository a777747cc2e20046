"""Conversations: turns, attachments, files."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest
from PIL import Image

from seesay.commands.chat.editable_conversation import Attachment, Conversation, Turn
from seesay.errors import RequestError
from seesay.vl.prompts.conversation_parts import parse_messages


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "red square.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def test_messages(picture: Path) -> None:
    conversation = Conversation(system="Be brief.")
    conversation.turns.append(Turn(text="one", answer="1"))
    conversation.attached.append(Attachment.read("image", str(picture)))
    turn = Turn(text="two", media=conversation.take_attached())
    assert conversation.attached == []
    messages = conversation.messages(turn)
    assert [message["role"] for message in messages] == ["system", "user", "assistant", "user"]
    url = messages[-1]["content"][0]["image_url"]["url"]
    assert base64.b64decode(url.removeprefix("data:image/png;base64,")) == picture.read_bytes()
    assert len(parse_messages(messages)) == 4
    assert conversation.messages() == messages[:3]


def test_a_file_is_read_when_it_is_attached(picture: Path) -> None:
    attachment = Attachment.read("image", str(picture))
    picture.unlink()
    assert attachment.url.startswith("data:image/png;base64,")
    assert "base64" not in repr(attachment)
    with pytest.raises(RequestError, match="no such file"):
        Attachment.read("image", str(picture))
    for there, why in ((picture.parent, "a folder"), (Path("/dev/null"), "not a regular file")):
        with pytest.raises(RequestError, match=f"cannot read '{there}': {why}"):
            Attachment.read("image", str(there))


def test_a_document_is_a_file_part_there_and_back(tmp_path: Path) -> None:
    (tmp_path / "a b.pdf").write_bytes(b"%PDF-1.7")
    document = Attachment.read("document", str(tmp_path / "a b.pdf"))
    url = f"data:application/pdf;base64,{base64.b64encode(b'%PDF-1.7').decode()}"
    assert document.part() == {"type": "file", "file": {"filename": "a b.pdf", "file_data": url}}
    conversation = Conversation()
    conversation.turns = [Turn(text="what?", media=(document,), answer="a letter")]
    conversation.save(tmp_path / "c.json")
    assert "base64" not in (tmp_path / "c.json").read_text()
    loaded = Conversation()
    loaded.load(tmp_path / "c.json")
    assert loaded.turns == conversation.turns


def test_addresses_are_left_as_they_are() -> None:
    attachment = Attachment.read("video", "https://example.com/clip.mp4")
    assert attachment.part() == {"type": "video_url", "video_url": {"url": "https://example.com/clip.mp4"}}


def test_json_there_and_back(picture: Path, tmp_path: Path) -> None:
    conversation = Conversation(system="Be brief.")
    media = (Attachment.read("image", str(picture)), Attachment.read("video", "http://x/y.mp4"))
    conversation.turns = [Turn(text="what?", media=media, answer="a square"), Turn(text="sure?", answer="yes")]
    conversation.save(tmp_path / "c.json")
    assert "base64" not in (tmp_path / "c.json").read_text()
    other = Conversation()
    other.load(tmp_path / "c.json")
    assert other == conversation


def test_addresses_are_saved_whole_and_files_by_their_full_path(
    picture: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    long = "https://example.com/picture.png?token=" + "x" * 5000
    data = "data:image/png;base64," + base64.b64encode(picture.read_bytes()).decode() * 20
    monkeypatch.chdir(picture.parent)
    media = tuple(Attachment.read("image", source) for source in (long, data, picture.name))
    conversation = Conversation(turns=[Turn(text="what?", media=media, answer="red")])
    assert [len(attachment.name) for attachment in media] == [43, 43, len(picture.name)]
    assert max(map(len, repr(media).split(","))) < 100
    conversation.save(tmp_path / "c.md")
    text = (tmp_path / "c.md").read_text()
    assert long in text and len(text) < len(long) + 300  # the data URL is cut
    conversation.save(tmp_path / "c.json")
    monkeypatch.chdir("/")
    other = Conversation()
    other.load(tmp_path / "c.json")
    assert [attachment.url for attachment in other.turns[0].media] == [attachment.url for attachment in media]


def test_markdown(picture: Path, tmp_path: Path) -> None:
    conversation = Conversation(
        turns=[Turn(text="what?", media=(Attachment.read("image", str(picture)),), answer="red")]
    )
    conversation.save(tmp_path / "c.md")
    text = (tmp_path / "c.md").read_text()
    assert text == f"**you**\n\n[image: {picture}]\nwhat?\n\n**model**\n\nred\n"


@pytest.mark.parametrize(
    "content",
    [
        "{", "3", "[3]", "{}", '[{"role": "user", "content": "x"}]',
        '[{"role": "assistant", "content": "x"}, {"role": "user", "content": "x"}]',
        '[{"role": "user", "content": [{"type": "zoo"}]}, {"role": "assistant", "content": "x"}]',
        '[{"role": "user", "content": [3]}, {"role": "assistant", "content": "x"}]',
        '[{"role": "user", "content": null}, {"role": "assistant", "content": "x"}]',
        '[{"role": "user", "content": "x"}, {"role": "assistant", "content": null}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": 3}]}, {"role": "assistant", "content": "x"}]',
        '[{"role": "user", "content": [{"type": "image_url", "image_url": "/no/such.png"}]},'
        ' {"role": "assistant", "content": "x"}]',
    ],
)  # fmt: skip
def test_files_that_are_no_conversations_change_nothing(tmp_path: Path, content: str) -> None:
    path = tmp_path / "c.json"
    path.write_text(content)
    conversation = Conversation(system="s", turns=[Turn(text="a", answer="b")])
    before = json.dumps(conversation.messages())
    with pytest.raises(RequestError):
        conversation.load(path)
    assert json.dumps(conversation.messages()) == before
