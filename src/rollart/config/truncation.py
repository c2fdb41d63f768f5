"""Truncated sampling: what a person should know who trains on draws from a part of the tokens."""

from rollart.config.schema import Config
from rollart.types import Sampling

_FIELDS = ("top_p", "top_k", "min_p")


def describe_truncation(config: Config) -> str:
    """Say that the trainer's log-probs are not those of the draws; empty if they are."""
    whole = Sampling()
    values = {name: getattr(config.sampling, name) for name in _FIELDS}
    cut = [f"sampling.{name} = {it}" for name, it in values.items() if it != getattr(whole, name)]
    if not cut:
        return ""
    return (
        f"{', '.join(cut)}: the trainer's log-probs are of all tokens, not only of those that may "
        "be drawn, so it trains a slightly different policy from the one that played; leave "
        f"{'it' if len(cut) == 1 else 'them'} out to train what is sampled"
    )
