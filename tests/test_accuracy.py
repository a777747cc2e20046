"""Evaluation harnesses ask our server about scenes, and give it the score that our own evaluation gives.

They are not installed with the tests: a harness is asked whose command is on the PATH.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from live_server import LiveServer, make_settings, serve

from seesay.config import EngineConfig
from seesay.demo.checking import is_right
from seesay.demo.evaluate import seesay_answerer
from seesay.demo.scenes import make_example
from seesay.engine.front.engine import AsyncEngine

ROOT = Path(__file__).parents[1]
TASKS = ROOT / "examples" / "accuracy"
NUMBER = 4


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("scenes")
    command = [sys.executable, str(TASKS / "make_tasks.py"), str(folder), str(NUMBER)]
    subprocess.run(command, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=120)
    return folder


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = EngineConfig(device_type="cpu")
    with AsyncEngine(backend_config=config) as engine, serve(engine, make_settings(unknown_fields="ignore")) as server:
        yield server


def read_questions(folder: Path, name: str) -> list[dict[str, str | int | list[str]]]:
    return [json.loads(line) for line in (folder / name).read_text(encoding="utf-8").splitlines()]


def test_tasks_are_questions_of_our_evaluation(folder: Path) -> None:
    """Both formats name what `make_tasks.py` writes, and each question is one that our evaluation asks."""
    for path, name in (
        (TASKS / "lm_eval" / "seesay_sums.yaml", "sums.jsonl"),
        (TASKS / "lmms_eval" / "seesay_scenes.yaml", "scenes.jsonl"),
    ):
        task = yaml.load(path.read_text().replace("!function ", ""), yaml.SafeLoader)
        assert task["dataset_kwargs"]["data_files"] == {"test": name}
        questions = read_questions(folder, name)
        assert len(questions) == NUMBER * len({question["task"] for question in questions})
        for question in questions:
            example = make_example(str(question["task"]), int(str(question["seed"])))
            assert (question["question"], question["answer"]) == example.turns[0] and is_right(
                example, str(question["answer"])
            )
            pictures = question["pictures"]
            assert isinstance(pictures, list) and len(pictures) == len(example.images)


def test_table_has_the_questions_about_pictures(folder: Path) -> None:
    """VLMEvalKit reads a table: paths of pictures as a list, and columns of our own, which its predictions keep."""
    with (folder / "seesay_scenes.tsv").open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file, delimiter="\t"))
    questions = read_questions(folder, "scenes.jsonl")
    assert [int(row["index"]) for row in rows] == list(range(len(questions)))
    for row, question in zip(rows, questions):
        assert json.loads(row["image_path"]) == question["pictures"]
        assert {name: row[name] for name in ("question", "answer", "task")} == {
            name: question[name] for name in ("question", "answer", "task")
        }


def run_harness(words: list[str], folder: Path, **variables: str) -> None:
    environment = {
        **os.environ,
        **variables,
        "PYTHONPATH": str(ROOT),
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(folder / "hub"),
        "OPENAI_API_KEY": "none",
    }
    done = subprocess.run(words, check=False, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr


def own_score(folder: Path, name: str) -> float:
    """The share of right answers that the pipeline gives to the same questions."""
    examples = [
        make_example(str(question["task"]), int(str(question["seed"]))) for question in read_questions(folder, name)
    ]
    from seesay.demo import CHECKPOINT

    with seesay_answerer(str(CHECKPOINT), EngineConfig(device_type="cpu")) as answer:
        answers = answer(examples)
    return sum(map(is_right, examples, answers)) / len(examples)


def read_score(folder: Path, task: str) -> float:
    (path,) = folder.rglob("*results*.json")
    return float(json.loads(path.read_text())["results"][task]["right,none"])


@pytest.mark.slow
def test_lm_evaluation_harness(server: LiveServer, folder: Path) -> None:
    command = shutil.which("lm-eval") or pytest.skip("lm_eval is not here")
    model = (
        f"model=tiny,base_url={server.url}/v1/chat/completions,num_concurrent=4,max_retries=1,tokenizer_backend=None"
    )
    words = ["run", "--model", "local-chat-completions", "--apply_chat_template", "--model_args", model]
    words += ["--include_path", str(TASKS / "lm_eval"), "--tasks", "seesay_sums", "--output_path", "lm_eval"]
    run_harness([command, *words], folder)
    assert read_score(folder / "lm_eval", "seesay_sums") == pytest.approx(own_score(folder, "sums.jsonl"))


@pytest.mark.slow
def test_lmms_eval(server: LiveServer, folder: Path) -> None:
    command = shutil.which("lmms-eval") or pytest.skip("lmms-eval is not here")
    model = f"model_version=tiny,base_url={server.url}/v1,api_key=none,num_concurrent=4,max_retries=1"
    words = ["eval", "--model", "openai", "--batch_size", "1", "--model_args", model]
    words += ["--include_path", str(TASKS / "lmms_eval"), "--tasks", "seesay_scenes", "--output_path", "lmms_eval"]
    run_harness([command, *words], folder)
    assert read_score(folder / "lmms_eval", "seesay_scenes") == pytest.approx(own_score(folder, "scenes.jsonl"))


@pytest.mark.slow
def test_lm_evaluation_harness_without_a_server(folder: Path) -> None:
    command = shutil.which("lm-eval") or pytest.skip("lm_eval is not here")
    words = ["-m", "seesay.harnesses.lm_eval", "run", "--model", "seesay", "--apply_chat_template"]
    words += ["--model_args", "pretrained=seesay-demo,device_type=cpu", "--output_path", "in_process"]
    words += ["--include_path", str(TASKS / "lm_eval"), "--tasks", "seesay_sums"]
    run_harness([str(Path(command).with_name("python")), *words], folder)
    assert read_score(folder / "in_process", "seesay_sums") == pytest.approx(own_score(folder, "sums.jsonl"))


@pytest.mark.slow
def test_lmms_eval_without_a_server(folder: Path) -> None:
    command = shutil.which("lmms-eval") or pytest.skip("lmms-eval is not here")
    words = ["eval", "--model", "seesay", "--batch_size", "1", "--model_args", "pretrained=seesay-demo,device_type=cpu"]
    words += ["--include_path", str(TASKS / "lmms_eval"), "--tasks", "seesay_scenes", "--output_path", "seen"]
    run_harness([command, *words], folder)
    assert read_score(folder / "seen", "seesay_scenes") == pytest.approx(own_score(folder, "scenes.jsonl"))


@pytest.mark.slow
def test_opencompass(server: LiveServer, folder: Path) -> None:
    """It compares whole answers; a right sum is written as it was taught."""
    command = shutil.which("opencompass") or pytest.skip("opencompass is not here")
    from seesay.demo import CHECKPOINT

    config = (TASKS / "opencompass" / "seesay_sums.py").read_text()
    config = config.replace('"tokenizer_path": "seesay-demo"', f'"tokenizer_path": {str(CHECKPOINT)!r}')
    config = config.replace("http://localhost:23333", server.url).replace('"path": "seesay-demo"', '"path": "tiny"')
    (folder / "sums.py").write_text(config)
    run_harness([command, "sums.py", "--debug", "--work-dir", "opencompass"], folder)
    (path,) = folder.rglob("summary_*.csv")
    score = float(path.read_text().splitlines()[1].rpartition(",")[2]) / 100
    assert score == pytest.approx(own_score(folder, "sums.jsonl"))


@pytest.mark.slow
def test_vlmevalkit(server: LiveServer, folder: Path) -> None:
    """It asks, and our script judges its predictions."""
    command = shutil.which("vlmutil") or pytest.skip("VLMEvalKit is not here")
    python = Path(command).with_name("python")
    find = [str(python), "-c", "import importlib.util as u; print(u.find_spec('vlmeval').origin)"]
    package = Path(subprocess.run(find, check=True, capture_output=True, text=True, timeout=60).stdout.strip())
    config = (TASKS / "vlmevalkit" / "seesay_scenes.json").read_text()
    config = config.replace("http://localhost:23333", server.url).replace("seesay-demo", "tiny")
    (folder / "vlm.json").write_text(config)
    words = [str(python), str(package.parents[1] / "run.py"), "--config", "vlm.json", "--mode", "infer"]
    run_harness([*words, "--work-dir", "vlmevalkit"], folder, LMUData=str(folder), PRED_FORMAT="json")
    predictions = next((folder / "vlmevalkit" / "seesay").glob("*/seesay_seesay_scenes.json"))
    judge = [sys.executable, str(TASKS / "vlmevalkit" / "judging.py"), str(predictions)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(judge, check=True, capture_output=True, text=True, timeout=120, env=environment)
    verdict = json.loads(done.stdout)
    assert verdict["questions"] == len(read_questions(folder, "scenes.jsonl"))
    assert verdict["right"] == pytest.approx(own_score(folder, "scenes.jsonl"))
