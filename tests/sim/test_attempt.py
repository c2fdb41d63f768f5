"""One attempt's way through environment and engine."""

import pytest

from rollart.errors import InvariantError
from rollart.events import (
    Launch,
    TrajectoryBorn,
    TrajectoryCancelled,
    TrajectoryFailed,
    TrajectoryFinished,
)
from rollart.sim.attempt import Job, SimAttempt, SimContext
from rollart.sim.loop import Loop
from rollart.sim.workload import Script, ScriptTurn
from rollart.types import (
    EpisodeLimits,
    Failure,
    GroupId,
    SlotId,
    TrajectoryId,
    TrajectoryInfo,
    Version,
)

ID = TrajectoryId(7)
TURN_S = 3.0


class Rig:
    """A context in which every turn takes three seconds."""

    def __init__(self, script: Script, *, is_fresh: bool = True) -> None:
        self.loop = Loop()
        self.told: list[tuple[float, object]] = []
        self.asked: list[tuple[float, float, float]] = []
        self.forgotten: list[int] = []
        self.attempt = SimAttempt(
            Launch(
                id=ID,
                group=GroupId(0),
                task=0,
                member=0,
                attempt=0,
                slot=SlotId(0),
                seed=0,
            ),
            script=script,
            shared=SimContext(
                loop=self.loop,
                generation=self,
                arrive=lambda _, action: action(),
                post=lambda event: self.told.append((self.loop.now, event)),
                is_fresh=lambda _: is_fresh,
                call_s=0.5,
            ),
        )
        self.attempt.start()

    def generate(self, job: Job, *, domain: str) -> None:
        assert domain == "web"
        self.asked.append((self.loop.now, job.context, job.response))

        def done() -> None:
            if job.state != "removed":
                job.born = Version(4)
                job.on_done(job)

        self.loop.after(TURN_S, done)

    def abort(self, job: Job) -> float:
        job.state = "removed"
        return 6.5

    def forget(self, session: TrajectoryId) -> None:
        self.forgotten.append(session)

    def run(self, until: float = 1e6) -> None:
        self.loop.after(until - self.loop.now, lambda: None)
        while self.loop.now < until and self.loop.step():
            pass


def script(*, max_tokens: int = 1000, max_turns: int = 9, **changes) -> Script:
    turns = (
        ScriptTurn(reads=100, samples=20, step_s=2.0),
        ScriptTurn(reads=50, samples=30, step_s=4.0),
    )
    limits = EpisodeLimits(max_turns=max_turns, max_tokens=max_tokens)
    given = {"domain": "web", "reset_s": 10.0, "turns": turns, "limits": limits, "reward": 0.7}
    return Script(**(given | changes))


def info(**changes) -> TrajectoryInfo:
    given = {
        "id": ID,
        "born": Version(4),
        "reward": 0.7,
        "success": True,
        "turns": 2,
        "cost": 50,
        "stop": "terminated",
    }
    return TrajectoryInfo(**(given | changes))


def test_an_attempt_resets_then_turns_and_steps_alternate():
    rig = Rig(script())
    rig.run()
    assert rig.asked == [(10.5, 100, 20), (16.0, 170, 30)]
    assert rig.told == [
        (13.5, TrajectoryBorn(id=ID, version=Version(4))),
        (23.5, TrajectoryFinished(info=info())),
    ]
    assert rig.forgotten == [ID]


def test_a_reward_function_leaves_the_reward_open():
    rig = Rig(script(score_s=3.0))
    rig.run()
    assert rig.told[-1][1] == TrajectoryFinished(info=info(reward=None))


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"max_turns": 1}, {"turns": 1, "cost": 20, "stop": "max_turns"}),
        ({"max_tokens": 170}, {"turns": 1, "cost": 20, "stop": "max_tokens"}),
        ({"max_tokens": 110}, {"turns": 1, "cost": 10, "stop": "max_tokens"}),
        ({"max_tokens": 180}, {"turns": 2, "cost": 30, "stop": "terminated"}),
    ],
)
def test_limits_cut_an_attempt_off(changes, expected):
    rig = Rig(script(**changes))
    rig.run()
    assert rig.told[-1][1] == TrajectoryFinished(info=info(**expected))


def test_an_environment_that_fails_does_so_when_its_reset_ends():
    rig = Rig(script(fails=True))
    rig.run()
    failure = Failure(kind="env_error", message="the simulated environment failed")
    assert rig.told == [(10.5, TrajectoryFailed(id=ID, failure=failure, cost=0))]


@pytest.mark.parametrize(
    ("at_s", "tokens"), [(5.0, 0), (12.0, 6), (14.0, 20), (17.0, 26), (20.0, 50)]
)
def test_a_cancelled_attempt_stops_whatever_it_does(at_s, tokens):
    rig = Rig(script())
    rig.run(at_s)
    rig.attempt.cancel()
    before = list(rig.told)
    rig.run()
    assert rig.told == before
    turns = int(at_s >= 17.0)
    assert rig.told[-1] == (at_s, TrajectoryCancelled(id=ID, cost=tokens, turns=turns))
    assert rig.forgotten == [ID]


def test_work_too_old_to_train_on_asks_for_no_more():
    rig = Rig(script(), is_fresh=False)
    rig.run()
    assert len(rig.asked) == 2
    assert [type(event) for _, event in rig.told] == [TrajectoryBorn]


def test_a_first_prompt_that_fills_the_limit_is_a_wrong_script():
    with pytest.raises(InvariantError, match="leaves no space to sample within 100 tokens"):
        Rig(script(max_tokens=100)).run()
