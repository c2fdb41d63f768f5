"""From a config to the simulator's values: the model's shape, task profiles and what-if changes.

A what-if simulates a recorded run by another schedule, given as `key=value`. The log fixes how long
attempts, optimizer steps and weights took, so only the schedule may change: the keys of its
sections, and of [run] the mode, the steps and the environments. Any other key is an error that
says so.

A task profile says how the episodes of a well-known task behave; a config takes one by name,
`profile = { like = "swe" }`. Turns are the paper's; tokens per turn and latencies are chosen, and
docs/simulator.md says by what. They stand for SWE-bench, WebShop, FrozenLake, and GEM's mathematics
and games.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Annotated, Any

from rollart.config.fields import keys_of
from rollart.config.loader import Layered, OptionBuilder, layer_overrides, parse_override
from rollart.config.options import RunOptions, TaskOptions
from rollart.config.schema import Config
from rollart.config.simulation import LatencyKind, ProfileOptions
from rollart.constraints import AtLeast, check_fields, fixed_fields
from rollart.control.rules import ModeName, Rules, RuleSections, mode_named
from rollart.errors import ConfigError
from rollart.hardware.models import MODEL_NAMES, ModelShape, model_named
from rollart.sim.recorded import Change
from rollart.sim.workload import Latency, TaskProfile


def lognormal(mean_s: float, spread: float = 0.5) -> Latency:
    """Return a lognormal latency."""
    return Latency(kind="lognormal", mean_s=mean_s, spread=spread)


SWE = TaskProfile(
    name="swe",
    turns=(30, 50),
    opening_tokens=2000,
    reads=350,
    samples=100,
    reset=lognormal(40.0),
    step=lognormal(1.5, 0.8),
    score=lognormal(3.0),
)
WEBSHOP = TaskProfile(
    name="webshop",
    turns=(5, 30),
    opening_tokens=800,
    reads=400,
    samples=250,
    reset=lognormal(15.0),
    step=lognormal(0.5, 0.8),
    score=lognormal(1.0),
)
FROZEN_LAKE = TaskProfile(
    name="frozenlake",
    turns=(20, 100),
    opening_tokens=500,
    reads=70,
    samples=100,
    reset=lognormal(15.0),
    step=lognormal(0.2),
    score=lognormal(0.5),
)
MATH = TaskProfile(
    name="math",
    turns=(2, 4),
    opening_tokens=300,
    reads=300,
    samples=3000,
    samples_spread=0.2,
    reset=lognormal(15.0),
    step=lognormal(1.0),
    score=lognormal(1.0),
)
GAME = TaskProfile(
    name="game",
    turns=(1, 1),
    opening_tokens=500,
    samples=9000,
    samples_spread=0.2,
    reset=lognormal(15.0),
    step=lognormal(0.2),
    score=lognormal(1.0),
)
TASKS = (SWE, WEBSHOP, FROZEN_LAKE, MATH, GAME)
"""Every profile that a config can name."""


PROFILES = {profile.name: profile for profile in TASKS}
"""The profiles that come with the simulator."""
_SPREAD = 0.5
"""Of a latency of which only the mean is known."""


_FIGURES = {
    "opening_tokens": "opening_tokens",
    "observation_tokens": "reads",
    "completion_tokens": "samples",
    "completion_spread": "samples_spread",
    "failure_rate": "failure_rate",
}
"""Plain figures of a profile: their keys in a config, and the simulator's names."""


def shape_of(config: Config) -> ModelShape:
    """Return the shape of the config's model."""
    model = config.model
    if model.shape:
        return model_named(model.shape, field="model.shape")
    name = model.path.rstrip("/").rpartition("/")[2]
    if name not in MODEL_NAMES:
        fix = f"its shape is not known: set model.shape to one of {', '.join(MODEL_NAMES)}"
        raise ConfigError("model.path", model.path, fix)
    return model_named(name)


def profiles_of(config: Config) -> tuple[TaskProfile, ...]:
    """Return how the tasks of a config behave, each under its domain's name."""
    profiles: dict[str, TaskProfile] = {}
    for name, task in config.tasks.items():
        domain = task.domain or name
        if domain in profiles:
            fix = "another task has this domain: requests are routed by it, so give each its own"
            raise ConfigError(f"tasks.{name}.domain", domain, fix)
        profiles[domain] = _profile(name, task, domain)
    return tuple(profiles.values())


