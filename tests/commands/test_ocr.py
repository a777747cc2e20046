"""`seesay ocr` with the built-in model, here and behind a server."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from live_server import MODEL, LiveServer, make_settings, serve
from pdfs import make_pdf, make_tiff
from PIL import Image
from tqdm import tqdm

from seesay import MediaLimits, load_image
from seesay.cli import main
from seesay.commands.chat.answering import Messages, Piece, Pieces
from seesay.commands.files.transcribing import Reading, transcribe
from seesay.config import EngineConfig
from seesay.demo.scenes import sample_scene
from seesay.engine.front.engine import AsyncEngine
from seesay.vl.tasks import Task

OLE = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1"


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = EngineConfig(device_type="cpu")
    with AsyncEngine("seesay-demo", backend_config=config) as engine, serve(engine, make_settings()) as running:
        yield running


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "in" / "more").mkdir(parents=True)
    scene = sample_scene(seed=0).images[0]
    scene.save(tmp_path / "in" / "scenes.pdf", save_all=True, append_images=[scene], resolution=72)
    (tmp_path / "in" / "more" / "b.tif").write_bytes(make_tiff([(64, 64), (64, 64)]))
    (tmp_path / "in" / "more" / "notes.txt").write_text("not a document")
    scene.save(tmp_path / "in" / "c.png")
    return tmp_path


def run(server: LiveServer, *arguments: object) -> int:
    given = ["ocr", "--base-url", server.url, "--max-new-tokens", "30", "--concurrency", "2", *map(str, arguments)]
    return main(given)


def test_a_folder_becomes_a_file_for_each_document(server: LiveServer, folder: Path) -> None:
    assert run(server, folder / "in", "-o", folder / "out", "--prompt", "describe this image", "--dpi", 72) == 0
    written = sorted(str(path.relative_to(folder / "out")) for path in (folder / "out").rglob("*") if path.is_file())
    assert written == ["c.png.md", "more/b.tif.md", "scenes.pdf.md"]
    text = (folder / "out" / "scenes.pdf.md").read_text()
    first, second = text.split("<!-- page 2 of 2 -->")
    assert first.startswith("<!-- page 1 of 2 -->\n\nThe picture shows") and "The picture shows" in second


def test_json_says_what_was_cut_off(server: LiveServer, folder: Path) -> None:
    output = folder / "one.json"
    pdf = folder / "in" / "scenes.pdf"
    assert run(server, pdf, "-o", output, "--format", "json", "--pages", "2", "--prompt", "describe this image") == 0
    found = json.loads(output.read_text())
    assert (found["file"], found["num_pages"]) == ("scenes.pdf", 2)
    [page] = found["pages"]
    assert page["number"] == 2 and page["error"] == "" and isinstance(page["is_cut"], bool)


WAY = {"model": MODEL, "prompt": "describe this image", "dpi": 72}
"""How pages were read, as the first line of a log says."""


def test_a_run_that_was_stopped_is_continued(
    server: LiveServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Pages that have a line in the log are not read again, whole files neither."""
    output = folder / "out.md"
    log = output.with_name("out.md.pages")
    page = {"number": 1, "text": "from before", "is_cut": False, "error": ""}
    log.write_text(f'{json.dumps(WAY)}\n{json.dumps(page)}\n{{"number": 2, "te')
    pdf = folder / "in" / "scenes.pdf"
    assert run(server, pdf, "-o", output, "--prompt", "describe this image", "--dpi", 72) == 0
    first, second = output.read_text().split("<!-- page 2 of 2 -->")
    assert "from before" in first and "The picture shows" in second and not log.exists()
    output.write_text("mine")
    assert run(server, pdf, "-o", output) == 0
    assert output.read_text() == "mine"
    assert "1 of them before" in capsys.readouterr().err


