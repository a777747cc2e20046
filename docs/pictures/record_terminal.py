"""Records `seesay demo` at a terminal as an SVG that plays by itself, ten seconds long.

    python docs/pictures/record_terminal.py   # writes terminal.svg

The program runs in a pseudo-terminal. What it writes is shown as it came, pieces in the order and, answer by answer, at
the pace of the run; waits (for the model to load, above all) are shortened, and the whole is scaled to ten seconds.
"""

from __future__ import annotations

import argparse
import os
import pty
import re
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

TARGET = Path(__file__).parent / "terminal.svg"
COMMAND = "seesay demo"
COLUMNS, ROWS = 110, 40
LENGTH_S, TYPING_S, HOLD_S = 10.0, 0.9, 2.2
LONGEST_WAIT_S, SHORTEST_STEP_S = 0.6, 0.04
CELL_WIDTH, CELL_HEIGHT, FONT_SIZE, MARGIN, BAR = 7.3, 17, 12, 16, 30
FONTS = "ui-monospace,SFMono-Regular,Menlo,Consolas,'DejaVu Sans Mono',monospace"
COLORS = {"text": "#e4e4e7", "model": "#a5b4fc", "quiet": "#a1a1aa", "prompt": "#4ade80", "page": "#18181b"}


@dataclass(frozen=True, kw_only=True)
class Piece:
    """Text that appears at `time_s` in row `row` from column `column` on."""

    time_s: float
    row: int
    column: int
    text: str


def record(command: Sequence[str], folder: Path) -> list[tuple[float, str]]:
    """Run a program at a terminal: what it writes, each with its time. Raises RuntimeError when it fails."""
    started_s = time.perf_counter()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(folder)
        os.environ |= {"COLUMNS": str(COLUMNS), "TERM": "dumb"}
        os.execv(command[0], list(command))
    written = []
    while True:
        try:
            content = os.read(terminal, 1 << 16)
        except OSError:  # the program has closed its side
            break
        if not content:
            break
        written.append((time.perf_counter() - started_s, content.decode(errors="replace")))
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    if status:
        raise RuntimeError(f"{' '.join(command)} ended with status {os.waitstatus_to_exitcode(status)}")
    return written


def split_pieces(written: Sequence[tuple[float, str]]) -> list[Piece]:
    """Pieces of single rows, below the row of the command. Control sequences are refused: none is shown."""
    pieces = []
    row, column = 1, 0
    for time_s, text in written:
        if re.search(r"[^\n\r\x20-\x7e\u00a0-\uffff]", text):
            raise ValueError(f"cannot draw {text!r}")
        for part in re.split(r"(\n)", text.replace("\r\n", "\n")):
            if part == "\n":
                row, column = row + 1, 0
            elif part:
                pieces.append(Piece(time_s=time_s, row=row, column=column, text=part))
                column += len(part)
    return pieces


def pace(pieces: Sequence[Piece]) -> list[Piece]:
    """The pieces at their times in the film: waits shortened, all scaled between the typing and the hold at the end."""
    times, now_s, last_s = [], 0.0, pieces[0].time_s if pieces else 0.0
    for piece in pieces:
        now_s += min(piece.time_s - last_s, LONGEST_WAIT_S)
        last_s = piece.time_s
        times.append(now_s)
    scale = (LENGTH_S - TYPING_S - HOLD_S - 0.3) / max(now_s, 1e-9)
    first_s = TYPING_S + 0.3
    return [
        Piece(time_s=first_s + scale * time_s, row=piece.row, column=piece.column, text=piece.text)
        for piece, time_s in zip(pieces, times)
    ]


def join(pieces: Sequence[Piece]) -> list[Piece]:
    """Pieces of a row that follow each other within `SHORTEST_STEP_S` as one."""
    joined: list[Piece] = []
    for piece in pieces:
        last = joined[-1] if joined else None
        if last and last.row == piece.row and piece.time_s - last.time_s < SHORTEST_STEP_S:
            joined[-1] = Piece(time_s=last.time_s, row=last.row, column=last.column, text=last.text + piece.text)
        else:
            joined.append(piece)
    return joined


def type_command() -> list[Piece]:
    """The prompt and the command, letter by letter."""
    step_s = TYPING_S / len(COMMAND)
    letters = [
        Piece(time_s=0.2 + step_s * index, row=0, column=2 + index, text=letter) for index, letter in enumerate(COMMAND)
    ]
    return [Piece(time_s=0.0, row=0, column=0, text="$"), *letters]


def draw(pieces: Sequence[Piece]) -> str:
    """The film as SVG: each piece is hidden until its time, by one CSS animation per time."""
    num_rows = max(piece.row for piece in pieces) + 1
    width, height = 2 * MARGIN + COLUMNS * CELL_WIDTH, BAR + MARGIN + num_rows * CELL_HEIGHT + 4
    labels = {piece.row: piece.text.split(" ", 1)[0] for piece in pieces if piece.column == 0}
    names: dict[float, str] = {}
    texts = []
    for piece in pieces:
        share = round(100 * min(max(piece.time_s, 0.0) / LENGTH_S, 1.0), 1)
        name = names.setdefault(share, f"t{len(names)}")
        texts.append(_draw_piece(piece, labels.get(piece.row, ""), name))
    frames = "".join(f"@keyframes {name}{{0%{{opacity:0}}{share:g}%{{opacity:1}}}}" for share, name in names.items())
    uses = "".join(f".{name}{{animation-name:{name}}}" for name in names.values())
    dots = "".join(
        f'<circle cx="{MARGIN + 4 + 18 * index}" cy="{BAR / 2 + 1:g}" r="5.5" fill="#52525b"/>' for index in range(3)
    )
    style = (
        f"text{{font:{FONT_SIZE}px {FONTS};white-space:pre;fill:{COLORS['text']};"
        f"animation:t0 {LENGTH_S:g}s step-end infinite}}"
        f".m{{fill:{COLORS['model']}}}.q{{fill:{COLORS['quiet']}}}.p{{fill:{COLORS['prompt']}}}{frames}{uses}"
        "@media (prefers-reduced-motion:reduce){text{animation:none!important}}"
    )
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        f'aria-label="{COMMAND} at a terminal"><style>{style}</style>'
        f'<rect width="{width:g}" height="{height:g}" rx="10" fill="{COLORS["page"]}"/>{dots}\n'
        + "\n".join(texts)
        + "</svg>\n"
    )


def _draw_piece(piece: Piece, label: str, name: str) -> str:
    kind = ""
    if label == "$":
        kind = " p" if piece.column == 0 else ""
    elif label == "model" and piece.column > 0:
        kind = " m"
    elif label in ("--", "as", "expected", "drew", "loading", "ready"):
        kind = " q"
    x = MARGIN + piece.column * CELL_WIDTH
    y = BAR + MARGIN + piece.row * CELL_HEIGHT
    length = len(piece.text) * CELL_WIDTH
    return (
        f'<text x="{x:.5g}" y="{y}" textLength="{length:.5g}" xml:space="preserve" class="{name}{kind}">'
        f"{escape(piece.text)}</text>"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=TARGET)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="demo-") as folder:
        written = record([sys.executable, "-m", "seesay", "demo"], Path(folder))
    pieces = split_pieces(written)
    if max(piece.row for piece in pieces) >= ROWS or max(piece.column + len(piece.text) for piece in pieces) > COLUMNS:
        raise ValueError(f"the demo writes more than {ROWS} rows of {COLUMNS} columns")
    args.out.write_text(draw([*type_command(), *join(pace(pieces))]), encoding="utf-8")


if __name__ == "__main__":
    main()
