"""The process that opens and draws documents, `python -m seesay.processors.media.document_child`. Each job runs in a
fork of it within limits: a document that is hostile, damaged or slow costs that fork alone.

A message on the socket that is its standard input has JSON and three file descriptors: the document, a pipe for the
answer, and a pipe for the status of the fork (four bytes, as `waitpid` tells it). Who closes the reading end of the
last one wants no answer: the fork is killed. This process ends with the one that holds the other end of the socket.
"""

from __future__ import annotations

import ctypes
import importlib
import importlib.util
import io
import json
import math
import mmap
import os
import resource
import select
import signal
import socket
import struct
import time
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

if TYPE_CHECKING:
    from PIL import Image
    from pypdfium2 import PdfDocument, PdfPage

MEMORY_BYTES = 1 << 30
"""Most memory that a job takes beside what the process has and the pixels that it draws."""
CPU_S = 15
"""Most processor time of a job."""
WALL_S = 120.0
"""Its longest duration, on a busy machine."""
MAX_MESSAGE_BYTES = 1 << 16
_NICENESS = 10
_LOOK_MS = 20
_MAX_TEXT_CHARS = 100_000
"""Most characters of the text of one page."""
_MAX_TEXTS_CHARS = 2_000_000
ANSWER, REFUSAL = b"A", b"R"
HEAD = struct.Struct("<cdQ")
"""Of an answer: its kind, the processor time of the job in seconds, the bytes that follow."""
Job = Mapping[str, Any]


class _RefusedError(Exception):
    """The document cannot be used. The arguments are a kind and what is wrong with it."""


def main() -> None:
    warnings.simplefilter("ignore")  # Python 3.12 warns of forks beside threads; there are none here
    # Imported once, before any fork.
    from PIL import Image

    if importlib.util.find_spec("pypdfium2") is not None:  # TIFFs need none
        importlib.import_module("pypdfium2")
    Image.init()
    os.nice(_NICENESS)
    connection = socket.socket(fileno=0)
    statuses: dict[int, int] = {}  # pid → where its status goes
    while True:
        poll = select.poll()
        poll.register(connection, select.POLLIN)
        for status in statuses.values():
            poll.register(status, 0)
        events = dict(poll.poll(_LOOK_MS if statuses else None))
        if connection.fileno() in events:
            message, files, _, _ = socket.recv_fds(connection, MAX_MESSAGE_BYTES, 3)
            if not message:
                os._exit(0)
            pid = os.fork()
            if pid == 0:
                _work(json.loads(message), files[0], files[1])
            statuses[pid] = files[2]
            os.close(files[0])
            os.close(files[1])
        for pid, status in list(statuses.items()):
            if _has_ended(pid, status, is_wanted=not events.get(status)):
                del statuses[pid]


def _has_ended(pid: int, status: int, *, is_wanted: bool) -> bool:
    """End a fork that nobody waits for. Returns whether it has ended; its end is told then."""
    if not is_wanted:
        os.kill(pid, signal.SIGKILL)
    if os.waitpid(pid, os.WNOHANG)[0] != pid:
        return False
    with suppress(OSError):
        os.write(status, b"over")
    os.close(status)
    return True


def _work(job: Job, document: int, answer: int) -> NoReturn:
    """Do a job within limits, write its answer, and end this fork."""
    signal.setitimer(signal.ITIMER_REAL, WALL_S)
    kind, content = REFUSAL, b""
    try:
        _set_limits(job)
        jobs: Mapping[str, Callable[[Job, int], bytes]] = {
            "open pdf": _open_pdf,
            "open tiff": _open_tiff,
            "draw pdf": _draw_pdf,
            "draw tiff": _draw_tiff,
        }
        kind, content = ANSWER, jobs[job["kind"]](job, document)
    except _RefusedError as refused:
        content = json.dumps(refused.args).encode()
    except MemoryError:
        content = json.dumps(["memory", ""]).encode()
    except BaseException as error:  # whatever a parser raises
        content = json.dumps(["damaged", str(error)[:200] or type(error).__name__]).encode()
    with suppress(OSError), os.fdopen(answer, "wb") as pipe:
        pipe.write(HEAD.pack(kind, time.process_time(), len(content)))
        pipe.write(content)
    os._exit(0)


def _set_limits(job: Job) -> None:
    used = int(Path("/proc/self/statm").read_bytes().split()[0]) * resource.getpagesize()
    memory = used + MEMORY_BYTES + 8 * job["num_pixels"] + job["num_bytes"]
    for kind, most in (
        (resource.RLIMIT_AS, memory),
        (resource.RLIMIT_CPU, min(CPU_S, math.ceil(job["cpu_s"]))),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_NOFILE, 64),
    ):
        resource.setrlimit(kind, (most, most))


# --- PDF -------------------------------------------------------------------------------------------------------------


