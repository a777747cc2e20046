from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tokenizers
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pairs import num_examples
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from seesay.errors import CheckpointError, ErrorCode, RequestError
from seesay.processors.text.tokenizer import Tokenizer
from seesay.values import RenderedPrompt

NAMES = ["byte_level", "byte_level_bos", "byte_fallback", "unigram"]
QUICK = settings(
    max_examples=num_examples(60), deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@pytest.fixture(params=NAMES)
def tokenizer(request: pytest.FixtureRequest, tokenizer_named: Callable[[str], Tokenizer]) -> Any:
    return tokenizer_named(request.param)


def join(pieces: list[str], literal: list[bool]) -> RenderedPrompt:
    """The pieces as one text; those marked are literals."""
    text, spans = "", []
    for piece, is_literal in zip(pieces, literal, strict=True):
        if is_literal and piece:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    return RenderedPrompt(text=text, literals=tuple(spans))


WORDS = st.sampled_from(
    ["the fox", " ", "\n", "  dog", "é", "猫", "😀", "<", ">", "|",
     "<|im_end|>", "<|image_pad|>", "<tool>", "</s>", "<s>",
     "<image>", "s>"]
)  # fmt: skip


def split_prefix(tokenizer: Any, rendered: Any) -> Any:
    """The ids behind the tokenizer's own prefix, which must be there once, and how often the text spells it."""
    ids = tokenizer.encode_prompt(rendered)[0].tolist()
    prefix = tokenizer.encode("", add_special_tokens=True)
    assert ids[: len(prefix)] == prefix
    bos, written = tokenizer.hf.bos_token, 0
    while prefix and rendered.text.startswith(bos, written) and (written, written + len(bos)) not in rendered.literals:
        written += len(bos)
    return ids[len(prefix) :], written


@QUICK
@given(pieces=st.lists(WORDS | st.text(max_size=5), max_size=8))
def test_without_literals_it_is_the_hugging_face_tokenization(tokenizer: Any, pieces: Any) -> None:
    rendered = RenderedPrompt(text="".join(pieces))
    assert tokenizer.encode_prompt(rendered)[0].dtype == np.int64
    ids, written = split_prefix(tokenizer, rendered)
    expected = tokenizer.hf(rendered.text, add_special_tokens=False)["input_ids"]
    assert expected == tokenizer.encode(rendered.text)
    bos = [tokenizer.bos_token_id] * (written // len(tokenizer.hf.bos_token))
    assert expected == [*bos, *ids]


@QUICK
@given(pieces=st.lists(st.tuples(WORDS, st.booleans()), max_size=8))
def test_literals_are_plain_text(tokenizer: Any, pieces: Any) -> None:
    rendered = join(*map(list, zip(*pieces, strict=True))) if pieces else RenderedPrompt(text="")
    ids, done = split_prefix(tokenizer, rendered)
    rest = rendered.text[done:]
    # Added tokens are exactly those spelled outside of literals.
    expected = []
    for start, stop in [*rendered.literals, (len(rendered.text), len(rendered.text))]:
        outside = tokenizer.encode(rendered.text[done:start])
        expected += [token_id for token_id in outside if token_id in tokenizer.added_tokens]
        done = stop
    unknown = tokenizer.hf.unk_token_id
    assert [i for i in ids if i in tokenizer.added_tokens and i != unknown] == [i for i in expected if i != unknown]
    # And the text is all there.
    if not tokenizer.hf.unk_token:
        assert tokenizer.decode(ids, skip_special_tokens=False) == rest


def test_a_literal_is_tokenized_together_with_its_neighbours(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    """As by a tokenizer that has never heard of the special token."""
    tokenizer = tokenizer_named("byte_level")
    state = json.loads(tokenizer.backend.to_str())
    state["added_tokens"] = []
    plain = tokenizers.Tokenizer.from_str(json.dumps(state))
    text = "the dog <|im_end|>sleeps"
    rendered = RenderedPrompt(text=text, literals=((8, 18),))
    assert tokenizer.encode_prompt(rendered)[0].tolist() == plain.encode(text).ids
    both = RenderedPrompt(text=text + "<|im_end|>", literals=((8, 18),), markers=((24, 34),))
    ids, markers = tokenizer.encode_prompt(both)
    assert ids.tolist() == [*plain.encode(text).ids, tokenizer.token_id("<|im_end|>")]
    assert markers == ((len(ids) - 1, len(ids)),)


def test_a_literal_that_is_a_whole_word_of_the_vocabulary() -> None:
    """Llama 3's kind of BPE takes a word that it knows without merging: a special one must not pass for such."""
    backend = tokenizers.Tokenizer(models.BPE({"<s>": 0, "<": 1, "s": 2, ">": 3}, [], ignore_merges=True))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    backend.add_special_tokens(["<s>"])
    from transformers import PreTrainedTokenizerFast

    tokenizer = Tokenizer.of(PreTrainedTokenizerFast(tokenizer_object=backend))
    assert tokenizer.encode("<s>") == [0]
    rendered = RenderedPrompt(text="<s> <s> <s>", literals=((4, 7),), markers=((8, 11),))
    ids, markers = tokenizer.encode_prompt(rendered)
    assert ids.tolist() == [0, 1, 2, 3, 0] and markers == ((4, 5),)


MARKERS = {
    "byte_level": "<|vision_start|><|image_pad|><|vision_end|>",
    "byte_level_bos": "<|image_pad|>",
    "byte_fallback": "<image>",
    "unigram": "<image>",
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("begins", [False, True])
@pytest.mark.parametrize("with_literal", [False, True])
def test_marker_ranges(
    tokenizer_named: Callable[[str], Tokenizer], name: str, begins: bool, with_literal: bool
) -> None:
    tokenizer, marker = tokenizer_named(name), MARKERS[name]
    pieces = [marker, "the 猫 ", marker, "", marker, "\n" + marker + " dog 😀é", marker, "!"]
    text, markers, literals = tokenizer.hf.bos_token * begins, [], []
    for index, piece in enumerate(pieces):
        if index % 2 == 0:
            markers.append((len(text), len(text) + len(piece)))
        elif marker in piece and with_literal:
            at = len(text) + piece.index(marker)
            literals.append((at, at + len(marker)))
        text += piece
    rendered = RenderedPrompt(text=text, markers=tuple(markers), literals=tuple(literals))
    ids, ranges = tokenizer.encode_prompt(rendered)
    expected = tokenizer.encode(marker)
    if name != "unigram":
        expected = [i for i in expected if i in tokenizer.added_tokens]
    assert [ids[start:stop].tolist() for start, stop in ranges] == [expected] * 4
    times = 4 if with_literal else 5
    assert sum(i == tokenizer.token_id(marker[-13:] if "pad" in marker[-13:] else "<image>") for i in ids) in (times, 0)


def test_texts_around_a_plain_marker_are_tokenized_one_by_one(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    """Also where its characters and those beside it make one token, and where a tokenizer begins texts with a space."""
    for name in ("byte_level", "byte_fallback", "unigram"):
        tokenizer = tokenizer_named(name)
        for before, after in (("the", "quick brown"), ("", "the dog<|im_end|>"), ("a ", " dog"), ("<|im_end|>", "")):
            start = len(before)
            text = f"{before}[pic]{after}[pic]"
            markers = ((start, start + 5), (len(text) - 5, len(text)))
            ids, ranges = tokenizer.encode_prompt(RenderedPrompt(text=text, markers=markers))
            pieces = [tokenizer.encode(each) for each in (before, after)]
            prefix = tokenizer.encode("", add_special_tokens=True)
            assert ids.tolist() == [*prefix, *pieces[0], *pieces[1]]
            ends = len(prefix) + len(pieces[0]), len(ids)
            assert ranges == tuple((end, end) for end in ends)


def test_texts_that_are_tokenized_apart_each_begin_with_the_prefix(
    tokenizer_named: Callable[[str], Tokenizer],
) -> None:
    """Also an empty one, and one that spells it. A marker that is a token has none then, and literals stay literals."""
    for name in ("byte_level_bos", "byte_fallback"):
        tokenizer, marker = tokenizer_named(name), MARKERS[name]
        bos = tokenizer.encode("", add_special_tokens=True)
        begun = tokenizer.decode(bos, skip_special_tokens=False) + "a"
        pieces = ["", "the dog", f"{begun}{marker}b", " quick"]
        stops = list(itertools.accumulate(len(marker + piece) for piece in pieces))
        starts = [stop - len(marker) for stop in stops[:-1]]
        text, inside = marker.join(pieces), stops[1] + len(begun)
        literal, markers = (inside, inside + len(marker)), tuple((start, start + len(marker)) for start in starts)
        rendered = RenderedPrompt(text=text, markers=markers, literals=(literal,))
        ids, ranges = tokenizer.encode_prompt(rendered, is_apart=True)
        alone = RenderedPrompt(text=pieces[2], literals=((len(begun), len(begun) + len(marker)),))
        expected = [
            bos,
            [*bos, *tokenizer.encode("the dog")],
            tokenizer.encode_prompt(alone)[0].tolist(),
            [*bos, *tokenizer.encode(" quick")],
        ]
        assert bos and ids.tolist() == [token for piece in expected for token in piece]
        ends = list(itertools.accumulate(map(len, expected)))[:-1]
        assert ranges == tuple((end, end) for end in ends)


def test_texts_without_characters_may_have_no_prefix(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    """But for the first: a prompt begins with the prefix."""
    tokenizer = tokenizer_named("byte_level_bos")
    bos, marker = tokenizer.encode("", add_special_tokens=True), MARKERS["byte_level_bos"]
    text, size = f"{marker}{marker}a{marker}", len(marker)
    rendered = RenderedPrompt(text=text, markers=((0, size), (size, 2 * size), (2 * size + 1, 3 * size + 1)))
    ids, ranges = tokenizer.encode_prompt(rendered, is_apart=True, begins_empty=False)
    assert bos and ids.tolist() == [*bos, *bos, *tokenizer.encode("a")]
    assert [start for start, _ in ranges] == [len(bos), len(bos), len(ids)]


def test_literals_beside_a_plain_marker_stay_literals(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    text = "a<|im_end|>[pic]b<|im_end|>c<|im_end|>"
    rendered = RenderedPrompt(text=text, literals=((1, 11), (17, 27)), markers=((11, 16),))
    ids, ranges = tokenizer.encode_prompt(rendered)
    one, two = (tokenizer.encode_prompt(RenderedPrompt(text=t, literals=((1, 11),)))[0] for t in (text[:11], text[16:]))
    assert ids.tolist() == [*one, *two] and ranges == ((len(one), len(one)),)
    assert ids.tolist().count(tokenizer.token_id("<|im_end|>")) == 1


def test_a_marker_with_a_token_must_lie_on_token_borders(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    good = RenderedPrompt(text="x<|im_end|>\n!y", markers=((1, 13),))
    ids, ranges = tokenizer.encode_prompt(good)
    assert tokenizer.decode(ids[ranges[0][0] : ranges[0][1]], skip_special_tokens=False) == "<|im_end|>\n!"
    for text, span in (("<|im_end|> quick", (0, 12)), ("a dog<|im_end|>", (3, 15))):
        with pytest.raises(RequestError, match="shares a token with the text beside it") as raised:
            tokenizer.encode_prompt(RenderedPrompt(text=text, markers=(span,)))
        assert raised.value.code is ErrorCode.INVALID_REQUEST


def test_beginning_of_raw_prompts(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    for name, bos in (("byte_level_bos", "<|begin|>"), ("byte_fallback", "<s>"), ("unigram", "<s>")):
        tokenizer = tokenizer_named(name)
        raw = tokenizer.hf("the dog")["input_ids"]
        assert raw[0] == tokenizer.bos_token_id
        assert tokenizer.encode_prompt(RenderedPrompt(text="the dog"))[0].tolist() == raw
        for times in (1, 2, 3):
            again = RenderedPrompt(text=bos * times + "the dog")
            ids = tokenizer.encode_prompt(again)[0].tolist()
            assert ids == [tokenizer.bos_token_id, *tokenizer.encode(bos + "the dog")[1:]]
        typed = RenderedPrompt(text=bos + "the dog", literals=((0, len(bos)),))
        ids = tokenizer.encode_prompt(typed)[0].tolist()
        assert ids[0] == tokenizer.bos_token_id and ids.count(ids[0]) == 1 and len(ids) > len(raw)
        assert tokenizer.encode("the dog", add_special_tokens=True) == raw
        assert (
            tokenizer.encode("the dog", add_special_tokens=True, add_bos=False)
            == raw[1:]
            == tokenizer.encode("the dog")
        )
        assert tokenizer.encode("the dog", add_bos=True) == raw
        assert tokenizer.encode(bos + "the dog", add_special_tokens=True).count(int(ids[0])) == 1
    plain = tokenizer_named("byte_level")
    assert plain.encode("the", add_special_tokens=True) == plain.encode("the")
    assert plain.encode("the", add_bos=True) == [plain.bos_token_id, *plain.encode("the")]


def test_what_it_tells(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level_bos")
    assert "<|im_end|>" in tokenizer.special_tokens and "<tool>" not in tokenizer.special_tokens
    assert tokenizer.special_ids == {tokenizer.token_id(token) for token in tokenizer.special_tokens}
    assert tokenizer.eos_token_id == tokenizer.token_id("<|im_end|>") and tokenizer.token_id("nothing") is None
    assert tokenizer.vocab_size == len(tokenizer.hf)
    assert tokenizer.template_variables == {"bos_token": "<|begin|>", "eos_token": "<|im_end|>"}
    assert tokenizer.chat_template is None
    assert tokenizer("the dog")["input_ids"] == tokenizer.encode("the dog", add_special_tokens=True)
    tokenizer.hf.chat_template = "{{ messages[0].content }}"
    try:
        assert tokenizer.apply_chat_template([{"role": "user", "content": "x"}], tokenize=False) == "x"
        assert Tokenizer.of(tokenizer.hf).chat_template == "{{ messages[0].content }}"
    finally:
        tokenizer.hf.chat_template = None
    with pytest.raises(AttributeError):
        _ = tokenizer.no_such_thing


def test_load(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(tiny_checkpoint("qwen2"))
    assert tokenizer.chat_template and tokenizer.decode(tokenizer.encode("the dog")) == "the dog"
    with pytest.raises(CheckpointError, match=str(tmp_path)):
        Tokenizer.load(tmp_path)
    (tmp_path / "config.json").write_text('{"model_type": "qwen2"}')
    with pytest.raises(CheckpointError, match=r"no tokenizer: there is no tokenizer\.json"):
        Tokenizer.load(tmp_path)


def write_llama_2(folder: Any) -> Any:
    """A tokenizer as Llama 2 publishes it: a blank is put before every segment, that behind `<s>` too."""
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        *"▁[]/INSThe",
        "▁[",
        "IN",
        "ST",
        "INST",
    ]
    vocab = {piece: index for index, piece in enumerate(dict.fromkeys(pieces))}
    merges = [("▁", "["), ("I", "N"), ("S", "T"), ("IN", "ST")]
    backend = tokenizers.Tokenizer(models.BPE(vocab, merges, unk_token="<unk>", fuse_unk=True, byte_fallback=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    steps = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    backend.decoder = decoders.Sequence(steps)
    backend.add_special_tokens([tokenizers.AddedToken(t, normalized=False) for t in ("<unk>", "<s>", "</s>")])
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    folder.mkdir(exist_ok=True)
    backend.save(str(folder / "tokenizer.json"))
    template = "{{ bos_token + '[INST] ' + messages[0].content + ' [/INST]' }}"
    config = {"tokenizer_class": "LlamaTokenizer", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>",
              "legacy": False, "add_bos_token": True, "add_eos_token": False, "chat_template": template}  # fmt: skip
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    (folder / "config.json").write_text('{"model_type": "llama"}')
    return backend


def test_tokenizer_json_is_loaded_as_it_is_published(tmp_path: Path) -> None:
    published = write_llama_2(tmp_path)
    tokenizer = Tokenizer.load(tmp_path)
    for text in ("<s>[INST] the [/INST]", "[INST]", "a</s>[INST] b", "", " ", "the"):
        expected = published.encode(text, add_special_tokens=False)
        assert tokenizer.encode(text) == expected.ids, text
        assert tokenizer.hf(text, add_special_tokens=False)["input_ids"] == expected.ids, text
        assert tokenizer.hf(text)["input_ids"] == published.encode(text).ids
    assert published.encode("<s>[INST]", add_special_tokens=False).tokens == ["<s>", "▁[", "INST", "]"]
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id) == (1, 2) and tokenizer.chat_template
    assert tokenizer.template_variables == {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    again = Tokenizer.wrap(tokenizer.hf)
    assert again.encode("<s>[INST]") == tokenizer.encode("<s>[INST]")


def test_no_fast_backend() -> None:
    class Slow:
        is_fast = False

    with pytest.raises(CheckpointError, match="Slow has no fast backend"):
        Tokenizer.of(Slow())


def test_threads_beside_a_user_who_changes_settings(tokenizer_named: Callable[[str], Tokenizer]) -> None:
    tokenizer = tokenizer_named("byte_level")
    text = "the quick brown fox <|im_end|> " * 20
    rendered = RenderedPrompt(text=text, literals=((20, 30),))
    expected = tokenizer.encode_prompt(rendered)[0].tolist()
    with ThreadPoolExecutor(6) as threads:
        ours = [threads.submit(tokenizer.encode_prompt, rendered) for _ in range(100)]
        for _ in range(50):
            tokenizer.hf(["a b", "c"], truncation=True, max_length=1)
        assert all(future.result()[0].tolist() == expected for future in ours)


def test_a_tokenizer_that_was_kept_is_the_same(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_llama_2(tmp_path / "llama")
    for folder in (tiny_checkpoint("qwen2_5_vl"), tmp_path / "llama"):
        made, kept = (Tokenizer.load(folder) for _ in range(2))
        assert made.backend.to_str() == kept.backend.to_str() == Tokenizer.of(made.hf).backend.to_str()
        names = ("vocab_size", "bos_token_id", "eos_token_id", "added_tokens", "special_ids", "special_tokens",
                 "chat_template", "named_tokens", "template_variables", "has_byte_level_decoder",
                 "_prefix_ids")  # fmt: skip
        for name in names:
            assert getattr(made, name) == getattr(kept, name) == getattr(Tokenizer.of(made.hf), name), name
        assert kept("the dog")["input_ids"] == made("the dog")["input_ids"]
    assert len(list((tmp_path / "cache" / "seesay").iterdir())) == 2


def test_a_changed_tokenizer_is_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    write_llama_2(tmp_path / "model")
    assert Tokenizer.load(tmp_path / "model").template_variables["eos_token"] == "</s>"
    file = tmp_path / "model" / "tokenizer_config.json"
    file.write_text(file.read_text().replace('"eos_token": "</s>"', '"eos_token": "<unk>"'))
    tokenizer = Tokenizer.load(tmp_path / "model")
    assert (tokenizer.template_variables["eos_token"], tokenizer.eos_token_id) == ("<unk>", 0)
    (tmp_path / "model" / "tokenizer.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot load the tokenizer"):
        Tokenizer.load(tmp_path / "model")


@pytest.mark.parametrize("damage", ("{}", '{"backend": "{}"}', "nothing"))
def test_a_tokenizer_that_was_kept_and_is_damaged_is_read_again(
    damage: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    published = write_llama_2(tmp_path / "model")
    Tokenizer.load(tmp_path / "model")
    [file] = (tmp_path / "cache" / "seesay").iterdir()
    whole = file.read_text()
    file.write_text(damage)
    ids = Tokenizer.load(tmp_path / "model").encode("[INST] the")
    assert ids == published.encode("[INST] the", add_special_tokens=False).ids
    assert file.read_text() == whole


def write_hostile(folder: Path, tiny: Path, steps: list[dict[str, Any]]) -> Path:
    folder.mkdir()
    data = json.loads((tiny / "tokenizer.json").read_text())
    data["normalizer"] = {"type": "Sequence", "normalizers": steps}
    (folder / "tokenizer.json").write_text(json.dumps(data))
    return folder


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        ({"String": "a"}, "crashes|more than"),
        ({"Regex": "a"}, "crashes|more than"),
        ({"String": "rare"}, "characters of one"),
    ],
)
def test_a_tokenizer_that_takes_all_memory_ends_another_process(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, pattern: dict[str, str], words: str
) -> None:
    """Five replacements, each with a thousand times the text: of a letter in every text, or of a word in few."""
    steps = [{"type": "Replace", "pattern": pattern, "content": "rare" * 250 + "a" * 1000} for _ in range(5)]
    folder = write_hostile(tmp_path / "hostile", tiny_checkpoint("llama"), steps)
    with pytest.raises(CheckpointError, match=words):
        Tokenizer.load(folder)


def test_usual_replacements_are_fine(tiny_checkpoint: Callable[[str], Path], tmp_path: Path) -> None:
    steps: list[dict[str, Any]] = [
        {"type": "Prepend", "prepend": "\u2581"},
        {"type": "Replace", "pattern": {"String": " "}, "content": "\u2581"},
        {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "},
        {"type": "Replace", "pattern": {"String": "``"}, "content": '"'},
    ]
    assert Tokenizer.load(write_hostile(tmp_path / "usual", tiny_checkpoint("llama"), steps)).encode("a b")
