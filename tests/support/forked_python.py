"""Python processes that start in a tenth of the time: forks of a process that has imported what they import.

`ForkedPopen` is a `subprocess.Popen`. Its process has the arguments, the environment, the folder, the descriptors, the
process group and the list of paths that a started one has, a fresh `__main__` and its own place in `/proc`, and is a
child of the caller: the process in between ends, and for that moment the caller takes over orphans. What differs is
that modules are in `sys.modules` already. So a process is started as users do, not forked, where that could matter: see
`_plan`. `started` does so for all inside.

`forking_ours` lets processes that seesay itself starts be forks, in this process and in its forks, and commands
`python -m seesay …`. Inside of `forked`, other programs are, too.
"""

from __future__ import annotations

import atexit
import contextlib
import ctypes
import fcntl
import gc
import importlib
import inspect
import io
import json
import os
import resource
import runpy
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn
from unittest import mock

ROOT = Path(__file__).parents[2]
IMPORTED = (
    "torch", "safetensors.torch", "seesay.engine.process.service", "seesay.engine.opened_model",
    "seesay.engine.core.loading.loading", "seesay.llm.running.runner", "seesay.llm.models.composed_decoder",
    "seesay.encoders.worker", "seesay.engine.process.ranks.leading", "seesay.cli", "uvicorn", "fastapi",
    "seesay.serving.app", "seesay.serving.serve_model", "seesay.serving.frontends.supervisor",
)  # fmt: skip
STARTED = (
    "seesay.grammars.trial_child", "seesay.processors.media.document_child", "seesay.engine.process.precompile_child",
)  # fmt: skip
"""Modules of ours that have limits on their memory and time, or are about what a start compiles: never forked."""
_READ_AT_START = (
    "COV", "CUDA", "GLIBC", "GLOO", "GOMP", "HF_", "HIP", "HOME", "HUGGINGFACE", "KMP", "LANG", "LC_", "LD_", "MALLOC",
    "MKL", "NCCL", "NUMEXPR", "NVIDIA", "OMP", "OPENBLAS", "PYTHON", "PYTORCH", "ROCR", "TORCH", "TRANSFORMERS",
    "TRITON", "TZ", "XDG",
)  # fmt: skip
"""Beginnings of the names of variables that Python, the C library or an imported module reads once."""
_READ_ANEW = ("PYTHONPATH", "PYTHONUNBUFFERED", "TORCHINDUCTOR_CACHE_DIR")
"""Other names that begin so. Torch sets the last one itself."""
_LIMITS = (resource.RLIMIT_AS, resource.RLIMIT_FSIZE, resource.RLIMIT_NOFILE, resource.RLIMIT_CPU)
_REMOTE_CODE = "transformers_modules"
"""As what Transformers imports code of checkpoints; it leaves their folder in `sys.path`. Nothing shared has any."""
_PR_SET_CHILD_SUBREAPER = 36
_HIGH = 512
"""Descriptors from here on are free in the process that is forked."""
_MOST_CHARS = 8000
"""Of a command line in `/proc`: the template has that of a longer one, which its forks replace."""

FORKS = sys.platform == "linux" and not Path("/dev/nvidiactl").exists()
"""Where there is a GPU, its driver decides what a fork may do."""

_environment = dict(os.environ)
"""The environment in which modules are imported that are shared: no test has changed it yet."""
_limits = [resource.getrlimit(limit) for limit in _LIMITS]
_own_paths = list(sys.path)
"""In the template: those of the interpreter. In another process: where what is shared was found."""
_asked = threading.local()


@dataclass(frozen=True)
class Order:
    """What a fork is to run. places: its descriptors, in the order in which they are sent. group: its process group, 0
    for one of its own, None for a session of its own."""

    words: list[str]
    environment: dict[str, str]
    folder: str
    places: list[int]
    group: int | None

    @property
    def is_safe(self) -> bool:
        return self.words[1] == "-P"

    @property
    def paths(self) -> list[str]:
        return list(filter(None, self.environment.get("PYTHONPATH", "").split(os.pathsep)))

    @property
    def program(self) -> list[str]:
        """`-m MODULE …`, `-c CODE …` or `SCRIPT …`."""
        return self.words[1 + self.is_safe :]


