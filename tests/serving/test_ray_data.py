"""Ray Data: rows with pictures over four nodes, one of which is killed; runs that are stopped and continued."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ray_cluster import ray_cluster

from seesay import EngineConfig, GenerationConfig
from seesay.demo.checking import is_right
from seesay.demo.scenes import sample_scene
from seesay.errors import ConfigError
from seesay.serving.ray_data import answer_rows

pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.filterwarnings("ignore"),  # those of Ray's own imports, and of what it starts and leaves
]
CONFIG = EngineConfig(device_type="cpu", session_len=1024, num_gpu_blocks=128)
NUM_SCENES = 16


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Four nodes, of which the head has no room for an engine."""
    with ray_cluster(4, num_cpus=2) as cluster:
        import ray

        ray.init(cluster.address, log_to_driver=False)
        ray.data.DataContext.get_current().enable_progress_bars = False
        yield cluster
        ray.shutdown()


def ask(row: dict[str, Any], log: str = "") -> Any:
    """Return the prompt of a row. The rows that were asked are in the file `log`."""
    from PIL import Image

    if log:
        with Path(log).open("a") as file:
            file.write(f"{row['id']}\n")
    return "describe this image", Image.fromarray(row["picture"])


def make_rows(num_rows: int) -> Any:
    import ray

    pictures = [np.array(sample_scene(seed).images[0].convert("RGB").resize((192, 192))) for seed in range(NUM_SCENES)]
    rows = [{"id": index, "picture": pictures[index % NUM_SCENES]} for index in range(num_rows)]
    return ray.data.from_items(rows, override_num_blocks=max(8, num_rows // 25))


def read_answers(folder: Path) -> list[dict[str, Any]]:
    import pyarrow.dataset

    rows: list[dict[str, Any]] = pyarrow.dataset.dataset(folder, format="parquet").to_table().to_pylist()
    return rows


@pytest.mark.parametrize("num_rows", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_a_node_is_killed_midway(cluster: Any, tmp_path: Path, num_rows: int) -> None:
    """Nothing is lost, and nothing is there twice."""
    log, out = tmp_path / "log", tmp_path / "out"
    log.touch()
    answered = answer_rows(
        make_rows(num_rows),
        prompt=lambda row: ask(row, str(log)),
        engine_config=CONFIG,
        gen_config=GenerationConfig(max_new_tokens=24),
        num_engines=3,
        batch_size=8,
        actor_options={"num_cpus": 1},
    )
    is_killed = threading.Event()

    def kill() -> None:
        while len(log.read_text().splitlines()) < num_rows // 3:
            time.sleep(0.05)
        cluster.remove_node(cluster.list_all_nodes()[1], allow_graceful=False)
        is_killed.set()

    threading.Thread(target=kill, daemon=True).start()
    answered.write_parquet(str(out))
    assert is_killed.is_set()
    cluster.add_node(num_cpus=2, object_store_memory=100 << 20)  # for the tests behind this one
    rows = read_answers(out)
    assert sorted(row["id"] for row in rows) == list(range(num_rows))
    answers = {(row["id"] % NUM_SCENES, row["answer"]) for row in rows}
    assert len(answers) == NUM_SCENES, "equal pictures have equal answers, whoever gives them"
    num_right = sum(is_right(sample_scene(seed), answer) for seed, answer in answers)
    assert num_right >= NUM_SCENES // 2, answers


def test_a_run_is_continued(cluster: Any, tmp_path: Path) -> None:
    """What has a checkpoint is not answered again."""
    import ray
    from ray.data.checkpoint import CheckpointConfig

    log, out = tmp_path / "log", tmp_path / "out"
    context = ray.data.DataContext.get_current()
    context.checkpoint_config = CheckpointConfig(
        id_column="id", checkpoint_path=str(tmp_path / "done"), delete_checkpoint_on_success=False
    )
    table = str(tmp_path / "table")
    try:
        for num_rows in (16, 48):  # a run that ended early, and the whole
            context.checkpoint_config, checkpoint = None, context.checkpoint_config
            make_rows(num_rows).write_parquet(table + str(num_rows))
            context.checkpoint_config = checkpoint
            answer_rows(
                ray.data.read_parquet(table + str(num_rows)),
                prompt=lambda row: ask(row, str(log)),
                engine_config=CONFIG,
                gen_config=GenerationConfig(max_new_tokens=8),
                num_engines=2,
                batch_size=8,
                actor_options={"num_cpus": 1},
            ).write_parquet(str(out))
    finally:
        context.checkpoint_config = None
    assert sorted(row["id"] for row in read_answers(out)) == list(range(48))
    asked = Counter(map(int, log.read_text().split()))
    assert set(asked) == set(range(48)) and set(asked.values()) == {1}, "answered once"


def test_a_row_that_cannot_be_answered_fails_alone(cluster: Any) -> None:
    rows = answer_rows(
        make_rows(8),
        prompt=lambda row: "go on" if row["id"] else "go on " * 5000,
        engine_config=CONFIG,
        gen_config=GenerationConfig(max_new_tokens=4),
        actor_options={"num_cpus": 1},
    ).take_all()
    reasons = {row["id"]: row["finish_reason"] for row in rows}
    assert len(reasons) == 8 and [index for index, reason in reasons.items() if reason == "error"] == [0]


@pytest.mark.parametrize("name", ["num_engines", "batch_size"])
def test_numbers_below_one_are_refused(name: str) -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    options: dict[str, Any] = {name: 0}
    with pytest.raises(ConfigError, match=f"{name} must be at least 1, got 0"):
        answer_rows(None, prompt=ask, **options)
