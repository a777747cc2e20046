"""The server that benchmarks start."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from live_server import make_settings, serve
from server_process import is_ready

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine


def test_a_server_with_keys_is_ready_for_who_has_one(tiny_checkpoint: Callable[[str], Path]) -> None:
    with AsyncEngine(str(tiny_checkpoint("llama")), backend_config=EngineConfig(device_type="cpu")) as engine:
        with serve(engine, make_settings(api_keys=("first", "second"))) as server:
            assert is_ready(server.url, "first") and is_ready(server.url, "second")
            assert not is_ready(server.url)
        with serve(engine) as server:
            assert is_ready(server.url) and is_ready(server.url, "any")
        assert not is_ready(server.url)
