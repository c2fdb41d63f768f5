"""What an action and a training step cost: time on one thread, and memory of tensors.

Policies have Meta-World's sizes and random data: the cost of a step does not depend on what is
learned. All kinds are timed in turns, so that a busy moment of the machine slows all of them.

**Memory.** torch's profiler records every allocation and release of a tensor on the processor
(`profile_memory=True`). Gradients are released before the step, so every block that the step
releases was allocated inside it; the largest running sum is what the step needs beside the tensors
that are always there. Those (weights, their average, the optimizer's moments) are added, because
what a training run must have room for is both together.
"""

import gc
import time
from collections.abc import Callable, Mapping
from statistics import median
from typing import Any, Literal

import numpy as np
import torch
from torch.profiler import ProfilerActivity, profile

from rollart_robot.demonstrations import ExpertEpisode
from rollart_robot.imitation import ImitationTrainer
from rollart_robot.options import DerivativeName, GenerativeOptions, ImitationOptions, ObjectiveName
from rollart_robot.policy import GenerativePolicy

STATE_SIZE, ACTION_SIZE, POINTS = 21, 4, 64
DERIVATIVES: tuple[DerivativeName, ...] = ("dde", "jvp", "double_backward")
_WARM_UP = 3


def action_times_ms(*, rounds: int, calls: int = 20) -> dict[str, float]:
    """Return the time of one action chunk of one environment, by objective.

    Example:
        >>> action_times_ms(rounds=50)
        {'omp': 0.21, 'diffusion': 2.3}

    """
    objectives: tuple[ObjectiveName, ...] = ("omp", "diffusion")
    policies = {
        name: GenerativePolicy(
            GenerativeOptions(objective=name), state_size=STATE_SIZE, action_size=ACTION_SIZE
        ).requires_grad_(False)
        for name in objectives
    }
    options = GenerativeOptions()
    states = torch.randn(1, options.observation_steps, STATE_SIZE)
    noise = torch.randn(1, options.horizon, ACTION_SIZE)
    acts = {
        name: lambda policy=policy: policy.act(states, noise) for name, policy in policies.items()
    }
    return _times_ms(acts, rounds=rounds, calls=calls)


def step_times_ms(*, rounds: int, calls: int = 5) -> dict[str, float]:
    """Return the time of one optimizer step of OMP, by how the derivative is computed."""
    steps = {name: _trainer(name, network="state").step for name in DERIVATIVES}
    return _times_ms(steps, rounds=rounds, calls=calls)


def step_memory(network: Literal["state", "points"]) -> dict[str, dict[str, int]]:
    """Return the peak of tensor bytes in an optimizer step, by derivative.

    Example:
        >>> step_memory("state")["dde"]
        {'peak': 9724000, 'in_step': 2551348}

    """
    found = dict[str, dict[str, int]]()
    for name in DERIVATIVES:
        trainer = _trainer(name, network=network)
        for _ in range(_WARM_UP):
            trainer.step()
        trainer.policy.zero_grad(set_to_none=True)
        gc.collect()
        resting = resting_bytes(trainer.state())
        in_step = peak_bytes(trainer.step)
        found[name] = {"peak": resting + in_step, "in_step": in_step}
    return found


def peak_bytes(run: Callable[[], Any]) -> int:
    """Return the most bytes of tensors that `run` holds at a time, beside what was there before.

    Example:
        >>> peak_bytes(lambda: torch.zeros(1000) + 1)
        8012

    """
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiled:
        run()
    inner = profiled.profiler
    assert inner is not None
    results = inner.kineto_results
    assert results is not None
    # torch's stubs do not know all methods of these events.
    events: list[Any] = [each for each in results.events() if each.name() == "[memory]"]
    events.sort(key=lambda event: event.start_ns())
    sums = np.cumsum([event.nbytes() for event in events])
    return int(sums.max(initial=0))


def resting_bytes(state: Any) -> int:
    """Return the bytes of all tensors in a trainer's state."""
    if isinstance(state, torch.Tensor):
        return state.numel() * state.element_size()
    if isinstance(state, Mapping):
        return sum(map(resting_bytes, state.values()))
    return sum(map(resting_bytes, state)) if isinstance(state, list | tuple) else 0


def _trainer(
    derivative: DerivativeName, *, network: Literal["state", "points"]
) -> ImitationTrainer:
    random = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return random.standard_normal(shape, dtype=np.float32)

    length = 60
    episodes = [
        ExpertEpisode(
            states=normal(length, STATE_SIZE),
            actions=np.clip(normal(length, ACTION_SIZE), -1, 1),
            points=normal(length, POINTS, 3) if network == "points" else None,
        )
        for _ in range(4)
    ]
    options = GenerativeOptions(derivative=derivative, network=network)
    return ImitationTrainer(options, ImitationOptions(steps=100_000), episodes)


def _times_ms(
    calls_of: Mapping[str, Callable[[], Any]], *, rounds: int, calls: int
) -> dict[str, float]:
    """Return the median over rounds of a call's time; every round has a turn of each."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        took = {name: list[float]() for name in calls_of}
        for number in range(-_WARM_UP, rounds):
            for name, call in calls_of.items():
                start = time.perf_counter()
                for _ in range(calls):
                    call()
                if number >= 0:
                    took[name].append((time.perf_counter() - start) * 1000 / calls)
        return {name: median(each) for name, each in took.items()}
    finally:
        torch.set_num_threads(before)
