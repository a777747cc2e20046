"""Find the pages of a document that answer a question, by how they look: no text is extracted.

    pip install 'seesay[documents]'
    python examples/search_pages.py report.pdf "how did sales develop?" --model vidore/colqwen2-v1.0-hf

Each page is a picture with a vector for each of its tokens, the question has one for each of its own, and MaxSim says
how near they are (docs/embeddings.md, "Late interaction"). Any model makes such vectors; those of ColPali and ColQwen2
were trained for it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from seesay import EngineConfig, Pipeline, load_document, pipeline
from seesay.errors import SeesayError


class Found(NamedTuple):
    """A page, and how near it is to the question."""

    score: float
    number: int


def search(pipe: Pipeline, file: str, question: str, *, pages: str | None = None, dpi: int = 144) -> list[Found]:
    """Return the pages of a document, the nearest to the question first."""
    wanted = pipe.embed(question, pooling="tokens")
    images = load_document(file, pages=pages, dpi=dpi)
    vectors = pipe.embed([("", page.image) for page in images], pooling="tokens", do_preprocess=True)
    scores = [float((wanted @ page.T).max(axis=1).sum()) for page in vectors]
    return [Found(scores[index], images[index].number) for index in np.argsort(scores)[::-1]]


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the best pages. Returns the exit status."""
    parser = argparse.ArgumentParser(description="Find the pages of a document that answer a question.")
    parser.add_argument("file", help="a PDF, or a TIFF of several pages")
    parser.add_argument("question")
    parser.add_argument("--model", default="seesay-demo", help="a folder or an id on the hub (default: %(default)s)")
    parser.add_argument("--pages", help='pages to look at, such as "1-3,7" (default: all)')
    parser.add_argument("--dpi", type=int, default=144, help="pixels per inch (default: %(default)s)")
    parser.add_argument("--top", type=int, default=3, help="pages to print (default: %(default)s)")
    parser.add_argument("--device", default="auto", help="cuda, cpu, … (default: %(default)s)")
    options = parser.parse_args(arguments)
    if options.top < 1:
        parser.error(f"--top must be positive, got {options.top}")
    try:
        with pipeline(options.model, backend_config=EngineConfig(device_type=options.device)) as pipe:
            found = search(pipe, options.file, options.question, pages=options.pages, dpi=options.dpi)
    except SeesayError as error:
        print(error, file=sys.stderr)
        return 1
    for score, number in found[: options.top]:
        print(f"page {number:4d}   {score:8.3f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
