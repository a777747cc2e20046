"""What a chat does with each line, at a terminal and over a pipe, with a model that is made up."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay.commands.chat.answering import Counts, Piece, Pieces
from seesay.commands.chat.chat_loop import ChatLoop
from seesay.commands.chat.dropped_files import split_paths
from seesay.commands.chat.editable_conversation import Conversation
from seesay.commands.chat.slash_commands import ACTIONS, complete
from seesay.commands.chat.terminal import Terminal
from seesay.errors import ErrorCode, RequestError


class FakeModel:
    """Answers with how many messages it saw; does to some questions what they say."""

    def __init__(self) -> None:
        self.asked: list[list[Any]] = []
        self.num_closed = 0

    def answer(self, messages: Sequence[Any]) -> Pieces:
        self.asked.append(list(messages))
        content = messages[-1]["content"]
        text = content if isinstance(content, str) else content[-1]["text"]
        try:
            if text == "name the file":
                url = content[0]["video_url"]["url"]
                raise RequestError(ErrorCode.INVALID_MEDIA, f"data URL of {len(url)} characters is broken")
            if text == "blame the second file":
                place = f"messages[{len(messages) - 1}].content[1].image_url.url"
                raise RequestError(ErrorCode.INVALID_MEDIA, f"{place}: the data URL has 9 bytes", place)
            if text == "fail":
                raise RequestError(ErrorCode.INVALID_MEDIA, "cannot read\nthis picture")
            yield Piece(text=f"answer {len(self.asked)}")
            if text == "interrupt":
                raise KeyboardInterrupt
            if text == "steer":
                yield Piece(text="\x1b[2Jred\x07")
            yield Piece(counts=Counts(prompt_tokens=20, completion_tokens=3, media_tokens=8), is_cut=text == "long")
        finally:
            self.num_closed += 1


class Tty(io.StringIO):
    def isatty(self) -> bool:
        return True


class Chat:
    """A chat whose input is given at once."""

    def __init__(self, *lines: str, at_terminal: bool = True, max_new_tokens: int = 512) -> None:
        kind = Tty if at_terminal else io.StringIO
        self.out, self.err = kind(), io.StringIO()
        self.model = FakeModel()
        terminal = Terminal(kind("".join(f"{line}\n" for line in lines)), self.out, self.err)
        self.loop = ChatLoop(self.model, terminal, Conversation(), max_new_tokens=max_new_tokens)
        self.status = self.loop.run()

    @property
    def shown(self) -> str:
        return self.out.getvalue().replace("\x1b[2m", "").replace("\x1b[0m", "").replace("\x1b[31m", "")

    @property
    def turns(self) -> list[tuple[str, str]]:
        return [(turn.text, turn.answer) for turn in self.loop.conversation.turns]


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "red square.png"
    Image.new("RGB", (8, 8), "red").save(path)
    return path


def test_questions_and_answers() -> None:
    chat = Chat("one", "", "two", "/exit", "three")
    assert chat.turns == [("one", "answer 1"), ("two", "answer 2")]
    assert [len(messages) for messages in chat.model.asked] == [1, 3]
    assert "you> answer 1\n[20 tokens in (8 from pictures), 3 out, first after 0.0" in chat.shown
    assert chat.status == 0 and chat.model.num_closed == 2


def test_over_a_pipe_only_answers_are_printed(picture: Path) -> None:
    chat = Chat("one", f"/image '{picture}'", "two", "/undo", "/help", "/nothing", "fail", at_terminal=False)
    assert chat.out.getvalue() == "answer 1\nanswer 2\n"
    assert "unknown command /nothing" in chat.err.getvalue()
    assert "error: cannot read this picture\n" in chat.err.getvalue()
    assert "\x1b" not in chat.err.getvalue()
    assert chat.status == 1


def test_lines_are_continued() -> None:
    assert Chat("one\\", "two\\", "three", "/exit").turns[0][0] == "one\ntwo\nthree"
    assert Chat("one\\").turns[0][0] == "one\n"[:-1]


def test_texts_of_several_lines() -> None:
    assert Chat('"""one', "two", 'three"""', "/exit").turns[0][0] == "one\ntwo\nthree"
    assert Chat('"""', "  one", "/exit", "", '"""', "/exit").turns[0][0] == "one\n/exit"
    assert Chat('"""one"""', "/exit").turns[0][0] == "one"
    assert Chat('"""one').turns[0][0] == "one"


