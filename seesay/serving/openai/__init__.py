"""OpenAI's API: what requests and answers look like (`protocol`), and the routes that give them."""
