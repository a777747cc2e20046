"""Markers that stand for media in the text of a prompt, whatever the model's own marker is."""

IMAGE_TOKEN = "<IMAGE_TOKEN>"
VIDEO_TOKEN = "<VIDEO_TOKEN>"

DETAILS = ("auto", "low", "high")
"""Values of OpenAI's option `detail`. Only "low" changes anything: the most tokens are the model's own default."""
LOW_DETAIL_PIXELS = 512 * 512
"""Size of a picture with detail "low" where a family takes pictures of any size."""
