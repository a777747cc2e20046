"""Folders with SentencePiece's tokenizer.model and no tokenizer.json.

`sentencepiece/` holds two models that SentencePiece trained, and the ids that it gives for some texts.
"""

from __future__ import annotations

import json
import random
import shutil
import struct
import time
from pathlib import Path
from typing import Any

import pytest
import torch

import seesay.demo
from seesay.errors import CheckpointError
from seesay.processors.text.sentencepiece_model import read_sentencepiece
from seesay.processors.text.tokenizer import Tokenizer
from seesay.processors.text.tokenizer_facts import load_facts

MODELS = Path(__file__).with_name("sentencepiece")
IDS: dict[str, Any] = json.loads((MODELS / "ids.json").read_text(encoding="utf-8"))


def write(folder: Path, model: str = "bpe", **config: Any) -> Path:
    folder.mkdir(exist_ok=True)
    shutil.copyfile(MODELS / f"{model}.model", folder / "tokenizer.model")
    special = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    (folder / "tokenizer_config.json").write_text(json.dumps({**special, **config}))
    return folder


@pytest.mark.parametrize("name", ["bpe", "unigram"])
def test_ids_are_those_of_sentencepiece(name: str, tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, name))
    for text, ids, decoded in zip(IDS["texts"], IDS[name], IDS[f"{name} decoded"], strict=True):
        assert tokenizer.encode(text) == ids, text
        assert tokenizer.encode(text, add_special_tokens=True) == [1, *ids]
        assert tokenizer.decode(ids) == decoded


def test_user_defined_pieces_are_never_split(tmp_path: Path) -> None:
    tokenizer = Tokenizer.load(write(tmp_path, legacy=False))
    assert [tokenizer.backend.id_to_token(i) for i in tokenizer.encode("a<custom>b")] == ["▁a", "<custom>", "b"]
    assert "<custom>" not in tokenizer.special_tokens


def test_where_the_first_space_goes(tmp_path: Path) -> None:
    """`legacy` of tokenizer_config.json, and Transformers' default for its own classes, which is false."""
    old = Tokenizer.load(write(tmp_path / "old", legacy=True, tokenizer_class="LlamaTokenizer"))
    new = Tokenizer.load(write(tmp_path / "new", legacy=False))
    own = Tokenizer.load(write(tmp_path / "own", tokenizer_class="LlamaTokenizer"))
    foreign = Tokenizer.load(write(tmp_path / "foreign", tokenizer_class="InternLM2Tokenizer"))
    shown = [[t.backend.id_to_token(i) for i in t.encode("a</s>b")] for t in (old, new, own, foreign)]
    assert shown == [["▁a", "</s>", "▁b"], ["▁a", "</s>", "b"], ["▁a", "</s>", "b"], ["▁a", "</s>", "▁b"]]


def test_the_name_of_the_file_in_mistrals_layout(tmp_path: Path) -> None:
    """Nothing stands beside it; a space goes before the first text alone, and answers end."""
    shutil.copyfile(MODELS / "bpe.model", tmp_path / "tokenizer.model.v3")
    own, sibling = Tokenizer.load(tmp_path), Tokenizer.load(write(tmp_path / "sibling", legacy=False))
    for text in ("a</s>b", "hello", " x"):
        assert own.encode(text, add_special_tokens=True) == sibling.encode(text, add_special_tokens=True)
    assert (own.bos_token_id, own.eos_token_id) == (sibling.bos_token_id, sibling.eos_token_id) == (1, 2)


