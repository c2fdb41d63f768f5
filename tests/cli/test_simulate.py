"""`rollart simulate` from end to end, and what it refuses."""

import json
import re
import sys
import types
from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from rollart.cli import main
from rollart.cli.simulate import STUDIES, Ticker
from rollart.config import load_config
from rollart.config.simulation import ScoringOptions
from rollart.control.rules import Retry
from rollart.errors import ConfigError
from rollart.observe.log import read_log
from rollart.observe.replay import replay
from rollart.pipelines.simulation import simulate_run
from rollart.planning.from_config import world_from
from rollart.sim.from_config import change_by, profiles_of
from rollart.sim.workload import Latency
from rollart.sim.world import OutageOptions
from rollart.types import EngineId, Version

CONFIG = """
[run]
name = "small"
steps = 3
environments = 32

[model]
path = "Qwen/Qwen3-8B"

[pools.trainers]
class = "H800"
count = 4
role = "train"

[pools.fast]
class = "H800"
count = 2
role = "rollout"

[pools.wide]
class = "H20"
count = 2
role = "rollout"

[affinity.tasks]
math = ["wide", "fast"]
default = ["fast", "wide"]

[tasks.web]
env = "number_guess"
max_turns = 8
max_tokens = 8192
profile = { like = "webshop" }

[tasks.math]
env = "calculator"
max_turns = 3
max_tokens = 8192
profile.turns = [1, 3]
profile.completion_tokens = 500
profile.observation_tokens = 100
profile.step_s = 0.5
profile.score_s = 1.0

[batching]
groups_per_step = 4
group_size = 4

[engine.torch]
max_length = 8192
"""
FILES = {"events.jsonl", "summary.json", "trace.json", "utilisation.png"}


@pytest.fixture
def config(tmp_path: Path) -> Path:
    path = tmp_path / "small.toml"
    path.write_text(CONFIG)
    return path


