"""New weights for a running engine, and sleep: the answers of a fresh engine, in both process forms."""

from __future__ import annotations

import queue
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from asking import held, loop_of
from enrolment import COMPOSED, WITH_STATES
from other_weights import copy_with_other_weights, read_weights, write_weights
from quantized_folders import FORMS, write_quantized
from updating import NAME, PREFIX, answers, check_refused, epoch_of, fresh, is_sleeping, load, make_pairs
from waiting import wait_until

from seesay import GenerationConfig
from seesay.errors import CheckpointError, ConfigError, ErrorCode, RequestError
from seesay.offline.pipeline import Pipeline


@pytest.fixture(scope="module")
def two(
    tiny_checkpoint: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str], list[Path]]:
    """A tiny checkpoint, and one of the same model with other weights, by name."""
    return make_pairs(tiny_checkpoint, tmp_path_factory.mktemp("other"))


@pytest.fixture(scope="module")
def in_process(two: Callable[[str], list[Path]]) -> Iterator[Pipeline]:
    """One whose engine is a process."""
    with load(two("llama")[0], own=True) as pipe:
        yield pipe


@pytest.fixture(params=["thread", "process"])
def first_pipe(
    request: pytest.FixtureRequest, two: Callable[[str], list[Path]], in_process: Pipeline
) -> Iterator[Pipeline]:
    """With the first of the two weights of "llama", awake, in both process forms."""
    first, _ = two("llama")
    if request.param == "process":
        in_process.update_weights(first)
        in_process.wake_up()
        in_process.engine.reset_caches()
        yield in_process
    else:
        with load(first) as pipe:
            yield pipe


ALWAYS = ("llama", NAME, "qwen3_vl", "llava_onevision", "internvl", "minicpmv")
"""Text, and one of each kind of tower."""


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in ALWAYS else pytest.mark.slow) for name in ("llama", "phi3", *COMPOSED)],
)
def test_answers_are_those_of_a_fresh_engine(name: str, two: Callable[[str], list[Path]]) -> None:
    """From a folder and from tensors; caches were filled before, also those on the host."""
    first, second = two(name)
    expected = [fresh(path, name) for path in (first, second)]
    assert expected[0] != expected[1]
    num_cpu_blocks = 0 if name in WITH_STATES else 40
    with load(first, num_gpu_blocks=50, num_cpu_blocks=num_cpu_blocks) as pipe:
        assert answers(pipe, name) == expected[0]
        pipe.update_weights(second)
        assert answers(pipe, name) == expected[1]
        assert epoch_of(pipe) == 1
        pipe.update_weights(read_weights(first).items())
        assert answers(pipe, name) == expected[0]
        assert epoch_of(pipe) == 2


@pytest.mark.parametrize("name", [NAME, pytest.param("llama", marks=pytest.mark.slow)])
def test_in_a_process_of_the_engines_own(name: str, two: Callable[[str], list[Path]]) -> None:
    first, second = two(name)
    expected = [fresh(path, name) for path in (first, second)]
    with load(first, own=True) as pipe:
        assert answers(pipe, name) == expected[0]
        pipe.update_weights(read_weights(second))
        assert answers(pipe, name) == expected[1]
        pipe.update_weights(first)
        assert answers(pipe, name) == expected[0]
        for level in (1, 2):
            pipe.sleep(level)
            assert is_sleeping(pipe)
            check_refused(pipe)
            pipe.wake_up()
            assert not is_sleeping(pipe) and answers(pipe, name) == expected[0]
        with pytest.raises(CheckpointError, match="is missing"):
            pipe.update_weights(list(read_weights(second).items())[1:])
        with pytest.raises(ConfigError, match="level must be 1 or 2, got 3"):
            pipe.sleep(3)
        assert answers(pipe, name) == expected[0]


