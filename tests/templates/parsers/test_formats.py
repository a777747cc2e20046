"""Every format of calls: what models write, however it is cut, and what is not a call."""

from __future__ import annotations

import json
import random
from itertools import pairwise
from typing import Any

import pytest
from cpu_time import check_cpu_s, measure_cpu_s
from templates.parsers.reading import call, content, named, read, read_cut

from seesay.templates.parsers.choose import TOOL_FORMATS
from seesay.templates.parsers.parts import AnswerPart, CallArguments, CallEnd, CallStart, ContentText

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "city": {"type": "string"},
        "days": {"type": "integer"},
        "deep": {"type": "object"},
        "unit": {"enum": ["C", "F"]},
        "on": {"type": "boolean"},
    },
}
TOOLS: list[dict[str, object]] = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA}}]
ARGUMENTS = {"city": 'Zürich "x" </tool_call>', "days": 3, "deep": {"a": [1, None, {"b": "]"}]}}
BAR = "\uff5c"
PLAIN = json.dumps(ARGUMENTS, ensure_ascii=False)
QWEN = "<tool_call>\n<function=f>\n<parameter=city>\nZürich\n\n<b>\n</parameter>\n<parameter=days>\n3\n</parameter>\n"
GLM = "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>Zürich</arg_value>\n<arg_key>days</arg_key>\n<arg_value>3"

INVOKE = '<invoke name="f">\n<parameter name="city">Zürich</parameter>\n<parameter name="days">3</parameter>\n</invoke>'
DSML = "\uff5cDSML\uff5c"
DSML_INVOKE = (
    f'<{DSML}invoke name="f">\n<{DSML}parameter name="city" string="true">Zürich</{DSML}parameter>\n'
    f'<{DSML}parameter name="days" string="false">3</{DSML}parameter>\n</{DSML}invoke>'
)
QUOTE = '<|"|>'
CALLS = {
    "gemma4": f"<|tool_call>call:f{{city:{QUOTE}Zürich, {{x}}{QUOTE},days:3,deep:{{a:[1,null,{{b:{QUOTE}]{QUOTE}}}]}}}}"
    "<tool_call|>",
    "gpt_oss": f"<|channel|>commentary to=functions.f <|constrain|>json<|message|>{PLAIN}<|call|>",
    "hermes": f'<tool_call>\n{{"name": "f", "arguments": {PLAIN}}}\n</tool_call>',
    "internlm2": f'<|action_start|><|plugin|>\n{{"name": "f", "parameters": {PLAIN}}}<|action_end|>',
    "llama3_json": f'{{"name": "f", "parameters": {PLAIN}}}',
    "mistral": f"[TOOL_CALLS]f[ARGS]{PLAIN}",
    "mistral_list": f'[TOOL_CALLS] [{{"name": "f", "arguments": {PLAIN}}}]',
    "deepseek_v3": f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>function<{BAR}tool▁sep{BAR}>f\n"
    f"```json\n{PLAIN}\n```<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    "deepseek_v31": f"<{BAR}tool▁calls▁begin{BAR}><{BAR}tool▁call▁begin{BAR}>f<{BAR}tool▁sep{BAR}>{PLAIN}"
    f"<{BAR}tool▁call▁end{BAR}><{BAR}tool▁calls▁end{BAR}>",
    "qwen3_coder": f"{QWEN}</function>\n</tool_call>",
    "glm45": f"{GLM}</arg_value>\n</tool_call>",
    "glm47": f"{GLM}</arg_value>\n</tool_call>".replace("\n", ""),
    "kimi_k2": "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
    f"{PLAIN}<|tool_call_end|><|tool_calls_section_end|>",
    "minimax_m2": f"<minimax:tool_call>\n{INVOKE}\n</minimax:tool_call>",
    "deepseek_v32": f"<{DSML}function_calls>\n{DSML_INVOKE}\n</{DSML}function_calls>",
    "pythonic": '[f(city="Z\\u00fcrich", days=3, deep={"a": [1, None, {"b": "]"}]})]',
    "minicpm": "<|tool_call_start|>\n```python\nf(city='Zürich', days=3)\n```\n<|tool_call_end|>",
}
VARIANTS = {"internlm2": CALLS["internlm2"].replace("><", "> <").replace("}<|", "}\n<|")}
TWO = {
    "gpt_oss": f"{CALLS['gpt_oss']}<|start|>assistant{CALLS['gpt_oss']}",
    "gemma4": CALLS["gemma4"] * 2,
    "hermes": f"{CALLS['hermes']}\n{CALLS['hermes']}",
    "llama3_json": f"{CALLS['llama3_json']}; {CALLS['llama3_json']}",
    "mistral": CALLS["mistral"] * 2,
    "mistral_list": CALLS["mistral_list"][:-1] + ", " + CALLS["mistral_list"].partition("[{")[2].join(["{", ""]),
    "deepseek_v3": CALLS["deepseek_v3"].replace(
        f"<{BAR}tool▁calls▁end{BAR}>",
        "\n" + CALLS["deepseek_v3"].removeprefix(f"<{BAR}tool▁calls▁begin{BAR}>"),
    ),
    "kimi_k2": CALLS["kimi_k2"].replace(
        "<|tool_calls_section_end|>", CALLS["kimi_k2"].removeprefix("<|tool_calls_section_begin|>").replace(":0", ":1")
    ),
    "minimax_m2": CALLS["minimax_m2"].replace(INVOKE, f"{INVOKE}\n{INVOKE}"),
    "deepseek_v32": CALLS["deepseek_v32"].replace(DSML_INVOKE, f"{DSML_INVOKE}\n{DSML_INVOKE}"),
    "qwen3_coder": f"{CALLS['qwen3_coder']}\n{CALLS['qwen3_coder']}",
    "pythonic": f"[{CALLS['pythonic'][1:-1]}, {CALLS['pythonic'][1:-1]}]",
    "minicpm": CALLS["minicpm"].replace("\n```\n", "\nf(city='Zürich', days=3)\n```\n"),
}
MARKING_TEXT = ("gpt_oss",)
"""Formats with markers around text, too, which are no content."""
VALUES = {
    "gemma4": {"city": "Zürich, {x}", "days": 3, "deep": ARGUMENTS["deep"]},
    "qwen3_coder": {"city": "Zürich\n\n<b>", "days": 3},
    "glm45": {"city": "Zürich", "days": 3},
    "glm47": {"city": "Zürich", "days": 3},
    "pythonic": {"city": "Zürich", "days": 3, "deep": ARGUMENTS["deep"]},
    "minicpm": {"city": "Zürich", "days": 3},
    "minimax_m2": {"city": "Zürich", "days": 3},
    "deepseek_v32": {"city": "Zürich", "days": 3},
}


