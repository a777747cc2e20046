"""Arguments that `pipeline()` does not have: where they belong is said before anything is loaded."""

from __future__ import annotations

from typing import Any

import pytest

from seesay import GenerationConfig, pipeline

CALL = "it belongs to a call, as in pipe(prompts, gen_config=GenerationConfig("


@pytest.mark.parametrize(
    ("arguments", "advice"),
    [
        ({"gen_config": GenerationConfig()}, CALL), ({"generation_config": {}}, CALL),
        ({"temperature": 0.5}, f"{CALL}temperature=0.5))"),
        ({"session_len": 100}, "use backend_config=EngineConfig(session_len=100)"),
        ({"max_batch_bytes": 5}, ""),
    ],
)  # fmt: skip
def test_an_argument_of_another_place_is_sent_there(arguments: dict[str, Any], advice: str) -> None:
    [name] = arguments
    with pytest.raises(TypeError) as caught:
        pipeline("there is no such model", **arguments)
    expected = f"pipeline() got an unexpected keyword argument {name!r}"
    assert str(caught.value).startswith(f"{expected}: {advice}" if advice else expected)
