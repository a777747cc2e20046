"""What is read of a batch file, whatever is in it."""

from __future__ import annotations

import io
import json
from typing import Any

import pytest

from seesay.errors import ConfigError
from seesay.serving.batches.lines import BadLine, BatchLine, check_custom_ids, read_lines

CHAT = "/v1/chat/completions"


def line(custom_id: Any = "a", **changes: Any) -> bytes:
    value = {"custom_id": custom_id, "method": "POST", "url": CHAT, "body": {"messages": []}, **changes}
    return json.dumps({name: item for name, item in value.items() if item is not None}).encode()


def read(*lines: bytes, max_bytes: int = 1 << 20) -> list[BatchLine | BadLine]:
    return list(read_lines(io.BytesIO(b"\n".join(lines)), max_bytes=max_bytes))


def test_lines_keep_their_numbers_and_the_bytes_of_their_bodies() -> None:
    odd = b'{"body": {"b" : [1,\t2]}, "url":"/v1/embeddings","custom_id":"b","method":"post"}'
    assert read(b"\xef\xbb\xbf" + line(), b"", b"  \r", odd, b"") == [
        BatchLine(number=1, custom_id="a", url=CHAT, body=b'{"messages": []}'),
        BatchLine(number=4, custom_id="b", url="/v1/embeddings", body=b'{"b" : [1,\t2]}'),
    ]


BAD = [
    (b"nonsense", "invalid_json", None),
    (b'{"custom_id": "x", ', "invalid_json", None),
    (b"[1]", "invalid_json", None),
    (b"null", "invalid_json", None),
    (b'{"custom_id": "\xff"}', "invalid_custom_id", None),
    (b'{"custom_id": "x", "body": ' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001, "invalid_json", None),
    (b'{"custom_id": "x", "body": ' + b"[" * 100_000, "invalid_json", None),
    (line(None), "invalid_custom_id", None),
    (line(7), "invalid_custom_id", None),
    (line(""), "invalid_custom_id", None),
    (line("x" * 513), "invalid_custom_id", None),
    (line(method="GET"), "invalid_method", "a"),
    (line(method=None), "invalid_method", "a"),
    (line(url="/v1/models"), "invalid_url", "a"),
    (line(url=["/v1/models"]), "invalid_url", "a"),
    (line(url=None), "invalid_url", "a"),
    (line(body=[]), "invalid_body", "a"),
    (line(body=None), "invalid_body", "a"),
    (line(body={"stream": True}), "invalid_body", "a"),
    (line(body=0).replace(b"0", b'{"\\u0073tream": true}'), "invalid_body", "a"),
]


@pytest.mark.parametrize(("bad", "code", "custom_id"), BAD, ids=[str(bad[0][:40]) for bad in BAD])
def test_a_bad_line_is_told_and_ends_nothing(bad: bytes, code: str, custom_id: str | None) -> None:
    found, after = read(bad, line("b"))
    assert isinstance(found, BadLine) and isinstance(after, BatchLine)
    assert (found.number, found.code, found.custom_id) == (1, code, custom_id) and "line 1" in found.message
    assert len(found.message) < 500


def test_a_line_that_is_too_long_is_skipped_to_its_end() -> None:
    long, after = read(line(body={"x": "y" * 3_000_000}), line("b"), max_bytes=1000)
    assert isinstance(long, BadLine) and long.code == "line_too_long" and after.number == 2
    assert isinstance(after, BatchLine)


def test_a_stream_that_is_not_wanted_is_no_fault() -> None:
    assert isinstance(read(line(body={"stream": False, "messages": ["stream"]}))[0], BatchLine)


def check(*lines: bytes) -> int:
    return check_custom_ids(io.BytesIO(b"\n".join(lines)), max_bytes=1000)


def test_lines_are_counted_as_they_are_read() -> None:
    assert check(line("a"), b"", b"nonsense", line("x" * 2000), line("b"), line(None)) == 5


def test_a_custom_id_that_comes_again_is_told_with_the_lines() -> None:
    with pytest.raises(ConfigError, match=r"unique: lines 1 and 4 \('a'\), lines 3 and 5 \('b'\)$"):
        check(line("a"), b"nonsense", line("b"), line("a"), line("b"))
    with pytest.raises(ConfigError, match=r"lines 1 and 6 .* and 4 more$"):
        check(*[line("a")] * 10)