def calls_in(parts: list[AnswerPart]) -> list[tuple[str, Any]]:
    names = [part.name for part in parts if isinstance(part, CallStart)]
    arguments = [json.loads(part.text) for part in parts if isinstance(part, CallArguments)]
    assert len(names) == len(arguments) == sum(isinstance(part, CallEnd) for part in parts)
    return list(zip(names, arguments, strict=True))


def text_of(parts: list[AnswerPart]) -> str:
    return "".join(part.text for part in parts if isinstance(part, ContentText))


def test_every_format_is_tried() -> None:
    assert CALLS.keys() == TOOL_FORMATS.keys()


@pytest.mark.parametrize("streams_calls", [False, True])
@pytest.mark.parametrize("name", CALLS)
def test_a_call(name: str, streams_calls: bool) -> None:
    format, wanted = named(name), ("f", VALUES.get(name, ARGUMENTS))
    parts = read_cut(format, CALLS[name], tools=TOOLS, streams_calls=streams_calls)
    assert calls_in(parts) == [wanted] and not text_of(parts)
    if not TOOL_FORMATS[name].begins_answer:
        parts = read_cut(format, f" See:\n{CALLS[name]} \n", tools=TOOLS, streams_calls=streams_calls)
        assert calls_in(parts) == [wanted] and text_of(parts) == " See:"


@pytest.mark.parametrize(
    ("name", "alias"), [("internlm2", "internlm"), ("internlm2", "intern-s1"), ("internlm2", "interns1")]
)
def test_other_spellings_are_read_under_each_name(name: str, alias: str) -> None:
    for text in (CALLS[name], VARIANTS[name]):
        assert calls_in(read_cut(named(alias), text, tools=TOOLS)) == [("f", VALUES.get(name, ARGUMENTS))]
        assert text_of(read_cut(named(alias), f"See {text[:30]}", tools=TOOLS)) == f"See {text[:30]}"


@pytest.mark.parametrize("name", TWO)
def test_several_calls(name: str) -> None:
    parts = read_cut(named(name), TWO[name], tools=TOOLS)
    assert calls_in(parts) == [("f", VALUES.get(name, ARGUMENTS))] * 2 and not text_of(parts)


