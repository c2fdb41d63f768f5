import pytest
from matplotlib.figure import Figure

from rollart.observe import plots
from rollart.observe.plots import _draw_evaluations, plot_learning_curve


def test_evaluations_are_labelled_as_the_console_says_them():
    axes = Figure().subplots()
    rows = [{"step": 0, "eval/success_rate": 0.295}, {"step": 150, "eval/success_rate": 0.945}]
    _draw_evaluations(axes, rows)
    assert [label.get_text() for label in axes.texts] == ["0.295", "0.945"]


@pytest.mark.parametrize(
    ("reward", "labels"),
    [
        (0.5, ["success, which is the reward (training)"]),
        (0.7, ["reward (training)", "success (training)"]),
    ],
)
def test_the_learning_curve_shows_success_and_reward(tmp_path, monkeypatch, reward, labels):
    drawn = []
    monkeypatch.setattr(plots, "_save", lambda figure, _path: drawn.append(figure))
    row = {"step": 1, "reward_mean": reward, "success_rate": 0.5, "staleness_mean": 0.0}
    row |= {"staleness_max": 0.0, "tokens_per_s": 9.0}
    plot_learning_curve(tmp_path / "curve.png", [row], title="demo")
    learning = drawn[0].axes[0]
    assert [text.get_text() for text in learning.get_legend().get_texts()] == labels
