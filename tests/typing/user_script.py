"""What users write, as type checkers see it: `tests/test_typing.py` runs mypy and pyright on it. It is not run.

A line that ends in `# wrong` must be an error, and no other line may be one.
"""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any, assert_type

import numpy as np
from PIL import Image

import seesay
from seesay import (
    IMAGE_TOKEN,
    ChatTemplateConfig,
    EngineConfig,
    GenerationConfig,
    MediaLimits,
    Pipeline,
    PytorchEngineConfig,
    Response,
    Session,
    VisionConfig,
    load_image,
    load_video,
    pipeline,
)
from seesay.serve.openai.api_client import APIClient

picture = load_image("tiger.jpeg", limits=MediaLimits(max_bytes=1 << 20))
assert_type(picture, Image.Image)
clip = load_video(Path("clip.mp4"), num_frames=8)
config = GenerationConfig(max_new_tokens=16, stop_words=["."])
pipe = pipeline(
    "Qwen/Qwen2.5-VL-7B-Instruct",
    backend_config=EngineConfig(session_len=4096),
    chat_template_config=ChatTemplateConfig("qwen"),
    vision_config=VisionConfig(max_batch_size=4, transparency="drop"),
)
assert_type(pipe, Pipeline)

# One prompt, one response.
assert_type(pipe("hi"), Response)
assert_type(pipe(("describe this image", picture)), Response)
assert_type(pipe((f"{IMAGE_TOKEN} or {IMAGE_TOKEN}?", [picture, "other.png"])), Response)
assert_type(pipe((picture, "describe this image"), gen_config=config), Response)
assert_type(pipe(("what moves?", clip)), Response)
assert_type(pipe({"role": "user", "content": "hi"}), Response)
assert_type(pipe([{"role": "user", "content": "hi"}]), Response)
messages = [{"role": "system", "content": "be brief"}, {"role": "user", "content": "hi"}]
assert_type(pipe(messages), Response)
parts: list[dict[str, Any]] = [{"type": "text", "text": "hi"}, {"type": "image", "image": picture}]
assert_type(pipe([{"role": "user", "content": parts}]), Response)
with_parts = [{"role": "user", "content": parts}]
assert_type(pipe(with_parts), Response)
assert_type(pipe.infer("hi", use_tqdm=True), Response)
print(pipe("hi").text, pipe("hi").finish_reason, pipe("hi").usage)

# A list of prompts, a list of responses.
assert_type(pipe(["hi", "you"]), list[Response])
questions = [f"what is {number}?" for number in range(3)]
assert_type(pipe(questions, gen_config=[config] * 3), list[Response])
assert_type(pipe([("describe this image", picture)] * 2), list[Response])
pairs = [(question, picture) for question in questions]
assert_type(pipe(pairs), list[Response])
assert_type(pipe([messages, messages]), list[Response])
assert_type(pipe(["hi", ("describe this image", picture), messages]), list[Response])
strings_and_pairs: list[str | tuple[str, Image.Image]] = ["hi", ("describe this image", picture)]
assert_type(pipe(strings_and_pairs), list[Response])
strings_and_messages: list[str | dict[str, str]] = ["hi", {"role": "user", "content": "hi"}]
assert_type(pipe(strings_and_messages), list[Response])
unknown: list[Any] = ["hi", ("describe this image", picture)]
for response in pipe(unknown):  # Any to mypy, as both overloads match
    print(response.text)
assert_type(pipe.infer(["hi"]), list[Response])
assert_type(pipe.batch_infer(["hi"]), list[Response])
for response in pipe(questions):
    print(response.text, response.index)

# Streams, conversations, scores.
assert_type(pipe.stream_infer("hi"), Generator[Response, None, None])
session = pipe.chat(("describe this image", picture))
assert_type(session, Session)
assert_type(pipe.chat("and now?", session=session, stream_response=True), Generator[Response, None, None])
assert_type(session.response, Response)
print(session.response.text)
assert_type(pipe.get_ppl([[1, 2, 3], [4, 5]]), list[float])
assert_type(pipe.get_ppl(np.arange(5)), list[float])


async def ask() -> None:
    assert_type(await pipe.async_batch_infer("hi"), Response)
    assert_type(await pipe.async_batch_infer(questions), list[Response])
    assert_type(await pipe.async_batch_infer(messages), Response)
    for response in await pipe.async_batch_infer(unknown):
        print(response.text)


with pipeline(backend_config=PytorchEngineConfig(device_type="cpu")) as other:
    assert_type(other, Pipeline)

with seesay.serve(server_port=0) as client:
    print(client.available_models)
assert_type(APIClient("http://localhost:23333").available_models, list[str])

# What is wrong is seen before it runs.
pipe("hi")[0]  # wrong
print(pipe(["hi", "you"]).text)  # wrong
pipe(messages)[0]  # wrong
pipe(17)  # wrong
GenerationConfig(max_new_token=3)  # wrong
GenerationConfig(top_k="many")  # wrong
VisionConfig(transparency="black")  # wrong
load_image("tiger.jpeg", limits=3)  # wrong
seesay.pipelines()  # wrong
