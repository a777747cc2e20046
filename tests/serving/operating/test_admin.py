"""The operator's routes: sleep, new weights, and who may ask for them."""

from __future__ import annotations

import base64
import json
import logging
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch
from live_server import MODEL, make_settings
from other_weights import copy_with_other_weights, read_weights
from safetensors.torch import save

from seesay.config import EngineConfig, MediaLimits
from seesay.engine.front.engine import AsyncEngine
from seesay.errors import ConfigError
from seesay.serving.app import create_app

CHAT = "/v1/chat/completions"
ADMIN = {"x-api-key": "root"}
ROUTES = [
    "/sleep",
    "/wake_up",
    "/wakeup",
    "/update_weights",
    "/terminate",
    "/v1/load_lora_adapter",
    "/v1/unload_lora_adapter",
]
BODY: dict[str, Any] = {
    "messages": [{"role": "user", "content": "the game is in the frame"}],
    "max_tokens": 10,
    "temperature": 0,
    "ignore_eos": True,
}


@pytest.fixture(scope="module")
def engine(tiny_checkpoint: Callable[[str], Path]) -> Iterator[AsyncEngine]:
    """One that is not shared with other files: its weights change."""
    config = EngineConfig(session_len=512, device_type="cpu", block_size=16)
    path = str(tiny_checkpoint("qwen2_5_vl"))
    with AsyncEngine(path, backend_config=config, media_limits=MediaLimits(allow_local_paths=False)) as engine:
        yield engine