def test_tokens_that_other_files_add(tmp_path: Path) -> None:
    """A published fine-tune: a placeholder of the vocabulary renamed, tokens added behind it, code that is not run."""
    decoder = {
        "0": {"content": "<unk>", "special": True},
        "450": {"content": "<|plugin|>", "special": True},
        "460": {"content": "<|im_end|>", "special": True, "lstrip": False},
        "461": {"content": "<IMG_CONTEXT>", "special": True},
    }
    template = "{% for m in messages %}{{ m.content }}{% endfor %}"
    auto_map = {"AutoTokenizer": ["tokenization_internlm2.InternLM2Tokenizer", None]}
    write(
        tmp_path, added_tokens_decoder=decoder, chat_template=template, auto_map=auto_map,
        tokenizer_class="InternLM2Tokenizer", pad_token="</s>", additional_special_tokens=["<|plugin|>"],
    )  # fmt: skip
    (tmp_path / "tokenization_internlm2.py").write_text("raise RuntimeError('code of a checkpoint was run')\n")
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<|plugin|><|im_end|><IMG_CONTEXT>") == [450, 460, 461]
    assert {"<|plugin|>", "<|im_end|>", "<IMG_CONTEXT>", "<s>", "</s>", "<unk>"} == set(tokenizer.special_tokens)
    assert (tokenizer.chat_template, tokenizer.vocab_size) == (template, 462)
    assert (tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.hf.pad_token) == (1, 2, "</s>")


def test_old_files_with_added_tokens(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_class="LlamaTokenizer", add_bos_token=False, pad_token=None)
    (tmp_path / "added_tokens.json").write_text('{"<pad>": 461, "<image>": 460}')
    (tmp_path / "special_tokens_map.json").write_text('{"pad_token": "<pad>"}')
    tokenizer = Tokenizer.load(tmp_path)
    assert tokenizer.encode("<image><pad>", add_special_tokens=True) == [460, 461]


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    write(tmp_path)
    shutil.copyfile(Path(seesay.demo.__file__).parent / "checkpoint" / "tokenizer.json", tmp_path / "tokenizer.json")
    assert Tokenizer.load(tmp_path).token_id("<|im_end|>") is not None


def test_a_vocabulary_and_merges_without_tokenizer_json(tmp_path: Path) -> None:
    """The files of Qwen2's slow tokenizer."""
    source = Path(seesay.demo.__file__).parent / "checkpoint"
    stored = json.loads((source / "tokenizer.json").read_text())
    model = stored["model"]
    (tmp_path / "vocab.json").write_text(json.dumps(model["vocab"]))
    merges = [pair if isinstance(pair, str) else " ".join(pair) for pair in model["merges"]]
    (tmp_path / "merges.txt").write_text("\n".join(["#version: 0.2", *merges]) + "\n")
    for name in ("config.json", "tokenizer_config.json"):
        shutil.copyfile(source / name, tmp_path / name)
    slow, fast = Tokenizer.load(tmp_path), Tokenizer.load(source)
    assert slow.special_tokens == fast.special_tokens
    for text in IDS["texts"]:
        assert slow.encode(text) == fast.encode(text)


def message(*fields: tuple[int, bytes | int]) -> bytes:
    """A protobuf message. Numbers below 128 only."""
    parts = []
    for number, value in fields:
        if isinstance(value, int):
            parts.append(bytes([number << 3, value]))
        else:
            size = len(value)
            sized = bytes([size]) if size < 128 else bytes([size & 127 | 128, size >> 7])
            parts.append(bytes([number << 3 | 2]) + sized + value)
    return b"".join(parts)


def piece(text: bytes, kind: int = 1, score: float = 0.0) -> tuple[int, bytes]:
    return 1, message((1, text)) + b"\x15" + struct.pack("<f", score) + message((3, kind))


@pytest.mark.parametrize(
    ("data", "reason"),
    [
        (b"", "it has no pieces"),
        (b"IQ== 0\nIg== 1\n", "it has no pieces"),
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "more than 10 bytes"),
        (b"\x0a\x7fabc", "truncated"),
        (b"\x0a", "truncated"),
        (b"\x0f", "wire type 7"),
        (message(piece(b"a"), piece(b"a")), "twice"),
        (message(piece(b"\xff")), "decode"),
        (message(piece(b"x" * 600)), "1 to 512 characters"),
        (message(piece(b"")), "1 to 512 characters"),
        (message(piece(b"a", score=float("nan"))), "and a score"),
        (message(piece(b"a"), (2, message((3, 4)))), "model type 4"),
        (message(piece(b"a"), (2, b"\xc0\x02\x07")), "unk_id 7"),
        (message(piece(b"a"), (3, message((2, 5)))), "charsmap"),
        (message((1, 5)), "where a message belongs"),
    ],
)
def test_damaged_files_are_refused(data: bytes, reason: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "tokenizer.model").write_bytes(data)
    with pytest.raises(CheckpointError, match=rf"tokenizer\.model: not a SentencePiece model: .*{reason}"):
        Tokenizer.load(tmp_path)


