"""ALiBi in the decoder: slopes for any number of heads, texts for which rounded biases differ, what has no meaning with
it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from llm.backbones import Backbone, Driver, load_runner, make_prompt, make_saver
from reference.baichuan import list_slopes
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from seesay.errors import CheckpointError
from seesay.llm.models.configs.alibi import make_alibi, make_mpt_alibi
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.models.configs.rope_parameters import find_covered_length
from seesay.llm.plans.sampling_params import SamplingParams


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Backbone]:
    return make_saver(tmp_path_factory)


@pytest.mark.parametrize("num_heads", [1, 2, 3, 6, 8, 40, 64, 71, 112])
def test_slopes_are_the_published_ones(num_heads: int) -> None:
    slopes = make_alibi(num_heads).slopes
    bloom = build_alibi_tensor(torch.ones(1, 2), num_heads, torch.float32)[:, 0, 1]
    torch.testing.assert_close(torch.tensor(slopes), bloom, rtol=1e-6, atol=0)
    assert slopes == pytest.approx(list_slopes(num_heads))
    for largest in (8, 16):
        mpt = build_mpt_alibi_tensor(num_heads, 2, largest)[:, 0, 0]
        torch.testing.assert_close(-torch.tensor(make_mpt_alibi(num_heads, largest).slopes), mpt, rtol=1e-6, atol=0)


@pytest.mark.parametrize("name", ["falcon-alibi", "bloom", "mpt"])
def test_long_texts_in_chunks_equal_transformers(saved: Callable[[str], Backbone], name: str) -> None:
    """Behind place 256 not every place is a bfloat16, so that Falcon's biases are rounded in both factors."""
    backbone = saved(name)
    prompt = make_prompt(backbone, 700, seed=3)
    expected = backbone.logits(prompt.token_ids, np.asarray(prompt.positions))
    runner = load_runner(backbone, session_len=800)
    params = SamplingParams(max_new_tokens=2, output_logits="all")
    [_], [logits] = Driver(runner, chunk=149).generate([prompt], [params])
    torch.testing.assert_close(logits[: len(expected)], expected, rtol=1e-4, atol=2e-4)


def test_settings_of_rotary_embeddings_are_refused(saved: Callable[[str], Backbone]) -> None:
    config = saved("bloom").text_config
    with pytest.raises(CheckpointError, match=r"rope_scaling_factor=2\.0 needs one rotary embedding"):
        read_decoder_config(config, rope_scaling_factor=2.0)


def test_texts_of_any_length_are_covered(saved: Callable[[str], Backbone], tmp_path: Path) -> None:
    from seesay.checkpoint import Checkpoint

    assert find_covered_length(Checkpoint.load(saved("bloom").path).text_config) > 1 << 40
    assert find_covered_length(saved("llama").text_config) == 256
