"""A recording of step times that a linear model gives exactly."""

from __future__ import annotations

from itertools import product

from step_model import EncodeTime, LinearTimes, Recording, StepShape, StepTime

TRUE = LinearTimes(decode=(4.0, 0.02, 1e-5), mixed=(1.0, 0.03, 2e-5, 0.019, 1e-6), encode=(0.5, 0.0025))


def make_recording(times: LinearTimes, *, more: tuple[StepTime, ...] = ()) -> Recording:
    shapes = [StepShape(*each) for each in product((1, 64, 256), (100, 1000), (0,), (0,))]
    shapes += [StepShape(*each) for each in product((0, 64, 256), (100, 1000), (256, 1024, 4096), (372, 4096))]
    steps = tuple(StepTime(shape, times.step_ms(shape)) for shape in shapes)
    encodes = tuple(EncodeTime(count, times.encode_ms(count)) for count in (256, 1024, 5476))
    return Recording(device="a GPU", model="a model", source="made up", steps=steps + more, encodes=encodes)
