"""An EAGLE-3 head proposes tokens."""

from __future__ import annotations

import gc
import json
import random
import shutil
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from asking import PICTURE, loop_of
from eagle_heads import describe_head, make_head, make_tensors, write_head
from pairs import parametrize_sweep
from plain_head import PlainHead
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from watched_rounds import take_rounds, watch_resumed, watch_rounds

from seesay import EngineConfig, GenerationConfig, Pipeline, pipeline
from seesay.demo import CHECKPOINT
from seesay.engine.core.loading import start_speculation
from seesay.engine.core.speculation.layer_draft import LayerDraft
from seesay.engine.core.speculation.speculation import ModelSpeculation, _Proposals
from seesay.errors import CheckpointError, ConfigError
from seesay.llm.running.proposals import round_state
from seesay.llm.running.proposals.chain import ProposalChain
from seesay.llm.running.proposals.kept_states import KeptStates
from seesay.llm.running.proposals.round_state import CountedRound

IDS = "eagle_aux_hidden_state_layer_ids"
PROMPTS: list[Any] = ["say one two three", ("what is there?", PICTURE), "a b c d e f g"]
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"enum": ["x", "yy"]}},
    "required": ["a", "b"],
}
CONFIGS = {
    "greedy": GenerationConfig(max_new_tokens=40, ignore_eos=True),
    "drawn": GenerationConfig(max_new_tokens=40, ignore_eos=True, do_sample=True, temperature=0.8, random_seed=3),
    "penalized": GenerationConfig(max_new_tokens=30, ignore_eos=True, repetition_penalty=1.1, frequency_penalty=0.2),
    "scored": GenerationConfig(max_new_tokens=30, ignore_eos=True, logprobs=3),
    "grammar": GenerationConfig(
        max_new_tokens=40, response_format={"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    ),
}
SETUPS: dict[str, dict[str, Any]] = {
    "at once": {"async_scheduling": False},
    "ahead": {"async_scheduling": True},
    "tight": {"async_scheduling": True, "num_gpu_blocks": 16, "block_size": 16, "max_prefill_token_num": 16},
    "process": {"engine_process": True},
}


def load(path: Path | None = None, *, device_type: Any = "cpu", **options: Any) -> Pipeline:
    config = EngineConfig(device_type=device_type, session_len=200, **options)
    return pipeline(backend_config=config) if path is None else pipeline(str(path), backend_config=config)


def ask(pipe: Pipeline, config: GenerationConfig) -> list[Any]:
    answers: list[Any] = pipe(PROMPTS, gen_config=config)
    return [(each.token_ids, each.finish_reason, [sorted(entry) for entry in each.logprobs or ()]) for each in answers]


def use(head: Path, count: int = 3) -> dict[str, Any]:
    return {"method": "eagle3", "model": str(head), "num_speculative_tokens": count}


@pytest.fixture(scope="module")
def expected() -> Iterator[dict[str, list[Any]]]:
    with load() as pipe:
        yield {name: ask(pipe, config) for name, config in CONFIGS.items()}


@pytest.mark.parametrize("setup", SETUPS)
def test_a_random_head_changes_nothing(
    setup: str, expected: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Greedy and drawn answers, with pictures, chunks, preemption and grammars. It goes on with what it proposes."""
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    head = make_head(tmp_path / "head", Path(CHECKPOINT))
    with load(**SETUPS[setup], speculative=use(head)) as pipe:
        for name, config in CONFIGS.items():
            assert ask(pipe, config) == expected[name], name
        stats = pipe.engine.stats()
    assert stats.total_draft_tokens > (500 if setup != "process" else 50)


@parametrize_sweep(setup=["at once", "ahead", "tight"], rate=[0.0, 0.6, 1.0])
def test_rounds_on_the_device_change_nothing(
    setup: str, rate: float, expected: dict[str, list[Any]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With proposals of which a share is right: those that the chain would make are replaced by known answers."""
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    monkeypatch.setattr(start_speculation, "_LEAST_SAVED", 0.0)
    head = make_head(tmp_path / "head", Path(CHECKPOINT))
    with load(**SETUPS[setup], speculative=use(head)) as pipe:
        steps, resumed = take_rounds(pipe, monkeypatch), watch_resumed(monkeypatch)
        monkeypatch.setattr(_Proposals, "expected", property(lambda one: one.most))
        propose_known([token_ids for token_ids, *_ in expected["greedy"]], rate, monkeypatch)
        for _ in range(2):
            assert ask(pipe, CONFIGS["greedy"]) == expected["greedy"]
        for name in ("drawn", "grammar", "scored"):
            assert ask(pipe, CONFIGS[name]) == expected[name], name
        assert ask(pipe, CONFIGS["greedy"]) == expected["greedy"]
        stats = pipe.engine.stats()
    assert steps and (setup == "tight" or max(steps) == max(resumed) == len(PROMPTS))
    assert stats.total_accepted_tokens >= rate**2 * 50


def propose_known(answers: list[Any], rate: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let chains propose what comes next in the answer that a text follows, each token with probability `rate`."""
    rng = random.Random(7)
    begin, compute, count = ProposalChain.begin, ProposalChain.compute, round_state.count_round
    following: list[list[int]] = []

    def watch_begin(chain: ProposalChain, missing: Any) -> None:
        following.clear()
        for member in missing.members:
            begun = member.token_ids.tolist()[member.num_prompt_tokens :]
            [whole] = [each for each in map(list, answers) if each[: len(begun)] == begun and begun] or [[]]
            following.append(whole[len(begun) :])
        begin(chain, missing)

    def know(chain: ProposalChain, num_rows: int, num_tokens: int) -> torch.Tensor:
        found = compute(chain, num_rows, num_tokens).clone()
        for row, tokens in enumerate(following):
            for place, token_id in enumerate(tokens[: len(found)]):
                found[place, row] = token_id if rng.random() < rate else found[place, row]
        return found

    def follow(*given: torch.Tensor) -> CountedRound:
        counted = count(*given)
        for row, taken in enumerate(counted.read(counted.for_host.numpy()).num_right.tolist()):
            del following[row][: taken + 1]
        return counted

    monkeypatch.setattr(ProposalChain, "begin", watch_begin)
    monkeypatch.setattr(ProposalChain, "compute", know)
    monkeypatch.setattr(round_state, "count_round", follow)


# --- what it computes -------------------------------------------------------------------------------------------------


class Watch:
    """Notes what a head proposes of which text, and the states that it gets, by sequence and place."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.seen: list[tuple[int, list[int], Any, int, tuple[int, ...]]] = []
        self.states: dict[tuple[int, int], torch.Tensor] = {}
        self.num_chains = 0
        propose, keep, run = LayerDraft.propose, KeptStates.keep, ProposalChain.run

        def watch_propose(draft: LayerDraft, sequences: Any, most: int) -> dict[int, tuple[int, ...]]:
            found = propose(draft, sequences, most)
            for seq in sequences:
                if seq.seq_id in found:
                    text, positions = seq.token_ids.tolist(), torch.from_numpy(seq.prompt_positions.copy())
                    self.seen.append((seq.seq_id, text, positions, seq.next_position, found[seq.seq_id]))
            return found

        def watch_keep(kept: KeptStates, step: Any, made: torch.Tensor) -> None:
            first = 0
            for row in step.rows:
                for place in range(row.num_tokens):
                    self.states[row.seq_id, row.start + place] = made[first + place].to("cpu", torch.float32, copy=True)
                first += row.num_tokens
            keep(kept, step, made)

        def watch_run(chain: ProposalChain, *args: Any) -> Any:
            self.num_chains += 1
            return run(chain, *args)

        monkeypatch.setattr(ProposalChain, "run", watch_run)
        monkeypatch.setattr(LayerDraft, "propose", watch_propose)
        monkeypatch.setattr(KeptStates, "keep", watch_keep)


CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "as published": ("llama", {}),
    "for Qwen3": ("qwen3", {"norm_before_residual": True}),
    "with norms": ("llama", {"norm_before_fc": True}),
    "3.1": ("qwen3", {"fc_norm": True, "norm_output": True}),
    "for pictures": ("qwen2_5_vl", {}),
}


@pytest.mark.parametrize("name", CHANGES)
def test_it_proposes_what_a_plain_head_would(
    name: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of prompts in chunks and with pictures, behind refused tokens, for several sequences at once."""
    kind, changes = CHANGES[name]
    model = tiny_checkpoint(kind)
    described = json.loads((model / "config.json").read_text())
    num_layers = described.get("text_config", described)["num_hidden_layers"]
    config = describe_head(described, eagle_config={IDS: [0, 0, num_layers - 1]}, **changes)
    size = config["hidden_size"]
    more = {"input_norm.weight": torch.rand(3 * size) + 0.5} if changes.get("norm_before_fc") else {}
    more |= {f"fc_norm.{i}.weight": torch.rand(size) + 0.5 for i in range(3)} if changes.get("fc_norm") else {}
    head = write_head(tmp_path / "head", config, make_tensors(config) | more)
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    watch = Watch(monkeypatch)
    prompts = PROMPTS if kind == "qwen2_5_vl" else [each for each in PROMPTS if isinstance(each, str)]
    options = {"max_prefill_token_num": 8, "block_size": 4, "enable_prefix_caching": False}
    with load(model, speculative=use(head), **options) as pipe:
        pipe(prompts, gen_config=GenerationConfig(max_new_tokens=6, ignore_eos=True))
    assert len(watch.seen) >= 4 * len(prompts) and watch.num_chains >= 4, "the first step of each alone has no chain"
    assert len({token_id for *_, proposed in watch.seen for token_id in proposed}) > 8
    stored = load_file(model / "model.safetensors")
    table = next(tensor for name, tensor in stored.items() if name.endswith("embed_tokens.weight"))
    plain = PlainHead(head, table)
    gaps = []
    for seq_id, text, positions, next_position, proposed in watch.seen:
        states = torch.stack([watch.states[seq_id, place] for place in range(len(text) - 1)])
        num_more = len(text) + len(proposed) - positions.shape[-1]
        behind = torch.arange(next_position, next_position + num_more).expand(*positions.shape[:-1], -1)
        gaps.append(plain.find_gaps(text, states, torch.cat((positions, behind), dim=-1), proposed))
    assert max(map(max, gaps)) < 1e-4, gaps
    if kind != "qwen2_5_vl":
        check_states(model, plain, watch, [0, 0, num_layers - 1])


def check_states(model: Path, plain: PlainHead, watch: Watch, outputs: list[int]) -> None:
    """Compare the states that the head got with those that Transformers computes behind the layers `outputs`."""
    oracle: Any = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    behind: dict[int, torch.Tensor] = {}
    for index in outputs:
        oracle.model.layers[index].register_forward_hook(
            lambda _module, _given, out, index=index: behind.update({index: out[0] if isinstance(out, tuple) else out})
        )
    for seq_id, text, *_ in watch.seen:
        with torch.inference_mode():
            oracle(torch.tensor([text[:-1]]))
        joined = plain.join(torch.cat([behind[index].reshape(len(text) - 1, -1) for index in outputs], dim=-1))
        own = torch.stack([watch.states[seq_id, place] for place in range(len(text) - 1)])
        torch.testing.assert_close(own, joined, atol=1e-4, rtol=1e-4)


# --- acceptance -------------------------------------------------------------------------------------------------------


def write_sure_model(source: Path, folder: Path, num_known: int) -> tuple[Path, Path]:
    """Write a model of eight layers whose answers go through `num_known` tokens again and again, whatever the prompt,
    and a head that knows these tokens and must foresee each. Embeddings are the axes of the hidden states, and only one
    layer changes anything: behind it a state stands for the token, before for the one behind that, so that a head which
    took states elsewhere would be wrong."""
    shutil.copytree(source, folder)
    described = json.loads((folder / "config.json").read_text())
    size = described["vocab_size"]
    known = torch.arange(0, size, size // num_known)[:num_known]
    successor = known[(torch.bucketize(torch.arange(size), known, right=True)) % num_known]
    steps = torch.zeros(size, size)
    steps[successor, torch.arange(size)] = 1.0  # steps @ axis of a token is the axis of the next one
    sizes = {"hidden_size": size, "num_hidden_layers": 8, "intermediate_size": size, "num_attention_heads": 2}
    described |= {**sizes, "num_key_value_heads": 1, "head_dim": 16}
    (folder / "config.json").write_text(json.dumps(described))
    mover = make_mover(size, steps)
    tensors = {"model.embed_tokens.weight": torch.eye(size), "model.norm.weight": torch.ones(size)}
    tensors["lm_head.weight"] = 4 * torch.eye(size)
    for index in range(8):
        inert = make_inert_layer(size, size, 1) | (mover if index == 4 else {})
        tensors |= {f"model.layers.{index}.{name}.weight": tensor for name, tensor in inert.items()}
    save_file(tensors, folder / "model.safetensors")
    config = describe_head(described, draft_vocab_size=num_known, **{IDS: [4, 5, 5]})
    layer = make_inert_layer(size, size, 2) | mover
    head = {f"midlayer.{name}.weight": tensor for name, tensor in layer.items()}
    third = torch.zeros(size, 3 * size)
    third[:, 2 * size :] = torch.eye(size)
    head |= {"midlayer.hidden_norm.weight": torch.ones(size), "norm.weight": torch.ones(size), "fc.weight": third}
    head |= {"lm_head.weight": 4 * torch.eye(size)[known], "d2t": known - torch.arange(num_known)}
    return folder, write_head(folder / "head", config, head)


def make_mover(size: int, steps: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return a feed-forward that adds to an axis what makes it steps @ axis."""
    length = size**0.5  # of the axis behind the norm
    factor = float(F.silu(torch.tensor(length)) * length)
    return {
        "mlp.gate_proj": torch.eye(size),
        "mlp.up_proj": torch.eye(size),
        "mlp.down_proj": (steps - torch.eye(size)) / factor,
    }


def make_inert_layer(size: int, inner: int, num_inputs: int) -> dict[str, torch.Tensor]:
    """Return a layer that adds nothing."""
    heads = {"self_attn.q_proj": 32, "self_attn.k_proj": 16, "self_attn.v_proj": 16}
    layer = {name: torch.zeros(count, num_inputs * size) for name, count in heads.items()}
    layer |= {"self_attn.o_proj": torch.zeros(size, 32), "mlp.down_proj": torch.zeros(size, inner)}
    layer |= {f"mlp.{name}_proj": torch.zeros(inner, size) for name in ("gate", "up")}
    return layer | {name: torch.ones(size) for name in ("input_layernorm", "post_attention_layernorm")}


@pytest.mark.parametrize(("ahead", "rounds"), [(False, False), (True, False), (False, True), (True, True)])
def test_a_head_that_must_be_right_is_always_accepted(
    ahead: bool, rounds: bool, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fails when acceptance falls: states of another place, step or layer, or wrong ids, are never right here. Prompts
    come in chunks, are preempted, and come from the prefix cache."""
    model, head = write_sure_model(tiny_checkpoint("llama"), tmp_path / "model", num_known=36)
    config = GenerationConfig(max_new_tokens=41, ignore_eos=True)
    options: dict[str, Any] = {"max_prefill_token_num": 8, "block_size": 4, "num_gpu_blocks": 60}
    prompts = [each for each in PROMPTS if isinstance(each, str)]
    with load(model, **options) as pipe:
        expected = [each.token_ids for each in pipe(prompts, gen_config=config)]
    assert all(len(set(token_ids)) == 36 for token_ids in expected)
    with load(model, **options, async_scheduling=ahead, speculative=use(head, 4)) as pipe:
        steps = take_rounds(pipe, monkeypatch) if rounds else []
        for _ in range(2):
            answers = pipe(prompts, gen_config=config)
            assert [each.token_ids for each in answers] == expected
        stats = pipe.engine.stats()
    assert stats.total_accepted_tokens == stats.total_draft_tokens, "some proposals were wrong"
    assert stats.total_accepted_tokens >= 0.5 * 2 * len(prompts) * 40, "too few tokens were proposed"
    assert bool(steps) == rounds


@pytest.mark.gpu
@pytest.mark.parametrize("model_type", ["llama", "qwen2_5_vl"])
def test_rounds_of_graphs_change_nothing(
    model_type: str, tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A head that is always right, and one that is never, for several sequences, with real graphs."""
    tiny = tiny_checkpoint(model_type)
    if model_type == "llama":
        model, head = write_sure_model(tiny, tmp_path / "model", num_known=36)
    else:
        described = json.loads((tiny / "config.json").read_text())
        head_config = describe_head(
            described, eagle_config={IDS: [0, 0, described["text_config"]["num_hidden_layers"] - 1]}
        )
        model, head = tiny, write_head(tmp_path / "head", head_config, make_tensors(head_config))
    config = GenerationConfig(max_new_tokens=41, ignore_eos=True)
    options: dict[str, Any] = {
        "device_type": "cuda",
        "dtype": "float32",
        "engine_process": False,
        "num_gpu_blocks": 400,
    }
    prompts = [each for each in PROMPTS if isinstance(each, str) or model_type == "qwen2_5_vl"]
    monkeypatch.setattr(ModelSpeculation, "pause_tokens", 0)
    monkeypatch.setattr(_Proposals, "expected", property(lambda one: one.most))
    with load(model, **options) as pipe:
        expected = [each.token_ids for each in pipe(prompts, gen_config=config)]
    with load(model, **options, speculative=use(head, 4)) as pipe:
        steps = watch_rounds(monkeypatch)
        for _ in range(3):
            assert [each.token_ids for each in pipe(prompts, gen_config=config)] == expected
        assert [pipe(each, gen_config=config).token_ids for each in prompts] == expected
        stats = pipe.engine.stats()
    assert {1, len(prompts)} <= set(steps)
    assert model_type != "llama" or stats.total_accepted_tokens == stats.total_draft_tokens


def test_a_closed_engine_keeps_no_models(tmp_path: Path) -> None:
    """They are freed before another engine is made, and not by a later collection of garbage."""
    head = make_head(tmp_path / "head", Path(CHECKPOINT))
    gc.collect()
    gc.disable()
    try:
        with load(speculative=use(head)) as pipe:
            core = loop_of(pipe.engine)
            assert isinstance(core.steps.speculation, ModelSpeculation)
            draft = core.steps.speculation._draft
            assert isinstance(draft, LayerDraft)
            pipe("one two", gen_config=GenerationConfig(max_new_tokens=8, ignore_eos=True))
            kept = [weakref.ref(each) for each in (core._runner, draft, draft._runner, core._runner.rounds)]
            del core, draft
        assert [each() for each in kept] == [None] * 4
    finally:
        gc.enable()


# --- folders that do not fit ------------------------------------------------------------------------------------------


def spoil_config(**changes: Any) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    return lambda config, _: config.update(changes)


def spoil_tensors(**changes: Any) -> Callable[[dict[str, Any], dict[str, torch.Tensor]], None]:
    """Replace tensors, whose names have __ for the dot, or leave them out."""

    def spoil(_: dict[str, Any], tensors: dict[str, torch.Tensor]) -> None:
        for name, tensor in changes.items():
            tensors.pop(name.replace("__", "."))
            if tensor is not None:
                tensors[name.replace("__", ".")] = tensor

    return spoil


WRONG: dict[str, tuple[Callable[[dict[str, Any], dict[str, torch.Tensor]], None], str]] = {
    "hidden size": (spoil_config(hidden_size=128), "hidden_size=128 is not the model's 256: it is another model's"),
    "target size": (spoil_config(target_hidden_size=64), "target_hidden_size=64 is not the model's 256"),
    "vocabulary": (spoil_config(vocab_size=999), "vocab_size=999 is not the model's 1024: it is another model's head"),
    "layers": (spoil_config(num_hidden_layers=2), "num_hidden_layers=2: only heads of one layer are supported"),
    "places": (spoil_config(**{IDS: [1, 2, 9]}), r"before layers \(1, 2, 9\), the model has 6"),
    "no places": (spoil_config(**{IDS: "all"}), "eagle_aux_hidden_state_layer_ids must be a list of numbers"),
    "kind": (
        spoil_config(transformer_layer_config={}, speculators_model_type="dflash"),
        "a head of kind 'dflash', and not 'eagle3'",
    ),
    "no head": (spoil_tensors(fc__weight=None), "not an EAGLE-3 head: it has no tensor 'fc.weight'"),
    "missing": (spoil_tensors(midlayer__hidden_norm__weight=None), "midlayer.hidden_norm.weight"),
    "shape": (spoil_tensors(fc__weight=torch.zeros(256, 512)), "tensor 'fc.weight'"),
    "no ids": (spoil_tensors(d2t=None), "tensor 'd2t' is missing, with draft_vocab_size=512"),
    "ids twice": (spoil_tensors(d2t=-torch.arange(512)), "tensor 'd2t' must have 512 whole numbers"),
    "ids beyond": (spoil_tensors(d2t=torch.full((512,), 513)), "tensor 'd2t' must have 512 whole numbers"),
    "too few ids": (spoil_tensors(d2t=torch.zeros(9, dtype=torch.int64)), "tensor 'd2t' must have 512 whole numbers"),
    "broken ids": (spoil_tensors(d2t=torch.zeros(512)), "tensor 'd2t' must have 512 whole numbers"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_head_that_does_not_fit_is_refused_by_name(name: str, tmp_path: Path) -> None:
    spoil, message = WRONG[name]
    config = describe_head(json.loads((CHECKPOINT / "config.json").read_text()))
    tensors = make_tensors(config)
    spoil(config, tensors)
    with pytest.raises(CheckpointError, match=message):
        load(speculative=use(write_head(tmp_path, config, tensors)))


def test_two_ranks_are_refused(tmp_path: Path) -> None:
    head = make_head(tmp_path / "head", Path(CHECKPOINT))
    with pytest.raises(ConfigError, match="method='eagle3' is not supported with 2 ranks"):
        load(speculative=use(head), tp=2)


def test_pickles_are_refused(tmp_path: Path) -> None:
    head = make_head(tmp_path / "head", Path(CHECKPOINT))
    (head / "model.safetensors").rename(head / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match="the weights are pickles"):
        load(speculative=use(head))


def test_a_head_in_the_form_of_speculators_is_read_alike(tmp_path: Path) -> None:
    """Its configuration is in a part, its tensors have other names, and ids count layers from the embeddings."""
    config = describe_head(json.loads((CHECKPOINT / "config.json").read_text()))
    tensors, found = make_tensors(config), []
    parts = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "draft_vocab_size": config["draft_vocab_size"],
        "norm_before_residual": False,
        IDS: [2, 3, 3],
        "transformer_layer_config": {k: v for k, v in config.items() if k not in ("architectures", "draft_vocab_size")},
    }
    names = {name: name.replace("midlayer", "layers.0") for name in tensors}
    for folder, described, own in (
        ("plain", config, tensors),
        ("parts", parts, {names[name]: tensor for name, tensor in tensors.items()}),
    ):
        seen: list[dict[int, tuple[int, ...]]] = []
        with load(speculative=use(write_head(tmp_path / folder, described, own))) as pipe:
            loop: Any = loop_of(pipe.engine)
            draft = loop.steps.speculation._draft
            propose = draft.propose
            draft.propose = lambda seqs, most, propose=propose, seen=seen: seen.append(propose(seqs, most)) or seen[-1]
            pipe(PROMPTS[0], gen_config=CONFIGS["greedy"])
        found.append(seen)
    assert found[0] == found[1] and found[0]
