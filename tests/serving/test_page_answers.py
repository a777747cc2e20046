"""The built-in model reads a drawn page, whichever way the page comes to it."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterator
from pathlib import Path

import anthropic
import openai
import pytest
from live_server import LiveServer, make_data_url, make_settings, serve

from seesay import load_document, pipeline
from seesay.cli import main
from seesay.config import EngineConfig, MediaLimits
from seesay.demo.checking import share_of_characters
from seesay.demo.evaluate import write_pdf
from seesay.demo.scenes import FIRST_EVALUATION_SEED, make_example
from seesay.engine.front.engine import AsyncEngine

PAGES = [make_example("page", FIRST_EVALUATION_SEED + seed) for seed in range(4)]
QUESTION = "Read the page."
MODEL = "seesay-demo"
LEAST = 0.95
"""The least share of the characters of all pages that is right."""


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    limits = MediaLimits.for_server(max_items=8)
    with (
        AsyncEngine(MODEL, backend_config=EngineConfig(device_type="cpu"), media_limits=limits) as engine,
        serve(engine, make_settings(model_name=None, media=limits)) as running,
    ):
        yield running


@pytest.fixture(scope="module")
def pdfs() -> list[bytes]:
    return [write_pdf(page.images[0]) for page in PAGES]


def data_url(pdf: bytes) -> str:
    return f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"


def by_chat(server: LiveServer, pdf: bytes) -> str:
    content = [
        {"type": "file", "file": {"filename": "page.pdf", "file_data": data_url(pdf)}},
        {"type": "text", "text": QUESTION},
    ]
    answer = server.post("/v1/chat/completions", {"model": MODEL, "messages": [{"role": "user", "content": content}]})
    return str(answer.json()["choices"][0]["message"]["content"])


def by_stream(server: LiveServer, pdf: bytes) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        pieces = client.chat.completions.create(
            model=MODEL,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {"type": "image_url", "image_url": {"url": make_data_url(load_document(pdf)[0].image)}},
                        {"type": "text", "text": QUESTION},
                    ],
                }
            ],
            stream=True,
        )
        return "".join(piece.choices[0].delta.content or "" for piece in pieces)


def by_responses(server: LiveServer, pdf: bytes) -> str:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        return client.responses.create(
            model=MODEL,
            input=[
                {
                    "role": "user",
                    "content": [
                        {"type": "input_file", "filename": "page.pdf", "file_data": data_url(pdf), "detail": "auto"},
                        {"type": "input_text", "text": QUESTION},
                    ],
                }
            ],
        ).output_text


def by_messages(server: LiveServer, pdf: bytes) -> str:
    source = base64.b64encode(pdf).decode()
    with anthropic.Anthropic(base_url=server.url, api_key="none", max_retries=0) as client:
        answer = client.messages.create(
            model=MODEL,
            max_tokens=256,
            messages=[
                {
                    "role": "user",
                    "content": [
                        {
                            "type": "document",
                            "source": {"type": "base64", "media_type": "application/pdf", "data": source},
                        },
                        {"type": "text", "text": QUESTION},
                    ],
                }
            ],
        )
    [block] = answer.content
    assert block.type == "text"
    return block.text


def by_ollama(server: LiveServer, pdf: bytes) -> str:
    written = io.BytesIO()
    load_document(pdf)[0].image.save(written, "PNG")
    message = {"role": "user", "content": QUESTION, "images": [base64.b64encode(written.getvalue()).decode()]}
    answer = server.post("/api/chat", {"model": MODEL, "messages": [message], "stream": False})
    return str(answer.json()["message"]["content"])


@pytest.mark.parametrize("ask", [by_chat, by_stream, by_responses, by_messages, by_ollama])
def test_a_drawn_page_is_read_over_http(
    ask: Callable[[LiveServer, bytes], str], server: LiveServer, pdfs: list[bytes]
) -> None:
    assert share([ask(server, pdf) for pdf in pdfs]) >= LEAST


def test_a_drawn_page_is_read_in_a_script(pdfs: list[bytes]) -> None:
    with pipeline(MODEL, backend_config=EngineConfig(device_type="cpu")) as pipe:
        answers = pipe([(QUESTION, [page.image for page in load_document(pdf)]) for pdf in pdfs])
    assert share([answer.text for answer in answers]) >= LEAST


def test_drawn_pages_are_read_into_files(server: LiveServer, pdfs: list[bytes], tmp_path: Path) -> None:
    """By the prompts that `seesay ocr` has by itself."""
    for number, pdf in enumerate(pdfs):
        (tmp_path / f"{number}.pdf").write_bytes(pdf)
    assert main(["ocr", str(tmp_path), "-o", str(tmp_path / "out"), "--base-url", server.url]) == 0
    read = [(tmp_path / "out" / f"{number}.pdf.md").read_text() for number in range(len(pdfs))]
    assert share([text.partition("-->")[2] or text for text in read]) >= LEAST


def share(answers: list[str]) -> float:
    """Return the share of characters that are right, of all pages together."""
    expected = [page.turns[0][1] for page in PAGES]
    lengths = list(map(len, expected))
    shares = map(share_of_characters, expected, answers)
    return sum(each * length for each, length in zip(shares, lengths, strict=True)) / sum(lengths)
