"""The pictures of the README: drawn from what they say they show, and small."""

from __future__ import annotations

import re
import sys
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import draw_speed
import pytest
import record_terminal
from PIL import Image
from record_terminal import Piece

ROOT = Path(__file__).parent.parent
PICTURES = ROOT / "docs" / "pictures"
README = (ROOT / "README.md").read_text(encoding="utf-8")
SVG = "{http://www.w3.org/2000/svg}"


def test_pictures_of_the_readme_are_there_and_small() -> None:
    names = re.findall(r'(?:src|srcset)="([^"]+)"', README)
    assert len(names) == 7 and len(set(names)) == 7
    for name in names:
        path = ROOT / name
        assert path.stat().st_size < 120_000, f"{name} is too large for a README"
        if path.suffix == ".svg":
            assert ElementTree.parse(path).getroot().tag == f"{SVG}svg"
        else:
            with Image.open(path) as picture:
                assert picture.width >= 900
    for name in re.findall(r'<img src="([^"]+)" alt="([^"]*)"', README):
        assert name[1], f"{name[0]} needs a text for those who do not see it"


def test_the_table_shows_the_recorded_figures() -> None:
    assert draw_speed.make_table(draw_speed.load()) in README


@pytest.mark.parametrize("name", draw_speed.PICTURES)
def test_the_plots_were_drawn_from_the_recorded_figures(name: str, tmp_path: Path) -> None:
    data = draw_speed.load()
    drawn = (PICTURES / name).read_text(encoding="utf-8")
    assert draw_speed.make_digest(data) in drawn, "run docs/pictures/draw_speed.py"
    pytest.importorskip("matplotlib")
    draw_speed.draw(tmp_path / name, data, draw_speed.PICTURES[name])
    for path in (PICTURES / name, tmp_path / name):
        texts = ["".join(text.itertext()).strip() for text in ElementTree.parse(path).iter(f"{SVG}text")]
        for workload in data["workloads"]:
            assert workload["title"] in texts and all(figure in texts for figure in workload["figures"])


def test_every_workload_has_a_figure_for_each_engine() -> None:
    data = draw_speed.load()
    assert data["engines"][0] == "seesay"
    for workload in data["workloads"]:
        assert len(workload["figures"]) == len(data["engines"])
        assert all(float(figure) > 0 for figure in workload["figures"])


# --- the terminal ---------------------------------------------------------------------------------------------------


def rows_of(pieces: list[Piece]) -> list[str]:
    rows: dict[int, str] = {}
    for piece in pieces:
        rows[piece.row] = rows.get(piece.row, "").ljust(piece.column) + piece.text
    return [rows.get(row, "") for row in range(1, max(rows) + 1)]


def test_a_program_is_recorded_as_it_writes(tmp_path: Path) -> None:
    code = (
        "import time\nfor word in ('one ', 'two\\n', '\\n', '<3> & more'):\n"
        "    print(word, end='', flush=True)\n    time.sleep(1.5)"
    )
    written = record_terminal.record([sys.executable, "-c", code], tmp_path)
    pieces = record_terminal.split_pieces(written)
    assert rows_of(pieces) == ["one two", "", "<3> & more"]
    assert [piece.column for piece in pieces] == [0, 4, 0]
    assert pieces[1].time_s - pieces[0].time_s > 0.05


def test_a_program_that_fails_is_no_film(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="status 3"):
        record_terminal.record([sys.executable, "-c", "raise SystemExit(3)"], tmp_path)
    with pytest.raises(ValueError, match="cannot draw"):
        record_terminal.split_pieces([(0.0, "\x1b[1mbold")])


def test_the_film_lasts_ten_seconds_and_shortens_waits() -> None:
    pieces = [Piece(time_s=time_s, row=1, column=k, text="x") for k, time_s in enumerate((5.0, 5.1, 95.1, 95.2))]
    paced = record_terminal.pace(pieces)
    steps = [later.time_s - earlier.time_s for earlier, later in pairwise(paced)]
    assert paced[0].time_s >= record_terminal.TYPING_S
    assert paced[-1].time_s == pytest.approx(record_terminal.LENGTH_S - record_terminal.HOLD_S)
    assert steps[0] == pytest.approx(steps[2]) and steps[1] == pytest.approx(6 * steps[0])


def test_pieces_of_one_moment_are_one() -> None:
    pieces = [Piece(time_s=time_s, row=1, column=k, text="x") for k, time_s in enumerate((0.0, 0.01, 0.5))]
    assert [piece.text for piece in record_terminal.join(pieces)] == ["xx", "x"]


def test_each_piece_appears_at_its_time() -> None:
    film = record_terminal.draw([*record_terminal.type_command(), Piece(time_s=5.0, row=1, column=0, text="a < b")])
    texts = list(ElementTree.fromstring(film).iter(f"{SVG}text"))
    assert "".join(text.text or "" for text in texts) == f"${record_terminal.COMMAND}a < b".replace("", "")
    name = texts[-1].attrib["class"].split()[0]
    assert (
        f"@keyframes {name}{{0%{{opacity:0}}50%{{opacity:1}}}}" in film and f".{name}{{animation-name:{name}}}" in film
    )
    assert "prefers-reduced-motion" in film


def test_the_film_shows_the_demo() -> None:
    root = ElementTree.parse(PICTURES / "terminal.svg").getroot()
    text = "".join(text.text or "" for text in root.iter(f"{SVG}text"))
    for shown in (record_terminal.COMMAND, "one picture", "two pictures", "a clip", "no picture", "tokens/s"):
        assert shown in text, "run docs/pictures/record_terminal.py"
