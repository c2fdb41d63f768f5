import json
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from checkout import ROOT
from saved_run import save_step

from rollart import __version__
from rollart.cli import main
from rollart.cli.config import describe_run, headline, most_attempts
from rollart.cli.doctor import _PACKAGES, examine
from rollart.cli.parser import parse
from rollart.cli.train import read_config
from rollart.config import load_config
from rollart.errors import UserError
from rollart.plugins import BUILT_IN

QUICKSTART = str(ROOT / "examples" / "quickstart.toml")


@pytest.fixture
def lines(capsys):
    def run(*argv: str) -> tuple[int, str, str]:
        code = main(argv)
        captured = capsys.readouterr()
        return code, captured.out, captured.err

    return run


def test_help_names_every_command(capsys):
    for argv in ([], ["--help"]):
        with pytest.raises(SystemExit) as caught:
            main(argv)
        assert caught.value.code == 0
        text = capsys.readouterr().out
        for name in ("train", "eval", "replay", "config", "env", "simulate", "bench", "doctor"):
            assert f"\n  {name}" in text


@pytest.mark.parametrize(
    "command",
    [
        "train",
        "eval",
        "replay",
        "config show",
        "config check",
        "config explain",
        "env try",
        "simulate",
    ],
)
def test_every_command_has_its_own_help(capsys, command):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    assert capsys.readouterr().out.startswith(f"usage: rollart {command}")


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("config", ("show Print the complete", "check Check that", "explain Explain a key")),
        ("env", ("try Play an environment",)),
        ("env try", (*BUILT_IN["env"], "path/to/file.py:Class")),
        ("function", ("serve Serve reward functions", "package Pack reward functions")),
    ],
)
def test_help_has_a_word_on_every_action_and_shipped_name(capsys, command, words):
    with pytest.raises(SystemExit):
        main([*command.split(), "--help"])
    text = re.sub(r"\s+", " ", capsys.readouterr().out)
    for each in words:
        assert each in text


