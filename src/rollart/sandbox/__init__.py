"""Sandboxes, adapters of the Sandbox port: where model-written programs run.

One program per sandbox: it is thrown away afterwards, so nothing leaks from one to the next.
What is closed, what is not, and how it was tested is in `docs/sandbox.md`.
"""
