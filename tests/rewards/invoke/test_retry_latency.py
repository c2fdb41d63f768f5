from rollart.rewards.invoke.retry import Latencies


def test_percentiles_are_of_the_most_recent():
    latencies = Latencies()
    assert latencies.percentile(0.5) == 0.0
    for number in range(5000):
        latencies.add(float(number))
    assert latencies.percentile(0.0) == 5000 - 4096
    assert latencies.percentile(0.5) == 5000 - 2048
    assert latencies.percentile(1.0) == 4999


def test_the_usual_is_known_after_a_few_and_follows_now_and_then():
    latencies = Latencies()
    for _ in range(19):
        latencies.add(1.0)
    assert latencies.usual(0.95) is None
    latencies.add(1.0)
    assert latencies.usual(0.95) == 1.0
    for _ in range(11):
        latencies.add(9.0)
    assert latencies.usual(0.95) == 1.0
    latencies.add(9.0)
    assert latencies.usual(0.95) == 9.0