@pytest.fixture
def lines(capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_a_config_is_simulated_into_a_directory(config, tmp_path, lines):
    out = tmp_path / "out"
    code, text, errors = lines("simulate", str(config), "--out", str(out))
    assert (code, errors) == (0, "")
    head, *rows = text.splitlines()[:4]
    assert head.split("  ")[0] == "step"
    assert [row.split()[0] for row in rows] == ["1", "2", "3"]
    assert "fast busy" in head
    assert "wide busy" in head
    assert {path.name for path in out.iterdir()} == FILES
    assert (out / "utilisation.png").read_bytes().startswith(b"\x89PNG")
    bars = json.loads((out / "trace.json").read_text())["traceEvents"]
    assert {"step 1", "step 2", "step 3"} <= {bar["name"] for bar in bars}


def test_the_summary_is_in_words_and_large_numbers_are_readable(config, tmp_path, lines):
    _, text, _ = lines("simulate", str(config), "--out", str(tmp_path / "out"))
    rows = dict(line.split("  ", 1) for line in text.splitlines()[5:-2])
    rows = {name.strip(): value.strip() for name, value in rows.items()}
    assert rows["mode"] == "rollart"
    assert rows["fast busy"].endswith("%")
    assert rows["wasted tokens"] != ""
    sampled = json.loads((tmp_path / "out" / "summary.json").read_text())["sampled_tokens"]
    assert rows["sampled tokens"] == f"{sampled:,.0f}"
    assert "e+" not in text


def test_a_simulated_run_can_be_replayed(config, tmp_path, lines):
    out = tmp_path / "out"
    for _ in range(2):
        assert lines("simulate", str(config), "--out", str(out), "--quick")[0] == 0
    figures = replay(out)
    assert figures["same_commands"] is True
    assert (figures["lost"], figures["trained_twice"]) == (0, 0)


def test_the_last_line_is_one_json_object_and_the_same_seed_gives_the_same_bytes(
    config, tmp_path, lines
):
    made: list[tuple[str, bytes, bytes]] = []
    for name, seed in (("a", "5"), ("b", "5"), ("c", "6")):
        out = tmp_path / name
        code, text, _ = lines("simulate", str(config), "--out", str(out), "--seed", seed, "--json")
        assert code == 0
        made.append((text, (out / "events.jsonl").read_bytes(), (out / "trace.json").read_bytes()))
    assert made[0] == made[1] != made[2]
    summary = json.loads(made[0][0].splitlines()[-1])
    assert summary["seed"] == 5
    assert [step["step"] for step in summary["steps"]] == [1, 2, 3]
    assert summary["utilisation"].keys() == {"fast", "wide"}


def test_options_of_the_command_line_go_before_the_config(config, tmp_path, lines):
    _, text, _ = lines(
        "simulate", str(config), "run.mode=sync", "--steps", "1", "--engine-mtbf", "20",
        "--out", str(tmp_path / "out"), "--json",
    )  # fmt: skip
    summary = json.loads(text)
    assert (summary["mode"], len(summary["steps"])) == ("sync", 1)
    assert summary["engine_failures"] > 0
    assert replay(tmp_path / "out")["lost"] == 0


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["pools.fast.class=H900"], "pools.fast.class = 'H900': not known; nearest: H"),
        (["run.environments=0"], "run.environments = 0: must be at least 1"),
        (["model.path=Qwen/Qwen9"], "model.path = 'Qwen/Qwen9': its shape is not known"),
        (["model.shape=Qwen3-235B-A22B"], "Qwen3-235B-A22B cannot be trained on any pool"),
        (["pools.fast.tp=1", "model.shape=Qwen3-72B"], "model.shape = 'Qwen3-72B': not known"),
        (["pools.fast.role=any"], 'pools.fast.role = \'any\': set "train" or "rollout"'),
        (["pools.trainers.role=rollout"], "no GPU is left for training"),
        (["pools.fast.tp=16"], "pools.fast.tp = 16: must be from 0"),
        (["tasks.web.profile.like=pond"], "tasks.web.profile.like = 'pond': not known"),
        (["--steps", "0"], "run.steps = 0: must be at least 1"),
        (["--engine-mtbf", "-1"], "--engine-mtbf -1: must be at least 0 seconds"),
        (["--steps", "many"], "--steps many: must be a whole number"),
    ],
)
def test_what_cannot_be_simulated_is_one_message(config, tmp_path, lines, argv, message):
    code, _, errors = lines("simulate", str(config), *argv, "--out", str(tmp_path / "out"))
    assert code == 2
    assert message in errors
    assert "Traceback" not in errors


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        ([], "name a config file or one of paper, scale, plan, beyond"),
        (
            ["papr"],
            "papr: no such config file or study; did you mean 'paper'? The studies are paper,",
        ),
        (["xyz"], "xyz: no such config file or study. The studies are paper, scale, plan"),
        (["no.toml"], "no.toml: no such config file"),
        (["paper", "--steps", "3"], "--steps: the study 'paper' sets its own"),
        (["paper", "--seed", "-1"], "--seed -1: must be at least 0"),
        (["beyond", "run.steps=3"], "run.steps=3: the study 'beyond' sets its own"),
        (["--from", ".", "--steps", "3"], "--steps: --from simulates the run as its log has it"),
        (["--from", ".", "--quick"], "--quick: --from simulates the run as its log has it"),
        (["--from", ".", "--engine-mtbf", "9"], "--engine-mtbf: --from simulates"),
        (["--from", "no-such-run"], "--from no-such-run: no such directory"),
        (
            ["--from", ".", "run.mode=sync", "--seed", "1"],
            "--seed 1: simulates another run, key=value",
        ),
        (["paper", "--from", "x"], "--from reads everything from the run's log"),
        (["scale", "--jobs", "2"], "--jobs: the study 'scale' measures time and runs in one"),
        (["paper", "--jobs", "0"], "--jobs 0: must be at least 1"),
        (["no.toml", "--jobs", "2"], "--jobs: only the studies paper and beyond use"),
    ],
)
def test_a_wrong_request_is_one_message(lines, argv, message):
    code, _, errors = lines("simulate", *argv)
    assert code == 2
    assert message in errors


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["pools.wide.tp=4"], "pools.wide.tp = 4: the pool has 2 GPUs: raise count or lower tp"),
        (
            ["model.shape=Qwen3-235B-A22B", "pools.trainers.count=64", "pools.wide.count=8"],
            "Qwen3-235B-A22B does not fit on pool fast: an engine needs 470 GB for weights and "
            "room for an episode of 8192 tokens; with tp = 2 it has 160 GB, a whole node 160 GB",
        ),
        (
            ["model.shape=Qwen3-235B-A22B", "pools.trainers.count=64"],
            "Qwen3-235B-A22B fits on no pool: an engine needs 470 GB for weights and room for an "
            "episode of 8192 tokens, and a node of fast has 160 GB, a node of wide has 192 GB; "
            "use GPUs with more memory",
        ),
    ],
)
def test_a_model_or_an_engine_too_large_is_named_with_sizes(config, lines, changes, message):
    code, _, errors = lines("simulate", str(config), *changes)
    assert (code, errors.strip()) == (2, f"error: {message}")


