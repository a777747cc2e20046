"""The WebUI in a real headless Chromium: what people do with it."""

from __future__ import annotations

import base64
import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from browsing import OpenPage, ask, count, text_of, wait_for_answers, wait_until_true

from seesay.demo.scenes import sample_scene
from seesay.ui.escaping import MARK


@pytest.fixture
def scene(tmp_path: Path) -> tuple[Path, tuple[tuple[str, str], ...]]:
    example = sample_scene(3)
    path = tmp_path / "my scene.png"
    example.images[0].save(path)
    return path, example.turns


# --- with the built-in checkpoint -----------------------------------------------------------------------------------


def test_upload_a_scene_ask_and_see_the_right_answer(demo_url: str, open_page: OpenPage, scene: Any) -> None:
    path, turns = scene
    page = open_page(demo_url)
    assert text_of(page, "#title").split() == ["seesay", "seesay-demo"]
    ask(page, turns[0][0], path)
    assert turns[0][1] in text_of(page)
    line = text_of(page, ".seesay-line")
    assert "tokens in (81 image)" in line and "first after" in line and "tokens/s" in line
    page.click("summary.seesay-line")
    card = text_of(page, ".seesay-card")
    assert "252 \u00d7 252 px" in card and "81 tokens" in card and "324 patches" in card and "encoded now" in card
    assert page.evaluate("document.querySelector('.seesay-card img').naturalWidth") == 252

    for number, (question, answer) in enumerate(turns[1:], 2):
        ask(page, question, num=number)
        assert answer in text_of(page)
    page.locator("summary.seesay-line").last.click()
    assert "from cache" in page.locator(".seesay-card").last.inner_text()


def test_examples(demo_url: str, open_page: OpenPage) -> None:
    page = open_page(demo_url, width=390, height=844, scheme="dark")
    answers = ("a red triangle", "The largest bar is Eve.", "The first picture has more shapes.", "moves up")
    assert count(page, "#chat .example") == len(answers)
    for number, answer in enumerate(answers):
        page.locator("#chat .example").nth(number).click()
        wait_for_answers(page, 1)
        assert answer in text_of(page)
        assert page.evaluate("document.documentElement.scrollWidth") <= 390, "the page is wider than a phone"
        page.click('[aria-label="Clear"]')
        page.click(".seesay-confirm .seesay-yes")
        page.wait_for_selector("#chat .example")


def test_a_broken_picture_is_a_sentence_and_harms_nothing_later(
    demo_url: str, open_page: OpenPage, scene: Any, tmp_path: Path
) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"\x89PNG\r\n\x1a\n no picture at all")
    page = open_page(demo_url)
    ask(page, "what is this?", broken)
    assert text_of(page, ".seesay-error").startswith("'broken.png' cannot be decoded")
    path, turns = scene
    ask(page, turns[0][0], path, num=2)
    assert turns[0][1] in text_of(page)


def test_edit_and_undo_keep_the_pictures(demo_url: str, open_page: OpenPage, scene: Any) -> None:
    path, turns = scene
    page = open_page(demo_url)
    ask(page, turns[0][0], path)
    page.locator('[aria-label="Edit"]').first.click()
    page.locator("#chat textarea").first.fill(turns[1][0])
    page.click('#chat [aria-label="Submit"]')
    page.wait_for_selector(f"text={turns[1][1]}")
    wait_for_answers(page, 1)
    assert turns[0][1] not in text_of(page) and count(page, "#chat .user.message") == 1

    page.click('[aria-label="Undo"]')
    page.wait_for_selector("#chat .example")
    assert page.input_value("#box textarea") == turns[1][0] and count(page, "#box .thumbnail-item") == 1


