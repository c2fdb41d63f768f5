import pytest

from rollart.control.rules import MODES, ONE_OFF, ROLLART, SYNC, mode_named
from rollart.control.staleness import Staleness
from rollart.errors import ConfigError


def test_every_mode_is_found_by_its_name():
    assert [mode_named(name) for name in MODES] == list(MODES.values())
    assert list(MODES) == ["sync", "sync_plus", "one_off", "areal", "rollart"]


def test_each_mode_is_one_row_of_the_same_decisions():
    rows = {m.name: (m.admission, m.lockstep, m.score, m.update, m.bound) for m in MODES.values()}
    assert rows == {
        "sync": ("iteration", True, "after_rollout", "idle", "always"),
        "sync_plus": ("iteration", False, "at_once", "idle", "always"),
        "one_off": ("iteration", False, "at_once", "idle", "always"),
        "areal": ("window", False, "at_once", "at_once", "start"),
        "rollart": ("window", False, "at_once", "at_once", "always"),
    }
    assert [mode.name for mode in MODES.values() if mode.affinity] == ["rollart"]


def test_a_mode_sets_the_bound_its_schedule_implies():
    configured = Staleness(alpha=3, at_bound="wait")
    assert SYNC.staleness(configured) == Staleness(alpha=0, at_bound="wait")
    assert ONE_OFF.staleness(configured) == Staleness(alpha=1, max_age=1, at_bound="wait")
    assert ONE_OFF.staleness(Staleness(alpha=3)).oldest == 1
    assert ROLLART.staleness(configured) == configured


def test_an_unknown_mode_is_refused_with_the_known_ones():
    with pytest.raises(ConfigError) as error:
        mode_named("synch")
    assert str(error.value) == (
        "run.mode = 'synch': must be one of sync, sync_plus, one_off, areal, rollart"
    )
