"""Files and batches of a server, asked for with OpenAI's client: states, owners, restarts, cancelling."""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
from live_server import HeldEngine, LiveServer, make_settings, serve, wait_until
from openai.types import Batch

from seesay.engine.front.engine import AsyncEngine
from seesay.serving.openai.batches import MAX_UNFINISHED
from seesay.values import Usage

BODIES: dict[str, dict[str, Any]] = {
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 3},
    "/v1/completions": {"prompt": "hi", "max_tokens": 3},
    "/v1/embeddings": {"input": "hi"},
    "/v1/responses": {"input": "hi", "max_output_tokens": 3},
}
CHAT: Any = "/v1/chat/completions"


def make_input(*custom_ids: str, endpoint: str = CHAT, **body: Any) -> bytes:
    lines = [
        {"custom_id": custom_id, "method": "POST", "url": endpoint, "body": {**BODIES[endpoint], **body}}
        for custom_id in custom_ids
    ]
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


class Client(openai.OpenAI):
    """OpenAI's client, with the steps of a batch."""

    def __init__(self, server: LiveServer, key: str = "a") -> None:
        super().__init__(base_url=f"{server.url}/v1", api_key=key, timeout=60, max_retries=0)

    def upload(self, content: bytes) -> str:
        return self.files.create(file=("in.jsonl", io.BytesIO(content)), purpose="batch").id

    def begin(self, content: bytes, endpoint: Any = CHAT) -> str:
        file_id = self.upload(content)
        return self.batches.create(input_file_id=file_id, endpoint=endpoint, completion_window="24h").id

    def wait(self, batch_id: str, status: str = "completed") -> Batch:
        wait_until(lambda: self.batches.retrieve(batch_id).status == status)
        return self.batches.retrieve(batch_id)

    def read(self, file_id: str | None) -> dict[str | None, dict[str, Any]]:
        if file_id is None:
            return {}
        lines = [json.loads(line) for line in self.files.content(file_id).text.splitlines()]
        assert len({line["custom_id"] for line in lines}) == len(lines)
        return {line["custom_id"]: line for line in lines}


