import re
import shlex
import tomllib
from pathlib import Path

import pytest

from rollart.config import (
    Config,
    RunOptions,
    TaskOptions,
    WeightOptions,
    dump_toml,
    explain,
    load_config,
)
from rollart.config.fields import field_docs, field_types, keys_of, option_class
from rollart.config.loader import parse_override
from rollart.control.routing import Routing
from rollart.errors import ConfigError, UserError

LAKE = '[tasks.lake]\nenv = "frozen_lake"\n'


@pytest.fixture
def write(tmp_path: Path):
    def write(text: str, name: str = "run.toml") -> Path:
        path = tmp_path / name
        path.write_text(text)
        return path

    return write


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(UserError) as caught:
        load_config(path, overrides)
    return str(caught.value).replace(str(path.parent) + "/", "")


def test_a_file_with_one_task_gives_the_defaults(write, tmp_path):
    config = load_config(write(LAKE))
    expected = Config(
        run=RunOptions(import_paths=(str(tmp_path.resolve()),)),
        tasks={"lake": TaskOptions(env="frozen_lake")},
    )
    assert config == expected


def test_overrides_win_over_the_file_and_the_file_over_what_it_extends(write):
    write(LAKE + "[run]\nsteps = 1\nseed = 1\nenvironments = 1\n", "base.toml")
    path = write('extends = "base.toml"\n[run]\nseed = 2\nenvironments = 2\n')
    run = load_config(path, ["run.environments=3"]).run
    assert (run.steps, run.seed, run.environments) == (1, 2, 3)


def test_a_table_on_the_command_line_replaces_the_one_in_the_file(write):
    path = write(LAKE + "options = {size = 5, holes = 2}\n")
    assert load_config(path, ["tasks.lake.options={}"]).tasks["lake"].options == {}
    both = ["tasks.lake.options={size=3}", "tasks.lake.options.holes=1"]
    assert load_config(path, both).tasks["lake"].options == {"size": 3, "holes": 1}
    assert refusal(path, "tasks.lake={env=1}").endswith("must be text (on the command line)")


def test_overrides_are_read_as_toml_or_else_as_text():
    assert parse_override("run.steps=8") == ("run.steps", 8)
    assert parse_override("training.betas=[0.9, 0.95]") == ("training.betas", [0.9, 0.95])
    assert parse_override("run.mode=sync") == ("run.mode", "sync")
    assert parse_override('run.name="8"') == ("run.name", "8")
    assert parse_override("run.name=a\nb=c") == ("run.name", "a\nb=c")


def test_a_whole_number_is_a_number_and_a_list_is_a_tuple(write):
    config = load_config(write(LAKE), ["tasks.lake.weight=2", "training.betas=[0.8, 0]"])
    assert config.tasks["lake"].weight == 2.0
    assert config.training.betas == (0.8, 0.0)


def test_tables_of_names_are_kept(write):
    path = write(LAKE + '[pools.a]\nclass = "CPU"\ncount = 1\nlabels = { "ray.io/x" = "y" }\n')
    assert load_config(path).pools["a"].labels == {"ray.io/x": "y"}


def test_a_key_may_be_called_otherwise_in_python(write):
    path = write(LAKE + '[pools.a]\nclass = "CPU"\ncount = 1\n[routing]\nlearn = true\n')
    config = load_config(path, ["affinity.tasks={lake = 'a', default = ['training', 'a']}"])
    assert config.pools["a"].hardware == "CPU"
    assert config.routing == Routing(
        learn=True, affinity={"lake": ("a",), "default": ("training", "a")}
    )
    assert explain("pools.a.class", config).endswith('now      "CPU"')
    assert explain("routing.learn", config).endswith("now      true")


