"""The pass key test, with the built-in model and texts that it has room for."""

from __future__ import annotations

import json

import numpy as np
import passkey
import pytest


def test_prompts_have_the_key_at_its_depth() -> None:
    for depth, place in ((0.0, 0), (0.5, 4), (1.0, 8)):
        prompt = passkey.make_prompt("71432", 8, depth)
        before, key, behind = prompt.partition("The pass key is 71432.")
        assert key and before.count(passkey.FILLER) == place and behind.count(passkey.FILLER) == 8 - place
        assert before.startswith(passkey.BEFORE) and behind.endswith(passkey.QUESTION)


def test_answers_with_the_key_are_right() -> None:
    trials = [passkey.Trial("", "12345"), passkey.Trial("", "67890")]
    assert passkey.score(["It is 12345.", "6789"], trials) == 0.5
    by_depth = passkey.make_trials(4, [0.0, 1.0], 3, seed=1)
    keys = [trial.key for trials in by_depth for trial in trials]
    assert len(set(keys)) == 6 and all(len(key) == 5 for key in keys)


def test_differences_are_measured() -> None:
    found = passkey.compare(np.array([-1.0, -2.0]), np.array([-1.5, -2.0]), 100)
    assert (found["largest_difference"], found["mean_difference"]) == (0.5, 0.25)
    assert found["at_positions"] == [98, 99]


def test_it_runs_and_agrees_with_transformers(capsys: pytest.CaptureFixture[str]) -> None:
    """The built-in model knows no pass keys, so the accuracy says nothing; its log-probabilities do."""
    arguments = ["--lengths", "300", "600", "--depths", "0", "1", "--trials", "1", "--device", "cpu", "--compare"]
    passkey.main(["seesay-demo", *arguments])
    *measured, compared = map(json.loads, capsys.readouterr().out.splitlines())
    assert [line["length"] for line in measured] == [300, 600]
    for line in measured:
        room = line["length"] - passkey.ANSWER_TOKENS
        assert room - 60 < line["prompt_tokens"] <= room and set(line["accuracy"]) == {"0.0", "1.0"}
    assert compared["compared_tokens"] == passkey.NUM_COMPARED and compared["at_positions"][1] == 599
    assert compared["largest_difference"] < 1e-3


def test_both_models_take_overrides_as_they_stand_in_the_configuration(capsys: pytest.CaptureFixture[str]) -> None:
    overrides = json.dumps({"text_config": {"rope_parameters": {"rope_theta": 4.0}}})
    arguments = ["--lengths", "300", "--depths", "0", "--trials", "1", "--device", "cpu", "--compare"]
    passkey.main(["seesay-demo", *arguments, "--hf-overrides", overrides])
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["largest_difference"] < 1e-3


def test_lengths_without_room_are_refused() -> None:
    with pytest.raises(SystemExit, match="too short: the question alone has"):
        passkey.main(["seesay-demo", "--lengths", "40", "--device", "cpu"])
    with pytest.raises(SystemExit, match="--compare takes"):
        passkey.main(["seesay-demo", "--compare", "--use-logn-attn"])
