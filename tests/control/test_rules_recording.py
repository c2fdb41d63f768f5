"""Rules survive a log's header, and so do the domains they look at."""

import json

from rollart.control.lending import Lending
from rollart.control.rules import (
    MODES,
    Batching,
    Dispatch,
    Filter,
    Redundancy,
    Retry,
    Rules,
    Syncing,
    one_domain,
)
from rollart.control.snapshot import decode_domains, decode_rules, encode_rules
from rollart.control.staleness import Staleness
from rollart.control.task_order import TaskKind, TaskMix

RULES = Rules(
    steps=7,
    seed=5,
    mode=MODES["one_off"],
    batching=Batching(groups_per_step=3, group_size=4, order="finished"),
    staleness=Staleness(alpha=3, counting="serving", at_bound="pace", patience_s=1.5),
    redundancy=Redundancy(extra_groups=1, extra_members=2, hedge_after=3.0),
    retry=Retry(max_attempts=5, give_up_after=9),
    filter=Filter(drop_zero_variance=True),
    syncing=Syncing(order="rolling", keep_kv=True),
    dispatch=Dispatch(order="longest", lookahead_groups=4),
    lending=Lending(enabled=True, min_idle_s=0.5),
)


def test_rules_survive_the_header():
    encoded = json.loads(json.dumps(encode_rules(RULES)))
    assert decode_rules(encoded, seed=5) == RULES
    assert decode_domains(encoded) is one_domain


def test_domains_survive_the_header():
    kinds = [TaskKind(name=name, domain=name.upper(), weight=2.0) for name in ("a", "b", "c")]
    mix = TaskMix(kinds, seed=11)
    domain_of = decode_domains(json.loads(json.dumps(encode_rules(RULES, mix))))
    assert [domain_of(index) for index in range(50)] == [mix.domain(index) for index in range(50)]
