"""The embeddings of a decoder's tokens, of which each rank has some."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from seesay.checkpoint.parts import Axis, Part, Weight
from seesay.llm.models.division import Division
from seesay.llm.models.spec import DecoderConfig


class EmbeddingTable:
    """A rank's rows of the table of embeddings: those of the vocabulary, then those that were added to it. With tied
    embeddings they are those of the head. weight: the rows."""

    def __init__(self, config: DecoderConfig, division: Division) -> None:
        assert not (config.tied_embeddings and config.num_added_tokens)
        self._ranks = division.ranks
        counts = {"weight": config.vocab_size, "added": config.num_added_tokens}
        if config.joins_added:
            counts = {"weight": sum(counts.values())}
        rows = division.tokens(sum(counts.values()))
        self._first = rows.start
        width = Axis(dim=1, size=config.hidden_size)
        parts, start = [], 0
        for name, count in counts.items():
            own = range(*(min(max(row - start, 0), count) for row in (rows.start, rows.stop)))
            if count:
                axis = Axis(dim=0, size=count, picks=(own,))
                parts.append(Part(tensor=f"embed_tokens.{name}", axes=(axis, width)))
            start += count
        self.weight = Weight(parts=tuple(parts))

    def look_up(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the embeddings [T, hidden] of tokens int64 [T]."""
        rows = self.weight.data
        if self._ranks is None:
            return F.embedding(token_ids, rows)
        own_ids = token_ids - self._first
        found = F.embedding(own_ids.clamp(0, len(rows) - 1), rows)
        found.masked_fill_(((own_ids < 0) | (own_ids >= len(rows)))[:, None], 0.0)
        return self._ranks.sum(found) if len(found) else found
