"""The contract of model families: checks that any family must pass, here or in another package.

`python -m seesay.vl.check_family NAME --checkpoint FOLDER` runs them.
"""
