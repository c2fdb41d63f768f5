"""One scripted world, driven twice: by the live controller in virtual time and by the simulator.

Everything that takes time takes it from `Numbers`, by name: both drivers read the same ones. Live,
only the leaves are scripted (environment, generator, trainer, reward function, renderer); what
stands between them and the scheduler is the program's own.
"""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from random import Random
from types import SimpleNamespace
from unittest import mock

from scorers import in_thread
from virtual_time import VirtualClock, VirtualLoop, run

from rollart.config.simulation import ScoringOptions
from rollart.control.routing import Router, Routing
from rollart.control.rules import Rules
from rollart.control.scheduler import Scheduler
from rollart.events import Command, Event, Launch
from rollart.rollout.barrier import LockStepBarrier, NoBarrier
from rollart.rollout.buffer import Buffer
from rollart.rollout.controller import Controller, Parts
from rollart.rollout.engine_client import EngineClient
from rollart.rollout.env_manager import Access, Setup
from rollart.rollout.env_slot import Timeouts
from rollart.rollout.env_threads import EnvThread, EnvThreads
from rollart.rollout.env_worker import Ends, EnvWorker
from rollart.seeds import derive_seed
from rollart.sim.fleet import FleetMember
from rollart.sim.loop import Loop
from rollart.sim.simulator import Simulator
from rollart.sim.timed import TimedEngine
from rollart.sim.workload import Script, ScriptTurn
from rollart.sim.world import World
from rollart.types import (
    Completion,
    EngineId,
    EngineInfo,
    EpisodeLimits,
    Message,
    Request,
    Sampling,
    StepReport,
    Task,
    Trajectory,
    TrajectoryId,
    Version,
)

DOMAINS = ("games", "code", "web")
LIMITS = EpisodeLimits(max_turns=5, max_tokens=200)
FOR_EVER = Timeouts(reset_s=1e9, step_s=1e9, episode_s=1e9)
History = list[tuple[float, str, tuple[Command, ...]]]
"""When the scheduler took in which kind of event, and what it commanded."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One run to be made twice."""

    rules: Rules
    slots: int = 8
    engines: tuple[str, ...] = ("local",)
    """The pool of each engine that always serves."""
    lent: int = 0
    routing: Routing = field(default_factory=Routing)
    is_scored: bool = False
    """Rewards come from a reward function, not from the environments."""
    failure_rate: float = 0.0
    seed: int = 0

    @property
    def infos(self) -> tuple[EngineInfo, ...]:
        pools = [*self.engines, *["training"] * self.lent]
        return tuple(
            EngineInfo(
                id=EngineId(f"engine-{number}"),
                pool=pool,
                version=Version(0),
                lent=number >= len(self.engines),
            )
            for number, pool in enumerate(pools)
        )


