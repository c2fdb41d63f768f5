"""Real runs whose rewards come from elsewhere, and from here after a pause: all learn the same."""

import json
import sys
import zipfile
from pathlib import Path

import pytest
from checkout import SUPPORT
from lambda_loopback import loopback, sandbox
from served_function import TOKEN, serving

from rollart.config import add_import_paths, check_names, load_config
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.pipelines.agentic import train
from rollart.rewards.invoke.lambda_package import HANDLER, write_lambda_package

NUMBERED = "contract_rewards:numbered"
STEPS = 2
CONFIG = f"""
[run]
steps = {STEPS}
environments = 4
checkpoint_every = 0
evaluate_episodes = 0
samples = 0
mode = "sync"
import_paths = ["{SUPPORT}"]

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.guess]
env = "number_guess"
max_turns = 2
max_tokens = 64

[tasks.guess.rewards.number]
function = "{NUMBERED}"

[tasks.guess.rewards.words]
function = "contract_rewards:graded"
weight = 0.5
options = {{ scale = 0.1 }}

[rewards.scaling]
max_instances = 1

[sampling]
max_tokens = 4

[batching]
groups_per_step = 2
group_size = 4

[training]
learning_rate = 1e-2
threads = 1

[engine.torch]
threads = 1
"""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("runs")


def run(runs: Path, name: str, *overrides: str, resume: bool = False) -> dict[int, list[float]]:
    """Make a run, or go on with it; return what each of its steps learned."""
    file = runs / "config.toml"
    file.write_text(CONFIG)
    directory = runs / name
    here = [f"run.directory={str(directory)!r}", f"model.cache={str(runs / 'cache')!r}"]
    config = load_config(file, [*here, *overrides])
    add_import_paths(config)
    check_names(config)
    assert train(config, resume=directory if resume else None) == 0
    proof = replay(directory)
    assert (proof["same_commands"], proof["lost"], proof["trained_twice"]) == (True, 0, 0)
    rows = [row for row in read_rows(directory / "metrics.jsonl") if "trainer/loss" in row]
    names = ("reward_mean", "trainer/loss", "reward/part/number", "reward/part/words/words")
    return {int(row["step"]): [row[name] for name in names] for row in rows}


def calls(directory: Path) -> list[dict]:
    return [json.loads(line) for line in (directory / "rewards.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(runs) -> dict[int, list[float]]:
    """What a run learns that a served function scores, never interrupted."""
    functions = (NUMBERED, "contract_rewards:graded")
    with pytest.MonkeyPatch.context() as patch, serving(*functions, path=SUPPORT) as url:
        patch.setenv("ROLLART_FUNCTION_TOKEN", TOKEN)
        return run(runs, "served", "rewards.kind='http'", f"rewards.url={url!r}")


def test_a_run_is_scored_by_a_served_function(runs, whole):
    lines = calls(runs / "served")
    assert {(line["pool"], line["failure"]) for line in lines} == {("http", "")}
    assert len(lines) == 2 * 8 * STEPS
    assert list(whole) == [1, 2]


def test_a_run_goes_on_and_learns_the_same_from_its_rewards_each_had_once(runs, whole):
    run(runs, "cut", "run.steps=1")
    assert run(runs, "cut", resume=True) == whole
    lines = calls(runs / "cut")
    assert {(line["pool"], line["failure"]) for line in lines} == {("local", "")}
    keys = [line["key"] for line in lines]
    assert len(keys) == len(set(keys)) == 2 * 8 * STEPS


def test_a_run_scored_by_lambda_learns_the_same(runs, whole, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "id")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "key")
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    assert str(SUPPORT) in sys.path
    package = write_lambda_package(runs / "reward.zip", [NUMBERED, "contract_rewards:graded"])
    with zipfile.ZipFile(package.path) as archive:
        archive.extractall(runs / "task")
    with loopback() as server, sandbox(server, runs / "task", HANDLER):
        options = {
            "kind": "lambda",
            "function_name": "score",
            "region": "us-east-1",
            "endpoint_url": f"http://{server.address}",
        }
        told = [f"rewards.{name}={value!r}" for name, value in options.items()]
        learned = run(runs, "lambda", *told, "run.steps=1")
    assert learned == {1: whole[1]}
    assert len(server.invoked) == 2 * 8
    assert {line["pool"] for line in calls(runs / "lambda")} == {"lambda"}
