"""The calibration set that comes with seesay: for any model, without a download."""

from __future__ import annotations

import json
import logging
import re
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from PIL import Image

from seesay import lite
from seesay.lite.calibrating import SUMMARY_FILE
from seesay.lite.calibration import included
from seesay.lite.calibration.drawn_texts import draw_texts
from seesay.lite.calibration.included import INCLUDED, included_calibration
from seesay.values import MediaPart, Message

SMALL: dict[str, Any] = {"calib_samples": 16, "w_group_size": 32, "device": "cpu"}


def pictures_of(message: Message) -> list[Image.Image]:
    return [part.source for part in message.parts if isinstance(part, MediaPart)]


def test_it_has_texts_of_many_kinds_talks_and_pictures() -> None:
    found = included_calibration(128)
    text = "\n".join(found.texts)
    assert 200_000 < len(text) < 400_000
    for script in ("a-z", "а-я", "α-ω", "ء-ي", "א-ת", "अ-ह", "ক-হ", "க-ஹ", "ก-ฮ", "ぁ-ん", "一-龥", "가-힣"):  # noqa: RUF001
        assert re.search(f"[{script}]{{3}}", text), script
    for piece in ("def ", "function ", "| --- |", "2020-", '"tags"', "ERROR [", "remainder", "Proof."):
        assert piece in text
    assert len(found.conversations) == 64
    pictures = [
        picture for each in found.conversations for message in each.messages for picture in pictures_of(message)
    ]
    assert len(pictures) == 48 and len({picture.size for picture in pictures}) > 10
    assert sum(each.messages[-1].role == "assistant" for each in found.conversations) == 64 - 32, "photos: no answers"
    assert all(each.where.startswith("built-in") for each in found.conversations)


def test_it_is_the_same_each_time_and_for_fewer_prompts_its_beginning() -> None:
    """Else an interrupted run could not go on."""
    one, other = included_calibration(16), included_calibration(32)
    assert one.texts == other.texts and len(one.conversations) == 8
    for first, second in zip(one.conversations, other.conversations):
        seen = [
            [picture.tobytes() for message in each.messages for picture in pictures_of(message)]
            for each in (first, second)
        ]
        assert seen[0] == seen[1] and first.where == second.where


def test_its_files_are_small() -> None:
    """They are in every wheel."""
    files = list((Path(included.__file__).parent / "texts").iterdir())
    assert sum(file.stat().st_size for file in files) < 64 << 10


def test_its_sums_are_right() -> None:
    text = "\n".join(draw_texts(80))
    products = re.findall(r"^(\d+) × (\d+) \+ (\d+) = (\d+) \+ \3 = (\d+)$", text, re.M)  # noqa: RUF001
    assert len(products) > 10 and all(int(a) * int(b) + int(c) == int(total) for a, b, c, _, total in products)
    solved = re.findall(r"Solve \$(\d+)[a-z] \+ (\d+) = (-?\d+)\$.* = (-?\d+)\$\. Check", text)
    assert len(solved) > 10 and all(int(a) * int(x) + int(b) == int(c) for a, b, c, x in solved)


@pytest.mark.parametrize("name", ["llama", "qwen2_5_vl"])
def test_it_is_the_default_for_every_model(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It needs neither the package `datasets` nor a network, nor a limit for a model of short texts."""
    monkeypatch.setitem(sys.modules, "datasets", None)
    report = lite.auto_gptq(tiny_checkpoint(name), tmp_path / "out", **SMALL)
    assert report.num_calibration_tokens > 1000 and report.num_held_out > 100
    assert (tmp_path / "out" / "config.json").is_file()
    summary = lite.calibrate(tiny_checkpoint(name), tmp_path / "seen", calib_samples=16, device="cpu")
    assert json.loads((tmp_path / "seen" / SUMMARY_FILE).read_text()) == summary and summary["calibration"] == INCLUDED


def test_the_tower_sees_its_pictures(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    report = lite.auto_gptq(
        tiny_checkpoint("qwen2_5_vl"), tmp_path / "out", **SMALL, vision=True, calib_dataset=INCLUDED
    )
    assert report.tower and all(0 < error < 0.5 for error in report.tower.values())


def test_a_template_that_refuses_conversations(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """They are left out, for the user has not chosen them."""
    folder = tmp_path / "model"
    shutil.copytree(tiny_checkpoint("llama"), folder)
    template = "{% for m in messages %}{{ raise_exception('no words') }}{% endfor %}"
    for file in folder.glob("chat_template*"):
        file.unlink()
    (folder / "chat_template.jinja").write_text(template)
    with caplog.at_level(logging.WARNING, "seesay"):
        report = lite.auto_gptq(folder, tmp_path / "out", **SMALL)
    assert report.num_calibration_tokens > 1000
    assert "or are refused by the chat template and are left out" in caplog.text


def test_ctrl_c_while_a_conversation_is_prepared_ends_the_run(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is no failure of that conversation, which would be left out."""

    def interrupt(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("seesay.engine.front.prompt_builder.PromptBuilder.build", interrupt)
    with pytest.raises(KeyboardInterrupt):
        lite.auto_gptq(tiny_checkpoint("llama"), tmp_path / "out", **SMALL)
