"""The tour of `seesay demo`: questions about one picture, two pictures, a clip and no picture at all, with timings.

Answers are written as plain text while they are generated, in the same way to a terminal and to a pipe.
"""

from __future__ import annotations

import shutil
import sys
import tempfile
import textwrap
import time
from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TextIO

from seesay.config import EngineConfig, GenerationConfig
from seesay.demo.page import Answered, check_writable, make_page, write_page
from seesay.demo.scenes import CLIP_FPS, Example, Turn, make_example, sample_scene
from seesay.engine.front.response import Response
from seesay.errors import ConfigError
from seesay.values import IMAGE_SUFFIXES
from seesay.version import __version__

if TYPE_CHECKING:
    from PIL import Image

    from seesay.offline.pipeline import Pipeline
    from seesay.offline.session import Session

FOLDER_NAME = "seesay-demo-files"
"""The default folder of the files, in the current one. It is not named as the model is: a folder of that name would be
taken for the model."""
_PICTURE, _PAIR, _CLIP = "scene.png", "pair.png", "clip.gif"
_LABEL_WIDTH = 10
_GAP_PX = 8
_GEN_CONFIG = GenerationConfig(max_new_tokens=128)


def run_tour(
    model: str = "seesay-demo",
    *,
    seed: int = 0,
    out: Path | None = None,
    device: str = "auto",
    html: Path | None = None,
    plugins: Sequence[str] = (),
    stream: TextIO | None = None,
) -> int:
    """Run the demo and return the exit status.

    out: the folder for the pictures and the clip, made if it is missing. None is `FOLDER_NAME` in the current folder,
        or where that cannot be written a temporary folder.
    html: the file to which the demo is saved as a page. plugins: see `EngineConfig`.
    Raises CheckpointError or ConfigError if the model cannot be loaded, or `out` or the page cannot be written.
    """
    if html is not None:
        check_writable(html)
    screen = _Screen(stream or sys.stdout)
    drawn = _draw(seed)
    screen.line(f"seesay {__version__}")
    screen.line(_save(drawn, out))
    screen.line(f"loading {model} ...")
    from seesay.offline.pipeline import pipeline

    started = time.perf_counter()
    with pipeline(model, backend_config=EngineConfig(device_type=device, plugins=plugins)) as pipe:
        ready_s = time.perf_counter() - started
        screen.line(f"ready after {ready_s:.1f} s")
        answers = _ask_everything(pipe, screen, drawn)
    screen.line()
    screen.table(answers)
    if html is not None:
        write_page(html, make_page(answers, model=model, ready_s=ready_s))
        screen.line()
        screen.line(f"saved as a page: {html.resolve()}")
    return 1 if any(answered.response.finish_reason == "error" for answered in answers) else 0


def _ask_everything(pipe: Pipeline, screen: _Screen, drawn: _Drawn) -> list[Answered]:
    answers: list[Answered] = []
    title = ""

    def ask(name: str, session: Session, turn: Turn, prompt: object = None, **media: tuple[Image.Image, ...]) -> None:
        question, expected = turn
        screen.label("you", question)
        response = _answer(pipe, screen, session, question if prompt is None else prompt)
        screen.label("as drawn" if name != "text" else "expected", expected)
        answers.append(
            Answered(name=name, title=title, question=question, expected=expected, response=response, **media)
        )

    def begin(text: str) -> Session:
        nonlocal title
        title = text
        screen.line()
        screen.line(f"-- {text}")
        return pipe.session()

    scene, pair, clip = drawn.scene, drawn.pair, drawn.clip
    session = begin(f"one picture: {_PICTURE}")
    first, follow_up = scene.turns[:2]
    ask("describe", session, first, (first[0], scene.images[0]), images=(scene.images[0],))
    ask("follow-up", session, follow_up)

    session = begin(f"two pictures: {_PAIR}")
    ask("two pictures", session, pair.turns[0], (pair.turns[0][0], list(pair.images)), images=tuple(pair.images))

    frames = tuple(clip.clip)
    session = begin(f"a clip of {len(frames) / CLIP_FPS:g} s: {_CLIP}")
    video = {"type": "video", "video": list(frames), "fps": CLIP_FPS}
    content = [video, {"type": "text", "text": clip.turns[0][0]}]
    ask("clip", session, clip.turns[0], [{"role": "user", "content": content}], frames=frames)

    session = begin("no picture")
    ask("text", session, drawn.sum.turns[0])
    return answers


