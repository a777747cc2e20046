"""Boxes of answers over HTTP."""

from __future__ import annotations

import base64
import io
import json
from typing import Any

import httpx
import numpy as np
import pytest
from live_server import LiveServer, make_data_url, read_events

CHAT = "/v1/chat/completions"


def ask(server: LiveServer, **fields: Any) -> httpx.Response:
    content = [
        {"type": "image_url", "image_url": {"url": make_data_url(size=(200, 100))}},
        {"type": "text", "text": "find"},
    ]
    body = {"messages": [{"role": "user", "content": content}], "temperature": 0, "max_tokens": 60, **fields}
    answer = server.post(CHAT, body)
    assert answer.status_code == 200, answer.text
    return answer


def test_an_answer_that_has_to_name_boxes_has_them_in_pixels(server: LiveServer) -> None:
    """The model's JSON counts pixels of what it sees, or thousandths; the extension those of the picture."""
    text = '[{"bbox_2d": [0, 0, 28, 28], "label": "cat"}]'
    fixed = {"type": "choice", "choice": [text]}
    answer = ask(server, response_format=fixed, return_boxes=True).json()
    [choice] = answer["choices"]
    assert choice["message"]["content"] == text
    [box] = choice["boxes"]
    seen = httpx.post(
        f"{server.url}{CHAT}", json=json.loads(httpx_body(server)), headers={"x-seesay-timings": "1"}, timeout=60
    ).json()["seesay"]["media"][0]
    across, down = seen["resized_width"], seen["resized_height"]
    expected = 28 * 200 / (across if seen["coordinates"] == "pixel" else 1000)
    below = 28 * 100 / (down if seen["coordinates"] == "pixel" else 1000)
    assert (seen["width"], seen["height"]) == (200, 100)
    assert box == {"box": pytest.approx([0, 0, expected, below]), "label": "cat", "picture": 0}
    assert choice["points"] == choice["polygons"] == choice["timestamps"] == []

    streamed = ask(server, response_format=fixed, return_boxes=True, stream=True).text
    last = [event["choices"][0] for event in read_events(streamed) if event.get("choices")][-1]
    assert last["boxes"] == choice["boxes"]
    [plain] = ask(server, response_format=fixed).json()["choices"]
    assert "boxes" not in plain


def httpx_body(server: LiveServer) -> str:
    content = [{"type": "image_url", "image_url": {"url": make_data_url(size=(200, 100))}}]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 1})


def test_a_list_of_boxes_can_be_asked_for(server: LiveServer) -> None:
    [choice] = ask(server, response_format={"type": "boxes"}, max_tokens=400).json()["choices"]
    content = choice["message"]["content"]
    assert content.lstrip().startswith("[")
    if choice["finish_reason"] == "stop":
        for entry in json.loads(content):
            assert set(entry) == {"bbox_2d", "label"} and len(entry["bbox_2d"]) == 4
    assert isinstance(choice["boxes"], list)


def test_times_of_a_video_are_seconds_of_it(server: LiveServer) -> None:
    av = pytest.importorskip("av")
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        stream = container.add_stream("libx264", rate=4)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuv420p"
        for shade in range(8):
            frame = av.VideoFrame.from_ndarray(np.full((64, 64, 3), 30 * shade, np.uint8), format="rgb24")
            container.mux(stream.encode(frame))
        container.mux(stream.encode())
    url = "data:video/mp4;base64," + base64.b64encode(file.getvalue()).decode()
    content = [{"type": "video_url", "video_url": {"url": url}}, {"type": "text", "text": "when?"}]
    body = {
        "messages": [{"role": "user", "content": content}], "max_tokens": 60, "return_boxes": True,
        "response_format": {"type": "choice", "choice": ["from 0:00.5 to 1.5 s: it moves"]},
    }  # fmt: skip
    [choice] = server.post(CHAT, body).json()["choices"]
    assert choice["timestamps"] == [{"start_s": 0.5, "end_s": 1.5, "label": "it moves", "video": 0}]
