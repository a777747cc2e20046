"""Clips of one moving shape, and possibly one that stays still."""

from __future__ import annotations

import random
from dataclasses import dataclass

from seesay.demo import phrasing as ph
from seesay.demo.drawing import Picture, Thing, draw_things, pick_background, pick_rgb
from seesay.demo.example import CLIP_GRIDS, Canvas, Example, Turn, pick_canvas, pick_name
from seesay.demo.phrasing import ask
from seesay.demo.vocabulary import DIRECTIONS, with_article


@dataclass(frozen=True, slots=True, kw_only=True)
class Motion:
    """A drawn clip: the moving shape, its step (sign in x and y, y downwards), and the shape that stays still, if
    any."""

    frames: tuple[Picture, ...]
    mover: Thing
    step: tuple[int, int]
    bystander: Thing | None

    @property
    def verb(self) -> str:
        return f"moves {DIRECTIONS[self.step]}" if self.step in DIRECTIONS else "stays still"

    @property
    def described(self) -> str:
        text = f"{with_article(self.mover.name).capitalize()} {self.verb}"
        if self.bystander:
            text += f" and {with_article(self.bystander.name)} stays still"
        return f"{text}."


def _pick_travel(rng: random.Random, step: tuple[int, int]) -> tuple[float, float]:
    """Return how far a thing moves across the picture, in shares of its width and height. It sways a little on the
    axis on which it does not move."""
    across, down = (sign * rng.uniform(0.35, 0.6) for sign in step)
    if step[0] == 0 and step[1] != 0:
        across = rng.uniform(-0.03, 0.03)
    elif step[1] == 0 and step[0] != 0:
        down = rng.uniform(-0.03, 0.03)
    return across, down


def draw_motion(rng: random.Random) -> Motion:
    canvas = pick_canvas(rng, CLIP_GRIDS)
    num_frames = rng.choice((4, 5, 6, 7, 8, 8))
    step = rng.choice(tuple(DIRECTIONS)) if rng.random() < 0.92 else (0, 0)
    travel = _pick_travel(rng, step)
    side = min(canvas.size)
    colour, shape = pick_name(rng)
    radius = rng.uniform(max(0.09 * side, 11.5 * canvas.scale), 0.17 * side)
    starts = []
    for length, share in zip(canvas.size, travel, strict=True):
        low, high = radius - min(0.0, share * length), length - radius - max(0.0, share * length)
        starts.append(rng.uniform(min(low, high), max(low, high)))
    rgb = pick_rgb(rng, colour)
    mover_path = [
        Thing(
            colour=colour,
            shape=shape,
            x=starts[0] + travel[0] * canvas.width * i / (num_frames - 1),
            y=starts[1] + travel[1] * canvas.height * i / (num_frames - 1),
            radius=radius,
            rgb=rgb,
        )
        for i in range(num_frames)
    ]
    bystander = _place_bystander(rng, canvas, mover_path) if rng.random() < 0.35 else None
    background = pick_background(rng)
    frames = tuple(
        draw_things(canvas.size, background, [thing] + ([bystander] if bystander else [])) for thing in mover_path
    )
    return Motion(frames=frames, mover=mover_path[0], step=step, bystander=bystander)


def make_motion(rng: random.Random) -> Example:
    drawn = draw_motion(rng)
    mover, bystander, motion = drawn.mover, drawn.bystander, drawn.verb
    reference = mover.name if bystander or rng.random() < 0.4 else rng.choice((mover.shape, "shape", "object"))
    turns: list[Turn] = [
        (ask(rng, ph.DIRECTION, thing=reference), f"The {reference} {motion}."),
        (ask(rng, ph.DESCRIBE_CLIP), drawn.described),
    ]
    if bystander is None:
        turns.append((ask(rng, ph.COLOUR_OF_ONLY, colour="colour"), f"It is {mover.colour}."))
        turns.append((ask(rng, ph.SHAPE_OF_ONLY), f"It is {with_article(mover.shape)}."))
    else:
        turns.append((ask(rng, ph.DIRECTION, thing=bystander.name), f"The {bystander.name} stays still."))
    rest = turns[1:]
    rng.shuffle(rest)
    return Example(task="motion", turns=(turns[0], *rest), frames=drawn.frames)


def _place_bystander(rng: random.Random, canvas: Canvas, path: list[Thing]) -> Thing | None:
    """Return a shape that does not touch the path of the moving one, or None if there is no room."""
    colour, shape = pick_name(rng)
    if (colour, shape) == (path[0].colour, path[0].shape):
        return None
    radius = path[0].radius * rng.uniform(0.8, 1.1)
    for _ in range(30):
        x, y = rng.uniform(radius, canvas.width - radius), rng.uniform(radius, canvas.height - radius)
        if all(((x - t.x) ** 2 + (y - t.y) ** 2) ** 0.5 > 1.1 * (radius + t.radius) for t in path):
            return Thing(colour=colour, shape=shape, x=x, y=y, radius=radius, rgb=pick_rgb(rng, colour))
    return None
