"""Modules of LMDeploy for the WebUI."""