def _load_pdf(document: int) -> PdfDocument:
    import pypdfium2

    content = mmap.mmap(document, 0, access=mmap.ACCESS_COPY)
    try:
        pdf = pypdfium2.PdfDocument((ctypes.c_ubyte * len(content)).from_buffer(content))
    except pypdfium2.PdfiumError as error:
        code = getattr(error, "err_code", None)
        if code == pypdfium2.raw.FPDF_ERR_PASSWORD:
            raise _RefusedError("encrypted", "") from None
        raise _RefusedError("damaged", "PDFium cannot load it") from None
    with suppress(pypdfium2.PdfiumError):  # what is filled in is drawn; scripts are not run
        pdf.init_forms()
    return pdf


def _open_pdf(job: Job, document: int) -> bytes:
    """Return the number of pages, and the size in pixels and the text of those that are chosen."""
    pdf = _load_pdf(document)
    chosen = _choose(job, len(pdf))
    pages = []
    num_left = _MAX_TEXTS_CHARS
    for number in chosen:
        page = _load_page(pdf, number)
        width, height = (side * _scale_of(job) for side in page.get_size())
        if not (math.isfinite(width) and math.isfinite(height)):
            raise _RefusedError("damaged", f"page {number} has no size")
        text = _read_text(page)[:num_left] if job["takes_text"] else ""
        num_left -= len(text)
        pages.append([number, math.ceil(width), math.ceil(height), text])
        page.close()
    return json.dumps([len(pdf), pages]).encode()


def _scale_of(job: Job) -> float:
    """Return pixels per point; a little fewer, so that rounding errors add no pixel where sizes are rounded up."""
    return float(job["dpi"]) / 72 * (1 - 1e-9)


def _load_page(pdf: PdfDocument, number: int) -> PdfPage:
    import pypdfium2

    try:
        return pdf[number - 1]
    except pypdfium2.PdfiumError:
        raise _RefusedError("damaged", f"page {number} cannot be loaded") from None


def _read_text(page: PdfPage) -> str:
    import pypdfium2

    try:
        reader = page.get_textpage()
        text = str(reader.get_text_range(0, min(reader.count_chars(), _MAX_TEXT_CHARS)))
    except pypdfium2.PdfiumError:
        return ""
    text = text.replace("\r\n", "\n").replace("\r", "\n").replace("\ufffe", "-\n")
    return "".join(char for char in text if char in "\n\t" or (char >= " " and not "\ud800" <= char <= "\udfff"))


def _draw_pdf(job: Job, document: int) -> bytes:
    """Return the pixels of a page: RGB, one byte each, by rows."""
    import pypdfium2

    page = _load_page(_load_pdf(document), job["page"])
    bitmap = page.render(scale=_scale_of(job), rev_byteorder=True, force_bitmap_format=pypdfium2.raw.FPDFBitmap_BGR)
    if (bitmap.width, bitmap.height) != (job["width"], job["height"]):
        raise _RefusedError("damaged", f"page {job['page']} has another size than before")
    rows = memoryview(bitmap.buffer).cast("B")
    if bitmap.stride == 3 * bitmap.width:
        return bytes(rows)
    return b"".join(rows[i * bitmap.stride : i * bitmap.stride + 3 * bitmap.width] for i in range(bitmap.height))


# --- TIFF ------------------------------------------------------------------------------------------------------------


def _load_tiff(document: int) -> Image.Image:
    from PIL import Image

    Image.MAX_IMAGE_PIXELS = None  # sizes are checked by those who ask
    return Image.open(io.BytesIO(mmap.mmap(document, 0, access=mmap.ACCESS_READ)), formats=("TIFF",))


def _open_tiff(job: Job, document: int) -> bytes:
    image = _load_tiff(document)
    num_pages = int(getattr(image, "n_frames", 1))
    pages = []
    for number in _choose(job, num_pages):
        image.seek(number - 1)
        width, height = image.size
        pages.append([number, width, height, ""])
    return json.dumps([num_pages, pages]).encode()


def _draw_tiff(job: Job, document: int) -> bytes:
    from seesay.config import MediaLimits
    from seesay.processors.media.pillow import to_rgb

    image = _load_tiff(document)
    image.seek(job["page"] - 1)
    if image.size != (job["width"], job["height"]):
        raise _RefusedError("damaged", f"page {job['page']} has another size than before")
    limits = MediaLimits(max_pixels=job["num_pixels"])
    return bytes(to_rgb(image, limits, "the page", transparency=job["transparency"]).tobytes())


def _choose(job: Job, num_pages: int) -> list[int]:
    """Return the numbers of the pages to take. One that there is not is refused, and so are more than allowed."""
    chosen: list[int] = []
    for first, last in job["ranges"] or [[1, None]]:
        stop = num_pages if last is None else last
        if not first <= stop <= num_pages:
            raise _RefusedError("missing", max(first, stop), num_pages)
        if len(chosen) + stop - first + 1 > job["max_pages"]:
            raise _RefusedError("many", num_pages)
        chosen += range(first, stop + 1)
    return chosen


if __name__ == "__main__":
    main()
