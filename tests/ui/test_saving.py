"""Conversations that are saved as files and opened again, in a real Chromium."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
from browsing import OpenPage, ask, count, text_of, wait_for_answers, wait_until_kept
from PIL import Image

from seesay.ui.escaping import MARK

ANSWER = "It is **red** & `<b>`."


@pytest.fixture
def picture(tmp_path: Path) -> Path:
    path = tmp_path / "a red one.png"
    Image.new("RGB", (160, 120), "red").save(path)
    return path


def save(page: Any, chosen: str, folder: Path) -> Path:
    """Press Export, choose the format, and return the file that the browser saves."""
    page.click(".seesay-export-button")
    with page.expect_download() as download:
        page.get_by_role("button", name=chosen).click()
    path = folder / str(download.value.suggested_filename)
    download.value.save_as(path)
    return path


def test_a_conversation_is_saved_as_markdown_with_its_pictures(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path, tmp_path: Path
) -> None:
    scripted.script = lambda body: iter([ANSWER])
    page = open_page(scripted_url)
    assert count(page, ".seesay-export-button") == 0, "there is nothing to save"
    ask(page, "What colour?", picture)
    saved = save(page, "Markdown", tmp_path)
    assert saved.name == "seesay-what-colour.zip"
    with zipfile.ZipFile(saved) as archive:
        assert archive.read("files/01-a_red_one.png") == picture.read_bytes()
        text = archive.read("conversation.md").decode()
    assert text == (
        "# Conversation with scripted\n\n## Question\n\n![a red one.png](files/01-a_red_one.png)\n\n> What colour?\n\n"
        f"## Answer\n\n{ANSWER}\n"
    )


def test_a_conversation_is_saved_as_json_and_opened_again(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path, tmp_path: Path
) -> None:
    scripted.script = lambda body: iter([ANSWER])
    page = open_page(scripted_url)
    page.click("#settings-button")
    page.fill("#system-prompt textarea", "Be brief.")
    page.click("#settings-button")
    ask(page, "What <i>colour</i>?", picture)
    ask(page, "Sure?", num=2)
    saved = save(page, "JSON", tmp_path)
    body = json.loads(saved.read_bytes())
    sent = scripted.requests[-1]["messages"]
    assert body["model"] == "scripted"
    assert body["messages"] == [*sent, {"role": "assistant", "content": ANSWER}]
    assert httpx.post(f"{scripted.url}/v1/chat/completions", json=body, trust_env=False).status_code == 200

    wait_until_kept(page, 2)
    page.evaluate("sessionStorage.clear()")
    page.reload()
    page.wait_for_selector("#chat .example")
    page.click(".seesay-open")
    with page.expect_file_chooser() as chooser:
        page.click(".seesay-import")
    chooser.value.set_files(saved)
    page.wait_for_selector("#chat .bot-row >> nth=1")
    assert "What <i>colour</i>?" in text_of(page).replace(MARK, "")
    page.wait_for_function("document.querySelector('.seesay-shot img').naturalWidth == 160")
    wait_until_kept(page, 2, num_records=2)
    scripted.requests.clear()
    page.fill("#box textarea", "And now?")
    page.keyboard.press("Enter")
    scripted.wait_until(lambda: len(scripted.requests) == 1)
    messages = scripted.requests[-1]["messages"]
    assert messages == [*body["messages"], {"role": "user", "content": "And now?"}], "with the system prompt"


@pytest.mark.parametrize(
    ("content", "shown"),
    [
        (b"no json", "This file cannot be imported: the file is not JSON."),
        (
            json.dumps([{"role": "user", "content": [{"type": "image_url", "image_url": "/etc/<b>"}]}]).encode(),
            "This file cannot be imported: messages[0]: an image_url must be a data URL",
        ),
    ],
)
def test_a_file_that_cannot_be_imported_changes_nothing(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path, content: bytes, shown: str
) -> None:
    page = open_page(scripted_url)
    ask(page, "one")
    path = tmp_path / "x.json"
    path.write_bytes(content)
    page.set_input_files("#history input[type=file]", path)
    page.wait_for_selector(f"text={shown}")
    wait_for_answers(page, 1)
    assert "one" in text_of(page)


def test_a_conversation_whose_files_are_gone_is_a_sentence(
    scripted: Any, scripted_url: str, open_page: OpenPage, picture: Path, remove_upload: Callable[[Any], None]
) -> None:
    page = open_page(scripted_url)
    ask(page, "What colour?", picture)
    remove_upload(page)
    page.click(".seesay-export-button")
    page.get_by_role("button", name="JSON").click()
    page.wait_for_selector("text=A file of this conversation no longer exists")


@pytest.fixture
def remove_upload() -> Callable[[Any], None]:
    def remove(page: Any) -> None:
        path = page.evaluate("document.querySelector('.seesay-shot img').src").split("gradio_api/file=")[1]
        Path(path.replace("%20", " ")).unlink()

    return remove
