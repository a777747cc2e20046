"""Speculation as the options ask for it: its kind, its limits, and options that are refused."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
import torch
from predicting_layers import add_layer

from seesay import EngineConfig, SpeculativeConfig
from seesay.engine.core.loading import start_speculation
from seesay.engine.core.loading.resolved_config import ResolvedConfig
from seesay.engine.core.loading.runner_loading import load_runner
from seesay.engine.core.speculation.layer_draft import LayerDraft
from seesay.engine.core.speculation.media_answers import MOST_OF_MEDIA
from seesay.engine.core.speculation.speculation import ModelSpeculation, SpeculationRule, TextSpeculation
from seesay.engine.opened_model import OpenedModel, open_model
from seesay.errors import ConfigError
from seesay.llm.models.composed_decoder import ComposedDecoder
from seesay.llm.running.proposals.kept_states import KeptStates
from seesay.llm.running.runner_limits import RunnerLimits

CPU = torch.device("cpu")
RULE = SpeculationRule(most=5, most_tokens=128, least_saved=0.25)


def make_runner(device: Any = CPU, *, session_len: int = 200, **traits: Any) -> Any:
    """A runner without a model, which notes what it is to do."""
    noted: list[Any] = []
    given = {"has_graphs": True, "has_states": False, "attends_media": False, **traits}
    return SimpleNamespace(
        device=device,
        dtype=torch.float32,
        decoder=SimpleNamespace(traits=SimpleNamespace(**given)),
        limits=RunnerLimits(max_batch_size=4, max_step_tokens=64, session_len=session_len, block_size=16),
        noted=noted,
        allocate_cache=lambda **sizes: noted.append(sizes),
        warm_up=lambda: noted.append("warm up"),
        record_graphs=lambda: noted.append("record graphs"),
    )


# --- which kind -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "is_on"),
    [
        ({}, True),
        ({"speculative": {"method": "none"}}, False),
        ({"eager_mode": True}, False),
        ({"tp": 2}, False),
        ({"has_states": True}, False),
        ({"has_graphs": False}, False),
        ({"on_gpu": False}, False),
        ({"has_float64": False}, False),
    ],
    ids=str,
)
def test_texts_propose_by_default_where_that_costs_nothing(
    changes: dict[str, Any], is_on: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On GPUs whose graphs compute steps with proposals, unless options say otherwise."""
    has_states, has_graphs = changes.pop("has_states", False), changes.pop("has_graphs", True)
    on_gpu, has_float64 = changes.pop("on_gpu", True), changes.pop("has_float64", True)
    monkeypatch.setattr(start_speculation, "has_graphs", lambda _: on_gpu)
    monkeypatch.setattr(start_speculation, "has_float64", lambda _: has_float64)
    runner = make_runner(has_graphs=has_graphs, has_states=has_states)
    config = start_speculation.with_default_speculation(EngineConfig(**changes), runner)
    assert config.speculation == (SpeculativeConfig(method="ngram") if is_on else None)
    assert runner.limits.max_verified_tokens == (start_speculation.MOST_VERIFIED if is_on else 0)


def test_options_that_are_given_stay_as_they_are() -> None:
    given = EngineConfig(speculative={"num_speculative_tokens": 3})
    assert start_speculation.with_default_speculation(given, cast(Any, None)) is given


def test_texts_or_a_model_propose() -> None:
    config = SpeculativeConfig(num_speculative_tokens=5)
    assert start_speculation.make_speculation(None, None, None, vocab_size=9) is None
    rounds: Any = SimpleNamespace()
    text: Any = start_speculation.make_speculation(config, None, rounds, vocab_size=9)
    assert isinstance(text, TextSpeculation) and (text._rule, text._vocab_size, text._rounds) == (RULE, 9, rounds)
    draft: Any = SimpleNamespace()
    model: Any = start_speculation.make_speculation(config, draft, None, vocab_size=9)
    assert isinstance(model, ModelSpeculation)
    assert (model._rule, model._vocab_size, model._draft) == (RULE, 9, draft)


# --- rounds of texts --------------------------------------------------------------------------------------------------


class RoundsRunner:
    """As much of a runner as rounds look at before they begin."""

    def __init__(self, **given: Any) -> None:
        vars(self).update(vars(make_runner(**given)))
        self.rounds: Any = None


