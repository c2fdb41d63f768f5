import json
from pathlib import Path

import pytest
from checkout import ROOT

import rollart.cli.plan
from rollart.cli import main
from rollart.config import load_config
from rollart.planning.from_config import apply, problem_of
from rollart.planning.search import search
from rollart.sim.from_config import profiles_of, shape_of

EXAMPLE = str(ROOT / "examples" / "plan.toml")
HERE = str(Path(EXAMPLE).with_name("plan_here.toml"))
SMALL = """
[run]
name = "small"
[model]
path = "Qwen/Qwen3-8B"
[pools.big]
class = "H800"
count = 16
[pools.wide]
class = "H20"
count = 8
role = "rollout"
[tasks.lake]
env = "frozen_lake"
max_tokens = 1024
profile.turns = [2, 4]
profile.opening_tokens = 200
profile.observation_tokens = 100
profile.completion_tokens = 50
profile.reset_s = 1.0
[tasks.sums]
env = "calculator"
max_turns = 1
profile = { turns = [1, 1], opening_tokens = 100, completion_tokens = 400, score_s = 0.5 }
[batching]
groups_per_step = 4
group_size = 4
"""


@pytest.fixture
def small(tmp_path, monkeypatch) -> Path:
    def quick(problem, progress):
        return search(problem, events=10_000, progress=progress)

    monkeypatch.setattr(rollart.cli.plan, "search", quick)
    path = tmp_path / "small.toml"
    path.write_text(SMALL)
    return path


def refusal(capsys, *argv: str) -> str:
    assert main(argv) == 2
    return capsys.readouterr().err.removeprefix("error: ").strip()


def test_the_plan_is_a_config_that_check_and_dry_run_take(small, tmp_path, capsys):
    out = tmp_path / "planned.toml"
    assert main(["plan", str(small), "--out", str(out), "--explain"]) == 0
    text = capsys.readouterr().out
    for words in ("roll out", "bottleneck", "over the best bound", "- ", str(out)):
        assert words in text
    assert main(["config", "check", str(out)]) == 0
    assert main(["train", str(out), "--dry-run"]) == 0
    text = capsys.readouterr().out
    assert "H800, train" in text
    assert "`rollart train` on this machine refuses these pools" in text
    planned = load_config(out)
    assert sum(pool.count for pool in planned.pools.values()) == 24
    assert {pool.role for pool in planned.pools.values()} == {"train", "rollout"}
    assert all(pool.tp for pool in planned.pools.values() if pool.role == "rollout")
    assert planned.tasks == load_config(small).tasks


def test_a_plan_for_this_machine_divides_its_cores_into_workers(tmp_path, capsys):
    out = tmp_path / "planned.toml"
    assert main(["plan", HERE, "--out", str(out)]) == 0
    errors = capsys.readouterr().err
    assert errors.splitlines()[-1].startswith("planning, ")
    assert errors.splitlines()[-1].endswith(" s: done")
    pools = {name: (pool.role, pool.count) for name, pool in load_config(out).pools.items()}
    assert pools == {"cores-train": ("train", 1), "cores": ("rollout", 1)}
    assert main(["pools", str(out)]) == 0
    workers = capsys.readouterr().out.splitlines()[-2:]
    assert [line.split()[-1] for line in workers] == ["rank-0", "cores-0"]
    assert main(["train", str(out), "--address", "local", "--dry-run"]) == 0


def test_every_gpu_that_is_to_train_gets_a_rank(small, tmp_path, capsys):
    out = tmp_path / "planned.toml"
    assert main(["plan", str(small), "--out", str(out), "--no-split"]) == 0
    planned = load_config(out)
    count = next(pool.count for pool in planned.pools.values() if pool.role == "train")
    assert (count > 1, planned.training.ranks) == (True, count)
    capsys.readouterr()
    assert main(["pools", str(out)]) == 0
    row = next(line for line in capsys.readouterr().out.splitlines() if "rank-0" in line)
    assert row.split()[2:5] == [str(count)] * 3
    assert main(["train", str(out), "--dry-run"]) == 0
    assert "train nothing" not in capsys.readouterr().out
    assert main(["train", str(out), "--dry-run", "training.ranks=1"]) == 0
    assert f"training.ranks = 1: {count - 1} of the {count} units of pool " in (
        capsys.readouterr().out
    )


def test_a_split_is_planned_and_said_to_be_for_the_simulator_alone(small, tmp_path, capsys):
    out = tmp_path / "planned.toml"
    split = ["pools.wide.prefill=1", "pools.wide.decode=1"]
    assert main(["plan", str(small), *split, "--out", str(out)]) == 0
    said = "`rollart train` refuses these pools: pools.wide.prefill = 1: the engine torch both"
    assert said in capsys.readouterr().out
    assert main(["train", str(out), "--dry-run"]) == 0
    assert said in capsys.readouterr().out
    assert refusal(capsys, "pools", str(out)).startswith("pools.wide.prefill = 1: the engine")


