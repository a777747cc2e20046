"""The operator's routes for adapters: who may load which folders, and what a server answers meanwhile."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from adapter_folders import write_adapter
from live_server import MODEL, make_settings

from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.app import create_app

LOAD, UNLOAD, CHAT = "/v1/load_lora_adapter", "/v1/unload_lora_adapter", "/v1/chat/completions"
ADMIN = {"x-api-key": "root"}
MODULES = r"model.layers.*(self_attn|mlp)\.\w+_proj"


@pytest.fixture(scope="module")
def path(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("qwen2_5_vl")


@pytest.fixture(scope="module")
def engine(path: Path) -> Iterator[AsyncEngine]:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16, max_adapters=2)
    with AsyncEngine(str(path), backend_config=config) as engine:
        yield engine


@pytest.fixture(scope="module")
def root(path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with adapters that may be loaded, beside one that may not."""
    folder = tmp_path_factory.mktemp("served")
    for seed, name in enumerate(("allowed/one", "allowed/two", "secret")):
        write_adapter(path, folder / name, MODULES, seed=seed)
    (folder / "allowed" / "link").symlink_to(folder / "secret")
    for name, file in (("weights", "adapter_model.safetensors"), ("config", "adapter_config.json")):
        shutil.copytree(folder / "secret", folder / "allowed" / name)
        (folder / "allowed" / name / file).unlink()
        (folder / "allowed" / name / file).symlink_to(folder / "secret" / file)
    return folder / "allowed"


@pytest.fixture
async def http(engine: AsyncEngine, root: Path) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(engine, admin_keys=("root",), allowed_adapter_folders=(str(root),)) as client:
        client.headers.update(ADMIN)
        yield client
    for name in engine.adapter_names:
        engine.unload_adapter(name)


def connect(engine: AsyncEngine, **options: Any) -> httpx.AsyncClient:
    app = create_app(engine, make_settings(**options))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


async def chat(http: httpx.AsyncClient, model: str) -> httpx.Response:
    body = {"messages": [{"role": "user", "content": "go on"}], "max_tokens": 8, "temperature": 0, "ignore_eos": True}
    return await http.post(CHAT, json={**body, "model": model})


async def say(http: httpx.AsyncClient, model: str) -> str:
    answer = await chat(http, model)
    assert answer.status_code == 200 and answer.json()["model"] == model, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


async def list_names(http: httpx.AsyncClient) -> list[str]:
    return [card["id"] for card in (await http.get("/v1/models")).json()["data"]]


async def test_adapters_come_and_go(http: httpx.AsyncClient, root: Path) -> None:
    plain = await say(http, MODEL)
    assert (await chat(http, "first")).status_code == 404
    loaded = await http.post(LOAD, json={"lora_name": "first", "lora_path": "one"})
    assert loaded.status_code == 200 and loaded.json()["parent"] == MODEL, loaded.text
    loaded = await http.post(LOAD, json={"lora_name": "second", "lora_path": str(root / "two")})
    assert loaded.status_code == 200 and await list_names(http) == [MODEL, "first", "second"]
    answers = [await say(http, name) for name in (MODEL, "first", "second")]
    assert len(set(answers)) == 3 and answers[0] == plain
    gone = await http.post(UNLOAD, json={"lora_name": "first", "running": "abort"})
    assert gone.json() == {"id": "first", "object": "model", "deleted": True}
    assert await list_names(http) == [MODEL, "second"] and (await chat(http, "first")).status_code == 404
    assert await say(http, "second") == answers[2]


async def test_what_is_refused(http: httpx.AsyncClient, root: Path, caplog: pytest.LogCaptureFixture) -> None:
    async def refused(route: str, **body: Any) -> tuple[int, str]:
        answer = await http.post(route, json=body)
        return answer.status_code, answer.json()["error"]["message"]

    outside = str(root.parent / "secret")
    for place in (
        "../secret",
        "link",
        "weights",
        "config",
        outside,
        "nothing",
        ".",
        str(root),
        "\0",
        "one/../../secret",
    ):
        status, message = await refused(LOAD, lora_name="own", lora_path=place)
        assert status == 400 and "must be a folder inside --allowed-adapter-folders" in message, place
    assert (await refused(LOAD, lora_name=MODEL, lora_path="one"))[1].endswith("is the name of the model itself")
    for name in ("", " own", "a\nb", "x" * 300, 3):
        assert (await refused(LOAD, lora_name=name, lora_path="one"))[0] == 400, name
    (root / "empty").mkdir(exist_ok=True)
    status, message = await refused(LOAD, lora_name="own", lora_path="empty")
    assert status == 400 and "there is no adapter_config.json" in message
    assert await refused(UNLOAD, lora_name="own") == (400, "the adapter 'own' is not loaded: none is")
    assert (await http.post(LOAD, json={"lora_name": "own", "lora_path": "one"})).status_code == 200
    status, message = await refused(LOAD, lora_name="own", lora_path="two")
    assert status == 400 and "'own' is loaded already: unload it first" in message
    status, message = await refused(LOAD, lora_name="own", lora_path="one", load_inplace=True)
    assert status == 400 and "unload the adapter of this name first" in message
    assert not [row for row in caplog.records if row.exc_info], "the client is to blame, and no trace tells more"


async def test_no_folder_is_allowed_by_default(engine: AsyncEngine, root: Path) -> None:
    async with connect(engine, admin_keys=("root",)) as http:
        answer = await http.post(LOAD, json={"lora_name": "own", "lora_path": str(root / "one")}, headers=ADMIN)
        assert answer.status_code == 403 and "--allowed-adapter-folders" in answer.json()["error"]["message"]
    async with connect(engine, api_keys=("user",), allowed_adapter_folders=(str(root),)) as http:
        answer = await http.post(LOAD, json={"lora_name": "own", "lora_path": "one"}, headers={"x-api-key": "user"})
        assert answer.status_code == 403 and "--admin-keys" in answer.json()["error"]["message"]
    with pytest.raises(ConfigError, match="allowed_adapter_folders must be existing folders, got '/no/such'"):
        make_settings(allowed_adapter_folders=("/no/such",))


async def test_a_server_whose_engine_has_no_slots_says_so(path: Path, root: Path) -> None:
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    with AsyncEngine(str(path), backend_config=config) as engine:
        async with connect(engine, admin_keys=("root",), allowed_adapter_folders=(str(root),)) as http:
            answer = await http.post(LOAD, json={"lora_name": "own", "lora_path": "one"}, headers=ADMIN)
            assert answer.status_code == 400 and "--max-adapters" in answer.json()["error"]["message"]
