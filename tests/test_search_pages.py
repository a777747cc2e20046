"""The example that searches the pages of a PDF by a question."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from pdfs import make_pdf
from search_pages import main

from seesay import load_document, pipeline
from seesay.config import EngineConfig
from seesay.engine.front.embedding import compare

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]
PAGES = ["apples and pears", "the game", "a frame in the game of the picture", "x"]
QUESTION = "what is the game?"


@pytest.fixture(scope="module")
def checkpoint(tiny_checkpoint: Callable[[str], Path]) -> Path:
    return tiny_checkpoint("colqwen2")


@pytest.fixture
def document(tmp_path: Path) -> Path:
    file = tmp_path / "pages.pdf"
    file.write_bytes(make_pdf(PAGES, size=(200, 120)))
    return file


def test_pages_are_printed_by_their_score(checkpoint: Path, document: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ["--model", str(checkpoint), "--device", "cpu", "--dpi", "36"]
    assert main([str(document), QUESTION, "--top", "4", *options]) == 0
    printed = [line.split() for line in capsys.readouterr().out.splitlines()]
    with pipeline(str(checkpoint), backend_config=EngineConfig(device_type="cpu", engine_process=False)) as pipe:
        question = pipe.embed(QUESTION)
        pages = load_document(document, dpi=36)
        scores = {p.number: compare(question, pipe.embed(("", p.image), do_preprocess=True)) for p in pages}
    assert [int(number) for _, number, _ in printed] == sorted(scores, key=lambda number: -scores[number])
    for _, number, score in printed:
        assert float(score) == pytest.approx(scores[int(number)], abs=2e-3)
    assert len(set(scores.values())) == len(PAGES)
    assert main([str(document), QUESTION, "--pages", "2-3", *options]) == 0
    assert {line.split()[1] for line in capsys.readouterr().out.splitlines()} == {"2", "3"}


def test_what_is_wrong_is_printed(
    checkpoint: Path, document: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = tmp_path / "broken.pdf"
    broken.write_bytes(b"%PDF-1.7 no more")
    options = [QUESTION, "--model", str(checkpoint), "--device", "cpu"]
    for arguments in ([str(broken)], [str(tmp_path / "none.pdf")], [str(document), "--pages", "9"]):
        assert main([*arguments, *options]) == 1
        message = capsys.readouterr().err
        assert message and "Traceback" not in message
    with pytest.raises(SystemExit):
        main([str(document), *options, "--top", "0"])
    assert "--top must be positive, got 0" in capsys.readouterr().err
