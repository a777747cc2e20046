"""What tests of the WebUI do in a browser, as people do it."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

OpenPage = Callable[..., Any]


def ask(page: Any, text: str, *files: Path, num: int = 1) -> None:
    """Upload, type, press Enter, and wait for the `num`-th answer to be complete."""
    page.wait_for_selector("#box .submit-button")
    if files:
        page.evaluate("document.querySelector('#box input[type=file]').value = ''")  # as a click does
        page.set_input_files("#box input[type=file]", [str(file) for file in files])
        page.wait_for_function(f"document.querySelectorAll('#box .thumbnail-item').length >= {len(files)}")
    page.fill("#box textarea", text)
    page.keyboard.press("Enter")
    wait_for_answers(page, num)


def wait_for_answers(page: Any, num: int) -> None:
    page.wait_for_function(f"document.querySelectorAll('#chat .seesay-line, #chat .seesay-error').length == {num}")
    page.wait_for_function("!document.querySelector('#chat .seesay-wait')")


def wait_until_true(page: Any, function: str, arg: Any = None, *, timeout_s: float = 120) -> None:
    """Wait until an async function of JavaScript returns what is true. Playwright's `wait_for_function` calls such a
    function once: its promise is true."""
    deadline_s = time.monotonic() + timeout_s
    while not page.evaluate(function, arg):
        assert time.monotonic() < deadline_s, function
        page.wait_for_timeout(100)


def text_of(page: Any, selector: str = "#chat") -> str:
    return str(page.inner_text(selector))


def count(page: Any, selector: str) -> int:
    return int(page.locator(selector).count())


def box_of(page: Any, selector: str) -> Any:
    """Where the first element is: its left, top, right and bottom."""
    return page.evaluate(
        """selector => {
            const {left, top, right, bottom} = document.querySelector(selector).getBoundingClientRect();
            return {left, top, right, bottom};
        }""",
        selector,
    )


def wait_until_still(page: Any) -> None:
    """Wait until no animation or transition that ends is running, so that boxes can be measured."""
    page.wait_for_function(
        """() => document.getAnimations().every(animation =>
            animation.playState !== "running" || !isFinite(animation.effect.getComputedTiming().endTime))"""
    )


READ_RECORDS = """
const request = indexedDB.open("seesay", 1);
request.onupgradeneeded = () => request.transaction.abort();  // the page has not made it yet
const database = await new Promise(resolve => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => resolve(null);
});
if (!database) return false;
const transaction = database.transaction(["records", "files"]);
const get = request => new Promise(resolve => request.onsuccess = () => resolve(request.result));
const records = await get(transaction.objectStore("records").getAll());
const files = await get(transaction.objectStore("files").getAllKeys());
database.close();
"""
"""JavaScript that reads what the browser has kept. It returns false before the page has made its database: to open one
makes it, without the page's stores."""


def wait_until_kept(page: Any, num_turns: int, *, num_records: int = 1) -> None:
    """Until the browser has a record with so many turns, and the files of all."""
    wait_until_true(
        page,
        f"""async ([numTurns, numRecords]) => {{
            {READ_RECORDS}
            const used = new Set(records.flatMap(r => r.turns.flatMap(t => t.files)));
            return records.length == numRecords && used.size == files.length
                && (!numRecords || records.some(r => r.turns.length == numTurns && r.turns.every(t => t.is_done)));
        }}""",
        [num_turns, num_records],
    )
