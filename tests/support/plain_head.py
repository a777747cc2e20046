"""What an EAGLE-3 head computes."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import torch.nn.functional as F
from safetensors.torch import load_file


class PlainHead:
    """The computation of a head for one sequence without a cache, by torch's own functions."""

    def __init__(self, folder: Path, table: torch.Tensor) -> None:
        """table: the embeddings of the model."""
        self.config = json.loads((folder / "config.json").read_text())
        self.tensors = load_file(folder / "model.safetensors")
        self.table = self.tensors.get("embed_tokens.weight", table).float()

    def _norm(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return F.rms_norm(x, x.shape[-1:], self.tensors[f"{name}.weight"].float(), self.config["rms_norm_eps"])

    def _multiply(self, x: torch.Tensor, name: str) -> torch.Tensor:
        return x @ self.tensors[f"{name}.weight"].float().T

    def _turn(self, x: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Rotate [T, heads, dim] by positions [T] or, by sections, [3, T]."""
        dim = x.shape[-1]
        frequencies = self.config["rope_theta"] ** -(torch.arange(0, dim, 2, dtype=torch.float64) / dim)
        if sections := (self.config.get("rope_scaling") or {}).get("mrope_section"):
            rows = torch.cat([torch.full((count,), row) for row, count in enumerate(sections)])
            angles = positions.double().expand(3, -1)[rows].T * frequencies
        else:
            angles = positions.double()[:, None] * frequencies
        cos, sin = angles.cos().float()[:, None], angles.sin().float()[:, None]
        first, second = x.chunk(2, dim=-1)
        return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)

    def _compute(
        self, tokens: torch.Tensor, states: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return logits [known] behind the last place, and its state."""
        config, layer = self.config, "midlayer"
        normed = self._norm(states, f"{layer}.hidden_norm")
        joined = torch.cat((self._norm(self.table[tokens], f"{layer}.input_layernorm"), normed), dim=-1)
        count, dim = len(tokens), config["head_dim"]
        query, key, value = (
            self._multiply(joined, f"{layer}.self_attn.{name}_proj").view(count, -1, dim) for name in "qkv"
        )
        query, key = self._turn(query, positions), self._turn(key, positions)
        key, value = (x.repeat_interleave(query.shape[1] // key.shape[1], dim=1) for x in (key, value))
        scores = torch.einsum("qhd,khd->hqk", query, key) * dim**-0.5
        scores += torch.full((count, count), -torch.inf).triu(1)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), value).flatten(1)
        residual = normed if config.get("norm_before_residual") else states
        residual = residual + self._multiply(attended, f"{layer}.self_attn.o_proj")
        x = self._norm(residual, f"{layer}.post_attention_layernorm")
        inner = F.silu(self._multiply(x, f"{layer}.mlp.gate_proj")) * self._multiply(x, f"{layer}.mlp.up_proj")
        own = (residual + self._multiply(inner, f"{layer}.mlp.down_proj"))[-1]
        hidden = self._norm(own, "norm")
        return self._multiply(hidden, "lm_head"), hidden if config.get("norm_output") else own

    @torch.inference_mode()
    def join(self, given: torch.Tensor) -> torch.Tensor:
        """Return the states that tokens take of the model's [T, 3 · hidden]."""
        if self.config.get("norm_before_fc"):
            given = self._norm(given, "input_norm")
        if self.config.get("fc_norm"):
            parts = given.chunk(3, dim=-1)
            given = torch.cat([self._norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)], dim=-1)
        return self._multiply(given, "fc")

    @torch.inference_mode()
    def find_gaps(
        self, token_ids: list[int], states: torch.Tensor, positions: torch.Tensor, proposed: tuple[int, ...]
    ) -> list[float]:
        """How much less likely proposed tokens are than the likeliest, by their logits. states [T - 1, hidden]: those
        that are taken at all places but the last. positions: those of the model, of all tokens and the proposed ones.
        """
        known, gaps = list(token_ids), list[float]()
        known_ids = (self.tensors["d2t"] + torch.arange(len(self.tensors["d2t"]))).tolist()
        for token_id in proposed:
            count = len(known) - 1
            logits, own = self._compute(torch.tensor(known[1:]), states, positions[..., :count])
            gaps.append(float(logits.max() - logits[known_ids.index(token_id)]))
            known.append(token_id)
            states = torch.cat((states, own[None]))
        return gaps
