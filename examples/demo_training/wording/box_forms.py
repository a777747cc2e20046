"""Forms of questions that boxes answer. They say *box*, or ask to detect: where something is, is told in words."""

from __future__ import annotations

BOX_FORMS = {
    "find": """
Q! what is the bounding box of the {thing}
Q what [is|are] the [bbox|box|bbox_2d|box coordinates|bounding box coordinates] of the {thing}<in>
Q which [box|bounding box|rectangle] [encloses|surrounds|contains|frames|bounds] the {thing}
Q where is the {thing}, as a [box|bounding box|bbox]
Q where is the {thing}? Answer with [a box|its box|a bounding box|the bbox|JSON boxes]
Q where is the bounding box of the {thing}
Q what box [does the {thing} fill|is the {thing} in|fits the {thing}]
Q what are the [corners|coordinates] of the box [around|of] the {thing}
I! find the {thing} as a box
I find the {thing} [with|by|and give me|and return|and output] [a box|its box|a bounding box|its bounding box|its bbox]
I [draw|put|place|make] a [box|bounding box|rectangle] around the {thing}
I [give me|return|output|state|report|tell me] the [box|bounding box|bbox|bbox_2d] of the {thing}<in>
I [give me|return|output] the bounding box of the {thing} [as|in] JSON
I! detect the {thing}
I detect the {thing}<in>
I! locate the {thing}, output its bbox coordinates using JSON format
I locate the {thing} [with|by] a [box|bounding box|bbox]
I locate the {thing} and [output|return|give] its [box|bounding box|bbox|bbox_2d]
I locate the {thing} in the {image}, output the bbox coordinates in JSON
I [frame|box|box in] the {thing}
I [mark|enclose|outline] the {thing} [with|by] a [box|rectangle|bounding box]
I ground the {thing}
E [what|which] box the {thing} is in
E what the bounding box of the {thing} is
N the [box|bounding box|bbox] of the {thing}<in>
N the box around the {thing}
F! bounding box of the {thing}
F [bbox|box|bbox_2d] of the {thing}
F {thing}: [box|bbox|bounding box]
F {thing} bbox
F {thing}, box please
""",
    "find_all": """
Q! what are the bounding boxes of the {things}
Q what are the [boxes|bboxes] of [the|all] {things}<in>
Q which boxes [enclose|contain|frame] the {things}
Q where are the {things}, as boxes
Q where are the {things}? Answer with [boxes|bounding boxes|JSON boxes]
I! find all {things} as boxes
I find [all|the|every one of the] {things} and [give|return|output] their [boxes|bounding boxes|bboxes]
I [draw|put|place] [boxes|a box|bounding boxes] around [all|the|all the|each of the] {things}
I [give me|return|output|report] the [boxes|bounding boxes|bboxes] of [all|the] {things}
I! detect all {things}
I detect [the|every one of the|all] {things}<in>
I locate all {things}, output their bbox coordinates using JSON format
I locate [all|the] {things} with [boxes|bounding boxes]
I [box|frame] [all|all the|the] {things}
N the [boxes|bounding boxes|bboxes] of [the|all] {things}
F bounding boxes of [the|all] {things}
F [boxes|bboxes] of all {things}
F all {things}, with boxes
F {things}: boxes
""",
}