def test_without_splits_none_is_looked_for(small):
    config = load_config(small)
    problem = problem_of(
        config, objective="throughput", any_alpha=False, most_slots=None, may_split=False
    )
    answer = search(problem, events=10_000)
    tried = [answer.plan, *(plan for plan, _ in answer.others)]
    assert len(tried) > 1
    assert not any(share.is_split for plan in tried for share in plan.rollout)


def test_a_planned_config_is_itself_a_problem_with_one_division_left(small, tmp_path, capsys):
    out = tmp_path / "planned.toml"
    assert main(["plan", str(small), "--out", str(out)]) == 0
    capsys.readouterr()
    assert main(["plan", str(out), "--json"]) == 0
    again = json.loads(capsys.readouterr().out.splitlines()[-1])
    pools = {each["pool"]: each["gpus"] for each in again["rollout"]}
    planned = load_config(out).pools
    assert pools == {n: p.count for n, p in planned.items() if p.role == "rollout"}


def test_json_is_one_object_and_the_same_each_time(small, capsys):
    texts: list[str] = []
    for _ in range(2):
        assert main(["plan", str(small), "--json", "--objective", "cost"]) == 0
        texts.append(capsys.readouterr().out)
    assert texts[0] == texts[1]
    answer = json.loads(texts[0])
    assert answer.keys() >= {"train", "rollout", "serves", "step_s", "cost_per_step", "gap"}
    assert answer["gap"] > 0.99


@pytest.mark.parametrize(
    ("where", "why"),
    [
        ("none/x.toml", "No such file or directory"),
        ("small.toml/x.toml", "Not a directory"),
        (".", "Is a directory"),
    ],
)
def test_a_file_that_cannot_be_written_is_told_before_planning(small, capsys, where, why):
    small = small.rename(small.with_name("small.toml"))
    out = small.parent / where
    assert refusal(capsys, "plan", str(small), "--out", str(out)) == (
        f"--out {out}: cannot be written: {why}"
    )


def test_a_directory_that_is_not_ours_is_told_before_planning(small, capsys, monkeypatch):
    monkeypatch.setattr("rollart.cli.plan.os.access", lambda *_: False)
    text = refusal(capsys, "plan", str(small), "--out", str(small.parent / "x.toml"))
    assert text.endswith("x.toml: cannot be written: Permission denied")


def test_a_single_node_is_divided_between_training_and_rollout(small, capsys):
    node = small.with_name("node.toml")
    pools = SMALL[SMALL.index("[pools.wide]") : SMALL.index("[tasks.lake]")]
    node.write_text(SMALL.replace(pools, "").replace("count = 16", "count = 8"))
    assert main(["plan", str(node), "--json", "staleness.alpha=0"]) == 0
    answer = json.loads(capsys.readouterr().out)
    used = answer["train"]["gpus"] + sum(share["gpus"] for share in answer["rollout"])
    assert (used, answer["alpha"]) == (8, 0)
    text = refusal(capsys, "plan", str(node), "model.shape=Qwen3-32B")
    assert text.startswith("pools.big.count = 8: Qwen3-32B needs 8 of them to train")
    assert "\n" not in text


def test_long_batches_do_not_make_a_plan_faster_than_its_bound():
    config = load_config(
        EXAMPLE, ["batching.groups_per_step=16", "staleness.alpha=3", "pools.h20.tp=2"]
    )
    problem = problem_of(config, objective="throughput", any_alpha=False, most_slots=None)
    answer = search(problem, events=1)
    assert answer.gap >= 1 - 1e-3


def test_alpha_is_kept_unless_asked_for(small):
    config = load_config(small, ["staleness.alpha=3"])
    kept = problem_of(config, objective="throughput", any_alpha=False, most_slots=None)
    free = problem_of(config, objective="throughput", any_alpha=True, most_slots=None)
    assert (kept.alphas, kept.alpha, free.alphas) == ((), 3, (1, 2, 3))


