"""Selection: which attempts were trained and which were lost, and whether that depends on them.

Every attempt ends as trained, dropped (finished, not trained), cancelled (stopped while it ran) or
failed; those that ran out of time are counted besides. For each task and ending there are the
attempts, and the means of their turns, cost and reward. An attempt that was stopped counts with
what it had played, so its true length is larger.

Trained and played differ if what was lost to a schedule (stale or surplus work) is longer, or earns
more, than what was trained. `warnings` says so when the difference of the means is beyond noise and
changes the mean of what was played by more than two per cent. Not compared are losses that do not
depend on an attempt (the end of a run), that the user asked for (groups without variance), and the
slower of two doubles, whose draws are trained with the other one. Length is compared one-sided: a
short attempt that was stopped may have become a long one.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt

from rollart.events import (
    Cancel,
    Command,
    Drop,
    Event,
    Launch,
    Train,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
    TrajectoryScored,
)
from rollart.types import Json, TrajectoryId, TrajectoryInfo

TaskNamed = Callable[[int], str]
"""Returns the name of the task at an index of the stream."""
ENDINGS = ("trained", "dropped", "cancelled", "failed", "time_limit")
_BY_SCHEDULE = ("stale", "surplus")
"""Reasons for which a schedule loses work."""
_ERRORS = 4.0
"""Standard errors beyond which a difference of two means is not noise."""
_MATTERS = 0.02
"""Relative change of the mean of what was played that is worth a warning."""
_FEWEST = 30
"""Attempts on either side that a comparison needs."""


@dataclass(slots=True)
class Sums:
    """Count, sum and sum of squares of a figure.

    Example:
        >>> sums = Sums(); sums.add(2.0); sums.add(4.0); sums.mean
        3.0

    """

    count: int = 0
    total: float = 0.0
    squares: float = 0.0

    def add(self, value: float) -> None:
        """Add one value."""
        self.count += 1
        self.total += value
        self.squares += value * value

    @property
    def mean(self) -> float:
        """The mean; 0 without values."""
        return self.total / self.count if self.count else 0.0

    @property
    def error(self) -> float:
        """The standard error of the mean; 0 with fewer than two values."""
        if self.count < 2:
            return 0.0
        variance = max(0.0, self.squares / self.count - self.mean**2)
        return sqrt(variance / (self.count - 1))


class Ended:
    """The attempts of one task that ended in one way."""

    def __init__(self) -> None:
        self.turns = Sums()
        self.cost = Sums()
        self.reward = Sums()

    def add(self, *, turns: int, cost: int, reward: float | None) -> None:
        """Count an attempt."""
        self.turns.add(turns)
        self.cost.add(cost)
        if reward is not None:
            self.reward.add(reward)

    def figures(self) -> dict[str, float]:
        """Return the count and the means; without rewards, no mean of them."""
        figures: dict[str, float] = {
            "attempts": self.cost.count,
            "turns_mean": self.turns.mean,
            "tokens_mean": self.cost.mean,
        }
        return figures | ({"reward_mean": self.reward.mean} if self.reward.count else {})


@dataclass(slots=True, kw_only=True)
class _Attempt:
    task: str
    draws: tuple[int, int]
    """Its group, and the member whose draws it plays."""
    info: TrajectoryInfo | None = None
    reward: float | None = None
    cancelled_for: str = ""


class Selection:
    """Counts how attempts ended, by task.

    Example:
        selection = Selection(task_name=stream.name)
        selection.add(event, commands)
        selection.figures()["lake"]["trained"]["tokens_mean"]

    """

    def __init__(self, task_name: TaskNamed | None = None) -> None:
        self._task_name = task_name
        self._attempts: dict[TrajectoryId, _Attempt] = {}
        self._doubled: set[tuple[int, int]] = set()
        self._ended: dict[tuple[str, str], Ended] = {}
        self._since: dict[tuple[str, str], Ended] = {}
        """The same since the last row."""
        self._lost: dict[str, Ended] = {}
        """What schedules lost, by task."""
        self.unread: Counter[str] = Counter()
        """Turns that the parser could not read, by task, since the last row."""

    def name_tasks(self, task_name: TaskNamed | None) -> None:
        """Name tasks by another stream from now on."""
        self._task_name = task_name

    def take_over(self, info: TrajectoryInfo, task: str) -> None:
        """Note a finished attempt of an earlier part of the run."""
        self._attempts[info.id] = _Attempt(task=task, draws=(-1, info.id), info=info)
        self._attempts[info.id].reward = info.reward

    def add(self, event: Event, commands: Sequence[Command]) -> None:
        """Add one record."""
        self.note(event)
        self.book(commands)

    def book(self, commands: Sequence[Command]) -> None:
        """Add the commands that followed from an event."""
        for command in commands:
            match command:
                case Launch(id=id_, group=group, member=member, doubles=doubles, task=task):
                    name = "" if self._task_name is None else self._task_name(task)
                    draws = (group, member if doubles is None else doubles)
                    self._attempts[id_] = _Attempt(task=name, draws=draws)
                    if doubles is not None:
                        self._doubled.add(draws)
                case Cancel(id=id_, reason=reason):
                    if id_ in self._attempts:
                        self._attempts[id_].cancelled_for = reason
                case Drop(ids=ids, reason=reason):
                    for id_ in ids:
                        self._end(id_, "dropped", reason=reason)
                case Train(groups=groups):
                    for id_ in (each for group in groups for each in group):
                        self._end(id_, "trained")
                case _:
                    pass

    def row(self) -> dict[str, float]:
        """Return the figures since the last row, flat; those of each task if there are several."""
        row: dict[str, float] = {}
        for ending in ENDINGS:
            for name, value in _merged(self._since, ending).items():
                row[f"ended/{ending}/{name}"] = value
        if self._task_name is not None:
            for (task, ending), ended in sorted(self._since.items()):
                for name, value in ended.figures().items():
                    row[f"tasks/{task}/ended/{ending}/{name}"] = value
        if self.unread:
            row["unread_turns"] = self.unread.total()
        for task, relative in self.differences():
            row[f"tasks/{task}/lost_length" if task else "lost_length"] = relative
        self._since, self.unread = {}, Counter()
        return row

    def figures(self) -> dict[str, dict[str, dict[str, float]]]:
        """Return the figures since the start, by task and ending."""
        found: dict[str, dict[str, dict[str, float]]] = {}
        for (task, ending), ended in sorted(self._ended.items()):
            found.setdefault(task, {})[ending] = ended.figures()
        return found

    def differences(self) -> Iterator[tuple[str, float]]:
        """Yield by task how much shorter trained work is than played work, as a share of it."""
        for task, lost in sorted(self._lost.items()):
            trained = self._ended.get((task, "trained"))
            if trained is not None and trained.cost.count and lost.cost.count:
                yield task, _shift(trained.cost, lost.cost)

    def warnings(self) -> dict[str, str]:
        """Return a sentence for each task whose trained attempts differ from the played ones."""
        found: dict[str, str] = {}
        for task, lost in sorted(self._lost.items()):
            trained = self._ended.get((task, "trained"))
            if trained is None:
                continue
            where = f"{task}: " if task else ""
            if _differ(trained.cost, lost.cost) and trained.cost.mean < lost.cost.mean:
                share = _shift(trained.cost, lost.cost)
                found[f"{task}/length"] = (
                    f"{where}trained episodes are at least {share:.0%} shorter than played ones "
                    f"({trained.cost.mean:.0f} tokens against {lost.cost.mean:.0f} of those lost "
                    "as stale or surplus)"
                )
            if _differ(trained.reward, lost.reward):
                found[f"{task}/reward"] = (
                    f"{where}the reward of trained episodes ({trained.reward.mean:.3f}) differs "
                    f"from that of finished ones lost as stale or surplus ({lost.reward.mean:.3f})"
                )
        return found

    def note(self, event: Event) -> None:
        """Add one event."""
        match event:
            case TrajectoryFinished(info=info) if info.id in self._attempts:
                attempt = self._attempts[info.id]
                attempt.info, attempt.reward = info, info.reward
                if info.unread:
                    self.unread[attempt.task] += info.unread
                if info.stop == "time_limit":
                    self._count(attempt, "time_limit", turns=info.turns, cost=info.cost)
            case TrajectoryScored(id=id_, reward=reward) if id_ in self._attempts:
                self._attempts[id_].reward = reward
            case TrajectoryFailed(id=id_, cost=cost, turns=turns) if id_ in self._attempts:
                self._count(self._attempts.pop(id_), "failed", turns=turns, cost=cost)
            case TrajectoryCancelled(id=id_, cost=cost, turns=turns) if id_ in self._attempts:
                attempt = self._attempts.pop(id_)
                self._count(attempt, "cancelled", turns=turns, cost=cost)
                self._lose(attempt, attempt.cancelled_for, turns=turns, cost=cost)
            case _:
                pass

    def _end(self, id_: TrajectoryId, ending: str, *, reason: str = "") -> None:
        attempt = self._attempts.pop(id_, None)
        if attempt is None or attempt.info is None:
            return
        turns, cost = attempt.info.turns, attempt.info.cost
        self._count(attempt, ending, turns=turns, cost=cost)
        self._lose(attempt, reason, turns=turns, cost=cost)

    def _count(self, attempt: _Attempt, ending: str, *, turns: int, cost: int) -> None:
        for ended in (self._ended, self._since):
            of_task = ended.setdefault((attempt.task, ending), Ended())
            of_task.add(turns=turns, cost=cost, reward=attempt.reward)

    def _lose(self, attempt: _Attempt, reason: str, *, turns: int, cost: int) -> None:
        if reason not in _BY_SCHEDULE or attempt.draws in self._doubled:
            return
        lost = self._lost.setdefault(attempt.task, Ended())
        lost.add(turns=turns, cost=cost, reward=attempt.reward)


def as_json(selection: Selection) -> Mapping[str, Json]:
    """Return what `rollart replay` says of a run's selection."""
    by_task: dict[str, Json] = {}
    for task, endings in selection.figures().items():
        by_task[task or "all"] = {
            ending: {name: round(value, 4) for name, value in figures.items()}
            for ending, figures in endings.items()
        }
    warnings: list[Json] = list(selection.warnings().values())
    return {"ended_by_task": by_task, "selection_warnings": warnings}


def _merged(ended: Mapping[tuple[str, str], Ended], ending: str) -> dict[str, float]:
    """Return the figures of an ending over all tasks; nothing if none ended so."""
    those = [each.figures() for (_, how), each in ended.items() if how == ending]
    count = sum(each["attempts"] for each in those)
    if not count:
        return {}
    row = {"attempts": count}
    for name in ("turns_mean", "tokens_mean", "reward_mean"):
        known = [each for each in those if name in each]
        weight = sum(each["attempts"] for each in known)
        if weight:
            row[name] = sum(each[name] * each["attempts"] for each in known) / weight
    return row


def _differ(trained: Sums, lost: Sums) -> bool:
    """Say whether the means of two samples differ beyond noise, and by how much it matters."""
    if min(trained.count, lost.count) < _FEWEST:
        return False
    error = sqrt(trained.error**2 + lost.error**2)
    is_noise = abs(trained.mean - lost.mean) <= _ERRORS * error
    return not is_noise and abs(_shift(trained, lost)) > _MATTERS


def _shift(trained: Sums, lost: Sums) -> float:
    """Return by what share of the played mean the trained mean is below it."""
    played = (trained.total + lost.total) / (trained.count + lost.count)
    return (played - trained.mean) / abs(played) if played else 0.0