def test_environment_options_may_be_nested(write):
    path = write(LAKE + 'options = { size = 4, names = ["a", 1], deep = { x = 1.5 } }\n')
    assert load_config(path).tasks["lake"].options == {
        "size": 4,
        "names": ["a", 1],
        "deep": {"x": 1.5},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "[batching]\ngroupsize = 8\n",
            "batching.groupsize = 8: unknown key; did you mean batching.group_size? (run.toml:4)",
        ),
        (
            "[run]\nsteps = '8'\n",
            "run.steps = '8': must be a whole number, without quotes (run.toml:4)",
        ),
        ("[run]\nsteps = 8.5\n", "run.steps = 8.5: must be a whole number (run.toml:4)"),
        ("[run]\nsteps = true\n", "run.steps = True: must be a whole number (run.toml:4)"),
        ("[run]\nsteps = 0\n", "run.steps = 0: must be at least 1 (run.toml:4)"),
        ("[run]\nsteps = 2020-01-01\n", "must be a whole number (run.toml:4)"),
        (
            "[filter]\ndrop_zero_variance = 1\n",
            "filter.drop_zero_variance = 1: must be true or false (run.toml:4)",
        ),
        (
            "[run]\nmode = 'rolart'\n",
            'run.mode = \'rolart\': must be "sync" or "sync_plus" or "one_off" or "areal" or '
            '"rollart"; did you mean "rollart"? (run.toml:4)',
        ),
        (
            "weight = -1\n",
            "tasks.lake.weight = -1.0: must be at least 0 (run.toml:3)",
        ),
        ("weight = nan\n", "tasks.lake.weight = nan: must be a finite number (run.toml:3)"),
        ("[sampling]\ntemperature = inf\n", "temperature = inf: must be a finite number"),
        ("weight = 0\n", "tasks.*.weight = [0.0]: at least one must be more than 0"),
        (
            "parser = 'eval'\n",
            'must read "module:function" or "file.py:function", or be empty (run.toml:3)',
        ),
        ("step_timeout_s = 0\n", "tasks.lake.step_timeout_s = 0.0: must be more than 0"),
        ("[tasks.other]\nweight = 1\n", "tasks.other.env: is required in [tasks.other]"),
        ("[run]\nname = 'a/b'\n", "use letters, digits, '.', '_' and '-' only (run.toml:4)"),
        ("[training]\nbetas = [0.9]\n", "training.betas = [0.9]: must be a list of 2"),
        (
            "max_tokens = 2000\n",
            "tasks.lake.max_tokens = 2000: must be at most engine.torch.max_length (1024)",
        ),
        ("max_tokens = 1\n", "tasks.lake.max_tokens = 1: must be at least 2 (run.toml:3)"),
        ("[engine.torch]\nrows = 0\n", "engine.torch.rows = 0: must be at least 1 (run.toml:4)"),
        ("[sampling]\ntemperature = 0\n", "training needs random draws"),
        ("[sampling]\ntop_p = 1.5\n", "sampling.top_p = 1.5: must be in (0, 1] (run.toml:4)"),
        ("[batching]\ngroup_size = 1\n", 'algorithm "grpo" compares attempts: use at least 2'),
        ("[batching]\nmin_members = 9\n", "must be at most batching.group_size (8) (run.toml:4)"),
        (
            "[engine]\nnam = 'torch'\n",
            "engine.nam = 'torch': unknown key; did you mean engine.name",
        ),
        (
            "[pools.a]\ngpu = 'H20'\n",
            "pools.a.gpu = 'H20': unknown key; did you mean pools.a.class? (run.toml:4)",
        ),
        ("[pools.a]\ncount = 1\n", "pools.a.class: is required in [pools.a] (run.toml:3)"),
        (
            "[routing]\naffinity = { lake = ['a'] }\n",
            "unknown key; did you mean the section [affinity]? (run.toml:4)",
        ),
        (
            "[affinity]\ntrain = 3\n",
            "affinity.train = 3: must be text or a list, each text (run.toml:4)",
        ),
        (
            "[affinity.tasks]\nlake = 'a'\n",
            "affinity.tasks.lake = 'a': no such pool; there is local (run.toml:4)",
        ),
        ("[ray]\nenvironment_workers = -1\n", "environment_workers = -1: must be at least 0"),
        (
            "[zzz]\nx = 1\n",
            "zzz = {'x': 1}: unknown key; a config has affinity, algorithm, batching, dispatch",
        ),
    ],
)
def test_a_wrong_value_is_named_with_its_field_its_place_and_the_fix(write, text, message):
    assert message in refusal(write(LAKE + text))