def test_the_link_of_a_pool_and_the_store_set_the_time_of_weights(config):
    def times(*overrides: str) -> tuple[float, float]:
        durations = world_from(load_config(config, list(overrides))).durations
        publish_s = durations.publish_s(Version(1))
        return publish_s, durations.update_s(Version(1), engine=EngineId("fast-0"))

    links = ["pools.fast.link={0}", "pools.wide.link={0}"]
    slow, fast = (
        times(*(each.format(name) for each in links)) for name in ("tcp_10g", "rdma_400g")
    )
    assert slow[0] == pytest.approx(fast[0] * 6.2 / 1.1)
    assert slow[1] - fast[1] == pytest.approx(1 / 1.1 - 1 / 6.2)
    assert times("pools.fast.link=tcp_10g") == slow
    assert times("simulation.constants.push_gb_s=0.5")[0] == pytest.approx(slow[0] * 1.1 / 0.5)


def test_a_run_without_pools_is_told_how_to_name_them(tmp_path, lines):
    path = tmp_path / "bare.toml"
    path.write_text('[tasks.web]\nenv = "number_guess"\n')
    code, _, errors = lines("simulate", str(path))
    assert code == 2
    assert "pools = {}: name the hardware to simulate" in errors


def test_a_log_of_another_version_is_one_message(tmp_path, lines):
    (tmp_path / "events.jsonl").write_text('{"format": 99, "seed": 0}\n')
    code, _, errors = lines("simulate", "--from", str(tmp_path))
    assert code == 2
    assert "log format 99; this version of rollart reads format 2" in errors


def test_a_simulated_run_is_simulated_again_from_its_log(config, tmp_path, lines):
    first, second = tmp_path / "first", tmp_path / "second"
    assert lines("simulate", str(config), "--steps", "6", "--out", str(first))[0] == 0
    code, text, _ = lines("simulate", "--from", str(first), "--out", str(second), "--json")
    assert code == 0
    result = json.loads(text)
    assert result["steps"] == 6
    assert result["error"]["step_s"] < 0.5
    assert {path.name for path in second.iterdir()} == FILES
    assert lines("replay", str(second))[0] == 0
    logs = [read_log(each / "events.jsonl")[0] for each in (first, second)]
    kinds = [log.header.rules["tasks"]["kinds"] for log in logs]
    assert [kind["domain"] for kind in kinds[0]] == ["web", "math"]
    assert kinds[0] == kinds[1]
    code, text, _ = lines("simulate", "--from", str(first), "--out", str(second))
    assert "tokens/s" not in text.splitlines()[0]
    assert text.splitlines()[-1].startswith(f"written to {second}: ")
    code, _, errors = lines("simulate", "--from", str(first), "--out", str(first))
    assert code == 2
    assert "is the run that --from reads" in errors