@pytest.mark.parametrize("name", CALLS)
def test_a_call_that_is_cut_off_is_content(name: str) -> None:
    """What is left out at the end of a call may only be its end marker."""
    format, text = named(name), CALLS[name]
    for stop in range(len(text)):
        parts = read(format, [text[:stop]], tools=TOOLS)
        if calls_in(parts):
            assert parts == read(format, [text], tools=TOOLS) and stop > len(text) - 45
        else:
            assert text_of(parts) == text[:stop]


def test_no_part_of_the_end_marker_follows_a_complete_call() -> None:
    """As when the limit of tokens is reached inside of the marker."""
    format, text = named("hermes"), CALLS["hermes"]
    whole = read(format, [text], tools=TOOLS, streams_calls=True)
    for stop in range(len(text) - len("</tool_call>"), len(text)):
        assert read(format, [text[:stop]], tools=TOOLS, streams_calls=True) == whole
        assert read(format, list(text[:stop]), tools=TOOLS)[-1] == whole[-1]


@pytest.mark.parametrize("name", CALLS)
def test_naughty_answers(name: str) -> None:
    """Mutated calls: whatever comes out does not depend on cuts, arguments are JSON objects, and an answer without a
    call is content with its exact text."""
    rng = random.Random(name)
    format = named(name, "qwen3")
    tools = TOOL_FORMATS[name]
    snippets = [
        *tools.tokens,
        "<think>",
        "</think>",
        "{",
        "}",
        '"',
        "\\",
        "\\u",
        "[",
        "]",
        ",",
        "\n",
        " ",
        "é",
        "\0",
        "1e",
        "(",
    ]
    for _ in range(150):
        text = CALLS[name] * rng.randrange(1, 3)
        for _ in range(rng.randrange(1, 6)):
            start = rng.randrange(len(text) + 1)
            stop = min(len(text), start + rng.choice([0, 0, 1, 2, 10]))
            text = text[:start] + rng.choice(snippets) * rng.choice([1, 1, 2]) + text[stop:]
        parts = read(format, [text], tools=TOOLS)
        assert read(format, list(text), tools=TOOLS) == parts, text
        places = sorted(rng.randrange(len(text) + 1) for _ in range(4))
        assert read(format, [text[a:b] for a, b in pairwise([0, *places, len(text)])], tools=TOOLS) == parts, text
        for _, arguments in calls_in(parts):
            assert isinstance(arguments, dict)
        is_text = all(isinstance(part, ContentText) for part in parts)
        if is_text and name not in MARKING_TEXT and not text.lstrip().startswith("<think>"):
            assert text_of(parts) == text
        streamed = list(text)
        assert read(format, streamed, tools=TOOLS, streams_calls=True) == read(
            format, [text], tools=TOOLS, streams_calls=True
        ), text