@pytest.mark.parametrize(
    ("old", "said"),
    [
        ("model.noise", "did you mean model.warm_start_noise?"),
        ("sandbox.store", "did you mean sandbox.cache?"),
        ("tasks.lake.profile.reads", "did you mean tasks.lake.profile.observation_tokens?"),
        ("tasks.lake.profile.samples", "did you mean tasks.lake.profile.completion_tokens?"),
        ("tasks.lake.profile.samples_spread", "mean tasks.lake.profile.completion_spread?"),
        ("simulation.rewards.most", "did you mean simulation.rewards.max_instances?"),
        ("simulation.rewards.keep_s", "did you mean simulation.rewards.idle_s?"),
        ("ray.restart_s", "leave it out: the cluster is looked at once a second"),
        ("ray.engine_cpus", "leave it out: a pool says it with its cpus"),
        ("model.warm_start_learning_rate", "leave it out: it is 3e-3"),
        ("tasks.lake.profile.step_kind", "leave it out: times are lognormal"),
        ("rewards.reliability.queue_wait_s", "leave it out: a call waits until"),
        ("sandbox.start_timeout_s", "leave it out: a sandbox that has not started in 30 s"),
        ("retry.jitter", "leave it out: it is always 0.2 (enough to part slots"),
        ("rewards.limits.payload_bytes", "leave it out: it is always 16777216 (a guard"),
        ("training.skip_zero_advantage", "leave it out: it is always true (the weights are"),
    ],
)
def test_an_old_key_is_refused_with_what_took_its_place(write, old, said):
    refused = refusal(write(LAKE), f"{old}=1")
    assert refused.startswith(f"{old} = 1: unknown key; ")
    assert said in refused


@pytest.mark.parametrize(
    ("key", "meant"),
    [
        ("training.lr", "training.learning_rate"),
        ("training.loss", "algorithm.type"),
        ("training.steps", "run.steps"),
        ("step", "run.steps"),
        ("lr", "training.learning_rate"),
        ("trainig", "training"),
    ],
)
def test_a_key_that_people_expect_is_answered_with_the_one_there_is(write, key, meant):
    expected = f"{key} = 1: unknown key; did you mean {meant}? (on the command line)"
    assert refusal(write(LAKE), f"{key}=1") == expected


@pytest.mark.parametrize(
    ("override", "meant"),
    [
        ("algorithm=rloo", "algorithm.type=rloo"),
        ("engine=scripted", "engine.name=scripted"),
        ("model=tiny:1M", "model.path=tiny:1M"),
    ],
)
def test_a_section_given_as_one_word_is_answered_with_its_key(write, override, meant):
    section, _, word = override.partition("=")
    assert refusal(write(LAKE), override) == (
        f"{section} = {word!r}: is a section; did you mean {meant}? (on the command line)"
    )
    key = meant.partition("=")[0]
    assert f'did you mean {key} = "{word}"? (' in refusal(write(f'{section} = "{word}"\n{LAKE}'))


def test_a_config_that_is_not_there_is_answered_with_its_neighbours(tmp_path):
    for number in range(10):
        (tmp_path / f"{'abcdefghij'[number] * 4}.toml").touch()
    assert refusal(tmp_path / "bbbc.toml") == (
        "bbbc.toml: no such config file; did you mean bbbb.toml?"
    )
    assert refusal(tmp_path / "zzzz.toml").endswith(
        "hhhh.toml and 2 more; list them with: ls *.toml"
    )


