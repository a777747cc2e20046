"""The examples of docs/ray.md run on a cluster, as a reader would run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from doc_examples import is_same, read_examples
from ray_cluster import ray_cluster

from seesay.serving.ray_app import build_app

pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
PAGE = (Path(__file__).parent.parent / "docs/ray.md").read_text(encoding="utf-8")


def test_examples_print_what_the_page_shows(tmp_path: Path) -> None:
    examples = [example for example in read_examples(PAGE) if example.language == "python"]
    assert len(examples) == 3 and all(example.expected for example in examples)
    (tmp_path / "script.py").write_text(
        'import ray\nray.init("auto", log_to_driver=False)\n' + "\n".join(example.code for example in examples)
    )
    with ray_cluster(2, num_cpus=3):
        done = subprocess.run(
            [sys.executable, "script.py"],
            check=False,
            cwd=tmp_path,
            env=os.environ,
            capture_output=True,
            text=True,
            timeout=500,
        )
    assert done.returncode == 0, done.stderr[-4000:]
    shown = "".join(line for line in done.stdout.splitlines(keepends=True) if "(raylet)" not in line)
    assert is_same("".join(example.expected or "" for example in examples), shown), shown


def test_the_configuration_file_makes_an_application() -> None:
    pytest.importorskip("ray", reason="the extra `ray` is not installed")
    config = yaml.safe_load(PAGE.partition("```yaml\n")[2].partition("```")[0])
    [application] = config["applications"]
    assert application["import_path"] == f"{build_app.__module__}:{build_app.__name__}"
    assert build_app(application["args"])
