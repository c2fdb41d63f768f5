"""The command line, `rollart`: each command is a module, imported when asked for."""

from rollart.cli.entry import console, main

__all__ = ["console", "main"]
