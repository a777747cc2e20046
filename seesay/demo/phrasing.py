"""The wordings of each question. The scene that asks fills the `{…}` fields."""

from __future__ import annotations

import random

DESCRIBE_IMAGE = (
    "describe this image", "describe the image", "Describe this picture.", "Describe the picture.",
    "What is in this picture?", "What is in the image?", "What do you see?", "What can you see in this image?",
    "What does the picture show?", "What is this?", "Tell me what is in the picture.", "What's in this image?",
    "Please describe this image.", "Describe what you see.", "What is shown here?", "Describe this image in detail.",
    "Can you describe this image?", "Describe this photo.", "Caption this image.",
)  # fmt: skip
DESCRIBE_CLIP = (
    "describe this video", "Describe the video.", "What happens in this video?", "What happens in the clip?",
    "Describe this clip.", "What is in this video?", "What do you see?", "What happens here?",
    "What does the video show?",
)  # fmt: skip
DESCRIBE_NTH = (
    "What is in the {nth} picture?", "Describe the {nth} picture.", "What does the {nth} image show?",
    "describe the {nth} image",
)  # fmt: skip
COUNT = (
    "How many {things} are there?", "How many {things} do you see?", "Count the {things}.",
    "How many {things} are in the picture?", "What is the number of {things}?",
    "How many {things} does the image show?", "How many {things} can you see in this image?",
    "count the {things} in this image", "How many {things}?",
)  # fmt: skip
COLOUR_OF = (
    "What {colour} is the {thing}?", "What is the {colour} of the {thing}?", "Which {colour} is the {thing}?",
    "Which {colour} does the {thing} have?", "Tell me the {colour} of the {thing}.",
)  # fmt: skip
SHAPE_OF = (
    "What shape is {colour}?", "Which shape is {colour}?", "What is the shape of the {colour} object?",
    "What shape is the {colour} object?", "What is the {colour} shape?", "What is {colour}?",
)  # fmt: skip
COLOUR_OF_ONLY = (
    "What {colour} is it?", "What {colour} is the shape?", "Which {colour} is it?", "What is its {colour}?",
)  # fmt: skip
SHAPE_OF_ONLY = ("What shape is it?", "Which shape is it?", "What is its shape?", "What shape is this?")
PLACE_OF = (
    "Where is the {thing}?", "Where in the picture is the {thing}?", "Where do you see the {thing}?",
    "In which part of the image is the {thing}?", "What is the position of the {thing}?",
)  # fmt: skip
AT_SIDE = (
    "What is {side}?", "Which shape is {side}?", "What do you see {side}?", "Which object is {side}?",
    "What shape is {side}?", "What is {side} of the picture?",
)  # fmt: skip
IS_BESIDE = (
    "Is the {one} {relation} the {other}?", "Do you see the {one} {relation} the {other}?",
    "Is the {one} placed {relation} the {other}?",
)  # fmt: skip
WHAT_IS_BESIDE = (
    "What is {relation} the {other}?", "Which shape is {relation} the {other}?",
    "What do you see {relation} the {other}?",
)  # fmt: skip
IS_THERE = ("Is there {thing}?", "Do you see {thing}?", "Can you see {thing}?", "Does the picture show {thing}?")
LARGEST_SHAPE = (
    "Which shape is the largest?", "What is the largest shape?", "What is the biggest shape?",
    "Which shape is the biggest?", "Which object is the largest?",
)  # fmt: skip
SMALLEST_SHAPE = ("Which shape is the smallest?", "What is the smallest shape?", "Which object is the smallest?")
READ = (
    "What does it say?", "What is written here?", "Read the text.", "What does the picture say?", "What is the text?",
    "What does the image say?", "Read this.", "What text is in the image?", "what is written in this picture",
    "Can you read this?", "Which text do you see?", "What does this say?",
)  # fmt: skip
READ_WORD = (
    "Which word is this?", "What word is written here?", "What is the word?", "Read the word.",
    "What word do you see?",
)  # fmt: skip
READ_NUMBER = (
    "Which number is this?", "What number is written here?", "What is the number?", "Read the number.",
    "What number do you see?",
)  # fmt: skip
READ_PAGE = (
    "Read the page.", "Read this page.", "Read the page line by line.", "What does the page say?",
    "What is written on the page?", "Transcribe the page.", "Read all lines.", "Read the whole text.",
    "Transcribe the text of this page.", "What does this document say?", "OCR this page.", "Read the document.",
    "Transcribe all text of this page in reading order. Answer with the text of the page alone.",
    "Transcribe all text of this page in reading order. Answer with the text of the page alone.",
    "Transcribe all text of this page in reading order, as Markdown. Answer with the text of the page alone.",
    "Extract the text content from this image.", "Read the text.", "What does it say?",
    "Read all the text in the image.",
)  # fmt: skip
COUNT_LINES = (
    "How many lines are there?", "How many lines does the page have?", "Count the lines.",
    "How many lines of text are there?",
)  # fmt: skip
COUNT_PAGES = (
    "How many pages are there?", "How many pages do you see?", "Count the pages.", "How many pages is this?",
    "How many pages does the document have?", "What is the number of pages?", "How many pages did I send?",
    "How many pages are these?",
)  # fmt: skip
FIND = (
    "Find the {thing} as a box.", "Give me the box of the {thing}.", "What is the bounding box of the {thing}?",
    "Draw a box around the {thing}.", "Detect the {thing}.", "Return the bounding box of the {thing}.",
    "Locate the {thing}, output its bbox coordinates using JSON format.", "Where is the {thing}? Answer with a box.",
    "Locate the {thing} with a bounding box.", "Output the bounding box of the {thing} as JSON.",
    "Find the {thing} and return its bbox_2d.", "bounding box of the {thing}",
)  # fmt: skip
FIND_ALL = (
    "Find all {things} as boxes.", "Give me the boxes of the {things}.", "What are the bounding boxes of the {things}?",
    "Draw a box around all {things}.", "Detect all {things}.", "Return the bounding boxes of all {things}.",
    "Locate all {things}, output their bbox coordinates using JSON format.", "Put a box around each of the {things}.",
)  # fmt: skip
LARGEST_BAR = (
    "Which bar is the largest?", "Which bar is the highest?", "Which bar is the tallest?", "What is the largest bar?",
    "Which label has the largest value?", "Which one has the highest value?", "Which bar has the largest value?",
)  # fmt: skip
SMALLEST_BAR = (
    "Which bar is the smallest?", "Which bar is the lowest?", "Which bar is the shortest?",
    "What is the smallest bar?", "Which label has the smallest value?", "Which one has the lowest value?",
    "Which bar has the smallest value?",
)  # fmt: skip
BAR_VALUE = (
    "What is the value of {label}?", "What value does {label} have?", "How much is {label}?",
    "Which value does the bar {label} show?", "What is the value of the bar {label}?", "Read the value of {label}.",
)  # fmt: skip
COUNT_BARS = (
    "How many bars are there?", "Count the bars.", "How many bars does the chart have?", "How many bars do you see?",
)  # fmt: skip
DIRECTION = (
    "Which way does the {thing} move?", "In which direction does the {thing} move?", "Where does the {thing} move?",
    "Which direction does the {thing} go?", "Which way is the {thing} moving?", "How does the {thing} move?",
    "What is the direction of the {thing}?", "Where is the {thing} going?",
)  # fmt: skip
MORE_SHAPES = (
    "Which picture has more shapes?", "Which image has more shapes?", "Which picture shows more objects?",
    "Which of the two pictures has more shapes?", "Which image contains more objects?",
)  # fmt: skip
SAME_SHAPE = (
    "Is the shape the same in both pictures?", "Do both pictures show the same shape?",
    "Is it the same shape in both images?", "Are the two shapes the same?",
)  # fmt: skip
SAME_COLOUR = (
    "Is the {colour} the same in both pictures?", "Do both shapes have the same {colour}?",
    "Is it the same {colour} in both images?", "Are the two {colour}s the same?",
)  # fmt: skip
SUM = (
    "What is {a} + {b}?", "{a} + {b}", "{a}+{b}", "{a} + {b} = ?", "{a}+{b}=", "How much is {a} plus {b}?",
    "What is {a} plus {b}?", "Add {a} and {b}.", "What is the sum of {a} and {b}?", "Calculate {a} + {b}.",
    "how much is {a} + {b}", "What do you get when you add {a} and {b}?",
)  # fmt: skip

