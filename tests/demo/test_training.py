"""The training script runs from end to end, and writes a checkpoint that Transformers loads."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from demo_training.talks import TALK_TASKS

from seesay.demo.scenes import SKILLS, TASKS

EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.fixture
def packing(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from demo_training import packing

    return packing


@pytest.mark.slow
def test_a_smoke_run_writes_a_loadable_checkpoint(tmp_path: Path) -> None:
    out, work = tmp_path / "checkpoint", tmp_path / "work"
    command = [sys.executable, str(EXAMPLES / "train_demo.py"), "--smoke", "--out", str(out), "--work", str(work)]
    for half in (["--stop-after", "0"], ["--resume", "--score", "1"]):
        done = subprocess.run([*command, *half], check=False, capture_output=True, text=True, timeout=800)
        assert done.returncode == 0, done.stderr
    *_, scores, figures = map(json.loads, done.stdout.splitlines())
    unseen = {f"unseen {task}" for task in (*TALK_TASKS, *SKILLS)}
    assert {task for task in figures if "tokens" not in task} == {*TASKS, *SKILLS, *unseen}
    assert scores.items() >= {"scores": "after", "describe": 0.0}.items() and {*TASKS, *SKILLS} < set(scores)
    log = [json.loads(line) for line in (work / "log.jsonl").read_text().splitlines()]
    assert [line["step"] for line in log] == [1, 2] and log[0]["elapsed_s"] < log[1]["elapsed_s"]

    from transformers import AutoModelForImageTextToText, AutoProcessor

    model = AutoModelForImageTextToText.from_pretrained(out)
    processor = AutoProcessor.from_pretrained(out)
    assert model.config.image_token_id == processor.image_token_id


@pytest.fixture
def reference(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from demo_training import reference

    return reference


@pytest.fixture
def minute_model(monkeypatch: pytest.MonkeyPatch) -> tuple[Any, Any]:
    """An untrained model, and its tokenizer."""
    monkeypatch.syspath_prepend(str(EXAMPLES))
    from demo_training import files, network
    from tokenizers import Tokenizer

    from seesay.demo import CHECKPOINT

    tokenizer = Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json"))
    config = network.make_config(network.MINUTE, vocab_size=files.VOCABULARY, special_ids=files.special_ids(tokenizer))
    model = network.PackedModel(config)
    network.init_weights(model, 0)
    return model, tokenizer


@pytest.fixture
def truncated_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """Transformers places clips as its versions before 5.18 did."""
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel

    sound = Qwen2_5_VLModel.get_rope_index

    def truncating(*arguments: Any, second_per_grid_ts: Any = None, **options: Any) -> Any:
        whole = None if second_per_grid_ts is None else second_per_grid_ts.int()
        return sound(*arguments, second_per_grid_ts=whole, **options)

    monkeypatch.setattr(Qwen2_5_VLModel, "get_rope_index", truncating)


def test_logits_are_those_of_transformers(reference: Any, minute_model: tuple[Any, Any]) -> None:
    reference.check_logits(*minute_model)


@pytest.mark.usefixtures("truncated_steps")
def test_conversations_whose_logits_differ_are_named(reference: Any, minute_model: tuple[Any, Any]) -> None:
    with pytest.raises(RuntimeError) as caught:
        reference.check_logits(*minute_model)
    message = str(caught.value)
    assert "('motion', 0) by " in message and "'chart'" not in message


@pytest.mark.usefixtures("truncated_steps")
def test_clips_that_an_old_transformers_misplaces_are_left_out_aloud(
    reference: Any, minute_model: tuple[Any, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reference.transformers, "__version__", "5.17.0")
    with pytest.warns(UserWarning, match=r"5\.17\.0 truncates") as caught:
        reference.check_logits(*minute_model)
    message = str(caught[0].message)
    assert "('motion', 0) not compared" in message and "needs Transformers 5.18 or newer" in message


def test_a_training_goes_on_from_the_state_that_it_left(tmp_path: Path) -> None:
    import torch
    from demo_training.optimizer import Average, Optimizer
    from demo_training.state import Progress, load_state, read_progress, save_state
    from torch import nn

    torch.manual_seed(0)
    inner = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 6))
    model = nn.ModuleDict({"text": nn.ModuleDict({"layers": inner}), "head": nn.Linear(6, 1)})
    seen = torch.randn(5, 6)

    def step(optimizer: Optimizer, average: Average) -> list[torch.Tensor]:
        model["head"](inner(seen)).square().sum().backward()
        optimizer.step(0.5)
        model.zero_grad(set_to_none=True)
        average.update()
        return [values.detach().clone() for values in (*model.parameters(), *average.values)]

    optimizer, average = Optimizer(model), Average(model)
    for _ in range(3):
        step(optimizer, average)
    save_state(tmp_path, model, optimizer, average, Progress(step=3, elapsed_s=2.5, next_pack=7))
    expected = step(optimizer, average)
    other, other_average = Optimizer(model), Average(model)
    load_state(tmp_path, model, other, other_average)
    torch.testing.assert_close(step(other, other_average), expected, rtol=0, atol=0)
    assert read_progress(tmp_path) == Progress(step=3, elapsed_s=2.5, next_pack=7)


def test_heads_that_only_training_has_are_taken_over(
    minute_model: tuple[Any, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    monkeypatch.syspath_prepend(str(EXAMPLES))
    import train_demo

    model, tokenizer = minute_model
    work, out = tmp_path, tmp_path / "checkpoint"
    train_demo.export(model, tokenizer, out)
    heads = train_demo._take_heads(model)
    for known in (heads, {name: head for name, head in heads.items() if not name.startswith("box.")}, {}):
        save_file(known, work / train_demo.PATCH_HEADS)
        if not known:
            (work / train_demo.PATCH_HEADS).unlink()
        train_demo.load_weights(model, out, work)
        for name, head in train_demo._take_heads(model).items():
            assert torch.equal(head, known.get(name, torch.zeros_like(head))), name
    assert load_file(out / "model.safetensors").keys() & {"visual.patch_embed.proj.weight", "lm_head.weight"}


def test_packs_are_shown_again_no_more_often_than_allowed(packing: Any) -> None:
    import torch
    from demo_training.feeder import Feeder

    from seesay.demo import CHECKPOINT

    stream = packing.PackStream((CHECKPOINT / "tokenizer.json").read_text(), num_workers=1)
    feeder = Feeder(stream, packs_per_step=2, device=torch.device("cpu"), reuse=2.0, pool_packs=4)
    seen = []
    for _ in range(5):
        memory = feeder.take()
        seen += [row.numpy().tobytes() for row in memory]
        feeder.give_back(memory)
    stream.close()
    num_seen_before = len(set(seen[: len(seen) // 2]))
    assert feeder.num_shown <= 2 * feeder.num_drawn and len(set(seen)) >= len(seen) / 2 and num_seen_before > 1


def test_packs_follow_from_their_index(packing: Any) -> None:
    from tokenizers import Tokenizer

    from seesay.demo import CHECKPOINT

    encoder = packing.Encoder(Tokenizer.from_file(str(CHECKPOINT / "tokenizer.json")))
    memories = [np.full(packing.PACK_BYTES, fill, np.uint8) for fill in (0, 255)]
    for memory in memories:
        packing.fill_pack(packing.pack_views(memory), 7, encoder)
    views = [packing.pack_views(memory) for memory in memories]
    for name in packing.FIELDS:
        assert np.array_equal(views[0][name], views[1][name]), name
    pack = views[0]
    for lengths, total in (("cu_windows", 8192), ("cu_frames", 8192), ("cu_conversations", 6144)):
        assert pack[lengths][0] == 0 and pack[lengths][-1] == total
        assert (np.diff(pack[lengths]) >= 0).all()
    assert (pack["vision_rows"] >= 0).sum() == len(np.unique(pack["vision_rows"])) - 1


@pytest.mark.parametrize("size", [(640, 480), (100, 100), (252, 252), (1500, 300), (30, 90)])
def test_pictures_are_fitted_as_the_processor_fits_them(size: tuple[int, int], packing: Any) -> None:
    from transformers.models.qwen2_vl.image_processing_qwen2_vl import smart_resize

    fewest, most = packing.IMAGE_PIXELS
    height, width = smart_resize(size[1], size[0], factor=28, min_pixels=fewest, max_pixels=most)
    assert packing.fit_size(*size, packing.IMAGE_PIXELS) == (width, height)
