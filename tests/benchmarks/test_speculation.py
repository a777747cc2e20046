"""The benchmark of speculation: of texts that repeat their prompts, and with a forced share of right proposals."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import speculation
from predicting_layers import add_layer

Run = Callable[..., list[dict[str, Any]]]


def test_answers_that_repeat_their_prompts_take_fewer_steps(run_benchmark: Run) -> None:
    options = ("--batches", "1,2", "--tokens", "60", "--rounds", "1", "--unrepeated", "2")
    found = run_benchmark(speculation, *options)
    kinds = [("unrepeated", None), ("copied", 1), ("copied", 2)]
    assert [(each["what"], each.get("batch")) for each in found] == [kind for kind in kinds for _ in range(2)]
    assert [each["drafts"] for each in found] == 3 * [0, 7]
    plain, (unrepeated, *copied) = found[::2], found[1::2]
    assert all(each["ratio"] == 1.0 for each in plain)
    assert all(each["tokens_per_step"] <= 1.0 and each["accepted_share"] == 0.0 for each in plain[1:])
    assert all(each["tokens_per_step"] > 2.5 and each["accepted_share"] >= 0.8 for each in copied), copied
    assert unrepeated["answers"] == 2 and unrepeated["req_per_s"] > 0 and unrepeated["ratio"] > 0


def test_a_text_of_which_much_was_changed_takes_more_steps(run_benchmark: Run) -> None:
    options = ("--batches", "2", "--tokens", "60", "--rounds", "1", "--unrepeated", "0", "--rate", "0.8")
    _, copied = run_benchmark(speculation, *options)
    assert 1.0 < copied["tokens_per_step"] < 2.5 and copied["accepted_share"] < 0.95


def test_a_model_without_an_output_layer_of_its_own_is_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(SystemExit, match=r"give a model with 'lm_head\.weight'"):
        speculation.main([str(tiny_checkpoint("qwen2_vl"))])


@pytest.mark.parametrize("method", ["eagle3", "mtp", "draft"])
def test_a_given_share_of_proposals_is_accepted(
    method: str, run_benchmark: Run, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    model, more = "seesay-demo", ["--proposer", "seesay-demo"] if method == "draft" else []
    if method == "mtp":
        model = str(add_layer(tiny_checkpoint("glm4_moe"), tmp_path / "model"))
    options = ("--batches", "2", "--drafts", "3", "--tokens", "120", "--rate", "1.0", "--rounds", "1", *more)
    plain, sure = run_benchmark(speculation, "--method", method, *options, model=model)
    assert plain["tokens_per_step"] <= 1.0 and plain["accepted_share"] == 0.0
    assert sure["accepted_share"] == 1.0 and sure["tokens_per_step"] > 1.5 and sure["drafts"] == 3


def test_a_smaller_model_must_be_named() -> None:
    with pytest.raises(SystemExit):
        speculation.main(["seesay-demo", "--method", "draft"])
