"""The subcommands of `seesay`, one module each. Importing one is cheap: what it needs is imported when it runs."""

from __future__ import annotations
