"""Says how many frames of a video would fit into a prompt that is too long. Plans them; decodes nothing."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import TYPE_CHECKING

from seesay.errors import RequestError
from seesay.processors.media.video.frame_sampling import spread
from seesay.processors.media.video.video_frame import VideoFrame
from seesay.values import Modality

if TYPE_CHECKING:
    from seesay.vl.family import Family
    from seesay.vl.media.media_items import OpenItem
    from seesay.vl.prompts.prompt import TokenizedPrompt


def describe_longest_video(
    family: Family, items: Sequence[OpenItem], tokens: TokenizedPrompt, *, num_tokens: int, max_tokens: int
) -> str:
    """Return what to do about the longest video of a prompt of `num_tokens` that may have `max_tokens`. Without a video
    it is empty. `items` are the prompt's media and `tokens` its tokens with markers in their places."""
    videos = _group_by_video(items)
    if not videos:
        return ""
    counts = [_count_tokens(items, indices, tokens) for indices in videos]
    num_video_tokens = max(counts)
    indices = videos[counts.index(num_video_tokens)]
    room = max_tokens - (num_tokens - num_video_tokens)
    item, num_frames = items[indices[0]], len(indices)
    if isinstance(item.media, VideoFrame):
        num_fitting = max(room, 0) * num_frames // num_video_tokens // 2 * 2
    else:
        assert item.size is not None
        num_frames = item.size.num_frames
        num_fitting = _find_fitting(family, item, indices[0], room)
    advice = f"with max_frames={num_fitting} it would fit" if num_fitting else "ask for smaller frames, too"
    return f". A video takes {num_video_tokens} tokens for {num_frames} frames: {advice}"


def _group_by_video(items: Sequence[OpenItem]) -> list[list[int]]:
    """Return the indices of the items of each video: one, or one for each frame that is taken as a picture."""
    videos = defaultdict[int, list[int]](list)
    for index, item in enumerate(items):
        if item.size is None:
            continue
        if isinstance(item.media, VideoFrame):
            videos[id(item.media.video)].append(index)
        elif item.media.modality is Modality.VIDEO:
            videos[id(item.media)].append(index)
    return list(videos.values())


def _count_tokens(items: Sequence[OpenItem], indices: Sequence[int], tokens: TokenizedPrompt) -> int:
    """Return the tokens of a video's items, and of the text between those that follow one another."""
    neighbours = [(last, index) for last, index in pairwise(indices) if index == last + 1]
    between = sum(tokens.ranges[index][0] - tokens.ranges[last][1] for last, index in neighbours)
    return between + sum(items[index].num_tokens or 0 for index in indices)


def _find_fitting(family: Family, item: OpenItem, index: int, room: int) -> int:
    """Return the most frames, an even number, with which a video is planned to have at most `room` tokens; 0 where not
    even two fit. Fewer frames may be larger, or be packed less: each number is planned."""
    assert item.size is not None
    fitting, beyond = 0, (item.size.num_frames + 1) // 2
    while beyond - fitting > 1:
        middle = (fitting + beyond) // 2
        if _fits(family, item, index, num_frames=2 * middle, room=room):
            fitting = middle
        else:
            beyond = middle
    return 2 * fitting


def _fits(family: Family, item: OpenItem, index: int, *, num_frames: int, room: int) -> bool:
    size = item.size
    assert size is not None
    times = tuple(size.timestamps_s[frame] for frame in spread(size.num_frames, num_frames))
    interval_s = size.frame_interval_s * size.num_frames / num_frames
    fewer = replace(size, num_frames=num_frames, timestamps_s=times, frame_interval_s=interval_s)
    try:
        plan = family.plan_media(item.media.modality, fewer, item.options)
    except RequestError:
        return False
    return len(family.number(plan.expansion, index).token_ids) <= room
