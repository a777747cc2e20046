"""`/v1/rerank` and `/v1/score`: the cosines of what `/v1/embeddings` returns."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from live_server import LiveServer, make_data_url

TEXTS = ["the game", "a frame in the game", "something else entirely"]


def picture(seed: int) -> list[dict[str, Any]]:
    return [
        {"type": "image_url", "image_url": {"url": make_data_url(seed=seed)}},
        {"type": "text", "text": "a picture"},
    ]


def embed(server: LiveServer, items: list[Any], **options: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    """Unit vectors of single requests."""
    rows = []
    for item in items:
        answer = server.post("/v1/embeddings", {"input": item, "normalize": True, **options})
        assert answer.status_code == 200, answer.text
        rows.append(answer.json()["data"][0]["embedding"])
    return np.array(rows)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("documents", [TEXTS, [picture(1), TEXTS[0], picture(2)]], ids=["texts", "pictures"])
def test_documents_are_sorted_by_their_cosine(server: LiveServer, documents: list[Any], pooling: str) -> None:
    body = {"query": TEXTS[0], "documents": documents, "pooling": pooling}
    answer = server.post("/v1/rerank", body)
    assert answer.status_code == 200, answer.text
    vectors = embed(server, [TEXTS[0], *documents], pooling=pooling)
    expected = vectors[1:] @ vectors[0]
    results = answer.json()["results"]
    assert sorted(each["index"] for each in results) == [0, 1, 2]
    for each in results:
        assert each["relevance_score"] == pytest.approx(expected[each["index"]], abs=1e-4)
    scores = [each["relevance_score"] for each in results]
    assert scores == sorted(scores, reverse=True)
    assert answer.json()["usage"]["total_tokens"] > 0 and "document" not in results[0]


def test_the_best_and_the_documents_may_be_asked_for(server: LiveServer) -> None:
    body = {"query": TEXTS[1], "documents": TEXTS, "top_n": 1, "return_documents": True}
    [best] = server.post("/v1/rerank", body).json()["results"]
    assert best["index"] == 1 and best["relevance_score"] == pytest.approx(1, abs=1e-4)
    assert best["document"] == {"text": TEXTS[1]}


def test_pairs_are_scored(server: LiveServer) -> None:
    vectors = embed(server, TEXTS)
    one = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS}).json()["data"]
    assert [each["score"] for each in one] == pytest.approx(list(vectors @ vectors[0]), abs=1e-4)
    each = server.post("/v1/score", {"text_1": TEXTS, "text_2": TEXTS[::-1]}).json()["data"]
    assert [pair["score"] for pair in each] == pytest.approx(list((vectors * vectors[::-1]).sum(1)), abs=1e-4)
    single = server.post("/v1/score", {"text_1": TEXTS[0], "text_2": TEXTS[1]}).json()
    assert single["object"] == "list" and len(single["data"]) == 1


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/rerank", {"query": "a", "documents": []}, "documents"),
        ("/v1/rerank", {"query": "a", "documents": "a"}, "documents"),
        ("/v1/rerank", {"query": 5, "documents": ["a"]}, "query"),
        ("/v1/rerank", {"query": "a", "documents": ["a", 5]}, "documents[1]"),
        ("/v1/rerank", {"query": "a", "documents": [[{"type": "zoo"}]]}, "documents[0][0].type"),
        ("/v1/rerank", {"query": "a", "documents": ["a"], "top_n": 0}, "top_n"),
        ("/v1/rerank", {"documents": ["a"]}, "query"),
        ("/v1/score", {"text_1": ["a", "b"], "text_2": ["a"]}, "text_1"),
        ("/v1/score", {"text_1": "a", "text_2": []}, "text_2"),
    ],
)
def test_errors_name_the_field(server: LiveServer, path: str, body: dict[str, Any], param: str) -> None:
    answer = server.post(path, body)
    assert answer.status_code == 400, answer.text
    assert answer.json()["error"]["param"] == param, answer.text
