"""OpenAI's API: the models of requests and answers (`protocol`), and the routes."""