def test_a_stale_embedding_or_prefix_is_never_used(two: Callable[[str], list[Path]], tmp_path: Path) -> None:
    """Only the tower changes, or only the decoder: the other part's cache would still look right."""
    first, _ = two(NAME)
    for changes in (is_visual, lambda name: "layers" in name and not is_visual(name)):
        second = copy_with_other_weights(first, tmp_path / str(changes is is_visual), changes=changes)
        with load(first) as pipe:
            before = answers(pipe)
            changed = {name: tensor for name, tensor in read_weights(second).items() if changes(name)}
            pipe.update_weights(changed, partial=True)
            after = answers(pipe)
        assert after == fresh(second) and after != before
        assert (after[0] == before[0]) == (changes is is_visual), "texts do not depend on the tower"


def is_visual(name: str) -> bool:
    return "visual" in name


def test_plain_weights_are_quantized_again(two: Callable[[str], list[Path]], tmp_path: Path) -> None:
    first, second = two("llama")
    quantized, _ = write_quantized(second, tmp_path, FORMS["compressed-tensors, channels"])
    expected = [fresh(path, "llama", quantization="fp8") for path in (first, second)]
    with load(first, quantization="fp8") as pipe:
        pipe.update_weights(second)
        assert answers(pipe, "llama") == expected[1]
        with pytest.raises(CheckpointError, match=r"is quantized already \(fp8\), .* give a folder with plain ones"):
            pipe.update_weights(quantized)
        pipe.update_weights({name: tensor.numpy() for name, tensor in read_weights(first).items()})
        assert answers(pipe, "llama") == expected[0]


# --- running requests -------------------------------------------------------------------------------------------------


def stream(pipe: Pipeline, num_tokens: int = 60) -> Iterator[Any]:
    return pipe.stream_infer(PREFIX + "go on", gen_config=GenerationConfig(max_new_tokens=num_tokens, ignore_eos=True))


def test_running_requests_are_finished_with_the_old_weights(
    first_pipe: Pipeline, two: Callable[[str], list[Path]]
) -> None:
    """And those that come meanwhile wait, and get the new ones."""
    first, second = two("llama")
    alone = [fresh(path, "llama")[1] for path in (first, second)]
    before = epoch_of(first_pipe)
    expected = [t for piece in stream(first_pipe) for t in piece.token_ids]
    running = stream(first_pipe)
    tokens = list(next(running).token_ids)
    updating = threading.Thread(target=first_pipe.update_weights, args=(second,))
    updating.start()
    later: list[Any] = []
    config = GenerationConfig(max_new_tokens=12, ignore_eos=True)
    asking = threading.Thread(target=lambda: later.append(first_pipe(PREFIX + "two", config)))
    asking.start()
    for piece in running:
        tokens += piece.token_ids
    assert tokens == expected
    updating.join(60)
    asking.join(60)
    assert later[0].token_ids in alone and epoch_of(first_pipe) == before + 1
    assert answers(first_pipe, "llama")[1] == alone[1]


def holds(inbox: queue.SimpleQueue[Any], num_calls: int) -> bool:
    return inbox.qsize() == num_calls


def test_requests_behind_an_update_wait_for_it(two: Callable[[str], list[Path]]) -> None:
    """In one turn of the loop: a running request, an update, two requests behind it of which one is aborted."""
    first, second = two("llama")
    expected = fresh(second, "llama")[1]
    with load(first) as pipe:
        inbox = loop_of(pipe.engine)._inbox._calls
        running = stream(pipe, 400)
        next(running)
        updating = threading.Thread(target=pipe.update_weights, args=(second,))
        aborted = stream(pipe)
        config = GenerationConfig(max_new_tokens=12, ignore_eos=True)
        found: list[Any] = []
        others = [
            threading.Thread(target=lambda: next(aborted, None)),
            threading.Thread(target=lambda: found.append(pipe(PREFIX + "two", config))),
        ]
        with held(pipe.engine):
            wait_until(inbox.empty)
            for num_calls, thread in enumerate((updating, *others), 1):
                thread.start()
                wait_until(partial(holds, inbox, num_calls))
        for thread in others:
            thread.join(60)
        assert found[0].token_ids == expected
        aborted.close()  # type: ignore[attr-defined]
        running.close()  # type: ignore[attr-defined]
        updating.join(60)


