"""`seesay bench` with the built-in model and a live server; and the scripts that have LMDeploy's names."""

from __future__ import annotations

import csv
import json
import os
import runpy
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from live_server import LiveServer, make_settings, serve

from seesay.bench.http_load import Job, Target, load, make_body
from seesay.bench.workload import Request
from seesay.cli import main
from seesay.commands.arguments.advice import suggest
from seesay.config import EngineConfig
from seesay.engine.front.engine import AsyncEngine

ROOT = Path(__file__).parents[2]
SMALL = ["--device", "cpu", "--session-len", "2048", "--max-batch-size", "4"]


@pytest.fixture(scope="module")
def server() -> Iterator[LiveServer]:
    config = EngineConfig(session_len=2048, device_type="cpu", max_batch_size=4)
    settings = make_settings(api_keys=("k",), unknown_fields="ignore")
    with AsyncEngine("seesay-demo", backend_config=config) as engine, serve(engine, settings) as server:
        yield server


def run(tmp_path: Path, *words: str) -> list[dict[str, Any]]:
    path = tmp_path / "figures.json"
    assert main(["bench", *words, "--output-file", str(path)]) == 0
    records: list[dict[str, Any]] = json.loads(path.read_text())
    return records


def test_throughput_of_texts_and_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--num-prompts", "5", "--random-input-len", "12", "--random-output-len", "6", "-c", "2", *SMALL]
    table = tmp_path / "f.csv"
    [record] = run(
        tmp_path, "throughput", "--dataset-name", "random-image", "--image-size", "56x56", *words, "--csv", str(table)
    )
    assert record["completed"] == 5 and record["failed"] == 0 and record["total_output_tokens"] == 30
    assert record["total_input_tokens"] > 5 * 12 and record["mean_ttft_ms"] > 0
    [row] = csv.DictReader(table.read_text().splitlines())
    assert row["batch"] == "2" and float(row["RPS"]) > 0 and "time to the first token" in capsys.readouterr().out


def test_latency_by_concurrency_and_length(tmp_path: Path) -> None:
    words = ["-c", "1", "2", "-pt", "8", "30", "-ct", "4", "3", "-tr", "2", "-w", "0", *SMALL]
    records = run(tmp_path, "latency", *words)
    found = [(r["concurrency"], r["total_input_tokens"], r["total_output_tokens"]) for r in records]
    assert found == [(1, 16, 8), (1, 60, 6), (2, 32, 16), (2, 120, 12)]