@pytest.mark.parametrize(("session_len", "width"), [(200, 200 + MOST_OF_MEDIA + 64), (1 << 20, 1 << 16)])
def test_steps_propose_from_texts_by_themselves(session_len: int, width: int) -> None:
    runner: Any = RoundsRunner(session_len=session_len)
    config = EngineConfig(device_type="cpu", speculative={"num_speculative_tokens": 5})
    made: Any = start_speculation.make_text_rounds(config, runner, vocab_size=9)
    proposer = made._proposer
    assert runner.rounds._proposer is proposer and (runner.rounds._num_rounds, runner.rounds._few_rows) == (4, 8)
    assert proposer._ids.shape == (64 + 1, width) and proposer._vocab_size == 9
    assert [proposer.count_proposed(num_rows) for num_rows in (1, 21, 22, 64)] == [5, 5, 4, 1]


@pytest.mark.parametrize(
    ("options", "traits", "has_float64"),
    [
        ({}, {}, True),
        ({"speculative": {"method": "mtp"}}, {}, True),
        ({"speculative": {}, "tp": 2}, {}, True),
        ({"speculative": {}}, {"has_states": True}, True),
        ({"speculative": {}}, {"attends_media": True}, True),
        ({"speculative": {}}, {}, False),
    ],
)
def test_others_are_proposed_by_the_host(
    options: dict[str, Any], traits: dict[str, bool], has_float64: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(start_speculation, "has_float64", lambda _: has_float64)
    runner: Any = RoundsRunner(**traits)
    assert start_speculation.make_text_rounds(EngineConfig(**options), runner, vocab_size=9) is None
    assert runner.rounds is None


# --- what is loaded ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("session_len", "block_size", "num_blocks"), [(200, 64, 1024), (1 << 16, 64, 1024), ((1 << 16) + 1, 64, 1025)]
)
def test_the_cache_of_what_proposes_has_the_longest_sequence(
    session_len: int, block_size: int, num_blocks: int
) -> None:
    runner = make_runner(session_len=session_len)
    start_speculation._start(runner, EngineConfig(block_size=block_size))
    assert runner.noted == [{"num_blocks": num_blocks, "share": 1.0}], "a CPU needs no more"


@pytest.mark.parametrize(
    ("has_graphs", "eager_mode", "expected"),
    [
        (True, False, ["warm up", "record graphs"]),
        (False, False, ["warm up"]),
        (True, True, ["warm up"]),
    ],
)
def test_a_device_is_made_ready(has_graphs: bool, eager_mode: bool, expected: list[str]) -> None:
    runner = make_runner(torch.device("cuda"), has_graphs=has_graphs)
    start_speculation._start(runner, EngineConfig(eager_mode=eager_mode))
    assert runner.noted[1:] == expected


@pytest.mark.parametrize(
    ("mine", "theirs", "error"),
    [
        ([b"a", b"b"], [b"a", b"b"], None),
        ([b"a", b"", b"c"], [b"a", b"b", b"", b"d"], None),
        ([b"a", b"b"], [b"a", b"x"], "'m' has another vocabulary: its token 1 is b'x', that of the model is b'b'"),
    ],
)
def test_a_model_that_proposes_has_the_same_tokens(mine: Any, theirs: Any, error: str | None) -> None:
    model, draft = (cast(Any, SimpleNamespace(text_tokens=lambda own=own: own)) for own in (mine, theirs))
    if error is None:
        start_speculation._check_vocabulary(model, draft, "m")
        return
    with pytest.raises(ConfigError, match=error):
        start_speculation._check_vocabulary(model, draft, "m")


def resolve(device: torch.device = CPU) -> ResolvedConfig:
    return ResolvedConfig(
        device=device,
        dtype=torch.float32,
        session_len=60,
        max_batch_size=4,
        max_step_ms=None,
        kv_format="plain",
    )


@pytest.mark.parametrize(("speculative", "device"), [(None, CPU), ({}, CPU), ({"method": "mtp"}, torch.device("meta"))])
def test_nothing_is_loaded_where_nothing_is_needed(speculative: Any, device: torch.device) -> None:
    config = EngineConfig(device_type="cpu", speculative=speculative)
    nothing: Any = None
    assert start_speculation.load_draft(nothing, config, resolve(device), nothing) is None