def test_running_requests_may_be_aborted(first_pipe: Pipeline, two: Callable[[str], list[Path]]) -> None:
    _, second = two("llama")
    running = stream(first_pipe, 2000)
    next(running)
    first_pipe.update_weights(second, running="abort")
    assert list(running)[-1].finish_reason == "abort"
    assert answers(first_pipe, "llama") == fresh(second, "llama")
    running = stream(first_pipe, 2000)
    next(running)
    first_pipe.sleep(running="abort")
    assert list(running)[-1].finish_reason == "abort"
    check_refused(first_pipe)
    with pytest.raises(ConfigError, match="running must be 'finish' or 'abort', got 'kill'"):
        first_pipe.sleep(running="kill")  # type: ignore[arg-type]


def test_closing_ends_an_update_that_waits(two: Callable[[str], list[Path]]) -> None:
    first, second = two("llama")
    pipe = load(first)
    running = stream(pipe, 2000)
    next(running)
    errors: list[BaseException] = []

    def update() -> None:
        try:
            pipe.update_weights(second)
        except RequestError as error:
            errors.append(error)

    updating = threading.Thread(target=update)
    updating.start()
    while not loop_of(pipe.engine)._commands:
        time.sleep(0.001)
    pipe.close()
    updating.join(60)
    assert len(errors) == 1 and isinstance(errors[0], RequestError) and errors[0].code is ErrorCode.CLOSED


# --- what does not fit ------------------------------------------------------------------------------------------------


def hostile_sources(weights: dict[str, torch.Tensor]) -> dict[str, tuple[Any, str]]:
    up = "model.layers.1.mlp.up_proj.weight"
    pairs = list(weights.items())
    inf = weights[up].clone()
    inf[2, 3] = float("inf")
    others = [(n, t) for n, t in pairs if n != up]
    return {
        "unknown": ([*pairs, ("classifier.weight", torch.ones(2))], "unexpected tensor 'classifier.weight'"),
        "a layer too many": ([*pairs, (up.replace("1", "9"), weights[up])], "unexpected tensor"),
        "twice": ([*pairs, pairs[3]], "was given twice"),
        "shape": ([*others, (up, weights[up][:-1])], "has shape"),
        "infinity": ([*others, (up, inf)], "not finite"),
        "missing": (others, "is missing"),
        "none": ([], "no tensors were given"),
        "a string": ([*others, (up, "os.system('id')")], "must be a dense torch tensor"),
        "no name": ([(3, weights[up])], "the name of a tensor must be a string, got int"),
        "complex": ([*others, (up, weights[up].to(torch.complex64))], "of type complex64"),
        "no numbers": ([*others, (up, weights[up].to("meta"))], "is on the meta device"),
        "wide numbers": ([*others, (up, np.ones((96, 64), np.longdouble))], "must be a dense torch tensor"),
        "nothing": (None, "give a model folder, a dict of tensors, or an iterable of .*, got NoneType"),
        "names": (["ab"], "each entry must be a name and a tensor, got str"),
        "a file": (__file__, "not a model folder: it has no config.json"),
        "integers": ([*others, (up, weights[up].to(torch.int64))], "stored as I64"),
    }


def test_what_does_not_fit_changes_nothing(first_pipe: Pipeline, two: Callable[[str], list[Path]]) -> None:
    _, second = two("llama")
    before, expected = epoch_of(first_pipe), answers(first_pipe, "llama")
    for name, (source, message) in hostile_sources(read_weights(second)).items():
        with pytest.raises(CheckpointError, match=message):
            first_pipe.update_weights(source)
        assert answers(first_pipe, "llama") == expected, name
    assert epoch_of(first_pipe) == before
    broken = iter(read_weights(second).items())

    def fails() -> Iterator[tuple[str, torch.Tensor]]:
        yield next(broken)
        raise OSError("the trainer is gone")

    with pytest.raises(OSError, match="the trainer is gone"):
        first_pipe.update_weights(fails())
    assert answers(first_pipe, "llama") == expected
    first_pipe.update_weights(second)
    assert answers(first_pipe, "llama") == fresh(second, "llama")


