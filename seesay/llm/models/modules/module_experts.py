"""Says which tensor of an expert is at fault. Transformers joins the experts of a layer while it reads them, and its
errors name what they would have been joined to, or nothing."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from seesay.checkpoint.source import TensorSource

_NAME = re.compile(r"(.*experts\.)(\d+)(\..+)")
_COUNTS = ("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts")
"""Names of the field with the number of experts of a layer."""


def describe_uneven_experts(source: TensorSource, config: object) -> str | None:
    """Return what is wrong with the first tensor of an expert that the others of its layer or of other layers have, or
    have in another shape; None if there is none."""
    found = _find_experts(source)
    most = Counter[str]()
    for (_, part), numbers in found.items():
        most[part] = max(most[part], len(numbers))
    told = next((count for name in _COUNTS if isinstance(count := getattr(config, name, None), int)), 0)
    for (layer, part), numbers in sorted(found.items()):
        expected = range(max(max(numbers) + 1, most[part], told))
        if missing := sorted(set(expected) - set(numbers)):
            return f"tensor '{layer}{missing[0]}{part}' is missing from the checkpoint"
    for (layer, part), numbers in sorted(found.items()):
        [(shape, _)] = Counter(numbers.values()).most_common(1)
        for number, other in sorted(numbers.items()):
            if other != shape:
                return f"tensor '{layer}{number}{part}' has shape {list(other)}, and other experts have {list(shape)}"
    return None


def _find_experts(source: TensorSource) -> Mapping[tuple[str, str], dict[int, tuple[int, ...]]]:
    """Return the shapes of the tensors of numbered experts, by the beginning of their names and the end, and by
    number."""
    found: dict[tuple[str, str], dict[int, tuple[int, ...]]] = defaultdict(dict)
    for name in source.tensor_names():
        if match := _NAME.fullmatch(name):
            layer, number, part = match.groups()
            found[layer, part][int(number)] = tuple(source.find(name).shape)
    return found
