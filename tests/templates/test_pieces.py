"""Built-in templates, and templates made from pieces."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pytest

from seesay import templates
from seesay.config import ChatTemplateConfig
from seesay.errors import CheckpointError, ConfigError, RequestError
from seesay.templates import JinjaTemplate, Pieces, PiecesTemplate, as_template, choose_template
from seesay.values import MediaPart, Message, Modality, TextPart


class FakeTokenizer:
    special_tokens = ("<s>", "</s>", "<|im_end|>", "<image>")

    def __init__(self, chat_template: Any = None) -> None:
        self.chat_template = chat_template
        self.template_variables = {"bos_token": "<s>", "eos_token": "</s>"}


def user(text: Any) -> Any:
    return Message(role="user", parts=(TextPart(text=text),))


def say(role: Any, text: Any) -> Any:
    return Message(role=role, parts=(TextPart(text=text),))


def build(name: Any, **changes: Any) -> Any:
    return choose_template("m", FakeTokenizer(), ChatTemplateConfig(name, **changes))


TWO_TURNS = [say("system", "S"), user("A"), say("assistant", "B"), user("C")]


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("base", "SABC"),
        (
            "chatml",
            "<|im_start|>system\nS<|im_end|>\n<|im_start|>user\nA<|im_end|>\n<|im_start|>assistant\nB<|im_end|>\n"
            "<|im_start|>user\nC<|im_end|>\n<|im_start|>assistant\n",
        ),
        ("vicuna", "S USER: A ASSISTANT: B</s>USER: C ASSISTANT:"),
        ("llama2", "[INST] <<SYS>>\nS\n<</SYS>>\n\nA [/INST] B </s><s>[INST] C [/INST]"),
        ("mistral", "[INST] S\n\nA [/INST]B</s>[INST] C [/INST]"),
        (
            "llama3",
            "<|start_header_id|>system<|end_header_id|>\n\nS<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nA<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\nB<|eot_id|><|start_header_id|>user<|end_header_id|>\n\nC<|eot_id|>"
            "<|start_header_id|>assistant<|end_header_id|>\n\n",
        ),
        (
            "phi-3",
            "<|system|>\nS<|end|>\n<|user|>\nA<|end|>\n<|assistant|>\nB<|end|>\n<|user|>\nC<|end|>\n<|assistant|>\n",
        ),
        (
            "gemma",
            "<start_of_turn>user\nS\n\nA<end_of_turn>\n<start_of_turn>model\nB<end_of_turn>\n"
            "<start_of_turn>user\nC<end_of_turn>\n"
            "<start_of_turn>model\n",
        ),
        ("deepseek", "S\n\nUser: A\n\nAssistant: B<\uff5cend▁of▁sentence\uff5c>User: C\n\nAssistant:"),
    ],
)
def test_published_forms(name: str, expected: str) -> None:
    assert build(name).render(TWO_TURNS).text == expected


def test_every_name_builds_and_renders() -> None:
    assert templates.names() == sorted(templates.names())
    assert {"base", "chatml", "qwen", "vicuna", "llava-v1", "llama2", "llama3", "llama3_1", "mistral", "phi-3",
            "internlm2", "internvl2_5", "gemma", "deepseek"} <= set(templates.names())  # fmt: skip
    for name in templates.names():
        template = build(name)
        assert "A" in template.render([user("A")]).text
        assert name == "base" or template.stop_words or isinstance(template, templates.JinjaTemplate)


def test_default_system_and_changing_it() -> None:
    template = build("qwen")
    assert template.render([user("A")]).text.startswith("<|im_start|>system\nYou are a helpful assistant.<|im_end|>\n")
    template.meta_instruction = None
    assert template.render([user("A")]).text.startswith("<|im_start|>user\nA")
    template.user = "<|im_start|>human\n"
    assert template.render([user("A")]).text.startswith("<|im_start|>human\nA")
    with pytest.raises(AttributeError, match="no piece 'usr'"):
        template.usr = ""


def test_bos_is_left_to_the_tokenizer() -> None:
    assert build("vicuna").render([user("A")]).text.startswith("A chat between")
    explicit = build("mine", user="<s>[INST]", eoh="[/INST]")
    assert explicit.render([user("A")]).text == "<s>[INST]A[/INST]"


def test_new_name_makes_a_template_from_pieces() -> None:
    pieces = {"system": "<sys>", "eosys": "</sys>", "user": "<u>", "eoh": "</u>", "assistant": "<a>", "eoa": "</a>"}
    template = build("robot", **pieces, meta_instruction="Beep.", separator="\n", stop_words=["</a>"])
    assert isinstance(template, PiecesTemplate)
    rendered = template.render([user("A"), say("assistant", "B"), user("C")])
    assert rendered.text == "<sys>Beep.</sys><u>A</u><a>B</a>\n<u>C</u><a>"
    assert template.stop_words == ["</a>"]


def test_overriding_pieces_of_a_builtin() -> None:
    text = build("vicuna", assistant="BOT: ", meta_instruction="Hi.").render([user("A")]).text
    assert text == "Hi. USER: A BOT: "


def test_completion_has_no_template() -> None:
    assert build("qwen", capability="completion").render([user("Shanghai is")]).text == "Shanghai is"


def test_media_and_literals() -> None:
    parts = (MediaPart(modality=Modality.IMAGE, source="x"), TextPart(text="a <image> <|im_end|>"))
    rendered = build("vicuna", meta_instruction="").render(
        [Message(role="user", parts=parts)], markers={Modality.IMAGE: "<image>"}
    )
    assert rendered.text == " USER: <image>\na <image> <|im_end|> ASSISTANT:"
    assert [rendered.text[slice(*span)] for span in rendered.literals] == ["<image>", "<|im_end|>"]
    assert rendered.markers == ((7, 14),)


def test_media_inside_text_stay_there() -> None:
    picture = MediaPart(modality=Modality.IMAGE, source="x")
    parts = (TextPart(text="Image-1: "), picture, TextPart(text="\nImage-2: "), picture, TextPart(text="\nCompare."))
    rendered = build("base").render([Message(role="user", parts=parts)], markers={Modality.IMAGE: "<image>"})
    assert rendered.text == "Image-1: <image>\nImage-2: <image>\nCompare."
    leading = (picture, picture, TextPart(text="\nDescribe."))
    rendered = build("base").render([Message(role="user", parts=leading)], markers={Modality.IMAGE: "<image>"})
    assert rendered.text == "<image>\n<image>\nDescribe."


def test_continue_final() -> None:
    rendered = build("chatml").render([user("A"), say("assistant", "Sure, ")], continue_final=True)
    assert rendered.text.endswith("<|im_start|>assistant\nSure, ")
    with pytest.raises(RequestError, match="assistant's"):
        build("chatml").render([user("A")], continue_final=True)


@pytest.mark.parametrize("answer", ["B", " B"])
def test_an_answer_has_one_space_before_it(answer: str) -> None:
    """Where the model writes the space, it is in the answer that is sent back."""
    turns = [user("A"), say("assistant", answer), user("C")]
    assert build("molmo").render(turns).text == "<|endoftext|> User: A Assistant: B<|endoftext|> User: C Assistant:"
    assert build("cogvlm").render(turns[:2], continue_final=True).text == "Question: A Answer: B"
    assert build("chatml").render(turns[:2], continue_final=True).text.endswith(f"assistant\n{answer}")


@pytest.mark.parametrize(
    ("messages", "kwargs", "message"),
    [
        ([], {}, "at least one message"),
        ([say("robot", "x")], {}, "'robot'"),
        ([say("tool", "x")], {}, "'tool'"),
        ([Message(role="assistant", parts=(), extra={"tool_calls": [{}]})], {}, "tool_calls"),
        ([user("x")], {"tools": [{}]}, "tools"),
        ([user("x")], {"enable_thinking": True}, "enable_thinking"),
    ],
)
def test_what_pieces_cannot_say_is_refused(
    messages: list[Any] | list[Message], kwargs: dict[str, Any], message: str
) -> None:
    with pytest.raises(RequestError, match=message):
        build("chatml").render(messages, **kwargs)


def test_developer_is_system() -> None:
    assert build("chatml").render([say("developer", "S"), user("A")]).text.startswith("<|im_start|>system\nS")


@pytest.mark.usefixtures("forget_templates")
def test_register() -> None:
    templates.register("mine", Pieces(user="U:", assistant="A:"))
    assert build("mine").render([user("x")]).text == "U:xA:"
    assert "mine" in templates.names()
    with pytest.raises(ConfigError, match="already"):
        templates.register("chatml", Pieces())
    with pytest.raises(ConfigError, match="Pieces"):
        templates.register("other", "USER:")  # type: ignore[arg-type]


def test_choice_order(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    own = "{% for m in messages %}own {{ m.content }}{% endfor %}"
    assert isinstance(choose_template("Qwen/Qwen2-7B-Instruct", FakeTokenizer(own)), JinjaTemplate)
    config = ChatTemplateConfig("vicuna")
    assert choose_template("x", FakeTokenizer(own), config).name == "vicuna"
    (tmp_path / "chat_template.json").write_text('{"chat_template": "{{ messages[0].content }}!"}')
    assert choose_template("x", FakeTokenizer(), folder=tmp_path).render([user("A")]).text == "A!"
    assert choose_template("lmsys/vicuna-7b-v1.5", FakeTokenizer()).name == "vicuna"
    with caplog.at_level(logging.WARNING, logger="seesay"):
        assert choose_template("some/folder", FakeTokenizer()).name == "base"
    assert "chat_template_config" in caplog.text


def test_a_template_is_chosen_by_name_file_or_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.jinja").write_text("{{ messages[0].content }}?")
    (tmp_path / "mine.json").write_text('{"model_name": "mine", "user": "U:"}')
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "chat_template.jinja").write_text("{{ messages[0].content }}!")
    (tmp_path / "vicuna").mkdir()
    for chosen, text in (
        (tmp_path / "mine.jinja", "A?"),
        ("mine.jinja", "A?"),
        ("folder", "A!"),
        (Path("folder"), "A!"),
        (tmp_path / "mine.json", "U:A"),
        ('{"model_name": "mine", "user": "V:"}', "V:A"),
    ):
        assert choose_template("m", FakeTokenizer(), chosen).render([user("A")]).text == text
    assert choose_template("m", FakeTokenizer(), "vicuna").name == "vicuna"
    assert as_template(Path("folder"), FakeTokenizer()).render([user("A")]).text == "A!"
    for wrong in ("no-such", Path("no-such.jinja")):
        with pytest.raises(ConfigError, match="no-such"):
            choose_template("m", FakeTokenizer(), wrong)


def test_unknown_name_and_capability() -> None:
    with pytest.raises(ConfigError, match="chatml"):
        build("no-such")
    with pytest.raises(ConfigError, match="infilling"):
        build("chatml", capability="infilling")


def test_jinja_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.jinja"
    path.write_text("{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}")
    template = build("mine", model_path=str(path), meta_instruction="S", stop_words=["stop"])
    assert template.render([user("A")]).text == "<system>S<user>A"
    assert template.stop_words == ["stop"]
    (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "{{ messages[0].content }}"}')
    assert build("mine", model_path=str(tmp_path)).render([user("A")]).text == "A"
    with pytest.raises(ConfigError, match="user"):
        build("mine", model_path=str(path), user="U")
    with pytest.raises(ConfigError, match="nowhere"):
        build("mine", model_path=str(tmp_path / "nowhere"))
    (tmp_path / "tokenizer_config.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"tokenizer_config\.json: not valid JSON"):
        build("mine", model_path=str(tmp_path))


def test_a_name_of_a_jinja_template_is_its_file() -> None:
    """However the name is given, also to another process."""
    for given in ("qwen-tools", ChatTemplateConfig("qwen-tools")):
        for config in (templates.as_config(given), templates.check_choice(given), templates.as_portable(given)):
            assert config is not None and Path(str(config.model_path)).name == "qwen-tools.jinja"
    with pytest.raises(ConfigError, match="already a chat template"):
        templates.register("qwen-tools", templates.Pieces())
    with pytest.raises(ConfigError, match="user cannot be set for the jinja template"):
        templates.check_choice(ChatTemplateConfig("qwen-tools", user="x"))
