"""A layer of the checkpoint that predicts further tokens proposes them."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from counting_runner import CountingRunner, grow, make_counted
from pairs import parametrize_sweep
from predicting_layers import APART, add_layer, add_sure_layer
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM
from watched_rounds import take_rounds

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.engine.core.speculation.layer_draft import LayerDraft, LayerRounds
from seesay.engine.core.speculation.speculation import _Proposals
from seesay.errors import ConfigError
from seesay.llm.plans.sampling_params import SamplingParams
from seesay.llm.plans.step_plan import UNPROPOSED
from seesay.llm.running.proposals.chain import MissingTokens
from seesay.llm.running.proposals.kept_states import KeptStates
from seesay.llm.scheduling.sequence import Sequence

PROMPTS = ["say one two three", "red green blue", "a b c d e f g"]
NAMES = ("glm4_moe", "deepseek_v3", "glm4v_moe", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_5", "qwen3_next")
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=30, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=30, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=20, ignore_eos=True, repetition_penalty=1.1, frequency_penalty=0.2),
    "scored": GenerationConfig(max_new_tokens=20, ignore_eos=True, logprobs=3),
}


class Decoder:
    """Takes states of a row's tokens: `carried`, where each row has one token."""

    def __init__(self) -> None:
        self.carried: list[list[list[float]]] = []

    def make_states(self, num_tokens: int) -> torch.Tensor:
        return torch.zeros(num_tokens, 1)

    def carry(self, states: torch.Tensor) -> None:
        self.carried.append(states.tolist())


class Chain:
    """Proposes up to three tokens from 60, 70, … on for the first, second, … text."""

    def __init__(self) -> None:
        self.missing: list[Any] = []

    def find_size(self, num_rows: int) -> Any:
        return SimpleNamespace(num_proposed=3)

    def run(self, missing: MissingTokens) -> Any:
        self.missing.append(missing)
        return np.array([[60 + 10 * row + place for row in range(len(missing.members))] for place in range(3)])


class Rounds:
    """Has room for two rounds of two proposed tokens."""

    def __init__(self) -> None:
        self.room = (2, 2)
        self.num_forgotten = 0

    def find_room(self, num_rows: int) -> tuple[int, int]:
        return self.room

    def forget(self) -> None:
        self.num_forgotten += 1


class Layer:
    """A draft by a layer, among parts that are looked at. The model's state of place p is p."""

    def __init__(self, **sizes: Any) -> None:
        self.runner, self.decoder, self.chain, self.counted = CountingRunner(**sizes), Decoder(), Chain(), Rounds()
        self.states = KeptStates(1 << 20)
        parts: list[Any] = [self.runner, self.decoder, self.states, self.chain, self.counted]
        self.draft = LayerDraft(*parts)
        assert self.draft.rounds is not None
        self.rounds: LayerRounds = self.draft.rounds

    def begin(self, seq_id: int, *token_ids: int, **params: Any) -> Sequence:
        """A sequence whose prompt is computed, and to which one token more came."""
        options = SamplingParams(**{"greedy": True, "max_new_tokens": 20, **params})
        seq = make_counted(seq_id, *token_ids, params=options)
        self.states.begin(seq_id)
        self.compute(seq, 0, len(token_ids))
        return grow(seq, token_ids[-1] + 1)

    def compute(self, seq: Sequence, start: int, stop: int) -> None:
        self.states.add(seq.seq_id, start, torch.arange(start, stop, dtype=torch.float32)[:, None])

    def catch_up(self, *seqs: Sequence) -> None:
        """Have the layer compute what there is of prompts, and forget how."""
        self.draft.propose(seqs, 1)
        for seq in seqs:
            self.compute(grow(seq, 50), seq.num_tokens - 2, seq.num_tokens - 1)
        self.runner.take_steps()


