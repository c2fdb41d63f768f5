import re

import pytest
from checkout import ROOT

from rollart.config import check_names, dump_toml, load_config
from rollart.config.options import RewardPart, are_compared, judge_pools
from rollart.errors import ConfigError

CONFIG = """
[tasks.lake]
env = "frozen_lake"

[tasks.lake.rewards.right]
function = "exact"
options = { ignore_case = true }

[tasks.lake.rewards.brief]
function = "length"
weight = -0.5
options = { limit = 10, buffer = 5 }

[rewards]
kind = "local"
[rewards.scaling]
max_instances = 3
[sandbox]
warm = 0
"""


@pytest.fixture
def load(tmp_path):
    """Return a loader of the config with overrides."""
    file = tmp_path / "run.toml"
    file.write_text(CONFIG)
    return lambda *overrides: load_config(file, overrides)


def test_a_task_may_have_several_parts_and_survives_being_written(load, tmp_path):
    config = load()
    assert config.tasks["lake"].rewards == {
        "right": RewardPart(function="exact", options={"ignore_case": True}),
        "brief": RewardPart(function="length", weight=-0.5, options={"limit": 10, "buffer": 5}),
    }
    assert config.rewards.scaling.max_instances == 3
    assert config.sandbox.warm == 0
    check_names(config)
    copy = tmp_path / "copy.toml"
    copy.write_text(dump_toml(config))
    assert load_config(copy) == config


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        ("tasks.lake.rewards.right.function=''", "tasks.lake.rewards.right.function = '': name a"),
        ("tasks.lake.rewards.brief.weight=inf", "tasks.lake.rewards.brief.weight = inf: must be"),
        ("tasks.lake.rewards.right.wieght=1", "did you mean tasks.lake.rewards.right.weight?"),
        ("rewards.kind=cloud", "rewards.kind = 'cloud': must be"),
        ("rewards.kind=http", "rewards.url = '': must start with http:// or https://"),
        ("rewards.limits.timeout_s=0.0", "rewards.limits.timeout_s = 0.0: must be more than 0"),
        ("sandbox.kind=plain", "sandbox.kind = 'plain': runs programs without isolation"),
        ("sandbox.warm=-1", "sandbox.warm = -1: must be at least 0"),
    ],
)
def test_wrong_options_are_named_by_their_key(load, override, wanted):
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        load(override)


def test_weights_that_are_all_zero_are_refused(load):
    zeros = [f"tasks.lake.rewards.{name}.weight=0.0" for name in ("right", "brief")]
    with pytest.raises(ConfigError, match="at least one weight must not be 0"):
        load(*zeros)


def test_part_names_that_metrics_could_not_tell_apart_are_refused(tmp_path):
    file = tmp_path / "run.toml"
    part = '\n[tasks.lake.rewards."a/b"]\nfunction = "exact"\n'
    file.write_text(f'[tasks.lake]\nenv = "frozen_lake"\n{part}')
    with pytest.raises(ConfigError, match="name parts with letters, digits, '_' and '-'"):
        load_config(file)


@pytest.mark.parametrize(
    ("override", "wanted"),
    [
        (
            "right.function='exakt'",
            "rewards.right.function = 'exakt': no such reward function; did you mean exact?",
        ),
        (
            "right.function='absent:score'",
            "rewards.right.function = 'absent:score': no module",
        ),
        ("right.options={ case = true }", "rewards.right.options.case = True: exact has no option"),
        ("brief.function='judge'", "rewards.brief.options."),
        ("brief.options={ terms = [] }", "rewards.brief.options.terms = []: length has no option"),
    ],
)
def test_functions_and_their_options_are_looked_up_before_a_run(load, override, wanted):
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"tasks.lake.{'rewards.'}{override}"))
    assert str(caught.value).startswith(f"tasks.lake.{wanted}")


def test_terms_of_a_sum_are_looked_up_too(load):
    terms = "{ terms = [{ function = 'exact', options = { kase = true } }] }"
    part = "tasks.lake.rewards.sum"
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"{part}.function=weighted", f"{part}.options={terms}"))
    assert str(caught.value).startswith(f"{part}.options.kase = True: exact has no option kase")


def test_a_judge_is_checked_and_its_pool_told_apart(load):
    part = "tasks.lake.rewards.tone"
    nowhere = [f"{part}.function=judge", f"{part}.options={{ judge = {{ model = 'm' }} }}"]
    with pytest.raises(ConfigError) as caught:
        check_names(load(*nowhere))
    assert str(caught.value).startswith(f"{part}.options.judge.base_url = '': give one")
    options = {"judge": {"base_url": "http://127.0.0.1:1/v1", "concurrency": 2}}
    pool = "judge http://127.0.0.1:1/v1, 2 questions at once in each process"
    assert judge_pools("judge", options) == (pool,)
    assert judge_pools("rollart.rewards.judge:pairwise", options) == (pool,)
    assert judge_pools("exact", {}) == ()
    term = {"function": "judge", "options": options}
    assert judge_pools("weighted", {"terms": [{"function": "exact"}, term]}) == (pool,)


@pytest.mark.parametrize(
    ("judge", "wanted"),
    [
        ("{ base_url = 'ftp://a' }", "judge.base_url = 'ftp://a': must begin with http"),
        ("'http://a'", "judge = 'http://a': must be a table that says where to ask"),
    ],
)
def test_a_judge_within_a_sum_is_checked_too(load, judge, wanted):
    part = "tasks.lake.rewards.sum"
    terms = f"{{ terms = [{{ function = 'judge', options = {{ judge = {judge} }} }}] }}"
    with pytest.raises(ConfigError) as caught:
        check_names(load(f"{part}.function=weighted", f"{part}.options={terms}"))
    assert str(caught.value).startswith(f"{part}.options.{wanted}")


def test_a_function_of_the_users_own_may_call_its_options_as_it_likes(load, tmp_path):
    file = tmp_path / "own_rewards.py"
    file.write_text("def score(trajectory, *, judge, terms):\n    return 1.0\n")
    part = "tasks.lake.rewards.own"
    options = "{ judge = { name = 'Ada' }, terms = 3 }"
    check_names(load(f"{part}.function='{file}:score'", f"{part}.options={options}"))
    assert judge_pools(f"{file}:score", {"judge": {"name": "Ada"}, "terms": 3}) == ()


def test_a_part_that_compares_makes_all_attempts_wait_for_the_last():
    file = ROOT / "examples" / "rewards.py"
    alone = {"right": RewardPart(function=f"{file}:short_and_right")}
    assert not are_compared(alone)
    assert are_compared({**alone, "brief": RewardPart(function=f"{file}:shortest_wins")})
