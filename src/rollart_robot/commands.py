"""`rollart robot`: list tasks, record demonstrations, and watch a policy play."""

import sys
from argparse import ArgumentParser, Namespace
from pathlib import Path

from rollart.errors import UserError
from rollart_robot.demonstrations import save_demonstrations
from rollart_robot.tasks import available_tasks, evaluation_seeds, find_task


def add_robot(parser: ArgumentParser) -> None:
    """Declare what the command takes."""
    parser.description = "Record demonstrations of robot tasks, and watch policies play."
    actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION")
    actions.add_parser("tasks", help="list the tasks by suite and difficulty")
    demos = actions.add_parser("demos", help="record demonstrations of a task's expert")
    demos.add_argument("task", metavar="TASK", help="a task, such as pick-place")
    demos.add_argument("--episodes", type=int, default=10, help="successes to record (10)")
    demos.add_argument("--seed", type=int, default=0, help="seed of the resets (0)")
    demos.add_argument("--noise", type=float, default=0.0, help="noise on the actions played (0)")
    demos.add_argument("--points", type=int, default=0, help="record point clouds of this size")
    demos.add_argument("--expert", metavar="FILE", help="an expert's weights (.npz), for Adroit")
    demos.add_argument("--out", metavar="FILE", help="the file to write (demos/TASK.npz)")
    play = actions.add_parser("play", help="play a run's policy on unseen resets and film it")
    play.add_argument("run", metavar="RUN", help="a run of imitation or training, or a checkpoint")
    play.add_argument("--task", required=True, metavar="TASK", help="the task to play")
    play.add_argument("--episodes", type=int, default=5, help="episodes to play (5)")
    play.add_argument("--seed", type=int, default=0, help="seed of the resets (0)")
    play.add_argument("--save", metavar="FILE", help="write a film: .gif, or .mp4 with ffmpeg")
    play.add_argument("--sheet", metavar="FILE", help="write a PNG of how each episode ended")


def run_robot(arguments: Namespace) -> int:
    """Run one of the actions."""
    match arguments.action:
        case "tasks":
            return _tasks()
        case "demos":
            return _demos(arguments)
        case _:
            return _play(arguments)


def _tasks() -> int:
    for task in available_tasks():
        sys.stdout.write(f"{task.name:<32}{task.suite:<12}{task.difficulty or ''}\n")
    return 0


def _demos(arguments: Namespace) -> int:
    from rollart_robot.experts import collect  # noqa: PLC0415 loads a simulator

    task = find_task(arguments.task).name
    path = Path(arguments.out or f"demos/{task}.npz")

    def show(successes: int, tries: int) -> None:
        sys.stderr.write(f"\r{task}: {successes} of {arguments.episodes}, {tries} tries")
        sys.stderr.flush()

    try:
        found = collect(
            task,
            arguments.episodes,
            arguments.seed,
            expert=None if arguments.expert is None else Path(arguments.expert),
            noise=arguments.noise,
            points=arguments.points,
            progress=show,
        )
    finally:
        sys.stderr.write("\n")
    save_demonstrations(found, path)
    rows = sum(len(each) for each in found.episodes)
    sys.stdout.write(f"{path}: {len(found.episodes)} episodes, {rows} steps\n")
    return 0


def _play(arguments: Namespace) -> int:
    from rollart_robot.episodes import PlaySettings, play_episodes  # noqa: PLC0415 loads torch
    from rollart_robot.rendering import (  # noqa: PLC0415
        film_frames,
        record,
        save_contact_sheet,
        save_film,
    )
    from rollart_robot.runtime import find_model, load_policy  # noqa: PLC0415

    if arguments.episodes < 1:
        raise UserError(f"--episodes {arguments.episodes}: must be at least 1")
    task = find_task(arguments.task).name
    policy = load_policy(find_model(arguments.run))
    options = policy.options
    settings = PlaySettings(
        horizon=options.horizon,
        execute=options.execute,
        observation_steps=options.observation_steps,
    )
    seeds = evaluation_seeds(arguments.seed, arguments.episodes)
    if arguments.save or arguments.sheet:
        films = record(policy.act_on, task, seeds, settings=settings)
        won = [each.success for each in films]
        if arguments.save:
            save_film(Path(arguments.save), film_frames(films))
            sys.stdout.write(f"film: {arguments.save}\n")
        if arguments.sheet:
            save_contact_sheet(Path(arguments.sheet), films, title=f"{task}: {arguments.run}")
            sys.stdout.write(f"sheet: {arguments.sheet}\n")
    else:
        won = play_episodes(policy.act_on, task, seeds, settings=settings).successes.tolist()
    sys.stdout.write(f"{task}: {sum(won)} of {len(won)} episodes succeeded\n")
    return 0
