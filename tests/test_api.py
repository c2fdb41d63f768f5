"""The public interface: what `import rollart` offers, in a script and in a notebook."""

import asyncio
import inspect
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest
from checkout import ROOT
from letter_env import Letters

import rollart
from rollart.api import run_outside_loop
from rollart.errors import ConfigError, UserError
from rollart.plugins import load_module

QUICKSTART = ROOT / "examples" / "quickstart.toml"
NAMES = [name for name in rollart.__all__ if name != "__version__"]
SMALL = {
    "environments": 3,
    "evaluate_episodes": 4,
    "samples": 1,
    "mode": "sync",
    "sampling": {"max_tokens": 4},
    "batching": {"groups_per_step": 2, "group_size": 4},
    "engine": {"torch": {"threads": 1}},
    "training": {"threads": 1},
}


class Local:
    def reset(self, seed, task):
        return "say a", {}

    def step(self, action):
        return "", float("a" in action), True, False, {}


@pytest.fixture
def small(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model = {"path": "tiny:0.2M", "warm_start": False, "cache": str(tmp_path / "cache")}
    return {**SMALL, "model": model}


def test_about_twenty_names_are_public_and_listed():
    assert 15 <= len(NAMES) <= 26
    assert dir(rollart) == sorted(rollart.__all__)
    with pytest.raises(AttributeError, match="module 'rollart' has no attribute 'trian'"):
        _ = rollart.trian


@pytest.mark.parametrize("name", NAMES)
def test_every_public_name_is_documented_with_an_example(name):
    text = inspect.getdoc(getattr(rollart, name)) or ""
    assert re.search(r"^Example:$", text, re.MULTILINE), text


def test_importing_the_package_loads_nothing_of_it_or_of_others():
    heavy = ("torch", "ray", "numpy", "pydantic", "rich", "rollart.config", "rollart.errors")
    code = f"import rollart, sys\nprint([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("arguments", [["--version"], ["train", "--help"]])
def test_the_package_runs_as_a_program(arguments):
    command = [sys.executable, "-m", "rollart", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(("rollart ", "usage: rollart train"))


def test_a_config_is_a_file_a_mapping_keywords_or_a_config():
    file = rollart.load_config(QUICKSTART, steps=3, staleness={"alpha": 2})
    assert (file.run.name, file.run.steps, file.staleness.alpha) == ("quickstart", 3, 2)
    assert rollart.load_config(QUICKSTART, ["run.steps=3", "staleness.alpha=2"]) == file
    sections = {"run": {"name": "a"}, "tasks.lake": {"env": "frozen_lake"}, "steps": 3}
    mapping = rollart.load_config(sections, ["run.seed=4"])
    assert (mapping.run.name, mapping.run.steps, mapping.run.seed) == ("a", 3, 4)
    assert rollart.load_config(mapping) is mapping
    assert rollart.load_config(mapping, seed=5).run.seed == 5
    named = rollart.load_config(env="frozen_lake")
    assert (named.run.name, named.tasks["frozen_lake"].env) == ("frozen_lake", "frozen_lake")


def test_an_environment_takes_the_place_of_the_tasks():
    config = rollart.load_config(QUICKSTART, env=Letters, tasks={"letters": {"max_turns": 2}})
    assert list(config.tasks) == ["letters"]
    assert (config.tasks["letters"].env, config.tasks["letters"].max_turns) == (
        "letter_env:Letters",
        2,
    )
    again = rollart.load_config(config, env="calculator")
    assert list(again.tasks) == ["calculator"]


def test_an_object_may_stand_where_a_config_names_one():
    tasks = {"letters": {"env": Letters}}
    assert rollart.load_config({"tasks": tasks}).tasks["letters"].env == "letter_env:Letters"


def test_what_cannot_be_written_in_a_config_is_refused():
    class Hidden(Local):
        pass

    with pytest.raises(rollart.ConfigError, match="define Hidden at the top level of a module"):
        rollart.load_config(env=Hidden)
    with pytest.raises(rollart.ConfigError, match="a config holds text, numbers, lists"):
        rollart.load_config(env="frozen_lake", training={"learning_rate": object()})
    with pytest.raises(rollart.ConfigError, match=r"run\.stepz = 1: .*did you mean run\.steps"):
        rollart.load_config(env="frozen_lake", run={"stepz": 1})


def test_a_run_is_trained_read_evaluated_and_resumed(small):
    run = rollart.train(env=Letters, steps=2, **small)
    assert run == rollart.read_run("runs/letters")
    assert (run.summary["steps"], run.summary["interrupted"]) == (2, False)
    assert [row["step"] for row in run.metrics if "reward_mean" in row] == [1, 2]
    assert run.samples[0].startswith("trajectory ")
    assert run.config.tasks["letters"].env == "letter_env:Letters"
    assert run.replay()["lost"] == 0
    checkpoint = run.checkpoints[-1]
    assert rollart.read_run(checkpoint).directory.resolve() == run.directory.resolve()
    assert rollart.evaluate(run, episodes=3)["episodes"] == 3
    longer = rollart.train(resume=run, steps=3)
    assert (longer.directory, longer.summary["resumed_at"]) == (run.directory, 2)


def test_an_interrupted_thread_ends_the_run_in_order(small):
    """A notebook's Ctrl-C: a signal to the main thread while the run works in another."""

    async def cell():
        def press():
            while not (rows.exists() and rows.read_text().count("\n") > 2):
                if over.wait(0.01):
                    return  # another test would be interrupted
            os.kill(os.getpid(), signal.SIGINT)

        rows, over = Path("runs/letters/metrics.jsonl").absolute(), threading.Event()
        presser = threading.Thread(target=press, daemon=True)
        presser.start()
        try:
            return rollart.train(env=Letters, steps=100_000, **small)
        except KeyboardInterrupt:
            pytest.fail("the run was not ended in order")
        finally:
            over.set()
            presser.join()

    # asyncio.run would take the signal for itself; a notebook's loop does not.
    loop = asyncio.new_event_loop()
    try:
        run = loop.run_until_complete(cell())
    finally:
        loop.close()
    assert run.summary["interrupted"] is True
    assert run.checkpoints


def test_work_is_done_in_this_thread_unless_a_loop_runs_here():
    assert run_outside_loop(threading.get_ident) == threading.get_ident()

    async def inside():
        return run_outside_loop(threading.get_ident)

    assert asyncio.run(inside()) != threading.get_ident()


def test_what_work_raises_in_its_thread_is_raised():
    def fail():
        raise UserError("no")

    async def inside():
        run_outside_loop(fail)

    with pytest.raises(UserError, match="no"):
        asyncio.run(inside())


def test_the_simulator_and_the_planner_return_values_and_write_no_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    simulated = rollart.simulate(ROOT / "examples" / "simulate.toml", steps=1, environments=64)
    assert (len(simulated.rows), simulated.summary["mode"]) == (1, "rollart")
    planned = rollart.plan(ROOT / "examples" / "plan_here.toml")
    assert planned.figures["train"] == {"pool": "cores", "gpus": 1}
    assert planned.config.training.ranks == 1
    assert not list(tmp_path.iterdir())


def test_a_simulated_run_is_written_where_it_is_asked_for(tmp_path):
    config = ROOT / "examples" / "simulate.toml"
    rollart.simulate(config, directory=tmp_path, steps=1, environments=64)
    assert {path.name for path in tmp_path.iterdir()} == {
        "events.jsonl",
        "trace.json",
        "utilisation.png",
    }


def test_the_notebook_runs_in_a_notebook(tmp_path):
    """Its class is in `__main__`, which has no file, and an event loop is running."""
    text = (ROOT / "examples" / "notebook.py").read_text().partition("if __name__")[0]
    changes = "{'steps': 2, 'evaluate_episodes': 8, 'model': {'path': 'tiny:0.2M', 'cache': 'c'}}"
    call = f"import asyncio\nasync def cell():\n    return main(**{changes})\nasyncio.run(cell())\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{text}\n{call}"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    said = dict(line.split(": ", 1) for line in done.stdout.splitlines() if ": " in line)
    assert {"success", "greedy", "lost", "seconds a step on 12 GPUs"} <= said.keys()
    assert said["lost"] == "0"


def test_the_public_names_import_without_any_extra():
    blocked = ("torch", "transformers", "safetensors", "ray", "matplotlib", "tensorboardX", "httpx")
    code = (
        "import sys\n"
        f"sys.modules.update(dict.fromkeys({blocked!r}))\n"
        "import rollart\n"
        "for name in rollart.__all__: getattr(rollart, name)\n"
        "from rollart.cli import main\n"
        "print(main(['config', 'explain', 'run.steps']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_script_that_is_imported_for_its_class_does_not_train_again(tmp_path):
    script = tmp_path / "script.py"
    script.write_text("import rollart\nclass Toy: pass\nrollart.train(env='frozen_lake')\n")
    with pytest.raises(ConfigError, match=r"rollart.train was called while the file was imported"):
        load_module(str(script), field="algorithm.type")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": 3}, "step = 3: unknown keyword; did you mean steps?"),
        ({"lr": 1.0}, 'lr = 1.0: unknown keyword; did you mean training={"learning_rate": …}?'),
        ({"zzz": 1}, "zzz = 1: unknown keyword; there are the keys of [run] and the sections aff"),
        (
            {"algorithm": "rloo"},
            'algorithm = \'rloo\': is a section; did you mean algorithm={"type": "rloo"}?',
        ),
    ],
)
def test_a_wrong_keyword_is_answered_with_the_python_that_was_meant(changes, message):
    for source in (None, ROOT / "examples" / "quickstart.toml"):
        with pytest.raises(ConfigError) as caught:
            rollart.load_config(source, env="frozen_lake", **changes)
        assert str(caught.value).startswith(message)


def test_a_class_that_the_interpreter_does_not_keep_is_refused_with_the_way_out():
    """The asyncio REPL runs what is typed in a namespace of its own."""
    lines = ["import rollart", "class Toy: pass", "", "rollart.load_config(env=Toy)", ""]
    done = subprocess.run(
        [sys.executable, "-m", "asyncio"],
        input="\n".join(lines),
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert (
        "env = '__main__:Toy': this interpreter does not keep Toy in the module __main__, as "
        "python, IPython and Jupyter do: write Toy to a file, e.g. mine.py, and import it from "
        "there"
    ) in done.stderr


def test_an_object_for_another_process_is_refused_if_a_script_has_it():
    def score(trajectory):
        return 1.0

    score.__module__ = "__main__"
    with pytest.raises(ConfigError, match="put it in a module"):
        rollart.load_config(env="frozen_lake", weights={"store": score})


def test_ctrl_c_ends_the_wait_for_work_that_cannot_be_stopped_in_order():
    release = threading.Event()
    main = threading.get_ident()

    def work():
        signal.pthread_kill(main, signal.SIGINT)
        release.wait(30)

    async def notebook():
        run_outside_loop(work)

    loop = asyncio.new_event_loop()  # as a notebook's kernel has it: Ctrl-C raises
    try:
        with pytest.raises(KeyboardInterrupt):
            loop.run_until_complete(notebook())
    finally:
        release.set()
        loop.close()


def test_the_programs_of_the_readme_run(tmp_path):
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (program,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert "steps=30" in program
    script = tmp_path / "readme.py"
    script.write_text(program.replace("steps=30", f"steps=1, **{SMALL!r}"))
    done = subprocess.run(
        [sys.executable, str(script)],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert 0.0 <= float(done.stdout.splitlines()[-1]) <= 1.0


def test_an_instance_in_place_of_a_class_is_named():
    with pytest.raises(ConfigError, match="give the class or function itself"):
        rollart.load_config(env=Letters())  # pyright: ignore[reportArgumentType]