class ForkedPopen(subprocess.Popen[Any]):
    """A `subprocess.Popen` whose process is a fork, where it is one of Python and nothing speaks against it."""

    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        asked = _SIGNATURE.bind(self, *arguments, **named).arguments
        if (order := _plan(asked)) is None:
            super()._execute_child(*arguments, **named)  # type: ignore[misc]
            return
        sys.audit("subprocess.Popen", sys.executable, order.words, order.folder, order.environment)
        given = {0: asked["p2cread"], 1: asked["c2pwrite"], 2: asked["errwrite"]}
        places = {place: place if number == -1 else number for place, number in given.items()}
        places |= {number: number for number in asked["pass_fds"]}
        try:
            self.pid = _find_template().fork(order, list(places.values()))
            self._child_created = True
        finally:
            names = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
            self._close_pipe_fds(*(asked[name] for name in names))  # type: ignore[attr-defined]


_SIGNATURE = inspect.signature(subprocess.Popen._execute_child)  # type: ignore[attr-defined]


class _OursForked(ForkedPopen):
    """Forks commands of seesay, its servers and what it starts with `python_command`; all others are started."""

    def _execute_child(self, *arguments: Any, **named: Any) -> None:
        words = _SIGNATURE.bind(self, *arguments, **named).arguments["args"]
        is_forked = _is_ours(words) or getattr(_asked, "how", None) == "forked"
        with contextlib.nullcontext() if is_forked else started():
            super()._execute_child(*arguments, **named)


def _is_ours(words: object) -> bool:
    if not isinstance(words, list) or len(words) < 3:
        return False
    if words[1:3] == ["-P", "-m"]:
        return words[3] not in STARTED
    return words[1] == "-m" and words[2] in ("seesay", "seesay.serving.child")


@contextlib.contextmanager
def forking_ours() -> Iterator[None]:
    """Let processes that seesay starts be forks."""
    with mock.patch.object(subprocess, "Popen", _OursForked):
        yield


def started() -> contextlib.AbstractContextManager[None]:
    """Let this thread start processes as users do."""
    return _asking("started")


def forked() -> contextlib.AbstractContextManager[None]:
    """Let this thread fork other Python programs, too."""
    return _asking("forked")


@contextlib.contextmanager
def _asking(how: str) -> Iterator[None]:
    before = getattr(_asked, "how", None)
    _asked.how = how
    try:
        yield
    finally:
        _asked.how = before


def start_template() -> None:
    """Start the process that others are forked of, which stays, for those who count processes and descriptors."""
    if FORKS:
        _find_template()


def _plan(asked: Mapping[str, Any]) -> Order | None:
    """Return what a fork is to run; None where a process must be started: it is not Python, or Python with options, or
    asks for what a fork lacks, such as other limits, another copy of seesay or variables that are read at the start."""
    environment = dict(os.environ if asked["env"] is None else asked["env"])
    simple = {"executable", "preexec_fn", "shell", "umask", "gid", "gids", "uid"}
    words = [os.fsdecode(word) for word in asked["args"]] if isinstance(asked["args"], list | tuple) else []
    if (
        not FORKS
        or getattr(_asked, "how", None) == "started"
        or any(asked[name] not in (None, False, -1) for name in simple)
        or not asked["close_fds"]
        or not _is_program(words)
        or _read_at_start(environment) != _read_at_start(_environment)
        or [resource.getrlimit(limit) for limit in _LIMITS] != _limits
    ):
        return None
    folder = str(Path(asked["cwd"] or ".").absolute())
    places = [0, 1, 2, *asked["pass_fds"]]
    group = None if asked["start_new_session"] else asked["process_group"]
    order = Order(words, environment, folder, places, os.getpgrp() if group == -1 else group)
    is_same = _finds_this_package(order) and not any(map(_changes_imports, order.paths))
    return order if is_same and _find_template().takes(order) else None


def _is_program(words: Sequence[str]) -> bool:
    if len(words) < 2 or words[0] != sys.executable:
        return False
    rest = words[2:] if words[1] == "-P" else words[1:]
    return (len(rest) > 1 and rest[0] in ("-m", "-c")) or (bool(rest) and rest[0].endswith(".py") and rest[0][0] != "-")


def _read_at_start(environment: Mapping[str, str]) -> dict[str, str]:
    return {
        name: value for name, value in environment.items() if name.startswith(_READ_AT_START) and name not in _READ_ANEW
    }


def _first_paths(order: Order) -> list[str]:
    """Return what `sys.path` begins with, before PYTHONPATH and the paths of the interpreter."""
    kind = order.program[0]
    own = {"-m": order.folder, "-c": ""}[kind] if kind in ("-m", "-c") else str(Path(kind).parent)
    return [] if order.is_safe else [own]


