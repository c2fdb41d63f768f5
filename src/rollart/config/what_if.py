"""What if: another schedule for a recorded run, given as `key=value`.

A log tells what attempts, optimizer steps and weights took; the schedule alone is open. So the keys
are those of the sections that rule it, and of [run] the mode, the steps and the environments.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields

from rollart.config.layers import Layered, layer_overrides, parse_override
from rollart.config.loading import Builder
from rollart.config.schema import Config, RunOptions
from rollart.control.batching import Batching
from rollart.control.dispatch import Dispatch
from rollart.control.filters import Filter
from rollart.control.lending import Lending
from rollart.control.modes import ModeName, mode_named
from rollart.control.redundancy import Redundancy
from rollart.control.retry import Retry
from rollart.control.rules import Rules
from rollart.control.staleness import Staleness
from rollart.control.syncing import Syncing
from rollart.errors import ConfigError
from rollart.sim.recorded import Change

_FEWEST_STEPS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    mode: ModeName
    steps: int
    environments: int

    def __post_init__(self) -> None:
        if self.environments < 1:
            raise ConfigError("run.environments", self.environments, "must be at least 1")
        if self.steps < _FEWEST_STEPS:
            fix = f"must be at least {_FEWEST_STEPS}: the first fills the pipeline, no time counts"
            raise ConfigError("run.steps", self.steps, fix)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule:
    run: _Run
    batching: Batching
    staleness: Staleness
    redundancy: Redundancy
    retry: Retry
    filter: Filter
    syncing: Syncing
    dispatch: Dispatch
    lending: Lending


_SECTIONS = [each.name for each in fields(_Schedule) if each.name != "run"]


def change_by(overrides: Sequence[str]) -> Change:
    """Return what makes a run's rules those that overrides ask for."""
    for override in overrides:
        _check_open(*parse_override(override))

    def change(rules: Rules, slots: int) -> tuple[Rules, int]:
        sections = {name: asdict(getattr(rules, name)) for name in _SECTIONS}
        run = {"mode": rules.mode.name, "steps": rules.steps, "environments": slots}
        layered = Layered(table={"run": run, **sections})
        layer_overrides(layered, overrides)
        asked = Builder(layered).build(_Schedule, layered.table, "")
        changed = Rules(
            steps=asked.run.steps,
            seed=rules.seed,
            mode=mode_named(asked.run.mode),
            **{name: getattr(asked, name) for name in _SECTIONS},
        )
        return changed, asked.run.environments

    return change


def _check_open(key: str, value: object) -> None:
    """Raise a ConfigError for a key that configs have and the log has settled."""
    section, _, name = key.partition(".")
    is_settled = section in _settled(Config, _Schedule)
    if section == "run":
        is_settled = name in _settled(RunOptions, _Run)
    if is_settled:
        runs = ", ".join(f"run.{each.name}" for each in fields(_Run))
        fix = (
            "the log has it as it was; a what-if changes the schedule alone: keys of "
            f"{', '.join(_SECTIONS)}, and {runs}"
        )
        raise ConfigError(key, value, fix)


def _settled(whole: type, open_: type) -> set[str]:
    return {each.name for each in fields(whole)} - {each.name for each in fields(open_)}
