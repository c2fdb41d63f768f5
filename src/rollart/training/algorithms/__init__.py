"""Algorithms: one file each, a frozen dataclass whose fields are the keys of `[algorithm]`.

A new one is a file that satisfies the port `Algorithm`; it needs no other change: a config names it
as `type = "path/to/file.py:Class"`, an installed package under the entry point group
`rollart.algorithms`, and one that is shipped has a line in `plugins.BUILT_IN`.
"""
