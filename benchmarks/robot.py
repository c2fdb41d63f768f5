"""The robot policy: its success beside its rivals', its costs, and what rewards add.

Imitation: OMP, MP1, FlowPolicy and diffusion learn from the same demonstrations with the same
network and budget; the final average plays resets that no demonstration has, the same ones for
all. An interval is a bootstrap over tasks, seeds and resets; comparisons are paired by reset.

- `success`: by objective, mean with a 95 % interval, `by_class` of difficulty and `by_task`
- `omp_over_mp1`, `omp_over_flowpolicy`, `omp_over_diffusion`: differences in points
- `ablation`: OMP without alignment, without dispersive loss, with either derivative; `over_omp` in
  points
- `adroit`: by task and objective, if ROLLART_ADROIT_EXPERTS names a directory of experts
- `omp_ms`, `diffusion_ms`, `diffusion_over_omp`: one chunk of actions of one environment
- `step_ms`, `memory`: a training step of OMP by derivative; `memory` is the peak of tensor bytes
  (how it is measured: robot_parts/costs.py), `memory_in_step` the part that only the step needs,
  `memory_points` the peak with the network on point clouds
- `dde_below_double_backward`: the share of `memory` that dde saves
- `rl_before`, `rl_after`, `rl_gain`: by task, reinforcement learning in mode rollart from a weak
  start (chosen by a rule: robot_parts/rewards.py), one environment of 16 hung and one slow
- `rollart_over_sync`: trained trajectories a second in the same setting, episodes of unequal
  length; `rollart_over_sync_healthy`: without the hung and the slow environment

Plain: two tasks of Meta-World, one seed, few steps; each stage has a budget, and makes fewer steps
where the machine is slow, so that all ends within five minutes on two quiet cores. `--full`: eight
tasks over the four classes, three seeds, 50 resets. What is finished is kept in $ROLLART_CACHE or
~/.cache/rollart, under bench-robot, and not run again. `--quick`: one task, fewer steps;
reinforcement learning on toy-reach, and all of it there where Meta-World is not installed.
"""

import os
import tempfile
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.live_runs.timed import say
from benchmarks.robot_parts import costs
from benchmarks.robot_parts.estimates import Cells, by_label, difference, estimate
from benchmarks.robot_parts.rewards import LADDER, RewardUnit, pace, run_reward_unit, weak_start
from benchmarks.robot_parts.units import PROCESSES, Unit, key_of, run_units
from rollart.cli.bench import Effort
from rollart.errors import UserError
from rollart_robot.envs import make_env
from rollart_robot.options import GenerativeOptions, ImitationOptions
from rollart_robot.tasks import find_task