def test_slashes_can_be_said() -> None:
    assert Chat("//etc is a folder").turns[0][0] == "/etc is a folder"
    chat = Chat("x")
    chat.loop.take("/usr/bin/python\nis a program")
    assert chat.turns[1][0] == "/usr/bin/python\nis a program"


def test_a_command_is_one_line_unless_it_takes_a_text(picture: Path) -> None:
    chat = Chat("x")
    chat.loop.take(f"/image '{picture}'\nwhat is this,\nplease?")
    assert chat.turns[1][0] == "what is this,\nplease?" and len(chat.loop.conversation.turns[1].media) == 1
    chat.loop.take("/system Be brief.\nBe kind.")
    assert chat.loop.conversation.system == "Be brief.\nBe kind."
    chat.loop.take("/exit\nnot asked")
    assert len(chat.turns) == 2


def test_unknown_commands_name_the_nearest() -> None:
    chat = Chat("/imge x.png", "/zoo")
    assert "error: unknown command /imge: did you mean '/image'?" in chat.shown
    assert "unknown command /zoo; /help lists them" in chat.shown


def test_wrong_files_are_named(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("no picture")
    (tmp_path / "a b.png").write_bytes(b"no picture")
    chat = Chat(f"/image {tmp_path}/notes.txt", f"/image '{tmp_path}/a b.png'", f"{tmp_path}/gone.png")
    assert f"error: '{tmp_path}/notes.txt' is not a picture of a known kind" in chat.shown
    assert f"error: '{tmp_path}/a b.png' is not a picture of a known kind" in chat.shown
    assert f"error: cannot read '{tmp_path}/gone.png': no such file" in chat.shown
    assert chat.loop.conversation.attached == [] and chat.turns == []


def test_files_are_named_in_what_the_model_says_of_them(tmp_path: Path) -> None:
    (tmp_path / "c.mp4").write_bytes(b"no clip")
    chat = Chat(f"/video {tmp_path}/c.mp4", "name the file")
    assert f"error: '{tmp_path}/c.mp4' is broken\n" in chat.shown


def test_audio_is_attached_and_dropped(tmp_path: Path) -> None:
    path = tmp_path / "a b.MP3"
    path.write_bytes(b"sound")
    chat = Chat(f"/audio '{path}'", "what?", f"'{path}' and now?", "/audio http://x/y.wav", "more")
    url = "data:audio/mpeg;base64,c291bmQ="
    for index in (0, 2):
        part = chat.model.asked[index // 2][index]["content"][0]
        assert part == {"type": "audio_url", "audio_url": {"url": url}}
    assert chat.model.asked[2][4]["content"][0]["audio_url"]["url"] == "http://x/y.wav"
    saved = tmp_path / "c.json"
    chat.loop.conversation.save(saved)
    chat.loop.conversation.load(saved)
    [attachment] = chat.loop.conversation.turns[0].media
    assert attachment.kind == "audio" and attachment.url == url


def test_places_in_the_request_become_names_of_files(picture: Path, tmp_path: Path) -> None:
    Image.new("RGB", (8, 8), "blue").save(tmp_path / "blue.png")
    attach = f"/image '{picture}' {tmp_path}/blue.png"
    for lines in (["hi", attach], ["/system Be brief.", "hi", attach]):
        chat = Chat(*lines, "blame the second file")
        assert f"error: '{tmp_path}/blue.png': the data URL has 9 bytes\n" in chat.shown
        assert "messages[" not in chat.shown


def test_pictures(picture: Path) -> None:
    chat = Chat(f"/image {picture}", "/image", "what?", "more", f"/video http://x/y.mp4 {picture.name}")
    first, second = chat.model.asked
    assert [part["type"] for part in first[0]["content"]] == ["image_url", "text"]
    assert first[0] == second[0]
    assert isinstance(second[2]["content"], str)
    assert "attached to your next message: image" in chat.shown
    assert "error: cannot read 'red'" in chat.shown and chat.loop.conversation.attached == []


def test_dropped_files_are_attached(picture: Path) -> None:
    chat = Chat(f"'{picture}'", "what?")
    assert [part["type"] for part in chat.model.asked[0][0]["content"]] == ["image_url", "text"]
    url = picture.as_uri()
    assert url.startswith("file:///") and "%20" in url
    for line in (url, f"{url} {picture.as_uri()}", f"/image {url}"):
        chat = Chat(line, "what?")
        assert chat.loop.conversation.turns[0].media[0].source == str(picture)
    assert "cannot read '/no such.png': no such file" in Chat("file:///no%20such.png").shown
    assert Chat("what is a.png", "/exit").turns[0][0] == "what is a.png"
    assert len(Chat(f"'{picture}'", at_terminal=False).turns) == 1


def test_dropped_files_in_front_of_a_text(picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    escaped = str(picture).replace(" ", "\\ ")
    monkeypatch.chdir(picture.parent)
    for path in (f"'{picture}'", f'"{picture}"', escaped, picture.as_uri(), "'red square.png'"):
        [turn] = Chat(f"{path} what is this?").loop.conversation.turns
        assert turn.text == "what is this?"
        assert [Path(found.source).name for found in turn.media] == ["red square.png"], path
    [turn] = Chat(f"'{picture}' {escaped} which one isn't red?").loop.conversation.turns
    assert turn.text == "which one isn't red?" and len(turn.media) == 2
    assert Chat("'/no such.png' what is this?").turns == []
    assert "cannot read '/no such.png': no such file" in Chat("'/no such.png' what is this?").shown


@pytest.mark.parametrize(
    "line",
    [
        "square.png or red.png?",
        "'/etc' is what?",
        "'gone.png' is what?",
        "//a.png is what?",
        "it's '/a.png'",
        "' /a.png",
    ],
)
def test_other_lines_are_questions(line: str, picture: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(picture.parent)
    picture.rename("square.png")
    [turn] = Chat(line).loop.conversation.turns
    assert turn.text == line.removeprefix("/") and turn.media == ()


def test_a_file_url_of_another_machine_is_refused(picture: Path) -> None:
    for line in ("file://elsewhere/x.png", "/image file://elsewhere/x.png", "file://elsewhere/x.png what is this?"):
        chat = Chat(line)
        assert "the host of a file URL must be empty or localhost, got 'elsewhere'" in chat.shown, line
        assert chat.turns == [] and chat.loop.conversation.attached == []
    chat = Chat(f"file://localhost{picture.as_uri()[7:]}")
    assert [found.source for found in chat.loop.conversation.attached] == [str(picture)]


def test_undo() -> None:
    chat = Chat("one", "two", "three", "/undo 2", "/undo x")
    assert chat.turns == [("one", "answer 1")]
    assert "took back: three" in chat.shown and "usage: /undo" in chat.shown
    assert "there is no turn to take back" in Chat("/undo").shown
    assert Chat("one", "/undo 99").turns == []


def test_retry_and_edit() -> None:
    assert Chat("one", "/retry").turns == [("one", "answer 2")]
    chat = Chat("one", "two", "/edit too")
    assert chat.turns == [("one", "answer 1"), ("too", "answer 3")]
    assert Chat("one", "/edit", "uno").turns == [("uno", "answer 2")]
    assert Chat("one", "/edit", "").turns == [("one", "answer 1")]
    assert Chat("one", "/edit", at_terminal=False).turns == [("one", "answer 1")]
    for line in ("/retry", "/edit x"):
        assert "no question has been asked yet" in Chat(line).shown


def test_what_failed_is_not_said_and_can_be_asked_again(picture: Path) -> None:
    chat = Chat("one", f"/image '{picture}'", "fail", "/edit better")
    assert [text for text, _ in chat.turns] == ["one", "better"]
    assert "error: cannot read this picture" in chat.shown
    assert chat.model.asked[-1][-1]["content"][0]["type"] == "image_url"
    assert chat.status == 0


def test_interrupting_stops_the_answer_not_the_chat() -> None:
    chat = Chat("interrupt", "two")
    assert chat.turns == [("interrupt", "answer 1"), ("two", "answer 2")]
    assert "answer 1\n[stopped]\n" in chat.shown
    assert chat.model.num_closed == 2


def test_interrupting_a_pipe_ends_the_program() -> None:
    with pytest.raises(KeyboardInterrupt):
        Chat("interrupt", "two", at_terminal=False)


def test_answers_do_not_steer_the_terminal() -> None:
    assert Chat("steer").turns == [("steer", "answer 1\x1b[2Jred\x07")]
    assert "\x1b[2J" not in Chat("steer").out.getvalue() and "\x07" not in Chat("steer").out.getvalue()
    assert "\x1b[2J" in Chat("steer", at_terminal=False).out.getvalue()


def test_cut_answers_are_told() -> None:
    assert "cut off: the context is full" in Chat("long").shown  # 3 tokens of 512
    chat = Chat("long", max_new_tokens=3)
    assert "cut off at the length limit; raise it with --max-new-tokens" in chat.shown
    assert "cut off" in Chat("long", at_terminal=False).err.getvalue()


def test_reset_and_system() -> None:
    chat = Chat("/system Be brief.", "one", "/reset", "two", "/system -", "three")
    assert [messages[0]["role"] for messages in chat.model.asked] == ["system", "system", "user"]
    assert [len(messages) for messages in chat.model.asked] == [2, 2, 3]


def test_save_and_load(tmp_path: Path) -> None:
    file = tmp_path / "my chat.json"
    saved = Chat("one", f"/save '{file}'", f"/save {tmp_path}/c.md", "/save", f"/save {tmp_path}/no/c.md")
    assert "saved 1 turn " in saved.shown and "usage: /save" in saved.shown and "No such file" in saved.shown
    assert "one" in (tmp_path / "c.md").read_text()
    chat = Chat(f"/load {file}", "two", "/load", "/load /no/such.json")
    assert chat.turns == [("one", "answer 1"), ("two", "answer 1")]
    assert "cannot read '/no/such.json'" in chat.shown


def test_history_and_help() -> None:
    shown = Chat("/history", "one", "/history", "/help").shown
    assert "the conversation is empty" in shown and "1. you: one\n   model: answer 1" in shown
    assert all(action.usage in shown for action in ACTIONS.values())


def test_completion(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cat.png").touch()
    (tmp_path / "folder").mkdir()
    assert complete("/im") == ["/image "]
    assert complete("hello") == []
    assert complete(f"/image {tmp_path}/c") == [f"/image {tmp_path}/cat.png"]
    assert complete(f"/save {tmp_path}/") == [f"/save {tmp_path}/cat.png", f"/save {tmp_path}/folder/"]
    (tmp_path / "my folder").mkdir()
    (tmp_path / "my folder" / "it's.png").touch()
    assert complete(f"/image {tmp_path}/my") == [f"/image {tmp_path}/my\\ folder/"]
    [whole] = complete(f"/image a.png {tmp_path}/my\\ folder/i")
    assert split_paths(whole.removeprefix("/image ")) == ["a.png", f"{tmp_path}/my folder/it's.png"]
    assert complete("/undo x") == [] and complete("/image /no/such/x") == []