@pytest.mark.parametrize("name", CALLS)
def test_time_is_linear(name: str) -> None:
    """A long argument, and many beginnings of calls that are none, one character at a time."""
    format, marker = named(name), (TOOL_FORMATS[name].markers or ("[f(",))[0]
    for unit in ("x", f"{marker} ", f"{marker}{CALLS[name][:-20]}"):

        def run(num_chars: int, unit: str = unit) -> None:
            text = CALLS[name].replace("Zürich", unit * (num_chars // len(unit)))
            read(format, list(text), tools=TOOLS)

        few_s = measure_cpu_s(lambda: run(8_000))
        check_cpu_s(lambda: run(32_000), 12 * few_s + 0.05)


@pytest.mark.parametrize(
    ("name", "text", "arguments"),
    [
        ("mistral", "[TOOL_CALLS]f{}", {}),
        ("mistral", '[TOOL_CALLS]f[CALL_ID]a1B2c3d4e[ARGS]{"a": 1}', {"a": 1}),
        ("mistral", '[TOOL_CALLS][{"name": "f", "arguments": {"a": 1}, "id": "x"}]', {"a": 1}),
        ("llama3_json", '<|python_tag|>{"name": "f", "parameters": {}}', {}),
        ("llama3_json", ' {"name": "f", "arguments": {}}\n', {}),
        ("llama3_json", '{"type": "function", "name": "f", "parameters": {"a": 1}}', {"a": 1}),
        ("kimi_k2", "<|tool_calls_section_begin|> <|tool_call_begin|> f <|tool_call_argument_begin|> {}", {}),
        ("minimax_m2", '<minimax:tool_call><invoke name="f"></invoke></minimax:tool_call>', {}),
        ("deepseek_v32", CALLS["deepseek_v32"].replace(' string="true"', ""), {"city": "Zürich", "days": 3}),
        ("pythonic", "<|python_start|>[f()]<|python_end|>", {}),
        ("pythonic", "[f(a='it\\'s', b=(1, 2), c=[True, False, None,], d={'k': -1.5e3})]",
         {"a": "it's", "b": [1, 2], "c": [True, False, None], "d": {"k": -1500.0}}),
        ("gemma4", "<|tool_call>call:tools.f-1{}<tool_call|>", {}),
        ("gemma4", f"<|tool_call>call:f{{a:3.14,b:true,c:None,d:[{QUOTE}a]b{QUOTE},-2],e:[]}}<tool_call|>",
         {"a": 3.14, "b": True, "c": None, "d": ["a]b", -2], "e": []}),
        ("gemma4", f"<|tool_call>call:f{{m:{{{QUOTE}3{QUOTE}:{QUOTE}new\n\"text\"{QUOTE}}}}}<tool_call|>",
         {"m": {"3": 'new\n"text"'}}),
        ("gemma4", '<|tool_call> call:f { "a" : "\\u00e9" , unit : celsius } <tool_call|>',
         {"a": "é", "unit": "celsius"}),
        ("glm45", "<tool_call>f</tool_call>", {}),
        ("glm45", "<tool_call>f\n<arg_key>days</arg_key>\n<arg_value>many</arg_value>\n</tool_call>", {"days": "many"}),
        ("glm45", "<tool_call>f\n<arg_key>city</arg_key>\n<arg_value>12</arg_value>\n</tool_call>", {"city": "12"}),
        ("glm45", "<tool_call>f\n<arg_key>on</arg_key>\n<arg_value>True</arg_value>\n</tool_call>", {"on": True}),
        ("glm45", "<tool_call>g\n<arg_key>x</arg_key>\n<arg_value>[1]</arg_value>\n</tool_call>", {"x": [1]}),
        ("llama3_json", '[{"type": "function", "name": "f", "parameters": {"a": 1}}]', {"a": 1}),
        ("qwen3_coder", "<function=f>\n<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>", {"days": 3}),
        ("qwen3_coder", "<function=f>\n<parameter=days>\n3\n</parameter>\n</function>", {"days": 3}),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=days>\n3\n</parameter>\n</tool_call>", {"days": 3}),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nZürich\n</function>\n</tool_call>\n",
         {"city": "Zürich"}),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\na\n<parameter=days>\n3\n</parameter>\n</function>"
         "</tool_call>", {"city": "a", "days": 3}),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\n<parameter=x> </function></tool_call>!\n"
         "</parameter>\n</function>", {"city": "<parameter=x> </function></tool_call>!"}),
        ("qwen3_coder", "<tool_call><function=f></function></tool_call>", {}),
        ("qwen3_coder", "<tool_call><function=f><parameter=unit>C</parameter></function>", {"unit": "C"}),
    ],
)  # fmt: skip
def test_variants(name: str, text: str, arguments: dict[str, Any]) -> None:
    parts = read_cut(named(name), text, tools=TOOLS)
    assert [found for _, found in calls_in(parts)] == [arguments] and not text_of(parts)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"name": "Bob", "age": 3}'),
        ("llama3_json", '{"parameters": {}, "name": "f"}'),
        ("llama3_json", 'One is {"name": "g", "parameters": {}}.'),
        ("llama3_json", 'One is {"f": {"name": "f"}}.'),
        ("pythonic", "[f(1), g(2)]"),
        ("qwen3_coder", "<function=g>\n</function>"),
        ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=city>\nZürich\n</function>\n</tool_call> and"),
        ("llama3_json", "<|python_tag|>print(1)"),
        ("pythonic", "[a link](http://x)"),
        ("pythonic", "[f(1)]"),
        ("pythonic", "[f(a=__import__('os'))]"),
        ("pythonic", "[f(a='\\N{DIGIT ONE}')]"),
        ("pythonic", "[f(a=[,])]"),
        ("gemma4", "<|tool_call>f{a:1}<tool_call|>"),
        ("gemma4", "<|tool_call>call:bad name{a:1}<tool_call|>"),
        ("gemma4", "<|tool_call>call:f{a:}<tool_call|>"),
        ("gemma4", f"<|tool_call>call:f{{a:{QUOTE}open}}<tool_call|>"),
        ("gemma4", "call:f{a:1}"),
        ("mistral", "[TOOL_CALLS]"),
        ("mistral", "[TOOL_CALLS]f[ARGS]3"),
        ("glm45", "<tool_call>f\n<arg_key>city</arg_key>\n</tool_call>"),
        ("minicpm", "<|tool_call_start|>\n```python\nimport os\n```\n<|tool_call_end|>"),
    ],
)
def test_what_is_not_a_call_is_content(name: str, text: str) -> None:
    assert read_cut(named(name), text, tools=TOOLS) == content(text)


