"""The built-in checkpoint answers the same here as in Transformers: scenes of all tasks, greedy, float32."""

from __future__ import annotations

import torch
from pairs import num_examples
from transformers import AutoModelForImageTextToText, AutoProcessor

from seesay import EngineConfig, GenerationConfig, pipeline
from seesay.demo import CHECKPOINT
from seesay.demo.evaluate import MAX_NEW_TOKENS, messages_for, processor_inputs
from seesay.demo.scenes import FIRST_EVALUATION_SEED, TASKS, make_example

NUM_SCENES = 66
BATCH_SIZE = 22


def test_scenes_are_answered_as_transformers_answers_them() -> None:
    num_scenes = num_examples(NUM_SCENES)
    seed = FIRST_EVALUATION_SEED + 777_000
    # Task by task: a batch of Transformers runs as long as its longest answer.
    examples = [make_example(TASKS[k * len(TASKS) // num_scenes], seed + k) for k in range(num_scenes)]
    processor = AutoProcessor.from_pretrained(CHECKPOINT, padding_side="left")
    network = AutoModelForImageTextToText.from_pretrained(CHECKPOINT, dtype=torch.float32).eval()
    expected: list[str] = []
    for first in range(0, num_scenes, BATCH_SIZE):
        batch = examples[first : first + BATCH_SIZE]
        inputs = processor(**processor_inputs(processor, batch), padding=True, return_tensors="pt")
        with torch.inference_mode():
            output = network.generate(**inputs, max_new_tokens=MAX_NEW_TOKENS, do_sample=False)
        expected += processor.batch_decode(output[:, inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    with pipeline(backend_config=EngineConfig(device_type="cpu", dtype="float32")) as pipe:
        config = GenerationConfig(max_new_tokens=MAX_NEW_TOKENS)
        responses = pipe([messages_for(example) for example in examples], gen_config=config)
    answers = [response.text for response in responses]
    assert answers == expected
    assert len(set(answers)) > num_scenes / 3, "answers that are all alike prove nothing"
