"""Markers for media in the text of a prompt, whatever the model's own markers are."""

IMAGE_TOKEN = "<IMAGE_TOKEN>"
VIDEO_TOKEN = "<VIDEO_TOKEN>"
AUDIO_TOKEN = "<AUDIO_TOKEN>"

DETAILS = ("auto", "low", "high")
"""Values of OpenAI's option `detail`. Only "low" changes anything: the default takes the most tokens already."""
LOW_DETAIL_PIXELS = 512 * 512
"""Most pixels of a picture with detail "low", in families that take pictures of any size."""
