import numpy as np
import pytest
from checkout import ROOT

from rollart.types import ArraySteps, Task, TokenTurns, Trajectory, Turn, token_trajectory

TASK = Task(id=0, env="lake", domain="lake", seed=0)
TURN = Turn(
    prompt_tokens=(1, 7),
    tokens=(4, 2),
    logprobs=(-0.7, -0.1),
    versions=(3, 4),
    observation="left or right?",
    action="left",
    reward=1.0,
)


def test_the_cost_and_birth_of_token_turns_are_counted():
    record = token_trajectory(
        id=1, group=0, task=TASK, turns=(TURN, TURN), stop="terminated", success=True, reward=2.0
    )
    assert (record.born, record.cost, len(record.payload)) == (3, 4, 2)
    assert record.turns == (TURN, TURN)


def test_an_attempt_without_turns_was_born_of_nothing():
    payload = TokenTurns(turns=())
    assert (payload.born, payload.sampled_tokens, len(payload)) == (0, 0, 0)


def test_array_steps_have_no_turns_and_the_error_says_what_to_read():
    one = np.zeros((1, 2))
    payload = ArraySteps(observations={}, actions=one, logprobs=one, rewards=(1.0,), versions=(3,))
    record = Trajectory(
        id=5,
        group=0,
        task=TASK,
        stop="terminated",
        success=True,
        reward=1.0,
        born=3,
        cost=1,
        payload=payload,
    )
    with pytest.raises(TypeError, match="trajectory 5 has no turns: its payload is array_steps"):
        _ = record.turns


def test_control_events_and_ledger_know_no_token():
    source = ROOT / "src" / "rollart"
    files = [*(source / "control").glob("*.py"), source / "events.py", source / "observe/ledger.py"]
    counted = {path.name for path in files if "token" in path.read_text().lower()}
    assert counted <= {"episode.py"}  # where the limits of an episode are counted
