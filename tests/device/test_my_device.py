"""`examples/my_device`: a package that adds a device to seesay. It is installed as users do it, and the engine answers
on it, in a process of its own: see `tests/on_device`."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

import seesay
from seesay.demo.scenes import make_example

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "my_device"
TESTS = ROOT / "tests" / "on_device"
TIMEOUT_S = 1500

pytestmark = [
    pytest.mark.skipif(
        not any(shutil.which(name) for name in ("g++", "clang++")), reason="needs a C++ compiler, g++ or clang++"
    ),
    pytest.mark.timeout(TIMEOUT_S + 60),
]


@pytest.fixture(scope="module")
def environment(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a process that finds the package, which pip has installed without a network."""
    folder = tmp_path_factory.mktemp("my_device")
    source = shutil.copytree(EXAMPLE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    options = ["--quiet", "--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", "install", *options, "--target", str(folder / "site"), str(source)]
    subprocess.run(command, check=True, timeout=300)
    paths = [str(Path(seesay.__file__).parents[1]), str(folder / "site")]
    kept = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST_")}
    return {**kept, "PYTHONPATH": os.pathsep.join(paths), "CUDA_VISIBLE_DEVICES": ""}


def run(environment: dict[str, str], *arguments: str, timeout_s: float = 300) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *arguments]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_the_engine_answers_on_it(environment: dict[str, str], tmp_path: Path) -> None:
    report = tmp_path / "report.xml"
    options = ["-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=300", f"--junitxml={report}", f"{TESTS}"]
    done = run(
        {**environment, "SEESAY_TEST_DEVICE": "npu", "OMP_NUM_THREADS": "1"},
        "-m",
        "pytest",
        *options,
        timeout_s=TIMEOUT_S,
    )
    cases = ElementTree.parse(report).getroot().iter("testcase")
    outcomes = {str(case.get("name")): [child.tag for child in case if child.tag != "properties"] for case in cases}
    failed = {name: tags for name, tags in outcomes.items() if tags}
    assert done.returncode == 0 and not failed, f"{failed}\n{done.stdout[-8000:]}"
    assert len(outcomes) > 20


@pytest.mark.slow
@pytest.mark.parametrize(
    "tests",
    [
        "front/test_engine.py", "front/test_thoughts.py", "test_engine_core.py", "test_several_answers.py",
        "test_abort_stages.py", "test_restrictions.py", "test_remote_code.py", "test_timed_steps.py", "test_weights.py",
        "core/test_loop.py", "core/test_draft_model.py", "core/test_step_pipeline.py", "core/test_suspects.py",
        "core/test_faults_everywhere.py", "core/test_jumps.py", "core/test_layer_draft.py", "core/test_speculation.py",
        "test_replay.py",
    ],
)  # fmt: skip
def test_the_engines_own_tests_pass_on_it(environment: dict[str, str], tests: str) -> None:
    """Those that were written for the CPU: `pytest --device npu` runs any of them."""
    options = ["-q", "-p", "no:cacheprovider", "-p", "no:xdist", "--timeout=300", "--device", "npu"]
    options += ["-m", "not slow and not gpu", f"tests/engine/{tests}"]
    done = run({**environment, "OMP_NUM_THREADS": "1"}, "-m", "pytest", *options, timeout_s=TIMEOUT_S)
    assert done.returncode == 0 and " passed" in done.stdout, done.stdout[-8000:]


def test_chat_describes_a_picture(environment: dict[str, str], tmp_path: Path) -> None:
    """As the README of the package says, with the memory that the device has at first."""
    make_example("describe", 5).images[0].save(tmp_path / "scene.png")
    page = (EXAMPLE / "README.md").read_text()
    [line] = [line for line in page.splitlines() if line.startswith("seesay chat") and "--image" in line]
    arguments = shlex.split(line, comments=True)[1:]
    arguments[arguments.index("--image") + 1] = str(tmp_path / "scene.png")
    done = run({**environment, "OMP_NUM_THREADS": "1"}, "-m", "seesay", *arguments, timeout_s=600)
    assert done.returncode == 0 and " " in done.stdout.strip(), done.stderr


def test_auto_means_it(environment: dict[str, str]) -> None:
    done = run(environment, "-m", "seesay", "check_env")
    assert done.returncode == 0, done.stderr
    lines = dict(line.split(":", 1) for line in done.stdout.splitlines())
    assert lines["device"].strip().startswith("npu, the first that is there; cuda: torch finds no CUDA GPU")
    assert lines["gpu"].strip() == "my_device (1.0 GiB); my_device (1.0 GiB)"


def test_without_it_the_vendor_package_is_missing() -> None:
    plain = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    program = "from seesay.device.query import pick_device; pick_device('ascend:1')"
    done = run({**plain, "PYTHONPATH": str(Path(seesay.__file__).parents[1])}, "-c", program)
    assert "device_type='ascend:1': the package torch-npu is not installed; use 'auto' or 'cpu'" in done.stderr


def test_a_package_that_is_broken_is_left_out(environment: dict[str, str], tmp_path: Path) -> None:
    info = tmp_path / "broken-0.1.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: broken\nVersion: 0.1\n")
    (info / "entry_points.txt").write_text("[seesay.devices]\nbroken = json:JSONDecoder\n")
    found = {**environment, "PYTHONPATH": os.pathsep.join([environment["PYTHONPATH"], str(tmp_path)])}
    program = "from seesay.device.query import pick_device; print(pick_device('cpu'), pick_device('npu'))"
    done = run(found, "-c", program)
    assert done.stdout == "cpu npu\n", done.stderr
    [line] = [line for line in done.stderr.splitlines() if "broken 0.1" in line]
    assert "(json:JSONDecoder) cannot be used: TypeError: json:JSONDecoder is not a subclass" in line