def test_it_takes_each_token_but_the_first_with_the_state_before_it() -> None:
    layer = Layer()
    seq = layer.begin(1, 10, 11, 12)
    assert layer.draft.propose([seq], 2) == {1: (14, 15)}
    assert layer.runner.take_steps() == [[(1, 0, 3, True)], [(1, 3, 1, True)]]
    row = layer.runner.rows[1]
    assert row.tokens == [11, 12, 13] and row.media_end > 1 << 40
    splices = layer.runner.spliced[0][1]
    assert [piece.tolist() for piece in splices.pieces] == [[[0.0], [1.0], [2.0]]]
    assert [offsets.tolist() for offsets in splices.offsets] == [[0, 1, 2]] and splices.are_ends == [True]
    assert layer.runner.spliced[1] == {} and not layer.decoder.carried, "behind it the layer has its own states"
    assert row.begun.positions.tolist() == [0, 1] and row.begun.next_position == 2


def test_rows_of_one_token_carry_their_states() -> None:
    layer = Layer()
    seqs = [layer.begin(1, 10, greedy=False), layer.begin(2, 20, greedy=False)]
    layer.states.drop(2)
    layer.draft.propose(seqs, 1)
    assert layer.decoder.carried == [[[0.0], [0.0]]] and layer.runner.spliced == [{}]
    assert layer.runner.rows[1].media_end == 0


def test_rows_of_one_token_beside_longer_ones_bring_their_states() -> None:
    layer = Layer()
    seqs = [layer.begin(1, 10, greedy=False), layer.begin(2, 20, 21, greedy=False)]
    layer.draft.propose(seqs, 1)
    assert layer.runner.take_steps() == [[(1, 0, 1, True), (2, 0, 2, True)]] and not layer.decoder.carried
    spliced = {seq_id: splices.pieces[0].tolist() for seq_id, splices in layer.runner.spliced[0].items()}
    assert spliced == {1: [[0.0]], 2: [[0.0], [1.0]]}


def test_states_that_are_not_there_are_zeros() -> None:
    layer = Layer()
    seq = layer.begin(1, 10, 11, 12)
    layer.states.clear()
    layer.draft.propose([seq], 1)
    assert layer.runner.spliced[0][1].pieces[0].tolist() == [[0.0]] * 3


def test_positions_of_several_axes_are_those_of_the_prompt() -> None:
    layer = Layer(num_axes=3)
    positions = np.arange(12).reshape(3, 4)
    seq = make_counted(1, 10, 11, 12, 13, params=SamplingParams(), positions=positions, next_position=9)
    layer.draft.propose([grow(seq, 14)], 1)
    begun = layer.runner.rows[1].begun
    assert begun.positions.tolist() == positions[:, :3].tolist() and begun.next_position == 8


def test_few_missing_tokens_are_a_chains() -> None:
    layer = Layer()
    one, two = layer.begin(1, 10, 11, 12), layer.begin(2, 20, 21)
    layer.catch_up(one, two)
    assert layer.draft.propose([one, two], 2) == {1: (60, 61), 2: (70, 71)} and not layer.runner.steps
    [missing] = layer.chain.missing
    assert missing.members == [layer.runner.rows[1], layer.runner.rows[2]] and missing.counts.tolist() == [1, 1]
    assert missing.states.tolist() == [[3.0], [2.0]]
    assert layer.runner.rows[1].tokens == [11, 12, 13, 50], "what was proposed is none of its tokens"
    for number, seq in enumerate((one, two)):
        layer.compute(grow(seq, 60 + 10 * number, 5), seq.num_tokens - 3, seq.num_tokens - 1)
    layer.draft.propose([two, one], 3)
    assert layer.chain.missing[1].counts.tolist() == [2, 2], (
        "accepted tokens are computed again, with the model's states"
    )
    assert layer.chain.missing[1].states.tolist() == [[3.0], [4.0], [4.0], [5.0]]


def test_those_of_which_more_is_missing_are_computed_beside() -> None:
    layer = Layer()
    one, two = layer.begin(1, 10, 11, 12), layer.begin(2, 20, 21, 22)
    layer.catch_up(one)
    assert layer.draft.propose([one, two], 2) == {1: (60, 61), 2: (24, 25)}
    assert layer.runner.take_steps() == [[(2, 0, 3, True)], [(2, 3, 1, True)]] and len(layer.chain.missing) == 1
    assert layer.draft.propose([], 2) == {}