def test_a_wrong_override_is_said_to_be_on_the_command_line(write):
    path = write(LAKE)
    expected = "run.stepz = 3: unknown key; did you mean run.steps? (on the command line)"
    assert refusal(path, "run.stepz=3") == expected
    assert refusal(path, "steps") == "override 'steps': write it as section.key=value"
    assert refusal(path, "run=3") == (
        "run = 3: is a section: write run.KEY=VALUE for a key of it (on the command line)"
    )
    assert "run.steps = {'x': 1}: must be a whole number" in refusal(path, "run.steps.x=1")
    assert refusal(path, "run.steps=many") == (
        "run.steps = 'many': must be a whole number (on the command line)"
    )
    assert refusal(path, "tasks.lake.options=3") == (
        "tasks.lake.options = 3: must be a table (on the command line)"
    )


@pytest.mark.parametrize("typed", ["nan", "1_000", "true", "2026-01-01"])
def test_an_override_taken_for_another_type_is_told_how_to_be_text(write, typed):
    path = write(LAKE)
    said = refusal(path, f"run.name={typed}")
    advice = re.search(r"must be text; as text: (\S+) \(on the command line\)", said)
    assert advice is not None, said
    assert load_config(path, shlex.split(advice[1])).run.name == typed


def test_a_file_that_cannot_be_read_is_named(write, tmp_path):
    assert refusal(tmp_path / "no.toml") == "no.toml: no such config file"
    write(LAKE, "real.toml")
    message = refusal(tmp_path / "no.toml")
    assert message.startswith("no.toml: no such config file;")
    assert message.endswith("holds real.toml")
    assert "is a directory" in str(refusal(tmp_path))
    broken = write("[run]\nsteps = = 3\n")
    assert refusal(broken).startswith("run.toml: not valid TOML: Invalid value (at line 2")
    broken.write_bytes(b"\xff")
    assert refusal(broken) == "run.toml: not UTF-8 text: invalid start byte"


def test_an_extended_file_that_is_not_there_is_named_with_the_one_that_extends_it(write):
    assert "zzzz.toml: no such config file (run.toml extends it)" in refusal(
        write(f'extends = "zzzz.toml"\n{LAKE}')
    )


def test_files_that_extend_each_other_in_a_circle_are_refused(write):
    write('extends = "run.toml"\n', "base.toml")
    message = refusal(write('extends = "base.toml"\n'))
    assert "in a circle: run.toml -> base.toml -> run.toml" in message
    assert "must be the path of a TOML file" in refusal(write("extends = 3\n"))


def test_a_config_without_tasks_is_refused(write):
    assert "tasks: is required: add a section such as [tasks.lake]" in refusal(write(""))
    with pytest.raises(ConfigError, match="add one"):
        Config(tasks={})


def test_a_dumped_config_loads_as_the_same_config(write):
    overrides = [
        "run.import_paths=['/a \\\\ \"b']",
        "tasks.lake.options={size = 4, odd = {'a b' = [1, true, 2.5, 'x']}}",
        "training.learning_rate=1e-9",
        "affinity.tasks={default = ['local']}",
        "affinity.rewards=local",
    ]
    config = load_config(write(LAKE), overrides)
    assert load_config(write(dump_toml(config), "dumped.toml")) == config


def test_what_a_config_changes_is_all_it_needs(write):
    path = write(LAKE)
    assert dump_toml(load_config(path), changed=True) == (
        f'[run]\nimport_paths = ["{path.resolve().parent}"]\n\n[tasks.lake]\nenv = "frozen_lake"\n'
    )
    config = load_config(path, ["training.lora.rank=4", "staleness.alpha=2", "run.name=x"])
    assert load_config(write(dump_toml(config, changed=True), "less.toml")) == config


def test_every_key_is_explained_in_words():
    for name in keys_of(Config):
        assert explain(name)
    for each in (Config, RunOptions, TaskOptions):
        assert all(field_docs(each).values()), each


