"""Put single faults into modules, one at a time, and see whether the tests notice.

    python -m tools.mutants seesay/llm/scheduling --number 40 --seed 1
    python -m tools.mutants seesay/engine/process/link.py --all --wider 120

For each fault the test file that matches the module runs first, until its first failure. A fault that passes it is
given to the other tests of that folder, if `--wider` says for how many seconds. The faults are drawn by the seed:
flipped comparisons, negated conditions, numbers that are off by one, calls and statements left out, swapped arguments,
loops that end after one turn. All of it happens in a copy of the tree, in processes forked from one that has imported
what the tests import, so that most runs take few seconds.

Faults that change nothing that a caller can see stand in tools/equivalent_mutants.txt, each with the reason.
"""

from __future__ import annotations

import argparse
import importlib
import importlib.util
import os
import random
import re
import shutil
import signal
import sys
import sysconfig
import tempfile
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

from tools.single_faults import Fault, find_faults

ROOT = Path(__file__).parents[1]
EQUIVALENT = Path(__file__).with_name("equivalent_mutants.txt")
LIMIT_S = 20.0
"""Most seconds of the test files that match a module: of CPU time, and on an idle machine."""

_PARTS = {
    "seesay/llm/scheduling": ("tests/llm/scheduling/test_scheduler.py", "tests/llm/test_scheduler_random.py"),
    "seesay/engine/core": ("tests/engine/core/test_loop.py", "tests/engine/test_engine_core.py"),
    "seesay/engine/core/grammars": ("tests/engine/core/test_step_masks.py", "tests/engine/test_grammar_answers.py"),
    "seesay/engine/core/loading": ("tests/engine/front/test_engine.py", "tests/engine/test_capacity.py"),
    "seesay/engine/core/speculation": ("tests/engine/core/test_speculation.py",),
    "seesay/engine/front": ("tests/engine/front/test_engine.py",),
    "seesay/engine/process": ("tests/engine/process/test_service.py", "tests/engine/test_link.py"),
    "seesay/engine/process/ranks": ("tests/engine/process/ranks/test_followers.py", "tests/engine/test_ranks.py"),
    "seesay/engine/process/remote": ("tests/engine/process/test_requests.py", "tests/engine/test_process.py"),
    "seesay/engine/process/tower": ("tests/engine/test_encoder_process.py",),
    "seesay/serving/frontends": ("tests/serving/test_shared_state.py", "tests/serving/test_accepting.py"),
}
"""Folders whose modules are one part: the test file of the part, which matches each of them beside its own, and tests
in other folders."""

_PYTEST_OPTIONS = (
    "-x", "-q", "--no-header", "--tb=line", "-p", "no:cacheprovider", "-m", "not slow",
    "-W", "ignore::pytest.PytestAssertRewriteWarning",
)  # fmt: skip
_EQUAL, _SURVIVED, _CAUGHT, _CAUGHT_WIDER = "equivalent", "survived", "caught", "caught by the folder"
_CAUGHT_LATE = "caught late"


class Outcome(NamedTuple):
    """How a run of tests ended: `status` is pytest's, or None where it did not end in time. `cpu_s` is its CPU time,
    which other work of the machine does not change. `test` failed first."""

    status: int | None
    cpu_s: float
    wall_s: float
    test: str


_PASSED = Outcome(0, 0.0, 0.0, "")


# --- tests ------------------------------------------------------------------------------------------------------------


def find_test_files(path: str, root: Path = ROOT) -> list[str]:
    """Return the test files that match a module: tests/a/test_b.py for seesay/a/b.py, or the nearest of that name in a
    folder above; and that of the part to which it belongs."""
    module = Path(path)
    name = f"test_{module.stem.strip('_')}.py"
    folders = [folder for folder in Path("tests", *module.parts[1:-1], "_").parents if folder.parts]
    own = [str(folder / name) for folder in folders if (root / folder / name).is_file()][:1]
    part = _PARTS.get(str(module.parent), ())[:1]
    return list(dict.fromkeys(file for file in [*own, *part] if (root / file).is_file()))


def find_wider_tests(path: str, root: Path = ROOT) -> list[str]:
    """Return the nearest folder of tests for a module, and the other tests of its part, as pytest's arguments."""
    folder = Path("tests", *Path(path).parts[1:-1])
    while not list((root / folder).glob("test_*.py")):
        folder = folder.parent
    others = [file for file in _PARTS.get(str(Path(path).parent), ())[1:] if (root / file).is_file()]
    return [*others, str(folder), *(f"--ignore={file}" for file in find_test_files(path, root))]


