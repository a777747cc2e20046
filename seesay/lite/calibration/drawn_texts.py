"""Texts that a program writes, for calibration: tables, CSV, JSON, YAML, logs, sums and equations, one kind in turn.

Their words and numbers are drawn at random from a seed, so they are the same on every machine.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import datetime, timedelta

import yaml

_PLACES = ("Aarhus", "Bilbao", "Cusco", "Dakar", "Essen", "Fukuoka", "Guelph", "Hobart", "Izmir", "Jaipur", "Kraków")
_PEOPLE = ("Ada", "Bruno", "Chidi", "Dalia", "Emre", "Fatou", "Goran", "Hana", "Ivo", "Jun", "Kirsi", "Lupe", "Mei")
_GOODS = ("bolts", "cable 3 m", "paper A4", "ink, black", "filter", "lamp E27", "gloves (L)", "hinge", "valve ½″")
_FIELDS = ("title", "status", "owner", "price", "tags", "created_at", "size", "enabled", "note", "parent", "ratio")
_PARTS = ("db.pool", "http.access", "auth", "cache", "scheduler", "mail.queue", "billing.worker")
_EVENTS = (
    "connection reset by peer",
    "GET /items/{n} 200",
    "retry {n} of 5",
    "took {n} ms",
    "token expired",
    "evicted {n}",
)
_LETTERS = "abkmnpqrstxyz"


def draw_texts(count: int, seed: int = 0) -> list[str]:
    """Return `count` texts of a few hundred to two thousand characters."""
    return [_KINDS[index % len(_KINDS)](random.Random(f"seesay-lite/{seed}/{index}")) for index in range(count)]


def _draw_table(rng: random.Random) -> str:
    heads = ("item", "place", "pieces", "unit price", "total", "checked by")
    rows = [" | ".join(heads), " | ".join("---" for _ in heads)]
    for _ in range(rng.randint(6, 14)):
        pieces, cents = rng.randint(1, 400), rng.randint(5, 99_999)
        cells = (rng.choice(_GOODS), rng.choice(_PLACES), str(pieces), f"{cents / 100:,.2f}")
        rows.append(" | ".join((*cells, f"{pieces * cents / 100:,.2f}", rng.choice(_PEOPLE))))
    return "\n".join(f"| {row} |" for row in rows)


def _draw_csv(rng: random.Random) -> str:
    day = datetime(2020, 1, 1) + timedelta(days=rng.randrange(1500))
    lines = ["date,station,temperature_c,humidity_pct,rain_mm"]
    for hour in range(rng.randint(12, 30)):
        moment = day + timedelta(hours=hour)
        numbers = f"{rng.gauss(12, 8):.1f},{rng.randint(20, 100)},{max(0.0, rng.gauss(0, 2)):.1f}"
        lines.append(f"{moment:%Y-%m-%dT%H:%M},{rng.choice(_PLACES)},{numbers}")
    return "\n".join(lines)


def _draw_value(rng: random.Random, depth: int) -> object:
    kind = rng.randrange(8 if depth else 5)
    if kind < 3:
        return (rng.choice(_GOODS), rng.randint(-5, 10_000), round(rng.uniform(0, 1), 4))[kind]
    if kind < 5:
        return rng.choice((True, False, None, f"{rng.getrandbits(48):012x}", rng.choice(_PLACES)))
    if kind == 5:
        return [_draw_value(rng, depth - 1) for _ in range(rng.randint(0, 4))]
    return {name: _draw_value(rng, depth - 1) for name in rng.sample(_FIELDS, rng.randint(1, 5))}


def _draw_object(rng: random.Random) -> dict[str, object]:
    return {name: _draw_value(rng, 3) for name in rng.sample(_FIELDS, 8)}


def _draw_json(rng: random.Random) -> str:
    return json.dumps(_draw_object(rng), indent=rng.choice((None, 2, 4)), ensure_ascii=False)


def _draw_json_lines(rng: random.Random) -> str:
    return "\n".join(json.dumps(_draw_value(rng, 2), ensure_ascii=False) for _ in range(rng.randint(8, 20)))


def _draw_yaml(rng: random.Random) -> str:
    return str(yaml.safe_dump(_draw_object(rng), allow_unicode=True, sort_keys=False))


def _draw_log(rng: random.Random) -> str:
    moment = datetime(2024, 5, 1) + timedelta(seconds=rng.randrange(10_000_000))
    lines = []
    for _ in range(rng.randint(10, 24)):
        moment += timedelta(milliseconds=rng.randint(1, 90_000))
        event = rng.choice(_EVENTS).format(n=rng.randint(1, 5000))
        level = rng.choice(("INFO ", "INFO ", "DEBUG", "WARN ", "ERROR"))
        place = f"10.{rng.randrange(256)}.{rng.randrange(256)}.{rng.randrange(256)}"
        lines.append(f"{moment:%Y-%m-%d %H:%M:%S.%f} {level} [{rng.choice(_PARTS)}] {place} {event}")
    return "\n".join(lines)


def _draw_sums(rng: random.Random) -> str:
    lines = []
    for _ in range(rng.randint(8, 16)):
        a, b, c = rng.randint(2, 999), rng.randint(2, 99), rng.randint(1, 99)
        lines.append(
            rng.choice(
                (
                    f"{a} × {b} + {c} = {a * b} + {c} = {a * b + c}",
                    f"{a} ÷ {b} = {a // b} remainder {a % b}, because {b} × {a // b} = {a - a % b}",
                    f"({a} − {b}) · {c} = {a - b} · {c} = {(a - b) * c}",
                    f"{c} % of {a} is {c} / 100 · {a} = {c * a / 100:g}",
                    f"{a} in binary is {a:b}, in hexadecimal {a:x}.",
                )
            )
        )
    return "\n".join(lines)


def _draw_equations(rng: random.Random) -> str:
    texts = []
    for number in range(1, rng.randint(4, 7)):
        name, root, slope = rng.choice(_LETTERS), rng.randint(-12, 12), rng.randint(2, 9)
        offset = rng.randint(1, 40)
        right = slope * root + offset
        texts.append(
            f"{number}. Solve ${slope}{name} + {offset} = {right}$. Subtracting {offset} gives "
            f"${slope}{name} = {right - offset}$, and dividing by {slope} gives ${name} = {root}$. "
            f"Check: ${slope} \\cdot ({root}) + {offset} = {right}$."
        )
    return "\n\n".join(texts)


_KINDS: tuple[Callable[[random.Random], str], ...] = (
    _draw_table, _draw_json, _draw_sums, _draw_csv, _draw_yaml, _draw_equations, _draw_log, _draw_json_lines,
)  # fmt: skip
