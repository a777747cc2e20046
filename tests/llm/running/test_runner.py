"""The runner: what it splices, what it reports, whose fault stays whose."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from llm import backbones

from seesay.device.accelerator import Memory
from seesay.errors import ErrorCode
from seesay.llm.memory.kv_cache import bytes_per_block, make_layouts, plan_num_blocks
from seesay.llm.models.configs.reading import read_decoder_config
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import BlockCopy, Row, StepPlan, TokenMasks
from seesay.llm.running.sampling_rows import sort_rows
from seesay.llm.scheduling.sequence import Sequence
from seesay.values import MediaItem, Modality, MultimodalInput

HIDDEN = 60


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return backbones.make_backbone("qwen2", tmp_path_factory.mktemp("qwen2"))


@pytest.fixture
def runner(backbone: Any) -> Any:
    return backbones.load_runner(backbone)


def make_media_prompt(length: int, spans: list[tuple[int, int]], seed: int = 0) -> MultimodalInput:
    rng = np.random.default_rng(seed)
    items = tuple(
        MediaItem(
            modality=Modality.IMAGE,
            span=(start, stop),
            slots=np.arange(start + 1, stop),
            hash=bytes([seed, index]) * 16,
            features={},
            num_units=1,
        )
        for index, (start, stop) in enumerate(spans)
    )
    return MultimodalInput(
        token_ids=rng.integers(3, 160, length), positions=np.arange(length), next_position=length, items=items
    )


def make_embeddings(prompt: MultimodalInput) -> dict[bytes, torch.Tensor]:
    generator = torch.Generator().manual_seed(prompt.items[0].hash[0])
    return {item.hash: torch.randn(len(item.slots), HIDDEN, generator=generator) for item in prompt.items}


def spliced_logits(backbone: Any, prompt: Any, embeddings: Any) -> torch.Tensor:
    with torch.inference_mode():
        hidden = backbone.model.get_input_embeddings()(torch.tensor(prompt.token_ids))
        for item in prompt.items:
            hidden[torch.tensor(item.slots)] = embeddings[item.hash]
        logits: torch.Tensor = backbone.model(inputs_embeds=hidden[None], use_cache=False).logits[0]
    return logits


@pytest.mark.parametrize("chunk", [1, 3, 7, 1000])
def test_embeddings_are_spliced_by_offset(backbone: Any, runner: Any, chunk: int) -> None:
    prompts = [make_media_prompt(30, [(0, 5), (9, 10), (12, 29)]), make_media_prompt(12, [(3, 7)], seed=1)]
    embeddings = make_embeddings(prompts[0]) | make_embeddings(prompts[1])
    params = [SamplingParams(output_logits="all", max_new_tokens=1)] * 2
    _, logits = backbones.Driver(runner, chunk=chunk).generate(prompts, params, embeddings)
    for prompt, own in zip(prompts, logits, strict=True):
        expected = spliced_logits(backbone, prompt, embeddings)
        torch.testing.assert_close(own, expected, atol=1e-4, rtol=0)


def whole_row(sequence: Sequence) -> Row:
    return Row(seq_id=sequence.seq_id, start=0, num_tokens=sequence.num_tokens, samples=True)


def begin(runner: Any, *sequences: Sequence) -> StepPlan:
    """Let the runner know sequences, each with blocks of its own. Returns the plan that computes them whole."""
    tables, first = {}, 0
    for sequence in sequences:
        tables[sequence] = range(first, first := first - (-sequence.num_tokens // 4))
    backbones.begin(runner, tables)
    return StepPlan(rows=tuple(map(whole_row, sequences)))


@pytest.mark.parametrize("wrong", ["missing", "too few", "too many", "wrong width"])
def test_an_embedding_that_does_not_fit_is_found_before_the_launch(backbone: Any, runner: Any, wrong: str) -> None:
    bad = Sequence(1, make_media_prompt(12, [(3, 7)]), SamplingParams())
    good = Sequence(2, make_media_prompt(9, [(1, 4)], seed=2), SamplingParams(output_logits="all"))
    embeddings = make_embeddings(make_media_prompt(9, [(1, 4)], seed=2))
    shapes = {"too few": (2, HIDDEN), "too many": (4, HIDDEN), "wrong width": (3, HIDDEN + 1)}
    if wrong in shapes:
        embeddings[bad.items[0].hash] = torch.zeros(shapes[wrong])
    plan = begin(runner, bad, good)
    errors = runner.find_splices(plan, embeddings).errors
    assert set(errors) == {1} and errors[1].code is ErrorCode.INTERNAL and "image 0" in errors[1].message
    result = runner.run(StepPlan(rows=plan.rows[1:]), embeddings)
    [row] = result.rows
    assert row.seq_id == 2 and set(result.token_ids) == {2} and not result.errors
    expected = spliced_logits(backbone, make_media_prompt(9, [(1, 4)], seed=2), embeddings)
    torch.testing.assert_close(row.logits.values, expected, atol=1e-4, rtol=0)


def test_a_row_behind_its_pictures_needs_no_embedding(runner: Any) -> None:
    plan = begin(runner, Sequence(1, make_media_prompt(12, [(3, 7)]), SamplingParams()))
    behind, across = (StepPlan(rows=(Row(1, start, 12 - start, True),)) for start in (7, 6))
    assert runner.find_splices(behind, {}) == ({}, {})
    assert set(runner.find_splices(across, {}).errors) == set(runner.find_splices(plan, {}).errors) == {1}


def test_a_step_leaves_out_the_rows_that_cannot_be_computed(runner: Any) -> None:
    bad = Sequence(1, make_media_prompt(12, [(3, 7)]), SamplingParams())
    good = Sequence(2, make_media_prompt(9, []), SamplingParams())
    rows = begin(runner, bad, good).rows
    plan, launched, errors = runner.step(StepPlan(rows=rows), {})
    assert plan.rows == rows[1:] and set(errors) == {1} and launched is not None
    runner.sample(launched)
    assert set(launched.collect().token_ids) == {2}


def test_an_empty_step_takes_what_its_plan_tells(runner: Any) -> None:
    begin(runner, Sequence(1, make_media_prompt(12, []), SamplingParams()))
    plan = StepPlan(ended_ids=(1,))
    assert runner.step(plan, {}) == (plan, None, {}) and len(runner.rows) == 0


def test_a_plan_without_rows_computes_nothing(runner: Any) -> None:
    result = runner.run(StepPlan(), {})
    assert not (result.token_ids or result.rows or result.errors)


def test_a_nan_stays_with_its_sequence_even_when_its_blocks_are_reused(backbone: Any, runner: Any) -> None:
    prompt = make_media_prompt(10, [(3, 7)])
    poison = {prompt.items[0].hash: torch.full((3, HIDDEN), float("nan"))}
    healthy = backbones.make_prompt(backbone, 10, seed=1)
    bad, good = Sequence(1, prompt, SamplingParams()), Sequence(2, healthy, SamplingParams())
    result = runner.run(begin(runner, bad, good), poison)
    assert result.errors[1].code is ErrorCode.INTERNAL and 2 in result.token_ids
    alone = backbone.greedy(healthy.token_ids, 4)
    again = Sequence(3, healthy, SamplingParams())
    backbones.begin(runner, {again: (0, 1, 2, 399)})
    computed = 0
    for _ in range(4):
        row = Row(seq_id=3, start=computed, num_tokens=again.num_tokens - computed, samples=True)
        computed = again.num_tokens
        [(token,)] = runner.run(StepPlan(rows=(row,)), {}).token_ids.values()
        again.append(token)
    assert again.generated_ids.tolist() == alone


def test_blocks_loaded_from_the_host_are_read_and_not_what_was_there(backbone: Any) -> None:
    """A row has the blocks of the row before it and is one token longer, but a load has filled the first block anew."""
    kept = []
    for is_loaded in (False, True):
        runner = backbones.load_runner(backbone, num_host_slots=2)
        first, second, elsewhere, inside, above = (
            Sequence(n, backbones.make_prompt(backbone, 6, seed=seed), SamplingParams(output_logits="all"))
            for n, seed in enumerate((1, 1, 2, 2, 2))
        )
        tables = {first: (0,), second: (0, 1), elsewhere: (5,), inside: (0,), above: (0,)}
        backbones.begin(runner, tables)

        def row(sequence: Any, start: Any, stop: Any) -> Any:
            return Row(seq_id=sequence.seq_id, start=start, num_tokens=stop - start, samples=False)

        runner.run(StepPlan(rows=(row(first, 0, 4),)), {})
        if is_loaded:
            runner.run(StepPlan(rows=(row(elsewhere, 0, 3),), saves=(BlockCopy(0, 0),)), {})
            runner.run(StepPlan(rows=(row(inside, 0, 3),)), {})
            runner.run(StepPlan(rows=(row(above, 3, 4),)), {})
        loads = (BlockCopy(0, 0),) if is_loaded else ()
        result = runner.run(StepPlan(rows=(row(second, 4, 5),), loads=loads), {})
        logits = result.rows[0].logits
        assert logits is not None
        kept.append(logits.values)
    torch.testing.assert_close(kept[0], kept[1], atol=1e-4, rtol=0)


def allow(*token_ids: int) -> np.ndarray:
    mask = np.zeros(5, dtype=np.uint32)
    for token_id in token_ids:
        mask[token_id // 32] |= np.uint32(1 << token_id % 32)
    return mask.view(np.int32)


def test_a_mask_that_is_made_after_the_launch_restricts_its_row(backbone: Any, runner: Any) -> None:
    """The masked row's token is what the next step begins with, on the device."""
    prompt = backbones.make_prompt(backbone, 9, seed=1)
    masked, free = Sequence(1, prompt, SamplingParams()), Sequence(2, prompt, SamplingParams())
    launched = runner.launch(begin(runner, masked, free), {})
    best = backbone.greedy(prompt.token_ids, 1)[0]
    others = [(best + 1) % 160, (best + 60) % 160]
    logits = backbone.logits(prompt.token_ids, prompt.positions)[-1]
    second = max(others, key=lambda token_id: logits[token_id].item())
    runner.sample(launched, TokenMasks(seq_ids=(1, 99), bits=np.stack([allow(*others), allow()])))
    ahead = runner.launch(StepPlan(rows=(Row(1, 9, 1, True), Row(2, 9, 1, True))), {})
    runner.sample(ahead)
    result = launched.collect()
    assert result.token_ids == {1: (second,), 2: (best,)} and not result.errors
    expected = {
        seq_id: (backbone.greedy(np.append(prompt.token_ids, token), 1)[0],)
        for seq_id, token in ((1, second), (2, best))
    }
    assert ahead.collect().token_ids == expected
    assert runner.rows[1].token_ids[-2] == second


