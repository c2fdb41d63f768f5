"""The parts a controller drives, made from a config and, for a resumed run, from a checkpoint."""

from collections.abc import Callable, Mapping

from rollart.build.assembly import Engines
from rollart.build.tasks import task_streams
from rollart.build.wholeness import blame
from rollart.clock import SystemClock
from rollart.config import Config
from rollart.config.rules import make_rules
from rollart.control.scheduler import Scheduler
from rollart.control.snapshot import restore
from rollart.observe.faults import describe_fault
from rollart.ports import Renderer
from rollart.runtime.buffer import Buffer
from rollart.runtime.checkpointing import STATE, Saved
from rollart.runtime.controller import Controller
from rollart.runtime.env_manager import Access, Setup
from rollart.runtime.env_worker import Ends, EnvWorker
from rollart.runtime.evaluation import Evaluator
from rollart.runtime.gate import OpenGate, gate_for
from rollart.runtime.switchboard import Switchboard
from rollart.seeds import derive_seed
from rollart.types import TrajectoryId, Version

_EVALUATION = 3


def make_scheduler(config: Config, saved: Saved | None) -> Scheduler:
    """Return a new scheduler, or one that goes on from a checkpoint."""
    rules, domain_of = make_rules(config), task_streams(config)[0].domain
    if saved is None:
        return Scheduler(rules, domain_of=domain_of)
    try:
        return restore(rules, saved.scheduler, domain_of=domain_of)
    except (KeyError, TypeError, ValueError) as error:
        raise blame(saved.directory, f"{STATE}: {describe_fault(error)}") from error


def make_buffer(scheduler: Scheduler, saved: Saved | None) -> Buffer:
    """Return the buffer, with what a checkpoint kept in it."""
    buffer = Buffer(scheduler.is_fresh)
    for trajectory in () if saved is None else saved.trajectories:
        buffer.put(trajectory)
    return buffer


def make_evaluator(config: Config, setups: Mapping[str, Setup], engines: Engines) -> Evaluator:
    """Return what plays held-out episodes on the engines of this process."""
    board = _switchboard(config, engines)
    return evaluator_over(config, setups, renderer=engines.renderer, switchboard=board)


def evaluator_over(
    config: Config,
    setups: Mapping[str, Setup],
    *,
    renderer: Renderer,
    switchboard: Switchboard,
) -> Evaluator:
    """Return what plays held-out episodes on the engines of a switchboard."""
    access = Access(renderer=renderer, switchboard=switchboard, gate=OpenGate(), is_fresh=_always)
    # After the run's own slots and as many that stand in for slots that rest.
    first, count = 2 * config.run.environments, config.run.environments
    return Evaluator(
        setups=setups,
        access=access,
        tasks=task_streams(config)[1].task,
        slots=range(first, first + count),
        seed=derive_seed(config.run.seed, _EVALUATION),
    )


def make_worker(
    config: Config,
    setups: Mapping[str, Setup],
    engines: Engines,
    controller: Controller,
    buffer: Buffer,
) -> EnvWorker:
    """Return what runs attempts and reports to the controller."""
    mode, ends = config.mode, Ends(put=buffer.put, post=controller.post)
    return EnvWorker(
        setups=setups,
        access=Access(
            renderer=engines.renderer,
            switchboard=_switchboard(config, engines, on_cut=ends.cut),
            gate=gate_for(mode.lockstep),
            is_fresh=controller.scheduler.is_fresh,
        ),
        tasks=task_streams(config)[0].task,
        ends=ends,
        score_elsewhere=mode.score == "after_rollout",
    )


def _switchboard(
    config: Config,
    engines: Engines,
    on_cut: Callable[[TrajectoryId, int], None] | None = None,
) -> Switchboard:
    return Switchboard(
        engines.router(config.routing, affinity=config.mode.affinity),
        generators=engines.proxies,
        now=SystemClock().now,
        on_cut=on_cut,
    )


def _always(_version: Version) -> bool:
    return True
