"""Large and odd request bodies against a live server: how long each delays somebody else's stream, and its memory.

    python benchmarks/hostile_bodies.py [MODEL] [--size-mb 0.05 0.25 0.5 2 20] [--repeats 3] [--only TEXT]

Starts `seesay serve api_server` in a process of its own, on a free port of loopback. While a neighbour reads one
stream, another client sends one body after another: for every route of the server's OpenAPI document that takes JSON,
and every text, list and object in its schema, that field grown to each of `--size-mb` in every way that may hurt
(`SHAPES`); then legitimate bodies with large pictures. Prints a JSON line per body: the status, how long the answer
took, `stall_ms` (the neighbour's longest gap between two tokens meanwhile, less its usual longest gap) and `memory`
(the growth of the server's peak memory, as a multiple of the body). Noise of the machine only ever adds to a stall, so
it is the least of `--repeats`; memory is the most. Ends with status 1 when a stall is longer than `--max-stall-ms`,
when memory grew by more than 4 times the body (and by more than 32 MB, which a small body may take), or with a 5xx.

    python benchmarks/hostile_bodies.py --mixed 300 [--clients 8]

Runs a mixed load instead: chats with pictures and without, by so many clients, for so many seconds, while one hostile
client sends such bodies, broken requests and long prompts all the time. Prints the clients' longest gap between tokens
and their times to the first token, before it begins and beside it.
"""

from __future__ import annotations

import argparse
import base64
import contextlib
import http.client
import io
import itertools
import json
import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx
import numpy as np
from PIL import Image
from serve_load import resident_bytes, running_server

MAX_MEMORY_RATIO = 4.0
SMALL_GROWTH_BYTES = 32 << 20
QUIET_S = 0.5
"""The neighbour's usual longest gap is measured over this time before each body."""

_HOLE = '"@hole@"'


# --- bodies ----------------------------------------------------------------------------------------------------------


