"""Ray: the distributed engine. Nothing outside this package imports it."""
