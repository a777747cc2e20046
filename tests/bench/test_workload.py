"""The work is the same as when the peers were measured."""

from __future__ import annotations

import hashlib

from seesay.bench.workload import Request, image_requests, median_time_s, shared_image_requests, text_requests


def digest(requests: list[Request]) -> str:
    """Of texts, pixels and lengths, in their order."""
    sha = hashlib.sha256()
    for text, images, num_output_tokens in requests:
        sha.update(f"{text}|{num_output_tokens}|".encode())
        for image in images:
            sha.update(repr(image.size).encode() + image.tobytes())
    return sha.hexdigest()[:16]


def test_texts_and_pictures_are_those_that_the_peers_got() -> None:
    assert digest(text_requests(8, 100, 16, seed=9)) == "738ad76fb823e257"
    assert digest(text_requests()) == "c38ccf4512d1b5e3"
    assert digest(image_requests(4, num_output_tokens=16, seed=10)) == "90625e3d0643aa91"
    assert digest(image_requests(2, side_px=56)) == "64117755828bfb34"
    assert digest(shared_image_requests(2, num_turns=2)) == "8100e2ff1c784b1f"


def test_shared_pictures_are_asked_about_in_turns() -> None:
    requests = shared_image_requests(3, num_turns=2, side_px=28)
    assert [request.images[0] for request in requests[:3]] == [request.images[0] for request in requests[3:]]
    assert len({request.text for request in requests}) == 6


def test_median_time_leaves_the_warm_up_out() -> None:
    calls: list[int] = []
    assert median_time_s(lambda: calls.append(1), 3, 2) >= 0
    assert len(calls) == 5