@pytest.mark.parametrize(
    ("num_computed", "num_new", "params", "is_chained"),
    [
        (3, 1, {}, True),
        (3, 4, {}, True),
        (3, 5, {}, False),
        (3, 0, {}, False),
        (2, 1, {}, True),
        (1, 1, {}, False),
        (3, 1, {"greedy": False}, False),
        (3, 1, {"frequency_penalty": 0.5}, False),
    ],
)
def test_what_a_chain_takes(num_computed: int, num_new: int, params: dict[str, Any], is_chained: bool) -> None:
    """Of a prompt of three tokens, of which the layer takes two, and one token more; a chain proposes three."""
    layer = Layer()
    seq = layer.begin(1, 10, 11, 12, **params)
    [text] = layer.draft.take_all([seq], 3)
    text.num_computed = num_computed
    grow(seq, *range(14, 14 + num_new))
    assert layer.draft.is_chained(text, 3) == is_chained


def test_rounds_have_all_that_they_have_room_for() -> None:
    layer = Layer()
    seqs = [layer.begin(1, 10, 11), layer.begin(2, 20, 21)]
    layer.catch_up(*seqs)
    assert layer.rounds.propose(seqs) == {1: (UNPROPOSED,) * 5, 2: (UNPROPOSED,) * 5}, "two of three, less one"
    layer.rounds.forget()
    assert layer.counted.num_forgotten == 1


@pytest.mark.parametrize("why", ["no room", "the end", "no blocks", "much is missing"])
def test_rounds_are_for_all_or_none(why: str) -> None:
    layer = Layer(num_blocks=3 if why == "no blocks" else 20)
    limit = {"max_new_tokens": 3} if why == "the end" else {}
    seqs = [layer.begin(1, 10, 11, **limit), layer.begin(2, 20, 21, **limit)]
    layer.catch_up(*seqs)
    if why == "no room":
        layer.counted.room = (0, 2)
    elif why == "much is missing":
        grow(seqs[1], 1, 2, 3)
    assert layer.rounds.propose(seqs) == {}
    assert layer.rounds.begin_rounds([1, 2]) is None


def test_one_that_goes_on_lets_the_others_have_rounds() -> None:
    layer = Layer()
    seqs = [layer.begin(1, 10, 11, max_new_tokens=3), layer.begin(2, 20, 21, max_new_tokens=4)]
    layer.catch_up(*seqs)
    assert sorted(layer.rounds.propose(seqs)) == [1, 2]


def test_rounds_begin_with_what_is_missing_and_end_with_what_was_right() -> None:
    layer = Layer()
    seqs = [layer.begin(1, 10, 11), layer.begin(2, 20, 21, 22)]
    layer.catch_up(*seqs)
    layer.rounds.propose(seqs)
    assert layer.rounds.begin_rounds([1]) is None and layer.rounds.begin_rounds([1, 2, 3]) is None
    missing: Any = layer.rounds.begin_rounds([2, 1])
    assert missing is not None and missing.states.tolist() == [[3.0], [2.0]]
    assert missing.members == [layer.runner.rows[2], layer.runner.rows[1]]
    text = layer.draft._texts[1]
    assert text.num_computed == 3
    layer.rounds.end_rounds(1, 5, torch.full((2, 1), 7.0))
    assert (text.num_sure, text.num_computed) == (5, 5)
    kept = layer.states.take(1, 5, 7)
    assert kept is not None and kept.tolist() == [[7.0], [7.0]]


# --- models -----------------------------------------------------------------------------------------------------------


def load(path: Path, **options: Any) -> Pipeline:
    return pipeline(str(path), backend_config=EngineConfig(device_type="cpu", session_len=200, **options))


def ask(pipe: Pipeline, config: GenerationConfig) -> list[Any]:
    answers = pipe(PROMPTS, gen_config=config)
    return [(each.token_ids, [sorted(entry) for entry in each.logprobs or ()]) for each in answers]