def test_random_damage_is_an_error_or_harmless(tmp_path: Path) -> None:
    data = (MODELS / "bpe.model").read_bytes()
    chance = random.Random(0)
    file = tmp_path / "tokenizer.model"
    for _ in range(200):
        damaged = bytearray(data[: chance.randrange(len(data))] if chance.random() < 0.3 else data)
        for _ in range(chance.randrange(1, 8)):
            damaged[chance.randrange(len(damaged))] = chance.randrange(256)
        file.write_bytes(damaged)
        try:
            read_sentencepiece(file)
        except CheckpointError:
            continue


@pytest.mark.parametrize(
    ("file", "content", "reason"),
    [
        ("added_tokens.json", '{"<image>": 999}', "'<image>' must have id 999, it gets 460"),
        ("added_tokens.json", '{"<image>": "x"}', "must have an id"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"x": "y"}}', "must map ids to tokens"),
        ("tokenizer_config.json", '{"added_tokens_decoder": {"460": {}}}', "must map ids to tokens"),
        ("tokenizer_config.json", "{", "not valid JSON"),
    ],
)
def test_damaged_files_beside_it_are_refused(file: str, content: str, reason: str, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / file).write_text(content)
    with pytest.raises(CheckpointError, match=reason):
        Tokenizer.load(tmp_path)


def test_a_hostile_vocabulary_takes_bounded_time(tmp_path: Path) -> None:
    """Long pieces that can be cut anywhere: every cut of every piece is a merge."""
    texts = [b"a" * size for size in range(1, 513)]
    file = tmp_path / "tokenizer.model"
    file.write_bytes(message(*(piece(text) for text in texts), (2, message((3, 2)))))
    began_s = time.thread_time()
    model = read_sentencepiece(file)
    model.to_tokenizer(renamed={}, adds_bos=False, adds_eos=False, only_first_prefix=False)
    assert time.thread_time() - began_s < 20


def test_pieces_of_too_many_characters_are_refused(tmp_path: Path) -> None:
    file = tmp_path / "tokenizer.model"
    file.write_bytes(message(*(piece(b"%0512d" % number) for number in range(8193))))
    with pytest.raises(CheckpointError, match="4194304 characters"):
        read_sentencepiece(file)


def test_a_folder_with_sentencepiece_alone_answers(tmp_path: Path) -> None:
    """A decoder whose only tokenizer file is tokenizer.model, and whose only template is that of its name."""
    from transformers import LlamaConfig, LlamaForCausalLM

    from seesay import EngineConfig, GenerationConfig, pipeline

    folder = write(tmp_path / "vicuna-7b-v1.5", legacy=False, tokenizer_class="LlamaTokenizer")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=464, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=2,
        max_position_embeddings=1024, bos_token_id=1, eos_token_id=2, initializer_range=0.3,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    model.save_pretrained(folder)
    greedy = GenerationConfig(max_new_tokens=8, do_sample=False, ignore_eos=True)
    text, ids = IDS["texts"][1], [1, *IDS["bpe"][1]]
    with torch.no_grad():
        expected = model.generate(torch.tensor([ids]), max_new_tokens=8, min_new_tokens=8, do_sample=False)
    with pipeline(str(folder), backend_config=EngineConfig(device_type="cpu", session_len=512)) as pipe:
        assert pipe(text, greedy, do_preprocess=False).token_ids == expected[0, len(ids) :].tolist()
        assert pipe.chat_template.name == "vicuna"
        assert pipe(text, greedy).finish_reason == "length"


@pytest.mark.parametrize("settings", [{"tokenizer_class": "LlamaTokenizer"}, {"tokenizer_class": "TokenizersBackend"}])
def test_a_folder_without_vocabulary_is_told_which_file_to_download(settings: dict[str, str], tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    with pytest.raises(CheckpointError) as raised:
        load_facts(tmp_path, trust_remote_code=False)
    assert str(raised.value).startswith(f"{tmp_path}: tokenizer.json is missing, ")
    assert str(raised.value).endswith(": download tokenizer.json")