def _changes_imports(path: str) -> bool:
    """Whether a folder has plugins, what Python imports at its start, or other copies of modules that are shared."""
    if path in _own_paths or not Path(path).is_dir():
        return False
    names = {entry.name for entry in Path(path).iterdir()}
    stems = {Path(name).stem for name in names} - {"seesay", _REMOTE_CODE}
    at_start = {"sitecustomize", "usercustomize"}
    return any(name.endswith((".dist-info", ".egg-info")) for name in names) or bool(
        stems & (at_start | {*sys.modules})
    )


def _finds_this_package(order: Order) -> bool:
    for path in [*_first_paths(order), *order.paths]:
        package = Path(order.folder, path, "seesay")
        if (package / "__init__.py").exists():
            return package.resolve() == ROOT / "seesay"
    return False


class _Template:
    """The end of the caller: of the process that is forked, which has one thread and ends with the caller."""

    def __init__(self, link: socket.socket, process: subprocess.Popen[bytes] | None = None) -> None:
        self._socket, self._process = link, process
        self._lock = threading.Lock()
        self._owner, self._session = os.getpid(), os.getsid(0)

    @classmethod
    def start(cls) -> _Template:
        ours, theirs = socket.socketpair()
        with theirs:
            process = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    __file__,
                    str(theirs.fileno()),
                    _environment.get("PYTHONPATH", ""),
                    "-" * _MOST_CHARS,
                ],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                process_group=0,
                env={name: value for name, value in _environment.items() if name != "PYTHONPATH"},
            )
        template = cls(ours, process)
        atexit.register(template.close)
        return template

    def takes(self, order: Order) -> bool:
        """Whether a fork of it becomes a child of this process, and can be in the process group that is asked for."""
        return os.getpid() == self._owner and (order.group is None or os.getsid(0) == self._session)

    def fork(self, order: Order, descriptors: Sequence[int]) -> int:
        """Return the id of a new child of this process."""
        data = json.dumps(asdict(order)).encode()
        with self._lock, _taking_over_orphans():
            socket.send_fds(self._socket, [len(data).to_bytes(4, "little")], list(descriptors))
            self._socket.sendall(data)
            answer = self._socket.recv(8)
        if not (pid := int.from_bytes(answer, "little")):
            raise OSError("the process that others are forked from has ended, or its fork has")
        return pid

    def close(self) -> None:
        self._socket.close()
        if self._process is not None:
            self._process.wait()


_templates: list[_Template] = []
"""That of this process, once there is one."""
_starting_template = threading.Lock()


def _find_template() -> _Template:
    with _starting_template, started():
        if not _templates:
            _templates.append(_Template.start())
        return _templates[0]


@contextlib.contextmanager
def _taking_over_orphans() -> Iterator[None]:
    prctl = ctypes.CDLL(None).prctl
    prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        prctl(_PR_SET_CHILD_SUBREAPER, 0)


# --- the process that is forked --------------------------------------------------------------------------------------


def serve(link: socket.socket) -> Order:
    """Fork for each order that comes, until the other end is closed, which ends this process. Returns in a fork."""
    while True:
        head, descriptors, _, _ = socket.recv_fds(link, 4, 64)
        if not head:
            os._exit(0)
        size, data = int.from_bytes(head, "little"), b""
        while len(data) < size:
            data += link.recv(size - len(data))
        reading, writing = os.pipe()
        if (between := os.fork()) > 0:
            os.close(writing)
            os.waitpid(between, 0)  # from now on the other one is a child of those who asked for it
            link.sendall(os.read(reading, 8) or bytes(8))
            for descriptor in (reading, *descriptors):
                os.close(descriptor)
            continue
        if os.fork():
            os._exit(0)
        order = Order(**json.loads(data))
        if order.group is None:
            os.setsid()
        else:
            os.setpgid(0, order.group)
        _show(order.words)
        os.write(writing, os.getpid().to_bytes(8, "little"))
        link.detach()  # its number is that of another descriptor soon
        ours, theirs = socket.socketpair()
        if os.fork():
            theirs.detach()
            _take_places(order, descriptors, ours)
            return order
        os.setpgid(0, 0)  # signals to the group of the other one are not meant for its template
        ours.detach()
        link = _keep_one(theirs)