def test_masks_go_to_the_device_as_they_are_whatever_the_order_of_their_rows(backbone: Any, runner: Any) -> None:
    """Those of 256 rows are megabytes, which a copy would take from pinned memory, too."""
    prompt = backbones.make_prompt(backbone, 9, seed=1)
    launched = runner.launch(begin(runner, *(Sequence(i, prompt, SamplingParams()) for i in (1, 2, 3))), {})
    allowed = {3: 30, 1: 10, 2: 20}
    masks = TokenMasks(seq_ids=tuple(allowed), bits=np.stack([allow(token_id) for token_id in allowed.values()]))
    found = sort_rows(launched.step, masks, {}, vocab_size=160).masked
    assert found is not None and found.bits is masks.bits
    assert [launched.step.rows[i].seq_id for i in found.at] == list(allowed)
    runner.sample(launched, masks)
    assert launched.collect().token_ids == {seq_id: (token_id,) for seq_id, token_id in allowed.items()}


def test_the_next_step_begins_with_the_tokens_of_a_jump(backbone: Any, runner: Any) -> None:
    """It may be launched before the step with the jump is collected, and that may be computed again."""
    prompt = backbones.make_prompt(backbone, 9, seed=1)
    jumping, other = Sequence(1, prompt, SamplingParams()), Sequence(2, prompt, SamplingParams())
    plan = begin(runner, jumping, other)
    masks = TokenMasks(seq_ids=(1,), bits=allow(17)[None], jumps={1: (17, 18, 3), 99: (1, 2)})
    launched = runner.launch(plan, {})
    runner.sample(launched, masks)
    ahead = runner.launch(StepPlan(rows=(Row(1, 9, 3, True), Row(2, 9, 1, True))), {})
    runner.sample(ahead)
    [best] = backbone.greedy(prompt.token_ids, 1)
    assert launched.collect().token_ids == {1: (17, 18, 3), 2: (best,)}
    found = ahead.collect().token_ids
    for seq_id, token_ids in ((1, (17, 18, 3)), (2, (best,))):
        assert found[seq_id] == tuple(backbone.greedy(np.append(prompt.token_ids, token_ids), 1))
    assert runner.rows[1].token_ids[9:].tolist() == [17, 18, 3, *found[1]]
    again = runner.launch(StepPlan(rows=plan.rows[:1]), {})
    runner.sample(again, masks)
    assert again.collect().token_ids == {1: (17, 18, 3)}
    alone = runner.launch(StepPlan(rows=(Row(1, 9, 3, True),)), {})
    runner.sample(alone)
    assert alone.collect().token_ids == {1: found[1]}