@parametrize_sweep(name=NAMES, ahead=[False, True])
def test_a_random_layer_changes_nothing(
    name: str, ahead: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path
) -> None:
    """It proposes, and what is accepted is counted. The checkpoint loads without speculation, too."""
    path = add_layer(tiny_checkpoint(name), tmp_path / "model", shares=ahead, is_apart=name in APART)
    with load(path) as pipe:
        expected = {kind: ask(pipe, config) for kind, config in CONFIGS.items()}
    with load(path, speculative={"method": "mtp", "num_speculative_tokens": 3}, async_scheduling=ahead) as pipe:
        for kind, config in CONFIGS.items():
            assert ask(pipe, config) == expected[kind], kind
        stats = pipe.engine.stats()
    assert stats.total_draft_tokens > 20


def test_a_checkpoint_without_such_a_layer_is_refused(tiny_checkpoint: Callable[[str], Path]) -> None:
    with pytest.raises(ConfigError, match="method='mtp': the checkpoint has no layer 2 that predicts further tokens"):
        load(tiny_checkpoint("glm4_moe"), speculative={"method": "mtp"})


class Reference:
    """The layer as Transformers computes one of its kind, without a cache. is_apart: it is stored apart from others,
    its norms less 1, and takes its state behind the last norm."""

    def __init__(self, path: Path, *, is_apart: bool) -> None:
        self.model: Any = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        config = self.model.config
        self.is_apart, number = is_apart, config.num_hidden_layers
        prefixes = ("mtp.layers.0.", "mtp.") if is_apart else (f"model.layers.{number}.",)
        self.own: dict[str, torch.Tensor] = {}
        for name, tensor in load_file(path / "model.safetensors").items():
            if prefix := next((each for each in prefixes if name.startswith(each)), None):
                self.own[name.removeprefix(prefix)] = tensor.float()
        like = next(i for i in reversed(range(number)) if hasattr(self.model.model.layers[i], "self_attn"))
        self.layer = copy.deepcopy(self.model.model.layers[like])
        state = self.layer.state_dict()
        stacked = {name: self.own[name] for name in state if name in self.own}
        if "mlp.experts.down_proj" in state and "mlp.experts.down_proj" not in stacked:
            experts = [f"mlp.experts.{i}" for i in range(state["mlp.experts.down_proj"].shape[0])]
            stacked["mlp.experts.down_proj"] = torch.stack([self.own[f"{each}.down_proj.weight"] for each in experts])
            stacked["mlp.experts.gate_up_proj"] = torch.stack(
                [torch.cat([self.own[f"{each}.{part}_proj.weight"] for part in ("gate", "up")]) for each in experts]
            )
        self.layer.load_state_dict(stacked)
        self.eps = config.rms_norm_eps

    def norm(self, x: torch.Tensor, name: str, apart_name: str) -> torch.Tensor:
        weight = 1 + self.own[f"{apart_name}.weight"] if self.is_apart else self.own[f"{name}.weight"]
        return F.rms_norm(x, x.shape[-1:], weight, self.eps)

    @torch.inference_mode()
    def find_gaps(self, token_ids: list[int], proposed: tuple[int, ...]) -> list[float]:
        """How much less likely proposed tokens are than the likeliest, by their logits, behind tokens of which the
        last is not computed by the model."""
        states = self.model.model(torch.tensor([token_ids[:-1]])).last_hidden_state[0]
        known, gaps = list(token_ids), []
        for token_id in proposed:
            embedded = self.norm(
                self.model.model.embed_tokens(torch.tensor(known[1:])), "enorm", "pre_fc_norm_embedding"
            )
            joined = torch.cat((embedded, self.norm(states, "hnorm", "pre_fc_norm_hidden")), dim=-1)
            x = (joined @ self.own["fc.weight" if self.is_apart else "eh_proj.weight"].T)[None]
            places = torch.arange(len(known) - 1)[None]
            turned = self.model.model.rotary_emb(x, places.expand(3, 1, -1) if self.is_apart else places)
            mask = torch.full((len(known) - 1, len(known) - 1), -torch.inf).triu(1)[None, None]
            out = self.layer(x, attention_mask=mask, position_ids=places, position_embeddings=turned)
            out = (out[0] if isinstance(out, tuple) else out)[0]
            normed = self.norm(out[-1:], "shared_head.norm", "norm")
            states = torch.cat((states, normed if self.is_apart else out[-1:]))
            logits = self.model.lm_head(normed[0])
            gaps.append(float(logits.max() - logits[token_id]))
            known.append(token_id)
        return gaps