@pytest.mark.parametrize(
    ("options", "text"), [({"tp": 2}, "with 2 ranks"), ({}, "with a model that is computed by its own modules")]
)
def test_a_layer_needs_a_decoder_that_is_composed_here(options: dict[str, Any], text: str) -> None:
    config = EngineConfig(device_type="cpu", speculative={"method": "mtp"}, **options)
    with pytest.raises(ConfigError, match=f"speculative.method='mtp' is not supported {text}: use another"):
        start_speculation.load_draft(cast(Any, None), config, resolve(), make_runner())


def test_a_layer_is_not_divided_among_ranks() -> None:
    main = make_runner()
    main.decoder = ComposedDecoder.__new__(ComposedDecoder)
    config = EngineConfig(device_type="cpu", speculative={"method": "mtp"}, tp=2)
    with pytest.raises(ConfigError, match="is not supported with 2 ranks"):
        start_speculation.load_draft(cast(Any, None), config, resolve(), main)


def load_main(path: Path, config: EngineConfig) -> tuple[OpenedModel, Any]:
    model = open_model(path, config)
    runner = load_runner(model, resolve(), max_step_tokens=64, block_size=config.block_size)
    return model, runner


@pytest.mark.parametrize(("name", "has_rounds"), [("glm4_moe", True), ("qwen3_5_text", False)])
def test_a_layer_proposes_in_rounds_where_wrong_tokens_can_be_taken_back(
    name: str, has_rounds: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    path = add_layer(tiny_checkpoint(name), tmp_path / "model", is_apart=not has_rounds)
    speculative = {"method": "mtp", "num_speculative_tokens": 5}
    config = EngineConfig(device_type="cpu", session_len=60, block_size=16, speculative=speculative)
    model, main = load_main(path, config)
    draft: Any = start_speculation.load_draft(model, config, resolve(), main)
    assert isinstance(draft, LayerDraft) and isinstance(draft.states, KeptStates) and main.kept_states is draft.states
    assert draft.states._max_bytes == 512 << 20
    assert (main.rounds is not None) == (draft.rounds is not None) == has_rounds
    if has_rounds:
        assert main.rounds._proposer.source is draft.rounds
        assert (main.rounds._num_rounds, main.rounds._few_rows) == (8, 4)
    limits = draft._runner.limits
    assert (limits.max_batch_size, limits.max_step_tokens, limits.max_verified_tokens) == (64, 2048, 128)
    assert len(draft._decoder.carried(2048)) == 2048, "there is room for the states of a step"
    assert (limits.session_len, limits.block_size, draft._runner.num_blocks) == (60, 16, 4096)
    assert draft._chain.find_size(1).num_proposed == 5 and draft._chain.find_size(64).num_proposed == 1


def test_a_model_that_keeps_states_cannot_propose(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("qwen3_next")
    config = EngineConfig(device_type="cpu", speculative={"method": "draft", "model": str(path)})
    model = open_model(path, config)
    with pytest.raises(ConfigError, match="keeps states of whole texts"):
        start_speculation.load_draft(model, config, resolve(), make_runner())


def test_the_tokens_of_another_vocabulary_are_named_by_their_model(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("llama")
    config = EngineConfig(device_type="cpu", speculative={"method": "draft", "model": str(path)})
    model: Any = SimpleNamespace(text_tokens=lambda: [b"other"] * 9)
    with pytest.raises(ConfigError, match=r"has another vocabulary: its token .* that of the model is b'other'$"):
        start_speculation.load_draft(model, config, resolve(), make_runner())


def test_a_model_proposes_with_limits_of_its_own(tiny_checkpoint: Callable[[str], Path]) -> None:
    path = tiny_checkpoint("llama")
    speculative = {"method": "draft", "model": str(path)}
    config = EngineConfig(device_type="cpu", block_size=16, speculative=speculative)
    draft: Any = start_speculation.load_draft(open_model(path, config), config, resolve(), make_runner())
    limits = draft._runner.limits
    assert (limits.max_batch_size, limits.max_step_tokens, limits.block_size) == (64, 2048, 16)
    assert (limits.session_len, limits.kv_format, draft._runner.num_blocks) == (60, "plain", 4096)
    assert draft.rounds is None and draft.states is None and draft.num_skipped == 0
