import pytest

from rollart.config.pools import AffinityOptions, PoolOptions, Preferences
from rollart.errors import ConfigError

COMPUTE = PoolOptions(hardware="H800", count=8)
WIDE = PoolOptions(hardware="H20", count=16)
HOSTS = PoolOptions(hardware="CPU", count=32)


def roles(**pools: str) -> dict[str, PoolOptions]:
    classes = {"compute": "H800", "wide": "H20", "hosts": "CPU", "cores": "CPU"}
    return {
        name: PoolOptions(hardware=classes[name], count=8, role=role)
        for name, role in pools.items()
    }


def refusal(pools: dict[str, PoolOptions], **options) -> str:
    with pytest.raises(ConfigError) as caught:
        AffinityOptions(**options).check(pools)
    return str(caught.value)


def test_by_default_compute_trains_bandwidth_generates_and_cpus_host_environments():
    pools = {"hosts": HOSTS, "wide": WIDE, "compute": COMPUTE}
    assert AffinityOptions().resolve(pools) == Preferences(
        train=("compute", "wide"),
        generation=("wide", "compute"),
        environments=("hosts", "wide", "compute"),
        rewards=("local",),
        tasks={},
    )


def test_without_pools_everything_is_local():
    here = ("local",)
    assert AffinityOptions().resolve({}) == Preferences(
        train=here, generation=here, environments=here, rewards=here, tasks={}
    )


def test_a_role_comes_before_hardware():
    pools = roles(compute="rollout", wide="train", hosts="rollout", cores="environments")
    preferences = AffinityOptions().resolve(pools)
    assert preferences.train == ("wide",)
    assert preferences.generation == ("compute", "hosts")
    assert preferences.environments == ("cores", "hosts", "compute", "wide")


def test_cpus_train_and_generate_where_there_are_no_devices():
    pools = {"cores": HOSTS, "more": HOSTS}
    preferences = AffinityOptions().resolve(pools)
    assert (preferences.train, preferences.generation) == (("cores", "more"), ("cores", "more"))


def test_what_is_said_wins_be_it_one_name_or_a_list():
    pools = {"hosts": HOSTS, "wide": WIDE, "compute": COMPUTE}
    options = AffinityOptions(
        tasks={"lake": "wide", "default": ("compute", "wide")},
        train="wide",
        generation=("compute", "wide"),
        environments="local",
        rewards=("hosts",),
    )
    options.check(pools)
    assert options.resolve(pools) == Preferences(
        train=("wide",),
        generation=("compute", "wide"),
        environments=("local",),
        rewards=("hosts",),
        tasks={"lake": ("wide",), "default": ("compute", "wide")},
    )


def test_a_name_that_is_no_pool_is_refused_with_those_there_are():
    pools = {"wide": WIDE, "compute": COMPUTE}
    assert refusal(pools, tasks={"lake": ("wide", "h9")}) == (
        "affinity.tasks.lake = 'h9': no such pool; there is wide, compute"
    )
    assert refusal(pools, train="local").startswith("affinity.train = 'local': no such pool")
    assert refusal({}, generation="wide") == (
        "affinity.generation = 'wide': no such pool; there is local"
    )
    AffinityOptions(tasks={"lake": "local", "default": "training"}, train="local").check({})
    AffinityOptions(tasks={"lake": ("wide", "training")}, environments="local").check(pools)


def test_a_pool_kept_for_something_else_cannot_be_the_best():
    pools = roles(compute="train", wide="rollout")
    assert refusal(pools, generation="compute") == (
        "affinity.generation = 'compute': pools.compute.role = \"train\" keeps it for something "
        "else: change one of them"
    )
    AffinityOptions(generation=("wide", "compute"), rewards="compute").check(pools)


def test_within_some_pools_names_of_others_are_gone():
    options = AffinityOptions(
        tasks={"lake": ("wide", "compute")}, train="compute", rewards="wide", environments="local"
    )
    assert options.within({"compute": COMPUTE}) == AffinityOptions(
        tasks={"lake": ("compute",)}, train=("compute",), environments=("local",)
    )
