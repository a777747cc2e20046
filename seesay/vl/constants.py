"""Markers that stand for media in the text of a prompt, whatever the model's own marker is."""

IMAGE_TOKEN = "<IMAGE_TOKEN>"
VIDEO_TOKEN = "<VIDEO_TOKEN>"