def _answer(pipe: Pipeline, screen: _Screen, session: Session, prompt: object) -> Response:
    """Ask, and print the answer while it is generated."""
    answer = pipe.chat(prompt, session=session, gen_config=_GEN_CONFIG, stream_response=True)
    screen.begin("model")
    with closing(answer) as pieces:
        for piece in pieces:
            screen.write(piece.text)
    screen.line()
    return session.response


@dataclass(frozen=True, slots=True, kw_only=True)
class _Drawn:
    """The material of the questions: a picture, a pair of pictures, a clip, and a sum without a picture."""

    scene: Example
    pair: Example
    clip: Example
    sum: Example


def _draw(seed: int) -> _Drawn:
    return _Drawn(
        scene=sample_scene(seed),
        pair=make_example("compare", seed),
        clip=make_example("motion", seed),
        sum=make_example("arithmetic", seed),
    )


def _save(drawn: _Drawn, out: Path | None) -> str:
    """Write the files to `out`, else to the default folder, else to a temporary one. Returns a line that says where
    they are, or why there are none. Raises ConfigError if `out` cannot be written, or names a picture."""
    folder = out or Path(FOLDER_NAME)
    if folder.suffix.lower() in IMAGE_SUFFIXES and not folder.is_dir():
        raise ConfigError(f"--out must be a folder, in which the picture is {_PICTURE}, got {str(folder)!r}")
    try:
        return _write_files(drawn, folder)
    except OSError as error:
        reason = f"cannot write to {folder} ({error.strerror or error})"
        if out is not None:
            raise ConfigError(f"--out: {reason}: give another folder") from None
    temporary = None
    try:
        temporary = Path(tempfile.mkdtemp(prefix=f"{FOLDER_NAME}-"))
        return f"{reason}; {_write_files(drawn, temporary)}"
    except OSError:
        if temporary is not None:
            shutil.rmtree(temporary, ignore_errors=True)
        return f"{reason}: the pictures are shown to the model only"


def _write_files(drawn: _Drawn, folder: Path) -> str:
    """Write the pictures and the clip to `folder`, which is made if it is missing. Returns a line that says so."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn.scene.images[0].save(folder / _PICTURE)
    _side_by_side(drawn.pair.images).save(folder / _PAIR)
    first, *others = drawn.clip.clip
    first.save(folder / _CLIP, save_all=True, append_images=others, duration=int(1000 / CLIP_FPS), loop=0)
    return f"drew {_PICTURE}, {_PAIR} and {_CLIP} in {folder.resolve()}"


def _side_by_side(images: Sequence[Image.Image]) -> Image.Image:
    from PIL import Image

    width = sum(image.width for image in images) + _GAP_PX * (len(images) - 1)
    sheet = Image.new("RGB", (width, max(image.height for image in images)), "white")
    left = 0
    for image in images:
        sheet.paste(image, (left, 0))
        left += image.width + _GAP_PX
    return sheet


class _Screen:
    """Write labelled lines of text, flushed at once."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> None:
        # Indent the line breaks of an answer to its column.
        encoding = self._stream.encoding or "utf-8"
        text = text.replace("\n", "\n" + " " * _LABEL_WIDTH)
        self._stream.write(text.encode(encoding, "replace").decode(encoding))
        self._stream.flush()

    def line(self, text: str = "") -> None:
        self.write(text)
        self._stream.write("\n")
        self._stream.flush()

    def begin(self, label: str) -> None:
        self.write(f"{label:<{_LABEL_WIDTH}}")

    def label(self, label: str, text: str) -> None:
        self.begin(label)
        self.line("\n".join(textwrap.wrap(text, 100)) or text)

    def table(self, rows: Sequence[Answered]) -> None:
        """Write the milliseconds per stage of each question, and the pace of its answer."""
        heads = ("ms", "decode", "preprocess", "encode", "prefill", "first token", "total", "tokens/s")
        self.line(_cells(heads))
        for row in rows:
            timings, usage = row.response.timings, row.response.usage
            if timings is None or usage is None:
                self.line(_cells((row.name, "failed")))
                continue
            stages = (
                timings.decode_media_s,
                timings.preprocess_s,
                timings.encode_s,
                timings.prefill_s,
                timings.time_to_first_token_s,
                timings.total_s,
            )
            # The prefill produces the first token.
            rate = (usage.completion_tokens - 1) / timings.decode_s if timings.decode_s > 0 else 0.0
            cells = [f"{1000 * seconds:.1f}" if seconds else "-" for seconds in stages]
            self.line(_cells((row.name, *cells, f"{rate:.0f}" if rate else "-")))


def _cells(texts: Sequence[str]) -> str:
    return f"{texts[0]:<13}" + "".join(f"{text:>12}" for text in texts[1:])