@pytest.mark.parametrize("change", [{"prompt": "what is it?"}, {"dpi": 144}, {"model": "other"}])
def test_pages_that_were_read_in_another_way_are_read_again(
    server: LiveServer, folder: Path, change: dict[str, object]
) -> None:
    output = folder / "out.md"
    page = {"number": 1, "text": "from before", "is_cut": False, "error": ""}
    output.with_name("out.md.pages").write_text(f"{json.dumps({**WAY, **change})}\n{json.dumps(page)}\n")
    pdf = folder / "in" / "scenes.pdf"
    assert run(server, pdf, "-o", output, "--prompt", "describe this image", "--dpi", 72) == 0
    assert "from before" not in output.read_text() and output.read_text().count("The picture shows") == 2


class Stopping:
    """Says which run it is; the second page that it sees stops it."""

    def __init__(self, run: int) -> None:
        self._run, self._num_seen = run, 0

    def answer(self, messages: Messages) -> Pieces:
        self._num_seen += 1
        if self._num_seen > 1:
            raise KeyboardInterrupt
        yield Piece(text=f"run {self._run}\u2028\x85é")


def test_a_run_that_is_stopped_several_times_loses_no_page(tmp_path: Path) -> None:
    """A line that was cut off is not in the way of the next one, and a text may hold any character."""
    source, output = tmp_path / "three.tif", tmp_path / "out.md"
    source.write_bytes(make_tiff([(64, 64)] * 3))
    for number in (1, 2, 3):
        reading = Reading(
            model=Stopping(number), name="m", task=Task(prompt="p\u2028"), limits=MediaLimits(), pages=None, dpi=72
        )
        is_last = number == 3
        with ThreadPoolExecutor(1) as threads, tqdm(disable=True) as progress, suppress(KeyboardInterrupt):
            assert not transcribe(source, output, "md", reading, threads=threads, progress=progress) and is_last
        if not is_last:
            with (tmp_path / "out.md.pages").open("a") as log:
                log.write('{"number": 3, "te')
    assert re.findall("run .\u2028\x85é", output.read_text()) == [f"run {number}\u2028\x85é" for number in (1, 2, 3)]


def test_what_cannot_be_read_is_named_and_the_others_are_read(
    server: LiveServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / "in" / "bad.pdf").write_bytes(b"%PDF-1.7 no")
    assert run(server, folder / "in", "-o", folder / "out") == 1
    assert "bad.pdf" in capsys.readouterr().err
    assert len(list((folder / "out").rglob("*.md"))) == 3
    assert not list((folder / "out").rglob("*.pages")), "nothing was read of it"


def test_markdown_says_what_is_missing(server: LiveServer, folder: Path) -> None:
    """A page that was not read is no blank one, and a text that was cut off is not whole."""
    (folder / "bad -->.png").write_bytes(b"")
    assert run(server, folder / "bad -->.png", "-o", folder / "bad.md") == 1
    text = (folder / "bad.md").read_text()
    assert "<!-- not read: " in text and text.count("-->") == 2
    pdf = folder / "in" / "scenes.pdf"
    given = ["-o", folder / "cut.md", "--prompt", "describe this image", "--pages", "1", "--max-new-tokens", "3"]
    assert run(server, pdf, *given) == 0
    assert (folder / "cut.md").read_text().endswith("\n\n<!-- cut off -->\n")


