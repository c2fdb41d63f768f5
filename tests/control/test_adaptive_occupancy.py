from rollart.control.adaptive import Occupancy


def test_idle_time_is_what_no_environment_used_since_the_last_restart():
    running = Occupancy(places=4, since_s=10.0)
    running.move(10.0, 2)
    running.move(12.0, 2)
    assert running.idle_share(14.0) == 0.25
    running.restart(14.0)
    running.move(15.0, -4)
    assert running.idle_share(18.0) == 0.75


def test_more_in_use_than_there_are_places_leaves_nothing_idle():
    running = Occupancy(places=1)
    running.move(0.0, 2)
    assert running.idle_share(1.0) == 0.0
