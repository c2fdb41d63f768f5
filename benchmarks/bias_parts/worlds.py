"""Two workloads in which what an episode earns depends on how long it takes, in simulated time.

The scheduler is the live one. An episode's draws depend on the seed, the task and the member alone,
so every rule schedules the same episodes; a second try and a hedge repeat the draws of the attempt
that they stand for, in an environment whose speed is drawn anew.

`Bandit` has two arms, each chosen half of the time. The first earns 0.6 on average and the second
0.5, so the gradient of the expected reward in the logit is 0.5 * 0.5 * 0.1 = +0.025. What the first
arm earns takes three times as long, so a rule that prefers short episodes sees the arms reversed.

`Lengths` draws lognormal lengths with sigma = 1, half of the variance by task.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import exp, inf, sqrt
from random import Random
from statistics import fmean

from rollart.control.rules import Rules
from rollart.events import Command, Event, Launch, StepFinished, Train
from rollart.seeds import derive_seed
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.simulator import Simulator
from rollart.sim.timed import TimedEngine
from rollart.sim.workload import Script, ScriptTurn
from rollart.sim.world import World
from rollart.types import EngineId, EpisodeLimits, TrajectoryId, Version

TRUE_GRADIENT = 0.025
_FIRST_ARM = 0.5
_EARNS = (0.6, 0.5)
_LONG = 3.0
_SLOW_SHARE, _SLOW = 0.1, 4.0
"""A tenth of the environments take four times as long, whatever is played in them."""
_FAILS_AFTER_S = 20.0
_SPREAD = sqrt(0.5)
"""Standard deviation of the logarithm by task, and again by member."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """What one attempt will do.

    Example: `Drawn(seconds=31.0, reward=1.0, arm=0)`
    """

    seconds: float
    reward: float = 0.0
    arm: int = 0


class Bandit:
    """Two arms; the first earns more, and takes longer when it does."""

    def __init__(
        self, *, seed: int, mean_s: float = 10.0, limit_s: float = inf, fails: float = 0.0
    ) -> None:
        """Take the time limit of an episode and the share of environments that fail."""
        self._seed = seed
        self._fails = fails
        self._mean_s = mean_s
        self._limit_s = limit_s
        self.drawn: dict[TrajectoryId, Drawn] = {}

    def domain(self, task: int) -> str:
        """Return the domain of a task: all are alike."""
        del task
        return ""

    def script(self, launch: Launch) -> Script:
        """Return the script of an attempt: it earns in its first turn and plays three more."""
        own, place = _draws(self._seed, launch)
        arm = int(own.random() >= _FIRST_ARM)
        reward = float(own.random() < _EARNS[arm])
        times = _LONG if arm == 0 and reward else 1.0
        seconds = self._mean_s * times * exp(own.gauss(0.0, 0.3))
        self.drawn[launch.id] = Drawn(seconds=seconds, reward=reward, arm=arm)
        if place.random() < _SLOW_SHARE:
            seconds *= _SLOW
        script = _script(seconds, turns=4, reward=reward, limit_s=self._limit_s)
        if place.random() < self._fails:
            script = replace(script, reset_s=_FAILS_AFTER_S, fails=True)
        return script


class Lengths:
    """Episodes of lognormal length."""

    def __init__(self, *, seed: int, mean_s: float = 30.0) -> None:
        self._seed = seed
        self._mean_s = mean_s
        self.drawn: dict[TrajectoryId, Drawn] = {}

    def domain(self, task: int) -> str:
        """Return the domain of a task: all are alike."""
        del task
        return ""

    def script(self, launch: Launch) -> Script:
        """Return the script of an attempt."""
        own, _ = _draws(self._seed, launch)
        shared = Random(derive_seed(self._seed, launch.task, 1)).gauss(0.0, _SPREAD)
        seconds = self._mean_s * exp(shared + own.gauss(0.0, _SPREAD) - 0.5)
        self.drawn[launch.id] = Drawn(seconds=seconds)
        return _script(seconds, turns=8, reward=0.0, limit_s=inf)


def _draws(seed: int, launch: Launch) -> tuple[Random, Random]:
    """Return the draws of an attempt's policy, and those of its environment."""
    member = launch.member if launch.doubles is None else launch.doubles
    own = Random(derive_seed(seed, launch.task, 2, member))
    return own, Random(derive_seed(seed, launch.task, 3, launch.member, launch.attempt))


