"""Lending: training hardware that serves rollout while the trainer waits for its next batch.

    home ─ Lend ─► lending ─ EngineLent ─► lent ─ Recall ─► recalling ─ EngineRecalled ─► home

An engine on training hardware is announced as `lent` and starts at home. It is away only while
nothing trains: the scheduler lends when no batch is ready and recalls before it trains, so the
optimizer's version never moves under a lent engine and no weight sync ever concerns it. A lend
overtaken by a ready batch is recalled as soon as it is answered.

How long lending and recalling take is seen the first time hardware is lent: from then on only
waits several times as long are lent for.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Literal

from rollart.constraints import AtLeast, check_fields
from rollart.events import Command, Lend, Recall
from rollart.types import EngineId, EngineInfo, Version

State = Literal["home", "lending", "lent", "recalling"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Lending:
    """When idle training hardware serves rollout."""

    enabled: bool = False
    """Let training hardware serve rollout between optimizer steps."""
    min_idle_s: Annotated[float, AtLeast(0)] = 2.0
    """Shortest wait for the next batch worth lending for, however quick lending is."""
    min_switches: Annotated[float, AtLeast(0)] = 2.0
    """The same in multiples of what lending and recalling were last seen to take."""

    def __post_init__(self) -> None:
        check_fields(self, "lending")


class Lender:
    """Knows where each lendable engine is and how long the trainer will likely wait."""

    def __init__(self, rule: Lending, *, groups_per_step: int) -> None:
        self._rule = rule
        self._states: dict[EngineId, State] = {}
        self._since: dict[EngineId, float] = {}
        """When each engine was last sent on its way."""
        self._lend_s = 0.0
        self._recall_s = 0.0
        self._version = Version(0)
        self._completions: deque[float] = deque(maxlen=groups_per_step + 1)

    def join(self, engines: Iterable[EngineInfo]) -> None:
        """Learn of the engines that may be lent."""
        if self._rule.enabled:
            self._states.update({engine.id: "home" for engine in engines if engine.lent})

    def lose(self, engine: EngineId) -> None:
        """Forget an engine that was lost."""
        self._states.pop(engine, None)

    @property
    def is_away(self) -> bool:
        """Whether an engine is lent, or on its way there or back."""
        return any(state != "home" for state in self._states.values())

    @property
    def is_serving(self) -> bool:
        """Whether a lent engine takes requests."""
        return "lent" in self._states.values()

    @property
    def version(self) -> Version:
        """The weights the engines were last lent with."""
        return self._version

    @property
    def worth_s(self) -> float:
        """The shortest wait that is worth lending for, by what is known so far."""
        switch_s = self._lend_s + self._recall_s
        return max(self._rule.min_idle_s, self._rule.min_switches * switch_s)

    def complete(self, now: float) -> None:
        """Note that a group completed."""
        self._completions.append(now)

    def expected_idle_s(self, missing: int, now: float) -> float:
        """Return how long the trainer will wait for this many groups; endless if unknown.

        Each takes as long as those of the last batch did on average, or as long as the next one
        already has.
        """
        times = self._completions
        if len(times) < (times.maxlen or 0):
            return float("inf")
        usual_s = (times[-1] - times[0]) / (len(times) - 1)
        return missing * max(usual_s, now - times[-1])

    def lend(self, version: Version, *, missing: int, now: float) -> list[Command]:
        """Lend the engines at home, if the wait for the groups missing is worth it."""
        home = [engine for engine, state in self._states.items() if state == "home"]
        if not home or self.expected_idle_s(missing, now) < self.worth_s:
            return []
        self._version = version
        self._states.update(dict.fromkeys(home, "lending"))
        self._since.update(dict.fromkeys(home, now))
        return [Lend(engine=engine, version=version) for engine in home]

    def lent(self, engine: EngineId, now: float) -> None:
        """Note that an engine serves, unless it was lost meanwhile."""
        if engine not in self._states:
            return
        assert self._states[engine] == "lending"
        self._states[engine] = "lent"
        self._lend_s = now - self._since[engine]

    def recall(self, now: float) -> list[Command]:
        """Take back every engine that serves."""
        serving = [engine for engine, state in self._states.items() if state == "lent"]
        self._states.update(dict.fromkeys(serving, "recalling"))
        self._since.update(dict.fromkeys(serving, now))
        return [Recall(engine=engine) for engine in serving]

    def recalled(self, engine: EngineId, now: float) -> None:
        """Note that an engine's hardware is the trainer's again, unless it was lost meanwhile."""
        if engine not in self._states:
            return
        assert self._states[engine] == "recalling"
        self._states[engine] = "home"
        self._recall_s = now - self._since[engine]
