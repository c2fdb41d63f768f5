"""The rewards of a run: the functions of its tasks behind one invoker, as the controller scores.

    trajectory ─► a call per part ─► invoker (retries, limits, places) ─► Σ weight · value

A part that compares attempts is called once for all that are scored together, any other once for
each. One that fails fails the reward of its trajectory, with its reason, and no other's. What was
opened here is closed when the block ends, whatever a function is still doing.

A process that runs reward functions knows the run only by its environment: one variable names
`offer_sandbox`, which it calls when a function first needs a sandbox, the other holds the sandbox's
options as JSON. It imports no more than that takes, since a cold start waits for it.
"""

import asyncio
import json
import os
from collections.abc import AsyncGenerator, Callable, Generator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any

from rollart.config import Config
from rollart.config.options import RewardPart, judge_engine, judge_pools, walk
from rollart.errors import ConfigError, SandboxError, ScoreError, StorageError
from rollart.ports import RewardInvoker
from rollart.rewards.context import SET_UP_VARIABLE, use_sandbox
from rollart.rewards.invoke.factory import make_reliable, open_invoker
from rollart.rewards.invoke.options import InvokerOptions
from rollart.rewards.invoke.retry import CallLine, ReliableInvoker
from rollart.rewards.registry import is_group_function, shipped_name
from rollart.rewards.weighted import combine
from rollart.rollout.scoring import Scored
from rollart.sandbox import open_sandbox, try_sandbox
from rollart.sandbox.options import KubernetesOptions, SandboxOptions
from rollart.types import Json, ProgramLimits, Reward, ScoreCall, Trajectory

OPTIONS_VARIABLE = "ROLLART_SANDBOX"


def sandbox_environment(options: SandboxOptions) -> Mapping[str, str]:
    """Return the variables by which a process offers this sandbox to reward functions."""
    return {
        SET_UP_VARIABLE: f"{__name__}:{offer_sandbox.__name__}",
        OPTIONS_VARIABLE: json.dumps(asdict(options)),
    }


def offer_sandbox() -> None:
    """Say how a sandbox is opened here: as the environment describes it."""
    options = read_options(os.environ.get(OPTIONS_VARIABLE, ""))
    use_sandbox(lambda: open_sandbox(options))


def read_options(text: str) -> SandboxOptions:
    """Return the options that were written as JSON."""
    try:
        tree: dict[str, Any] = json.loads(text)
        tree["limits"] = ProgramLimits(**tree["limits"])
        tree["kubernetes"] = KubernetesOptions(**tree["kubernetes"])
        for name in ("preload", "packages"):
            tree[name] = tuple(tree[name])
        return SandboxOptions(**tree)
    except (ValueError, TypeError, KeyError) as error:
        fix = f"must describe a sandbox as JSON: {type(error).__name__}: {error}"
        raise ConfigError(OPTIONS_VARIABLE, text, fix) from None


CALLS = "rewards.jsonl"
"""In a run's directory: a line for each call of a reward function."""
_GAUGES = (
    *("cold_starts", "cold_start_s", "instances", "utilisation", "queued", "cost"),
    *("retries", "hedges", "breakers_open"),
)
_MOST_REASONS = 20
_IN_SANDBOX = frozenset({"unit_tests", "stdin_stdout"})

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """One part of a task's reward, ready to be called."""

    options: RewardPart
    is_group: bool
    pool: str
    """Who answers: the invoker's kind, and the judge's own pool if there is one."""


