"""Damaged PDFs against a live server: what the streams of others notice.

    python benchmarks/hostile_documents.py [MODEL] [--number 2000] [--senders 4] [--clients 1] [--rounds 4]

Starts `seesay serve api_server` in a process of its own. Clients read one stream after another, with an event for each
token, while others post PDFs of one to four pages, each with some bytes changed, cut out, doubled or with other
numbers. The two take turns, `--rounds` times without and with the PDFs, so that both see the same machine. Prints a
JSON line of each: the longest gap between two tokens, percentiles, and the same of `computed_ms`, the CPU time that the
server used during a gap: the rest of a gap is other processes, or waiting, also for the process that draws the pages.
Then the statuses of the answers to the PDFs, and the ratios. Ends with status 1 when a stream is lost, when a PDF gets
a 5xx or no answer, and when the server computed more than `--max-computed-ms` during one gap.
"""

from __future__ import annotations

import argparse
import base64
import io
import json
import os
import random
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import httpx
from hostile_load import HOSTILE_KEY, Notes, make_keys, neighbours
from PIL import Image, ImageDraw
from serve_load import make_pictures
from server_process import running_server

_NUM_ORIGINALS = 8
_SIZES = ((300, 400), (612, 792), (1240, 1754))
_PAUSE_S = 5.0


def make_pdfs(number: int, seed: int = 0) -> list[bytes]:
    """Return damaged PDFs. Every twentieth is whole."""
    rng = random.Random(seed)
    originals = [_draw(rng, num_pages=1 + index % 4) for index in range(_NUM_ORIGINALS)]
    return [
        original if index % 20 == 0 else damage(original, rng)
        for index, original in enumerate(rng.choices(originals, k=number))
    ]


def _draw(rng: random.Random, num_pages: int) -> bytes:
    pages = []
    for _ in range(num_pages):
        page = Image.new("RGB", rng.choice(_SIZES), "white")
        draw = ImageDraw.Draw(page)
        for line in range(12):
            draw.text((20, 20 + 30 * line), f"line {line} of a page, number {rng.randrange(10**6)}", fill="black")
        pages.append(page)
    file = io.BytesIO()
    pages[0].save(file, "PDF", save_all=True, append_images=pages[1:])
    return file.getvalue()


def damage(data: bytes, rng: random.Random) -> bytes:
    """Return a copy with up to a dozen faults."""
    result = bytearray(data)
    for _ in range(rng.randint(1, 12)):
        at = rng.randrange(max(1, len(result)))
        match rng.randrange(5):
            case 0:
                result[at : at + 1] = rng.randbytes(1)
            case 1:
                del result[at : at + rng.randint(1, 200)]
            case 2:
                result[at:at] = result[at : at + rng.randint(1, 400)]
            case 3:
                del result[at:]
            case _:
                digits = [index for index in range(at, min(at + 2000, len(result))) if 48 <= result[index] <= 57]
                for index in digits[: rng.randint(1, 8)]:
                    result[index] = rng.randrange(48, 58)
    return bytes(result)


class Senders:
    """Threads that post PDFs, one after another, until each was posted."""

    def __init__(self, url: str, pdfs: Sequence[bytes], number: int) -> None:
        self.statuses: Counter[int] = Counter()
        self._url = url
        self._bodies: Iterator[bytes] = iter([_make_body(pdf) for pdf in pdfs])
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run) for _ in range(number)]

    def run(self) -> None:
        """Post all of them."""
        for thread in self._threads:
            thread.start()
        for thread in self._threads:
            thread.join()

    def _run(self) -> None:
        headers = {"Authorization": f"Bearer {HOSTILE_KEY}", "Content-Type": "application/json"}
        with httpx.Client(base_url=self._url, timeout=300, headers=headers) as client:
            while True:
                with self._lock:
                    body = next(self._bodies, None)
                if body is None:
                    return
                try:
                    status = client.post("/v1/chat/completions", content=body).status_code
                except httpx.HTTPError:
                    status = 0
                with self._lock:
                    self.statuses[status] += 1


def _make_body(pdf: bytes) -> bytes:
    data = f"data:application/pdf;base64,{base64.b64encode(pdf).decode()}"
    content: list[dict[str, Any]] = [
        {"type": "file", "file": {"filename": "page.pdf", "file_data": data}},
        {"type": "text", "text": "describe this image"},
    ]
    return json.dumps({"messages": [{"role": "user", "content": content}], "max_tokens": 4}).encode()


@contextmanager
def _noting(url: str, pid: int, num_clients: int, pictures: Sequence[str], notes: Notes) -> Iterator[None]:
    """Add what neighbours notice during the block to `notes`."""
    with neighbours(url, pid, num_clients, pictures) as found:
        yield
    notes.gaps_s += found.gaps_s
    notes.computed_s += found.computed_s
    notes.first_s += found.first_s
    notes.num_finished += found.num_finished
    notes.lost += found.lost


def run(url: str, pid: int, args: argparse.Namespace) -> bool:
    """Print what the neighbours notice. Returns whether all is as it should be."""
    pdfs, pictures, statuses = make_pdfs(args.number), make_pictures(4), Counter[int]()
    quiet, beside = Notes(clock=0), Notes(clock=0)
    with neighbours(url, pid, args.clients, pictures):
        time.sleep(_PAUSE_S)  # not counted: caches fill
    for number in range(args.rounds):
        senders = Senders(url, pdfs[number :: args.rounds], args.senders)
        started = time.monotonic()
        with _noting(url, pid, args.clients, pictures, beside):
            senders.run()
        statuses += senders.statuses
        with _noting(url, pid, args.clients, pictures, quiet):
            time.sleep(time.monotonic() - started)
    summaries = {"without": quiet.summarize(), "beside_pdfs": beside.summarize()}
    for what, summary in summaries.items():
        print(json.dumps({"what": what, **summary}))
    print(json.dumps({"what": "pdfs", "statuses": dict(sorted(statuses.items()))}))
    names = ("longest_gap_ms", "longest_computed_ms")
    ratios = {name: round(summaries["beside_pdfs"][name] / max(summaries["without"][name], 1e-3), 2) for name in names}
    print(json.dumps({"what": "beside / without", **ratios}))
    is_quick = summaries["beside_pdfs"]["longest_computed_ms"] <= args.max_computed_ms
    is_right = not any(status == 0 or status >= 500 for status in statuses)
    return is_quick and is_right and bool(beside.num_finished) and not (quiet.lost or beside.lost)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", nargs="?", default="seesay-demo", metavar="MODEL")
    parser.add_argument("--number", type=int, default=2000, help="PDFs")
    parser.add_argument("--senders", type=int, default=4, help="clients that post them")
    parser.add_argument("--clients", type=int, default=1, help="clients that read streams")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--max-computed-ms", type=float, default=50.0)
    parser.add_argument("--server-options", default="", help="further options of `seesay serve api_server`")
    args = parser.parse_args(argv)
    os.environ["SEESAY_API_KEYS"] = ",".join(make_keys(args.clients))
    with running_server(args.model, args.server_options.split()) as (url, pid):
        return 0 if run(url, pid, args) else 1


if __name__ == "__main__":
    raise SystemExit(main())
