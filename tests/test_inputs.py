"""What a user can get wrong, through the command line: one message, exit code 2, nothing lost."""

import json
import os
import re
import shutil
import subprocess
from dataclasses import asdict
from pathlib import Path

import pytest

from rollart.checkpoints.save import checkpoints, load_saved
from rollart.cli import main
from rollart.models.tiny import build_tiny
from rollart.models.tokenizer import load_tokenizer
from rollart.observe.replay import replay
from rollart.observe.trackers import read_rows
from rollart.types import Task, token_trajectory

MODULE = """
class Fine:
    system_prompt = "Say something"

    def reset(self, seed, task):
        return "hello", {"actions": ["a", "b"]}

    def step(self, action):
        return "bye", float(len(action) % 3), True, False, {}


class NoText(Fine):
    def reset(self, seed, task):
        return ["hello"], {}


class NoNumber(Fine):
    def step(self, action):
        return "bye", float("nan"), True, False, {}


class ShortTuple(Fine):
    def step(self, action):
        return "bye", 1.0, True


class Broken(Fine):
    def step(self, action):
        return {}["level"]


def refuse(text):
    raise ValueError("no action in it")


def count(text):
    return len(text)
"""
CONFIG = """
[run]
name = "small"
steps = 1
environments = 2
checkpoint_every = 0
evaluate_episodes = 0
mode = "sync_plus"

[model]
path = "tiny:0.2M"
warm_start = false

[tasks.game]
env = "my_games:Fine"
max_turns = 2
max_tokens = 64

[sampling]
max_tokens = 3

[batching]
groups_per_step = 1
group_size = 2

[training]
threads = 1

[retry]
backoff_s = 0.001
backoff_max_s = 0.01
give_up_after = 4
"""


@pytest.fixture(scope="module")
def home(tmp_path_factory) -> Path:
    """A user's directory: a config, their own module beside it, and a cache of models."""
    directory = tmp_path_factory.mktemp("home")
    (directory / "my_games.py").write_text(MODULE)
    (directory / "small.toml").write_text(CONFIG)
    return directory


@pytest.fixture
def rollart(home, monkeypatch, capfd):
    """Return a function that runs the command line there and gives exit code and what it said."""
    monkeypatch.chdir(home)
    monkeypatch.setenv("ROLLART_CACHE", str(home / "cache"))
    monkeypatch.syspath_prepend(str(home))

    def run(*argv: str) -> tuple[int, str]:
        capfd.readouterr()
        code = main(argv)
        return code, capfd.readouterr().err

    return run