class Numbers:
    """What everything takes, drawn from the seed by name: no two draws are equal."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._scripts: dict[TrajectoryId, Script] = {}

    def domain(self, task: int) -> str:
        return DOMAINS[task % len(DOMAINS)]

    def script(self, launch: Launch) -> Script:
        if launch.id not in self._scripts:
            self._scripts[launch.id] = self._draw(launch)
        return self._scripts[launch.id]

    def script_of(self, trajectory: TrajectoryId) -> Script:
        return self._scripts[trajectory]

    def train_s(self, tokens: int, *, version: Version) -> float:
        del tokens
        return self._random(2, version).uniform(0.5, 12)

    def publish_s(self, version: Version) -> float:
        return self._random(3, version).uniform(0.1, 3)

    def update_s(self, version: Version, *, engine: EngineId) -> float:
        return self._random(4, version, int(engine.partition("-")[2])).uniform(0.1, 2)

    def lend_s(self) -> float:
        return 0.375

    def recall_s(self) -> float:
        return 0.375

    def _random(self, *name: int) -> Random:
        return Random(derive_seed(self._case.seed, *name))

    def _draw(self, launch: Launch) -> Script:
        case = self._case
        random = self._random(1, launch.task, launch.member, launch.attempt)
        slow = random.choice((1, 1, 1, 10))
        turns = tuple(
            ScriptTurn(
                reads=random.randint(1, 30),
                samples=random.randint(1, 30),
                step_s=random.uniform(0.01, 1) * slow,
                generate_s=random.uniform(0.1, 3),
            )
            for _ in range(random.randint(1, 7))
        )
        return Script(
            domain=self.domain(launch.task),
            reset_s=random.uniform(0.1, 4),
            turns=turns,
            limits=LIMITS,
            score_s=random.uniform(0.1, 5) if case.is_scored else None,
            fails=random.random() < case.failure_rate,
            reward=float(random.randint(0, 1)),
        )


# --- simulated ------------------------------------------------------------------------------


def simulated(case: Case) -> History:
    """Make the run in the simulator."""
    numbers, history = Numbers(case), []

    def make_engines(loop: Loop) -> Sequence[FleetMember]:
        return [
            FleetMember(engine=TimedEngine(info.id, loop=loop), pool=info.pool, lent=info.lent)
            for info in case.infos
        ]

    world = World(
        rules=case.rules,
        workload=numbers,
        make_engines=make_engines,
        durations=numbers,
        slots=case.slots,
        routing=case.routing,
        rewards=ScoringOptions(kind="dedicated", max_instances=100_000),
    )
    Simulator(world, observers=[lambda *seen: history.append(_entry(*seen))]).run()
    return history


def _entry(now: float, event: Event, commands: Sequence[Command]):
    return now, type(event).__name__, tuple(commands)


# --- live -----------------------------------------------------------------------------------


def live(case: Case) -> History:
    """Make the run with the live controller, in virtual time."""
    with mock.patch.object(EnvThreads, "lend", _serve_soon):
        return run(lambda loop: _live(case, loop))


def _serve_soon(_threads: EnvThreads, thread: EnvThread) -> None:
    """Run the calls of an environment on the virtual loop: a thread would not know its time."""
    asyncio.get_running_loop().call_soon(thread.serve)


async def _live(case: Case, loop: VirtualLoop) -> History:
    stage = Stage(numbers=Numbers(case), loop=loop)
    generators = {info.id: TimedGenerator(info, stage=stage) for info in case.infos}
    scheduler = Scheduler(case.rules, domain_of=stage.numbers.domain)
    clock = VirtualClock(loop)
    history: History = []

    def observe(now: float, event: Event, commands: Sequence[Command]) -> None:
        history.append(_entry(now, event, commands))
        stage.note(commands)

    controller = Controller(scheduler, clock=clock, observers=[observe])
    buffer = Buffer(scheduler.is_fresh)
    routing = case.routing if case.rules.mode.affinity else replace(case.routing, affinity={})
    serving = [(info.id, info.pool) for info in case.infos if not info.lent]
    access = Access(
        renderer=CountRenderer(),
        engines=EngineClient(
            Router(routing, engines=serving), generators=generators, now=clock.now
        ),
        barrier=LockStepBarrier() if case.rules.mode.lockstep else NoBarrier(),
        is_fresh=scheduler.is_fresh,
    )
    setup = Setup(
        make=lambda slot: ScriptedEnv(slot, stage=stage),
        system="",
        limits=LIMITS,
        sampling=Sampling(max_tokens=1000),
        timeouts=FOR_EVER,
    )
    worker = EnvWorker(
        setups={"scripted": setup},
        access=access,
        tasks=stage.task,
        ends=Ends(put=buffer.put, post=controller.post),
        score_elsewhere=case.is_scored,
    )
    parts = Parts(
        worker=worker,
        generators=generators,
        trainer=TimedTrainer(stage),
        buffer=buffer,
        encode=lambda groups: {},
        score=in_thread(stage.score),
        on_train=lambda groups: None,
        after_event=lambda event, tasks: None,
    )
    await controller.run(parts, engines=case.infos, slots=case.slots)
    return history


@dataclass(kw_only=True)
class Stage:
    """What the scripted leaves of a live run know of it."""

    numbers: Numbers
    loop: VirtualLoop
    by_slot: dict[int, Script] = field(default_factory=dict)

    def note(self, commands: Sequence[Command]) -> None:
        """Hand out the scripts of the attempts that start."""
        for command in commands:
            if isinstance(command, Launch):
                self.by_slot[command.slot] = self.numbers.script(command)

    def task(self, index: int) -> Task:
        return Task(id=index, env="scripted", domain=self.numbers.domain(index), seed=index)

    def score(self, trajectory: Trajectory) -> float:
        script = self.numbers.script_of(trajectory.id)
        self.loop.spend(script.score_s)
        return script.reward


class CountRenderer:
    """Observations are numbers, and are as many tokens."""

    stop = (0,)

    def start(self, messages: Sequence[Message]) -> tuple[int, ...]:
        return (1,) * int(messages[-1].text)

    def extend(self, messages: Sequence[Message], *, closed: bool) -> tuple[int, ...]:
        return (1,) * int(messages[-1].text)

    def decode(self, tokens) -> str:
        return ""


class ScriptedEnv:
    """Plays the script of the attempt that has its slot, on the loop whose time jumps."""

    inline = True

    def __init__(self, slot: int, *, stage: Stage) -> None:
        self._slot = slot
        self._stage = stage

    async def reset(self, seed, task):
        self._script = self._stage.by_slot[self._slot]
        self._turn = 0
        await asyncio.sleep(self._script.reset_s)
        if self._script.fails:
            raise RuntimeError("the scripted environment failed")
        return str(self._script.turns[0].reads), {}

    async def step(self, action):
        turns = self._script.turns
        await asyncio.sleep(turns[self._turn].step_s)
        self._turn += 1
        reward = self._script.reward if self._turn == 1 else 0.0
        if self._turn == len(turns):
            return "0", reward, True, False, {}
        return str(turns[self._turn].reads), reward, False, False, {}


class TimedGenerator:
    """Completes each request after its script's seconds; stands still while suspended."""

    def __init__(self, info: EngineInfo, *, stage: Stage) -> None:
        self._info = info
        self._stage = stage
        self._version = Version(0)
        self._waiting: dict[TrajectoryId, SimpleNamespace] = {}
        self._suspended = False

    async def generate(self, request: Request, on_cut: object = None) -> Completion:
        turn = self._stage.numbers.script_of(request.session).turns[request.turn]
        future = self._stage.loop.create_future()
        waiting = SimpleNamespace(left_s=turn.generate_s, future=future, timer=None, born=None)
        self._waiting[request.session] = waiting
        if not self._suspended:
            self._start(waiting)
        try:
            is_whole = await future
        finally:
            del self._waiting[request.session]
            if waiting.timer is not None:
                waiting.timer.cancel()
        count = min(turn.samples, request.sampling.max_tokens) if is_whole else 0
        return Completion(
            session=request.session,
            turn=request.turn,
            tokens=(1,) * count,
            logprobs=(0.0,) * count,
            versions=(waiting.born,) * count,
            finish="length" if is_whole else "abort",
        )

    async def suspend(self) -> None:
        self._suspended = True
        for waiting in self._waiting.values():
            waiting.timer.cancel()
            waiting.left_s -= self._stage.loop.time() - waiting.began_s

    async def update(self, version: Version) -> Mapping[str, float]:
        numbers, info = self._stage.numbers, self._info
        seconds = numbers.lend_s() if info.lent else numbers.update_s(version, engine=info.id)
        await asyncio.sleep(seconds)
        self._version = version
        return {}

    async def resume(self) -> None:
        self._suspended = False
        for waiting in self._waiting.values():
            self._start(waiting)

    async def evict(self) -> None:
        for waiting in self._waiting.values():
            waiting.future.set_result(False)
        await asyncio.sleep(self._stage.numbers.lend_s())

    def forget(self, session: TrajectoryId) -> None:
        pass

    def _start(self, waiting: SimpleNamespace) -> None:
        if waiting.born is None:
            waiting.born = self._version
        waiting.began_s = self._stage.loop.time()
        waiting.timer = self._stage.loop.call_later(waiting.left_s, waiting.future.set_result, True)


class TimedTrainer:
    """Counts versions."""

    def __init__(self, stage: Stage) -> None:
        self._numbers = stage.numbers
        self._version = Version(0)

    async def publish(self) -> Version:
        await asyncio.sleep(self._numbers.publish_s(self._version))
        return self._version

    async def step(self, _batch: object) -> StepReport:
        await asyncio.sleep(self._numbers.train_s(0, version=self._version))
        self._version = Version(self._version + 1)
        return StepReport(version=self._version, metrics={})

    async def close(self) -> None:
        pass