@pytest.mark.parametrize("name", ["glm4_moe", "deepseek_v3", "qwen3_5_text", "qwen3_5_moe_text"])
def test_it_proposes_what_a_plain_layer_would(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts in chunks, behind accepted and refused tokens, for several sequences at once."""
    path = add_layer(tiny_checkpoint(name), tmp_path / "model", is_apart=name in APART)
    propose, seen = LayerDraft.propose, list[tuple[list[int], tuple[int, ...]]]()

    def watch(self: LayerDraft, sequences: Any, most: int) -> dict[int, tuple[int, ...]]:
        texts = {seq.seq_id: seq.token_ids.tolist() for seq in sequences}
        found = propose(self, sequences, most)
        seen.extend((texts[seq_id], proposed) for seq_id, proposed in found.items())
        return found

    monkeypatch.setattr(LayerDraft, "propose", watch)
    speculative = {"method": "mtp", "num_speculative_tokens": 3}
    options: dict[str, Any] = {
        "max_prefill_token_num": 8,
        "block_size": 4,
        "enable_prefix_caching": False,
    }  # hits lack states
    with load(path, speculative=speculative, **options) as pipe:
        pipe(PROMPTS, gen_config=replace(CONFIGS["greedy"], max_new_tokens=8))
    assert len(seen) >= 6
    reference = Reference(path, is_apart=name in APART)
    gaps = [reference.find_gaps(text, proposed) for text, proposed in seen]
    assert max(map(max, gaps)) < 1e-4, gaps


@pytest.mark.parametrize(
    ("name", "ahead", "rounds"),
    [
        ("glm4_moe", False, True),
        ("glm4_moe", True, False),
        ("deepseek_v3", True, True),
        ("qwen3_5_text", False, False),
        ("qwen3_5_text", True, False),
    ],
)
def test_a_layer_that_must_be_right_is_always_accepted(
    name: str,
    ahead: bool,
    rounds: bool,
    tiny_checkpoint: Callable[[str], Path],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Fails when acceptance falls: with states or embeddings of another place or step, the layer is seldom right.
    Prompts come in chunks, and from the prefix cache."""
    model = add_sure_layer(tiny_checkpoint(name), tmp_path / "model", num_known=32, is_apart=name in APART)
    config = GenerationConfig(max_new_tokens=41, ignore_eos=True)
    options: dict[str, Any] = {"max_prefill_token_num": 8, "block_size": 4}
    monkeypatch.setattr(_Proposals, "expected", property(lambda one: one.most))
    with load(model, **options) as pipe:
        expected = [each.token_ids for each in pipe(PROMPTS, gen_config=config)]
    assert all(len(set(token_ids)) == 32 for token_ids in expected)
    speculative = {"method": "mtp", "num_speculative_tokens": 4}
    with load(model, **options, async_scheduling=ahead, speculative=speculative) as pipe:
        steps = take_rounds(pipe, monkeypatch) if rounds else []
        for _ in range(2):
            assert [each.token_ids for each in pipe(PROMPTS, gen_config=config)] == expected
        stats = pipe.engine.stats()
    assert stats.total_accepted_tokens == stats.total_draft_tokens, "some proposals were wrong"
    assert stats.total_accepted_tokens >= 0.5 * 2 * len(PROMPTS) * 40, "too few tokens were proposed"
    assert bool(steps) == rounds