@pytest.fixture(scope="module")
def built(home) -> Path:
    """The run directory of a run that went well."""
    environment = {**os.environ, "ROLLART_CACHE": str(home / "cache")}
    command = ["rollart", "train", "small.toml", "run.directory=good", "run.evaluate_episodes=2"]
    script = f"import sys; from rollart.cli import main; sys.exit(main({command[1:]!r}))"
    done = subprocess.run(
        [os.sys.executable, "-c", script],
        cwd=home,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (home / "good.stderr").write_text(done.stderr)
    assert done.stdout == ""
    return home / "good"


def only_error(said: str) -> str:
    """Return the one error in what was said."""
    assert "Traceback" not in said
    assert "bug in rollart" not in said
    assert said.count("error: ") == 1
    return said[said.index("error: ") + len("error: ") :].rstrip("\n")


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (
            ["train", "small.toml", "batching.groupsize=4"],
            "batching.groupsize = 4: unknown key; did you mean batching.group_size? "
            "(on the command line)",
        ),
        (
            ["train", "small.toml", "run.steps=many"],
            "run.steps = 'many': must be a whole number (on the command line)",
        ),
        (["train", "smal.toml"], "smal.toml: no such config file; "),
        (
            ["train", "small.toml", "tasks.game.env=frozen_lak"],
            "tasks.game.env = 'frozen_lak': no such environment; did you mean frozen_lake?",
        ),
        (
            ["train", "small.toml", "tasks.game.env=my_games:Fin"],
            "tasks.game.env = 'my_games:Fin': my_games has no class Fin; it has Fine, NoText",
        ),
        (
            ["train", "small.toml", "tasks.game.env=their_games:Fine"],
            "tasks.game.env = 'their_games:Fine': no module their_games here or installed",
        ),
        (
            ["train", "small.toml", "tasks.game.options={size = 4}"],
            "tasks.game.options.size = 4: my_games:Fine has no option size",
        ),
        (
            ["train", "small.toml", "tasks.game.parser=my_games:parse"],
            "tasks.game.parser = 'my_games:parse': my_games has no function parse",
        ),
        (
            ["config", "check", "small.toml", "model.warm_start=true"],
            "tasks.game.env = 'my_games:Fine': has no method suggest() -> str, whose actions "
            "the warm start of a tiny model imitates: add one, set model.warm_start=false, or "
            "set model.warm_start_noise=1 to imitate random actions",
        ),
        (
            ["train", "small.toml", "model.path=tiny:7B"],
            "model.path = 'tiny:7B': size must be one of 0.2M, ",
        ),
        (
            ["train", "small.toml", "model.path=./no-such-model"],
            "model.path = './no-such-model': no such directory",
        ),
        (
            ["train", "small.toml", "tasks.game.env=my_games:NoNumber"],
            "tasks.game.env = 'my_games:NoNumber': a game played to build the tiny model failed: "
            "step() must return a finite reward; it was float nan",
        ),
        (
            ["train", "small.toml", "tasks.game.env=my_games:Broken"],
            "tasks.game.env = 'my_games:Broken': a game played to build the tiny model failed: "
            "KeyError: 'level'",
        ),
        (["train", "--resume", "nowhere"], "--resume nowhere: no such directory"),
        (
            ["train", "small.toml", "--resume", "empty"],
            "--resume empty: is neither a run's directory (no config.toml and no checkpoints/)",
        ),
        (["eval", "empty"], "empty: is neither a run's directory"),
    ],
    ids=lambda value: " ".join(value[1:]) if isinstance(value, list) else "",
)
def test_a_mistake_is_told_before_anything_starts(rollart, home, argv, message):
    (home / "empty").mkdir(exist_ok=True)
    code, said = rollart(*argv)
    assert code == 2
    assert only_error(said).startswith(message) or message in only_error(said)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            "tasks.game.env=my_games:NoText",
            "env_contract: game: reset() must return (observation: str, info: dict); "
            "the observation was list ['hello']",
        ),
        (
            "tasks.game.env=my_games:NoNumber",
            "env_contract: game: step() must return a finite reward; it was float nan",
        ),
        (
            "tasks.game.env=my_games:ShortTuple",
            "env_contract: game: step() must return (observation: str, reward: float, "
            "terminated: bool, truncated: bool, info: dict); "
            "it returned a tuple of 3: tuple ('bye', 1.0, True)",
        ),
        ("tasks.game.parser=my_games:count", "parser: game: the parser must return a str; on "),
    ],
)
def test_rubbish_from_the_users_code_ends_the_run_with_the_reason(
    rollart, home, built, change, message
):
    model = f"model.path={checkpoints(built / 'checkpoints')[-1]}"
    code, said = rollart("train", "small.toml", "run.directory=bad", model, change)
    assert code == 2
    start = "4 attempts in a row failed; the last: "
    assert only_error(said).startswith(start + message)
    proof = replay(home / "bad")
    assert (proof["lost"], proof["trained_twice"], proof["open"]) == (0, 0, 0)
    assert checkpoints(home / "bad" / "checkpoints")
    shutil.rmtree(home / "bad")


def test_a_text_that_the_parser_cannot_read_does_not_end_the_run(rollart, home, built):
    model = f"model.path={checkpoints(built / 'checkpoints')[-1]}"
    change = "tasks.game.parser=my_games:refuse"
    code, said = rollart("train", "small.toml", "run.directory=unread", model, change)
    assert code == 0
    assert "game: the parser raised ValueError: no action in it on " in said
    shutil.rmtree(home / "unread")