def test_a_run_that_cannot_be_here_says_so_before_anything_is_made(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    message = refusal(capsys, "train", EXAMPLE)
    assert message.startswith("pools.h800.class = 'H800': this host has no such hardware")
    assert list(tmp_path.iterdir()) == []


def test_shapes_come_from_the_path_or_from_their_own_key():
    assert shape_of(load_config(EXAMPLE)).name == "Qwen3-8B"
    assert shape_of(load_config(EXAMPLE, ["model.shape=Qwen3-32B"])).name == "Qwen3-32B"


def test_profiles_start_from_shipped_ones_and_are_cut_to_the_tasks_limits():
    config = load_config(
        EXAMPLE,
        ["tasks.swe.max_turns=40", "tasks.swe.profile.reset_s=7.0", "tasks.swe.weight=2"],
    )
    swe = next(each for each in profiles_of(config) if each.name == "swe")
    assert (swe.turns, swe.weight, swe.max_tokens) == ((30, 40), 2.0, 32768)
    assert swe.reset.mean_s == 7.0


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (["pools.big.class=H8000"], "pools.big.class = 'H8000': not known; nearest: H800"),
        (["pools.big.role=rollout"], "no GPU is left for training"),
        (["pools.big.role=train", "pools.wide.role=train"], "only one pool can train"),
        (["model.shape=Qwen3-235B-A22B"], "Qwen3-235B-A22B cannot be trained on any pool"),
        (["model.path=tiny:1M"], "set model.shape to one of Qwen3-0.6B"),
        (["model.shape=Qwen9"], "model.shape = 'Qwen9': not known"),
        (["run.environments=0"], "run.environments = 0: must be at least 1"),
        (["--environments", "0"], "--environments 0: must be at least 1"),
        (["tasks.lake.profile.like=lake"], "tasks.lake.profile.like = 'lake': not known; there"),
        (["tasks.more.env=calculator"], "tasks.more.profile: say how its episodes behave"),
        (["tasks.sums.domain=lake"], "tasks.sums.domain = 'lake': another task has this domain"),
        (["pools.big.count=0"], "pools.big.count = 0: must be at least 1"),
        (["pools.big.tp=16"], "pools.big.tp = 16: must be from 0"),
        (["pools.big.tp=3"], "pools.big.tp = 3: must divide the 32 attention heads of Qwen3-8B"),
        (["pools.big.prefill=1"], "pools.big.prefill = 1: give both prefill and decode"),
        (["pools.big.link=string"], "pools.big.link = 'string': not known"),
        (["pools.big.price=-1"], "pools.big.price = -1.0: must be at least 0"),
        (["pools.big.price=3"], "pools.wide.price = 0.0: give every pool a price"),
        (["pools.training.class=H20", "pools.training.count=8"], "and not 'training'"),
        (["engine.replicas=2"], "where there are pools, their count says how many engines"),
        (["affinity.tasks={lake = ['h9']}"], "no such pool; there is big, wide"),
        (["tasks.lake.profile.turns=[3, 2]"], "must be two numbers, 1 <= fewest <= most"),
        (
            ["tasks.lake.profile.completion_tokens=0"],
            "tasks.lake.profile.completion_tokens = 0: must be at least 1",
        ),
        (["tasks.lake.profile.reset_s=-1"], "reset_s = -1.0: must be at least 0"),
        (["tasks.lake.profile.failure_rate=1"], "must be from 0 to below 1"),
    ],
)
def test_what_cannot_be_planned_is_one_message(small, capsys, overrides, message):
    text = refusal(capsys, "plan", str(small), *overrides)
    assert message in text
    assert "\n" not in text


def test_without_pools_there_is_one_message(capsys):
    quickstart = str(Path(EXAMPLE).parent / "quickstart.toml")
    message = refusal(capsys, "plan", quickstart, "model.shape=Qwen3-8B",
                      "tasks.lake.profile.like=frozenlake")  # fmt: skip
    assert message.startswith("pools = {}: name the hardware")


def test_pools_for_environments_stay_as_they_are(small):
    hosts = ["pools.hosts.class=CPU", "pools.hosts.count=64", "pools.hosts.role=environments"]
    wishes = ["affinity.environments=hosts", "affinity.train=big", "pools.wide.memory_gb=141"]
    config = load_config(small, [*hosts, *wishes])
    problem = problem_of(config, objective="throughput", any_alpha=False, most_slots=None)
    assert [(pool.name, pool.gpu.memory_gb) for pool in problem.pools] == [
        ("big", 80.0),
        ("wide", 141.0),
    ]
    planned = apply(config, search(problem, events=1).plan)
    assert planned.pools["hosts"] == config.pools["hosts"]
    assert planned.affinity.environments == ("hosts",)


def test_a_pool_that_only_trains_keeps_its_name(small):
    config = load_config(small, ["pools.big.role=train", "pools.wide.tp=1"])
    problem = problem_of(config, objective="throughput", any_alpha=False, most_slots=None)
    planned = apply(config, search(problem, events=1).plan)
    assert {name: (p.role, p.count) for name, p in planned.pools.items()} == {
        "big": ("train", 16),
        "wide": ("rollout", 8),
    }