def test_a_recorded_run_is_asked_what_another_schedule_would_take(config, tmp_path, lines):
    first, second = tmp_path / "first", tmp_path / "second"
    assert lines("simulate", str(config), "--steps", "6", "--out", str(first))[0] == 0
    asked = ["run.mode=sync_plus", "run.environments=16"]
    code, text, _ = lines("simulate", "--from", str(first), *asked, "--out", str(second), "--json")
    result = json.loads(text)
    assert (code, result["mode"], result["asked_mode"]) == (0, "rollart", "sync_plus")
    assert result["what_if"]["staleness_max"] == 0
    assert result["ratio"] == result["what_if"]["step_s"] / result["simulated"]["step_s"] > 1
    assert {path.name for path in second.iterdir()} == FILES
    same = lines("simulate", "--from", str(first), "run.steps=6", "--out", str(second), "--json")
    assert json.loads(same[1])["ratio"] == 1
    text = lines("simulate", "--from", str(first), *asked, "--out", str(second))[1]
    ratio = f"{result['ratio']:.4g} (slower; below 1 is faster)"
    assert f"step_s of what_if / simulated  {ratio}" in text


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("staleness.alfa=2", "staleness.alfa = 2: unknown key; did you mean staleness.alpha?"),
        ("staleness.alpha=-1", "staleness.alpha = -1: must be at least 0"),
        ("model.path=x", "model.path = 'x': the log has it as it was; a what-if changes the sch"),
        ("training.learning_rate=1e-3", "training.learning_rate = 0.001: the log has it as it was"),
        ("tasks.lake.max_turns=3", "keys of batching, staleness, redundancy, retry, filter, sync"),
        ("run.seed=1", "run.seed = 1: the log has it as it was"),
        ("run.seed=1", "lending, and run.mode, run.steps, run.environments"),
        ("stalenes.alpha=1", "unknown key; did you mean staleness?"),
        ("run.mode=synk", "run.mode = 'synk': must be"),
        ("run.steps=0", "run.steps = 0: must be at least 2"),
        (
            "run.steps=1",
            "run.steps = 1: must be at least 2 (the first fills the pipeline, its time",
        ),
        ("run.environments=0", "run.environments = 0: must be at least 1"),
        ("lending.enabled=true", "lending.enabled = True: the run lent no engine, so its log does"),
    ],
)
def test_what_a_log_cannot_answer_is_one_message(config, tmp_path, lines, override, message):
    run = tmp_path / "run"
    assert lines("simulate", str(config), "--steps", "3", "--out", str(run))[0] == 0
    code, _, errors = lines("simulate", "--from", str(run), override)
    assert code == 2
    assert message in errors


def test_a_study_is_called_by_name_and_its_rows_are_a_table(monkeypatch, tmp_path, lines):
    seen: list[tuple[bool, int, int | None]] = []

    def run(*, quick: bool, jobs: int, progress, seed: int | None) -> dict:
        progress("working")
        seen.append((quick, jobs, seed))
        return {
            "rows": [
                {"name": "one", "paper_low": 1.3, "simulated": 1.4, "kind": "fitted"},
                {"name": "two", "paper_low": 2.0, "simulated": 12345.6, "kind": "predicted"},
            ],
            "worst_error": 0.1,
        }

    module = types.ModuleType("studies.a_study")
    module.run = run  # pyright: ignore[reportAttributeAccessIssue]
    monkeypatch.setitem(sys.modules, "studies.a_study", module)
    monkeypatch.setitem(STUDIES, "paper", "studies.a_study")
    out = tmp_path / "out"
    code, text, _ = lines("simulate", "paper", "--quick", "--jobs", "2", "--out", str(out))
    assert (code, seen) == (0, [(True, 2, None)])
    assert text.splitlines() == [
        "name  paper_low  simulated  kind",
        "one         1.3        1.4  fitted",
        "two           2     12,346  predicted",
        "",
        "worst_error  0.1",
        "",
        f"written to {out / 'summary.json'}",
    ]
    code, text, errors = lines("simulate", "paper", "--json", "--out", str(out))
    assert json.loads(text) == json.loads((out / "summary.json").read_text())
    assert errors == f"note: the earlier run there was moved to {out}.1\n"
    assert (tmp_path / "out.1" / "summary.json").exists()
    assert lines("simulate", "paper", "--seed", "100", "--out", str(out))[0] == 0
    assert seen[-1][2] == 100


def test_a_world_is_the_configs_hardware_rules_and_tasks(config):
    world = world_from(load_config(config))
    loop_free = world.make_engines(None)  # pyright: ignore[reportArgumentType]
    assert [member.engine.id for member in loop_free] == ["fast-0", "fast-1", "wide-0", "wide-1"]
    assert (world.slots, world.rules.steps) == (32, 3)
    assert world.routing.affinity["math"] == ("wide", "fast")


def test_a_what_if_keeps_what_no_config_can_set_as_it_was_recorded(config):
    loaded = load_config(config)
    rules = replace(loaded.rules, retry=Retry(jitter=0.0, max_attempts=5))
    changed, slots = change_by(["retry.max_attempts=2", "run.environments=4"])(rules, 32)
    assert (changed.retry, slots) == (Retry(jitter=0.0, max_attempts=2), 4)
    with pytest.raises(ConfigError, match=re.escape("retry.jitter = 0.5: unknown key; leave it")):
        change_by(["retry.jitter=0.5"])(rules, 32)


