"""The scheduler's rules of a config."""

from rollart.config.schema import Config
from rollart.control.rules import Rules


def make_rules(config: Config) -> Rules:
    """Return the scheduler's rules of a config."""
    return Rules(
        steps=config.run.steps,
        seed=config.run.seed,
        mode=config.mode,
        batching=config.batching,
        staleness=config.staleness,
        redundancy=config.redundancy,
        retry=config.retry,
        filter=config.filter,
        syncing=config.syncing,
        dispatch=config.dispatch,
        lending=config.lending,
    )
