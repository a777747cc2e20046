"""Turn conversations into packs: fixed-size arrays that hold many conversations end to end.

A pack has room for `MAX_PATCHES` image patches and `MAX_TOKENS` text tokens. Attention is kept within a window, a
frame or a conversation by cumulative lengths (`cu_*`), so pictures of any size share a pack and every pack has the
same shape. Worker processes draw and pack into memory that the trainer reads without copying. No torch here.
"""

from __future__ import annotations

import functools
import math
import mmap
import multiprocessing as mp
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image
from tokenizers import Tokenizer

from demo_training.talks import TALK_TASKS, make_talk
from seesay.demo.drawing import Picture
from seesay.demo.example import CELL_PX, IMAGE_PIXELS, fit_size
from seesay.demo.scenes import CLIP_FPS, FIRST_EVALUATION_SEED, SKILLS, TASKS, Example, make_example, training_seed
from seesay.demo.vocabulary import COLOURS, GLYPHS, SHAPES

PATCH_PX = 14
MERGE = CELL_PX // PATCH_PX
WINDOW_CELLS = 4
TEMPORAL_PATCH = 2
PATCH_VALUES = 3 * TEMPORAL_PATCH * PATCH_PX**2
TOKENS_PER_SECOND = 1
CLIP_PIXELS = (16 * CELL_PX**2, 36 * CELL_PX**2)
"""Fewest and most pixels of a clip's frame."""

MAX_PATCHES = 8192
MAX_TOKENS = 6144
MAX_WINDOWS = 640
MAX_FRAMES = 160
MAX_CONVERSATIONS = 160
LONGEST_WINDOW = (WINDOW_CELLS * MERGE) ** 2
LONGEST_FRAME = IMAGE_PIXELS[1] // PATCH_PX**2
LONGEST_CONVERSATION = 1024

SYSTEM_PROMPT = "You are a helpful assistant."
OTHER_SYSTEM_PROMPTS = (
    "You are a helpful assistant that sees pictures.",
    "Answer briefly.",
    "Be kind.",
    "You see images.",
)
TASK_SHARES = {
    "describe": 12, "count": 14, "attribute": 31, "read": 14, "spell": 7, "chart": 18, "motion": 6, "compare": 11,
    "arithmetic": 3, "plain": 1, "chat": 3,
}  # fmt: skip

TALK_SHARES = {
    "describe": 10, "count": 7, "attribute": 25, "read": 9, "chart": 18, "motion": 12, "compare": 18,
    "arithmetic": 8, "follow_up": 12, "chat": 34, "photo": 3, "group": 28,
}  # fmt: skip
SHARE_OF_TALKS = 0.85
"""Share of conversations from the grammar; the others keep to the few wordings of `phrasing`."""
SKILL_SHARES = {"page": 45, "find": 48, "count_pages": 7}
SHARE_OF_SKILLS = 0.25
"""Share of conversations about `SKILLS`."""
REPORTED_TASKS = (*TASKS, *SKILLS, *(f"unseen {task}" for task in (*TALK_TASKS, *SKILLS)))
"""The reports of validation: wordings of the first training, then held-out forms."""

COLOUR_IDS = {name: i for i, name in enumerate(COLOURS, start=1)} | {"": 0}
SHAPE_IDS = {name: i for i, name in enumerate(SHAPES, start=1)} | {"": 0}
GLYPH_IDS = {glyph: i for i, glyph in enumerate(GLYPHS, start=1)} | {"": 0}

Array = npt.NDArray[Any]

