"""Where checkpoints store their Jinja templates, and which of them is taken."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from seesay.config import ChatTemplateConfig
from seesay.errors import CheckpointError, ConfigError
from seesay.templates import JinjaTemplate, as_portable, choose_template, register
from seesay.templates.pieces import Pieces
from seesay.values import Message, TextPart

HELLO = [Message(role="user", parts=(TextPart(text="hello"),))]
TOOL = {"type": "function", "function": {"name": "look"}}


class FakeTokenizer:
    special_tokens = ("<s>",)

    def __init__(self, chat_template: Any = None) -> None:
        self.chat_template = chat_template
        self.template_variables = {"bos_token": "<s>"}


def writes(name: str) -> str:
    """A template that writes its own name."""
    return name + ": {{ messages[0].content }}{% for d in documents or [] %} {{ d.text }}{% endfor %}"


def taken(folder: Path, tokenizer_template: Any = None, **options: Any) -> str:
    template = choose_template("m", FakeTokenizer(tokenizer_template), folder=folder)
    assert isinstance(template, JinjaTemplate)
    return template.render(HELLO, **options).text


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content))


def test_the_processor_comes_before_the_tokenizer(tmp_path: Path) -> None:
    own = writes("tokenizer")
    assert taken(tmp_path, own) == "tokenizer: hello"
    write(tmp_path, processor_config_dot_json={"chat_template": writes("processor")})
    assert taken(tmp_path, own) == "processor: hello"
    write(tmp_path, chat_template_dot_jinja=writes("jinja"))
    assert taken(tmp_path, own) == "jinja: hello"
    write(tmp_path, chat_template_dot_json={"chat_template": writes("json")})
    assert taken(tmp_path, own) == "json: hello"


def test_tools_and_documents_take_the_named_templates(tmp_path: Path) -> None:
    write(
        tmp_path,
        chat_template_dot_jinja=writes("default"),
        additional_chat_templates__tool_use_dot_jinja=writes("tools"),
        additional_chat_templates__rag_dot_jinja=writes("rag"),
    )
    assert taken(tmp_path) == "default: hello"
    assert taken(tmp_path, tools=[]) == "default: hello"
    assert taken(tmp_path, tools=[TOOL]) == "tools: hello"
    assert taken(tmp_path, documents=[{"text": "paper"}]) == "rag: hello paper"


@pytest.mark.parametrize("as_list", [True, False])
def test_named_templates_in_the_files_of_a_tokenizer(as_list: bool, tmp_path: Path) -> None:
    named: Any = {"default": writes("default"), "tool_use": writes("tools"), "other": writes("other")}
    assert taken(tmp_path, named, tools=[TOOL]) == "tools: hello"
    stored = [{"name": key, "template": text} for key, text in named.items()] if as_list else named
    write(tmp_path, chat_template_dot_json={"chat_template": stored})
    assert taken(tmp_path, tools=[TOOL]) == "tools: hello"
    assert taken(tmp_path) == "default: hello"
    write(tmp_path, tokenizer_config_dot_json={"chat_template": stored})
    (tmp_path / "chat_template.json").unlink()
    config = ChatTemplateConfig("mine", model_path=tmp_path)
    assert choose_template("m", FakeTokenizer(), config).render(HELLO, tools=[TOOL]).text == "tools: hello"


def test_a_named_template_keeps_the_instruction(tmp_path: Path) -> None:
    each = "{% for m in messages %}{{ m.role }}={{ m.content }} {% endfor %}"
    write(tmp_path, chat_template_dot_json={"chat_template": {"default": each, "tool_use": "T " + each}})
    template = choose_template("m", FakeTokenizer(), folder=tmp_path)
    template.meta_instruction = "Be brief."
    assert template.render(HELLO, tools=[TOOL]).text == "T system=Be brief. user=hello "


def test_a_tokenizer_loads_its_named_templates(tmp_path: Path) -> None:
    import seesay.demo
    from seesay.processors.text.tokenizer import Tokenizer

    source = Path(seesay.demo.__file__).parent / "checkpoint"
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((source / name).read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    config["chat_template"] = [{"name": n, "template": writes(n)} for n in ("default", "tool_use")]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    template = choose_template("m", Tokenizer.load(tmp_path), folder=tmp_path)
    assert template.render(HELLO, tools=[TOOL]).text == "tool_use: hello"


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"chat_template_dot_json": "{"}, r"chat_template\.json: not valid JSON"),
        ({"chat_template_dot_json": "[]"}, r"chat_template\.json: must hold a JSON object"),
        ({"chat_template_dot_jinja": "{% if %}"}, "not valid jinja"),
        (
            {
                "chat_template_dot_jinja": "{{ messages }}",
                "additional_chat_templates__tool_use_dot_jinja": "{% for %}",
            },
            "not valid jinja",
        ),
    ],
)
def test_a_damaged_file_is_named(files: dict[str, str], message: str, tmp_path: Path) -> None:
    write(tmp_path, **files)
    with pytest.raises(CheckpointError, match=message):
        choose_template("m", FakeTokenizer(writes("tokenizer")), folder=tmp_path)


def test_no_default_template_is_none(tmp_path: Path) -> None:
    write(tmp_path, chat_template_dot_json={"chat_template": {"tool_use": writes("tools")}}, config_dot_json={})
    assert choose_template("x", FakeTokenizer({"rag": ""}), folder=tmp_path).name == "base"


def test_all_templates_are_rendered_under_limits(tmp_path: Path) -> None:
    huge = "{{ messages[0]['content'] * 10**11 }}"
    unsafe = "{{ ''.__class__.__mro__ }}"
    for name in ("tool_use", "rag"):
        write(
            tmp_path,
            chat_template_dot_jinja=writes("default"),
            **{f"additional_chat_templates__{name}_dot_jinja": unsafe},
        )
        options: dict[str, Any] = {"tools": [TOOL]} if name == "tool_use" else {"documents": [{"text": "paper"}]}
        with pytest.raises(Exception, match="not safe"):
            taken(tmp_path, **options)
    (tmp_path / "file.jinja").write_text(huge)
    with pytest.raises(CheckpointError, match="was stopped"):
        choose_template("m", FakeTokenizer(), tmp_path / "file.jinja")


def test_what_was_registered_here_means_the_same_elsewhere(forget_templates: Callable[[], None]) -> None:
    register("mine", Pieces(user="U:", assistant="A:", stop_words=("</a>",), meta_instruction="S"))
    portable = as_portable(ChatTemplateConfig("mine", user="V:"))
    written = choose_template("m", FakeTokenizer(), portable).render(HELLO).text
    forget_templates()
    template = choose_template("m", FakeTokenizer(), portable)
    assert template.render(HELLO).text == written == "SV:helloA:"
    assert template.stop_words == ["</a>"]
    assert as_portable("chatml") == ChatTemplateConfig("chatml") and as_portable(None) is None
    register("with-start", Pieces(user="U:", start="<|start|>"))
    with pytest.raises(ConfigError, match="with start cannot be passed"):
        as_portable("with-start")