def _script(seconds: float, *, turns: int, reward: float, limit_s: float) -> Script:
    half_s = seconds / turns / 2
    turn = ScriptTurn(reads=1, samples=1, step_s=half_s, generate_s=half_s)
    return Script(
        domain="",
        reset_s=0.0,
        turns=(turn,) * turns,
        limits=EpisodeLimits(max_turns=turns, max_tokens=1 << 20),
        reward=reward,
        limit_s=limit_s,
    )


class Durations:
    """A trainer that takes ten seconds a step and hands over weights at once."""

    def train_s(self, tokens: int, *, version: Version) -> float:
        """Return the time of an optimizer step."""
        del tokens, version
        return 10.0

    def publish_s(self, version: Version) -> float:
        """Return the time until engines may load a new version."""
        del version
        return 0.0

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        """Return how long an engine pauses to load it."""
        del version, engine
        return 0.0

    def lend_s(self) -> float:
        """Return the time to turn training hardware into an engine; none is lent."""
        return 0.0

    def recall_s(self) -> float:
        """Return the time to turn it back."""
        return 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a simulated run trained.

    Example: `Observed(groups=[[Drawn(seconds=31.0)]], played=[30.2, 41.0], per_s=1.1, ages=[1, 2])`
    """

    groups: list[list[Drawn]]
    """Every group trained after the warm-up."""
    played: list[float]
    """Seconds of every member that was started for its own sake after the warm-up."""
    per_s: float
    """Trained trajectories a second."""
    ages: list[int]
    """The greatest age in each batch."""

    @property
    def gradients(self) -> list[float]:
        """Each group's estimate of the gradient, with the mean of the others as the baseline."""
        return [_gradient(group) for group in self.groups]

    @property
    def length_ratio(self) -> float:
        """Mean length trained over mean length played."""
        return fmean(each.seconds for group in self.groups for each in group) / fmean(self.played)

    @property
    def longest_tenth(self) -> float:
        """Share trained of the longest tenth played, over a tenth."""
        least = sorted(self.played)[-len(self.played) // 10]
        trained = [each.seconds >= least for group in self.groups for each in group]
        return 10 * fmean(trained)


def _gradient(group: Sequence[Drawn]) -> float:
    total = sum(each.reward for each in group)
    others = len(group) - 1
    return fmean(
        (each.reward - (total - each.reward) / others) * (float(each.arm == 0) - _FIRST_ARM)
        for each in group
    )


def simulate(
    workload: Bandit | Lengths, rules: Rules, *, slots: int = 128, warm_up: int = 10
) -> Observed:
    """Run the scheduler on a workload, as the start of a longer run."""
    launched: dict[TrajectoryId, Launch] = {}
    batches: list[Train] = []
    ends_s: list[float] = []

    def observe(now: float, event: Event, commands: Sequence[Command]) -> None:
        if isinstance(event, StepFinished):
            ends_s.append(now)
        for command in commands:
            if isinstance(command, Launch):
                launched[command.id] = command
            elif isinstance(command, Train):
                batches.append(command)

    def make_engines(loop: Loop) -> Sequence[FleetMember]:
        return [FleetMember(engine=TimedEngine(EngineId("engine-0"), loop=loop), pool="local")]

    world = World(
        rules=rules,
        workload=workload,
        make_engines=make_engines,
        durations=Durations(),
        slots=slots,
        open_ended=True,
    )
    Simulator(world, observers=[observe]).run()
    size, per_step = rules.batching.group_size, rules.batching.groups_per_step
    counted = batches[warm_up : rules.steps]
    took_s = ends_s[rules.steps - 1] - ends_s[warm_up - 1]
    drawn = workload.drawn
    return Observed(
        groups=[[drawn[id_] for id_ in group] for train in counted for group in train.groups],
        played=[
            drawn[launch.id].seconds
            for launch in launched.values()
            if launch.member < size and not launch.attempt and launch.task >= warm_up * per_step
        ],
        per_s=sum(len(group) for train in counted for group in train.groups) / took_s,
        ages=[train.staleness for train in counted],
    )
