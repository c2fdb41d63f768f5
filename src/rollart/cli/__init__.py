"""The command line, `rollart`: each command is a module, imported when asked for."""

from rollart.cli.main import main

__all__ = ["main"]
