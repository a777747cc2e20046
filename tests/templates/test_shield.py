"""Whatever a user types, a tokenizer sees special tokens only where the template wrote them."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from seesay.templates import JinjaTemplate
from seesay.templates.shield import Shield
from seesay.values import Message, TextPart

SPECIAL = ("<s>", "<|im_start|>", "<|im_end|>", "<|im_end|>x", "aab", "[I]", "[[I]]")
TEMPLATE = """{% for m in messages %}{{ '<|im_start|>' }}{% if m.content is string %}{{ m.content | trim }}
{%- else %}{% for part in m.content %}{{ part.text }}{% endfor %}{% endif %}{{ '\n<|im_end|>\n' }}{% endfor %}"""
ANY_SPECIAL = re.compile("|".join(map(re.escape, sorted(SPECIAL, key=len, reverse=True))))

pieces = st.lists(
    st.one_of(
        st.sampled_from([*SPECIAL, "<", "<|", "im_end|>", "im_start|>", "aa", "b", "[", "I]", " ", "\n", "\ue000"])
    ),
    max_size=8,
).map("".join)


def specials_outside(rendered):
    """Special tokens as a tokenizer finds them that takes the literals out first."""
    found, done = [], 0
    for start, stop in (*rendered.literals, (len(rendered.text), len(rendered.text))):
        found += ANY_SPECIAL.findall(rendered.text[done:start])
        done = stop
    return found


@given(st.lists(st.lists(pieces, min_size=1, max_size=3), min_size=1, max_size=3))
def test_only_the_templates_tokens_are_special(conversation):
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
def test_covering_is_undone(text):
    shield = Shield(SPECIAL)
    shield.choose_nonces([text])
    covered = shield.cover(text)
    assert ANY_SPECIAL.search(covered) is None
    assert shield.lift(covered, [])[0] == text
