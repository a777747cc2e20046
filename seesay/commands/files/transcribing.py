"""Reads the pages of documents with a model, and writes a file for each document."""

from __future__ import annotations

import base64
import io
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from seesay.errors import ConfigError, SeesayError
from seesay.values import DOCUMENT_SUFFIXES, IMAGE_SUFFIXES

if TYPE_CHECKING:
    from PIL import Image
    from tqdm import tqdm

    from seesay.commands.chat.answering import Answerer
    from seesay.config import MediaLimits
    from seesay.processors.media.document import OpenedPage
    from seesay.vl.tasks import Task

Format = Literal["md", "json"]
SUFFIXES = (".pdf", *IMAGE_SUFFIXES)


@dataclass(frozen=True, slots=True, kw_only=True)
class PageText:
    """What was read on a page. is_cut: the answer reached its length limit. error: why there is no text."""

    number: int
    text: str = ""
    is_cut: bool = False
    error: str = ""


class _Page(NamedTuple):
    """A page to read: its number, and what draws it."""

    number: int
    draw: Callable[[], Image.Image]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How pages are read. name: that of the model."""

    model: Answerer
    name: str
    task: Task
    limits: MediaLimits
    pages: str | None
    dpi: int

    def describe(self) -> str:
        """Return the first line of a log: what is asked of which model, and how pages are drawn."""
        return json.dumps({"model": self.name, "prompt": self.task.prompt, "dpi": self.dpi})


def find_files(sources: Sequence[Path]) -> list[tuple[Path, Path]]:
    """Return (file, its path below the source that it was found in) of files and of all documents in folders, sorted,
    each file once. Raises `ConfigError` for a source that does not exist."""
    found: list[tuple[Path, Path]] = []
    for source in sources:
        if source.is_dir():
            files = sorted(path for path in source.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())
            found += [(path, path.relative_to(source)) for path in files]
        elif source.is_file():
            found.append((source, Path(source.name)))
        else:
            raise ConfigError(f"INPUT {str(source)!r} does not exist")
    if not found:
        raise ConfigError(f"INPUT has no documents: their names end in {', '.join(SUFFIXES)}")
    return list({file.absolute(): (file, below) for file, below in reversed(found)}.values())[::-1]


def choose_format(output: Path, *, is_one: bool) -> Format:
    """Return the format that the name of the file to write says."""
    return "json" if is_one and output.suffix == ".json" and not output.is_dir() else "md"


def plan_outputs(
    files: Sequence[tuple[Path, Path]], output: Path, form: Format, *, is_one: bool
) -> list[tuple[Path, Path]]:
    """Return (file, the file to write) of each. `output` is that file where one document `is_one`, else a folder.
    Raises `ConfigError` for two documents with the same place in that folder."""
    if is_one and output.suffix == f".{form}" and not output.is_dir():
        return [(files[0][0], output)]
    sources: dict[Path, Path] = {}
    for file, below in files:
        target = output / below.with_name(f"{below.name}.{form}")
        if (other := sources.setdefault(target, file)) is not file:
            raise ConfigError(
                f"INPUT {str(other)!r} and {str(file)!r} would both become {str(target)!r}: read them into two folders"
            )
    return [(file, target) for target, file in sources.items()]


def transcribe(
    file: Path, output: Path, form: Format, reading: Reading, *, threads: ThreadPoolExecutor, progress: tqdm[Any]
) -> int:
    """Read a document and write `output`. Pages that an earlier run has read in the same way are not read again.
    Returns the number of pages that could not be read. Raises `SeesayError` for a document that cannot be opened, and
    OSError."""
    output.parent.mkdir(parents=True, exist_ok=True)
    log_path = output.with_name(f"{output.name}.pages")
    pages, num_pages = _open_pages(file, reading)
    done = _begin_log(log_path, reading.describe())
    waiting = [page for page in pages if page.number not in done]
    progress.total = (progress.total or 0) + len(pages)
    progress.update(len(pages) - len(waiting))
    futures = [threads.submit(_read_page, page, reading) for page in waiting]
    with log_path.open("a", encoding="utf-8") as log:
        for found in _in_order(futures):
            done[found.number] = found
            log.write(f"{_make_line(found)}\n")
            log.flush()
            progress.update()
    texts = [done[page.number] for page in pages]
    _write_whole(output, _format(file, texts, num_pages, form))
    return _end_log(log_path, file, texts)


def _end_log(path: Path, file: Path, texts: Sequence[PageText]) -> int:
    """Report the pages that could not be read, and return their number. Without any the log of pages is removed; else
    the next run tries them again."""
    failed = [page for page in texts if page.error]
    for page in failed:
        print(f"seesay: {file}: page {page.number}: {page.error}", file=sys.stderr)
    if not failed:
        path.unlink()
    return len(failed)


def is_done(output: Path) -> bool:
    """Return whether a document was read to its end before."""
    return output.exists() and not output.with_name(f"{output.name}.pages").exists()


def _in_order(futures: Sequence[Future[PageText]]) -> Iterator[PageText]:
    try:
        for future in futures:
            yield future.result()
    finally:
        for future in futures:
            future.cancel()


def _open_pages(file: Path, reading: Reading) -> tuple[list[_Page], int]:
    """Return the pages of a file that are to be read, and how many it has."""
    from seesay.processors.media.allowance import Allowance
    from seesay.processors.media.document import open_document
    from seesay.processors.media.load import load_image
    from seesay.processors.media.pillow import image_of_array
    from seesay.values import DocumentOptions

    if not _is_document(file):
        return [_Page(1, lambda: load_image(file, limits=reading.limits))], 1
    options = DocumentOptions.checked({"pages": reading.pages, "dpi": reading.dpi})
    document = open_document(file, options, Allowance(reading.limits))

    def draw(page: OpenedPage) -> Image.Image:
        return image_of_array(page.decode().frames[0])

    return [_Page(page.number, partial(draw, page)) for page in document.pages], document.num_pages


def _is_document(file: Path) -> bool:
    """Return whether a file is a document by its name, or, where its name says nothing, by its first bytes."""
    if file.suffix.lower() in SUFFIXES:
        return file.suffix.lower() in DOCUMENT_SUFFIXES
    from seesay.processors.media.document import WITHIN_BYTES, begins_document

    with file.open("rb") as opened:
        return begins_document(opened.read(WITHIN_BYTES))


def _read_page(page: _Page, reading: Reading) -> PageText:
    """Read one page. What is wrong with it is a part of the result."""
    try:
        file = io.BytesIO()
        _shrink(page.draw(), reading.task.longest_side_px).save(file, format="PNG", compress_level=1)
        url = f"data:image/png;base64,{base64.b64encode(file.getvalue()).decode()}"
        parts: list[dict[str, Any]] = [{"type": "image_url", "image_url": {"url": url}}]
        if reading.task.prompt:
            parts.append({"type": "text", "text": reading.task.prompt})
        with closing(reading.model.answer([{"role": "user", "content": parts}])) as pieces:
            found = list(pieces)
    except SeesayError as error:
        return PageText(number=page.number, error=str(error))
    text = "".join(piece.text for piece in found)
    return PageText(number=page.number, text=text, is_cut=any(piece.is_cut for piece in found))


def _shrink(picture: Image.Image, longest_px: int) -> Image.Image:
    """Return a picture whose longest side has at most so many pixels; 0: any number."""
    if not 0 < longest_px < max(picture.size):
        return picture
    scale = longest_px / max(picture.size)
    width, height = (max(1, round(scale * side)) for side in picture.size)
    return picture.resize((width, height), resample=3)  # bicubic


def _begin_log(path: Path, way: str) -> dict[int, PageText]:
    """Return the pages that an earlier run has read in this way, as the first line of the log says, and write the log
    anew with these. A line that was cut off does not count."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    found: dict[int, PageText] = {}
    for line in lines[1:] if lines[:1] == [way] else ():
        try:
            page = PageText(**json.loads(line))
        except (ValueError, TypeError):
            continue
        if not page.error:
            found[page.number] = page
    _write_whole(path, "".join(f"{line}\n" for line in (way, *map(_make_line, found.values()))))
    return found


def _make_line(page: PageText) -> str:
    """Return a line of a log, in ASCII: other characters may divide lines, too."""
    return json.dumps(asdict(page))


def _format(file: Path, texts: Sequence[PageText], num_pages: int, form: Format) -> str:
    if form == "json":
        pages = [asdict(page) for page in texts]
        return (
            json.dumps({"file": file.name, "num_pages": num_pages, "pages": pages}, ensure_ascii=False, indent=1) + "\n"
        )
    return "\n".join(f"<!-- page {page.number} of {num_pages} -->\n\n{_show_text(page)}\n" for page in texts)


def _show_text(page: PageText) -> str:
    """Return the text of a page as Markdown, which says where it is missing or not whole."""
    if page.error:
        return f"<!-- not read: {page.error.replace('--', '- -')} -->"
    return f"{page.text.strip()}\n\n<!-- cut off -->" if page.is_cut else page.text.strip()


def _write_whole(path: Path, text: str) -> None:
    """Write a file so that it is there as a whole, or not at all."""
    beside = path.with_name(f"{path.name}.part")
    beside.write_text(text, encoding="utf-8")
    beside.replace(path)
