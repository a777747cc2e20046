"""Built-in templates write what the published ones write, and each model gets its own.

`published.json` holds what the published template of a model (its Jinja file as public repositories quote it, or the
code of its authors) writes for the conversations below, without a BOS at the start, which the tokenizer adds.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from seesay.errors import CheckpointError, ConfigError
from seesay.templates import Pieces, builtin, choose_template, sandbox
from seesay.templates.guesses import GUESSES, guess
from seesay.values import MediaPart, Message, Modality, TextPart

ROWS: list[dict[str, Any]] = json.loads(Path(__file__).with_name("published.json").read_text(encoding="utf-8"))


class FakeTokenizer:
    special_tokens = ("<s>", "</s>")
    chat_template: str | None = None
    template_variables = {"bos_token": "<s>", "eos_token": "</s>"}  # noqa: RUF012


def conversation(case: str) -> list[Message]:
    """case: "1 turn" or "2 turns", after "system" if it has a system message and "picture" if it has a picture."""
    parts = [MediaPart(modality=Modality.IMAGE, source="x")] if "picture" in case else []
    turns = [Message(role="system", parts=(TextPart(text="Be brief."),))] if "system" in case else []
    turns.append(Message(role="user", parts=(*parts, TextPart(text="Who are you?"))))
    if "2 turns" in case:
        turns.append(Message(role="assistant", parts=(TextPart(text="A model."),)))
        turns.append(Message(role="user", parts=(TextPart(text="Since when?"),)))
    return turns


@pytest.mark.parametrize("row", ROWS, ids=[f"{row['template']}-{number}" for number, row in enumerate(ROWS)])
def test_guesses_write_what_the_published_template_writes(row: dict[str, Any], tmp_path: Path) -> None:
    folder = None
    if row["config"] is not None:
        (tmp_path / "config.json").write_text(json.dumps(row["config"]))
        (tmp_path / "generation_config.json").write_text(json.dumps(row.get("generation", {})))
        folder = tmp_path
    template = choose_template(row["path"], FakeTokenizer(), folder=folder)
    assert template.name == row["template"], row["source"]
    markers = {} if row["marker"] is None else {Modality.IMAGE: row["marker"]}
    rendered = {case: template.render(conversation(case), markers=markers).text for case in row["renderings"]}
    assert rendered == row["renderings"], row["source"]


def test_every_row_of_the_table_is_compared() -> None:
    used = set()
    for row in ROWS:
        name = row["path"].lower().rpartition("/")[2]
        used.add(
            next(
                number
                for number, each in enumerate(GUESSES)
                if each.holds(name, row["config"] or {}, row.get("generation", {}))
            )
        )
    assert [GUESSES[number] for number in range(len(GUESSES)) if number not in used] == []
    assert {each.template for each in GUESSES} <= set(builtin.names())


@pytest.mark.parametrize(
    ("path", "config", "name"),
    [
        ("/models/Llama-3.1-8B-Instruct/", {}, "llama3_1"),
        ("/cache/models--Qwen--Qwen2.5-7B-Instruct/snapshots/abcdef", {}, "qwen2d5"),
        ("meta-llama/Llama-2-7b-hf", {"architectures": ["LlamaForCausalLM"]}, None),
        ("Qwen/Qwen3-8B-Base", {"architectures": ["Qwen3ForCausalLM"]}, None),
        ("google/gemma-2-2b", {}, None),
        ("internlm/internlm2-base-7b", {}, None),
        ("deepseek-ai/deepseek-vl-7b-chat", {}, None),
        ("baichuan-inc/Baichuan2-13B-Base", {"architectures": ["BaichuanForCausalLM"]}, None),
        ("THUDM/chatglm3-6b-base", {"architectures": ["ChatGLMModel"]}, None),
        ("Qwen/Qwen-7B", {"architectures": ["QWenLMHeadModel"]}, None),
        ("", {}, None),
        # What the checkpoint says counts more than how its folder is called.
        ("models/vicuna", {"architectures": ["Qwen2VLForConditionalGeneration"]}, "qwen2-vl"),
        # Nonsense is no architecture.
        ("x", {"architectures": "LlavaLlamaForCausalLM"}, None),
        ("x", {"architectures": [5], "text_config": 3}, None),
    ],
)
def test_guess(path: str, config: dict[str, Any], name: str | None) -> None:
    assert guess(path, config) == name


@pytest.mark.parametrize(
    ("template", "name"), [("internvl2_5", "internvl2_5"), ("internlm2-chat", "internvl2-internlm2"), ("new", "folder")]
)
def test_internvl_is_asked_as_config_json_says_whatever_its_tokenizer_has(
    template: str, name: str, tmp_path: Path
) -> None:
    """The template in the folder of an InternVL is that of its text model, which InternVL's own chat never reads."""

    class OfTextModel(FakeTokenizer):
        chat_template = "{{ bos_token }}{% for each in messages %}{{ each.content }}{% endfor %}"

    config = {"architectures": ["InternVLChatModel"], "template": template}
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert choose_template("models/folder", OfTextModel(), folder=tmp_path).name.endswith(name)


def test_llavas_chat_template_is_there_by_name() -> None:
    """Its evaluation takes vicuna_v1, its chat llava_v1."""
    rendered = choose_template("x", FakeTokenizer(), "llava-v1").render(conversation("1 turn")).text
    start = "A chat between a curious human and an artificial intelligence assistant. The assistant gives helpful, "
    assert rendered == f"{start}detailed, and polite answers to the human's questions. USER: Who are you? ASSISTANT:"


@pytest.mark.usefixtures("forget_templates")
def test_a_registered_template_may_say_which_models_it_belongs_to() -> None:
    builtin.register("mine", Pieces(user="U:"), match=lambda path: "mine" if "my-model" in path else None)
    assert guess("company/my-model", {"architectures": ["LlavaMistralForCausalLM"]}) == "mine"
    assert guess("company/other", {"architectures": ["LlavaMistralForCausalLM"]}) == "llava-mistral"


def test_a_file_that_the_user_chose_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    impatient = sandbox.RenderPool(sandbox.RenderLimits(cpu_s=0.2))
    request.addfinalizer(impatient.close)
    monkeypatch.setattr(sandbox, "_pool", impatient)
    (tmp_path / "mine.jinja").write_text(
        "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}"
    )
    with pytest.raises(CheckpointError, match=r"the chat template 'mine\.jinja' was stopped") as raised:
        choose_template("", FakeTokenizer(), tmp_path / "mine.jinja")
    assert str(tmp_path) not in str(raised.value)


def test_a_missing_file_is_named_once(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        choose_template("", FakeTokenizer(), tmp_path / "missing.json")
    assert str(raised.value) == f"chat template file {str(tmp_path / 'missing.json')!r}: there is no such file"
