"""What the WebUI looks like and how it behaves under a finger, a keyboard and a screen reader, in a real Chromium."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browsing import OpenPage, ask, box_of, count, text_of, wait_until_still
from pairs import parametrize_sweep
from PIL import Image

PHONE = {"width": 390, "height": 844}
REPORT = {
    "modality": "image", "num_frames": 1, "height": 1200, "width": 1600, "resized_height": 1092, "resized_width": 1456,
    "num_tiles": 1, "num_patches": 96, "num_tokens": 24, "is_cached": False,
}  # fmt: skip
TIMINGS = {
    "fetch_s": 0.0, "decode_media_s": 0.1, "preprocess_s": 0.1, "encode_queue_s": 0.0, "encode_s": 0.3,
    "prefill_s": 0.3, "decode_s": 0.2, "time_to_first_token_s": 0.8, "total_s": 1.0,
}  # fmt: skip


@pytest.fixture
def pictures(tmp_path: Path) -> list[Path]:
    paths = []
    for number in range(6):
        paths.append(tmp_path / f"picture {number}.png")
        Image.new("RGB", (160 + number, 120), (40 * number, 90, 160)).save(paths[-1])
    return paths


def report_on_all(scripted: Any) -> Callable[[dict[str, Any]], Iterator[str]]:
    """A script that has one report for each picture of the request."""

    def script(body: dict[str, Any]) -> Iterator[str]:
        contents = [message["content"] for message in body["messages"] if isinstance(message["content"], list)]
        num_files = sum(part["type"] != "text" for content in contents for part in content)
        scripted.details = {"timings": TIMINGS, "media": [REPORT] * num_files}
        return iter(["An answer."])

    return script


@parametrize_sweep(scheme=["light", "dark"], width=[390, 1280])
def test_axe_finds_nothing(
    scripted: Any,
    scripted_url: str,
    open_page: OpenPage,
    run_axe: Callable[[Any], list[str]],
    pictures: list[Path],
    scheme: str,
    width: int,
) -> None:
    scripted.script = report_on_all(scripted)
    page = open_page(scripted_url, width=width, height=844, scheme=scheme)
    findings = run_axe(page)
    ask(page, "What is **this**?", *pictures[:2])
    page.click("summary.seesay-line")
    findings += run_axe(page)
    page.locator('#chat [aria-label="Edit"]').first.click()
    findings += run_axe(page)
    page.keyboard.press("Escape")
    page.click("#settings-button")
    page.wait_for_selector("#top-p input[type=range]")
    findings += run_axe(page)
    page.click("#settings-button")
    page.click("#camera-button")
    page.wait_for_selector("#camera >> text=Click to Access Webcam")
    findings += run_axe(page)
    page.click("#camera-button")
    page.click('#chat [aria-label="Clear"]')
    findings += run_axe(page)
    page.keyboard.press("Escape")
    page.click(".seesay-export-button")
    findings += run_axe(page)
    page.keyboard.press("Escape")
    page.locator(".seesay-shot").first.click()
    findings += run_axe(page)
    page.keyboard.press("Escape")
    page.click(".seesay-open")
    page.wait_for_selector(".seesay-entry")
    findings += run_axe(page)
    page.keyboard.press("Escape")
    scripted.refusal = (400, {"message": "no", "type": "x", "code": None, "param": None})
    ask(page, "and?", num=2)
    findings += run_axe(page)
    assert not findings, "\n".join(findings)


def test_a_new_question_scrolls_into_view_from_anywhere(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    scripted.script = lambda body: iter(["word " * 400])
    page = open_page(scripted_url, **PHONE)
    for number in range(3):
        ask(page, f"question {number}", *pictures[:2], num=number + 1)
    for text, files in (("from the top", ()), ("with pictures", pictures)):
        page.evaluate("document.querySelector('#chat .bubble-wrap').scrollTo(0, 0)")
        page.wait_for_timeout(200)
        num = count(page, "#chat .user-row") + 1
        ask(page, text, *files, num=num)
        page.wait_for_function(
            """() => {
                const view = document.querySelector("#chat .bubble-wrap").getBoundingClientRect();
                const row = [...document.querySelectorAll("#chat .user-row")].at(-1).getBoundingClientRect();
                return Math.abs(row.top - view.top) < 30;
            }"""
        )
    before = page.evaluate("document.querySelector('#chat .bubble-wrap').scrollTop")
    page.mouse.move(195, 400)
    page.mouse.wheel(0, -300)
    page.wait_for_function(
        """before => {
            const {scrollTop} = document.querySelector("#chat .bubble-wrap");
            const is_still = scrollTop === window.lastTop && scrollTop < before;
            window.lastTop = scrollTop;
            return is_still;
        }""",
        arg=before,
        polling=500,
    )
    away = page.evaluate("document.querySelector('#chat .bubble-wrap').scrollTop")
    page.evaluate("document.querySelector('#chat .seesay-line').append('x')")  # something changes
    page.wait_for_timeout(200)
    assert page.evaluate("document.querySelector('#chat .bubble-wrap').scrollTop") == away, "readers may scroll"


def test_several_pictures_are_a_strip(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    page = open_page(scripted_url, **PHONE)
    ask(page, "Which is blue?", *pictures)
    page.wait_for_function("[...document.querySelectorAll('.seesay-shot img')].every(i => i.naturalWidth)")
    tops = page.evaluate("[...document.querySelectorAll('.seesay-shot')].map(e => e.getBoundingClientRect().top)")
    assert len(tops) == 6 and len(set(tops)) == 1, "side by side"
    strip = box_of(page, ".seesay-strip")
    assert strip["bottom"] - strip["top"] < 150 and strip["right"] <= 390
    assert page.evaluate("document.querySelector('.seesay-strip').scrollWidth") > strip["right"] - strip["left"]
    assert page.evaluate("document.documentElement.scrollWidth") <= 390

    page.locator(".seesay-shot").first.click()
    large = box_of(page, ".seesay-large img")
    assert large["right"] - large["left"] > 250 and page.locator(".seesay-large img").get_attribute("alt")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('.seesay-large')")


def test_panels_are_of_one_width_and_show_this_questions_media_first(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    scripted.script = report_on_all(scripted)
    page = open_page(scripted_url)
    ask(page, "one", *pictures[:2])
    ask(page, "two", pictures[2], num=2)
    ask(page, "three", num=3)
    for number in range(3):
        page.locator("summary.seesay-line").nth(number).click()
    page.click("#settings-button")
    page.wait_for_selector("#settings")
    wait_until_still(page)
    sides = {
        (round(box["left"]), round(box["right"]))
        for box in page.evaluate(
            "[...document.querySelectorAll('.seesay-panel, #settings, #box')].map(e => e.getBoundingClientRect())"
        )
    }
    assert len({left for left, _ in sides}) <= 2 and max(sides)[0] - min(sides)[0] <= 4, sides
    assert max(right for _, right in sides) - min(right for _, right in sides) <= 4, sides
    names = [
        [card.strip() for card in page.locator(".seesay-panel").nth(number).locator(".seesay-name").all_inner_texts()]
        for number in range(3)
    ]
    own, earlier = ["picture 0.png", "picture 1.png"], ["picture 2.png"]
    assert names == [own, [*earlier, *own], [*own, *earlier]]
    headings = page.locator(".seesay-panel").nth(1).locator(".seesay-heading").all_inner_texts()
    assert headings == ["What the model saw", "From earlier in the conversation", "Where the time went"]


@pytest.mark.parametrize("width", [320, pytest.param(390, marks=pytest.mark.slow)])
def test_labels_do_not_break_on_a_phone(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path], width: int
) -> None:
    scripted.script = report_on_all(scripted)
    page = open_page(scripted_url, width=width, height=844)
    ask(page, "one", *pictures[:2])
    page.click("summary.seesay-line")
    page.click("#settings-button")
    page.wait_for_selector("#settings")
    broken = page.evaluate(
        """() => {
            const labels = "#settings label > span, #settings .head label, #top button, .seesay-line span,"
                + " .seesay-stage b, .seesay-stage span, figcaption i, .message-buttons button, .seesay-origin";
            return [...document.querySelectorAll(labels)].filter(e => e.textContent.trim() && e.checkVisibility())
                .filter(e => {
                    const range = document.createRange();
                    range.selectNodeContents(e);
                    const rects = [...range.getClientRects()].filter(r => r.width > 1);
                    return rects.some(r => r.top >= rects[0].bottom - 2);
                })
                .map(e => e.textContent);
        }"""
    )
    assert not broken
    outside = page.evaluate(
        """[...document.querySelectorAll(".seesay-card figcaption i")].filter(
            e => e.getBoundingClientRect().right > e.closest(".seesay-card").getBoundingClientRect().right + 1
        ).map(e => e.textContent)"""
    )
    assert not outside, "over the next card"
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_a_picture_that_the_browser_cannot_show_is_named(
    scripted: Any, scripted_url: str, open_page: OpenPage, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no picture")
    page = open_page(scripted_url)
    ask(page, "one", broken)
    page.wait_for_selector(".seesay-broken")
    shown = page.evaluate("getComputedStyle(document.querySelector('.seesay-broken'), '::after').content")
    assert shown.replace('"', "") == "broken.png cannot be shown"
    assert page.is_disabled(".seesay-shot")


def test_retry_and_undo_are_words(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url, **PHONE)
    ask(page, "one")
    for name in ("Retry", "Undo"):
        shown = page.evaluate(
            f"getComputedStyle(document.querySelector('#chat [aria-label={name}]'), '::after').content"
        )
        assert shown.strip('"') == name
        box = box_of(page, f"#chat [aria-label={name}]")
        assert box["right"] - box["left"] > 50, "room for the word"


def test_escape_ends_an_edit(scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]) -> None:
    page = open_page(scripted_url)
    ask(page, "as it was", pictures[0])
    page.locator('#chat [aria-label="Edit"]').click()
    page.locator("#chat textarea").first.fill("something else")
    page.keyboard.press("Escape")
    page.wait_for_function("!document.querySelector('#chat textarea')")
    assert "as it was" in text_of(page) and len(scripted.requests) == 1


def test_questions_with_pictures_are_copied_as_typed(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    page = open_page(scripted_url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    question = 'Is "this" <b> & *that*?'
    ask(page, question, *pictures[:2])
    assert count(page, '#chat .message-buttons-right [aria-label="Copy message"]') == 1
    page.click('#chat .message-buttons-right [aria-label="Copy message"]')
    page.wait_for_selector(".seesay-copied")
    assert page.evaluate("navigator.clipboard.readText()") == question
    page.locator('#chat [aria-label="Edit"]').click()
    page.wait_for_function("!document.querySelector('.message-buttons .seesay-copy')")
    page.keyboard.press("Escape")
    page.wait_for_selector(".message-buttons .seesay-copy")


def test_where_the_time_went_is_a_timeline(
    scripted: Any, scripted_url: str, open_page: OpenPage, pictures: list[Path]
) -> None:
    scripted.script = report_on_all(scripted)
    page = open_page(scripted_url)
    ask(page, "one", pictures[0])
    page.click("summary.seesay-line")
    names = page.locator(".seesay-stage b").all_inner_texts()
    assert names == ["read file", "resize", "encode", "read prompt", "write"]
    assert page.locator(".seesay-stage span").all_inner_texts() == ["0.10 s", "0.10 s", "0.30 s", "0.30 s", "0.20 s"]
    bars = page.evaluate(
        """[...document.querySelectorAll(".seesay-stage i")].map(track => {
            const all = track.getBoundingClientRect(), bar = track.firstChild.getBoundingClientRect();
            return [(bar.left - all.left) / all.width, (bar.right - all.left) / all.width];
        })"""
    )
    expected = [(0.0, 0.1), (0.1, 0.2), (0.2, 0.5), (0.5, 0.8), (0.8, 1.0)]
    for (left, right), (expected_left, expected_right) in zip(bars, expected):
        assert abs(left - expected_left) < 0.01 and abs(right - expected_right) < 0.01


def test_settings_keep_their_heights_on_a_phone(scripted_url: str, open_page: OpenPage) -> None:
    """The panel scrolls; none of its parts shrinks."""
    page = open_page(scripted_url, width=320, height=600)
    page.click("#settings-button")
    page.wait_for_selector("#theme input", state="attached")
    heights = page.evaluate(
        "[...document.querySelectorAll('#settings > *')].map(e => e.getBoundingClientRect().height)"
    )
    assert min(heights) >= 44, heights
    page.locator("#system-prompt textarea").scroll_into_view_if_needed()
    prompt, panel = box_of(page, "#system-prompt textarea"), box_of(page, "#settings")
    assert panel["top"] <= prompt["top"] and prompt["bottom"] <= panel["bottom"]


def test_wide_tables_and_code_scroll_by_themselves(
    scripted: Any, scripted_url: str, open_page: OpenPage, run_axe: Callable[[Any], list[str]]
) -> None:
    table = "| Column one | Column two | Column three |\n|---|---|---|\n| some words | 4444444444444444444444 | x |"
    scripted.script = lambda body: iter([f"{table}\n\n```python\n{'name = ' * 30}\n```"])
    page = open_page(scripted_url, **PHONE)
    ask(page, "one")
    for name in ("table", "pre"):
        page.wait_for_selector(f".bot {name}[tabindex='0']")
        inside, outside = page.evaluate(f"(e => [e.scrollWidth, e.clientWidth])(document.querySelector('.bot {name}'))")
        assert inside > outside and outside <= PHONE["width"], name
    heights = page.evaluate("[...document.querySelectorAll('.bot td')].map(e => e.getBoundingClientRect().height)")
    assert max(heights) < 60, "no word is broken"
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE["width"]
    assert run_axe(page) == []
