"""What the browser keeps of conversations, in a real headless Chromium."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import (
    READ_RECORDS,
    OpenPage,
    ask,
    count,
    text_of,
    wait_for_answers,
    wait_until_kept,
    wait_until_true,
)  # fmt: skip
from PIL import Image

from seesay.ui.escaping import MARK


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = []
    for name in ("red", "green", "blue"):
        paths.append(tmp_path / f"{name}.png")
        Image.new("RGB", (160, 120), name).save(paths[-1])
    return paths


def test_a_reload_keeps_the_conversation(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    page = open_page(scripted_url)
    ask(page, "one & <b>", *pictures[:2])
    ask(page, "two", num=2)
    wait_until_kept(page, 2)
    page.reload()
    page.wait_for_selector("#chat .seesay-line")
    wait_for_answers(page, 2)
    assert "one & <b>" in text_of(page).replace(MARK, "") and count(page, "#chat .seesay-shot") == 2
    page.wait_for_function("[...document.querySelectorAll('.seesay-shot img')].every(i => i.naturalWidth == 160)")
    ask(page, "three", num=3)
    messages = scripted.requests[-1]["messages"]
    assert [message["role"] for message in messages] == ["user", "assistant", "user", "assistant", "user"]
    parts = messages[0]["content"]
    assert [part["type"] for part in parts] == ["image_url", "image_url", "text"] and parts[2]["text"] == "one & <b>"
    assert parts[0]["image_url"] == scripted.requests[0]["messages"][0]["content"][0]["image_url"]


def test_a_reload_brings_back_details_and_errors(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url)
    scripted.details = {"timings": {"time_to_first_token_s": 0.2, "prefill_s": 0.2, "decode_s": 0.1, "total_s": 0.3}}
    ask(page, "one")
    scripted.refusal = (400, {"message": "no", "type": "x", "code": None, "param": None})
    ask(page, "two", num=2)
    wait_until_kept(page, 2)
    before = text_of(page)
    page.reload()
    page.wait_for_selector("#chat .seesay-error")
    wait_for_answers(page, 2)
    # The last elements may still be drawn.
    page.wait_for_function("text => document.querySelector('#chat').innerText == text", arg=before)
    page.locator("summary.seesay-line").first.click()
    page.wait_for_selector(".seesay-panel :text('Where the time went')")


def test_files_that_the_server_deleted_are_sent_again(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    page = open_page(scripted_url)
    ask(page, "one", pictures[2])
    wait_until_kept(page, 1)
    path = page.evaluate("document.querySelector('.seesay-shot img').src").split("gradio_api/file=")[1]
    sent = scripted.requests[-1]["messages"][0]["content"][0]
    shutil.rmtree(Path(path).parent)
    page.reload()
    page.wait_for_selector("#chat .seesay-line")
    ask(page, "two", num=2)
    assert scripted.requests[-1]["messages"][0]["content"][0] == sent


def test_a_reload_in_the_middle_of_an_answer_keeps_what_was_there(
    scripted: Any, scripted_url: str, open_page: OpenPage
) -> None:
    def count_up(body: dict[str, Any]) -> Iterator[str]:
        for number in range(20_000):
            time.sleep(0.02)
            yield f"{number} "

    scripted.script = count_up
    page = open_page(scripted_url)
    page.fill("#box textarea", "count")
    page.keyboard.press("Enter")
    wait_until_true(
        page,
        f"""async () => {{
            {READ_RECORDS}
            return records.some(record => record.turns[0].answer.includes("10 11 12 13"));
        }}""",
    )
    page.reload()
    page.wait_for_selector("text=Stopped.")
    assert "count" in text_of(page) and "10 11 12 13" in text_of(page)
    scripted.wait_until(lambda: scripted.num_left == 1)


def test_past_conversations_are_listed_opened_and_deleted(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    scripted.script = lambda body: iter([f"Answer to {body['messages'][-1]['content']}"])
    page = open_page(scripted_url)
    ask(page, "the first one")
    ask(page, "more of it", num=2)
    page.click("#new-button")
    page.wait_for_selector("#chat .example")
    ask(page, "<i>the second</i>")
    wait_until_kept(page, 1, num_records=2)

    page.click(".seesay-open")
    page.wait_for_function("document.querySelectorAll('.seesay-entry').length == 2")
    titles = page.locator(".seesay-entry-title").all_inner_texts()
    assert titles == ["<i>the second</i>", "the first one"], "newest first, as text"
    assert "2 questions" in page.locator(".seesay-entry").nth(1).inner_text()
    assert page.locator(".seesay-entry").first.get_attribute("aria-current") == "true"
    page.locator(".seesay-entry").nth(1).click()
    page.wait_for_selector("text=Answer to more of it")
    assert not page.is_visible(".seesay-drawer")
    ask(page, "again", num=3)
    assert [message["content"] for message in scripted.requests[-1]["messages"]][::2] == [
        "the first one", "more of it", "again",
    ]  # fmt: skip
    wait_until_kept(page, 3, num_records=2)

    page.click(".seesay-open")
    page.locator('[aria-label="Delete: <i>the second</i>"]').click()
    page.click(".seesay-confirm >> text=Keep")
    assert count(page, ".seesay-entry") == 2
    page.locator('[aria-label="Delete: <i>the second</i>"]').click()
    page.click(".seesay-confirm .seesay-yes")
    page.wait_for_function("document.querySelectorAll('.seesay-entry').length == 1")
    page.click(".seesay-delete-all")
    page.click(".seesay-confirm .seesay-yes")
    page.wait_for_selector("#chat .example")
    page.reload()
    page.wait_for_selector("#chat .example")
    page.click(".seesay-open")
    page.wait_for_selector("text=Conversations that you have are listed here.")


def test_clearing_asks_and_forgets(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url)
    ask(page, "one")
    wait_until_kept(page, 1)
    page.click('#chat [aria-label="Clear"]')
    page.click(".seesay-confirm >> text=Keep")
    assert count(page, "#chat .user-row") == 1
    page.click('#chat [aria-label="Clear"]')
    page.keyboard.press("Escape")
    assert count(page, "#chat .user-row") == 1
    page.click('#chat [aria-label="Clear"]')
    page.click(".seesay-confirm .seesay-yes")
    page.wait_for_selector("#chat .example")
    wait_until_kept(page, 0, num_records=0)
    page.reload()
    page.wait_for_selector("#chat .example")


def test_undo_of_the_only_question_leaves_nothing_behind(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    page = open_page(scripted_url)
    ask(page, "one", pictures[0])
    wait_until_kept(page, 1)
    page.click('[aria-label="Undo"]')
    page.wait_for_selector("#chat .example")
    wait_until_kept(page, 0, num_records=0)
    page.reload()
    page.wait_for_selector("#chat .example")
    page.click(".seesay-open")
    page.wait_for_selector("text=Conversations that you have are listed here.")


def test_a_forged_record_reads_no_file_of_the_server(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url)
    ask(page, "one")
    wait_until_kept(page, 1)
    page.evaluate(
        """async () => {
            const request = indexedDB.open("seesay", 1);
            const database = await new Promise(resolve => request.onsuccess = () => resolve(request.result));
            const store = database.transaction("records", "readwrite").objectStore("records");
            const records = await new Promise(resolve => {
                const all = store.getAll();
                all.onsuccess = () => resolve(all.result);
            });
            records[0].turns[0].files = ["/etc/hostname"];
            await new Promise(resolve => store.put(records[0]).onsuccess = resolve);
            database.close();
        }"""
    )
    page.reload()
    page.wait_for_selector("text=This conversation cannot be read.")
    assert count(page, "#chat .user-row") == 0