def test_a_good_run_says_nothing_but_its_progress(built, home):
    said = (home / "good.stderr").read_text().splitlines()
    starts = ("small: game", "building a ", "evaluation at step ", "step 1/1 ", "run directory: ")
    assert [line for line in said if not line.startswith(starts)] == []


def test_a_model_without_tokenizer_is_named_with_what_is_missing(rollart, home, built):
    bare = home / "bare"
    bare.mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(checkpoints(built / "checkpoints")[-1] / name, bare)
    code, said = rollart("train", "small.toml", "run.directory=untold", "model.path=./bare")
    assert code == 2
    assert only_error(said) == (
        "model.path = './bare': has no tokenizer (tokenizer.json or tokenizer.model or vocab.json)"
    )


def contents(directory: Path) -> dict[str, bytes]:
    files = (path for path in directory.rglob("*") if path.is_file())
    return {str(path.relative_to(directory)): path.read_bytes() for path in files}


def test_a_checkpoint_of_another_model_is_refused_and_stays_whole(rollart, home, built):
    saved, rows = contents(built / "checkpoints"), read_rows(built / "metrics.jsonl")
    config = (built / "config.toml").read_text()
    tokenizer = load_tokenizer(checkpoints(built / "checkpoints")[-1])
    build_tiny("0.3M", directory=home / "larger", seed=0, tokenizer=tokenizer)
    for path, message in (
        ("tiny:0.3M", "model.path = 'tiny:0.3M': the checkpoint is of tiny:0.2M: use that"),
        ("./larger", "is of another model: its model.embed_tokens.weight is "),
    ):
        more = ["run.steps=2", f"model.path={path}"]
        code, said = rollart("train", "--resume", str(built), *more)
        assert code == 2
        assert message in only_error(said)
        assert contents(built / "checkpoints") == saved
        assert read_rows(built / "metrics.jsonl") == rows
        assert (built / "config.toml").read_text() == config
        assert replay(built)["lost"] == 0


def test_a_run_does_not_go_on_to_a_step_it_has_passed(rollart, home, built):
    shutil.copytree(built, home / "later")
    state = checkpoints(home / "later" / "checkpoints")[-1] / "run.json"
    state.write_text(re.sub(r'"version": ?1', '"version":5', state.read_text()))
    code, said = rollart("train", "--resume", "later", "run.steps=4")
    assert code == 2
    assert only_error(said).startswith("run.steps = 4: the checkpoint is of step 5: ")


def test_a_mistake_in_the_model_leaves_the_earlier_run_where_it_is(rollart, built):
    where = f"run.directory={built}"
    code, said = rollart("train", "small.toml", where, "model.path=./no-such-model")
    assert code == 2
    assert only_error(said).startswith("model.path = './no-such-model': no such directory")
    assert checkpoints(built / "checkpoints")
    assert not built.with_name("good.1").exists()