def copy_tree(root: Path, target: Path) -> None:
    """Copy the Python files of a project; all others are links."""

    def place(source: str, to: str) -> None:
        if source.endswith(".py"):
            shutil.copy2(source, to)
        else:
            Path(to).symlink_to(Path(source).resolve())

    ignored = shutil.ignore_patterns(".*", "__pycache__", "build", "dist", "site", "*.egg-info")
    shutil.copytree(root, target, copy_function=place, ignore=ignored, symlinks=True)


class Tests:
    """Runs tests of a copied tree in forks of this process, which imports once what they import."""

    def __init__(self, tree: Path) -> None:
        self._tree = tree
        self._report = tree.with_name("report")

    def run(self, targets: Iterable[str], limit_s: float, *, is_first: bool = False) -> Outcome:
        """Run test files until a test fails. is_first: note what is imported, and import that here, too."""
        begin_s = time.monotonic()
        pid = os.fork()
        if not pid:
            self._be_child([*targets], is_first=is_first)
        status, cpu_s = _wait(pid, begin_s + limit_s)
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)  # what it left behind
        output = self._report.read_text(errors="replace")
        failed = re.search(r"^(?:FAILED|ERROR) (\S+)", output, re.MULTILINE)
        if is_first and status == 0:
            _import_all(self._report.with_suffix(".modules").read_text().split())
        elif is_first:
            sys.stderr.write(output[-4000:])
        return Outcome(status, cpu_s, time.monotonic() - begin_s, failed.group(1) if failed else "")

    def _be_child(self, targets: list[str], *, is_first: bool) -> None:
        """Run pytest as a child of this process, and end."""
        status = 1
        try:
            os.setsid()
            output = os.open(self._report, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
            for stream in (1, 2):
                os.dup2(output, stream)
            os.chdir(self._tree)
            sys.path[:] = [str(self._tree), *(each for each in sys.path if Path(each).resolve() != ROOT)]
            os.environ["PYTHONPATH"] = str(self._tree)
            if not is_first:  # a fault is to leave no byte code behind
                sys.dont_write_bytecode = True
                os.environ["PYTHONDONTWRITEBYTECODE"] = "1"
            pytest = importlib.import_module("pytest")
            status = int(pytest.main([*_PYTEST_OPTIONS, *targets]))
            self._report.with_suffix(".modules").write_text("\n".join(_list_foreign_modules()))
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _wait(pid: int, deadline_s: float) -> tuple[int | None, float]:
    """Wait for a child. Returns its exit status, which is negative for a signal, and its CPU seconds; the status is
    None where it was killed because the time was over."""
    pause_s, is_over = 0.01, False
    while True:
        ended, status, usage = os.wait4(pid, 0 if is_over else os.WNOHANG)
        if ended:
            return None if is_over else os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime
        if time.monotonic() >= deadline_s:
            is_over = True
            os.killpg(pid, signal.SIGKILL)
        time.sleep(pause_s)
        pause_s = min(0.2, pause_s * 1.2)


def _list_foreign_modules() -> list[str]:
    """Names of imported modules that are not the project's."""
    folders = tuple({sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), sysconfig.get_path("stdlib")})
    return [
        name
        for name, module in sorted(sys.modules.items())
        if str(getattr(module, "__file__", None)).startswith(folders)
    ]


