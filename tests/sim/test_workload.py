"""Scripts: what they depend on, and what their profiles make of them."""

from dataclasses import replace
from statistics import fmean

import pytest

from rollart.errors import ConfigError
from rollart.events import Launch
from rollart.sim.workload import Latency, SyntheticWorkload, TaskProfile
from rollart.types import GroupId, SlotId, TrajectoryId

PROFILE = TaskProfile(
    name="web",
    turns=(5, 30),
    samples=100,
    reads=200,
    reset=Latency(kind="lognormal", mean_s=5.0, spread=1.0),
    step=Latency(mean_s=1.0),
)


def launch(task: int, *, member: int = 0, attempt: int = 0, id_: int = 0) -> Launch:
    return Launch(
        id=TrajectoryId(id_),
        group=GroupId(task),
        task=task,
        member=member,
        attempt=attempt,
        slot=SlotId(0),
        seed=0,
    )


def scripts(profile: TaskProfile, *, tasks: int = 300, seed: int = 0):
    workload = SyntheticWorkload((profile,), seed=seed)
    return [workload.script(launch(task)) for task in range(tasks)]


def test_a_script_depends_on_seed_task_member_and_attempt_alone():
    workload = SyntheticWorkload((PROFILE,), seed=3)
    script = workload.script(launch(7, member=2))
    assert script == SyntheticWorkload((PROFILE,), seed=3).script(launch(7, member=2, id_=99))
    for other in (launch(8, member=2), launch(7, member=3), launch(7, member=2, attempt=1)):
        assert workload.script(other) != script
    assert SyntheticWorkload((PROFILE,), seed=4).script(launch(7, member=2)) != script


def test_turns_stay_within_their_range_and_fill_it():
    counts = [len(script.turns) for script in scripts(PROFILE)]
    assert (min(counts), max(counts)) == (5, 30)
    assert fmean(counts) == pytest.approx(17.5, abs=1.0)


def test_tokens_have_their_means():
    turns = [turn for script in scripts(PROFILE) for turn in script.turns]
    assert fmean(turn.samples for turn in turns) == pytest.approx(100, rel=0.05)
    assert {script.turns[0].reads for script in scripts(PROFILE)} == {PROFILE.opening_tokens}
    assert all(turn.samples >= 1 for turn in turns)


def test_members_of_a_group_share_what_is_the_tasks():
    profile = replace(
        PROFILE, turn_jitter=0.0, reset=Latency(mean_s=5.0), reset_spread=1.0, step_spread=0.5
    )
    workload = SyntheticWorkload((profile,), seed=0)
    members = [workload.script(launch(3, member=member)) for member in range(4)]
    assert len({len(script.turns) for script in members}) == 1
    assert len({script.reset_s for script in members}) == 1
    assert len({turn.step_s for script in members for turn in script.turns}) == 1
    assert workload.script(launch(4)).reset_s != members[0].reset_s


def test_failures_come_at_their_rate_and_take_their_own_time():
    profile = replace(PROFILE, failure_rate=0.3, failure_after=Latency(mean_s=77.0))
    made = scripts(profile, tasks=1000)
    failing = [script for script in made if script.fails]
    assert len(failing) / 1000 == pytest.approx(0.3, abs=0.05)
    assert {script.reset_s for script in failing} == {77.0}
    plain = {script.reset_s for script in made if not script.fails}
    assert 77.0 not in plain


def test_a_failure_takes_as_long_as_any_reset_if_nothing_else_is_said():
    plain = [script.reset_s for script in scripts(PROFILE)]
    failing = [script.reset_s for script in scripts(replace(PROFILE, failure_rate=0.5))]
    assert plain == failing


def test_a_reward_function_has_its_own_time():
    assert {script.score_s for script in scripts(PROFILE)} == {None}
    scored = scripts(replace(PROFILE, score=Latency(mean_s=2.0)))
    assert {script.score_s for script in scored} == {2.0}


def test_kinds_of_tasks_come_by_weight():
    rare = replace(PROFILE, name="rare", weight=1.0)
    often = replace(PROFILE, name="often", weight=3.0)
    workload = SyntheticWorkload((rare, often), seed=0)
    domains = [workload.domain(task) for task in range(2000)]
    assert domains.count("often") / 2000 == pytest.approx(0.75, abs=0.03)
    assert workload.script(launch(5)).domain == workload.domain(5)


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"turns": (0, 3)}, "tasks.turns"),
        ({"max_tokens": 500}, "tasks.opening_tokens"),
        ({"failure_rate": 1.0}, "tasks.failure_rate"),
    ],
)
def test_a_wrong_field_is_named(changes, field):
    with pytest.raises(ConfigError) as caught:
        replace(PROFILE, **changes)
    assert caught.value.field == field


def test_a_workload_needs_a_task():
    with pytest.raises(ConfigError, match="name at least one task"):
        SyntheticWorkload((), seed=0)
