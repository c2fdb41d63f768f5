"""Units of imitation: one policy of one objective, trained on one task with one seed.

A finished unit is one JSON file in a directory, named by a hash of its options and of the sources
of rollart_robot; a unit whose file is there is read, not run again. So a benchmark that was stopped
continues where it was, and a changed source starts it anew. Units run in two processes, each with
one thread; a unit depends on nothing but its options, so neither the order nor the company
matters.
"""

import hashlib
import json
import multiprocessing
import time
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass, field, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import torch

import rollart_robot
from benchmarks.live_runs.timed import say
from rollart.atomic_files import write_file
from rollart_robot.demonstrations import Demonstrations, load_demonstrations, save_demonstrations
from rollart_robot.episodes import PlaySettings, play_episodes
from rollart_robot.experts import collect
from rollart_robot.imitation import ImitationTrainer
from rollart_robot.options import GenerativeOptions, ImitationOptions
from rollart_robot.policy import GenerativePolicy
from rollart_robot.tasks import evaluation_seeds

PROCESSES = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One policy to train and to play.

    Example:
        >>> Unit(task="reach", policy=GenerativeOptions().resolved(), seed=0, resets=50)

    """

    task: str
    policy: GenerativeOptions
    """Resolved, so that two ways to ask for the same policy are the same unit."""
    seed: int
    """Of demonstrations, training and resets."""
    resets: int
    """Episodes that the trained policy plays, on resets that no demonstration has."""
    imitation: ImitationOptions = field(default_factory=ImitationOptions)
    demonstrations: int = 10
    expert: str = ""
    """File of the expert's weights, for tasks without a scripted one."""

    @property
    def label(self) -> str:
        """Name in messages."""
        policy = self.policy
        parts = [str(policy.objective)]
        if policy.derivative is not None:
            parts += [f"{policy.derivative}", f"alignment {policy.alignment}"]
            parts += [f"dispersive {policy.dispersive_weight:g}"]
        return f"{self.task}, seed {self.seed}, {' '.join(parts)}"


class Store:
    """Results of finished units as JSON files.

    Example:
        >>> store = Store(Path("~/.cache/rollart/bench-robot").expanduser())
        >>> store.write(unit, {"successes": [True, False]})
        >>> store.read(unit)["successes"]
        [True, False]

    """

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def read(self, unit: Any) -> dict[str, Any] | None:
        """Return a unit's result; None if it has not finished or its file is damaged."""
        try:
            return json.loads(self._path(unit).read_text(encoding="utf-8"))["result"]
        except (OSError, ValueError, KeyError):
            return None

    def write(self, unit: Any, result: Mapping[str, Any]) -> None:
        """Keep a unit's result."""
        self.directory.mkdir(parents=True, exist_ok=True)
        content = {"unit": asdict(unit), "result": dict(result)}
        write_file(self._path(unit), json.dumps(content, indent=1).encode())

    def _path(self, unit: Any) -> Path:
        return self.directory / f"{type(unit).__name__.lower()}-{key_of(unit)}.json"


def key_of(unit: Any) -> str:
    """Return the hash that a unit's result is kept under."""
    assert is_dataclass(unit)
    options = json.dumps(asdict(unit), sort_keys=True)  # type: ignore[arg-type]
    return hashlib.sha256((sources_digest() + options).encode()).hexdigest()[:20]


@cache
def sources_digest() -> str:
    """Return a hash of the sources of rollart_robot."""
    digest = hashlib.sha256()
    folder = Path(str(rollart_robot.__file__)).parent
    for path in sorted(folder.rglob("*.py")):
        digest.update(str(path.relative_to(folder)).encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def demonstrations_of(
    task: str, count: int, seed: int, *, directory: Path, expert: str = ""
) -> tuple[Demonstrations, Path]:
    """Return demonstrations and their file, recorded when they are first asked for."""
    name = f"demos-{task}-{count}-{seed}-{sources_digest()[:12]}.npz"
    path = directory / name
    if not path.is_file():
        found = collect(task, count, seed, expert=Path(expert) if expert else None)
        save_demonstrations(found, path)
    return load_demonstrations(path, warn=lambda _: None), path


def play(policy: GenerativePolicy, task: str, *, seed: int, resets: int) -> list[bool]:
    """Return which unseen resets of a seed the policy masters."""
    options = policy.options
    settings = PlaySettings(
        horizon=options.horizon,
        execute=options.execute,
        observation_steps=options.observation_steps,
    )
    seeds = evaluation_seeds(seed, resets)
    return play_episodes(policy.act_on, task, seeds, settings=settings).successes.tolist()


def run_unit(unit: Unit, directory: Path) -> dict[str, Any]:
    """Train and play one policy, keep the result and return it."""
    torch.set_num_threads(1)
    shown, _ = demonstrations_of(
        unit.task, unit.demonstrations, unit.seed, directory=directory, expert=unit.expert
    )
    start = time.monotonic()
    trainer = ImitationTrainer(unit.policy, unit.imitation, shown.episodes)
    while trainer.steps_done < unit.imitation.steps:
        trainer.step()
    trained_s = time.monotonic() - start
    result = {
        "successes": play(trainer.average, unit.task, seed=unit.seed, resets=unit.resets),
        "trained_s": round(trained_s, 1),
        "played_s": round(time.monotonic() - start - trained_s, 1),
    }
    Store(directory).write(unit, result)
    return result


def run_units(units: Iterable[Unit], directory: Path) -> dict[str, list[bool]]:
    """Return the successes of each unit by its key; run those that have no file."""
    wanted = {key_of(unit): unit for unit in units}
    store = Store(directory)
    done = dict[str, list[bool]]()
    for key, unit in wanted.items():
        found = store.read(unit)
        if found is not None:
            done[key] = found["successes"]
    if done:
        say(f"{len(done)} of {len(wanted)} policies are in {directory}")
    left = {key: unit for key, unit in wanted.items() if key not in done}
    if not left:
        return done
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(min(PROCESSES, len(left)), mp_context=context) as pool:
        running = {pool.submit(run_unit, unit, directory): key for key, unit in left.items()}
        try:
            for future in as_completed(running):
                key, result = running[future], future.result()
                done[key] = result["successes"]
                say(_line(len(done), len(wanted), wanted[key], result))
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    return done


def _line(done: int, total: int, unit: Unit, result: Mapping[str, Any]) -> str:
    successes: Sequence[bool] = result["successes"]
    took = f"trained {result['trained_s']:.0f} s, played {result['played_s']:.0f} s"
    return f"{done} of {total}: {unit.label} {sum(successes)}/{len(successes)} ({took})"