def _import_all(names: Iterable[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name in names:
            if name != "__main__":
                with suppress(Exception):
                    importlib.import_module(name)


@contextmanager
def put(fault: Fault, tree: Path) -> Iterator[None]:
    """A context in which a module of the copied tree has a fault."""
    module = tree / fault.path
    source = module.read_bytes()
    cached = Path(importlib.util.cache_from_source(str(module)))
    cached.unlink(missing_ok=True)
    module.write_bytes(fault.apply(source))
    try:
        yield
    finally:
        module.write_bytes(source)


# --- the score --------------------------------------------------------------------------------------------------------


def read_equivalent(path: Path = EQUIVALENT) -> set[str]:
    """Return the keys of faults that change nothing. A line that begins with # is the reason for those below it."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    return {line for line in lines if line and not line.startswith("#")}


def draw_faults(modules: Iterable[str], number: int | None, seed: int, root: Path = ROOT) -> list[Fault]:
    """Return faults of modules, drawn by the seed; all of them where `number` is None."""
    faults = [fault for path in modules for fault in find_faults((root / path).read_bytes(), path)]
    if number is not None:
        faults = random.Random(seed).sample(faults, min(number, len(faults)))
    return sorted(faults, key=lambda fault: (fault.path, fault.start, fault.after))


def list_modules(paths: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the modules of files and folders, by their paths below the root."""
    found: list[Path] = []
    for path in (Path(each).resolve() if Path(each).is_absolute() else root.resolve() / each for each in paths):
        found += sorted(path.rglob("*.py")) if path.is_dir() else [path]
    return [str(path.relative_to(root.resolve())) for path in found]


def judge(fault: Fault, tests: Tests, tree: Path, *, limit_s: float, wider_s: float) -> tuple[str, Outcome]:
    """Run the tests of a fault, each matching file for `limit_s` at most, its own one first. Returns what became of it,
    and the run that decided that, with the CPU time of all. A run that does not end is a fault that was noticed."""
    outcome = _PASSED
    with put(fault, tree):
        for file in find_test_files(fault.path, tree):
            before_s = outcome.cpu_s
            outcome = tests.run([file], limit_s)
            outcome = outcome._replace(cpu_s=before_s + outcome.cpu_s)
            if outcome.status != 0:
                return _CAUGHT, outcome
        if wider_s:
            outcome = tests.run(find_wider_tests(fault.path, tree), wider_s)
            if outcome.status not in (0, None):
                return _CAUGHT_WIDER, outcome
    return _SURVIVED, outcome


def measure(tests: Tests, modules: Iterable[str], tree: Path) -> dict[str, float]:
    """Run the matching test files without a fault. Returns the seconds of each file. Raises SystemExit where one
    fails."""
    files = dict.fromkeys(file for path in modules for file in find_test_files(path, tree))
    seconds = {}
    for file in files:
        outcome = tests.run([file], 600.0, is_first=True)
        if outcome.status == 0:
            outcome = tests.run([file], 600.0)
        if outcome.status != 0:
            sys.exit(f"{file} fails without a fault")
        seconds[file] = outcome.wall_s
        print(f"{file}: {outcome.cpu_s:.1f} s, {outcome.wall_s:.1f} s on this machine", flush=True)
    return seconds


def main(arguments: list[str] | None = None) -> int:
    """Print each fault and the score."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("paths", nargs="+", help="modules, or folders of them")
    parser.add_argument("--seed", type=int, default=0, help="which faults are drawn")
    parser.add_argument("--number", type=int, default=20, help="how many faults are drawn")
    parser.add_argument("--all", action="store_true", help="take all faults")
    parser.add_argument("--limit", type=float, default=LIMIT_S, help="seconds of the matching test files")
    parser.add_argument("--wider", type=float, default=0.0, help="seconds of the other tests of the folder; 0: none")
    parser.add_argument("--list", action="store_true", help="print the faults only")
    options = parser.parse_args(arguments)
    faults = draw_faults(list_modules(options.paths), None if options.all else options.number, options.seed)
    if options.list:
        print(*faults, sep="\n")
        return 0
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with tempfile.TemporaryDirectory(prefix="seesay-mutants-") as folder:
        tree = Path(folder, "tree")
        copy_tree(ROOT, tree)
        tests = Tests(tree)
        seconds = measure(tests, dict.fromkeys(fault.path for fault in faults), tree)
        equivalent, counts = read_equivalent(), Counter[str]()
        for fault in faults:
            result, outcome = _EQUAL, _PASSED
            if fault.key not in equivalent:
                limit_s = max(options.limit, 3 * sum(seconds[file] for file in find_test_files(fault.path, tree)))
                result, outcome = judge(fault, tests, tree, limit_s=limit_s, wider_s=options.wider)
            if result == _CAUGHT and outcome.cpu_s > options.limit:
                result = _CAUGHT_LATE
            counts[result] += 1
            how = "no end" if outcome.status is None else outcome.test.rpartition("/")[2]
            print(f"{result:10} {fault}  ({how} {outcome.cpu_s:.1f} s)", flush=True)
    print(describe(counts, options.limit))
    return 0


def describe(counts: Mapping[str, int], limit_s: float) -> str:
    """Return the score in a line, from the number of faults by what became of them."""
    total = sum(counts.values()) - counts[_EQUAL]
    caught, beside = total - counts[_SURVIVED], counts[_CAUGHT]
    shares = [f"{100 * each / max(1, total):.1f} %" for each in (caught, beside)]
    return (
        f"{caught} of {total} faults caught ({shares[0]}), {beside} by the matching file within {limit_s:g} s "
        f"({shares[1]}); {counts[_EQUAL]} more change nothing"
    )


if __name__ == "__main__":
    sys.exit(main())
