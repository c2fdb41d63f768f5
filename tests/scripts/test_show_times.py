import json
import runpy

import pytest
from checkout import ROOT

SCRIPT = ROOT / "scripts" / "show_times.py"
SECONDS = {"model": 4.2, "start": 1.1, "evaluation": 2.5, "training": 10.0}

BEFORE = {"success_rate": 0.3, "success_low": 0.24, "success_high": 0.37, "problems": 200.0}
AFTER = {
    "success_rate": 0.9,
    "success_low": 0.85,
    "success_high": 0.93,
    "greedy_success_rate": 0.95,
    "greedy_success_low": 0.91,
    "greedy_success_high": 0.97,
    "problems": 200.0,
}


@pytest.fixture
def shown(tmp_path, capsys):
    """Return a function that shows a run of these figures."""
    directory = tmp_path / "run"
    directory.mkdir()
    config = tmp_path / "small.toml"
    config.write_text(f"[run]\ndirectory = {str(directory)!r}\n[tasks.lake]\nenv = 'frozen_lake'\n")
    main = runpy.run_path(str(SCRIPT))["main"]

    def show(rows, *, before=BEFORE, after=AFTER, train_s="20"):
        summary = {"before": before, "after": after, "seconds": SECONDS}
        (directory / "summary.json").write_text(json.dumps(summary))
        lines = [json.dumps(row) + "\n" for row in rows]
        (directory / "metrics.jsonl").write_text("".join(lines))
        main(str(config), "30", train_s)
        return capsys.readouterr().out.replace(str(directory), "DIRECTORY").splitlines()

    return show


def judged(step: int, success: float) -> dict[str, float]:
    return {"step": step, "eval/success_rate": success, "eval/reward": success}


def test_the_times_add_up_and_the_curve_is_shown(shown):
    rows = [judged(0, 0.3), {"step": 1, "reward_mean": 0.4}, judged(50, 0.95), judged(100, 0.9)]
    assert shown(rows) == [
        "",
        "where the time went",
        "  installation                    30.0 s",
        "  model and warm start             4.2 s",
        "  starting trainer and engine      1.1 s",
        "  evaluation                       2.5 s",
        "  training                        10.0 s",
        "  everything else                  2.2 s",
        "  in all                          50.0 s",
        "",
        "sampled before  0.300   95 % interval 0.240 to 0.370, 200 held-out problems",
        "greedy after    0.950   95 % interval 0.910 to 0.970, 200 held-out problems",
        "sampled after   0.900   95 % interval 0.850 to 0.930, 200 held-out problems",
        "by step         0: 0.300  50: 0.950  100: 0.900",
        "files           DIRECTORY/",
    ]


def test_times_that_were_rounded_down_still_add_up(shown):
    lines = shown([], train_s="17")
    assert lines[7:9] == [
        "  everything else                  0.0 s",
        "  in all                          47.8 s",
    ]


def test_what_was_not_evaluated_is_not_measured(shown):
    assert shown([], before=None, after=None)[-3:] == [
        "success before  not measured",
        "success after   not measured",
        "files           DIRECTORY/",
    ]


def test_without_evaluations_on_the_way_there_is_no_curve(shown):
    assert not any(line.startswith("by step") for line in shown([judged(0, 0.3), judged(9, 0.9)]))
