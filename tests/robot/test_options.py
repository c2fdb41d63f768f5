"""What each objective uses by default, what a user may change, and what is refused."""

import subprocess
import sys

import pytest

from rollart.errors import ConfigError
from rollart_robot.objectives.diffusion import Diffusion
from rollart_robot.objectives.flowpolicy import FlowPolicy
from rollart_robot.objectives.meanflow import MeanFlow
from rollart_robot.options import GenerativeOptions, ImitationOptions
from rollart_robot.policy import make_objective


def test_omp_and_mp1_are_one_objective_with_different_parts():
    assert make_objective(GenerativeOptions()) == MeanFlow(
        derivative="dde", epsilon=0.005, alignment="log", alignment_weight=0.1, guidance=1.0
    )
    assert make_objective(GenerativeOptions(objective="mp1")) == MeanFlow(
        derivative="jvp", alignment="off", guidance=2.0
    )


def test_flowpolicy_and_diffusion_have_the_values_of_their_authors():
    assert make_objective(GenerativeOptions(objective="flowpolicy")) == FlowPolicy(
        first=0.01, delta=0.01, segments=2, velocity_weight=1e-5, stops_gradient=False
    )
    assert make_objective(GenerativeOptions(objective="diffusion")) == Diffusion(
        prediction="sample", steps=100, inference_steps=10
    )


@pytest.mark.parametrize(
    ("objective", "weight"), [("omp", 0.5), ("mp1", 0.5), ("flowpolicy", 0), ("diffusion", 0)]
)
def test_the_mean_flow_objectives_spread_features(objective, weight: float):
    assert GenerativeOptions(objective=objective).resolved().dispersive_weight == weight


def test_a_value_that_the_user_sets_wins():
    options = GenerativeOptions(
        objective="mp1", derivative="dde", alignment="1-cos", guidance=1.5, dispersive_weight=0.0
    )
    assert options.resolved() == options


def test_resolving_twice_changes_nothing():
    once = GenerativeOptions(objective="mp1").resolved()
    assert once.resolved() == once


def test_the_executed_actions_start_with_that_of_the_newest_observation():
    assert range(4)[GenerativeOptions().executed] == range(1, 4)
    options = GenerativeOptions(horizon=8, execute=4, observation_steps=3)
    assert range(8)[options.executed] == range(2, 6)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"objective": "omq"}, "policy.objective = 'omq': must be one of omp, mp1, "),
        ({"derivative": "exact"}, "policy.derivative = 'exact': must be one of jvp, dde, "),
        ({"alignment": "cos"}, "policy.alignment = 'cos': must be one of off, log, 1-cos"),
        ({"epsilon": 0.0}, "policy.epsilon = 0.0: must be more than 0"),
        ({"temperature": 0.0}, "policy.temperature = 0.0: must be more than 0"),
        ({"guidance": float("nan")}, "policy.guidance = nan: must be a finite number"),
        ({"equal_time_share": 1.5}, "policy.equal_time_share = 1.5: must lie between 0 and 1"),
        ({"execute": 4}, "policy.execute = 4: must be at most horizon - observation_steps + 1 = 3"),
        (
            {"inference_steps": 7},
            "policy.inference_steps = 7: must divide policy.diffusion_steps (100)",
        ),
        (
            {"objective": "diffusion", "alignment": "log"},
            "policy.alignment = 'log': diffusion has no such part; leave it out, or use omp or mp1",
        ),
        (
            {"objective": "flowpolicy", "guidance": 2.0},
            "policy.guidance = 2.0: flowpolicy has no such part",
        ),
        (
            {"network": "points", "channels": (60, 128)},
            "policy.channels = (60, 128): use multiples of 8",
        ),
        (
            {"network": "points", "horizon": 6},
            "policy.horizon = 6: must be a multiple of 4",
        ),
    ],
)
def test_a_wrong_policy_is_refused_with_field_value_and_fix(wrong: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        GenerativeOptions(**wrong)
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": 0}, "imitation.steps = 0: must be at least 1"),
        ({"batch_size": 1}, "imitation.batch_size = 1: must be at least 2"),
        ({"steps": 100}, "imitation.warmup_steps = 500: must be below imitation.steps (100)"),
        ({"betas": (0.9, 1.0)}, "imitation.betas = (0.9, 1.0): must be from 0 to below 1"),
        ({"ema_limit": 1.0}, "imitation.ema_limit = 1.0: must be from 0 to below 1"),
    ],
)
def test_a_wrong_training_is_refused_with_field_value_and_fix(wrong: dict, message: str):
    with pytest.raises(ConfigError) as caught:
        ImitationOptions(**wrong)
    assert str(caught.value).startswith(message)


def test_neutral_parts_are_accepted_for_every_objective():
    GenerativeOptions(objective="diffusion", alignment="off", guidance=1.0)


def test_options_load_no_torch():
    code = "import sys, rollart_robot.options; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"
