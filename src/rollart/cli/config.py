"""`rollart config`: see, check and understand a config; what a run of it would do, in words.

`describe_run` is also what `rollart train --dry-run` prints, before anything is done.
"""

from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollart.cli.output import GREEN, counted, paint, say
from rollart.cli.parser import Parser, add_overrides
from rollart.config import Config, add_import_paths, check_names, dump_toml, explain, load_config
from rollart.config.checks import check_places
from rollart.config.places import idle_units, refusal, refused_split
from rollart.control.rules import Mode
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError
from rollart.observe.run_directory import place_of_earlier
from rollart.plugins import name_of

_IMITATION = "imitation"
_UPDATES = {"idle": "when nothing runs", "at_once": "mid-trajectory, tokens kept"}
_ROLES = {
    "any": "up to the planner",
    "train": "train",
    "rollout": "roll out",
    "environments": "host environments",
}
_BOUNDS = {"start": "held when a trajectory starts", "always": "held until it is trained"}


def add_config(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Show, check or explain a config."
    actions = parser.add_subparsers(
        dest="action", required=True, parser_class=Parser, metavar="show|check|explain"
    )
    for name, about in (
        ("show", "Print the complete config, defaults and overrides included, as TOML."),
        ("check", "Check that a config is valid and that its environments exist."),
    ):
        action = actions.add_parser(name, description=about, help=about)
        action.add_argument("config", metavar="CONFIG", help="a TOML file")
        add_overrides(action)
        if name == "show":
            help_text = "print only what differs from the defaults"
            action.add_argument("--changed", action="store_true", help=help_text)
    about = "Explain a key or a section."
    meaning = actions.add_parser("explain", description=about, help=about)
    meaning.add_argument(
        "key",
        nargs="?",
        default="",
        metavar="KEY",
        help="a key or section, e.g. staleness.alpha; without one, list all",
    )
    meaning.add_argument("--config", metavar="FILE", help="show the value in FILE too")


def run_config(arguments: Namespace) -> int:
    """Show, check or explain."""
    match arguments.action:
        case "show":
            config = load_config(arguments.config, arguments.overrides)
            say(dump_toml(config, changed=arguments.changed).rstrip())
        case "check":
            _check(arguments)
        case _:
            named = arguments.config
            say(explain(arguments.key, None if named is None else load_config(named)))
    return 0


def _check(arguments: Namespace) -> None:
    config = load_config(arguments.config, arguments.overrides)
    add_import_paths(config)
    check_names(config)
    say(f"{paint('valid:', GREEN)} {arguments.config}\n")
    say(describe_run(config, resume=None))


def describe_run(config: Config, *, resume: Path | None) -> str:
    """Return what a run would do as text."""
    steps = counted(config.run.steps, "step")
    title = f"{config.run.name}: {steps}, {_describe_directory(config, resume)}"
    if config.run.pipeline == _IMITATION:
        return "\n".join([title, "", *_rows(_describe_imitation(config))])
    lines = [
        title,
        "",
        *_rows(
            {
                "model": _describe_model(config),
                "tasks": _describe_tasks(config),
                "batch": _describe_batch(config),
                "slots": _describe_slots(config),
                **_describe_engines(config),
                "evaluation": _describe_evaluation(config),
                "checkpoints": _describe_checkpoints(config),
            }
        ),
        "",
        f"mode {config.mode.name}",
        *_rows(_describe_mode(config)),
        *_describe_idle(config),
        *_describe_refusal(config),
    ]
    return "\n".join(lines)


def _describe_directory(config: Config, resume: Path | None) -> str:
    """Say where the run's files go, and what happens to the run that is there."""
    path = config.run.path
    is_own = resume is not None and path.resolve() in (resume.resolve(), *resume.resolve().parents)
    if is_own:
        return f"resumed in {path}"
    moved = place_of_earlier(path)
    where = path if moved is None else f"{path} (the earlier run there is moved to {moved})"
    if resume is None:
        return f"new run in {where}"
    return f"resumed from {resume}, which is not changed, in {where}"


def headline(config: Config) -> str:
    """Return in one line what a run does: what is easily got wrong by a slip."""
    tasks = ", ".join(
        name if name == task.env else f"{name} ({task.env})" for name, task in config.tasks.items()
    )
    steps, path = counted(config.run.steps, "step"), config.run.path
    if config.run.pipeline == _IMITATION:
        policy = name_of("policy", type(config.policy))
        return f"{config.run.name}: {tasks}; policy {policy}; {steps} of imitation; in {path}"
    rule = config.mode.staleness(config.staleness)
    mode = f"mode {config.mode.name}, staleness at most {rule.alpha}"
    if config.staleness.alpha not in (rule.alpha, Staleness().alpha):
        mode += f" (the mode's: staleness.alpha = {config.staleness.alpha} has no effect)"
    groups, size = config.batching.groups_per_step, config.batching.group_size
    batch = f"{steps} of {groups} x {size} trajectories"
    return f"{config.run.name}: {tasks}; {config.model.path}; {batch}; {mode}; in {path}"


def most_attempts(config: Config) -> int:
    """Return how many attempts the mode ever has in flight or waiting to train."""
    rule = config.mode.staleness(config.staleness)
    groups = rule.free_groups(0, consumed=0, groups_per_step=config.batching.groups_per_step)
    members = config.redundancy.members(config.batching.group_size)
    return (groups + config.redundancy.extra_groups) * members


def _rows(values: dict[str, str]) -> list[str]:
    width = max(len(name) for name in values)
    return [f"  {name:<{width}}  {value}" for name, value in values.items()]


def _describe_imitation(config: Config) -> dict[str, str]:
    return {
        "policy": name_of("policy", type(config.policy)),
        "tasks": _describe_tasks(config),
        "evaluation": _describe_evaluation(config, is_before=False),
        "checkpoints": _describe_checkpoints(config),
    }


def _describe_model(config: Config) -> str:
    model = config.model
    if model.tiny_size is not None:
        plays = counted(model.warm_start_episodes, "play")
        start = f"warm start from {plays}" if model.warm_start else "random weights"
        return f"{model.path}, about {model.tiny_size} parameters, {start}"
    directory = Path(model.path)
    if not directory.is_dir():
        return f"{model.path} from the model hub"
    size = sum(each.stat().st_size for each in directory.glob("*.safetensors"))
    return f"{model.path}, {size / 1e6:,.0f} MB of weights"


def _describe_tasks(config: Config) -> str:
    total = sum(task.weight for task in config.tasks.values())
    return ", ".join(
        f"{name} ({task.env}, {task.weight / total:.0%}, at most {counted(task.max_turns, 'turn')})"
        for name, task in config.tasks.items()
    )


def _describe_batch(config: Config) -> str:
    groups, size = config.batching.groups_per_step, config.batching.group_size
    total = counted(config.attempts_per_step, "trajectory")
    text = f"{counted(groups, 'group')} of {size} = {total} a step"
    extra = config.redundancy.extra_members
    return text + (f"; {counted(extra, 'extra attempt')} a group" if extra else "")


def _describe_slots(config: Config) -> str:
    slots, most = config.run.environments, most_attempts(config)
    text = f"{counted(slots, 'environment')} at once; the schedule uses at most {most}"
    return text + ("; the others stay idle" if slots > most else "")


def _describe_engines(config: Config) -> dict[str, str]:
    if not config.pools:
        return {"engine": f"{config.engine.replicas} x {config.engine.name}"}
    rows: dict[str, str] = {}
    for name, pool in config.pools.items():
        words = [f"{pool.count} x {pool.hardware}", _ROLES[pool.role]]
        words += [f"tp {pool.tp}"] if pool.tp else []
        words += [f"{pool.prefill} prefill : {pool.decode} decode"] if pool.prefill else []
        tasks = [
            domain for domain, names in config.routing.affinity.items() if names[:1] == (name,)
        ]
        words += ["first choice of " + ", ".join(tasks)] if tasks else []
        rows[f"pool {name}"] = ", ".join(words)
    return rows


def _describe_idle(config: Config) -> list[str]:
    ranks = config.training.ranks
    return [
        f"\ntraining.ranks = {ranks}: {count} of the {config.pools[name].count} units of pool "
        f"{name} train nothing; raise it to use them."
        for name, count in idle_units(config).items()
    ]


def _describe_refusal(config: Config) -> list[str]:
    error = refused_split(config)
    if error is None and config.ray.address:
        error = _refused_places(config)
    if error is not None:
        return ["", f"`rollart train` refuses these pools: {error}"]
    error = None if config.ray.address else refusal(config)
    if error is None:
        return []
    return [
        "",
        f"`rollart train` on this machine refuses these pools ({error.field} = {error.value!r}); "
        "`rollart simulate` takes them, and a Ray cluster with --address.",
    ]


def _refused_places(config: Config) -> ConfigError | None:
    try:
        check_places(config)
    except ConfigError as error:
        return error
    return None


def _describe_evaluation(config: Config, *, is_before: bool = True) -> str:
    run = config.run
    if not run.evaluate_episodes:
        return "none"
    often = f", and every {counted(run.evaluate_every, 'step')}" if run.evaluate_every else ""
    when = "before and after" if is_before else "after"
    return f"{counted(run.evaluate_episodes, 'held-out episode')} {when}{often}"


def _describe_checkpoints(config: Config) -> str:
    run = config.run
    every = f"every {counted(run.checkpoint_every, 'step')} and " if run.checkpoint_every else ""
    return f"{every}at the end; the newest {run.keep_checkpoints} are kept"


def _describe_mode(config: Config) -> dict[str, str]:
    mode: Mode = config.mode
    rule = mode.staleness(config.staleness)
    starts = (
        "batch by batch"
        if mode.admission == "iteration"
        else "whenever the window of outstanding groups has room"
    )
    return {
        "rollout": "lock-step" if mode.lockstep else "trajectory by trajectory",
        "groups start": starts,
        "rewards": "as each trajectory ends" if mode.score == "at_once" else "after the batch",
        "weights change": _UPDATES[mode.update],
        "staleness": f"at most {rule.alpha}, {_BOUNDS[mode.bound]}",
        "routing": "by task domain" if mode.affinity else "by load",
    }