def test_pasted_dropped_and_photographed_pictures(demo_url: str, open_page: OpenPage, scene: Any) -> None:
    page = open_page(demo_url)
    content = base64.b64encode(scene[0].read_bytes()).decode()
    send = """([selector, kind, content]) => {
        const data = new DataTransfer();
        const bytes = Uint8Array.from(atob(content), c => c.charCodeAt(0));
        data.items.add(new File([bytes], kind + ".png", {type: "image/png"}));
        const options = {bubbles: true, cancelable: true, [kind == "paste" ? "clipboardData" : "dataTransfer"]: data};
        const event = kind == "paste" ? new ClipboardEvent(kind, options) : new DragEvent(kind, options);
        document.querySelector(selector).dispatchEvent(event);
    }"""
    num_files = 0
    for selector, kind in (("#box textarea", "paste"), ("#chat", "paste"), ("#chat", "drop")):
        page.evaluate(send, [selector, kind, content])
        num_files += 1
        page.wait_for_function(f"document.querySelectorAll('#box .thumbnail-item').length == {num_files}")
    page.click("#camera-button")
    page.click("#camera >> text=Click to Access Webcam")
    page.wait_for_function("document.querySelector('#camera video')?.readyState >= 2")
    page.click('#camera [aria-label="capture photo"]')
    page.wait_for_function(f"document.querySelectorAll('#box .thumbnail-item').length == {num_files + 1}")
    page.fill("#box textarea", "What do you see?")
    page.keyboard.press("Enter")
    wait_for_answers(page, 1)
    page.click("summary.seesay-line")
    assert count(page, ".seesay-card") == num_files + 1, text_of(page)


# --- with a server that plays by a script ---------------------------------------------------------------------------


