"""The examples of README.md and docs/ run as a reader would run them, and print what the pages show.

`pytest tests/test_docs.py --refresh-docs` writes into the pages what the examples print now.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from adapter_folders import write_adapter
from doc_examples import is_same, read_examples, shorten, write_outputs
from live_server import LiveServer, make_settings, serve

import seesay.demo
from seesay.cli import make_parser
from seesay.config import EngineConfig
from seesay.demo.checking import is_right
from seesay.demo.scenes import make_example, sample_scene
from seesay.engine.front.engine import AsyncEngine

ROOT = Path(__file__).parent.parent
CHECKPOINT = Path(seesay.demo.__file__).parent / "checkpoint"
PAGES = (
    "docs/pipeline.md", "docs/server.md", "docs/clients.md", "docs/cli.md", "README.md", "docs/weights.md",
    "docs/chat_templates.md", "docs/media.md", "docs/structured_output.md", "docs/embeddings.md",
    "docs/low_level_engine.md", "docs/answers.md", "docs/reasoning.md", "docs/probabilities.md", "docs/sessions.md",
    "docs/long_context.md", "docs/tools.md", "docs/demo_model.md", "docs/plugins.md", "docs/batch.md",
    "docs/several_gpus.md", "docs/adapters.md", "docs/speculation.md", "docs/documents.md", "docs/boxes.md",
    "docs/deterministic.md", "docs/devices.md",
)  # fmt: skip
NOT_RUN = re.compile(r"^(?:make|git|pip|seesay serve|VARIABLE=) ?|^(?:\w+=\S+ )?seesay serve|^pip ", re.M)
SCENE = sample_scene(seed=0)
COMPARE, MOTION = make_example("compare", 0), make_example("motion", 0)

needs_checkpoint = pytest.mark.skipif(
    not (CHECKPOINT / "config.json").is_file(), reason="the built-in checkpoint is not here"
)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveServer]:
    settings = make_settings(model_name=None, files_dir=str(tmp_path_factory.mktemp("files")))
    with (
        AsyncEngine(backend_config=EngineConfig(device_type="cpu")) as engine,
        serve(engine, settings) as running,
    ):
        yield running


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    SCENE.images[0].save(tmp_path / "scene.png")
    for seed, name in enumerate(("short", "polite")):
        write_adapter(CHECKPOINT, tmp_path / "adapters" / name, r"model\..*self_attn\.q_proj", seed=seed)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_python(code: str, name: str, namespace: dict[str, object]) -> str:
    shown = io.StringIO()
    with contextlib.redirect_stdout(shown):
        exec(compile(code, name, "exec", dont_inherit=True), namespace)
    return shown.getvalue()


def run_bash(code: str, folder: Path) -> str:
    code = code.replace("curl -s", "curl --fail -s").replace("seesay ", f"{sys.executable} -m seesay ")
    command = ["bash", "-euo", "pipefail", "-c", code]
    done = subprocess.run(command, check=False, cwd=folder, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    return done.stdout


def run_page(page: str, server: LiveServer, folder: Path) -> dict[int, str]:
    """What each example prints that can be run; Python examples of a page share their names."""
    namespace: dict[str, object] = {"__name__": "example"}
    outputs = {}
    for number, example in enumerate(read_examples((ROOT / page).read_text(encoding="utf-8"))):
        code = example.code.replace("http://localhost:23333", server.url)
        code = code.replace("ws://localhost:23333", server.url.replace("http", "ws", 1))
        if example.language == "python":
            shown = run_python(code, f"{page}, example {number}", namespace)
        elif NOT_RUN.search(code):
            continue
        else:
            shown = run_bash(code, folder)
        outputs[number] = shown.replace(server.url, "http://localhost:23333")
    return outputs


@needs_checkpoint
@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not here")
@pytest.mark.parametrize("page", PAGES)
def test_examples_print_what_the_pages_show(
    page: str, server: LiveServer, folder: Path, pytestconfig: pytest.Config
) -> None:
    outputs = run_page(page, server, folder)
    for number, shown in outputs.items():
        check_answers(shown, f"{page}, example {number}")
    if pytestconfig.getoption("--refresh-docs"):
        write_outputs(ROOT / page, outputs)
    examples = read_examples((ROOT / page).read_text(encoding="utf-8"))
    assert outputs, "a page without an example that runs"
    for number, shown in outputs.items():
        expected = examples[number].expected or ""
        assert is_same(expected, shown), f"{page}, example {number} prints\n{shown}\nand not\n{expected}"


@needs_checkpoint
def test_examples_of_tools_need_no_clone(tmp_path: Path) -> None:
    """They run in an empty folder, with the package alone to import."""
    page = (ROOT / "docs/tools.md").read_text(encoding="utf-8")
    examples = [example for example in read_examples(page) if example.language == "python"]
    package = tmp_path / "site" / "seesay"
    shutil.copytree(ROOT / "seesay", package, ignore=shutil.ignore_patterns("__pycache__"))
    here = tmp_path / "here"
    here.mkdir()
    script = here / "script.py"
    guarded = textwrap.indent("\n".join(example.code for example in examples), "    ")
    script.write_text(f"if __name__ == '__main__':\n{guarded}", encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(package.parent)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, check=False, cwd=here, env=environment, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, done.stderr
    assert is_same("".join(example.expected or "" for example in examples), done.stdout)


def check_answers(shown: str, place: str) -> None:
    """Fail for an answer that is wrong, whatever a page says."""
    for left, right, total in re.findall(r"\b(\d+) \+ (\d+) = (\d+)\.", shown):
        assert int(left) + int(right) == int(total), f"{place}: {shown}"
    truths = [(r"The picture shows [^.\"]*\.", SCENE, 0), (r"There (?:are|is) [^.\"]*\.", SCENE, 1)]
    truths += [(r"The object [^.\"]*\.", MOTION, 0), (r"(?:Yes|No), [^.\"]*\.", COMPARE, 0)]
    for pattern, example, turn in truths:
        for answer in re.findall(pattern, shown):
            assert is_right(example, answer, turn), f"{place}: {answer}"


def test_the_pipeline_page_asks_about_two_pictures_and_gets_a_right_answer() -> None:
    page = (ROOT / "docs" / "pipeline.md").read_text(encoding="utf-8")
    (example,) = [example for example in read_examples(page) if "second picture:" in example.code]
    assert len(set(map(id, COMPARE.images))) == 2 and 'make_example("compare", 0)' in example.code
    assert example.expected is not None and is_right(COMPARE, example.expected.strip())


def test_pages_have_examples_with_outputs() -> None:
    """Python blocks without an output print nothing; bash blocks without one are installs and servers."""
    for page, least in zip(PAGES, (10, 8, 4, 1, 4)):
        text = (ROOT / page).read_text(encoding="utf-8")
        examples = read_examples(text)
        assert sum(example.expected is not None for example in examples) >= least, page
        for example in examples:
            has_output = example.expected is not None
            prints = "print(" in example.code if example.language == "python" else not NOT_RUN.search(example.code)
            assert has_output == prints, f"{page}: {example.code}"
        assert set(re.findall(r"^```(\w+)$", text, re.M)) <= {
            "python",
            "bash",
            "text",
            "toml",
            "ts",
        }  # ts: tools/generated_clients.py


def test_every_page_with_python_is_run() -> None:
    """`adding_a_family.md` has a test of its own; the WebUI's example is a server that runs until it is stopped."""
    pages = [path for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")] if "```python" in path.read_text()]
    others = {"docs/adding_a_family.md", "docs/webui.md", "docs/ray.md"}  # tests/test_ray_page.py
    assert {path.relative_to(ROOT).as_posix() for path in pages} - others <= {*PAGES}


def test_commands_of_all_pages_are_known() -> None:
    """Also those that are not run, as they download a model or serve: the parser accepts each with its options."""
    parser = make_parser()
    commands = []
    for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]:
        for example in read_examples(path.read_text(encoding="utf-8")):
            lines = example.code.replace("\\\n", " ").splitlines() if example.language == "bash" else ()
            commands += [found[1] for line in lines if (found := re.search(r"(?:^|\| )(?:\w+=\S+ )?seesay (.*)", line))]
    assert len(commands) > 15
    for command in commands:
        words = shlex.split(command.partition(" > ")[0].partition(" | ")[0].removesuffix(" &"), comments=True)
        try:
            parser.parse_args(words)
        except SystemExit as stopped:
            assert stopped.code == 0, command


@pytest.mark.parametrize("page", PAGES)
def test_pages_say_where_their_picture_is_from(page: str) -> None:
    """An example must not need a file that its reader does not have."""
    text = (ROOT / page).read_text(encoding="utf-8")
    draws = 'save("scene.png")' in text
    assert "scene.png" not in text or draws or "`seesay demo --out .`" in " ".join(text.split())


@needs_checkpoint
def test_the_chat_of_the_manual_is_a_real_one(folder: Path) -> None:
    """The lines after each prompt of docs/cli.md go to a chat over a pipe, which gives the answers shown."""
    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    transcript = text.partition("$ seesay chat\n")[2].partition("```")[0]
    lines = [line.removeprefix("you> ") for line in transcript.splitlines() if line.startswith("you> ")]
    answers = [line for line in transcript.splitlines() if not line.startswith(("you> ", "[", "loading", "ready"))]
    done = subprocess.run(
        [sys.executable, "-m", "seesay", "chat"], input="\n".join(lines), capture_output=True, text=True, timeout=800,
        check=False, cwd=folder,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    check_answers(done.stdout, "docs/cli.md")
    assert len(answers) == 2 and is_same("\n".join(answers), done.stdout)


# --- how pages are read and compared --------------------------------------------------------------------------------


def test_outputs_are_the_text_blocks_below_examples(tmp_path: Path) -> None:
    page = "a\n```python\nx\n```\n\n```text\n1\n```\n```bash\ny\n```\n\nb\n```text\nno\n```\n"
    one, two = read_examples(page)
    assert (one.language, one.code, one.expected) == ("python", "x\n", "1\n")
    assert (two.language, two.code, two.expected) == ("bash", "y\n", None)
    path = tmp_path / "page.md"
    path.write_text(page)
    write_outputs(path, {0: "2\n", 1: "3\n"})
    assert [example.expected for example in read_examples(path.read_text())] == ["2\n", "3\n"]
    write_outputs(path, {0: "1\n", 1: ""})
    assert path.read_text() == page


@pytest.mark.parametrize(
    ("expected", "shown", "same"),
    [
        ("The picture shows a red circle.", "There is one picture, of a red circle.", False),
        ("The picture shows a red circle.", "I see a red circle.", True),
        ("The picture shows a red circle.", "I see a blue circle.", False),
        ("3 + 4 = 7.", "3 + 4 = 8.", False),
        ("total 0.123 s, 157 tokens", "total 4.5 s, 161 tokens", True),
        ('{"id": "chatcmpl-0123456789abcdef", "n": 1}', '{"id": "chatcmpl-fedcba9876543210", "n": 1}', True),
        ('{"id":"x","n":1}', '{"id":"x","n":2}', True),
        ('{"id":"x","n":1}', '{"id":"y","n":1}', False),
        ("a…c", "abc", True),
        ("a…c", "abd", False),
        ("a\n…\nd", "a\nb\nc\nd", True),
        ("a\n…\nd", "a\nb\nc", False),
        ("a", "a\nb", False),
        ('data: {"content":"8"}', 'data: {"content":"8 + 9"}', True),
        ('data: {"content":"8"}', 'data: {"error":"8"}', False),
        ("", "a", False),
    ],
)
def test_outputs_are_compared_by_meaning(expected: str, shown: str, same: bool) -> None:
    assert is_same(expected, shown) is same


def test_long_outputs_are_shortened_and_still_match() -> None:
    shown = "".join(f"line {k} {'x' * 200}\n" for k in range(30))
    assert is_same(shorten(shown), shown) and len(shorten(shown).splitlines()) == 8


@pytest.mark.parametrize("wrong", ["3 + 4 = 8.", "The picture shows a red circle.", "There are nine shapes."])
def test_wrong_answers_are_found(wrong: str) -> None:
    with pytest.raises(AssertionError, match="page"):
        check_answers(wrong, "page")


def test_the_page_for_users_of_other_servers_names_options_that_there_are() -> None:
    """The last column of its table of options, and what stands for SGLang's."""
    page = (ROOT / "docs" / "migrating.md").read_text()
    table, _, rest = page.partition("## Options of the server")[2].partition("Of SGLang:")
    last = [line.split("|")[-2] for line in table.splitlines() if line.startswith("| `")]
    known = set(re.findall(r"`[^`]*` is `(--[a-z-]+)`", rest))
    named = {name for cell in last for name in re.findall(r"--[a-z][a-z-]+", cell)} | known
    parser = make_parser()
    for word in ("serve", "api_server"):
        [children] = [each for each in parser._actions if isinstance(each, argparse._SubParsersAction)]
        parser = children.choices[word]
    assert len(named) > 20 and named <= {*parser._option_string_actions}, named - {*parser._option_string_actions}