@pytest.fixture
def small_disk(home):
    """A disk with room for one checkpoint, where the run's checkpoints go."""
    place = home / "full" / "checkpoints"
    place.mkdir(parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs root and mount for a real disk that is full")
    yield place
    subprocess.run(["umount", "-l", str(place)], check=True)


def test_a_full_disk_costs_a_checkpoint_but_neither_the_run_nor_the_one_before(
    rollart, home, built, small_disk
):
    options = ["run.directory=full", "run.steps=3", "run.checkpoint_every=1"]
    code, said = rollart("train", "small.toml", *options)
    assert code == 2
    message = only_error(said)
    assert "cannot write the checkpoint " in message
    assert "the disk is full" in message
    assert message.endswith("; the last checkpoint is full/checkpoints/step-000001")
    assert "untouched" not in said
    assert "the checkpoint failed, the run continues (last good one: step-000001; next try " in said
    assert json.loads((home / "full" / "summary.json").read_text())["steps"] == 3
    [left] = checkpoints(small_disk)
    assert load_saved(left).scheduler["version"] == 1
    assert list(small_disk.iterdir()) == [left]
    assert replay(home / "full")["ended"] == {"trained": 6}
    assert main(["eval", "full", "--episodes", "2"]) == 0


def test_a_disk_too_small_for_any_checkpoint_costs_neither_the_summary_nor_the_reason(
    rollart, home, built
):
    place = home / "tiny_disk"
    place.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", str(place)]
    if os.geteuid() != 0 or subprocess.run(command, check=False, capture_output=True).returncode:
        pytest.skip("needs root and mount for a real disk that is full")
    try:
        options = ["run.directory=tiny_disk/r", "run.steps=2", "run.evaluate_episodes=2"]
        code, said = rollart("train", "small.toml", *options)
        left = {path.name for path in (place / "r").iterdir()}
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
    assert code == 2
    message = only_error(said)
    assert message.startswith(f"cannot write the checkpoint {place}/r/checkpoints/step-000002: ")
    assert message.endswith("; there is no checkpoint")
    assert "untouched" not in said
    assert "warning: the learning curve was not written: tiny_disk/r/learning_curve.png: " in said
    assert "summary.json" in left
    assert not {"learning_curve.png", ".lock"} & left


def test_work_sampled_at_one_temperature_is_not_trained_as_if_at_another(rollart, home, built):
    hot = home / "hot"
    shutil.copytree(built, hot)
    last = checkpoints(hot / "checkpoints")[-1]
    state = json.loads((last / "run.json").read_text())
    assert state["notes"]["temperature"] == 1.0
    task = Task(id=0, env="game", domain="game", seed=0)
    attempt = token_trajectory(
        id=0, group=0, task=task, turns=(), stop="terminated", success=True, reward=1.0
    )
    (last / "buffer.jsonl").write_text(json.dumps(asdict(attempt)) + "\n")
    code, said = rollart("train", "--resume", "hot", "run.steps=2", "sampling.temperature=0.5")
    assert (code, only_error(said)) == (
        2,
        "sampling.temperature = 0.5: the checkpoint holds 1 trajectories sampled at 1.0: use that",
    )


@pytest.mark.parametrize("field", ["engine.torch.device", "training.device"])
def test_a_device_that_is_not_there_leaves_the_earlier_run_where_it_is(rollart, home, built, field):
    before = contents(built)
    code, said = rollart("train", "small.toml", f"run.directory={built}", f"{field}=cuda:7")
    assert code == 2
    assert only_error(said).startswith(f"{field} = 'cuda:7': this machine has no such torch device")
    assert contents(built) == before
    assert not built.with_name(f"{built.name}.1").exists()


def test_a_full_cache_is_one_message(rollart, home, small_disk):
    filler = small_disk / "filler"
    with pytest.raises(OSError, match="No space left"):
        filler.write_bytes(bytes(1 << 30))
    options = ["run.directory=uncached", f"model.cache={small_disk}"]
    code, said = rollart("train", "small.toml", *options)
    assert code == 2
    assert "make room, or choose another directory" in only_error(said)
    assert not (home / "uncached").exists()


def test_a_damaged_checkpoint_is_named(rollart, home, built):
    broken = home / "broken"
    shutil.copytree(built, broken)
    state = checkpoints(broken / "checkpoints")[-1] / "run.json"
    state.write_text(state.read_text()[:100])
    code, said = rollart("train", "--resume", "broken", "run.steps=2")
    assert code == 2
    assert "is damaged (run.json: no whole JSON: it breaks off" in only_error(said)


def test_a_checkpoint_whose_schedule_lacks_a_part_is_refused_and_the_run_stays(
    rollart, home, built
):
    older = home / "older"
    shutil.copytree(built, older)
    file = checkpoints(older / "checkpoints")[-1] / "run.json"
    state = json.loads(file.read_text())
    del state["scheduler"]["adapting"]
    file.write_text(json.dumps(state))
    before = contents(older)
    code, said = rollart("train", "--resume", "older", "run.steps=2")
    assert code == 2
    damage = "is damaged (run.json: 'adapting' is missing), and no older one is whole"
    assert only_error(said).endswith(damage)
    assert contents(older) == before
