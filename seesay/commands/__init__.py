"""The subcommands of `seesay`, one module each. Importing one is cheap: it imports its dependencies when it runs."""

from __future__ import annotations