FIELDS: dict[str, tuple[type[np.generic], tuple[int, ...]]] = {
    "patches": (np.uint8, (MAX_PATCHES, PATCH_VALUES)),
    "patch_positions": (np.int32, (MAX_PATCHES, 2)),
    "patch_labels": (np.int32, (MAX_PATCHES, 3)),
    "patch_boxes": (np.int16, (MAX_PATCHES, 4)),
    "cu_windows": (np.int32, (MAX_WINDOWS,)),
    "cu_frames": (np.int32, (MAX_FRAMES,)),
    "cu_conversations": (np.int32, (MAX_CONVERSATIONS,)),
    "token_ids": (np.int32, (MAX_TOKENS,)),
    "positions": (np.int32, (MAX_TOKENS, 3)),
    "vision_rows": (np.int32, (MAX_TOKENS,)),
    "targets": (np.int32, (MAX_TOKENS,)),
    "answer_ids": (np.int32, (MAX_TOKENS,)),
    "answer_tasks": (np.int32, (MAX_CONVERSATIONS,)),
}
"""A pack's arrays, type and shape. Patches lie in window order; `patch_positions` is (row, column), `patch_labels` is
(colour, shape, glyph), `patch_boxes` how many pixels the sides of the shape there (left, top, right, bottom) are from
the patch's centre, 0 without a shape; `vision_rows` names the merged patch whose embedding replaces a token's, or -1;
`targets` is the next token where it belongs to an answer, else -1; `answer_ids` numbers the measured answer of each
conversation, -1 elsewhere; `answer_tasks` is the index of its task in `REPORTED_TASKS`, -1 for none. Measured is the
answer to the turn that its example names, mostly the first."""

ALIGNMENT = 64


