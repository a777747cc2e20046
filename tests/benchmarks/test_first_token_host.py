"""The benchmark of the host's time to a first token answers all of its requests, and its spans make up the whole."""

from __future__ import annotations

import json

import first_token_host
import pytest


def test_every_kind_is_answered_and_its_spans_make_up_the_whole(capsys: pytest.CaptureFixture[str]) -> None:
    first_token_host.main(["--requests", "3", "--side-px", "256"])
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line["what"] for line in lines] == list(first_token_host.KINDS)
    for line in lines:
        spans = line["ms"]
        assert min(spans.values()) >= 0 and spans["total"] > spans["decode"] + spans["preprocess"]
        assert (spans["decode"] > 0) == (line["what"] != "text")
        for part in ("prepare", "cross", "copy", "return"):
            assert spans[part] < spans["total"]
