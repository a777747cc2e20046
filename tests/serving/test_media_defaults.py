"""What a server refuses of media when nobody configured it, over HTTP."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import httpx
import pytest
from live_server import serve

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.settings import ServerSettings


def make_bomb(width: int, height: int) -> bytes:
    """A valid PNG header and a few bytes of pixels that promise width by height."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    rows = zlib.compress(bytes(width + 1) * 300, 9)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", rows) + chunk(b"IEND", b"")


def ask(url: str, image: str) -> httpx.Response:
    content = [{"type": "image_url", "image_url": {"url": image}}, {"type": "text", "text": "what?"}]
    body = {"messages": [{"role": "user", "content": content}], "max_tokens": 3}
    return httpx.post(f"{url}/v1/chat/completions", json=body, timeout=60)


def test_a_decompression_bomb_is_refused_from_its_header(tiny_checkpoint: Callable[[str], Path]) -> None:
    settings = ServerSettings()
    assert settings.media == MediaLimits.for_server() and not settings.media.allow_local_paths
    config = EngineConfig(device_type="cpu")
    with (
        AsyncEngine(str(tiny_checkpoint("qwen2_5_vl")), backend_config=config, media_limits=settings.media) as engine,
        serve(engine, settings) as server,
    ):
        url = server.url
        bomb = base64.b64encode(make_bomb(10_000, 10_000)).decode()
        answer = ask(url, f"data:image/png;base64,{bomb}")
        assert answer.status_code == 400, answer.text
        assert "max_pixels" in answer.json()["error"]["message"]
        refused = ask(url, "file:///etc/passwd")
        assert refused.status_code == 400 and "root:" not in refused.text


def test_changes_keep_the_other_defaults() -> None:
    changed = MediaLimits.for_server(max_items=3)
    assert changed.max_items == 3 and changed.max_pixels == MediaLimits.for_server().max_pixels
    with pytest.raises(TypeError):
        MediaLimits.for_server(max_itemz=3)
