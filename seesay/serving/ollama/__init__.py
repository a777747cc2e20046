"""Ollama's API, which editors and their plugins speak: `/api/chat`, `/api/generate` and the routes that describe the
model."""