class Rewards:
    """Scores the trajectories of a run."""

    def __init__(self, config: Config, invoker: RewardInvoker | None = None) -> None:
        """Take the invoker of the tasks' functions; none where no task has any."""
        self._invoker = invoker
        self._run = config.run.name
        self._tasks = {name: _parts(config, task.rewards) for name, task in config.tasks.items()}
        self._pools: dict[str, str] = {}

    @property
    def pools(self) -> Mapping[str, str]:
        """Who answers for each part, by `task/part`."""
        return {
            f"{task}/{name}": f"{part.options.function} by {part.pool}"
            for task, parts in self._tasks.items()
            for name, part in parts.items()
        }

    async def score(self, trajectories: Sequence[Trajectory]) -> Sequence[Scored]:
        """Score attempts that belong together; what fails is an error in its place."""
        parts = self._tasks[trajectories[0].task.env]
        if not parts:
            return [Reward(value=each.reward) for each in trajectories]
        outcomes = await asyncio.gather(
            *(self._ask(name, part, tuple(trajectories)) for name, part in parts.items())
        )
        weights = {name: part.options.weight for name, part in parts.items()}
        return [
            _combine(weights, dict(zip(parts, of_one, strict=True)))
            for of_one in zip(*outcomes, strict=True)
        ]

    def gauges(self) -> Mapping[str, float]:
        """Return what the invoker shows at a step, by metric name."""
        stats = self.stats()
        return {f"reward/{name}": stats[name] for name in _GAUGES if name in stats}

    def stats(self) -> Mapping[str, float]:
        """Return the invoker's counters and gauges since the start."""
        return {} if self._invoker is None else self._invoker.stats()

    def summary(self, failures: Mapping[str, int]) -> dict[str, Json]:
        """Return what the scores of a run came to; empty where no function scored."""
        if self._invoker is None:
            return {}
        reasons = sorted(failures.items(), key=lambda each: -each[1])[:_MOST_REASONS]
        summary: dict[str, Json] = {name: round(value, 4) for name, value in self.stats().items()}
        pools: dict[str, Json] = dict(self.pools)
        return {**summary, "pools": pools, "failures": dict[str, Json](reasons)}

    def pool_of(self, key: str) -> str:
        """Return who answered a call, once."""
        return self._pools.pop(key, "")

    async def _ask(
        self, name: str, part: _Part, trajectories: tuple[Trajectory, ...]
    ) -> list[Scored]:
        """Return what one part says of each trajectory."""
        batches = [trajectories] if part.is_group else [(each,) for each in trajectories]
        answers = await asyncio.gather(*(self._invoke(name, part, batch) for batch in batches))
        return [outcome for answer in answers for outcome in answer]

    async def _invoke(
        self, name: str, part: _Part, trajectories: tuple[Trajectory, ...]
    ) -> Sequence[Scored]:
        assert self._invoker is not None
        first = trajectories[0]
        whole = f"group-{first.group}-" if part.is_group else ""
        call = ScoreCall(
            function=part.options.function,
            options=part.options.options,
            trajectories=trajectories,
            is_group=part.is_group,
            key=f"{self._run}/{first.task.env}/{name}/{whole}{first.id}",
        )
        self._pools[call.key] = part.pool
        try:
            return await self._invoker.invoke(call)
        except ScoreError as error:
            return [error] * len(trajectories)


@asynccontextmanager
async def open_rewards(
    config: Config, *, directory: Path, say: Say, warn: Say
) -> AsyncGenerator[Rewards]:
    """Open what scores a run's trajectories; `say` gets who scores what, `warn` what fails."""
    if not any(task.rewards for task in config.tasks.values()):
        yield Rewards(config)
        return
    _check_engines(config)
    await _check_sandbox(config, say)
    with _variables(config), _call_log(directory / CALLS) as write, _joined(config):
        rewards: Rewards

        def note(line: CallLine) -> None:
            write({**asdict(line), "pool": rewards.pool_of(line.key)})

        try:
            invoker = _open_invoker(config.rewards, note, warn)
        except ConfigError as error:
            field = error.field.replace("invoker.", "rewards.", 1)
            raise ConfigError(field, error.value, error.fix) from None
        rewards = Rewards(config, invoker)
        for part, pool in rewards.pools.items():
            say(f"reward {part}: {pool}")
        try:
            await invoker.warm()
            yield rewards
        finally:
            await invoker.close()


