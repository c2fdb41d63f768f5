"""Demand: what one attempt at each task needs on average, measured on drawn scripts.

All that the bounds need to know of a task is linear in a few sums over its turns, so the sums are
taken once and hold for every GPU. The draws depend on the seed alone.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil

from rollart.events import Launch
from rollart.sim.costs import EngineCosts
from rollart.sim.workload import Script, SyntheticWorkload, TaskProfile
from rollart.types import GroupId, SlotId, TrajectoryId

_GROUPS = 24
"""Groups drawn of each task."""
_FEW = 3
"""How many of them count as the slowest."""
_TOKEN_S = 0.02
"""Assumed time of a token when members of a group are ranked by length."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttemptDemand:
    """Sums over the turns of one attempt.

    Example:
        AttemptDemand(env_s=20.0, score_s=1.0, tokens=4200.0, read=1200.0, pairs=1.1e6,
                      sampled=3000.0, context=6.9e6, reserved=9.3e6)

    """

    env_s: float
    """Seconds of reset, steps and calls."""
    score_s: float
    """Seconds of its reward function; only its group waits for that."""
    tokens: float
    """Total tokens when it ends."""
    read: float
    """Tokens prefilled, given what engines cache between turns."""
    pairs: float
    """Pairs of a prefilled token and a token it attends to."""
    sampled: float
    context: float
    """Tokens in the cache, summed over the tokens sampled."""
    reserved: float
    """Tokens of reserved cache memory, summed over the tokens sampled."""

    def prefill_s(self, costs: EngineCosts) -> float:
        """Return the engine time of all its prefills."""
        constants = costs.constants
        steps_s = self.read / constants.chunk_tokens * constants.step_overhead_s
        return self.read * costs.prefill_token_s + self.pairs * costs.attention_s + steps_s

    def alone_s(self, costs: EngineCosts) -> float:
        """Return how long it takes without its reward, if nothing else runs."""
        sampling_s = self.sampled * costs.decode_s(1, cached=0) + self.context * costs.cache_token_s
        return self.env_s + self.prefill_s(costs) + sampling_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """What attempts at one task need.

    Example:
        math, = measure((TaskProfile(name="math", turns=(2, 4)),), members=8, reuse=True,
                        call_s=0.02, seed=0)
        math.mean.sampled  # tokens of a mean attempt

    """

    task: str
    share: float
    """Share of the mix."""
    groups: tuple[tuple[AttemptDemand, ...], ...]
    mean: AttemptDemand
    slowest: AttemptDemand
    """The mean of the slowest member of each group."""
    longest: AttemptDemand
    """The mean of the slowest member of the few slowest groups."""

    def group_s(self, costs: EngineCosts) -> list[float]:
        """Return how long each drawn group takes running alone: its slowest member's time."""
        return [max(each.alone_s(costs) + each.score_s for each in group) for group in self.groups]

    def decode_s(self, costs: EngineCosts, *, most: float) -> float:
        """Return the least engine time of an attempt's sampling.

        The more sequences share a step, the less each pays for reading the weights. Their number
        is limited by the cache memory and by `most`, rounded up.
        """
        mean = self.mean
        room = costs.capacity_tokens / max(1.0, mean.reserved / mean.sampled)
        batch = max(1, ceil(min(room, most)))
        cached = batch * mean.context / mean.sampled
        return mean.sampled * costs.decode_s(batch, cached=cached) / batch


def measure(
    profiles: Sequence[TaskProfile], *, members: int, reuse: bool, call_s: float, seed: int
) -> tuple[Demand, ...]:
    """Return the demand of each task."""
    total = sum(profile.weight for profile in profiles)
    return tuple(
        _measure(
            profile,
            share=profile.weight / total,
            members=members,
            reuse=reuse,
            call_s=call_s,
            seed=seed,
        )
        for profile in profiles
        if profile.weight
    )


def _measure(
    profile: TaskProfile, *, share: float, members: int, reuse: bool, call_s: float, seed: int
) -> Demand:
    workload = SyntheticWorkload((profile,), seed=seed)
    groups = tuple(
        tuple(
            _sum_up(workload.script(_launch(task, member)), reuse=reuse, call_s=call_s)
            for member in range(members)
        )
        for task in range(_GROUPS)
    )
    slowest = sorted((max(group, key=_length_s) for group in groups), key=_length_s)
    return Demand(
        task=profile.name,
        share=share,
        groups=groups,
        mean=_mean([attempt for group in groups for attempt in group]),
        slowest=_mean(slowest),
        longest=_mean(slowest[-_FEW:]),
    )


def _launch(task: int, member: int) -> Launch:
    return Launch(
        id=TrajectoryId(0),
        group=GroupId(0),
        member=member,
        attempt=0,
        task=task,
        slot=SlotId(0),
        seed=0,
    )


def _sum_up(script: Script, *, reuse: bool, call_s: float) -> AttemptDemand:
    tokens = read = pairs = sampled = context = reserved = 0.0
    env_s = script.reset_s + call_s
    for turn in script.turns:
        room = script.limits.max_tokens - tokens - turn.reads
        if room <= 0:
            break
        kept = tokens if reuse else 0.0
        tokens += turn.reads
        samples = min(turn.samples, room)
        new = tokens - kept
        read += new
        pairs += new * (kept + new / 2)
        sampled += samples
        context += samples * (tokens + samples / 2)
        tokens += samples
        reserved += samples * tokens
        env_s += turn.step_s + call_s
    return AttemptDemand(
        env_s=env_s,
        score_s=script.score_s or 0.0,
        tokens=tokens,
        read=read,
        pairs=pairs,
        sampled=sampled,
        context=context,
        reserved=reserved,
    )


def _length_s(attempt: AttemptDemand) -> float:
    return attempt.env_s + attempt.score_s + attempt.sampled * _TOKEN_S


def _mean(attempts: Sequence[AttemptDemand]) -> AttemptDemand:
    count = len(attempts)
    return AttemptDemand(
        env_s=sum(each.env_s for each in attempts) / count,
        score_s=sum(each.score_s for each in attempts) / count,
        tokens=sum(each.tokens for each in attempts) / count,
        read=sum(each.read for each in attempts) / count,
        pairs=sum(each.pairs for each in attempts) / count,
        sampled=sum(each.sampled for each in attempts) / count,
        context=sum(each.context for each in attempts) / count,
        reserved=sum(each.reserved for each in attempts) / count,
    )
