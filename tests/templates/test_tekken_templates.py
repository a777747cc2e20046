"""The chat template of a model in Mistral's own layout, by the version in its tekken.json.

The expected texts are what mistral-common 1.13.1 writes for these conversations, decoded with special tokens kept.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from seesay.templates import choose_template
from seesay.values import MediaPart, Message, Modality, TextPart

VERSIONS = ("v3", "v7", "v11", "v13")
TOOL = {"type": "function", "function": {"name": "look", "description": "Look.", "parameters": {"type": "object"}}}
WRITTEN_TOOL = json.dumps([TOOL])


class FakeTokenizer:
    special_tokens = ("<s>", "</s>", "[INST]", "[/INST]", "[IMG]")
    chat_template: str | None = None
    template_variables: Mapping[str, str] = MappingProxyType({"bos_token": "<s>", "eos_token": "</s>"})


def say(role: str, text: str = "", **extra: Any) -> Message:
    return Message(role=role, parts=(TextPart(text=text),) if text else (), extra=extra)


def make_call() -> Message:
    function = {"name": "look", "arguments": '{"at": "é"}'}
    return say("assistant", tool_calls=[{"id": "abcdefghi", "type": "function", "function": function}])


TURNS = [say("system", "Be brief."), say("user", "Who?"), say("assistant", "A model. "), say("user", "Since when?")]
CALLS = [
    *TURNS[:2],
    make_call(),
    say("tool", "sunny", tool_call_id="abcdefghi"),
    say("assistant", "Sun."),
    say("user", "And?"),
]


def render(version: str, messages: list[Message], folder: Path, **options: Any) -> str:
    (folder / "tekken.json").write_text(json.dumps({"config": {"version": version}}))
    template = choose_template("models/own", FakeTokenizer(), folder=folder)
    assert template.name == f"mistral-tekken-{version}"
    return template.render(messages, markers={Modality.IMAGE: "[IMG]"}, **options).text


@pytest.mark.parametrize("version", VERSIONS)
def test_turns(version: str, tmp_path: Path) -> None:
    expected = "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Who?[/INST]A model.</s>[INST]Since when?[/INST]"
    if version == "v3":
        expected = "[INST]Who?[/INST]A model.</s>[INST]Be brief.\n\nSince when?[/INST]"
    assert render(version, TURNS, tmp_path) == expected


@pytest.mark.parametrize("version", VERSIONS)
def test_a_picture_stands_where_it_was_put(version: str, tmp_path: Path) -> None:
    picture = MediaPart(modality=Modality.IMAGE, source="x")
    message = Message(role="user", parts=(TextPart(text="What is "), picture, TextPart(text="here?")))
    assert render(version, [message], tmp_path) == "[INST]What is [IMG]here?[/INST]"


EXPECTED = {
    "v3": (
        f'[INST]Who?[/INST][TOOL_CALLS][{{"name": "look", "arguments": {{"at": "é"}}, "id": "abcdefghi"}}]</s>'
        f'[TOOL_RESULTS]{{"content": "sunny", "call_id": "abcdefghi"}}[/TOOL_RESULTS]Sun.</s>'
        f"[AVAILABLE_TOOLS]{WRITTEN_TOOL}[/AVAILABLE_TOOLS][INST]Be brief.\n\nAnd?[/INST]"
    ),
    "v7": (
        "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Who?[/INST]"
        '[TOOL_CALLS][{"name": "look", "arguments": {"at": "é"}, "id": "abcdefghi"}]</s>'
        "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]sunny[/TOOL_RESULTS]Sun.</s>"
        f"[AVAILABLE_TOOLS]{WRITTEN_TOOL}[/AVAILABLE_TOOLS][INST]And?[/INST]"
    ),
    "v11": (
        "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT][INST]Who?[/INST]"
        '[TOOL_CALLS]look[CALL_ID]abcdefghi[ARGS]{"at": "é"}</s>'
        "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]sunny[/TOOL_RESULTS]Sun.</s>"
        f"[AVAILABLE_TOOLS]{WRITTEN_TOOL}[/AVAILABLE_TOOLS][INST]And?[/INST]"
    ),
    "v13": (
        "[SYSTEM_PROMPT]Be brief.[/SYSTEM_PROMPT]"
        f"[AVAILABLE_TOOLS]{WRITTEN_TOOL}[/AVAILABLE_TOOLS][INST]Who?[/INST]"
        '[TOOL_CALLS]look[ARGS]{"at": "é"}</s>[TOOL_RESULTS]sunny[/TOOL_RESULTS]Sun.</s>[INST]And?[/INST]'
    ),
}


@pytest.mark.parametrize("version", VERSIONS)
def test_tools(version: str, tmp_path: Path) -> None:
    assert render(version, CALLS, tmp_path, tools=[TOOL]) == EXPECTED[version]


def test_a_result_that_is_json_stays_json(tmp_path: Path) -> None:
    messages = [*CALLS[:3], say("tool", '{"sky": [1, 2]}', tool_call_id="abcdefghi")]
    assert '[TOOL_RESULTS]{"content": {"sky": [1, 2]}, "call_id": "abcdefghi"}' in render("v3", messages, tmp_path)


@pytest.mark.parametrize(
    ("name", "version", "expected"),
    [
        ("mistralai/Mistral-Nemo-Base-2407", "v3", "base"),
        ("mistralai/Mistral-Nemo-Instruct-2407", "v3", "mistral-tekken-v3"),
        ("models/database", "v7", "mistral-tekken-v7"),
        ("models/own", "v99", "base"),
        ("models/own", 7, "base"),
    ],
)
def test_which_models_chat(name: str, version: object, expected: str, tmp_path: Path) -> None:
    (tmp_path / "tekken.json").write_text(json.dumps({"config": {"version": version}}))
    assert choose_template(name, FakeTokenizer(), folder=tmp_path).name == expected


def test_the_folders_own_template_comes_first(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("own: {{ messages[0].content }}")
    (tmp_path / "tekken.json").write_text(json.dumps({"config": {"version": "v3"}}))
    template = choose_template("models/own", FakeTokenizer(), folder=tmp_path)
    assert template.render([say("user", "hi")]).text == "own: hi"
