"""`/v1/responses` and `/v1/conversations`: OpenAI's Responses API."""
