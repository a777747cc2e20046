"""One engine and one server for all tests of HTTP; the engine's model is tiny and random."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from live_server import LiveServer, make_settings, serve

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.serving.app import create_app


@pytest.fixture(scope="session")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=config, media_limits=MediaLimits(allow_local_paths=False)) as engine:
        yield engine


@pytest.fixture(scope="session")
def server(engine: AsyncEngine) -> Iterator[LiveServer]:
    with serve(engine) as server:
        yield server


@pytest.fixture(scope="module")
def app(engine: AsyncEngine) -> FastAPI:
    """The app of a test file; to build one for each test would take longer than most tests."""
    return create_app(engine, make_settings())


@pytest.fixture
async def http(app: FastAPI) -> httpx.AsyncClient:
    """A client of the app in this process, without a network."""
    transport = httpx.ASGITransport(app=app)
    return httpx.AsyncClient(transport=transport, base_url="http://test", timeout=60)
