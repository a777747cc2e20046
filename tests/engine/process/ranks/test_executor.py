"""Ranks on this machine meet in a file that nobody else sees."""

from __future__ import annotations

import os
import tempfile
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import torch
from link_pair import read_next

from seesay.device.ranks import Place
from seesay.engine.process.kinds import Hello
from seesay.engine.process.ranks.executor import LocalExecutor
from seesay.engine.process.ranks.rank_messages import Follow

pytestmark = pytest.mark.timeout(60)


def test_ranks_share_a_file_and_its_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    executor = LocalExecutor(2, "odd_rank")
    assert executor.is_local and executor.pick_device("cpu", Place(1, 2)) == torch.device("cpu")
    meeting = executor.meet()
    meeting.store.set_timeout(timedelta(seconds=30))
    meeting.store.set("name", "value")
    assert executor.meet().store.get("name") == b"value"
    rank: Any = executor.start(1)
    assert read_next(rank.link) == Hello()
    rank.link.send(Follow("", {"does": "dies"}, 1, 20, 1.0))
    rank.end(30.0)
    assert rank.find_end() == "status 3" and not list(tmp_path.iterdir())
    file = executor._file
    os.fstat(file)
    executor.close()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(file)
