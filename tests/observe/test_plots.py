from matplotlib.figure import Figure

from rollart.observe.plots import _draw_evaluations


def test_evaluations_are_labelled_as_the_console_says_them():
    axes = Figure().subplots()
    rows = [{"step": 0, "eval/success_rate": 0.295}, {"step": 150, "eval/success_rate": 0.945}]
    _draw_evaluations(axes, rows)
    assert [label.get_text() for label in axes.texts] == ["0.295", "0.945"]