@contextmanager
def _joined(config: Config) -> Generator[None]:
    """Be connected to the cluster whose tasks score, unless the run itself connects to it."""
    if config.rewards.kind != "ray":
        yield
        return
    own, other = config.ray.address, config.rewards.address
    if own and other not in ("", own):
        fix = f'a run joins one cluster, which is {own}: leave it "", or leave out --address'
        raise ConfigError("rewards.address", other, fix)
    from rollart.cluster.ray_session import LOCAL, connected  # noqa: PLC0415 loads ray

    with nullcontext() if own else connected(other or LOCAL):
        yield


def _open_invoker(
    options: InvokerOptions, on_call: Callable[[CallLine], None], warn: Say
) -> ReliableInvoker:
    if options.kind != "ray":
        return open_invoker(options, on_call=on_call, warn=warn)
    from rollart.cluster.ray_rewards import RayInvoker  # noqa: PLC0415 loads ray

    names = (SET_UP_VARIABLE, OPTIONS_VARIABLE)
    env = {name: os.environ[name] for name in names if name in os.environ}
    return make_reliable(RayInvoker(options, env=env), options, on_call=on_call, warn=warn)


def _parts(config: Config, parts: Mapping[str, RewardPart]) -> dict[str, _Part]:
    kind = config.rewards.kind
    return {
        name: _Part(
            options=part,
            is_group=is_group_function(part.function),
            pool=", asks ".join((kind, *judge_pools(part.function, part.options))),
        )
        for name, part in parts.items()
    }


def _combine(weights: Mapping[str, float], outcomes: Mapping[str, Scored]) -> Scored:
    try:
        return combine(weights, outcomes)
    except ScoreError as error:
        return error


async def _check_sandbox(config: Config, say: Say) -> None:
    """Run one program in the sandbox if a shipped function is to run programs here."""
    functions = {shipped_name(function) for _, function, _ in _functions(config)}
    is_ours = config.rewards.kind == "local" and SET_UP_VARIABLE not in os.environ
    if is_ours and functions & _IN_SANDBOX:
        try:
            held_by = await try_sandbox(config.sandbox)
        except SandboxError as error:
            raise ConfigError("sandbox.kind", config.sandbox.kind, str(error)) from error
        limits = ", ".join(f"{name} by {held_by[name]}" for name in ("memory", "cpu", "processes"))
        say(f"sandbox {config.sandbox.kind}: one program ran; {limits}")


def _check_engines(config: Config) -> None:
    """Refuse judges that ask an engine by a name which the processes of functions do not know."""
    if config.rewards.kind not in ("local", "ray") or SET_UP_VARIABLE in os.environ:
        return
    for key, function, options in _functions(config):
        if engine := judge_engine(function, options):
            fix = (
                "a run offers judges no engine: give judge.base_url, or name in "
                f"{SET_UP_VARIABLE} a module:function that calls use_model"
            )
            raise ConfigError(f"{key}.options.judge.engine", engine, fix)


def _functions(config: Config) -> Generator[tuple[str, str, Mapping[str, Json]]]:
    """Give all functions that score, those that others add up too, each with its part's key."""
    for task, options in config.tasks.items():
        for name, part in options.rewards.items():
            for function, given in walk(part.function, part.options):
                yield f"tasks.{task}.rewards.{name}", function, given


@contextmanager
def _variables(config: Config) -> Generator[None]:
    """Give the invoker's processes the sandbox's settings, unless the user has set them."""
    added: dict[str, str] = {}
    if SET_UP_VARIABLE not in os.environ:
        added = dict(sandbox_environment(config.sandbox))
    os.environ.update(added)
    try:
        yield
    finally:
        for name in added:
            os.environ.pop(name, None)


@contextmanager
def _call_log(path: Path) -> Generator[Callable[[Mapping[str, object]], None]]:
    """Append a line of JSON for each call."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file: IO[str] = path.open("a", encoding="utf-8")
    except OSError as error:
        raise StorageError(f"{path}: calls cannot be written: {error}") from error
    with file:
        yield lambda line: _write(file, line)


def _write(file: IO[str], line: Mapping[str, object]) -> None:
    try:
        file.write(json.dumps(line) + "\n")
    except OSError as error:
        raise StorageError(f"{file.name}: calls cannot be written: {error}") from error
