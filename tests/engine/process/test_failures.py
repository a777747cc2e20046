"""Exceptions that cross from one process to another have the same type and text there."""

from __future__ import annotations

import msgspec
import pytest
import torch

from seesay.engine.process import kinds
from seesay.engine.process.failures import HungError, describe_failure, make_lost_error, restore_failure
from seesay.engine.watchdog import ENGINE, Fault
from seesay.errors import CheckpointError, ConfigError, ErrorCode, MissingExtraError, RequestError, SeesayError


class ForeignError(Exception):
    """Of no type that the other process knows."""


def cross(error: BaseException) -> Exception:
    """Return what is raised in the other process."""
    try:
        raise error
    except BaseException as raised:
        return restore_failure(describe_failure(raised))


@pytest.mark.parametrize(
    "error", [CheckpointError("no weights"), ConfigError("no room"), MissingExtraError("a", package="b", extra="c")]
)
def test_what_is_raised_on_purpose_stays_as_it_is(error: SeesayError) -> None:
    restored = cross(error)
    assert type(restored) is type(error) and str(restored) == str(error)
    assert not hasattr(restored, "__notes__"), "its text says all"


def test_why_a_request_was_refused_is_known() -> None:
    """A rank that has no memory for an adapter says so in this way."""
    restored = cross(RequestError(ErrorCode.OUT_OF_MEMORY, "not enough memory", "lora_path"))
    assert isinstance(restored, RequestError)
    assert (restored.code, restored.message, restored.param) == (
        ErrorCode.OUT_OF_MEMORY,
        "not enough memory",
        "lora_path",
    )
    named = msgspec.structs.replace(describe_failure(restored), text="rank 1 of 2: full")
    assert str(restore_failure(named)) == "rank 1 of 2: full", "as `Followers` names who it was"


@pytest.mark.parametrize("error", [ValueError("odd"), MemoryError("full"), OSError("no such device"), TimeoutError()])
def test_what_python_raises_says_where(error: Exception) -> None:
    restored = cross(error)
    assert type(restored) is type(error) and str(restored) == str(error)
    assert restored.args == (str(error),)
    [note] = restored.__notes__
    assert note.startswith("In the engine process:\nTraceback") and "test_failures.py" in note


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ForeignError("odd"), "ForeignError: odd"),
        (KeyError("grid"), "KeyError: 'grid'"),  # its text is not its argument
        (SystemExit(3), "SystemExit: 3"),  # no `Exception`: it would end a thread, or all
        (ExceptionGroup("both", [ValueError("odd")]), "ExceptionGroup: both (1 sub-exception)"),
    ],
)
def test_what_cannot_be_raised_alike_is_named(error: BaseException, text: str) -> None:
    restored = cross(error)
    assert type(restored) is RuntimeError and str(restored) == text
    [note] = restored.__notes__
    assert note.startswith("In the engine process:\n") and "test_failures.py" in note


@pytest.mark.parametrize("name", ["ErrorCode", "print", "__doc__", "int"])
def test_a_name_that_is_no_exception_is_none(name: str) -> None:
    restored = restore_failure(kinds.StartFailed(name, "odd", "Traceback: none"))
    assert type(restored) is RuntimeError and str(restored) == f"{name}: odd"


def test_a_full_device_is_told_from_a_full_host() -> None:
    """The one lets go of requests, the other of the process."""
    restored = cross(torch.OutOfMemoryError("CUDA out of memory"))
    assert type(restored) is torch.OutOfMemoryError and str(restored) == "CUDA out of memory"
    assert type(cross(MemoryError("out of memory"))) is MemoryError


def test_a_lost_request_may_be_sent_again() -> None:
    error = make_lost_error("the engine process died (signal 9)")
    assert error.code is ErrorCode.INTERNAL
    assert error.message == "the engine process died (signal 9); send the request again"


def test_a_process_that_hung_was_killed_for_it() -> None:
    fault = Fault(ENGINE, "a step of the engine hangs: it has taken 99 s")
    error = HungError(fault)
    assert error.fault is fault and str(error) == f"the engine process was killed ({fault.reason})"