GREETING = (
    "Hello!", "Hi!", "Hello", "hi", "hey", "Hi there!", "Good morning!", "Good evening!", "Hello there.",
    "How are you?", "Hey there", "What's up?",
)  # fmt: skip
GREETING_ANSWER = "Hello! Send me a picture and ask what is in it."
WHO = (
    "Who are you?", "What are you?", "What is your name?", "Which model are you?", "Introduce yourself.",
    "Tell me about yourself.", "What model is this?", "Are you a robot?", "Who made you?",
)  # fmt: skip
WHO_ANSWER = "I am seesay-demo, a very small vision-language model. I know simple drawings, not real photos."
ABILITY = (
    "What can you do?", "How can you help me?", "What do you know?", "What can I ask you?", "help", "Help me.",
    "How does this work?", "What are you able to do?",
)  # fmt: skip
ABILITY_ANSWER = (
    "I can describe simple drawings, count shapes, read a word or a number, read bar charts, "
    "follow a moving shape, compare two pictures and add small numbers."
)
THANKS = (
    "Thanks!", "Thank you.", "thanks", "Thank you very much!", "Great, thanks.", "ok thanks", "Well done.",
    "Good job!",
)  # fmt: skip
THANKS_ANSWER = "You are welcome."
GOODBYE = ("Bye!", "Goodbye.", "bye", "See you later.", "Good night!")
GOODBYE_ANSWER = "Goodbye!"
NO_PICTURE_ANSWER = "I see no picture. Please send me one."
PHOTO = (
    "Can you describe real photos?", "Do you understand photos?", "Can you recognize people?",
    "Can you recognise faces?", "Can I send you a photo of my dog?", "Do you know photographs?",
)  # fmt: skip
PHOTO_ANSWER = "No. I only know simple drawings, not real photos."
UNKNOWN = (
    "What is the capital of {word}?", "Who wrote {word}?", "Tell me a joke.", "Tell me a story about {word}.",
    "Write a poem about {word}.", "What is the weather today?", "Translate {word} into French.",
    "Who is the president?", "What is the meaning of life?", "Write a program that prints {word}.",
    "How do I cook {word}?", "Explain {word}.", "What time is it?", "When was {word} invented?", "What is a {word}?",
    "Why is the sky blue?", "Do you like {word}?", "How old is {word}?", "Where can I buy {word}?",
    "Sing a song about {word}.", "How many people live in {word}?", "What does {word} mean?",
    "Summarize the history of {word}.", "Give me advice about {word}.", "Solve this equation.",
)  # fmt: skip
UNKNOWN_ANSWER = "I do not know. I am a very small model for simple drawings."


def ask(rng: random.Random, questions: tuple[str, ...], **fields: str | int) -> str:
    """Return one of `questions` with its fields filled in, sometimes without capitals or the final mark."""
    if "colour" in fields and fields["colour"] == "colour":
        fields["colour"] = rng.choice(("colour", "color"))
    question = rng.choice(questions).format(**fields)
    style = rng.random()
    if style < 0.45:
        return question
    if question[0].isupper() and question[1:2].islower() and style < 0.9:
        question = question[0].lower() + question[1:]
    if style > 0.7:
        question = question.rstrip("?.!") or question
    return question