def test_retry_and_edit_begin_again_from_a_turn(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    scripted.script = lambda body: iter([f"Answer {len(scripted.requests)}."])
    page = open_page(scripted_url)
    ask(page, "one")
    ask(page, "two", num=2)
    page.click('[aria-label="Retry"]')
    page.wait_for_selector("text=Answer 3.")
    wait_for_answers(page, 2)
    assert "Answer 1." in text_of(page) and "Answer 2." not in text_of(page)
    assert [message["content"] for message in scripted.requests[-1]["messages"]] == ["one", "Answer 1.", "two"]
    page.locator('[aria-label="Edit"]').first.click()
    page.locator("#chat textarea").first.fill("other")
    page.click('#chat [aria-label="Submit"]')
    page.wait_for_selector("text=Answer 4.")
    wait_for_answers(page, 1)
    assert [message["content"] for message in scripted.requests[-1]["messages"]] == ["other"]


def test_stop_ends_the_answer_here_and_on_the_server(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    def count_up(body: dict[str, Any]) -> Iterator[str]:
        for number in range(20_000):
            time.sleep(0.02)
            yield f"{number} "

    scripted.script = count_up
    page = open_page(scripted_url)
    page.fill("#box textarea", "count")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=0 1 2 3 4")  # it streams
    page.click("#box .stop-button")
    page.wait_for_selector("text=Stopped.")
    scripted.wait_until(lambda: scripted.num_left == 1)
    scripted.script = lambda body: iter(["Go", "od."])
    ask(page, "and now?", num=2)
    assert "Good." in text_of(page)
    roles = [message["role"] for message in scripted.requests[-1]["messages"]]
    assert roles == ["user", "assistant", "user"], "what was said before the stop counts"


SLOW_END = """
import sys, time
from seesay.ui.handlers import Handlers
answer = Handlers._answer
def answer_slowly(*arguments):
    yield from answer(*arguments)
    time.sleep(3)
Handlers._answer = answer_slowly
from seesay.cli import main
sys.exit(main(["serve", "gradio", "--server-port", "PORT", "URL"]))
"""
"""The WebUI, whose events are over some time after their last change of the page, as on a busy machine."""


def test_a_question_is_taken_as_soon_as_it_can_be_sent(
    scripted: Any, run_space: Callable[..., contextlib.AbstractContextManager[str]], open_page: OpenPage
) -> None:
    """Gradio ignores a question while the event of the one before is not over."""
    with run_space(SLOW_END.replace("URL", scripted.url)) as url:
        page = open_page(url)
        for number in (1, 2, 3):
            ask(page, f"question {number}", num=number)
    assert len(scripted.requests) == 3


def test_a_closed_page_ends_its_answer(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    def count_up(body: dict[str, Any]) -> Iterator[str]:
        for number in range(20_000):
            time.sleep(0.02)
            yield f"{number} "

    scripted.script = count_up
    page = open_page(scripted_url)
    page.fill("#box textarea", "count")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=0 1 2 3 4")
    page.close()
    scripted.wait_until(lambda: scripted.num_left == 1)


def test_settings_reach_the_server(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url)
    assert not page.is_visible("#system-prompt")
    page.click("#settings-button")
    page.fill("#system-prompt textarea", "Be brief.")
    for name, value in (("temperature", "0.3"), ("top-p", "0.9"), ("top-k", "0"), ("max-tokens", "77")):
        page.fill(f"#{name} input[type=number]", value)
        page.keyboard.press("Tab")
    ask(page, "hello")
    request = scripted.requests[-1]
    assert request["messages"][0] == {"role": "system", "content": "Be brief."}
    assert (request["temperature"], request["top_p"], request["max_tokens"]) == (0.3, 0.9, 77)
    assert request["top_k"] == 0 and request["stream"] is True, "0 is off, whatever the server takes by default"


class _Listener(ThreadingHTTPServer):
    """Another host, as far as a browser is concerned. Notes every path that it is asked for."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _ListenerHandler)
        self.paths: list[str] = []


class _ListenerHandler(BaseHTTPRequestHandler):
    server: _Listener

    def log_message(self, format: str, *arguments: Any) -> None:
        pass

    def do_GET(self) -> None:
        self.server.paths.append(self.path)
        self.send_response(204)
        self.send_header("access-control-allow-origin", "*")
        self.end_headers()


@pytest.fixture
def listener() -> Iterator[_Listener]:
    with _Listener() as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server
        server.shutdown()
        thread.join(60)


def _evil_lines(host: str) -> list[str]:
    """One paragraph each, as HTML blocks end at empty lines."""
    return [
        f"![a]({host}/1)",
        f"<img src={host}/2 onerror='window.hurt=1'>",
        f'<div style="position:fixed;inset:0;z-index:9999;background:red url({host}/3)">over</div>',
        "<script>window.hurt=1</script>",
        f"<b onclick='window.hurt=1'>b</b> <img/src={host}/4> <custom-tag>c</custom-tag>",
        f"<style>body {{ background: url({host}/5) }}</style>",
        f"$$<img src={host}/6>$$",
        "what does <div> do, and &lt;, <!-- this --> and a < b?",
        f'<iframe src="{host}/7"></iframe> <video src="{host}/8" autoplay></video> <svg><image href="{host}/9"/></svg>',
    ]


def test_html_and_images_of_answers_are_text(
    scripted: Any, scripted_url: str, open_page: OpenPage, listener: _Listener
) -> None:
    host = f"http://127.0.0.1:{listener.server_port}"
    lines = [line.replace("$$", "") for line in _evil_lines(host)]
    more = [
        "**bold**",
        f"![r][ref] ![a ![b]({host}/10)]({host}/11)",
        f'```mermaid\nflowchart TD\nA@{{ img: "{host}/12" }}\n```',
        f"$$<img src={host}/13>$$",
        f"[ref]: {host}/14",
        "```html\n<p>in code</p>\n```",
    ]
    scripted.script = lambda body: iter("\n\n".join([*lines, *more]).partition("<di"))
    page = open_page(scripted_url)
    ask(page, "hello")
    page.wait_for_timeout(700)
    text = text_of(page, "#chat .bot").replace(MARK, "")
    for line in [*lines, "<p>in code</p>"]:
        assert line in text
    assert text_of(page, "#chat .bot strong") == "bold"
    _check_harmless(page, listener)


def test_questions_are_shown_as_typed_and_edited_as_typed(
    scripted: Any, scripted_url: str, open_page: OpenPage, listener: _Listener
) -> None:
    lines = [
        *_evil_lines(f"http://127.0.0.1:{listener.server_port}"),
        "**bold** _it_ `code` ~~no~~ \\* 1. [l](http://x)",
        *("1. one", "# head", "- item", "> quote", "    four", "| a |"),
    ]
    question = "\n".join(lines)
    page = open_page(scripted_url)
    ask(page, question)
    page.wait_for_timeout(700)
    shown = text_of(page, "#chat .user.message").replace(MARK, "")
    assert [line.strip() for line in shown.splitlines()] == [line.strip() for line in lines]
    assert scripted.requests[-1]["messages"][0]["content"] == question
    _check_harmless(page, listener)

    page.locator('[aria-label="Edit"]').first.click()
    editor = page.locator("#chat textarea").first
    page.wait_for_function("document.querySelector('#chat textarea')?.value.includes('hurt')")
    assert editor.input_value() == question
    page.click('#chat [aria-label="Submit"]')
    scripted.wait_until(lambda: len(scripted.requests) == 2)
    wait_for_answers(page, 1)
    assert scripted.requests[-1]["messages"][0]["content"] == question


def test_what_is_copied_is_as_written(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    question = "Is <div> *not* <b>, &amp; ![a](b)?"
    scripted.script = lambda body: iter(["An <i> &amp; ![a](b) here.\n\n```html\n<p>code</p>\n```"])
    page = open_page(scripted_url)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    ask(page, question)

    def wait_for_copy(text: str) -> None:
        wait_until_true(page, "async text => (await navigator.clipboard.readText()).trim() == text", text)

    page.click('#chat [aria-label="Copy message"]')
    wait_for_copy(question)
    page.locator("#chat .bot pre").hover()
    page.locator("#chat .bot button.copy_code_button").click()
    wait_for_copy("<p>code</p>")
    page.evaluate("getSelection().selectAllChildren(document.querySelector('#chat .bot p'))")
    page.keyboard.press("Control+C")
    wait_for_copy("An <i> &amp; ![a](b) here.")


def test_the_browser_may_load_nothing_from_elsewhere(
    scripted_url: str, open_page: OpenPage, listener: _Listener
) -> None:
    page = open_page(scripted_url)
    page.evaluate(
        """async host => {
            const image = new Image();
            const over = new Promise(resolve => { image.onerror = image.onload = resolve; });
            image.src = host + "/image";
            await over;
            await fetch(host + "/fetch").catch(() => null);
        }""",
        f"http://127.0.0.1:{listener.server_port}",
    )
    assert listener.paths == []


def _check_harmless(page: Any, listener: _Listener) -> None:
    assert listener.paths == []
    assert page.evaluate("window.hurt") is None
    assert count(page, "#chat .message :is(img, script, style, iframe, video, svg image, [onclick], [onerror])") == 0
    assert page.evaluate(
        "[...document.querySelectorAll('#chat .message *')].every(e => getComputedStyle(e).position != 'fixed')"
    )
    top = page.evaluate("document.elementFromPoint(innerWidth / 2, innerHeight - 40).closest('#box') !== null")
    assert top, "something covers the input box"


def test_errors_are_sentences(scripted: Any, scripted_url: str, open_page: OpenPage) -> None:
    page = open_page(scripted_url)
    errors = (
        (400, "messages[0].content[1]: the prompt has 5000 tokens, the model takes 2048", "The prompt has 5000 tokens"),
        (401, "wrong key", "The server requires an API key"),
        (429, "the queue is full", "wait a moment, then press retry"),
        (500, "internal error, id abc <b>", "Internal error, id abc <b>."),
    )
    for number, (status, message, shown) in enumerate(errors, 1):
        scripted.refusal = (status, {"message": message, "type": "x", "code": None, "param": None})
        ask(page, "hello", num=number)
        assert shown in text_of(page, ".seesay-error")
        scripted.refusal = None
        page.locator('[aria-label="Retry"]').last.click()
        page.wait_for_function(f"document.querySelectorAll('#chat .seesay-line').length == {number}")
        assert count(page, ".seesay-error") == 0


def test_a_pdf_is_a_document_with_a_card_for_all_its_pages(demo_url: str, open_page: OpenPage, tmp_path: Path) -> None:
    picture = sample_scene(3).images[0]
    path = tmp_path / "two scenes.pdf"
    picture.save(path, save_all=True, append_images=[picture], resolution=144)
    page = open_page(demo_url)
    ask(page, "describe this image", path)
    assert page.get_attribute(".seesay-strip .seesay-document", "target") == "_blank"
    assert text_of(page, ".seesay-strip") == "two scenes.pdf"
    page.click("summary.seesay-line")
    card = text_of(page, ".seesay-card")
    assert "two scenes.pdf" in card and "2 pages" in card and "162 tokens" in card and "encoded now" in card