def _keep_one(link: socket.socket) -> socket.socket:
    """Close all descriptors but `link`, which is another one then."""
    kept = fcntl.fcntl(link.detach(), fcntl.F_DUPFD_CLOEXEC, _HIGH)
    null = os.open(os.devnull, os.O_RDWR)
    for stream in range(3):
        os.dup2(null, stream)
    os.closerange(3, kept)
    os.closerange(kept + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    return socket.socket(fileno=kept)


def _take_places(order: Order, descriptors: Sequence[int], link: socket.socket) -> None:
    """Have the descriptors that were sent at their places, and no others but `link`, to this process's own template."""
    high = [fcntl.fcntl(descriptor, fcntl.F_DUPFD, _HIGH) for descriptor in descriptors]
    kept = fcntl.fcntl(link.detach(), fcntl.F_DUPFD_CLOEXEC, max(high) + 1)
    os.closerange(3, _HIGH)
    for place, descriptor in zip(order.places, high, strict=True):
        os.dup2(descriptor, place)
    os.closerange(_HIGH, kept)
    _templates.append(_Template(socket.socket(fileno=kept)))
    subprocess.Popen = _OursForked  # type: ignore[misc]


def run(order: Order) -> None:
    """Run the program as Python does: with its folder, environment, arguments, streams, paths and `__main__`."""
    os.chdir(order.folder)
    os.environ.clear()
    os.environ.update(order.environment)
    tempfile.tempdir = None
    own, listed = _first_paths(order), [str(Path(path).absolute()) for path in order.paths]
    sys.path[:] = [*own, *dict.fromkeys([*listed, *_own_paths])]
    importlib.invalidate_caches()
    _open_streams(is_unbuffered=bool(order.environment.get("PYTHONUNBUFFERED")))
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    main = types.ModuleType("__main__")
    main.__annotations__ = {}
    sys.modules["__main__"] = main
    gc.enable()
    kind, *rest = program = order.program
    sys.argv[:] = rest if kind == "-m" else [kind, *rest[1:]] if kind == "-c" else program
    sys.orig_argv[:] = order.words
    match kind:
        case "-m":
            for module in (rest[0], f"{rest[0]}.__main__"):
                if not hasattr(sys.modules.get(module), "__path__"):
                    sys.modules.pop(module, None)
            runpy._run_module_as_main(rest[0])  # type: ignore[attr-defined]
        case "-c":
            exec(compile(rest[0], "<string>", "exec"), main.__dict__)
        case path:
            main.__file__ = path
            exec(compile(Path(path).read_bytes(), path, "exec"), main.__dict__)


def _show(words: Sequence[str]) -> None:
    """Show `words` as the command line of this process in `/proc`, in the place of the template's."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    begin, end = int(fields[45]), int(fields[46])
    shown = "\0".join(words).encode()[: end - begin - 1]
    ctypes.memset(begin, 0, end - begin)
    ctypes.memmove(begin, shown, len(shown))


def _open_streams(*, is_unbuffered: bool) -> None:
    """Open the standard streams as Python does at its start."""
    for name, number in (("stdin", 0), ("stdout", 1), ("stderr", 2)):
        is_read, template = name == "stdin", getattr(sys, f"__{name}__")
        raw = io.FileIO(number, "r" if is_read else "w", closefd=False)
        buffer: Any = io.BufferedReader(raw) if is_read else raw if is_unbuffered else io.BufferedWriter(raw)
        stream = io.TextIOWrapper(
            buffer,
            encoding=template.encoding,
            errors=template.errors,
            line_buffering=not is_unbuffered and (raw.isatty() or name == "stderr"),
            write_through=is_unbuffered,
        )
        setattr(sys, name, stream)
        setattr(sys, f"__{name}__", stream)


def end(order: Order) -> NoReturn:
    """Run the program, and end as Python does: with its status or signal, behind its threads and its exit handlers. The
    interpreter is not taken down, which takes half a second with all that is imported."""
    status, interrupted = 0, False
    try:
        run(order)
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else int(error.code is not None)
        if error.code is not None and not isinstance(error.code, int):
            print(error.code, file=sys.stderr)
    except BaseException as error:
        status, interrupted = 1, isinstance(error, KeyboardInterrupt)
        trace = error.__traceback__
        while trace is not None and trace.tb_frame.f_code.co_filename == __file__:
            trace = trace.tb_next
        sys.excepthook(type(error), error.with_traceback(trace), trace)
    threading._shutdown()  # type: ignore[attr-defined]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            status = 120
    if interrupted:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        os.kill(os.getpid(), signal.SIGINT)
    os._exit(status & 0xFF)


if __name__ == "__main__":
    gc.disable()
    sys.path[:0] = [str(ROOT), *filter(None, sys.argv[2].split(os.pathsep))]
    for name in IMPORTED:
        importlib.import_module(name)
    gc.freeze()
    end(serve(socket.socket(fileno=int(sys.argv[1]))))
