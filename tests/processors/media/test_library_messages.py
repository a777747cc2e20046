"""What libtiff says about damaged files: a line of the log for each file, and nothing on standard error."""

from __future__ import annotations

import contextlib
import io
import logging
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from seesay.config import MediaLimits
from seesay.errors import RequestError
from seesay.processors.media.library_messages import request_id
from seesay.processors.media.picture import Picture
from seesay.system.thread_pool import ThreadPool


def make_damaged_tiff() -> bytes:
    """A fax of 400 lines with nothing right in most of them: libtiff has something to say of each."""
    noise = np.random.default_rng(0).integers(0, 2, (400, 400)).astype(bool)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "TIFF", compression="group4")
    data = bytearray(file.getvalue())
    data[100 : len(data) - 400 : 7] = b"\x55" * len(data[100 : len(data) - 400 : 7])
    return bytes(data)


def test_messages_go_to_the_log_bounded(capfd: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture) -> None:
    def decode() -> None:
        with contextlib.suppress(RequestError):
            Picture(make_damaged_tiff(), limits=MediaLimits(), name="messages[0].content[1]").pixels()

    pool = ThreadPool(1, name="decode")
    request_id.set("req_1")
    with caplog.at_level(logging.WARNING, "seesay"):
        pool.submit(decode).result()
    pool.close()
    [record] = [record for record in caplog.records if record.name == "seesay"]
    text = record.getMessage()
    assert text.startswith("req_1 messages[0].content[1]: ") and "Fax4" in text and "more)" in text and len(text) < 800
    assert "Fax" not in capfd.readouterr().err


DECODE = """
import sys, warnings
from seesay.config import MediaLimits
from seesay.processors.media.picture import Picture
from seesay.system.log import set_up_logging
set_up_logging("WARNING")
Picture(open(sys.argv[1], "rb").read(), limits=MediaLimits(), name="messages[0].content[1]").pixels()
warnings.warn("of other code", stacklevel=1)
"""


def test_warnings_about_metadata_go_to_the_log(tmp_path: Path) -> None:
    """A JPEG file whose EXIF data are damaged. In a process of its own: pytest takes warnings itself."""
    damaged = b"Exif\0\0MM\0*\0\0\0\x08" + b"\xff" * 40
    Image.new("RGB", (8, 8)).save(tmp_path / "damaged.jpg", exif=damaged)
    done = subprocess.run(
        [sys.executable, "-W", "default", "-c", DECODE, str(tmp_path / "damaged.jpg")],
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    logged = [line for line in done.stderr.splitlines() if "seesay WARNING" in line]
    assert logged and all("messages[0].content[1]: " in line for line in logged), done.stderr
    assert "PIL" not in done.stderr and "UserWarning: of other code" in done.stderr