@pytest.mark.parametrize(
    ("name", "given", "missing"),
    [
        ("internlm2", "model.layers.0.feed_forward.w1.weight", "model.layers.0.feed_forward.w3.weight"),
        # the checkpoint has model.language_model.layers
        (NAME, "model.layers.0.mlp.up_proj.weight", "model.layers.0.mlp.gate_proj.weight"),
    ],
)
def test_a_missing_tensor_is_told_by_a_name_of_the_one_who_gives(
    name: str, given: str, missing: str, two: Callable[[str], list[Path]]
) -> None:
    """Gate and up are one layer here, whose name is another."""
    first, _ = two(name)
    stored = read_weights(first)
    tensor = stored.get(given, stored.get(given.replace("model.", "model.language_model.")))
    with load(first) as pipe:
        with pytest.raises(CheckpointError) as raised:
            pipe.update_weights({given: tensor}, partial=True)
        assert str(raised.value) == (
            f"update_weights: tensor '{missing}' is missing from the checkpoint: give it, too; partial=True is for "
            "some of the layers"
        )


def test_a_folder_of_some_layers_is_told_of_partial(two: Callable[[str], list[Path]], tmp_path: Path) -> None:
    first, second = two("llama")
    weights = read_weights(second)
    some = write_weights(first, tmp_path / "some", {name: weights[name] for name in weights if ".layers.0." in name})
    with load(first) as pipe:
        with pytest.raises(CheckpointError, match=r"partial=True is for folders with some of the layers$"):
            pipe.update_weights(some)
        before = answers(pipe, "llama")
        assert before == fresh(first, "llama")
        pipe.update_weights(some, partial=True)
        assert answers(pipe, "llama") != before


def test_folders_of_other_models_are_refused(two: Callable[[str], list[Path]], tmp_path: Path) -> None:
    first, second = two("llama")
    weights = read_weights(second)
    scaled = write_weights(second, tmp_path / "scaled", weights)
    config = (scaled / "config.json").read_text()
    (scaled / "config.json").write_text(config.replace('"rms_norm_eps": 1e-06', '"rms_norm_eps": 0.25'))
    assert (scaled / "config.json").read_text() != config
    short = write_weights(second, tmp_path / "short", {n: t for n, t in weights.items() if "layers.1.mlp" not in n})
    norm = {"model.norm.weight": weights["model.norm.weight"] * float("nan")}
    damaged = write_weights(second, tmp_path / "damaged", {**weights, **norm})
    pickled = write_weights(second, tmp_path / "pickled", weights)
    (pickled / "model.safetensors").rename(pickled / "pytorch_model.bin")
    cut = write_weights(second, tmp_path / "cut", weights)
    data = (cut / "model.safetensors").read_bytes()
    (cut / "model.safetensors").write_bytes(data[: len(data) // 2])
    other, _ = two("qwen2")
    with load(first) as pipe:
        expected = answers(pipe, "llama")
        for folder, message in (
            (scaled, "rms_norm_eps is 0.25, the loaded model has 1e-06"),
            (short, "tensor 'model.layers.1.mlp"),
            (damaged, "'model.norm.weight' has numbers that are not finite"),
            (pickled, "the weights are pickles"),
            (cut, "truncated"),
            (other, "the loaded model has"),
            (tmp_path / "nowhere", "not a model folder"),
        ):
            with pytest.raises(CheckpointError, match=message):
                pipe.update_weights(folder)
            assert answers(pipe, "llama") == expected
        assert epoch_of(pipe) == 0


def test_a_failure_in_the_middle_leaves_no_mixture(
    two: Callable[[str], list[Path]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder changes between the check and the replacement: the engine sleeps, and wakes with the old weights."""
    first, second = two("llama")
    with load(first) as pipe:
        expected = answers(pipe, "llama")
        control = loop_of(pipe.engine).control
        assert control is not None
        check = control._weights.check

        def check_and_cut(source: Any, *, is_partial: bool) -> None:
            check(source, is_partial=is_partial)
            file = Path(source.path) / "model.safetensors"
            file.write_bytes(file.read_bytes()[:-5000])

        monkeypatch.setattr(control._weights, "check", check_and_cut)
        with pytest.raises(CheckpointError, match="cannot read"):
            pipe.update_weights(copy_with_other_weights(second, second.parent / "cut later"))
        check_refused(pipe)
        pipe.wake_up()
        assert answers(pipe, "llama") == expected