def test_a_config_reaches_tails_failures_rewards_and_constants(config):
    changes = [
        "tasks.web.profile.reset_s=30", "tasks.web.profile.reset_tail=[0.001, 20]",
        "tasks.web.profile.step_spread=1.2", "tasks.web.profile.failure_rate=0.1",
        "tasks.web.profile.failure_after_s=120", "simulation.engine_mtbf_s=3600",
        "simulation.engine_repair_s=90", "simulation.rewards.kind=dedicated",
        "simulation.rewards.max_instances=4", "simulation.constants.train_utilisation=0.4",
        "simulation.constants.rpc_s=0.1",
    ]  # fmt: skip
    loaded = load_config(config, changes)
    web = profiles_of(loaded)[0]
    assert web.reset == Latency(
        kind="lognormal", mean_s=30.0, spread=0.5, tail_share=0.001, tail_factor=20.0
    )
    assert (web.step.mean_s, web.step.spread) == (0.5, 1.2)
    assert web.failure_after == Latency(kind="lognormal", mean_s=120.0, spread=0.5)
    world = world_from(loaded)
    assert world.outages == OutageOptions(mtbf_s=3600.0, repair_s=90.0, seed=0)
    assert world.rewards == ScoringOptions(kind="dedicated", max_instances=4)
    assert world.call_s == 0.1
    usual = world_from(load_config(config))
    tokens, first = 10**9, Version(0)
    quick, slow = (w.durations.train_s(tokens, version=first) - 80 for w in (world, usual))
    assert quick == pytest.approx(slow * 0.15 / 0.4)


def test_a_profile_keeps_the_shape_that_is_known_of_it(config):
    changes = [
        "tasks.web.profile.reset_spread=0", "tasks.web.profile.step_s=10",
        "tasks.web.profile.step_spread=0.7",
        "tasks.math.profile.step_spread=0.3", "tasks.math.profile.reset_s=2",
    ]  # fmt: skip
    web, math = profiles_of(load_config(config, changes))
    assert web.reset.draw(Random(0)) == pytest.approx(15.0)
    assert web.step == Latency(kind="lognormal", mean_s=10.0, spread=0.7)
    assert math.step == Latency(kind="lognormal", mean_s=0.5, spread=0.3)
    assert math.reset == Latency(kind="lognormal", mean_s=2.0, spread=0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("tasks.web.profile.reset_tail=[2, 3]", "tasks.web.profile.reset_tail = (2.0, 3.0): must"),
        ("tasks.web.profile.step_spread=-1", "profile.step_spread = -1.0: must be at least 0"),
        ("simulation.engine_repair_s=-1", "simulation.engine_repair_s = -1.0: must be at least 0"),
        (
            "simulation.rewards.max_instances=0",
            "simulation.rewards.max_instances = 0: must be at least 1",
        ),
        (
            "simulation.constants.train_utilisation=1.1",
            "train_utilisation = 1.1: must be more than",
        ),
        ("simulation.constants.push_gb_s=-1", "push_gb_s = -1.0: must be at least 0"),
        ("simulation.constants.rpc_s=-1", "simulation.constants.rpc_s = -1.0: must be at least 0"),
    ],
)
def test_a_wrong_assumption_is_named(config, change, message):
    with pytest.raises(ConfigError, match=re.escape(message)):
        load_config(config, [change])


def test_a_disk_that_refuses_is_one_message(config, tmp_path, lines):
    blocked = tmp_path / "file"
    blocked.write_text("")
    code, _, errors = lines("simulate", str(config), "--out", str(blocked / "out"))
    assert code == 2
    assert f"{blocked / 'out'}: cannot be used as the run's directory" in errors


def test_what_is_over_quickly_says_nothing(config, tmp_path, capsys):
    with Ticker("quiet", steps=3) as ticker:
        simulate_run(world_from(load_config(config)), out=tmp_path / "out", watch=ticker.watch)
        ticker.say("nothing")
    assert capsys.readouterr().err == ""


def test_what_takes_long_says_so_in_plain_lines_where_there_is_no_terminal(monkeypatch, capsys):
    now = [100.0]
    monkeypatch.setattr("rollart.cli.simulate.time.monotonic", lambda: now[0])
    with Ticker("studying") as ticker:
        for seconds, text in ((1.0, "one"), (5.0, "two"), (2.0, "three"), (4.0, "four")):
            now[0] += seconds
            ticker.say(text)
    assert capsys.readouterr().err.splitlines() == [
        "studying, 6 s: two",
        "studying, 12 s: four",
        "studying, 12 s: done",
    ]