def test_steps_are_sampled_once_and_in_turn(backbone: Any, runner: Any) -> None:
    sequence = Sequence(1, backbones.make_prompt(backbone, 6, seed=1), SamplingParams())
    plan = begin(runner, sequence)
    launched = runner.launch(plan, {})
    with pytest.raises(AssertionError, match="sample comes before collect"):
        launched.collect()
    runner.sample(launched)
    with pytest.raises(AssertionError, match="in the order of their launches"):
        runner.sample(launched)
    assert launched.collect().token_ids[1] == runner.run(plan, {}).token_ids[1], "a second time gives the same"
    assert runner.rows[1].num_known == 7


def test_a_step_that_was_not_sampled_is_lost_with_the_next_plan(runner: Any) -> None:
    """Its slots may have other sequences by then."""
    launched = runner.launch(begin(runner, Sequence(1, make_media_prompt(6, []), SamplingParams())), {})
    runner.apply(StepPlan(ended_ids=(1,)))
    with pytest.raises(AssertionError, match="in the order of their launches"):
        runner.sample(launched)


def test_a_mask_of_another_vocabulary_is_refused(backbone: Any, runner: Any) -> None:
    launched = runner.launch(
        begin(runner, Sequence(1, backbones.make_prompt(backbone, 6, seed=1), SamplingParams())), {}
    )
    with pytest.raises(AssertionError):
        runner.sample(launched, TokenMasks(seq_ids=(1,), bits=np.zeros((1, 4), np.int32)))


