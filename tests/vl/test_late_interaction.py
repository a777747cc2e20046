"""ColPali, ColQwen2 and ColQwen2.5: the vectors of Transformers, and their scores, however a prompt is computed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
import torch
import transformers
from asking import make_message, make_picture
from enrolment import EMBEDDERS
from family_contract import edit_json
from safetensors.torch import load_file, save_file

from seesay import Pipeline, pipeline
from seesay.config import EngineConfig
from seesay.engine.front import embedding
from seesay.engine.front.embedding import compare, shape_embedding
from seesay.errors import CheckpointError, RequestError
from seesay.vl.registry import list_families

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning:transformers"),
    pytest.mark.filterwarnings("ignore::FutureWarning:transformers"),
]
QUERIES = ["the game", "what is in the frame of the picture?"]
PAGES = [make_picture(40, 60, 80), make_picture(75, 33, 3)]
Vectors = npt.NDArray[np.float32]


class Model(NamedTuple):
    """A pipeline, and the vectors and scores of Transformers for `QUERIES` and `PAGES`."""

    name: str
    path: Path
    pipe: Pipeline
    queries: list[Vectors]
    pages: list[Vectors]
    scores: Vectors


def embed_oracle(path: Path) -> tuple[list[Vectors], list[Vectors], Vectors]:
    kind = json.loads((path / "processor_config.json").read_text())["processor_class"].removesuffix("Processor")
    model = getattr(transformers, f"{kind}ForRetrieval").from_pretrained(path).eval()
    processor = getattr(transformers, f"{kind}Processor").from_pretrained(path)

    def run(inputs: Any) -> torch.Tensor:
        inputs.pop("labels", None)
        if "image_grid_thw" in inputs:
            # The positions of the published code and of the nested model; this version of Transformers leaves them out.
            inputs["position_ids"], _ = model.vlm.get_rope_index(
                input_ids=inputs["input_ids"],
                mm_token_type_ids=(inputs["input_ids"] == processor.image_token_id).long(),
                image_grid_thw=inputs["image_grid_thw"],
                attention_mask=inputs["attention_mask"],
            )
        with torch.inference_mode():
            vectors: torch.Tensor = model(**inputs).embeddings[0]
        return vectors

    queries = [run(processor.process_queries(text=[query])) for query in QUERIES]
    pages = [run(processor.process_images(images=[page])) for page in PAGES]
    scores = torch.stack([torch.cat([processor.score_retrieval([q], [p])[0] for p in pages]) for q in queries])
    return [query.numpy() for query in queries], [page.numpy() for page in pages], scores.numpy()


def make_config(name: str, **options: Any) -> EngineConfig:
    """Prompts are computed in pieces of 7 tokens, where they may be."""
    if name != "colpali":
        options = {"max_prefill_token_num": 7, **options}
    return EngineConfig(device_type="cpu", block_size=4, engine_process=False, **options)


@pytest.fixture(scope="module", params=EMBEDDERS)
def model(request: pytest.FixtureRequest, tiny_checkpoint: Callable[[str], Path]) -> Iterator[Model]:
    path = tiny_checkpoint(request.param)
    with pipeline(str(path), backend_config=make_config(request.param)) as pipe:
        yield Model(request.param, path, pipe, *embed_oracle(path))


def embed_page(pipe: Pipeline, page: Any, **options: Any) -> Any:
    return pipe.embed(("", page), do_preprocess=True, **options)


def check_close(found: list[Vectors], expected: list[Vectors]) -> None:
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.dtype == np.float32 and ours.shape == theirs.shape
        np.testing.assert_allclose(ours, theirs, atol=2e-5)


def test_every_embedder_is_tested() -> None:
    assert set(EMBEDDERS.values()) == {name for name, family in list_families().items() if not family.writes_text}


def test_vectors_of_transformers(model: Model) -> None:
    for _ in range(2):  # nothing comes from the prefix cache
        check_close(model.pipe.embed(QUERIES), model.queries)
        pages = model.pipe.embed([("", page) for page in PAGES], do_preprocess=True)
        check_close(pages, model.pages)
    check_close([model.pipe.embed(QUERIES[0]), embed_page(model.pipe, PAGES[1])], [model.queries[0], model.pages[1]])
    check_close(model.pipe.embed(QUERIES, pooling="tokens", do_preprocess=True), model.queries)


def test_scores_of_transformers(model: Model) -> None:
    queries, pages = model.pipe.embed(QUERIES), [embed_page(model.pipe, page) for page in PAGES]
    found = [[compare(query, page) for page in pages] for query in queries]
    np.testing.assert_allclose(found, model.scores, rtol=1e-4)


def test_prompts_of_many_rows_are_the_same_ones_alone(model: Model) -> None:
    prompts: list[Any] = [[make_message(page)] for page in PAGES] + [[make_message(query)] for query in QUERIES]
    found = model.pipe.embed(prompts * 3, do_preprocess=True)
    check_close(found, (model.pages + model.queries) * 3)


def test_dimensions_and_length(model: Model) -> None:
    [whole] = model.pipe.embed(QUERIES[:1])
    np.testing.assert_allclose(np.linalg.norm(whole, axis=1), 1, atol=1e-5)
    [cut] = model.pipe.embed(QUERIES[:1], dimensions=8)
    np.testing.assert_allclose(cut, shape_embedding(whole[:, :8], normalize=True), atol=1e-5)
    [long] = model.pipe.embed(QUERIES[:1], normalize=False)
    assert not np.allclose(np.linalg.norm(long, axis=1), 1, atol=1e-2)
    np.testing.assert_allclose(shape_embedding(long), whole, atol=1e-5)
    with pytest.raises(RequestError, match=r"dimensions must be in \[1, 24\]"):
        model.pipe.embed("a", dimensions=25)
    assert model.pipe.embed("a", pooling="mean").shape == (64,)


def test_typed_special_tokens_stay_text(model: Model) -> None:
    pad = model.pipe.tokenizer.template_variables["pad_token"]
    found = model.pipe.embed([[make_message(f"a{pad}b")]], do_preprocess=True)
    plain = model.pipe.embed([[make_message("ab")]], do_preprocess=True)
    assert len(found[0]) > len(plain[0]) + 1


def test_what_it_cannot_do_is_named(model: Model) -> None:
    answer = model.pipe("hello")
    assert "writes no text" in str(answer.error)
    for prompt in (("what?", PAGES[0]), ("", PAGES)):
        with pytest.raises(RequestError, match="the picture of one page alone, or a text alone"):
            model.pipe.embed(prompt, do_preprocess=True)


def test_too_many_vectors_are_refused(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(embedding, "MAX_NUMBERS", 24 * 30)
    with pytest.raises(RequestError, match="at most 30 tokens are taken"):
        model.pipe.embed("the game is in the frame " * 5)
    assert model.pipe.embed("the game is in the frame " * 5, pooling="last").shape == (64,)
    assert len(model.pipe.embed("a")) <= 30


OTHERS = {
    "colpali": [
        ("vlm.language_model.model.", "vlm.model.language_model."),
        ("vlm.vision_tower.", "vlm.vision_tower.vision_model."),
    ],
    "colqwen2": [("vlm.language_model.", "vlm.model."), ("vlm.visual.", "vlm.visual.")],
    "colqwen2_5": [("vlm.language_model.", "vlm.model.language_model."), ("vlm.visual.", "vlm.model.visual.")],
}
"""Beginnings of names as other versions of Transformers write them."""


def test_other_names_of_tensors(model: Model, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = shutil.copytree(model.path, tmp_path / "other")
    tensors = load_file(path / "model.safetensors")
    for new, old in OTHERS[model.name]:
        tensors = {name.replace(new, old, 1) if name.startswith(new) else name: v for name, v in tensors.items()}
    table = next(value for name, value in tensors.items() if name.endswith("embed_tokens.weight"))
    tensors["vlm.lm_head.weight"] = table.clone()
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pipeline(str(path), backend_config=make_config(model.name)) as pipe:
        check_close([pipe.embed(QUERIES[0]), embed_page(pipe, PAGES[0])], [model.queries[0], model.pages[0]])
    assert not [record for record in caplog.records if record.name == "seesay" and record.levelname == "WARNING"]


def test_two_ranks_and_another_process(model: Model) -> None:
    if model.name != "colqwen2":
        pytest.skip("one of them is enough")
    config = EngineConfig(device_type="cpu", block_size=4, tp=2)
    with pipeline(str(model.path), backend_config=config) as pipe:
        check_close([pipe.embed(QUERIES[0]), embed_page(pipe, PAGES[0])], [model.queries[0], model.pages[0]])


@pytest.mark.parametrize(
    ("file", "changes", "message"),
    [
        ("config.json", {"embedding_dim": 0}, r"embedding_dim must be in \[1, 65536\], got 0"),
        ("config.json", {"embedding_dim": "x"}, "embedding_dim"),
        ("config.json", {"embedding_dim": 23}, "embedding_proj_layer"),
        ("config.json", {"vlm_config": 5}, "vlm_config must be an object"),
        ("config.json", {"vlm_config": {"model_type": "llama"}}, "vlm_config.model_type must be one of paligemma"),
        ("processor_config.json", {"query_prefix": 5}, "must be texts"),
        ("processor_config.json", {"visual_prompt_prefix": "no picture"}, "must have the marker of a picture"),
    ],
)
def test_damaged_folders_are_named(
    tiny_checkpoint: Callable[[str], Path], tmp_path: Path, file: str, changes: dict[str, Any], message: str
) -> None:
    path = edit_json(tiny_checkpoint("colqwen2"), tmp_path / "damaged", file, lambda data: data.update(changes))
    with pytest.raises(CheckpointError, match=message):
        pipeline(str(path), backend_config=make_config("colqwen2"))
