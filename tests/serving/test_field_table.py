"""The table of other servers' names in docs/server.md has every field beyond OpenAI's, and tells refused ones."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from openai.types import completion_create_params
from openai.types.chat import completion_create_params as chat_create_params

from seesay.serving.native.protocol import GenerateRequest
from seesay.serving.openai.protocol import ChatCompletionRequest, CompletionRequest
from seesay.serving.requests.request_model import RequestModel

PAGE = Path(__file__).parents[2] / "docs" / "server.md"
MODELS: tuple[type[RequestModel], ...] = (ChatCompletionRequest, CompletionRequest, GenerateRequest)
CELLS = re.compile(r"^\| (.*) \| (.*) \| (.*) \| (.*) \| (.*) \|$", re.M)


def read_table() -> dict[str, tuple[str, ...]]:
    """The cells of each field: vLLM, SGLang, LMDeploy, here."""
    section = PAGE.read_text(encoding="utf-8").partition("### Names of other servers")[2].partition("\n## ")[0]
    rows = [row for row in CELLS.findall(section) if row[0].startswith("`")]
    return {name: tuple(others) for names, *others in rows for name in re.findall(r"`(\w+)`", names)}


def own_names_of_openai() -> set[str]:
    """The fields of the bodies of OpenAI's own client."""
    bodies = (chat_create_params.CompletionCreateParamsBase, completion_create_params.CompletionCreateParamsBase)
    return {"stream", *(name for body in bodies for name in body.__annotations__)} - {"echo"}


def extensions(names: set[str]) -> set[str]:
    return names - own_names_of_openai()


ACCEPTED = extensions({name for model in MODELS for name in set(model.model_fields) - set(model.refused)})
REFUSED = extensions({name for model in MODELS for name in model.refused})


def test_the_table_has_every_field_and_no_other() -> None:
    table = set(read_table())
    fields = ACCEPTED | REFUSED
    assert len(table) > 60
    assert table - fields == set(), "fields that no request has"
    assert fields - table == set(), "fields without a row in docs/server.md"


@pytest.mark.parametrize("name", sorted(REFUSED | ACCEPTED))
def test_what_is_refused_is_called_so(name: str) -> None:
    here = read_table()[name][-1]
    assert here.startswith("refused") == (name not in ACCEPTED), here
    if name in ACCEPTED and name in REFUSED and name not in ("request_id", "rid", "return_token_ids"):
        assert "refused" in here, "one route has it and another refuses it"
    servers = read_table()[name][:3]
    assert all(cell in ("-", "✓", "completions") or "`" in cell for cell in servers), servers