def test_the_version_is_printed():
    command = [sys.executable, "-c", "from rollart.cli import main; main(['--version'])"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == f"rollart {__version__}\n"


def test_a_thread_that_hangs_does_not_keep_the_program_from_ending():
    script = (
        "import sys, threading, time\n"
        "from rollart.cli import entry\n"
        "entry._LEAVING_S = 0.2\n"
        "threading.Thread(target=time.sleep, args=(60,)).start()\n"
        "sys.argv[1:] = ['config', 'explain', 'run.steps']\n"
        "entry.console()\n"
    )
    command = [sys.executable, "-c", script]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert (done.returncode, done.stdout.splitlines()[0]) == (0, "run.steps")


def test_overrides_may_stand_before_and_after_options():
    arguments = parse(["train", "a.toml", "run.steps=1", "--dry-run", "run.seed=2"])
    assert arguments.overrides == ["run.steps=1", "run.seed=2"]
    with pytest.raises(UserError, match="unknown argument '--drie'"):
        parse(["train", "a.toml", "--drie"])
    with pytest.raises(UserError, match=r"unknown argument 'a=b'\ntry: rollart doctor --help$"):
        parse(["doctor", "a=b"])
    with pytest.raises(UserError, match=r"unknown argument '-x'\ntry: rollart config show"):
        parse(["config", "show", "a.toml", "-x"])


def test_an_option_of_an_environment_is_told_how_it_is_written():
    with pytest.raises(UserError) as caught:
        parse(["env", "try", "frozen_lake", "size=2"])
    said = "unknown argument 'size=2'; write --option size=2\ntry: rollart env try --help"
    assert str(caught.value) == said


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["trian"], "; did you mean train?\ntry: rollart --help"),
        (["config", "exlain"], "; did you mean explain?\ntry: rollart config --help"),
        (
            ["xyzzy"],
            "no such command 'xyzzy'; use train, eval, replay, config, env, pools, plan, simulate, "
            "function, bench, doctor, robot\ntry: rollart --help",
        ),
        (["train"], "name a config file"),
        (["train", "no.toml"], "no.toml: no such config file"),
        (["train", QUICKSTART, "steps=1"], "did you mean run.steps? (on the command line)"),
        (["train", "nothere.toml"], "no such config file; examples/ holds calculator.toml"),
        (["train", QUICKSTART, "run.directory=/dev/null/x"], "(run.directory): Not a directory"),
        (
            ["train", QUICKSTART, "run.directory=/proc/x", "--dry-run"],
            "cannot be used as the run's",
        ),
        (["train", QUICKSTART, "model.path=./nope"], "no such directory"),
        (["config", "check"], "missing argument: CONFIG\n"),
        (["train", QUICKSTART, "run.stepz=1"], "did you mean run.steps? (on the command line)"),
        (["train", QUICKSTART, "run.steps=many"], "run.steps = 'many': must be a whole number"),
        (["train", QUICKSTART, "tasks.lake.env=pond"], "tasks.lake.env = 'pond': "),
        (["train", QUICKSTART, "tasks.lake.options.sise=4"], "tasks.lake.options.sise = 4: "),
        (["train", QUICKSTART, "tasks.lake.parser=os:nope"], "os has no function nope"),
        (["train", QUICKSTART, "tasks.lake.parser=nope:f"], "no module nope here or installed"),
        (["train", "--resume", "no-such-run"], "--resume no-such-run: no such directory"),
        (["train", "--resume", str(ROOT)], "holds no config.toml, so it is not a run's directory"),
        (["eval", "no-such-run"], "no-such-run: no such run or checkpoint"),
        (["eval", str(ROOT), "--episodes", "0"], "--episodes 0: must be at least 1"),
        (["eval", str(ROOT), "--temperature", "-1"], "--temperature -1.0: must be at least 0"),
        (["eval", str(ROOT), "--temperature", "nan"], "--temperature nan: must be at least 0 and "),
        (["eval", str(ROOT), "--temperature", "inf"], "--temperature inf: must be at least 0 and "),
        (["eval", str(ROOT), "--episodes", "x"], "--episodes x: must be a whole number"),
        (["replay", "no-such-run"], "no-such-run: no such directory"),
        (["config", "explain", "run.stepz"], "did you mean run.steps?"),
        (["env", "try", "frozen_lak"], "did you mean frozen_lake?"),
        (["env", "try", "frozen_lake", "--option", "size"], "--option size: write it as "),
        (["env", "try", "frozen_lake", "--option", "sise=4"], "--option sise=4: frozen_lake has "),
        (["env", "try", "frozen_lake", "--option", "size=0"], "--option size=0: must be a whole"),
        (["env", "try", "frozen_lake", "--episodes", "0"], "must be at least 1"),
        (["eval"], "missing argument: RUN_OR_CHECKPOINT\ntry: rollart eval --help"),
        (["train", "--resume"], "--resume: give it a value\ntry: rollart train --help"),
        (["env", "try", "frozen_lake", "--player", "x"], "--player x: must be random or scripted"),
        (["config", "shwo"], "no such action 'shwo'; did you mean show?"),
        (["bench", "modse"], "no such benchmark 'modse'; did you mean modes?"),
        (["bench", "nope"], "no such benchmark 'nope'; there are"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(lines, argv, message):
    code, out, err = lines(*argv)
    assert (code, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert "Traceback" not in err


def test_pools_and_clusters_that_are_not_there_are_told_before_torch_is_loaded(
    lines, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "rollart.pipelines.agentic", None)
    two_pools = str(ROOT / "examples" / "two_pools.toml")
    code, out, err = lines("train", two_pools)
    assert (code, out) == (2, "")
    assert err.startswith("error: pools.compute.class = 'H800': this host has no such hardware")
    ranks = ["--address", "local", "training.ranks=5"]
    code, out, err = lines("train", two_pools, *ranks)
    assert (code, out) == (2, "")
    assert "training.ranks = 5: each takes a unit" in err
    assert "pools.hosts has 4" in err
    code, out, err = lines("train", two_pools, "--address", "127.0.0.1:1")
    assert (code, out) == (2, "")
    assert err.startswith("error: --address 127.0.0.1:1: no Ray cluster could be joined")
    said = "`rollart train` refuses these pools: training.ranks = 5: each takes a unit"
    assert said in lines("train", two_pools, *ranks, "--dry-run")[1]
    assert not list(tmp_path.iterdir())


def test_a_model_that_lacks_a_file_is_told_before_torch_is_loaded(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "rollart.pipelines.agentic", None)
    model = tmp_path / "model"
    model.mkdir()

    def said():
        code, _, err = lines("train", QUICKSTART, "model.path=./model")
        assert code == 2
        return err

    assert said() == "error: model.path = './model': config.json is missing\n"
    (model / "config.json").write_text('{"architectures": ["Qwen3ForCausalLM"]}')
    assert said().startswith("error: model.path = './model': has no model.safetensors")
    (model / "model.safetensors").write_bytes(b"")
    assert said().startswith("error: model.path = './model': has no tokenizer (")


def test_a_run_that_cannot_go_on_is_told_before_torch_is_loaded(lines, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "rollart.pipelines.agentic", None)
    shutil.copy(QUICKSTART, tmp_path / "config.toml")
    save_step(tmp_path, 5, {"model": "tiny:0.3M", "temperature": 1.0})
    resume = ["train", "--resume", str(tmp_path)]
    code, _, err = lines(*resume, "run.steps=2")
    assert code == 2
    assert err.startswith("error: run.steps = 2: the checkpoint is of step 5: give a larger")
    code, _, err = lines(*resume, "model.path=tiny:1M")
    assert code == 2
    assert err == "error: model.path = 'tiny:1M': the checkpoint is of tiny:0.3M: use that\n"


def test_a_run_is_headed_by_what_it_does():
    tasks = ["tasks.lak.env=frozen_lake", "run.mode=sync", "staleness.alpha=3"]
    assert headline(load_config(QUICKSTART, tasks)) == (
        "quickstart: lake (frozen_lake), lak (frozen_lake); tiny:0.3M; 150 steps of 16 x 8 "
        "trajectories; mode sync, staleness at most 0 (the mode's: staleness.alpha = 3 has no "
        "effect); in runs/quickstart"
    )


def test_imitation_is_headed_without_rollouts(tmp_path):
    file = tmp_path / "line.toml"
    file.write_text(
        '[run]\nname = "line"\npipeline = "imitation"\nsteps = 40\n'
        '[policy]\ntype = "toy_policy:Line"\n'
        '[tasks.doubling]\nenv = "toy_policy:Doubling"\nplayer = "toy_policy:LinePlayer"\n'
    )
    config = load_config(file)
    assert headline(config) == (
        "line: doubling (toy_policy:Doubling); policy toy_policy:Line; 40 steps of imitation; "
        "in runs/line"
    )
    described = describe_run(config, resume=None)
    assert "line: 40 steps, new run in runs/line" in described
    assert "policy       toy_policy:Line" in described
    assert "mode" not in described
    assert "before" not in described


def test_a_dry_run_shows_the_plan_and_leaves_nothing(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    code, out, err = lines("train", QUICKSTART, "--dry-run", "run.mode=sync", "run.steps=3")
    assert (code, err) == (0, "")
    assert "quickstart: 3 steps, new run in runs/quickstart" in out
    assert "lock-step" in out
    assert "staleness       at most 0" in out
    assert list(tmp_path.iterdir()) == []


def test_a_dry_run_says_what_happens_to_the_run_that_is_there(lines, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("quickstart", "quickstart.1"):
        (tmp_path / "runs" / name).mkdir(parents=True)
    (tmp_path / "runs" / "quickstart" / "config.toml").touch()
    for argv in (["train", QUICKSTART, "--dry-run"], ["config", "check", QUICKSTART]):
        shown = lines(*argv, "run.steps=1")[1]
        assert "1 step, new run in runs/quickstart (the earlier run there is moved to " in shown
        assert "runs/quickstart.2)\n" in shown


def test_truncated_sampling_needs_no_note(lines):
    for argv in (["train", QUICKSTART, "--dry-run"], ["config", "check", QUICKSTART]):
        code, said, _ = lines(*argv, "sampling.top_p=0.9")
        assert (code, "note:" in said) == (0, False)


def test_the_plan_counts_what_the_schedule_can_use():
    config = load_config(
        QUICKSTART,
        [
            "run.mode=rollart",
            "staleness.alpha=2",
            "batching.groups_per_step=3",
            "batching.group_size=4",
            "redundancy.extra_groups=1",
            "redundancy.extra_members=1",
        ],
    )
    assert most_attempts(config) == (3 * 3 + 1) * 5


def test_a_run_is_resumed_with_its_own_config_and_overrides(lines, tmp_path):
    _, shown, _ = lines("config", "show", QUICKSTART, "run.steps=7")
    (tmp_path / "config.toml").write_text(shown)
    save_step(tmp_path, 3)
    code, out, _ = lines("train", "--resume", str(tmp_path), "run.seed=5", "--dry-run")
    assert code == 0
    assert out.startswith(f"quickstart: 7 steps, resumed in {tmp_path}\n")


def test_a_resumed_run_stays_in_its_own_directory(tmp_path):
    shutil.copy(QUICKSTART, tmp_path / "config.toml")
    checkpoint = tmp_path / "checkpoints" / "step-3"
    checkpoint.mkdir(parents=True)
    for resume in (tmp_path, checkpoint):
        assert read_config(None, [], resume=resume).run.path == tmp_path
    moved = read_config("run.directory=elsewhere", [], resume=tmp_path)
    assert moved.run.path == Path("elsewhere")


def test_a_shown_config_is_complete_and_loads(lines, tmp_path):
    _, shown, _ = lines("config", "show", QUICKSTART)
    path = tmp_path / "shown.toml"
    path.write_text(shown)
    assert load_config(path) == load_config(QUICKSTART)


def test_a_checked_config_is_called_valid(lines):
    code, out, _ = lines("config", "check", QUICKSTART)
    assert code == 0
    assert out.startswith(f"valid: {QUICKSTART}\n")


def test_a_key_is_explained(lines):
    code, out, _ = lines("config", "explain", "staleness.alpha", "--config", QUICKSTART)
    assert code == 0
    assert out.startswith("staleness.alpha\n  Most optimizer steps a trajectory may lag")


def test_an_environment_is_played_by_a_scripted_player(lines):
    code, out, _ = lines("env", "try", "frozen_lake", "--player", "scripted", "--episodes", "2")
    assert code == 0
    assert "frozen_lake: 2 episodes by the scripted player, success 100.0%" in out
    assert "frozen_lake: 1 episode by the random player" in lines("env", "try", "frozen_lake")[1]


def test_a_disk_that_refuses_is_no_bug(lines, monkeypatch):
    def refuse(*_):
        raise OSError(28, "No space left on device", "runs/x/config.toml")

    monkeypatch.setattr("rollart.cli.doctor.run_doctor", refuse)
    code, out, err = lines("doctor")
    assert (code, out) == (2, "")
    assert "No space left on device: 'runs/x/config.toml': make room or choose another" in err
    assert "bug" not in err


def test_an_environment_that_raises_is_not_called_a_bug_of_ours(lines, tmp_path, monkeypatch):
    (tmp_path / "raising_env.py").write_text(
        "class Raising:\n"
        "    def reset(self, seed, task):\n        raise OSError('the server is away')\n"
        "    def step(self, action):\n        raise NotImplementedError\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = lines("env", "try", "raising_env:Raising")
    assert code == 2
    assert err.startswith("error: raising_env:Raising raised OSError: the server is away\n")


def test_what_an_environment_raises_is_told_in_one_line(lines, tmp_path, monkeypatch):
    (tmp_path / "wordy_env.py").write_text(
        "import asyncio\nclass Wordy:\n"
        "    def reset(self, seed, task):\n        raise OSError('line\\n' * 1000)\n"
        "    def step(self, action):\n        raise NotImplementedError\n"
        "class Cancelled(Wordy):\n"
        "    async def reset(self, seed, task):\n        raise asyncio.CancelledError\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = lines("env", "try", "wordy_env:Wordy")
    assert code == 2
    first = err.splitlines()[0]
    assert first.startswith("error: wordy_env:Wordy raised OSError: line line line ")
    assert len(first) < 340
    assert first.endswith("…")
    code, _, err = lines("env", "try", "wordy_env:Cancelled")
    assert code == 2
    assert err.startswith("error: wordy_env:Cancelled raised CancelledError\n")


def test_an_environment_that_cannot_close_is_told_once(lines, tmp_path, monkeypatch):
    (tmp_path / "open_env.py").write_text(
        "class Open:\n"
        "    def reset(self, seed, task):\n        return 'hello', {}\n"
        "    def step(self, action):\n        return 'x', 1.0, True, False, {}\n"
        "    def close(self):\n        raise OSError('still in use')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, out, err = lines("env", "try", "open_env:Open", "--episodes", "3")
    assert code == 0
    assert "3 episodes by the random player, success 100.0%" in out
    assert err == (
        "note: open_env:Open: close raised OSError: still in use; "
        "what was played counts, in training too\n"
    )


def test_an_environment_that_leaves_the_program_is_told(lines, tmp_path, monkeypatch):
    (tmp_path / "leaving_env.py").write_text(
        "import sys\nclass Leaving:\n"
        "    def reset(self, seed, task):\n        sys.exit(3)\n"
        "    def step(self, action):\n        raise NotImplementedError\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = lines("env", "try", "leaving_env:Leaving")
    assert code == 2
    assert err.startswith("error: leaving_env:Leaving raised SystemExit: 3\n")


def test_an_environment_that_breaks_the_contract_is_told_apart(lines, tmp_path, monkeypatch):
    (tmp_path / "rubbish_env.py").write_text(
        "class Rubbish:\n"
        "    def reset(self, seed, task):\n        return 'hello', {}\n"
        "    def step(self, action):\n        return 'x', float('nan'), False, False, {}\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    code, _, err = lines("env", "try", "rubbish_env:Rubbish")
    assert code == 2
    assert "does not follow the Env protocol: step() must return a finite reward" in err


def test_doctor_says_what_this_machine_can_run(lines):
    code, out, _ = lines("doctor", "--json")
    assert code == 0
    told = json.loads(out)
    assert list(told) == ["rollart", "findings"]
    assert told["rollart"] == __version__
    names = [each["name"] for each in told["findings"]]
    assert names == [each.name for each in examine()]
    assert {"python", "cores", "memory", "torch", "ray", "bubblewrap"} <= set(names)
    assert main(["doctor"]) == 0


def test_doctor_knows_a_package_of_every_extra():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    named = {extra for _, _, extra in _PACKAGES}
    assert named == project["optional-dependencies"].keys() - {"dev"}


def raise_in_command(monkeypatch, error: BaseException) -> None:
    def fail(arguments: object) -> int:
        raise error

    monkeypatch.setattr("rollart.cli.doctor.run_doctor", fail)


def test_an_interrupt_is_exit_code_130(lines, monkeypatch):
    raise_in_command(monkeypatch, KeyboardInterrupt())
    assert lines("doctor") == (130, "", "error: interrupted\n")


def test_a_bug_is_exit_code_1_with_a_hint(lines, monkeypatch):
    raise_in_command(monkeypatch, ZeroDivisionError("division by zero"))
    code, _, err = lines("doctor")
    assert code == 1
    assert err.startswith("error: ZeroDivisionError: division by zero\n")
    assert "ROLLART_DEBUG=1" in err
    monkeypatch.setenv("ROLLART_DEBUG", "1")
    with pytest.raises(ZeroDivisionError):
        main(["doctor"])


def test_a_missing_package_is_named_with_its_extra(lines, monkeypatch):
    raise_in_command(monkeypatch, ModuleNotFoundError("No module named 'trl'", name="trl.x"))
    assert lines("doctor") == (2, "", "error: this needs trl: pip install 'rollart[bench]'\n")