def test_a_call_needs_no_known_function() -> None:
    assert read(named("hermes"), ['<tool_call>{"name": "g"}</tool_call>'], tools=TOOLS) == call(0, "g", "{}")


@pytest.mark.parametrize(
    ("name", "call_text"),
    [
        ("hermes", '<tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>'),
        ("glm45", "<tool_call>f</tool_call>"),
        ("mistral", "[TOOL_CALLS]f[ARGS]{}"),
    ],
)
def test_calls_in_an_answer_that_is_no_call_are_text_where_there_are_calls_alone(name: str, call_text: str) -> None:
    format = named(name)
    text = f' {{"quoted": "{call_text}"}}'
    assert read_cut(format, text, calls_alone=True, streams_calls=True) == content(text)
    assert read_cut(format, text) != content(text)
    assert read_cut(format, f"\n{call_text}", calls_alone=True) == call(0, "f", "{}")


@pytest.mark.parametrize("streams_calls", [False, True])
@pytest.mark.parametrize(
    ("name", "text", "parts"),
    [
        ("llama3_json", 'I call {"name": "f", "parameters": {"a": 1}} now.',
         [*content("I call"), *call(0, "f", '{"a": 1}'), *content(" now.")]),
        ("llama3_json", '{"name": "f", "parameters": {}} is a call', [*call(0, "f", "{}"), *content(" is a call")]),
        ("llama3_json", 'See:\n{"name": "f", "parameters": {}}; {"name": "f", "parameters": {"b": {}}}',
         [*content("See:"), *call(0, "f", "{}"), *call(1, "f", '{"b": {}}')]),
        ("qwen3_coder", "See: <function=f>\n</function> Done.",
         [*content("See:"), *call(0, "f", "{}"), *content(" Done.")]),
        ("llama3_json", 'See:\n{"name": "f", "parameters": {}}, {"x": 1}',
         [*content("See:"), *call(0, "f", "{}"), *content('\n, {"x": 1}')]),
        ("llama3_json", '{"name": "f", "parameters": {}}; \n', call(0, "f", "{}")),
        ("qwen3_coder", "<tool_call>\n<function=f>\n</function>\n<tool_call>\n<function=f>\n</function>\n</tool_call>",
         [*call(0, "f", "{}"), *call(1, "f", "{}")]),
    ],
)  # fmt: skip
def test_calls_with_text_around(name: str, text: str, parts: list[AnswerPart], streams_calls: bool) -> None:
    assert read_cut(named(name), text, tools=TOOLS, streams_calls=streams_calls) == parts


@pytest.mark.parametrize("streams_calls", [False, True])
@pytest.mark.parametrize("name", [*sorted(CALLS.keys() - {"pythonic"}), "without <tool_call>"])
def test_white_space_parts_the_text_before_a_call_from_that_behind_it(name: str, streams_calls: bool) -> None:
    call_text = CALLS.get(name, "<function=f>\n</function>")
    format = named(name if name in CALLS else "qwen3_coder")
    for before, behind in ((" ", " "), ("", "\n"), ("\n", ""), ("\n", " "), ("", "")):
        text = f"See:{before}{call_text}{behind}Done."
        parts = read_cut(format, text, tools=TOOLS, streams_calls=streams_calls)
        assert text_of(parts) == f"See:{behind or before}Done."


def test_a_call_that_cannot_be_read_does_not_hide_its_siblings() -> None:
    text = "[f(a=1), f(oh(2)[), f(b=[2])]"
    parts = [*call(0, "f", '{"a": 1}'), *content(" f(oh(2)[),"), *call(1, "f", '{"b": [2]}')]
    assert read_cut(named("pythonic"), text, tools=TOOLS) == parts
    assert read_cut(named("pythonic"), "[f(1), f(b=2)]", tools=TOOLS) == [*content("[f(1),"), *call(0, "f", '{"b": 2}')]


@pytest.mark.parametrize(
    ("name", "text"),
    [("llama3_json", 'See: {"name": "f", "parameters": {}}'), ("qwen3_coder", "<function=f>\n</function>")],
)
def test_strict_functions_are_called_only_where_a_grammar_holds_calls(name: str, text: str) -> None:
    strict = [{"type": "function", "function": {"name": "f", "parameters": SCHEMA, "strict": True}}]
    assert read_cut(named(name), text, tools=strict) == content(text)
    assert read_cut(named(name), text, tools=TOOLS, calls_alone=True) == content(text)