def test_logits_and_hidden_states_come_for_the_positions_asked(backbone: Any, runner: Any) -> None:
    prompt = backbones.make_prompt(backbone, 9, seed=1)
    everything = Sequence(1, prompt, SamplingParams(output_logits="all", output_last_hidden_state="generation"))
    answers = Sequence(2, prompt, SamplingParams(output_logits="generation", output_last_hidden_state="all"))
    nothing = Sequence(3, prompt, SamplingParams())
    result = runner.run(begin(runner, everything, answers, nothing), {})
    assert sorted(result.token_ids) == [1, 2, 3]
    first, second = sorted(result.rows, key=lambda r: r.seq_id)
    assert (first.logits.start, first.logits.values.shape) == (0, (9, 160))
    assert (first.hidden_states.start, first.hidden_states.values.shape) == (8, (1, HIDDEN))
    assert (second.logits.start, second.logits.values.shape) == (8, (1, 160))
    assert (second.hidden_states.start, second.hidden_states.values.shape) == (0, (9, HIDDEN))
    assert result.token_ids[1] == result.token_ids[2] == (first.logits.values[-1].argmax(),)
    assert torch.equal(first.logits.values[-1], second.logits.values[0])
    torch.testing.assert_close(first.hidden_states.values[0], second.hidden_states.values[-1])
    with torch.inference_mode():
        expected = backbone.model.model(torch.tensor(prompt.token_ids)[None]).last_hidden_state[0]
    torch.testing.assert_close(second.hidden_states.values, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("chunk", [1, 4, 5, 100])
def test_prompt_logprobs_come_piece_by_piece(backbone: Any, runner: Any, chunk: int) -> None:
    prompt = backbones.make_prompt(backbone, 14, seed=1)
    sequence = Sequence(1, prompt, SamplingParams(prompt_logprobs=2))
    backbones.begin(runner, {sequence: (5, 1, 7, 2)})
    found: dict[Any, Any] = {}
    for start in range(0, 14, chunk):
        count = min(chunk, 14 - start)
        row = Row(seq_id=1, start=start, num_tokens=count, samples=start + count == 14)
        step = runner.run(StepPlan(rows=(row,)), {})
        [result] = step.rows
        for i, value in enumerate(() if result.prompt_logprobs is None else result.prompt_logprobs.values[:, 0]):
            found[start + 1 + i] = value
        assert bool(step.token_ids) == row.samples
    expected = backbone.logits(prompt.token_ids, prompt.positions).log_softmax(-1)
    assert found == {p: pytest.approx(expected[p - 1, prompt.token_ids[p]].item(), abs=1e-4) for p in range(1, 14)}


def test_rows_that_do_not_sample_give_no_token(backbone: Any, runner: Any) -> None:
    sequence = Sequence(1, backbones.make_prompt(backbone, 9, seed=1), SamplingParams())
    [row] = begin(runner, sequence).rows
    result = runner.run(StepPlan(rows=(row._replace(num_tokens=6, samples=False),)), {})
    assert result.token_ids == {} and result.rows == () and result.errors == {}


def test_cache_size_follows_memory_and_limits(backbone: Any) -> None:
    config = read_decoder_config(backbone.text_config)
    block_bytes = bytes_per_block(make_layouts(config.traits.kv_shapes, block_size=16, dtype=torch.float16))
    assert block_bytes == 3 * 16 * 2 * 2 * 10 * 2
    memory = Memory(free_bytes=1000, total_bytes=2000)
    common: dict[str, Any] = {"memory": memory, "share": 0.5, "block_bytes": 10}
    assert plan_num_blocks(**common, reserved_bytes=200, num_blocks_of_full_batch=3, is_cpu=False) == 40
    assert plan_num_blocks(**common, reserved_bytes=200, num_blocks_of_full_batch=99, is_cpu=True) == 10
    assert plan_num_blocks(**common, reserved_bytes=200, num_blocks_of_full_batch=3, is_cpu=True) == 3
    assert plan_num_blocks(**common, reserved_bytes=5000, num_blocks_of_full_batch=3, is_cpu=False) == 1


def test_allocated_cache_is_as_asked(backbone: Any) -> None:
    runner = backbones.load_runner(backbone, num_blocks=7)
    assert runner.num_blocks == 7
    assert runner.limits.session_len == 28, "lowered to what the cache holds"
    runner.limits = replace(runner.limits, max_batch_size=2, session_len=30)
    assert runner.profile() == 0
    assert runner.allocate_cache(num_blocks=0, share=0.5) == 16
    assert runner.limits.session_len == 30


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA GPU")
def test_profile_measures_what_a_step_needs(backbone: Any) -> None:
    runner = backbones.load_runner(backbone, device="cuda")
    runner.limits = replace(runner.limits, max_step_tokens=4096, max_batch_size=8, session_len=8192)
    peak = runner.profile()
    assert 4096 * 88 * 4 < peak < 4 << 30
    num_blocks = runner.allocate_cache(num_blocks=0, share=0.01, reserved_bytes=peak)
    assert num_blocks > 1000
