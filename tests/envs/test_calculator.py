import pytest

from rollart.envs.calculator import Calculator
from rollart.errors import ConfigError


def test_a_problem_is_computed_then_answered():
    env = Calculator()
    observation, info = env.reset(0, {"expression": "12*7"})
    assert observation == "12*7 = ?"
    assert info == {
        "actions": ["calc: 12*7", "answer: 85"],
        "success": False,
        "problem": "12*7",
        "split": "train",
    }
    assert env.suggest() == "calc: 12*7"
    assert env.step("calc: 12*7") == (
        "84",
        0.0,
        False,
        False,
        {"actions": ["calc: 12*7", "answer: 85", "answer: 84"], "success": False},
    )
    assert env.suggest() == "answer: 84"
    assert env.step("Answer: 84.0")[:4] == ("right", 1.0, True, False)


def test_a_wrong_answer_ends_the_episode_and_tells_the_right_one():
    env = Calculator()
    env.reset(0, {"expression": "12*7"})
    observation, reward, terminated, truncated, info = env.step("answer: 83")
    assert (observation, reward, terminated, truncated) == ("wrong: 84", 0.0, True, False)
    assert info["success"] is False


@pytest.mark.parametrize(
    ("action", "observation"),
    [
        ("calc: 2**3", "error: not arithmetic"),
        ("calc: 1/0", "error: division by zero"),
        ("84", "write calc: or answer:"),
        ("", "write calc: or answer:"),
    ],
)
def test_what_cannot_be_done_is_told(action, observation):
    env = Calculator()
    env.reset(0, {})
    assert env.step(action)[:4] == (observation, 0.0, False, False)


def test_the_answer_is_a_number_not_an_expression():
    env = Calculator()
    env.reset(0, {"expression": "12*7"})
    assert env.step("answer: 12*7")[1] == 0.0


def test_the_episode_is_truncated_after_its_turns():
    env = Calculator(max_turns=2)
    env.reset(0, {})
    assert env.step("calc: 1")[3] is False
    assert env.suggest().startswith("answer: ")
    assert env.step("calc: 1")[3] is True


def test_problems_come_in_words_and_in_signs():
    env = Calculator(terms=3)
    texts = {env.reset(seed, {})[0] for seed in range(40)}
    assert any(text.startswith("What is ") for text in texts)
    assert any(text.endswith(" = ?") for text in texts)


@pytest.mark.parametrize("options", [{}, {"digits": 1, "words": False}])
def test_no_problem_of_an_evaluation_is_met_in_training_in_words_or_signs(options):
    env = Calculator(**options)

    def posed(split, count):
        resets = (env.reset(seed, {"split": split})[1] for seed in range(count))
        return {info["actions"][0] for info in resets}

    trained, tested = posed("train", 3000), posed("test", 400)
    assert len(tested) > 30
    assert not trained & tested


def test_a_task_without_a_split_poses_problems_of_both():
    env = Calculator(digits=1, words=False)
    every = {env.reset(seed, {})[0] for seed in range(2000)}
    tested = {env.reset(seed, {"split": "test"})[0] for seed in range(400)}
    assert 0.1 < len(every & tested) / len(every) < 0.3


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"terms": 1}, "env.options.terms"),
        ({"digits": 9}, "env.options.digits"),
        ({"max_turns": 1}, "env.options.max_turns"),
        ({"max_turns": True}, "env.options.max_turns"),
    ],
)
def test_wrong_options_name_the_field(options, field):
    with pytest.raises(ConfigError) as caught:
        Calculator(**options)
    assert caught.value.field == field


def test_a_task_with_a_broken_expression_is_refused():
    with pytest.raises(ConfigError, match=r"task\.expression = 'two': not arithmetic"):
        Calculator().reset(0, {"expression": "two"})


@pytest.mark.parametrize("answer", ["1e999999999", "1E9999999", "9" * 5000, "1/0", "١٢", "1_0"])
def test_an_answer_that_is_no_plain_number_is_wrong_and_costs_no_time(answer):
    env = Calculator()
    env.reset(1, {"expression": "2+3"})
    assert env.step(f"answer: {answer}")[:4] == ("wrong: 5", 0.0, True, False)


@pytest.mark.parametrize("answer", ["5", "+5", " 5.0 ", "5.", "10/2"])
def test_the_right_answer_may_be_spelled_in_any_plain_way(answer):
    env = Calculator()
    env.reset(1, {"expression": "2+3"})
    assert env.step(f"answer: {answer}")[:4] == ("right", 1.0, True, False)
