"""The file of results: what is in it after a crash, and what it refuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seesay.errors import ConfigError
from seesay.serving.batches.lines import BadLine, BatchLine
from seesay.serving.batches.results import Answered, ResultFile, make_answer_line, make_error_line

BAD = BadLine(number=7, custom_id=None, code="invalid_json", message="line 7: x")


def line(custom_id: str) -> BatchLine:
    return BatchLine(number=1, custom_id=custom_id, url="/v1/embeddings", body=b"{}")


def make(custom_id: str, body: bytes = b'{"a": 1}', status: int = 200) -> bytes:
    return make_answer_line(line(custom_id), Answered(status_code=status, request_id="r", body=body))


def write(path: Path, *results: tuple[bytes, bool]) -> None:
    with ResultFile(path) as file:
        for result, is_good in results:
            file.write(result, is_good=is_good)


def test_results_have_the_form_of_the_batch_format() -> None:
    answer: dict[str, Any] = json.loads(make("a", b'{\n "a": "x\\ny"\r\n}'))
    assert answer.pop("id").startswith("batch_req_")
    response = {"status_code": 200, "request_id": "r", "body": {"a": "x\ny"}}
    assert answer == {"custom_id": "a", "response": response, "error": None}
    failed = json.loads(make_error_line(BAD, BAD.code, BAD.message))
    assert failed["error"] == {"code": "invalid_json", "message": "line 7: x", "line": 7}
    assert failed["response"] is None and failed["custom_id"] is None


@pytest.mark.parametrize("body", [b"<html>\nno", b"\xff{", b"[" * 100_000, b""])
def test_a_body_that_is_not_json_becomes_a_text(body: bytes) -> None:
    result = make("a", body, 502)
    assert result.count(b"\n") == 1 and json.loads(result)["response"]["body"] == body.decode(errors="replace")


def test_each_result_is_in_the_file_at_once_and_found_again(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path) as file:
        for number, (result, is_good) in enumerate([(make("a"), True), (make("b", status=400), False)], start=1):
            file.write(result, is_good=is_good)
            assert path.read_bytes().count(b"\n") == number
    write(path, (make_error_line(BAD, BAD.code, BAD.message), False))
    with ResultFile(path) as file:
        assert [file.has(line(name)) for name in "abc"] == [True, True, False]
        assert file.has(BAD) and not file.has(BadLine(number=8, custom_id=None, code="", message=""))
        assert (file.num_good, file.num_bad, file.num_bytes) == (1, 2, path.stat().st_size)


def test_a_torn_result_is_removed_wherever_it_was_torn(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    first, second = make("a"), make("b")
    spaced = json.dumps(json.loads(second)).encode()
    assert spaced.startswith(b'{"id": "batch_req_')
    for torn in [second[:size] for size in range(1, len(second))] + [spaced[:size] for size in range(1, len(spaced))]:
        path.write_bytes(first + torn)
        write(path, (make("c"), True))
        ids = [json.loads(text)["custom_id"] for text in path.read_text().splitlines()]
        assert ids == ["a", "c"], torn


@pytest.mark.parametrize("content", [b"my notes", b"my notes\n", b'{"custom_id"', b"\0\0\n", b"[1]\n"])
def test_a_file_of_something_else_is_left_alone(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "out.jsonl"
    path.write_bytes(make("a") + content)
    with pytest.raises(ConfigError, match="line 2 is not the result of a batch"):
        ResultFile(path)
    assert path.read_bytes().endswith(content)


def test_two_runs_do_not_write_one_file(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    with ResultFile(path), pytest.raises(ConfigError, match="another process writes"):
        ResultFile(path)
    ResultFile(path).close()
    with pytest.raises(ConfigError, match="cannot write"):
        ResultFile(tmp_path)