@pytest.fixture(scope="module")
def root(tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with weights that may be loaded, beside one with weights that may not."""
    folder = tmp_path_factory.mktemp("weights")
    first = tiny_checkpoint("qwen2_5_vl")
    copy_with_other_weights(first, folder / "allowed" / "other")
    copy_with_other_weights(first, folder / "secret", seed=2)
    (folder / "allowed" / "first").symlink_to(folder / "secret")
    (folder / "allowed" / "file").write_text("")
    return folder / "allowed"


def connect(engine: AsyncEngine, **options: Any) -> httpx.AsyncClient:
    app = create_app(engine, make_settings(**options))
    return httpx.AsyncClient(transport=httpx.ASGITransport(app=app), base_url="http://test", timeout=60)


@pytest.fixture
async def http(
    engine: AsyncEngine, root: Path, tiny_checkpoint: Callable[[str], Path]
) -> AsyncIterator[httpx.AsyncClient]:
    async with connect(engine, admin_keys=("root",), allowed_weights_path=str(root)) as client:
        client.headers.update(ADMIN)
        yield client
    engine.update_weights(tiny_checkpoint("qwen2_5_vl"))
    engine.wake_up()


async def chat(http: httpx.AsyncClient) -> str:
    answer = await http.post(CHAT, json={**BODY, "model": MODEL})
    assert answer.status_code == 200, answer.text
    text: str = answer.json()["choices"][0]["message"]["content"]
    return text


def error_of(answer: httpx.Response) -> tuple[int, str, str]:
    error = answer.json()["error"]
    return answer.status_code, error["code"], error["message"]


@pytest.mark.parametrize("route", ROUTES)
async def test_who_may_ask(route: str, engine: AsyncEngine) -> None:
    body = {"safetensors": "AAAA"}
    async with connect(engine) as http:
        answer = await http.post(route, json=body, headers={"x-api-key": "anything"})
        assert error_of(answer)[:2] == (403, "no_admin_keys") and "--admin-keys" in answer.text
    async with connect(engine, api_keys=("user",)) as http:
        assert (await http.post(route, json=body)).status_code == 401
        answer = await http.post(route, json=body, headers={"x-api-key": "user"})
        assert error_of(answer)[:2] == (403, "no_admin_keys")
    for keys in ((), ("user",)):
        async with connect(engine, api_keys=keys, admin_keys=("root", "other")) as http:
            for headers in ({}, {"x-api-key": "user"}, {"x-api-key": "rooT"}, {"authorization": "Basic root"}):
                assert (await http.post(route, json=body, headers=headers)).status_code == 401, headers
            if keys:
                assert (await http.get("/is_sleeping")).status_code == 401
                assert (await http.get("/v1/models", headers=ADMIN)).status_code == 200
            assert (await http.get("/is_sleeping", headers=ADMIN)).status_code == 200
    assert not engine.status.asleep and engine.status.epoch == 0


def test_an_admin_key_is_no_users_key() -> None:
    with pytest.raises(ConfigError, match="admin_keys: a key must not be one of api_keys"):
        make_settings(api_keys=("a", "b"), admin_keys=("b",))
    with pytest.raises(ConfigError, match="admin_keys: a key must be non-empty"):
        make_settings(admin_keys=("",))
    with pytest.raises(ConfigError, match="allowed_weights_path must be an existing folder"):
        make_settings(allowed_weights_path="/no/such")
    assert "root" not in repr(make_settings(admin_keys=("root",)))


@pytest.mark.parametrize(("level", "wake"), [(1, "/wake_up"), (2, "/wakeup")])
async def test_sleep_and_wake_up(level: int, wake: str, http: httpx.AsyncClient) -> None:
    before = await chat(http)
    slept = await http.post(f"/sleep?level={level}")
    assert slept.json()["is_sleeping"] is True and slept.json()["asleep"] == ["weights", "kv_cache"]
    assert slept.json() == (await http.get("/is_sleeping")).json()
    refused = await http.post(CHAT, json={**BODY, "model": MODEL})
    status, code, message = error_of(refused)
    assert (status, code) == (503, "sleeping") and "/wake_up" in message and refused.headers["retry-after"] == "5"
    health = await http.get("/health")
    assert health.status_code == 200 and health.json()["status"] == "sleeping"
    assert error_of(await http.get("/ready"))[:2] == (503, "sleeping")
    assert 'seesay_sleeping{part="kv_cache"} 1.0' in (await http.get("/metrics")).text
    assert (await http.post("/reset_caches")).status_code == 200
    assert (await http.post(f"{wake}?tags=weights")).json()["asleep"] == ["kv_cache"]
    assert error_of(await http.post(CHAT, json={**BODY, "model": MODEL}))[:2] == (503, "sleeping")
    assert (await http.post(f"{wake}?tags=weights&tags=kv_cache")).json()["is_sleeping"] is False
    assert (await http.post(wake)).status_code == 200
    assert 'seesay_sleeping{part="kv_cache"} 0.0' in (await http.get("/metrics")).text
    assert (await http.get("/health")).json()["status"] == "ok"
    assert (await http.get("/ready")).json() == (await http.get("/health")).json()
    assert await chat(http) == before


@pytest.mark.parametrize(
    ("request_line", "message"),
    [
        ("/sleep?level=3", "level must be 1 or 2, got 3"),
        ("/sleep?level=x", "level must be a valid integer, unable to parse string as an integer, got 'x'"),
        ("/sleep?mode=abort", "unknown query parameter: 'mode'; known are level, tags, running"),
        ("/sleep?tags=weights", "both parts sleep together"),
        ("/sleep?running=now", "running must be 'finish' or 'abort', got 'now'"),
        ("/wake_up?tags=all", "tags must be of weights, kv_cache, got 'all'"),
        ("/sleep?level=1&level=2", "level: given more than once"),
        ("/wake_up?level=1", "unknown query parameter: 'level'"),
    ],
)
async def test_wrong_options(request_line: str, message: str, http: httpx.AsyncClient) -> None:
    status, _, found = error_of(await http.post(request_line))
    assert status == 400 and message in found
    assert (await http.get("/is_sleeping")).json()["is_sleeping"] is False


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"folder": 3}, "folder must be a string, got 3"),
        ({"folder": ""}, "folder must have at least 1 character, got ''"),
        ({"folder": ["x" * 9000]}, "folder must be a string, got a list"),
        ({"folder": 10**4000}, "folder must be a string, got a number of many digits"),
    ],
)
async def test_a_wrong_field_is_named_with_its_value(
    body: dict[str, Any], message: str, http: httpx.AsyncClient
) -> None:
    assert error_of(await http.post("/update_weights", json=body))[2] == message


@pytest.mark.parametrize("path", ["/sleep", "/wake_up", "/reset_caches"])
async def test_options_in_a_body_are_not_ignored(path: str, http: httpx.AsyncClient) -> None:
    status, _, message = error_of(await http.post(path, json={"level": 2}))
    assert status == 400 and message.startswith(f"{path} takes no body: ")
    assert (await http.get("/is_sleeping")).json()["is_sleeping"] is False
    assert (await http.post("/reset_caches", json={})).status_code == 200


async def test_requests_while_asleep_are_no_errors_in_the_log(
    http: httpx.AsyncClient, caplog: pytest.LogCaptureFixture
) -> None:
    await http.post("/sleep")
    assert error_of(await http.post(CHAT, json={**BODY, "model": MODEL}))[:2] == (503, "sleeping")
    await http.post("/wake_up")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


async def test_weights_of_a_folder(http: httpx.AsyncClient, root: Path) -> None:
    before = await chat(http)
    epoch = (await http.get("/health")).json()["weights_epoch"]
    for number, folder in enumerate(("other", str(root / "other")), start=1):
        answer = await http.post("/update_weights", json={"folder": folder, "running": "abort"})
        assert answer.status_code == 200, answer.text
        assert answer.json()["weights_epoch"] == epoch + number
    assert await chat(http) != before
    assert f"seesay_weights_epoch {epoch + 2:.1f}" in (await http.get("/metrics")).text


@pytest.mark.parametrize(
    "folder", ["../secret", "first", "/etc", "file", "no such", "other/../../secret", "a\0b", "..", "x" * 5000]
)
async def test_folders_that_are_not_allowed(folder: str, http: httpx.AsyncClient) -> None:
    status, _, message = error_of(await http.post("/update_weights", json={"folder": folder}))
    assert status == 400 and "inside --allowed-weights-path" in message
    assert (await http.get("/health")).json()["status"] == "ok"


async def test_the_allowed_folder_itself_is_not_a_model(http: httpx.AsyncClient) -> None:
    status, _, message = error_of(await http.post("/update_weights", json={"folder": "."}))
    assert status == 400 and "not a model folder" in message


async def test_no_folder_is_read_unless_one_is_allowed(engine: AsyncEngine, root: Path) -> None:
    async with connect(engine, admin_keys=("root",)) as http:
        answer = await http.post("/update_weights", json={"folder": str(root / "other")}, headers=ADMIN)
        assert error_of(answer)[:2] == (403, "folders_not_allowed") and "--allowed-weights-path" in answer.text


def encode(weights: dict[str, torch.Tensor]) -> str:
    return base64.b64encode(save(weights)).decode()


async def test_weights_in_pieces(http: httpx.AsyncClient, root: Path) -> None:
    before = await chat(http)
    await http.post("/update_weights", json={"folder": "other"})
    expected = await chat(http)
    weights = read_weights(root / "other")
    names = sorted(weights)
    await http.post("/update_weights", json={"safetensors": encode(read_weights(root.parent / "secret"))})
    assert await chat(http) not in (before, expected)
    pieces = [names[::3], names[1::3], names[2::3]]
    for piece in pieces:
        body = {"safetensors": encode({name: weights[name] for name in piece}), "finished": piece is pieces[-1]}
        answer = await http.post("/update_weights", json=body)
        assert answer.status_code == 200, answer.text
        if piece is not pieces[-1]:
            assert await chat(http) not in (before, expected)
    assert await chat(http) == expected
    some = {name: tensor for name, tensor in weights.items() if "layers.0." in name}
    body = {"safetensors": encode(some), "partial": True}
    assert (await http.post("/update_weights", json=body)).status_code == 200
    assert await chat(http) == expected


def write_header(header: Any, data: bytes = b"") -> str:
    raw = header if isinstance(header, bytes) else json.dumps(header).encode()
    return base64.b64encode(len(raw).to_bytes(8, "little") + raw + data).decode()


ONE = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
HOSTILE: dict[str, tuple[dict[str, Any], str]] = {
    "a pickle": ({"serialized_named_tensors": "gASVAAAA"}, "it is a pickle, which can run code"),
    "a bucket": ({"load_format": "flattened_bucket", "safetensors": "AAAA"}, "load_format is not supported"),
    "nothing": ({}, "give exactly one of folder and safetensors"),
    "both": ({"folder": "other", "safetensors": "AAAA"}, "give exactly one of folder and safetensors"),
    "an unfinished folder": ({"folder": "other", "finished": False}, "finished: false is for pieces"),
    "no base64": ({"safetensors": "a*b"}, "safetensors is not base64"),
    "too short": ({"safetensors": "AAAA"}, "truncated or not safetensors"),
    "a huge header": ({"safetensors": base64.b64encode(b"\xff" * 16).decode()}, "truncated or not safetensors"),
    "no JSON": ({"safetensors": write_header(b"{{{{")}, "the safetensors header is damaged"),
    "deep JSON": ({"safetensors": write_header(b"[" * 200_000)}, "the safetensors header is damaged"),
    "a list": ({"safetensors": write_header([])}, "the safetensors header is damaged"),
    "twice": ({"safetensors": write_header(b'{"a":1,"a":1}')}, "names a tensor twice"),
    "beyond its data": ({"safetensors": write_header({"lm_head.weight": ONE})}, "ends at byte 4"),
    "backwards": ({"safetensors": write_header({"a": {**ONE, "data_offsets": [4, 0]}}, b"0" * 4)}, "takes -4 bytes"),
    "a negative shape": ({"safetensors": write_header({"a": {**ONE, "shape": [-1]}}, b"0" * 4)}, "is damaged"),
    "an unknown type": ({"safetensors": write_header({"a": {**ONE, "dtype": "PY"}}, b"0" * 4)}, "unknown dtype 'PY'"),
    "an unknown name": ({"safetensors": write_header({"a": ONE}, b"0" * 4)}, "unexpected tensor 'a'"),
    "a wrong shape": ({"safetensors": write_header({"lm_head.weight": ONE}, b"0" * 4)}, "has shape [1]"),
    "an empty file": ({"safetensors": write_header({})}, "no tensors were given"),
    "an unknown field": ({"folder": "other", "flush_cache": True}, "unknown field: flush_cache"),
}


@pytest.mark.parametrize("name", HOSTILE)
async def test_hostile_bodies(name: str, http: httpx.AsyncClient) -> None:
    body, message = HOSTILE[name]
    before, epoch = await chat(http), (await http.get("/health")).json()["weights_epoch"]
    status, _, found = error_of(await http.post("/update_weights", json=body))
    assert status == 400 and message in found, found
    assert (await http.get("/health")).json() == {"status": "ok", "weights_epoch": epoch, "frontends_up": 1}
    assert await chat(http) == before


async def test_an_error_drops_the_pieces_before(http: httpx.AsyncClient, root: Path) -> None:
    weights = read_weights(root / "other")
    piece = {"safetensors": encode(weights), "finished": False}
    assert (await http.post("/update_weights", json=piece)).status_code == 200
    status, _, message = error_of(await http.post("/update_weights", json=piece))
    assert status == 400 and "was given twice" in message
    head = {"safetensors": encode({"lm_head.weight": weights["lm_head.weight"]})}
    status, _, message = error_of(await http.post("/update_weights", json=head))
    assert status == 400 and "is missing" in message, "the pieces before are forgotten"


async def test_plain_http_of_a_browser_is_no_admin(http: httpx.AsyncClient) -> None:
    """A page that a browser shows can send a POST without a body anywhere, but no key of ours."""
    del http.headers["x-api-key"]
    answer = await http.post("/sleep", headers={"origin": "http://evil.example"})
    assert answer.status_code == 401