NAME = "robot"
EXPERTS = "ROLLART_ADROIT_EXPERTS"
TOY = "toy-reach"
OBJECTIVES: dict[str, GenerativeOptions] = {
    "omp": GenerativeOptions(objective="omp"),
    "mp1": GenerativeOptions(objective="mp1"),
    "flowpolicy": GenerativeOptions(objective="flowpolicy"),
    "diffusion": GenerativeOptions(objective="diffusion"),
}
ABLATIONS: dict[str, GenerativeOptions] = {
    "no_alignment": GenerativeOptions(objective="omp", alignment="off"),
    "no_dispersive": GenerativeOptions(objective="omp", dispersive_weight=0.0),
    "jvp": GenerativeOptions(objective="omp", derivative="jvp"),
    "dde": GenerativeOptions(objective="omp", derivative="dde"),
}
TASKS = (
    *("reach", "door-open"),
    *("hammer", "coffee-pull"),
    *("pick-place", "hand-insert"),
    *("shelf-place", "stick-push"),
)
"""Two of each class, easy to very hard, whose experts succeed. No option of imitation was chosen on
them; the ladder of starts for rewards was, see robot_parts/rewards.py."""
PACE_START = ((5, 300),)
"""Demonstrations and steps of the policy that is timed: some of its episodes succeed early."""
_BESIDE_S = 6.0
"""What a policy of imitation takes beside its steps: its episodes, mostly."""
_STEP_FACTOR = 2.0
"""Steps of all objectives, two processes at a time, take up to so many times as long as one of OMP
in a process alone."""
_LEAST_STEPS = 100
ADROIT = ("adroit-door", "adroit-hammer", "adroit-pen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Learning:
    """Reinforcement learning of an edition."""

    tasks: tuple[str, ...]
    seeds: int
    steps: int
    resets: int
    groups: int = 8
    """Groups of eight attempts in an optimizer step."""
    ladder: tuple[tuple[int, int], ...] = LADDER
    """Demonstrations and steps of possible starts, the strongest first."""
    limit_s: float = 0.0
    """Most seconds of a run that learns, about; 0: no limit."""
    pace_steps: int
    """Optimizer steps of a run that is timed, two fewer for `sync`."""
    pace_groups: int = 4
    """Of a run that is timed: 32 attempts in 16 environments."""
    pace_rounds: int
    pace_task: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Edition:
    """How much is measured."""

    tasks: tuple[str, ...]
    seeds: int
    resets: int
    imitation: ImitationOptions
    learning: Learning
    rounds: int
    """Of timing."""
    imitation_limit_s: float = 0.0
    """Most seconds of imitation, about: fewer optimizer steps on a slow machine; 0: no limit."""
    adroit_objectives: tuple[str, ...] = ("omp",)
    notes: tuple[str, ...] = field(default=())


_SMALL = ImitationOptions(steps=600, learning_rate=1e-3, warmup_steps=50)
EDITIONS: dict[Effort, Edition] = {
    "quick": Edition(
        tasks=("reach",),
        seeds=1,
        resets=10,
        imitation=replace(_SMALL, steps=100),
        learning=Learning(
            tasks=(TOY,),
            seeds=1,
            steps=4,
            resets=20,
            groups=4,
            ladder=((5, 200), (2, 100)),
            pace_steps=6,
            pace_rounds=1,
            pace_task=TOY,
        ),
        rounds=10,
        notes=("reinforcement learning and rollart_over_sync are on toy-reach, not on MuJoCo",),
    ),
    "plain": Edition(
        tasks=("reach", "pick-place"),
        seeds=1,
        resets=20,
        imitation=_SMALL,
        learning=Learning(
            tasks=("reach",),
            seeds=1,
            steps=8,
            resets=50,
            groups=4,
            ladder=((6, 300), (4, 300), (3, 300)),
            limit_s=60.0,
            pace_steps=5,
            pace_rounds=1,
            pace_task="reach",
        ),
        rounds=20,
        imitation_limit_s=90.0,
        notes=("few steps and one seed: the intervals are wide and training is not finished",),
    ),
    "full": Edition(
        tasks=TASKS,
        seeds=3,
        resets=50,
        imitation=ImitationOptions(steps=3000, learning_rate=5e-4, warmup_steps=300),
        learning=Learning(
            tasks=("pick-place", "reach", "hand-insert"),
            seeds=3,
            steps=60,
            resets=50,
            pace_steps=12,
            pace_rounds=3,
            pace_task="reach",
        ),
        rounds=200,
        adroit_objectives=tuple(OBJECTIVES),
    ),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Times and memory; see robot_parts/costs.py."""

    action_ms: Mapping[str, float]
    step_ms: Mapping[str, float]
    memory: Mapping[str, Mapping[str, int]]
    memory_points: Mapping[str, Mapping[str, int]]


def run(*, effort: Effort) -> dict[str, object]:
    edition = _playable(EDITIONS[effort], may_be_toy=effort == "quick")
    with _directory(keeps=effort == "full") as directory:
        found = Costs(
            action_ms=costs.action_times_ms(rounds=edition.rounds),
            step_ms=costs.step_times_ms(rounds=edition.rounds),
            memory=costs.step_memory("state"),
            memory_points=costs.step_memory("points"),
        )
        say(f"one chunk {found.action_ms} ms, one step {found.step_ms} ms")
        policies = {**OBJECTIVES, **ABLATIONS}
        edition = fitted(edition, step_s=found.step_ms["dde"] / 1e3)
        successes = _imitate(edition, edition.tasks, policies, directory)
        adroit = _adroit(edition, directory)
        learned = _learn(edition, directory)
        paces = _paces(edition.learning, directory)
    return {
        "edition": effort,
        "notes": list(edition.notes),
        **report_success(successes),
        "adroit": adroit if isinstance(adroit, str) else report_adroit(adroit),
        **report_costs(found),
        **report_learning(learned),
        **report_paces(paces),
    }


def fitted(edition: Edition, *, step_s: float) -> Edition:
    """Return the edition with as many steps of imitation as its limit has time for.

    Example:
        A policy that trains for 90 s × 2 / 14 - 6 s = 6.9 s makes 600 steps of 6 ms, or 345 of 10.

    """
    if not edition.imitation_limit_s:
        return edition
    # dde is what omp has anyway: one policy less.
    count = (len(OBJECTIVES) + len(ABLATIONS) - 1) * len(edition.tasks) * edition.seeds
    left_s = PROCESSES * edition.imitation_limit_s / count - _BESIDE_S
    steps = min(edition.imitation.steps, int(left_s / (_STEP_FACTOR * step_s)))
    return replace(edition, imitation=replace(edition.imitation, steps=max(_LEAST_STEPS, steps)))


def report_success(successes: Mapping[str, Cells]) -> dict[str, object]:
    """Return the figures of imitation from successes by objective or ablation."""
    omp = successes["omp"]
    classes = {task: find_task(task).difficulty or "toy" for task, _ in omp}
    tasks = {task: task for task in classes}
    return {
        "success": {
            name: {
                **estimate(successes[name]),
                "by_class": by_label(successes[name], classes),
                "by_task": {
                    task: each["mean"] for task, each in by_label(successes[name], tasks).items()
                },
            }
            for name in OBJECTIVES
        },
        **{
            f"omp_over_{name}": difference(omp, successes[name])
            for name in OBJECTIVES
            if name != "omp"
        },
        "ablation": {
            name: {**estimate(successes[name]), "over_omp": difference(successes[name], omp)}
            for name in ABLATIONS
        },
    }


def report_adroit(successes: Mapping[str, Cells]) -> dict[str, object]:
    """Return success by task, then by objective."""
    tasks = dict.fromkeys(task for cells in successes.values() for task, _ in cells)
    return {
        task.removeprefix("adroit-"): {
            name: estimate({cell: cells[cell] for cell in cells if cell[0] == task})
            for name, cells in successes.items()
        }
        for task in tasks
    }


def report_costs(found: Costs) -> dict[str, object]:
    """Return the figures of time and memory."""
    omp, diffusion = (found.action_ms[name] for name in ("omp", "diffusion"))
    peaks = {name: each["peak"] for name, each in found.memory.items()}
    return {
        "omp_ms": round(omp, 4),
        "diffusion_ms": round(diffusion, 4),
        "diffusion_over_omp": round(diffusion / omp, 2),
        "step_ms": {name: round(value, 3) for name, value in found.step_ms.items()},
        "memory": peaks,
        "memory_in_step": {name: each["in_step"] for name, each in found.memory.items()},
        "memory_points": {name: each["peak"] for name, each in found.memory_points.items()},
        "dde_below_double_backward": round(1 - peaks["dde"] / peaks["double_backward"], 3),
    }


def report_learning(learned: Sequence[tuple[RewardUnit, Mapping[str, Any]]]) -> dict[str, object]:
    """Return the figures of reinforcement learning from each unit and its result."""
    tasks = dict.fromkeys(unit.task for unit, _ in learned)

    def cells(task: str, key: str) -> Cells:
        return {(task, unit.seed): each[key] for unit, each in learned if unit.task == task}

    return {
        "rl_before": {task: estimate(cells(task, "before")) for task in tasks},
        "rl_after": {task: estimate(cells(task, "after")) for task in tasks},
        "rl_gain": {
            task: difference(cells(task, "after"), cells(task, "before")) for task in tasks
        },
        "rl_start": {
            task: [each["start"] for unit, each in learned if unit.task == task] for task in tasks
        },
        "rl_minutes": round(max(each["took_s"] for _, each in learned) / 60, 1),
        "rl_lost": sum(each["lost"] for _, each in learned),
        "rl_trained_twice": sum(each["trained_twice"] for _, each in learned),
    }


def report_paces(paces: Mapping[str, Sequence[tuple[float, float]]]) -> dict[str, object]:
    """Return ratios of rates; a pair is (rollart, sync), by whether environments are faulty."""
    ratios = {name: [one / other for one, other in each] for name, each in paces.items()}
    return {
        "rollart_over_sync": round(median(ratios["faulty"]), 3),
        "rollart_over_sync_healthy": round(median(ratios["healthy"]), 3),
        "trained_per_s": {
            name: [{"rollart": round(a, 2), "sync": round(b, 2)} for a, b in each]
            for name, each in paces.items()
        },
    }


def _imitate(
    edition: Edition,
    tasks: Sequence[str],
    policies: Mapping[str, GenerativeOptions],
    directory: Path,
    experts: Mapping[str, str] | None = None,
) -> dict[str, Cells]:
    """Return the successes of every policy by task and seed."""
    units = {
        (name, task, seed): Unit(
            task=task,
            policy=policy.resolved(),
            seed=seed,
            resets=edition.resets,
            imitation=replace(edition.imitation, seed=seed),
            expert=(experts or {}).get(task, ""),
        )
        # Seeds first: a run that is stopped early has all policies of a seed, not one policy's.
        for seed in range(edition.seeds)
        for task in tasks
        for name, policy in policies.items()
    }
    done = run_units(units.values(), directory)
    found: dict[str, dict[tuple[str, int], list[float]]] = {name: {} for name in policies}
    for (name, task, seed), unit in units.items():
        found[name][task, seed] = [float(each) for each in done[key_of(unit)]]
    return dict(found)


def _adroit(edition: Edition, directory: Path) -> dict[str, Cells] | str:
    folder = os.environ.get(EXPERTS, "")
    files = {task: Path(folder) / f"{task.removeprefix('adroit-')}.npz" for task in ADROIT}
    missing = [str(path) for path in files.values() if not path.is_file()]
    if not folder or missing:
        lacking = f" ({', '.join(missing)} missing)" if folder else ""
        names = ", ".join(path.name for path in files.values())
        return f"no experts: set {EXPERTS} to a directory with {names}{lacking}"
    policies = {name: OBJECTIVES[name] for name in edition.adroit_objectives}
    experts = {task: str(path) for task, path in files.items()}
    return _imitate(edition, ADROIT, policies, directory, experts)


def _learn(edition: Edition, directory: Path) -> list[tuple[RewardUnit, dict[str, Any]]]:
    learning = edition.learning
    done = list[tuple[RewardUnit, dict[str, Any]]]()
    for seed in range(learning.seeds):
        for task in learning.tasks:
            unit = RewardUnit(
                task=task,
                seed=seed,
                steps=learning.steps,
                resets=learning.resets,
                groups=learning.groups,
                ladder=learning.ladder,
                limit_s=learning.limit_s,
            )
            result = run_reward_unit(unit, directory)
            before, after = (sum(result[key]) / learning.resets for key in ("before", "after"))
            took = f"{result['took_s']:.0f} s"
            say(f"rewards: {task}, seed {seed}: {before:.2f} to {after:.2f} in {took}")
            done.append((unit, result))
    return done


def _paces(learning: Learning, directory: Path) -> dict[str, list[tuple[float, float]]]:
    """Return trained trajectories a second of rollart and of sync, in turns."""
    unit = RewardUnit(
        task=learning.pace_task,
        seed=0,
        steps=learning.pace_steps,
        resets=learning.resets,
        groups=learning.pace_groups,
        ladder=PACE_START,
    )
    paces: dict[str, list[tuple[float, float]]] = {"healthy": [], "faulty": []}
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as place:
        model = weak_start(unit, Path(place), demonstrations=directory).model
        for _ in range(learning.pace_rounds):
            for name, pairs in paces.items():
                rates = [
                    pace(unit, model, mode=mode, faulty=name == "faulty")
                    for mode in ("rollart", "sync")
                ]
                say(f"{name}: rollart {rates[0]:.1f}, sync {rates[1]:.1f} trajectories/s")
                pairs.append((rates[0], rates[1]))
    return paces


def _playable(edition: Edition, *, may_be_toy: bool) -> Edition:
    """Return the edition, or one on toy-reach where Meta-World is missing and that may be."""
    try:
        make_env(edition.tasks[0]).close()
    except UserError as error:
        if not may_be_toy:
            raise
        return replace(edition, tasks=(TOY,), notes=(*edition.notes, f"all on {TOY}: {error}"))
    return edition


@contextmanager
def _directory(*, keeps: bool) -> Generator[Path]:
    """Give where finished units are kept: the cache, or a temporary directory."""
    if keeps:
        cache = Path(os.environ.get("ROLLART_CACHE") or "~/.cache/rollart").expanduser()
        yield cache / "bench-robot"
        return
    with tempfile.TemporaryDirectory(prefix="rollart-bench-") as place:
        yield Path(place)