def test_two_documents_never_become_one_file(
    server: LiveServer, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first, second = folder / "in", folder / "in" / "more"
    (second / "c.png").write_bytes((first / "c.png").read_bytes())
    assert run(server, first, second, "-o", folder / "out") == 0, "a file that is found twice is read once"
    (folder / "other").mkdir()
    (folder / "other" / "c.png").write_bytes((first / "c.png").read_bytes())
    assert run(server, first, folder / "other", "-o", folder / "again") == 1
    said = capsys.readouterr().err
    assert str(first / "c.png") in said and str(folder / "other" / "c.png") in said and "c.png.md" in said
    assert not (folder / "again").exists()


def test_the_name_of_the_output_says_its_format(server: LiveServer, folder: Path) -> None:
    assert run(server, folder / "in" / "c.png", "-o", folder / "c.json") == 0
    assert json.loads((folder / "c.json").read_text())["num_pages"] == 1


@pytest.mark.parametrize(
    ("name", "content", "said"), [("a.docx", b"PK\x03\x04 word/", "a DOCX file"), ("a.doc", OLE, "an Office file")]
)
def test_files_of_office_suites_are_refused_by_name(
    server: LiveServer, tmp_path: Path, name: str, content: bytes, said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / name).write_bytes(content)
    assert run(server, tmp_path / name, "-o", tmp_path / "a.md") == 1
    assert said in capsys.readouterr().err and not (tmp_path / "a.md").exists()


def test_a_pdf_needs_no_suffix(server: LiveServer, folder: Path) -> None:
    pdf = (folder / "in" / "scenes.pdf").rename(folder / "scenes")
    assert run(server, pdf, "-o", folder / "a.md", "--pages", "2") == 0
    assert "<!-- page 2 of 2 -->" in (folder / "a.md").read_text()


class Seen:
    """Notes what a model is shown, and writes nothing."""

    def __init__(self) -> None:
        self.sizes: list[tuple[int, int]] = []
        self.kinds: list[list[str]] = []

    def answer(self, messages: Messages) -> Pieces:
        [message] = messages
        self.kinds.append([part["type"] for part in message["content"]])
        self.sizes.append(load_image(message["content"][0]["image_url"]["url"]).size)
        yield Piece(text="")


@pytest.mark.parametrize(
    ("task", "size", "kinds"),
    [
        (Task(prompt="read"), (800, 400), ["image_url", "text"]),
        (Task(prompt="read", longest_side_px=800), (800, 400), ["image_url", "text"]),
        (Task(prompt="", longest_side_px=200), (200, 100), ["image_url"]),
    ],
)
def test_pages_are_shown_as_models_were_trained(
    task: Task, size: tuple[int, int], kinds: list[str], tmp_path: Path
) -> None:
    """In the size of their pages, and without a text where they take none."""
    Image.new("RGB", (800, 400), "white").save(tmp_path / "page.png")
    seen = Seen()
    reading = Reading(model=seen, name="m", task=task, limits=MediaLimits(), pages=None, dpi=144)
    with ThreadPoolExecutor(1) as threads, tqdm(disable=True) as progress:
        assert not transcribe(
            tmp_path / "page.png", tmp_path / "page.md", "md", reading, threads=threads, progress=progress
        )
    assert seen.sizes == [size] and seen.kinds == [kinds]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["missing.pdf", "-o", "x"], "does not exist"),
        ([".", "-o", "x"], "has no documents"),
        (["x.pdf", "-o", "x", "--pages", "3-1"], "pages must be pages and ranges of them"),
    ],
)
def test_inputs_are_checked(
    arguments: list[str], said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["ocr", *arguments]) == 1
    assert said in capsys.readouterr().err


def test_help_says_how_long_answers_get(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["ocr", "--help"])
    assert "longest answer in tokens (default: 4096)" in " ".join(capsys.readouterr().out.split())


def test_a_task_is_one_of_the_model(server: LiveServer, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(server, folder / "in" / "c.png", "-o", folder / "x.md", "--task", "dance") == 1
    assert "--task must be one of markdown, text" in capsys.readouterr().err


def test_the_model_may_run_here(folder: Path) -> None:
    pdf = folder / "in" / "two.pdf"
    pdf.write_bytes(make_pdf(["a", "b"]))
    arguments = [pdf, "-o", folder / "two.md", "--device", "cpu", "--max-new-tokens", "3", "--dpi", "36"]
    assert main(["ocr", *map(str, arguments)]) == 0
    assert "<!-- page 2 of 2 -->" in (folder / "two.md").read_text()