def _repeat(opening: bytes, item: bytes, closing: bytes) -> Callable[[int], bytes]:
    return lambda size: opening + item * ((size - len(opening) - len(closing)) // len(item)) + closing


def _members(size: int) -> bytes:
    return b"{" + b",".join(b'"%08d":0' % index for index in range(size // 13)) + b"}"


def _nest(size: int) -> bytes:
    return b"[" * (size // 2) + b"]" * (size // 2)


SHAPES: dict[str, Callable[[int], bytes]] = {
    "text": _repeat(b'"', b"how many red circles? ", b'"'),
    "one word": _repeat(b'"', b"a", b'"'),
    "wide text": _repeat(b'"', b"how many red circles? ", '😀"'.encode()),
    "escapes": _repeat(b'"', b'\\"', b'"'),
    "numbers": _repeat(b"[", b"3,", b"3]"),
    "large numbers": _repeat(b"[", b"1" * 4000 + b",", b"3]"),
    "texts": _repeat(b"[", b'"a",', b'"a"]'),
    "lists": _repeat(b"[", b"[],", b"[]]"),
    "objects": _repeat(b"[", b"{},", b"{}]"),
    "members": _members,
    "nesting": _nest,
}
_TEXT_SHAPES = ("text", "one word", "wide text", "escapes", "numbers", "lists")
_LIST_SHAPES = ("text", "numbers", "large numbers", "texts", "lists", "objects", "nesting")
_OBJECT_SHAPES = ("members", "lists", "nesting", "text")


@dataclass(frozen=True)
class Case:
    """A way to make a body for `path`. `make(size)` has about so many bytes."""

    path: str
    field: str
    shape: str
    make: Callable[[int], bytes]


def find_cases(openapi: Mapping[str, Any]) -> Iterator[Case]:
    """Every text, list and object field of every route, in each shape that is odd for its type."""
    schemas = openapi["components"]["schemas"]
    for path, operations in openapi["paths"].items():
        content = operations.get("post", {}).get("requestBody", {}).get("content", {})
        if "application/json" in content:
            schema = Schema(content["application/json"]["schema"], schemas)
            minimal = schema.example()
            for field, kinds, item, fill in schema.fields():
                for shape in dict.fromkeys(itertools.chain.from_iterable(kinds)):
                    yield Case(path, field, shape, _filling(fill(minimal), SHAPES[shape]))
                if item is not None:
                    valid = _repeat(b"[", json.dumps(item).encode() + b",", json.dumps(item).encode() + b"]")
                    yield Case(path, field, "valid items", _filling(fill(minimal), valid))


def _filling(body: Any, shape: Callable[[int], bytes]) -> Callable[[int], bytes]:
    head, _, tail = json.dumps(body).partition(_HOLE)
    return lambda size: head.encode() + shape(max(16, size - len(head) - len(tail))) + tail.encode()


Fill = Callable[[Any], Any]


@dataclass(frozen=True)
class Schema:
    """A JSON schema, with the named ones it refers to."""

    schema: Mapping[str, Any]
    named: Mapping[str, Any]

    def options(self) -> list[Schema]:
        """The alternatives, references resolved."""
        schema = self.schema
        while "$ref" in schema:
            schema = self.named[schema["$ref"].rpartition("/")[2]]
        found = schema.get("anyOf") or schema.get("oneOf")
        if found:
            return [option for one in found for option in Schema(one, self.named).options()]
        return [Schema(schema, self.named)]

    def example(self) -> Any:
        """A small value of the first alternative that is not null: the required fields alone."""
        schema = next((one.schema for one in self.options() if one.schema.get("type") != "null"), {})
        if "const" in schema or "enum" in schema:
            return schema.get("const", schema.get("enum", [None])[0])
        match schema.get("type"):
            case "object":
                properties = {k: Schema(v, self.named) for k, v in schema.get("properties", {}).items()}
                example = {name: properties[name].example() for name in schema.get("required", ())}
                if "role" in properties and "content" in properties:
                    example |= {"role": "user", "content": "hi"}
                return example
            case "array":
                return [Schema(schema.get("items", {}), self.named).example()]
            case "integer" | "number":
                return 3
            case "boolean":
                return False
            case _:
                return "hi"

    def fields(self, name: str = "") -> Iterator[tuple[str, list[tuple[str, ...]], Any, Fill]]:
        """(name, shapes, a valid item of a list, how to put a hole there into an example) per text, list or object."""
        kinds = []
        item: Any = None
        for option in self.options():
            match option.schema.get("type"):
                case "string" if "const" not in option.schema and "enum" not in option.schema:
                    kinds.append(_TEXT_SHAPES)
                case "array":
                    kinds.append(_LIST_SHAPES)
                    item = Schema(option.schema.get("items", {}), self.named).example()
                case "object":
                    kinds.append(_OBJECT_SHAPES)
        if kinds and name:
            yield name, kinds, item, lambda _: json.loads(_HOLE)
        for option in self.options():
            yield from option._inner_fields(name)

    def _inner_fields(self, name: str) -> Iterator[tuple[str, list[tuple[str, ...]], Any, Fill]]:
        if self.schema.get("type") == "array":
            items = Schema(self.schema.get("items", {}), self.named)
            for inner, kinds, item, fill in items.fields(f"{name}[]"):
                yield inner, kinds, item, lambda _, fill=fill: [fill(items.example())]
        elif self.schema.get("type") == "object":
            base = self.example()
            for key, schema in self.schema.get("properties", {}).items():
                value = Schema(schema, self.named)
                for inner, kinds, item, fill in value.fields(f"{name}.{key}" if name else key):
                    yield (
                        inner,
                        kinds,
                        item,
                        lambda outer, key=key, value=value, fill=fill, base=base: {
                            **(outer if isinstance(outer, dict) else base),
                            key: fill(value.example()),
                        },
                    )


def picture_cases() -> Iterator[Case]:
    """Bodies as large as the others that are nothing but one picture, which is answered."""

    def make(size: int, wrap: Callable[[str], Any]) -> bytes:
        side = int((size * 0.75 / 3) ** 0.5)
        noise = np.random.default_rng(0).integers(0, 256, (side, side, 3), dtype=np.uint8)
        file = io.BytesIO()
        Image.fromarray(noise).save(file, "PNG", compress_level=0)
        return json.dumps(wrap(base64.b64encode(file.getvalue()).decode())).encode()

    def chat(data: str) -> Any:
        url = {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}
        return {"messages": [{"role": "user", "content": [url]}], "max_tokens": 1}

    def message(data: str) -> Any:
        source = {"type": "base64", "media_type": "image/png", "data": data}
        return {"messages": [{"role": "user", "content": [{"type": "image", "source": source}]}], "max_tokens": 1}

    for path, wrap in (("/v1/chat/completions", chat), ("/v1/messages", message)):
        yield Case(path, "messages", "one picture", lambda size, wrap=wrap: make(size, wrap))


# --- clients ---------------------------------------------------------------------------------------------------------


class Neighbour:
    """A client that reads one long stream after another, and notes when each token came."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._times: list[float] = []
        self._is_over = False
        self.failure: Exception | None = None
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        body = {"messages": [{"role": "user", "content": "hi"}], "stream": True, "ignore_eos": True, "max_tokens": 3000}
        try:
            with httpx.Client(base_url=self._url, timeout=60) as client:
                while not self._is_over:
                    with client.stream("POST", "/v1/chat/completions", json={**body, "seed": 1}) as response:
                        response.raise_for_status()
                        for line in response.iter_lines():
                            if line:
                                self._times.append(time.perf_counter())
                            if self._is_over:
                                return
        except Exception as error:
            self.failure = error

    def longest_gap_s(self, since: float, until: float) -> float:
        """The longest time between two tokens of which the later came after `since`, and the earlier before `until`."""
        if self.failure is not None:
            raise self.failure
        while not self._times or self._times[-1] <= until:  # whatever holds it up now began before
            time.sleep(0.001)
        times = list(self._times)
        gaps = [b - a for a, b in itertools.pairwise(times) if b > since and a < until]
        return max(gaps)

    def close(self) -> None:
        self._is_over = True
        self._thread.join(60)


def post(url: str, path: str, body: bytes) -> tuple[int, bytes]:
    """The status and the answer. Sends without a copy, and the GIL is free meanwhile."""
    address = urlsplit(url)
    connection = http.client.HTTPConnection(address.hostname or "", address.port, timeout=600)
    try:
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # refused before all of it was sent
            connection.request("POST", path, body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        return response.status, response.read()
    except ConnectionResetError:
        return 0, b""
    finally:
        connection.close()


# --- one body after another ------------------------------------------------------------------------------------------


def read_peak_bytes(pid: int) -> int:
    """The most memory that a process had at once since `reset_peak`."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def reset_peak(pid: int) -> None:
    Path(f"/proc/{pid}/clear_refs").write_text("5")


def measure(case: Case, size: int, *, url: str, pid: int, neighbour: Neighbour, repeats: int) -> dict[str, Any]:
    """Send the body of a case `repeats` times, and take the figures."""
    body = case.make(size)
    stalls_s, seconds, growths, statuses = [], [], [], set()
    for _ in range(repeats):
        begun = time.perf_counter()
        time.sleep(QUIET_S)
        quiet_s = neighbour.longest_gap_s(begun, time.perf_counter())
        reset_peak(pid)
        before = resident_bytes(pid)
        started = time.perf_counter()
        status, answer = post(url, case.path, body)
        ended = time.perf_counter()
        stalls_s.append(neighbour.longest_gap_s(started, ended) - quiet_s)
        seconds.append(ended - started)
        growths.append(max(0, read_peak_bytes(pid) - before))
        statuses.add(status)
    return {
        "path": case.path,
        "field": case.field,
        "shape": case.shape,
        "body_mb": round(len(body) / 1e6, 2),
        "status": max(statuses),
        "code": _code_of(answer),
        "seconds": round(min(seconds), 3),
        "stall_ms": round(1e3 * max(0.0, min(stalls_s)), 1),
        "memory_mb": round(max(growths) / 1e6, 1),
        "memory": round(max(growths) / len(body), 2),
    }


def _code_of(answer: bytes) -> str | None:
    try:
        error = json.loads(answer[:100_000])["error"]
        return str(error.get("code") or error["message"][:60])
    except (ValueError, KeyError, TypeError):
        return None


def is_good(figure: Mapping[str, Any], max_stall_ms: float) -> bool:
    grew_little = figure["memory"] <= MAX_MEMORY_RATIO or figure["memory_mb"] * 1e6 <= SMALL_GROWTH_BYTES
    return bool(figure["stall_ms"] <= max_stall_ms and grew_little and figure["status"] < 500)


def run_cases(url: str, pid: int, args: argparse.Namespace) -> bool:
    """Measure all cases, and print their figures. Returns whether all are good."""
    found = [*find_cases(httpx.get(f"{url}/openapi.json", timeout=60).json()), *picture_cases()]
    cases = {f"{case.path} {case.field} {case.shape}": case for case in found}  # of alternatives, one each
    chosen = [case for name, case in cases.items() if args.only in name]
    neighbour = Neighbour(url)
    figures = []
    try:
        for case, size_mb in itertools.product(chosen, args.size_mb):
            size = int(size_mb * 1e6)
            figure = measure(case, size, url=url, pid=pid, neighbour=neighbour, repeats=args.repeats)
            figures.append(figure)
            print(json.dumps({"what": "hostile_body", **figure}), flush=True)
    finally:
        neighbour.close()
    bad = [figure for figure in figures if not is_good(figure, args.max_stall_ms)]
    large = [figure["memory"] for figure in figures if figure["memory_mb"] * 1e6 > SMALL_GROWTH_BYTES]
    summary = {
        "what": "hostile_bodies",
        "bodies": len(figures),
        "longest_stall_ms": max(figure["stall_ms"] for figure in figures),
        "median_stall_ms": statistics.median(figure["stall_ms"] for figure in figures),
        "most_memory_mb": max(figure["memory_mb"] for figure in figures),
        "most_memory": max(large, default=0.0),
        "over_the_limits": len(bad),
    }
    print(json.dumps(summary))
    return not bad


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo", metavar="MODEL")
    parser.add_argument("--size-mb", type=float, nargs="+", default=[0.05, 0.25, 0.5, 2.0, 20.0])
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--only", default="", metavar="TEXT", help="bodies whose 'path field shape' contains this")
    parser.add_argument("--max-stall-ms", type=float, default=50.0)
    parser.add_argument("--server-options", default="", help="further options of `seesay serve api_server`")
    args = parser.parse_args()
    os.environ["MALLOC_MMAP_THRESHOLD_"] = str(1 << 20)  # or else the server grows into memory that it freed before
    with running_server(args.model, args.server_options.split()) as (url, pid):
        return 0 if run_cases(url, pid, args) else 1


if __name__ == "__main__":
    raise SystemExit(main())