@pytest.fixture(scope="module")
def server(engine: AsyncEngine, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    folder = tmp_path_factory.mktemp("files") / "of a server"
    with serve(engine, make_settings(files_dir=str(folder), files_max_bytes=1 << 20, api_keys=("a", "b"))) as server:
        yield server


@pytest.fixture
def client(server: LiveServer) -> Iterator[Client]:
    with Client(server) as client:
        yield client


@pytest.mark.parametrize("endpoint", BODIES)
def test_a_batch_is_answered(client: Client, endpoint: Any) -> None:
    content = make_input("a", "b", endpoint=endpoint) + make_input("bad", endpoint=endpoint, model="x") + b"nonsense\n"
    batch = client.wait(client.begin(content, endpoint))
    assert batch.request_counts is not None and batch.request_counts.to_dict() == {
        "total": 4, "completed": 2, "failed": 2,
    }  # fmt: skip
    assert batch.created_at <= (batch.in_progress_at or 0) <= (batch.finalizing_at or 0) <= (batch.completed_at or 0)
    assert batch.expires_at == batch.created_at + 24 * 3600 and batch.endpoint == endpoint
    answers, errors = client.read(batch.output_file_id), client.read(batch.error_file_id)
    assert answers.keys() == {"a", "b"} and errors.keys() == {"bad", None}
    assert all(answer["response"]["status_code"] == 200 for answer in answers.values())
    assert errors["bad"]["response"]["status_code"] == 404 and errors[None]["error"]["line"] == 4


def test_a_line_for_another_endpoint_fails(client: Client) -> None:
    batch = client.wait(client.begin(make_input("a") + make_input("b", endpoint="/v1/embeddings")))
    assert client.read(batch.output_file_id).keys() == {"a"}
    assert client.read(batch.error_file_id)["b"]["error"]["code"] == "invalid_url"


@pytest.mark.parametrize(
    ("content", "code"), [(make_input("a", "b", "a"), "duplicate_custom_id"), (b"\n\n", "empty_file")]
)
def test_an_input_that_cannot_be_answered_fails_the_batch(client: Client, content: bytes, code: str) -> None:
    batch = client.wait(client.begin(content), "failed")
    assert batch.errors is not None and batch.errors.data is not None and batch.failed_at is not None
    assert [error.code for error in batch.errors.data] == [code]
    assert batch.output_file_id is None and batch.error_file_id is None


def test_files_are_stored_listed_and_deleted(client: Client) -> None:
    content = make_input("a")
    ids = [client.upload(content) for _ in range(3)]
    stored = client.files.retrieve(ids[0])
    assert (stored.bytes, stored.filename, stored.purpose) == (len(content), "in.jsonl", "batch")
    assert client.files.content(ids[0]).read() == content
    listed = [file.id for file in client.files.list(purpose="batch")]
    assert set(ids) <= set(listed)
    assert [file.id for file in client.files.list(purpose="batch", limit=2, order="asc")] == listed[::-1]
    assert client.files.delete(ids[0]).deleted
    for ask in (client.files.retrieve, client.files.content, client.files.delete):
        with pytest.raises(openai.NotFoundError):
            ask(ids[0])


def test_a_file_may_expire(client: Client) -> None:
    expiry: Any = {"anchor": "created_at", "seconds": 3600}
    stored = client.files.create(file=b"x", purpose="batch", expires_after=expiry)
    assert stored.expires_at == stored.created_at + 3600


def test_batches_are_listed_in_pages(client: Client) -> None:
    ids = [client.begin(make_input("a")) for _ in range(3)]
    listed = [batch.id for batch in client.batches.list(limit=2)]
    assert listed[:3] == ids[::-1] and len(set(listed)) == len(listed)
    for batch_id in ids:
        client.wait(batch_id)


def test_files_and_batches_belong_to_a_key(server: LiveServer, client: Client) -> None:
    batch = client.wait(client.begin(make_input("a")))
    assert batch.output_file_id is not None
    with Client(server, "b") as other:
        assert not other.files.list().data and not other.batches.list().data
        for file_id in (batch.input_file_id, batch.output_file_id):
            for ask in (other.files.retrieve, other.files.content, other.files.delete):
                with pytest.raises(openai.NotFoundError, match="there is no file"):
                    ask(file_id)
        for ask_batch in (other.batches.retrieve, other.batches.cancel):
            with pytest.raises(openai.NotFoundError, match="there is no batch"):
                ask_batch(batch.id)
        with pytest.raises(openai.BadRequestError, match="there is no file"):
            other.batches.create(input_file_id=batch.input_file_id, endpoint=CHAT, completion_window="24h")
    assert client.read(batch.output_file_id).keys() == {"a"}


@pytest.mark.parametrize("file_id", ["file-0123456789abcdef01234567", "file-x", "..%2f..%2flock", "file-*"])
def test_a_file_that_is_not_there(client: Client, file_id: str) -> None:
    with pytest.raises(openai.NotFoundError):
        client.files.retrieve(file_id)


@pytest.mark.parametrize(
    ("form", "param"),
    [
        ({"purpose": "fine-tune"}, "purpose"),
        ({"purpose": ""}, "purpose"),
        ({"odd": "1"}, "odd"),
        ({"expires_after[anchor]": "created_at"}, "expires_after[seconds]"),
        ({"expires_after[seconds]": "3600"}, "expires_after[anchor]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "1"}, "expires_after[seconds]"),
        ({"expires_after[anchor]": "created_at", "expires_after[seconds]": "٣٦٠٠"}, "expires_after[seconds]"),
    ],
    ids=str,
)
def test_a_wrong_upload_is_refused(server: LiveServer, form: dict[str, str], param: str) -> None:
    response = post_file(server, b"x", {"purpose": "batch", **form})
    assert response.status_code == 400 and response.json()["error"]["param"] == param, response.text


def post_file(server: LiveServer, content: bytes, form: dict[str, str]) -> httpx.Response:
    return httpx.post(
        f"{server.url}/v1/files", data=form, files={"file": content}, headers={"x-api-key": "a"}, timeout=60
    )


@pytest.mark.parametrize("body", [b"", b"{}", b"--x\r\n", b"--x\r\n\r\n--x--"])
def test_a_body_that_is_no_form_is_refused(server: LiveServer, body: bytes) -> None:
    for kind in ("application/json", "multipart/form-data; boundary=x", "multipart/form-data"):
        headers = {"x-api-key": "a", "content-type": kind}
        response = httpx.post(f"{server.url}/v1/files", content=body, headers=headers, timeout=60)
        assert response.status_code == 400, (kind, response.text)


WINDOW = "completion_window: must be 1 to 9999 minutes, hours or days, such as '30m', '24h' or '7d', got "


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"completion_window": "0h"}, f"{WINDOW}'0h'"),
        ({"completion_window": "24h\n"}, WINDOW),
        ({"completion_window": "soon"}, f"{WINDOW}'soon'"),
        ({"endpoint": "/v1/messages"}, "endpoint must be"),
    ],
    ids=str,
)
def test_a_wrong_batch_is_refused(client: Client, changes: dict[str, Any], message: str) -> None:
    options: Any = {"input_file_id": client.upload(b"x"), "endpoint": CHAT, "completion_window": "24h", **changes}
    with pytest.raises(openai.BadRequestError, match=message):
        client.batches.create(**options)


def test_uploads_end_where_the_folder_is_full(engine: AsyncEngine, tmp_path: Path) -> None:
    settings = make_settings(files_dir=str(tmp_path), files_max_bytes=60_000, max_file_bytes=50_000)
    with serve(engine, settings) as server:
        assert post_file(server, b"x" * 49_000, {"purpose": "batch"}).status_code == 200
        full = post_file(server, b"x" * 20_000, {"purpose": "batch"})
        assert full.status_code == 507 and full.json()["error"]["code"] == "storage_full"
        assert post_file(server, b"x" * 80_000, {"purpose": "batch"}).status_code == 413
        assert [path.stat().st_size for path in tmp_path.rglob("*.data")] == [49_000]


