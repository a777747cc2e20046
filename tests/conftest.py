"""For all tests: tiny random checkpoints, written once per run; `gpu` tests are skipped where there is no GPU."""

from __future__ import annotations

import fcntl
import gc
import importlib.util
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Any

import pairs
import pytest
from leak_watch import LeakWatch
from ports import find_port

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")  # as the WebUI does: later, it would end forks (forked_python)
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Every HTTP client reads the authorities that it trusts, certifi's in 20 ms. No test asks a server on the internet.
os.environ.setdefault("SSL_CERT_FILE", str(Path(__file__).with_name("authority.pem")))
if "PYTEST_XDIST_WORKER" in os.environ:  # workers beside each other: one thread each, for their children, too
    os.environ.setdefault("OMP_NUM_THREADS", "1")
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # as a shell starts what runs behind it; children inherit that
    signal.signal(signal.SIGINT, signal.default_int_handler)
pytest.register_assert_rewrite("seesay.contract")  # checks that the tests of families run, too
gc.disable()  # until all tests are collected


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--refresh-docs", action="store_true", help="write what examples print into README.md and docs/")
    parser.addoption("--requests", type=int, default=None, help="number of requests in tests/test_differential.py")
    parser.addoption("--kills", type=int, default=None, help="number of kills in tests/engine/test_kills.py")
    parser.addoption("--device", default=None, help="run engines of the CPU on it: see tests/support/other_device.py")
    parser.addoption("--stress-s", type=float, default=2.0, help="seconds that each stress test on a GPU takes")


COMPLETE_TRANSFORMERS = (5, 24)
"""The release that has all models that ours are compared with. Older ones, which run as well, lack some."""
OTHERWISE_IN_OLDER = {
    "bamba": "norms of one group",
    "granite4": "norms of one group",
    "granite4_dense": "norms of one group",
    "paligemma2": "other tokens of several prompts",
    "deepseek_ocr2": "no prompts without pictures",
    "minicpmv4_6": "pictures of few shapes",
}
"""Models that releases before that one (5.17 was tried) compute otherwise, or not at all, with what they do."""
BROWSER_FILES = (
    "test_page.py", "test_look.py", "test_history.py", "test_answers.py", "test_controls.py", "test_saving.py",
    "test_login.py", "test_played.py",
)  # fmt: skip
"""Stay in one worker, where they share a browser and servers of the WebUI."""
LONG_FILES = (
    *BROWSER_FILES, "test_interpreter.py", "test_compiles.py", "test_golden.py", "test_docs.py", "test_frontends.py",
    "test_rank_failures.py", "test_rank_models.py", "test_ranks.py", "test_servers.py", "test_rank_weights.py",
    "test_shards.py", "test_divided_decoders.py", "test_batches.py", "test_replay.py", "test_kills.py",
    "test_process.py", "test_sleep.py", "test_precompile.py",
    "test_processes.py", "test_packaging.py", "test_my_family.py", "test_life.py", "test_grammar_answers.py",
    "test_thoughts.py", "test_launch.py", "test_runs.py", "test_training.py", "test_frontend_hangs.py",
    "test_operations.py", "test_space.py", "test_trials.py", "test_call_grammar.py", "test_methods.py",
    "test_h200.py", "test_families.py", "test_decoder.py", "test_formats.py", "test_weights.py",
    "test_quantized_replacing.py", "test_quantized_kv.py", "test_scheduler_random.py", "test_sandbox.py",
    "test_quantized.py", "test_policy.py", "test_checkpoint.py", "test_restrictions.py", "test_shared_fields.py",
    "test_bodies.py", "test_hostile_bodies.py", "test_interference.py", "test_nonsense.py",
    "test_contract_mutations.py", "test_serve.py", "test_frontend.py", "test_differential.py", "test_same_answers.py",
    "test_model_config.py", "test_large_media.py", "test_published.py", "test_tools.py", "test_detail.py",
    "test_limits.py", "test_first_token_host.py", "test_completions.py", "test_engine.py", "test_timed_steps.py",
)  # fmt: skip
"""Begin first, so that no worker has one of them left when the others are done."""