def test_a_server_at_several_rates(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEESAY_API_KEY", "k")
    pytest.importorskip("matplotlib")
    words = ["--base-url", f"{server.url}/v1", "--num-prompts", "4", "--random-input-len", "12"]
    words += ["--random-output-len", "5", "--request-rate", "inf,50", "--goodput", "ttft:600000", "--clients", "2"]
    records = run(tmp_path, "serve", *words, "--plot", str(tmp_path / "f.png"))
    assert [(r["label"], r["completed"], r["total_output_tokens"]) for r in records] == [
        ("inf req/s", 4, 20), ("50 req/s", 4, 20),
    ]  # fmt: skip
    assert all(r["request_goodput"] == pytest.approx(r["request_throughput"]) for r in records)
    assert records[0]["total_input_tokens"] > 48 and (tmp_path / "f.png").exists()


def test_vllms_options(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEESAY_API_KEY", "k")
    words = ["bench", "serve", "--backend", "vllm", "--base-url", server.url, "--endpoint", "/v1/completions"]
    words += ["--dataset-name", "random", "--input-len", "4", "--random-prefix-len", "30", "--output-len", "5"]
    words += ["--num-prompts", "3", "--num-warmups", "0", "--ignore-eos", "--temperature", "0.5", "--top-k", "5"]
    words += ["--percentile-metrics", "ttft,e2el", "--metric-percentiles", "10", "--disable-tqdm", "--save-result"]
    folder = tmp_path / "new" / "results"
    assert main([*words, "--result-dir", str(folder), "--result-filename", "r.json"]) == 0
    [record] = json.loads((folder / "r.json").read_text())
    assert record["completed"] == 3 and record["total_output_tokens"] == 15 and record["total_input_tokens"] > 100
    assert record["endpoint"] == "/v1/completions" and (record["temperature"], record["top_k"]) == (0.5, 5)
    assert record["p10_ttft_ms"] > 0 and "p10_e2el_ms" in record and "mean_itl_ms" not in record
    assert main([*words, "--result-dir", str(folder)]) == 0
    (named,) = folder.glob("vllm-infqps-*.json")
    assert json.loads(named.read_text())[0]["completed"] == 3


def test_progress_of_several_clients(server: LiveServer, capsys: pytest.CaptureFixture[str]) -> None:
    target = Target(url=server.url, headers={"Authorization": "Bearer k"})
    model = httpx.get(f"{server.url}/v1/models", headers=target.headers).json()["data"][0]["id"]
    jobs = [Job(0.0, "x", make_body(model, Request("hello", [], 3))) for _ in range(5)]
    result = load(target, jobs, 2, 2, shows_progress=True)
    assert not any(outcome.error for outcome in result.outcomes) and "5/5" in capsys.readouterr().err


def test_requests_that_fail_are_in_the_status(server: LiveServer, tmp_path: Path) -> None:
    words = ["--base-url", server.url, "--api-key", "wrong", "--model", "tiny", "--num-prompts", "2", "--warmup", "0"]
    path = tmp_path / "f.json"
    assert main(["bench", "serve", *words, "--random-input-len", "4", "--output-file", str(path)]) == 1
    [record] = json.loads(path.read_text())
    assert record["failed"] == 2 and "401" in record["first_error"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("serve --base-url http://127.0.0.1:1", "is it running"),
        ("serve --base-url ftp://x", "must begin with http://"),
        ("serve --burstiness 0", "--burstiness must be above 0"),
        ("latency -pt 1 2 -ct 1", "--completion-tokens must have a length for each"),
        ("throughput a b c", "one dataset and one model"),
        ("serve --dataset-name sharegpt", "--dataset-path is required"),  # no server is there
        ("serve --dataset-name random --dataset-path x", "--dataset-name random draws its requests"),
        ("throughput x.json seesay-demo --dataset-name random", "reads no file, got x.json"),
        ("serve --model m --json f.json --save-result", "--output-file and --save-result are the same"),
        ("serve --model m --result-dir /dev/null/x", "cannot make '/dev/null/x': Not a directory"),
        ("serve --temperature 0 --top-p 0.5", "--top-p and --top-k choose among several tokens"),
        ("serve --json /no/such/folder/f.json", "cannot write '/no/such/folder/f.json': No such file"),
        ("throughput /no/model --csv /", "cannot write '/': Is a directory"),
        ("latency /no/model --csv /no/such/f.csv", "cannot write '/no/such/f.csv'"),
    ],
)
def test_wrong_options_are_one_line(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 1
    assert message in capsys.readouterr().err


def test_files_of_results_are_left_as_they_were_where_nothing_is_measured(tmp_path: Path) -> None:
    old, new = tmp_path / "old.json", tmp_path / "new.csv"
    old.write_text("{}")
    words = ["bench", "serve", "--base-url", "http://127.0.0.1:1", "--json", str(old), "--csv", str(new)]
    assert main(words) == 1 and old.read_text() == "{}" and not new.exists()


def test_lengths_and_files_of_datasets(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEESAY_API_KEY", "k")
    words = ["serve", "--base-url", server.url, "-n", "2", "--random-input-len", "4", "--output-len", "4"]
    [record] = run(tmp_path, *words)
    assert record["total_output_tokens"] == 8 and record["dataset"] == "random"
    talk = [{"from": "human", "value": "what is in the picture?"}, {"from": "gpt", "value": "a b c d e f g h i"}]
    path = tmp_path / "share.json"
    path.write_text(json.dumps([{"conversations": talk}]))
    [record] = run(tmp_path, *words, "--dataset-path", str(path))
    assert record["dataset"] == "sharegpt", "as in LMDeploy's manual"
    path.write_text(json.dumps({"prompt": "what is in the picture?"}))
    [record] = run(tmp_path, "throughput", str(path), "seesay-demo", "--dataset-name", "custom", "-n", "1", *SMALL)
    assert record["dataset"] == "custom"


@pytest.mark.parametrize(
    "option", ["--goodput x:1", "--percentiles 101", "--image-size 3y", "--random-range-ratio 0", "--plot x.txt"]
)
def test_options_that_cannot_be_read(option: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", "throughput", *option.split()])
    assert option.split()[0] in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("throughput x.json m --cancel-rate 0.1", "'--cancel-rate': every answer is measured to its end"),
        ("serve --multi", "'--multi': give all rates to --request-rate"),
        ("serve --ignore-eos --disable-ignore-eos", "not allowed with argument --ignore-eos"),
        ("serve --endpoint /v1/embeddings", "must end with /chat/completions or /completions"),
        ("serve --percentile-metrics ttfb", "must be of ttft, tpot, itl, e2el"),
    ],
)
def test_options_of_others_that_mean_nothing_here(words: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["bench", *words.split()])
    assert message in capsys.readouterr().err


def test_the_opposite_of_an_option_is_not_suggested() -> None:
    known = ["--disable-ignore-eos", "--no-thinking", "--thinking"]
    assert suggest("--ignore-eos", known) == "" and suggest("--disable-thinking", ["--thinking"]) == ""
    assert "'--disable-ignore-eos'" in suggest("--disabel-ignore-eos", known)
    assert "'--no-thinking'" in suggest("--no-thinkin", known) and "'--thinking'" in suggest("--thinkin", known)


def test_lmdeploys_script_takes_its_arguments(tmp_path: Path) -> None:
    question, answer = "what is in the picture?", "a b c d e f"
    records = [{"conversations": [{"from": "human", "value": question}, {"from": "gpt", "value": answer}]}]
    dataset = tmp_path / "share.json"
    dataset.write_text(json.dumps(records))
    script = str(ROOT / "benchmarks" / "profile_throughput.py")
    path = os.pathsep.join(filter(None, (str(ROOT), os.environ.get("PYTHONPATH"))))
    command = [sys.executable, script, str(dataset), "seesay-demo", "-n", "2", "--csv", str(tmp_path / "f.csv"), *SMALL]
    command += ["--top-p", "0.8", "-temp", "0.8", "--top-k", "1", "--disable-tqdm"]
    done = subprocess.run(
        command, check=False, capture_output=True, text=True, timeout=300, env={**os.environ, "PYTHONPATH": path}
    )
    assert done.returncode == 0, done.stderr
    assert next(csv.DictReader((tmp_path / "f.csv").read_text().splitlines()))["num_prompts"] == "2"


def run_script(name: str, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[dict[str, str]]:
    """Run a script of `benchmarks/`. Returns the rows of its CSV."""
    table = tmp_path / "f.csv"
    monkeypatch.setattr(sys, "argv", [name, *words, "--csv", str(table)])
    with pytest.raises(SystemExit) as ended:
        runpy.run_path(str(ROOT / "benchmarks" / name), run_name="__main__")
    assert ended.value.code == 0
    return list(csv.DictReader(table.read_text().splitlines()))


def test_lmdeploys_script_of_latencies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    words = ["seesay-demo", "-c", "1", "2", "-pt", "8", "-ct", "4", "-tr", "1", "-w", "0", *SMALL]
    rows = run_script("profile_generation.py", words, tmp_path, monkeypatch)
    assert [(row["batch"], row["num_prompts"]) for row in rows] == [("1", "1"), ("2", "2")]


def test_lmdeploys_script_of_servers(server: LiveServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SEESAY_API_KEY", "k")
    words = ["--base-url", server.url, "--num-prompts", "3", "--random-input-len", "12", "--random-output-len", "5"]
    [row] = run_script("profile_restful_api.py", words, tmp_path, monkeypatch)
    assert row["num_prompts"] == "3" and float(row["FTL(ave)(s)"]) > 0
