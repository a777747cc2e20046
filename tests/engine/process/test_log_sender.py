"""Log records on their way to the process that started this one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Any

import pytest

from seesay.engine.process import kinds
from seesay.engine.process.link import LinkClosedError
from seesay.engine.process.log_sender import send_logs


class Link:
    """Keeps what is sent, or raises."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.fails: Exception | None = None

    def send(self, message: Any) -> None:
        if self.fails is not None:
            raise self.fails
        self.sent.append(message)


@pytest.fixture
def link() -> Iterator[Any]:
    logger = logging.getLogger("seesay")
    before = logger.level, logger.propagate, [*logger.handlers]
    yield Link()
    logger.level, logger.propagate, logger.handlers[:] = before
    logger.setLevel(before[0])


def test_records_from_a_level_on_are_sent_and_not_written(link: Any, caplog: pytest.LogCaptureFixture) -> None:
    send_logs(link, logging.INFO)
    part = logging.getLogger("seesay.part")
    part.info("%d items", 3)
    part.debug("not asked for")
    part.error("100 %")
    assert link.sent == [
        kinds.LogRecord("seesay.part", logging.INFO, "3 items"),
        kinds.LogRecord("seesay.part", logging.ERROR, "100 %"),
    ]
    assert not caplog.records, "the parent writes them"


def test_a_traceback_is_sent_with_its_record(link: Any) -> None:
    send_logs(link, logging.DEBUG)
    try:
        raise ValueError("odd")
    except ValueError:
        logging.getLogger("seesay").exception("it failed")
    [record] = link.sent
    assert record.level == logging.ERROR and record.text.startswith("it failed\nTraceback")
    assert record.text.endswith("ValueError: odd")


def test_nobody_is_told_that_the_link_is_closed(link: Any, capsys: pytest.CaptureFixture[str]) -> None:
    send_logs(link, logging.INFO)
    link.fails = LinkClosedError("closed")
    logging.getLogger("seesay").error("lost")
    assert not capsys.readouterr().err


def test_another_failure_is_said_on_standard_error_and_ends_nothing(
    link: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    send_logs(link, logging.INFO)
    link.fails = ValueError("cannot be sent")
    logging.getLogger("seesay").error("lost")
    assert "ValueError: cannot be sent" in capsys.readouterr().err
    link.fails = None
    logging.getLogger("seesay").error("%d", "no number")
    assert "TypeError" in capsys.readouterr().err and not link.sent
