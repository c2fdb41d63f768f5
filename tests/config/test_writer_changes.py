from rollart.config import load_config
from rollart.config.writer import changed_values


def test_changed_values_are_named_with_both(tmp_path):
    file = tmp_path / "run.toml"
    file.write_text('[tasks.lake]\nenv = "frozen_lake"\noptions = { size = 4 }\n')
    before = load_config(file)
    assert changed_values(before, before) == []
    after = load_config(
        file,
        ["run.steps=7", "tasks.lake.options={size = 5, holes = 2}", "staleness.at_bound=drop"],
    )
    assert changed_values(before, after) == [
        "run.steps = 100 -> 7",
        "tasks.lake.options.size = 4 -> 5",
        'staleness.at_bound = "finish" -> "drop"',
        "tasks.lake.options.holes = not there -> 2",
    ]
