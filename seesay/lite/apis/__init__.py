"""LMDeploy's import paths: `from seesay.lite.apis.auto_awq import auto_awq`."""
