"""Off a terminal a download from the hub writes a line every 30 seconds."""

from __future__ import annotations

import io
import sys

import pytest

from seesay.checkpoint.download_progress import make_bar_class

WHOLE = "huggingface_hub.snapshot_download"


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_line_every_30_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    """Of the bar that counts all bytes, which learns of the total late; short downloads write none."""
    clock = Clock()
    bars = make_bar_class(clock)
    whole = bars(desc="Reconstructing", total=0, unit="B", unit_scale=True, name=WHOLE, disable=None, mininterval=0)
    files = bars(range(3), desc="Fetching 3 files", mininterval=0)
    for second in range(1, 101):
        clock.now_s = float(second)
        whole.update(155_000_000)
        whole.set_description("Downloading bytes")
        whole.refresh()
        files.update()
        if second == 50:
            whole.total = 15_500_000_000
    whole.close()
    files.close()
    shown = ["downloading: 4.65 GB", "downloading: 9.30 GB of 15.50 GB", "downloading: 13.95 GB of 15.50 GB"]
    assert capsys.readouterr().err.splitlines() == shown


def test_a_short_download_writes_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with make_bar_class()(desc="Downloading", total=5000, unit="B", name=WHOLE, disable=None) as bar:
        bar.update(5000)
    assert capsys.readouterr().err == ""


def test_a_terminal_has_the_hubs_own_bars(monkeypatch: pytest.MonkeyPatch) -> None:
    from huggingface_hub.utils.tqdm import tqdm

    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setattr(sys, "stderr", Terminal())
    assert make_bar_class() is tqdm