def test_the_seeds_that_do_not_follow_from_that_of_the_run_are_named_under_it():
    def seeds(cls, prefix=""):
        for key, hint in field_types(cls).items():
            within = option_class(hint)
            if within is not None:
                yield from seeds(within, f"{prefix}{key}.")
            elif key == "seed":
                yield f"{prefix}seed"

    others = set(seeds(Config)) - {"run.seed"}
    assert others == {"model.seed", "training.seed"}
    assert all(f"({each})" in explain("run.seed") for each in others)


def test_explain_says_what_a_key_means_and_what_it_is_now(write):
    config = load_config(write(LAKE), ["run.steps=7"])
    assert explain("run.steps", config) == (
        "run.steps\n  Optimizer steps to make.\n  type     a whole number\n"
        "  limits   must be at least 1\n  default  100\n  now      7"
    )
    assert explain("tasks.lake.env", config).endswith('now      "frozen_lake"')
    assert explain("tasks.weight").endswith("default  1.0")
    assert "\n\n  Without it random games" in explain("model.warm_start")
    assert all(line.startswith("  ") for line in explain("model").splitlines()[3:])
    assert explain("engine.torch").startswith("[engine.torch]")
    for key, said in (
        ("run.stepz", "run.stepz: unknown key; did you mean run.steps?"),
        ("staleness.alhpa", "staleness.alhpa: unknown key; did you mean staleness.alpha?"),
        ("xyzzy", "xyzzy: unknown key; a config has affinity, algorithm, batching"),
        ("tasks.lake.envv", "tasks.envv: unknown key; did you mean tasks.env?"),
        ("run.steps.x", "run.steps.x: no such key; run.steps is a whole number"),
    ):
        with pytest.raises(UserError, match=re.escape(said)):
            explain(key)
    with pytest.raises(UserError, match="no task 'pond'; there is lake"):
        explain("tasks.pond.env", config)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("keep = -1", "weights.keep = -1: must be at least 0"),
        ("bucket_bytes = 100", "weights.bucket_bytes = 100: must be a multiple of 64"),
        ("wait_s = 0.0", "weights.wait_s = 0.0: must be more than 0"),
        (
            'store = "s3://bucket/run"',
            'set weights.store = "files" and weights.place = "s3://bucket/run"',
        ),
        ('store = "s3"', 'set weights.store = "files" and weights.place = "s3://…"'),
        (
            'store = "shared_memry"',
            "weights.store = 'shared_memry': no such weight store; did you mean shared_memory? ",
        ),
        ('store = "files"', "weights.place = '': weights.store = \"files\" needs a path"),
        ('place = "/x"', "weights.place = '/x': weights.store = \"shared_memory\" does not"),
        ("delta = true", 'weights.delta = True: weights.store = "shared_memory" does not use it'),
    ],
)
def test_weights_that_cannot_travel_so_are_refused(text, wanted):
    values = tomllib.loads(text)
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        WeightOptions(**values)


def test_fewer_versions_than_engines_may_be_loading_are_refused(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[tasks.lake]\nenv = "frozen_lake"\n')
    assert load_config(file, ["staleness.alpha=2"]).kept_versions == 4
    assert load_config(file, ["weights.keep=9"]).kept_versions == 9
    extra = ["redundancy.extra_groups=9", "batching.groups_per_step=4"]
    assert load_config(file, ["staleness.alpha=2", *extra]).kept_versions == 6
    adaptive = ["redundancy.adaptive=true", "redundancy.extra_groups=24"]
    assert load_config(file, ["staleness.alpha=2", *adaptive]).kept_versions == 4 + 24 // 8
    wanted = "weights.keep = 3: engines may still be loading one of 4: keep as many, or 0"
    with pytest.raises(ConfigError, match=re.escape(wanted)):
        load_config(file, ["staleness.alpha=2", "weights.keep=3"])