def _offsets() -> tuple[dict[str, tuple[int, int]], int]:
    spans, end = {}, 0
    for name, (dtype, shape) in FIELDS.items():
        num_bytes = math.prod(shape) * np.dtype(dtype).itemsize
        spans[name] = (end, end + num_bytes)
        end += -(-num_bytes // ALIGNMENT) * ALIGNMENT
    return spans, end


FIELD_SPANS, PACK_BYTES = _offsets()
"""The range (first byte, end) of each field in a pack's memory, and the size of a pack."""


def pack_views(memory: mmap.mmap | Array, offset: int = 0) -> dict[str, Array]:
    """The fields of the pack that starts at byte `offset` of `memory`, as arrays over that memory."""
    views = {}
    for name, (dtype, shape) in FIELDS.items():
        start = offset + FIELD_SPANS[name][0]
        views[name] = np.frombuffer(memory, dtype, math.prod(shape), start).reshape(shape)
    return views


# --- vision -----------------------------------------------------------------------------------------------------


@functools.lru_cache(maxsize=1024)
def window_order(rows: int, columns: int) -> tuple[Array, tuple[int, ...]]:
    """The cells of a grid, window by window, and the number of cells in each window."""
    cells = np.arange(rows * columns).reshape(rows, columns)
    windows = [
        cells[y : y + WINDOW_CELLS, x : x + WINDOW_CELLS].reshape(-1)
        for y in range(0, rows, WINDOW_CELLS)
        for x in range(0, columns, WINDOW_CELLS)
    ]
    return np.concatenate(windows), tuple(len(window) for window in windows)


@functools.lru_cache(maxsize=1024)
def _patch_positions(rows: int, columns: int) -> Array:
    """(row, column) of every patch, int32 [cells * 4, 2], in window order."""
    y, x = np.divmod(np.arange(rows * columns), columns)
    within = np.array([(0, 0), (0, 1), (1, 0), (1, 1)])
    positions = np.stack([y, x], axis=1)[:, None] * MERGE + within
    ordered: Array = positions[window_order(rows, columns)[0]].reshape(-1, 2).astype(np.int32)
    return ordered


def _cells_of(plane: Array) -> Array:
    """[rows * 2, columns * 2, …] per patch → [cells, 4, …] in raster order of the cells."""
    rows, columns = plane.shape[0] // MERGE, plane.shape[1] // MERGE
    blocks = plane.reshape(rows, MERGE, columns, MERGE, *plane.shape[2:])
    cells: Array = blocks.swapaxes(1, 2).reshape(rows * columns, MERGE**2, *plane.shape[2:])
    return cells


def patchify(frames: Array) -> Array:
    """Two frames uint8 [2, H, W, 3] → patches uint8 [cells * 4, 1176], in window order, channel before time."""
    _, height, width, _ = frames.shape
    rows, columns = height // PATCH_PX, width // PATCH_PX
    blocks = frames.reshape(TEMPORAL_PATCH, rows, PATCH_PX, columns, PATCH_PX, 3).transpose(1, 3, 5, 0, 2, 4)
    cells = _cells_of(blocks)
    order, _ = window_order(rows // MERGE, columns // MERGE)
    patches: Array = cells[order].reshape(-1, PATCH_VALUES)
    return patches


def label_patches(picture: Picture, size: tuple[int, int]) -> tuple[Array, Array]:
    """Return the mark at the centre of each patch once `picture` has `size`, int32 [cells * 4, 3], and the distances of
    its sides if it is a shape, int16 [cells * 4, 4]; both in window order."""
    columns, rows = size[0] // PATCH_PX, size[1] // PATCH_PX
    labels, boxes = np.zeros((rows, columns, 3), np.int32), np.zeros((rows, columns, 4), np.int16)
    scale_x, scale_y = (size[i] / picture.image.size[i] / PATCH_PX for i in range(2))
    for mark in picture.marks:
        x0, x1, y0, y1 = mark.box[0] * scale_x, mark.box[2] * scale_x, mark.box[1] * scale_y, mark.box[3] * scale_y
        left, right = _covered(x0, x1, columns)
        top, bottom = _covered(y0, y1, rows)
        place = (slice(top, bottom), slice(left, right))
        labels[place] = (COLOUR_IDS[mark.colour], SHAPE_IDS[mark.shape], GLYPH_IDS.get(mark.glyph, 0))
        if mark.shape:
            xs, ys = np.arange(left, right)[None] + 0.5, np.arange(top, bottom)[:, None] + 0.5
            for i, (side, centres) in enumerate(((x0, xs), (y0, ys), (x1, xs), (y1, ys))):
                boxes[(*place, i)] = np.rint((side - centres) * PATCH_PX)
    order, _ = window_order(rows // MERGE, columns // MERGE)
    ordered: tuple[Array, Array] = _cells_of(labels)[order].reshape(-1, 3), _cells_of(boxes)[order].reshape(-1, 4)
    return ordered


def _covered(start: float, end: float, count: int) -> tuple[int, int]:
    """Return the first of `count` patches whose centre is between `start` and `end`, and the one after the last; the
    patch nearest to their middle if there is none."""
    first, stop = max(0, math.ceil(start - 0.5)), min(count, math.floor(end - 0.5) + 1)
    if stop <= first:
        first = min(count - 1, max(0, int((start + end) / 2)))
        stop = first + 1
    return first, stop


@dataclass(frozen=True, slots=True, kw_only=True)
class Vision:
    """One picture or clip: `patches` [t * cells * 4, 1176] in window order, its grid in cells, its token's name."""

    patches: Array
    labels: Array
    boxes: Array
    grid: tuple[int, int, int]
    modality: str
    seconds_per_step: float = 0.0

    @property
    def num_tokens(self) -> int:
        return math.prod(self.grid)


def _resized(image: Image.Image, size: tuple[int, int]) -> Image.Image:
    return image if image.size == size else image.resize(size, Image.Resampling.BICUBIC)


def see_picture(picture: Picture) -> Vision:
    """A still picture, resized and cut into patches; both time steps of a patch show the same."""
    size = fit_size(*picture.image.size, IMAGE_PIXELS)
    pixels = np.asarray(_resized(picture.image, size))
    labels, boxes = label_patches(picture, size)
    return Vision(
        patches=patchify(np.broadcast_to(pixels, (TEMPORAL_PATCH, *pixels.shape))),
        labels=labels,
        boxes=boxes,
        grid=(1, size[1] // CELL_PX, size[0] // CELL_PX),
        modality="image",
    )


def see_clip(frames: tuple[Picture, ...], *, fps: float) -> Vision:
    """A clip, two frames to a patch; a last odd frame is doubled."""
    size = fit_size(*frames[0].image.size, CLIP_PIXELS)
    pixels = [np.asarray(_resized(frame.image, size)) for frame in frames]
    pixels += pixels[-1:] * (len(pixels) % TEMPORAL_PATCH)
    steps = range(0, len(pixels), TEMPORAL_PATCH)
    labels, boxes = zip(*(label_patches(frames[i], size) for i in steps), strict=True)
    return Vision(
        patches=np.concatenate([patchify(np.stack(pixels[i : i + TEMPORAL_PATCH])) for i in steps]),
        labels=np.concatenate(labels),
        boxes=np.concatenate(boxes),
        grid=(len(steps), size[1] // CELL_PX, size[0] // CELL_PX),
        modality="video",
        seconds_per_step=TEMPORAL_PATCH / fps,
    )


# --- text -------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class Conversation:
    """Tokens of one conversation as they are appended: ids, positions [T, 3], vision rows and targets."""

    token_ids: list[int] = field(default_factory=list)
    positions: list[tuple[int, int, int]] = field(default_factory=list)
    vision_rows: list[int] = field(default_factory=list)
    is_answer: list[bool] = field(default_factory=list)
    visions: list[Vision] = field(default_factory=list)
    measured_answer: tuple[int, int] = (0, 0)
    next_position: int = 0
    num_vision_tokens: int = 0

    def add_text(self, token_ids: tuple[int, ...], *, is_answer: bool = False) -> None:
        start = self.next_position
        self.token_ids += token_ids
        self.positions += [(p, p, p) for p in range(start, start + len(token_ids))]
        self.vision_rows += [-1] * len(token_ids)
        self.is_answer += [is_answer] * len(token_ids)
        self.next_position = start + len(token_ids)

    def add_vision(self, vision: Vision, pad_id: int) -> None:
        """Placeholders in raster order, pointing at patches in window order; M-RoPE positions as Qwen2.5-VL's."""
        steps, rows, columns = vision.grid
        order, _ = window_order(rows, columns)
        place = np.empty_like(order)
        place[order] = np.arange(len(order))
        interval = vision.seconds_per_step * TOKENS_PER_SECOND
        start = self.next_position
        for step in range(steps):
            time = start + int(step * interval)
            self.positions += [(time, start + y, start + x) for y in range(rows) for x in range(columns)]
            first = self.num_vision_tokens + step * rows * columns
            self.vision_rows += (place + first).tolist()
        self.token_ids += [pad_id] * vision.num_tokens
        self.is_answer += [False] * vision.num_tokens
        self.num_vision_tokens += vision.num_tokens
        self.visions.append(vision)
        self.next_position = start + max(rows, columns)


class Encoder:
    """Writes examples in the chat format of the checkpoint's template."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._encode = functools.lru_cache(maxsize=200_000)(self._encode_text)
        vocabulary = tokenizer.get_vocab()
        self._special = {
            name: vocabulary[f"<|{name}|>"]
            for name in ("im_start", "im_end", "vision_start", "vision_end", "image_pad", "video_pad")
        }

    def _encode_text(self, text: str) -> tuple[int, ...]:
        return tuple(self._tokenizer.encode(text, add_special_tokens=False).ids)

    def encode(self, example: Example, rng: random.Random, *, follow_up: Example | None = None) -> Conversation:
        """One conversation about `example`, then about `follow_up`; `rng` varies what users vary."""
        system = example.system
        if system is None:
            system = SYSTEM_PROMPT if rng.random() < 0.92 else rng.choice(OTHER_SYSTEM_PROMPTS)
        conversation = Conversation()
        self._add_message(conversation, "system", system)
        for part in (example, follow_up) if follow_up else (example,):
            self._add_turns(conversation, part, rng)
        return conversation

    def _add_message(self, conversation: Conversation, role: str, text: str) -> None:
        conversation.add_text((self._special["im_start"], *self._encode(f"{role}\n{text}")))
        conversation.add_text((self._special["im_end"], *self._encode("\n")))

    def _add_turns(self, conversation: Conversation, example: Example, rng: random.Random) -> None:
        visions = [see_picture(picture) for picture in example.pictures]
        if example.frames:
            fps = CLIP_FPS if rng.random() < 0.7 else rng.choice((1.0, 4.0, 24.0, 30.0))
            visions.append(see_clip(example.frames, fps=fps))
        for turn, (question, answer) in enumerate(example.turns):
            if turn == 0 and visions:
                before = not example.media_last and rng.random() < 0.88
                self._add_question_with_media(conversation, question, visions, before=before, rng=rng)
            else:
                self._add_message(conversation, "user", question)
            conversation.add_text((self._special["im_start"], *self._encode("assistant\n")))
            start = len(conversation.token_ids)
            if example.forced_start and answer.startswith(example.forced_start):
                conversation.add_text(self._encode(example.forced_start))
                answer = answer.removeprefix(example.forced_start)
            conversation.add_text((*self._encode(answer), self._special["im_end"]), is_answer=True)
            if conversation.measured_answer == (0, 0) and turn == example.asked:
                conversation.measured_answer = (start, len(conversation.token_ids))
            conversation.add_text(self._encode("\n"))

    def _add_question_with_media(
        self, conversation: Conversation, question: str, visions: list[Vision], *, before: bool, rng: random.Random
    ) -> None:
        """`before`: whether the media stand before the question."""
        between = "\n" if rng.random() < 0.12 else ""
        conversation.add_text((self._special["im_start"], *self._encode("user\n")))
        if not before:
            conversation.add_text(self._encode(question))
        for vision in visions:
            conversation.add_text((self._special["vision_start"],))
            conversation.add_vision(vision, self._special[f"{vision.modality}_pad"])
            conversation.add_text((self._special["vision_end"], *self._encode(between)))
        if before:
            conversation.add_text(self._encode(question))
        conversation.add_text((self._special["im_end"], *self._encode("\n")))


# --- packs ------------------------------------------------------------------------------------------------------


@dataclass(slots=True)
class _Packer:
    """Appends conversations to one pack until the next one does not fit."""

    views: dict[str, Array]
    num_patches: int = 0
    num_tokens: int = 0
    windows: list[int] = field(default_factory=lambda: [0])
    frames: list[int] = field(default_factory=lambda: [0])
    conversations: list[int] = field(default_factory=lambda: [0])

    def try_add(self, conversation: Conversation, task: str) -> bool:
        views, tokens, patches = self.views, self.num_tokens, self.num_patches
        num_tokens, num_patches = len(conversation.token_ids), conversation.num_vision_tokens * MERGE**2
        if num_tokens > LONGEST_CONVERSATION:
            return False
        full = len(self.conversations) + 4 > MAX_CONVERSATIONS or len(self.windows) + 140 > MAX_WINDOWS
        full = full or len(self.frames) + 34 > MAX_FRAMES
        if full or tokens + num_tokens > MAX_TOKENS or patches + num_patches > MAX_PATCHES:
            return False
        for vision in conversation.visions:
            self._add_vision(vision)
        span = slice(tokens, tokens + num_tokens)
        ids = np.array(conversation.token_ids, np.int32)
        rows = np.array(conversation.vision_rows, np.int32)
        views["token_ids"][span] = ids
        views["positions"][span] = conversation.positions
        views["vision_rows"][span] = np.where(rows >= 0, rows + patches // MERGE**2, -1)
        targets = np.full(num_tokens, -1, np.int32)
        is_answer = np.array(conversation.is_answer)
        targets[:-1][is_answer[1:]] = ids[1:][is_answer[1:]]
        views["targets"][span] = targets
        start, end = conversation.measured_answer
        number = len(self.conversations) - 1
        views["answer_ids"][tokens + start - 1 : tokens + end - 1] = number
        views["answer_tasks"][number] = REPORTED_TASKS.index(task) if task in REPORTED_TASKS else -1
        self.num_tokens += num_tokens
        self.conversations.append(self.num_tokens)
        return True

    def _add_vision(self, vision: Vision) -> None:
        steps, rows, columns = vision.grid
        start, end = self.num_patches, self.num_patches + vision.num_tokens * MERGE**2
        self.views["patches"][start:end] = vision.patches
        self.views["patch_labels"][start:end] = vision.labels
        self.views["patch_boxes"][start:end] = vision.boxes
        self.views["patch_positions"][start:end] = np.tile(_patch_positions(rows, columns), (steps, 1))
        _, window_cells = window_order(rows, columns)
        for _ in range(steps):
            for num_cells in window_cells:
                self.windows.append(self.windows[-1] + num_cells * MERGE**2)
            self.frames.append(self.windows[-1])
        self.num_patches = end

    def finish(self) -> None:
        """Fill what is left with inert rows, each within some segment so that attention writes every row."""
        views, patches, tokens = self.views, self.num_patches, self.num_tokens
        for name in ("patches", "patch_positions", "patch_labels", "patch_boxes"):
            views[name][patches:] = 0
        for name, value in (("token_ids", 0), ("positions", 0), ("vision_rows", -1), ("targets", -1)):
            views[name][tokens:] = value
        _pad_lengths(views["cu_windows"], self.windows, MAX_PATCHES, LONGEST_WINDOW)
        _pad_lengths(views["cu_frames"], self.frames, MAX_PATCHES, LONGEST_FRAME)
        _pad_lengths(views["cu_conversations"], self.conversations, MAX_TOKENS, LONGEST_CONVERSATION)


def _pad_lengths(out: Array, ends: list[int], total: int, longest: int) -> None:
    """Write cumulative lengths [0, …, total, total, …], the unused tail cut into segments no longer than `longest`."""
    while ends[-1] < total:
        ends.append(min(total, ends[-1] + longest))
    if len(ends) > len(out):
        raise ValueError(f"{len(ends)} segment borders do not fit into {len(out)}")
    out[: len(ends)] = ends
    out[len(ends) :] = total


EXAMPLES_PER_PACK = 1 << 10
"""Seeds set aside for each pack; more than fit."""


def write_pack(views: dict[str, Array], conversations: Iterable[tuple[Conversation, str]]) -> int:
    """Write (conversation, task) pairs until one does not fit; returns how many were written."""
    views["answer_ids"][:] = -1
    views["answer_tasks"][:] = -1
    packer = _Packer(views)
    written = 0
    for conversation, task in conversations:
        if not packer.try_add(conversation, task):
            break
        written += 1
    packer.finish()
    return written


def fill_pack(views: dict[str, Array], index: int, encoder: Encoder) -> None:
    """Draw and write the `index`-th pack of the training."""
    write_pack(views, _training_conversations(index, encoder))


def fill_validation_pack(views: dict[str, Array], index: int, encoder: Encoder) -> None:
    """Draw and write a pack that training never sees: old wordings of new scenes, or (odd `index`) held-out forms."""
    conversations = _held_out_conversations if index % 2 else _old_conversations
    write_pack(views, conversations(index, encoder))


def _training_conversations(index: int, encoder: Encoder) -> Iterator[tuple[Conversation, str]]:
    rng = random.Random(f"seesay-demo/pack/{training_seed(index)}")

    def pick(seed: int) -> tuple[Example, str]:
        if rng.random() < SHARE_OF_SKILLS:
            task = _pick_task(rng, SKILL_SHARES)
            return (make_talk(task, seed), "") if rng.random() < SHARE_OF_TALKS else (make_example(task, seed), task)
        if rng.random() < SHARE_OF_TALKS:
            task = _pick_task(rng, TALK_SHARES)
            return make_talk(task, seed), ""
        task = _pick_task(rng, TASK_SHARES)
        return make_example(task, seed), task

    for number in range(0, EXAMPLES_PER_PACK, 2):
        example, task = pick(training_seed(index * EXAMPLES_PER_PACK + number))
        follow_up = None
        if rng.random() < 0.08:
            follow_up, _ = pick(training_seed(index * EXAMPLES_PER_PACK + number + 1))
            if follow_up.task == "chat" and (example.pictures or example.frames):
                follow_up = None  # it may say that there is no picture
            if follow_up and "count_pages" in (example.task, follow_up.task):
                follow_up = None  # the pictures of both would count
        yield encoder.encode(example, rng, follow_up=follow_up), task


_VALIDATION_SHARES = {**TASK_SHARES, "page": 15, "find": 15, "count_pages": 6}


def _old_conversations(index: int, encoder: Encoder) -> Iterator[tuple[Conversation, str]]:
    rng = random.Random(f"seesay-demo/validation/{index}")
    for number in range(EXAMPLES_PER_PACK):
        task = _pick_task(rng, _VALIDATION_SHARES)
        yield encoder.encode(make_example(task, _validation_seed(index, number)), rng), task


def _held_out_conversations(index: int, encoder: Encoder) -> Iterator[tuple[Conversation, str]]:
    rng = random.Random(f"seesay-demo/validation/{index}")
    for number in range(EXAMPLES_PER_PACK):
        task = (*TALK_TASKS, *SKILLS)[number % (len(TALK_TASKS) + len(SKILLS))]
        example = make_talk(task, _validation_seed(index, number), held_out=True)
        yield encoder.encode(example, rng), f"unseen {task}"


def _pick_task(rng: random.Random, shares: dict[str, int]) -> str:
    return rng.choices(tuple(shares), tuple(shares.values()))[0]


def _validation_seed(index: int, number: int) -> int:
    """Seeds from 0 to 999,999 watch the training: neither trained on nor used by the evaluation."""
    return (index * EXAMPLES_PER_PACK + number) % FIRST_EVALUATION_SEED


SLOTS_PER_WORKER = 4
PACK_TIMEOUT_S = 120.0


class PackStream:
    """Worker processes that draw pack after pack into a ring of slots in shared memory.

    Pack k comes from worker k mod n, so the packs and their order do not depend on the workers' speed.
    """

    def __init__(self, tokenizer_json: str, *, num_workers: int, first_pack: int = 0) -> None:
        context = mp.get_context("fork")
        self.num_workers = num_workers
        self.memory = mmap.mmap(-1, num_workers * SLOTS_PER_WORKER * PACK_BYTES)
        self._next = 0
        self._released = 0
        self._free = [context.Semaphore(SLOTS_PER_WORKER) for _ in range(num_workers)]
        self._ready = [context.Semaphore(0) for _ in range(num_workers)]
        self._workers = [
            context.Process(target=self._work, args=(i, tokenizer_json, first_pack), daemon=True)
            for i in range(num_workers)
        ]
        for worker in self._workers:
            worker.start()

    def _work(self, worker: int, tokenizer_json: str, first_pack: int) -> None:
        encoder = Encoder(Tokenizer.from_str(tokenizer_json))
        turn = 0
        while True:
            self._free[worker].acquire()
            views = pack_views(self.memory, self._slot(worker, turn) * PACK_BYTES)
            fill_pack(views, first_pack + worker + turn * self.num_workers, encoder)
            self._ready[worker].release()
            turn += 1

    def _slot(self, worker: int, turn: int) -> int:
        return worker * SLOTS_PER_WORKER + turn % SLOTS_PER_WORKER

    def wait_next(self) -> int:
        """Wait for the next pack; returns its slot, which stays as it is until `release` is called for it."""
        slot = self.try_next(timeout_s=PACK_TIMEOUT_S)
        if slot is None:
            raise RuntimeError(f"a drawing worker made no pack in {PACK_TIMEOUT_S:.0f} s")
        return slot

    def try_next(self, timeout_s: float = 0.0) -> int | None:
        """Return the slot of the next pack as `wait_next` does; None if it is not drawn yet."""
        turn, worker = divmod(self._next, self.num_workers)
        if not self._ready[worker].acquire(timeout=timeout_s):
            return None
        self._next += 1
        return self._slot(worker, turn)

    def release(self) -> None:
        """Give the oldest pack that was not yet released back to its worker."""
        self._free[self._released % self.num_workers].release()
        self._released += 1

    def close(self) -> None:
        for worker in self._workers:
            worker.terminate()
            worker.join()
