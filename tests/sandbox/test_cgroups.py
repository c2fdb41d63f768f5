"""What a group says of its processes."""

from rollart.sandbox.cgroups import CpuUsage


def test_the_longest_wait_since_counts_a_new_thread_from_its_start() -> None:
    before = CpuUsage(cpu_s=1.0, waits_s={1: 5.0, 2: 0.1})
    after = CpuUsage(cpu_s=1.5, waits_s={1: 5.5, 3: 2.0})
    assert after.waited_since(before) == 2.0


def test_where_nobody_counts_no_wait_is_known() -> None:
    nothing = CpuUsage(cpu_s=1.0, waits_s={})
    assert nothing.waited_since(nothing) is None