def test_a_server_without_a_folder_says_so(engine: AsyncEngine) -> None:
    with serve(engine) as server, Client(server) as client:
        asks: list[Callable[[], object]] = [client.files.list, lambda: client.upload(b"x"), client.batches.list]
        for ask in asks:
            with pytest.raises(openai.NotFoundError, match="--files-dir"):
                ask()


# --- while a batch runs ----------------------------------------------------------------------------------------------


@pytest.fixture
def held(engine: AsyncEngine) -> HeldEngine:
    return HeldEngine(engine)


def answer(held: HeldEngine) -> int:
    return held.answer({"text": "x", "token_ids": (1,), "finish_reason": "stop", "usage": Usage()})


def test_a_batch_survives_a_restart(held: HeldEngine, engine: AsyncEngine, tmp_path: Path) -> None:
    settings = make_settings(files_dir=str(tmp_path), max_concurrent_requests=4)
    names = [f"n{number}" for number in range(12)]
    with serve(held, settings) as server, Client(server) as client:
        batch_id = client.begin(make_input(*names))
        for _ in range(5):
            answer(held)
        wait_until(lambda: counts_of(client, batch_id)[0] >= 4)  # written, in whole or in part
    results = next(tmp_path.rglob("*.output.results"))
    done = results.read_bytes()
    num_done = done.count(b"\n")
    results.write_bytes(done + b'{"id":"batch_req_')
    with serve(engine, settings) as server, Client(server) as client:
        batch = client.wait(batch_id)
        assert client.read(batch.output_file_id).keys() == set(names) and batch.error_file_id is None
        assert client.files.content(batch.output_file_id or "").read().startswith(done)
    assert 4 <= num_done <= 5


def counts_of(client: Client, batch_id: str) -> tuple[int, int]:
    counts = client.batches.retrieve(batch_id).request_counts
    assert counts is not None
    return counts.completed, counts.failed


def test_a_batch_is_cancelled_and_keeps_what_it_has(held: HeldEngine, tmp_path: Path) -> None:
    settings = make_settings(files_dir=str(tmp_path), max_concurrent_requests=4)
    with serve(held, settings) as server, Client(server) as client:
        batch_id = client.begin(make_input(*map(str, range(10))))
        answer(held)
        with pytest.raises(openai.ConflictError):
            client.files.delete(client.batches.retrieve(batch_id).input_file_id)
        wait_until(lambda: any(path.stat().st_size for path in tmp_path.rglob("*.output.results")))
        cancelling = client.batches.cancel(batch_id)
        assert cancelling.status == "cancelling" and cancelling.cancelling_at is not None
        batch = client.wait(batch_id, "cancelled")
        assert len(client.read(batch.output_file_id)) == 1 and batch.cancelled_at is not None
        assert not held.aborted.empty(), "lines that were being answered are aborted"
        with pytest.raises(openai.ConflictError, match="it is cancelled"):
            client.batches.cancel(batch_id)
        assert client.files.delete(batch.input_file_id).deleted


def test_few_lines_run_beside_a_client(held: HeldEngine, tmp_path: Path) -> None:
    settings = make_settings(files_dir=str(tmp_path), max_concurrent_requests=32)
    with serve(held, settings) as server, Client(server) as client:
        stream = client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hi"}], stream=True)
        wait_until(lambda: held.submitted.qsize() == 1)
        batch_id = client.begin(make_input(*map(str, range(30))))
        wait_until(lambda: held.submitted.qsize() == 5)
        time.sleep(0.3)
        assert held.submitted.qsize() == 5, "one request of a client, and four lines"
        answer(held)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in stream if chunk.choices) == "x"
        wait_until(lambda: held.submitted.qsize() == 30)
        for _ in range(30):
            answer(held)
        assert len(client.read(client.wait(batch_id).output_file_id)) == 30


def test_a_key_has_so_many_batches_and_no_more(held: HeldEngine, tmp_path: Path) -> None:
    with (
        serve(held, make_settings(files_dir=str(tmp_path))) as server,
        Client(server) as client,
        Client(server, "b") as other,
    ):
        options: Any = {"input_file_id": client.upload(make_input("a")), "endpoint": CHAT, "completion_window": "24h"}
        batches = [client.batches.create(**options) for _ in range(MAX_UNFINISHED)]
        with pytest.raises(openai.RateLimitError, match="100 batches of this key"):
            client.batches.create(**options)
        other.begin(make_input("a"))
        for batch in (batches[0], batches[70]):  # one that runs, and one that waits for its turn
            client.batches.cancel(batch.id)
            client.wait(batch.id, "cancelled")
            client.batches.create(**options)


def test_one_of_two_servers_runs_the_batches_of_a_folder(engine: AsyncEngine, tmp_path: Path) -> None:
    settings = make_settings(files_dir=str(tmp_path))
    with serve(engine, settings) as first, serve(engine, settings) as second:
        ids = []
        for server in (first, second) * 3:
            with Client(server) as client:
                ids.append(client.begin(make_input("a", "b")))
        with Client(second) as client:
            assert all(len(client.read(client.wait(batch_id).output_file_id)) == 2 for batch_id in ids)
