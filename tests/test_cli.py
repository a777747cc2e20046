"""The command line, and the demo it shows."""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Never

import pytest
from PIL import Image

import seesay
from seesay import cli
from seesay.checkpoint.model_path import DEMO_MODEL
from seesay.commands.command import Command
from seesay.demo import tour
from seesay.demo.scenes import sample_scene
from seesay.engine.front.response import Response
from seesay.errors import CheckpointError, ConfigError
from seesay.values import StageTimings, Usage


def test_help_is_quick_and_loads_nothing_heavy() -> None:
    code = (
        "import sys, time, seesay.cli\n"
        "try: seesay.cli.main(['demo', '--help'])\n"
        "except SystemExit: pass\n"
        "print([m for m in ('torch', 'transformers', 'numpy') if m in sys.modules])\n"
        "print(time.process_time())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    heavy, processor_s = done.stdout.splitlines()[-2:]
    assert heavy == "[]"
    assert float(processor_s) < 1.0  # of the processor's time: others on the machine do not count
    assert "--seed N" in done.stdout


def test_without_a_command_it_helps(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 0
    assert "examples:" in capsys.readouterr().out


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == f"seesay {seesay.__version__}\n"


def failing(error: BaseException) -> Command:
    """A subcommand that raises `error`."""

    def fail(arguments: argparse.Namespace) -> Never:
        raise error

    return Command(name="fail", summary="fail", run=fail)


@pytest.mark.parametrize(
    ("error", "status", "message"),
    [
        (CheckpointError("no such model:\n x/y"), 1, "seesay: error: no such model: x/y\n"),
        (RuntimeError("oops"), 1, "seesay: error: RuntimeError: oops (--debug prints the traceback)\n"),
        (KeyboardInterrupt(), 130, "\nseesay: interrupted\n"),
    ],
)
def test_errors_are_one_line(
    capsys: pytest.CaptureFixture[str], error: BaseException, status: int, message: str
) -> None:
    assert cli.main(["fail"], [failing(error)]) == status
    assert capsys.readouterr().err == message


@pytest.mark.parametrize("argv", [["--debug", "fail"], ["fail", "--debug"]])
def test_debug_shows_the_traceback(capsys: pytest.CaptureFixture[str], argv: list[str]) -> None:
    assert cli.main(argv, [failing(RuntimeError("oops"))]) == 1
    assert "Traceback" in capsys.readouterr().err


class FakePipe:
    """Answers everything with two pieces, except clips, which fail when asked to."""

    def __init__(self, *, fails_at_clips: Any = False) -> None:
        self.prompts: list[Any] = []
        self.fails_at_clips = fails_at_clips

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *exception: Any) -> None:
        pass

    def session(self) -> Any:
        return seesay.Session()

    def chat(self, prompt: Any, *, session: Any, gen_config: Any, stream_response: Any) -> Iterator[Any]:
        assert stream_response
        self.prompts.append(prompt)
        if self.fails_at_clips and isinstance(prompt, list):
            last = Response(text="this model takes no video", finish_reason="error")
        else:
            yield Response(text="a red ")
            last = Response(
                text="circle.\nAnd more.",
                finish_reason="stop",
                usage=Usage(prompt_tokens=9, completion_tokens=11),
                timings=StageTimings(prefill_s=0.25, decode_s=0.1, total_s=0.35),
            )
        session.end_turn(prompt, last)
        yield last


def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, pipe: Any, **kwargs: Any) -> Any:
    monkeypatch.setattr("seesay.offline.pipeline.pipeline", lambda *args, **kwargs: pipe)
    monkeypatch.chdir(tmp_path)
    stream = io.StringIO()
    status = tour.run_tour(stream=stream, **kwargs)
    return status, stream.getvalue()