def pytest_configure(config: pytest.Config) -> None:
    if importlib.util.find_spec("hypothesis") is not None:
        pairs.load_profile(config)
    if (device := config.getoption("--device")) is not None:
        from other_device import use_device

        use_device(device)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Any:
    """Let the tests of a file stay in one worker, and those of `BROWSER_FILES`, too."""
    if config.getoption("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class Scheduling(LoadFileScheduling):  # type: ignore[misc, unused-ignore]
        def _split_scope(self, nodeid: str) -> str:
            file = nodeid.split("::", 1)[0]
            return "browser" if Path(file).name in BROWSER_FILES and "ui" in Path(file).parts else file

    return Scheduling(config, log)


@pytest.hookimpl(trylast=True)  # behind -k and -m
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Bring long files to the front, and skip tests marked `gpu` where there is none. Where slow tests are left out, so
    is every other case of a long sweep."""
    if pairs.leaves_out_slow(config):
        items[:], left_out = pairs.split_sweeps(items)
        config.hook.pytest_deselected(items=left_out)
    if config.getoption("--device") is not None:
        from other_device import skip_those_about_the_cpu

        skip_those_about_the_cpu(items)
    items.sort(key=lambda item: LONG_FILES.index(item.path.name) if item.path.name in LONG_FILES else len(LONG_FILES))
    marked = [item for item in items if item.get_closest_marker("gpu")]
    if marked:
        import torch

        if not torch.cuda.is_available():
            for item in marked:
                item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU"))


def pytest_collection_finish() -> None:
    """Let collections of garbage visit what tests make, not the modules that were imported and the tests themselves."""
    LEAK_WATCH.begin()
    gc.enable()


def pytest_sessionfinish() -> None:
    """Let the interpreter's own end find all objects: extensions complain about those that it does not visit."""
    gc.unfreeze()


LEAK_WATCH = LeakWatch()
MOST_KEPT_BYTES = 1 << 30
"""Of a GPU's memory that a test leaves in torch's cache."""
NEXT_ITEM = pytest.StashKey[pytest.Item | None]()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    item.session.stash[NEXT_ITEM] = nextitem


@pytest.fixture(scope="module", autouse=True)
def collect_leaks_of_file(request: pytest.FixtureRequest) -> Iterator[None]:
    """Blame the last test of a file for what its fixtures leave open. Begins before and ends after other fixtures."""
    yield
    LEAK_WATCH.collect_file(is_last=request.session.stash[NEXT_ITEM] is None)


@pytest.fixture(autouse=True)
def collect_leaks() -> Iterator[None]:
    """Blame a test for what it leaves open."""
    yield
    LEAK_WATCH.collect()


@pytest.fixture(autouse=True)
def give_device_memory_back(request: pytest.FixtureRequest) -> Iterator[None]:
    """Leave a GPU's memory to the workers beside this one."""
    yield
    if request.node.get_closest_marker("gpu"):
        import torch

        if torch.cuda.memory_reserved() > MOST_KEPT_BYTES:
            gc.collect()
            torch.cuda.empty_cache()


@pytest.fixture(scope="session", autouse=True)
def forked_processes() -> Iterator[None]:
    """Processes that seesay starts are forks (`tests/support/forked_python.py`), except inside of `started()`."""
    if importlib.util.find_spec("msgspec") is None or importlib.util.find_spec("zmq") is None:
        yield
        return
    from forked_python import forking_ours  # takes the environment as it is from here on

    with forking_ours():
        yield


@pytest.fixture(scope="session")
def unused_tcp_port_factory() -> Callable[[], int]:
    """pytest-asyncio's gives ports that a connection of another process may have a moment later."""
    return find_port


@pytest.fixture
def unused_tcp_port() -> int:
    return find_port()


@pytest.fixture
def forget_templates(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """No chat template is registered, and what the test registers is gone after it, or when it calls this."""
    from seesay.templates import builtin

    def forget() -> None:
        monkeypatch.setattr(builtin, "_registered", {})
        monkeypatch.setattr(builtin, "_matches", {})

    forget()
    return forget


def make_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Let one of several processes `make` a folder; the others wait for it."""
    folder.parent.mkdir(exist_ok=True)
    with folder.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = folder.with_suffix(".new")
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(folder)
    return folder


def is_older_transformers() -> bool:
    """Whether Transformers is older than the release that has all models we compare with."""
    return tuple(int(part) for part in metadata.version("transformers").split(".")[:2]) < COMPLETE_TRANSFORMERS


@pytest.fixture(scope="session")
def tiny_checkpoint(tmp_path_factory: pytest.TempPathFactory, pytestconfig: pytest.Config) -> Callable[[str], Path]:
    """`tiny_checkpoint(name)` is the folder of a tiny random checkpoint, made by Transformers on first use: by one of
    the processes of a run for all of them. No test may write into it.

    Names: those of `enrolment.CHECKPOINTS`, `EMBEDDERS`, `MODULES`, `VISION_MODULES`, `AUDIO_MODULES`
    and `OWN_CODE`. An architecture
    without a checkpoint, which is enrolled under its own name, fails the test; one that needs a package which is not
    installed skips it.
    """
    from enrolment import AUDIO_MODULES, CHECKPOINTS, EMBEDDERS, MODULES, OWN_CODE, VISION_MODULES, without_checkpoint

    def write(name: str, folder: Path) -> None:
        from vl.checkpoints import (
            make_checkpoint,
        )  # imports most of Transformers: not where another process has made it

        make_checkpoint(name, folder)

    made: dict[str, Path] = {}
    shared = tmp_path_factory.getbasetemp()
    if hasattr(pytestconfig, "workerinput"):
        shared = shared.parent

    def get(name: str) -> Path:
        if name not in {*CHECKPOINTS, *EMBEDDERS, *MODULES, *VISION_MODULES, *AUDIO_MODULES, *OWN_CODE}:
            pytest.fail(without_checkpoint(name))
        if name in CHECKPOINTS and (package := CHECKPOINTS[name].needs) is not None:
            pytest.importorskip(package, reason=f"{name} is compared with a model that needs {package}")
        if name in OTHERWISE_IN_OLDER and is_older_transformers():
            pytest.skip(f"this Transformers has {OTHERWISE_IN_OLDER[name]} in {name}")
        if name not in made:
            try:
                made[name] = make_once(shared / "checkpoints" / name, partial(write, name))
            except ImportError as error:
                if not (error.name or "").startswith("transformers") or not is_older_transformers():
                    raise
                pytest.skip(f"{name} is compared with a model that this Transformers does not have: {error}")
        return made[name]

    return get
