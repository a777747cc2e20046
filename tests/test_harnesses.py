"""Harnesses' classes over a pipeline: their numbers are those of the harness's own class over Transformers.

They are not installed with the tests: what is asked about a harness is skipped where it is not.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seesay.config import GenerationConfig
from seesay.errors import ConfigError, RequestError
from seesay.harnesses import describe_to_lmms_eval
from seesay.harnesses.arguments import open_pipeline, read_generation


def test_generation_kwargs_are_read() -> None:
    greedy = GenerationConfig(max_new_tokens=7, do_sample=False)
    assert read_generation({"until": [], "do_sample": False, "temperature": 0.0, "top_p": 0.9}, 7) == greedy
    assert read_generation({"temperature": 0, "num_beams": 1, "max_new_tokens": 7, "top_p": None}, 100) == greedy
    assert read_generation({"do_sample": True, "temperature": 0.0, "max_gen_toks": 7}, 100) == greedy
    sampled = GenerationConfig(max_new_tokens=9, do_sample=True, temperature=0.5, top_p=0.9, stop_words=["\n"])
    assert read_generation({"until": ["\n", ""], "temperature": 0.5, "top_p": 0.9}, 9) == sampled
    assert read_generation({"until": "\n", "repetition_penalty": 1.1}, 9).repetition_penalty == 1.1


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [({"num_beams": 4}, "num_beams=4 is not supported"), ({"top_q": 1}, "'top_q' is no option of GenerationConfig")],
)
def test_other_generation_kwargs_are_refused(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        read_generation(kwargs, 9)


def test_other_model_args_are_refused() -> None:
    with pytest.raises(ConfigError, match="'sesion_len' is no option of EngineConfig; did you mean session_len"):
        open_pipeline("seesay-demo", None, {"sesion_len": 64})


def test_lmms_eval_finds_the_class() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())["project"]
    assert project["entry-points"]["lmms_eval.models"] == {"seesay": "seesay.harnesses:describe_to_lmms_eval"}
    assert callable(describe_to_lmms_eval)
    pytest.importorskip("lmms_eval")
    from lmms_eval.models import get_model

    from seesay.harnesses.lmms_eval import SeesayLMM

    assert get_model("seesay") is SeesayLMM


@pytest.fixture(scope="module")
def both(tiny_checkpoint: Callable[[str], Path]) -> Any:
    """The harness's own class over Transformers, and ours. A text's last token is not computed by the first, so 64
    tokens there are 65 here."""
    pytest.importorskip("lm_eval")
    from lm_eval.models.huggingface import HFLM

    from seesay.harnesses.lm_eval import SeesayLM

    path = str(tiny_checkpoint("qwen3"))
    theirs = HFLM(pretrained=path, device="cpu", dtype="float32", max_length=64, batch_size=1)
    return theirs, SeesayLM(path, device="cpu", dtype="float32", session_len=65)


def ask(both: Any, method: str, *args: tuple[Any, ...]) -> list[list[Any]]:
    from lm_eval.api.instance import Instance

    requests = [Instance(request_type=method, doc={}, arguments=each, idx=i) for i, each in enumerate(args)]
    return [getattr(model, method)(requests) for model in both]


def test_likelihoods_equal_those_of_transformers(both: Any) -> None:
    theirs, ours = ask(
        both,
        "loglikelihood",
        *(("two and three are", " five"), ("two and three are ", "six"), ("", "five"), ("one two three " * 30, "four")),
    )
    for (score, is_greedy), (expected, was_greedy) in zip(ours, theirs):
        assert score == pytest.approx(expected, abs=1e-3) and is_greedy == was_greedy


def test_perplexities_equal_those_of_transformers(both: Any) -> None:
    theirs, ours = ask(both, "loglikelihood_rolling", ("the cat sat on the mat " * 20,), ("short",))
    assert ours == pytest.approx(theirs, abs=1e-2)


def test_a_continuation_that_the_model_cannot_take_is_refused(both: Any) -> None:
    with pytest.raises(RequestError, match="session_len"):
        ask(both[1:], "loglikelihood", ("a", " long continuation " * 30))


def test_a_continuation_is_greedy_where_the_model_would_answer_it(both: Any) -> None:
    _, (answer,) = ask(both, "generate_until", ("one two", {"max_gen_toks": 1}))
    _, ((_, is_greedy), (_, is_other)) = ask(both, "loglikelihood", ("one two", answer), ("one two", "ab"))
    assert is_greedy and not is_other


def test_answers_equal_those_of_transformers(both: Any) -> None:
    """Answers end before a task's words, and long contexts keep their end: 57 tokens, as there."""
    both[0]._max_length = 65
    contexts = ["one two", "x y " * 100]
    whole, _ = ask(both, "generate_until", *((context, {"max_gen_toks": 8}) for context in contexts))
    kwargs = {"until": [whole[0][2:4]], "max_gen_toks": 8, "do_sample": False}
    expected, found = ask(both, "generate_until", *((context, kwargs) for context in contexts))
    assert found == expected and found[0] == whole[0][: whole[0].index(whole[0][2:4])]