def test_tour(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pipe = FakePipe()
    status, shown = run(monkeypatch, tmp_path, pipe, seed=3)
    assert status == 0
    folder = tmp_path / "seesay-demo-files"
    assert f"drew scene.png, pair.png and clip.gif in {folder}\n" in shown
    assert "you       describe this image\nmodel     a red circle.\n          And more.\nas drawn" in shown
    assert shown.count("\nmodel ") == 5 and shown.count("\nyou ") == 5
    assert "\x1b" not in shown
    table = shown[shown.index("ms  ") :].splitlines()
    assert [line.split("  ")[0] for line in table[1:]] == ["describe", "follow-up", "two pictures", "clip", "text"]
    assert table[1].split()[-5:] == ["-", "250.0", "-", "350.0", "100"]
    assert isinstance(pipe.prompts[0][1], Image.Image) and pipe.prompts[0][0] == "describe this image"
    assert isinstance(pipe.prompts[1], str)
    assert len(pipe.prompts[2][1]) == 2
    assert pipe.prompts[3][0]["content"][0]["type"] == "video"
    assert isinstance(pipe.prompts[4], str)
    assert list(tmp_path.iterdir()) == [folder], "nothing is scattered"
    assert sorted(file.name for file in folder.iterdir()) == ["clip.gif", "pair.png", "scene.png"]


def test_the_tours_folder_may_exist(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Only the files of the tour are replaced. A folder of the default name is not taken for the model."""
    folder = tmp_path / "seesay-demo-files"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    for seed in (1, 2):
        assert run(monkeypatch, tmp_path, FakePipe(), seed=seed)[0] == 0
        assert (folder / "scene.png").read_bytes() and (folder / "notes.txt").read_text() == "mine"
    assert len(list(folder.iterdir())) == 4 and tour.FOLDER_NAME != DEMO_MODEL
    with Image.open(folder / "scene.png") as saved:
        assert saved.tobytes() == sample_scene(2).images[0].tobytes()


def test_tour_of_a_model_without_video(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    status, shown = run(monkeypatch, tmp_path, FakePipe(fails_at_clips=True), out=tmp_path / "new" / "scene")
    assert status == 1
    assert "this model takes no video" in shown
    assert (tmp_path / "new" / "scene" / "scene.png").is_file()
    assert "clip               failed" in shown


def test_tour_where_nothing_can_be_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The files go to a temporary folder, and where there is none, the tour goes on without them."""
    (tmp_path / "seesay-demo-files").touch()
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    status, shown = run(monkeypatch, tmp_path, FakePipe())
    [folder] = temporary.iterdir()
    assert status == 0 and sorted(file.name for file in folder.iterdir()) == ["clip.gif", "pair.png", "scene.png"]
    assert (
        f"cannot write to seesay-demo-files (File exists); drew scene.png, pair.png and clip.gif in {folder}" in shown
    )
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    status, shown = run(monkeypatch, tmp_path, FakePipe())
    assert status == 0 and "(File exists): the pictures are shown to the model only\n" in shown


def test_a_tour_that_cannot_write_where_it_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """It says so before a model is loaded. A picture's name, which was asked for once, makes no folder."""
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match=r"--out: cannot write to .*/file/new \(Not a directory\): give another"):
        run(monkeypatch, tmp_path, None, out=tmp_path / "file" / "new")
    with pytest.raises(
        ConfigError, match=r"--out must be a folder, in which the picture is scene\.png, got '.*a\.PNG'"
    ):
        run(monkeypatch, tmp_path, None, out=tmp_path / "a.PNG")
    assert [file.name for file in tmp_path.iterdir()] == ["file"]


def test_demo_takes_the_model_like_the_other_commands(monkeypatch: pytest.MonkeyPatch) -> None:
    seen = []

    def note(model: str, **options: Any) -> int:
        seen.append(model)
        return 0

    monkeypatch.setattr(tour, "run_tour", note)
    assert cli.main(["demo", "./mine"]) == cli.main(["demo"]) == 0
    assert seen == ["./mine", "seesay-demo"]


def test_ctrl_c_while_modules_are_imported_shows_no_traceback(tmp_path: Path) -> None:
    """The first module of the command line that is imported gets the signal."""
    (tmp_path / "sitecustomize.py").write_text(
        "import os, signal, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'seesay.commands.arguments.advice':\n"
        "            os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.meta_path.insert(0, Finder())\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "seesay", "--version"], capture_output=True, text=True, timeout=120, check=False,
        env={**os.environ, "PYTHONPATH": f"{tmp_path}:{Path(cli.__file__).parents[1]}"},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (130, "\nseesay: interrupted\n"), done.stderr
