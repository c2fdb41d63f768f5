"""Addresses: where the ranks of a trainer reach each other."""

from collections.abc import Sequence

LOOPBACK = "127.0.0.1"


def meeting_addresses(machines: Sequence[str]) -> list[str]:
    """Return where each rank is reached by the others: on loopback if they share a machine."""
    return [LOOPBACK] * len(machines) if len(set(machines)) == 1 else list(machines)
