"""Whatever a user types, a tokenizer sees special tokens only where the template wrote them."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from seesay.errors import RequestError
from seesay.templates import JinjaTemplate
from seesay.templates.shield import Shield
from seesay.values import Message, TextPart

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "aab", "[I]", "[[I]]")
TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' }}{% if m.content is string %}{{ m.content | trim }}
{%- else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{{ '\n<|im_end|>\n' }}{% endfor %}"""
ANY_SPECIAL = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))))

FRAGMENTS = [*SPECIAL, "<", "<|", "im_end|>", "im_start|>", "aa", "b", "[", "I]", " ", "\n", "\ue000"]

pieces = st.lists(st.sampled_from(FRAGMENTS), max_size=8).map("".join)


@st.composite
def parts(draw: Any) -> Any:
    """A text, cut anywhere: the pieces of a token may come in different parts of a message."""
    text = draw(pieces)
    cuts = sorted(draw(st.lists(st.integers(0, len(text)), max_size=2)))
    return [text[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(text)])]


def specials_outside(rendered: Any) -> Any:
    """Special tokens as a tokenizer finds them that takes the literals out first."""
    found, done = [], 0
    for start, stop in (*rendered.literals, (len(rendered.text), len(rendered.text))):
        found += ANY_SPECIAL.findall(rendered.text[done:start])
        done = stop
    return found


@settings(deadline=None)  # the first rendering starts a process
@given(st.lists(parts(), min_size=1, max_size=3))
def test_only_the_templates_tokens_are_special(conversation: Any) -> None:
    template = JinjaTemplate("test", TEMPLATE, special_tokens=SPECIAL)
    messages = [Message(role="user", parts=tuple(TextPart(text=t) for t in texts)) for texts in conversation]
    rendered = template.render(messages)
    expected = "".join(
        "<|im_start|>" + (texts[0].strip() if len(texts) == 1 else "".join(texts)) + "\n<|im_end|>\n"
        for texts in conversation
    )
    assert rendered.text == expected
    assert specials_outside(rendered) == ["<|im_start|>", "<|im_end|>"] * len(conversation)
    for (_, stop), (start, _) in zip(rendered.literals, rendered.literals[1:]):
        assert stop <= start


@given(pieces)
def test_covering_is_undone(text: Any) -> None:
    shield = Shield(SPECIAL)
    shield.choose_nonces([text])
    covered = shield.cover(text)
    assert ANY_SPECIAL.search(covered) is None
    assert shield.lift(covered, [])[0] == text


def test_nonces_are_in_no_text() -> None:
    """As characters or as JSON escapes; with two left those are chosen, with one the text is refused."""
    taken = [chr(code) for code in range(0xE000, 0xF8FF)]
    free = [taken.pop(4321), taken.pop(17)]
    escaped, plain = taken[:100], taken[100:]
    texts = ["".join(plain), "".join(f"\\u{ord(c):04X}" for c in escaped)]
    shield = Shield(SPECIAL)
    shield.choose_nonces(texts)
    assert {shield.cover("<s>")[1], shield.tail} == set(free)
    with pytest.raises(RequestError, match="private-use"):
        shield.choose_nonces([*texts, free[0]])


@given(pieces)
def test_a_text_is_covered_in_slices_as_at_once(text: Any) -> None:
    at_once, in_slices = Shield(SPECIAL), Shield(SPECIAL, slice_chars=3)
    assert in_slices.cover(text) == at_once.cover(text)
    in_slices.choose_nonces([text])
    assert in_slices._nonce not in text and in_slices.tail not in text


def test_deep_values_are_refused_and_as_deep_as_calls_are_read_taken() -> None:
    def nest(levels: int) -> Any:
        value: Any = "<s>"
        for _ in range(levels):
            value = [value]
        return value

    shield = Shield(SPECIAL)
    covered = shield.cover_all({"arguments": nest(256)})["arguments"]
    for _ in range(256):
        [covered] = covered
    assert covered == shield.cover("<s>") != "<s>"
    for levels in (300, 100_000):
        with pytest.raises(RequestError, match="has more than 264 levels") as raised:
            shield.cover_all({"arguments": nest(levels)})
        assert raised.value.param == "messages"
