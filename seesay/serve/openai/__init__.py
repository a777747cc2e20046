"""Modules of LMDeploy for OpenAI's API."""
