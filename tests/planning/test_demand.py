from planning_samples import H800, READER, WRITER, make_problem

from rollart.planning.demand import measure
from rollart.sim.workload import TaskProfile

PLAIN = TaskProfile(
    name="plain", turns=(2, 2), turn_jitter=0, opening_tokens=100, reads=10, samples=20,
    samples_spread=0,
)  # fmt: skip


def demand(profile=PLAIN, *, reuse=True):
    return measure((profile,), members=4, reuse=reuse, call_s=0.5, seed=0)[0]


def test_an_attempt_is_summed_up_turn_by_turn():
    mean = demand().mean
    assert (mean.tokens, mean.read, mean.sampled) == (150, 110, 40)
    assert mean.pairs == 100 * 50 + 10 * (120 + 5)
    assert mean.context == 20 * (100 + 10) + 20 * (130 + 10)
    assert mean.reserved == 20 * 120 + 20 * 150
    assert mean.env_s == 1.5


def test_without_kept_prefixes_every_turn_reads_its_whole_history():
    mean = demand(reuse=False).mean
    assert mean.read == 100 + 130
    assert mean.pairs == 100 * 50 + 130 * 65


def test_an_attempt_is_cut_off_at_its_limit():
    short = TaskProfile(**{**fields(PLAIN), "max_tokens": 125})
    assert demand(short).mean.tokens == 120


def test_shares_are_those_of_the_mix():
    demands = measure((READER, WRITER), members=2, reuse=True, call_s=0, seed=0)
    assert [(each.task, each.share) for each in demands] == [("reader", 0.5), ("writer", 0.5)]


def test_more_sequences_in_a_step_make_each_cheaper():
    costs = make_problem().engine_costs(H800.gpu, 1)
    alone, crowded = (demand().decode_s(costs, most=most) for most in (1, 64))
    assert crowded < alone / 10


def test_a_part_of_a_sequence_counts_as_a_whole_one():
    costs = make_problem().engine_costs(H800.gpu, 1)
    assert demand().decode_s(costs, most=2.1) == demand().decode_s(costs, most=3)


def fields(profile):
    return {name: getattr(profile, name) for name in profile.__dataclass_fields__}