def _profile(name: str, task: TaskOptions, domain: str) -> TaskProfile:
    options = task.profile
    field = f"tasks.{name}.profile"
    if options.like and options.like not in PROFILES:
        fix = f"not known; there is {', '.join(PROFILES)}"
        raise ConfigError(f"{field}.like", options.like, fix)
    if options.like:
        base = PROFILES[options.like]
    elif options.turns is None or options.completion_tokens is None:
        fix = f"say how its episodes behave: like = one of {', '.join(PROFILES)}, or turns,"
        more = f"observation_tokens and completion_tokens, under [{field}]"
        raise ConfigError(field, None, f"{fix} {more}")
    else:
        base = TaskProfile(name=domain, turns=options.turns)
    low, high = options.turns or base.turns
    return replace(
        base,
        **_figures(options, base),
        name=domain,
        weight=task.weight,
        turns=(min(low, task.max_turns), min(high, task.max_turns)),
        max_tokens=task.max_tokens,
    )


def _figures(options: ProfileOptions, base: TaskProfile) -> dict[str, Any]:
    """Return what the options say of a profile, in its own words."""
    given: dict[str, Any] = {
        name: getattr(options, key)
        for key, name in _FIGURES.items()
        if getattr(options, key) is not None
    }
    for name in ("reset", "step", "score"):
        known: Latency | None = getattr(base, name)
        latency = _latency(options, name, known)
        if latency != known:
            given[name] = latency
    if options.failure_after_s is not None:
        given["failure_after"] = _about(options.failure_after_s)
    return given


def _latency(options: ProfileOptions, name: str, known: Latency | None) -> Latency | None:
    """Return a latency with what is given of it, and the shape that is known, if one is."""
    mean_s: float | None = getattr(options, f"{name}_s")
    if mean_s is not None:
        if known is not None and known.mean_s:
            known = replace(known, mean_s=mean_s)
        else:
            known = _about(mean_s)
    spread: float | None = getattr(options, f"{name}_spread", None)
    if known is not None and spread is not None:
        known = replace(known, kind=_spreading(known.kind), spread=spread)
    tail: tuple[float, float] | None = getattr(options, f"{name}_tail", None)
    if known is not None and tail is not None:
        known = replace(known, tail_share=tail[0], tail_factor=tail[1])
    return known


def _spreading(kind: LatencyKind) -> LatencyKind:
    """Return the distribution that a spread is given of."""
    return "lognormal" if kind == "constant" else kind


def _about(mean_s: float) -> Latency:
    return Latency(kind="lognormal", mean_s=mean_s, spread=_SPREAD)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Run:
    mode: ModeName
    steps: Annotated[int, AtLeast(2, "the first fills the pipeline, its time does not count")]
    environments: Annotated[int, AtLeast(1)]

    def __post_init__(self) -> None:
        check_fields(self, "run")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Schedule(RuleSections):
    run: _Run


_SECTIONS = [each.name for each in fields(RuleSections)]


def change_by(overrides: Sequence[str]) -> Change:
    """Return what makes a run's rules those that overrides ask for."""
    for override in overrides:
        _check_open(*parse_override(override))

    def change(rules: Rules, slots: int) -> tuple[Rules, int]:
        sections = {name: _settable(rule) for name, rule in rules.sections.items()}
        run = {"mode": rules.mode.name, "steps": rules.steps, "environments": slots}
        layered = Layered(table={"run": run, **sections})
        layer_overrides(layered, overrides)
        asked = OptionBuilder(layered).build(_Schedule, layered.table, "")
        changed = Rules(
            steps=asked.run.steps,
            seed=rules.seed,
            mode=mode_named(asked.run.mode),
            **{
                name: replace(rule, **_fixed(getattr(rules, name)))
                for name, rule in asked.sections.items()
            },
        )
        return changed, asked.run.environments

    return change


def _settable(rule: Any) -> dict[str, Any]:
    """Return what a config says of a rule."""
    return {key: getattr(rule, name) for key, name in keys_of(rule).items()}


def _fixed(rule: Any) -> dict[str, Any]:
    """Return what a config cannot say of a rule: it stays as it was recorded."""
    return {name: getattr(rule, name) for name in fixed_fields(type(rule))}


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
