"""A trainer over several processes: ranks, rendezvous, sharding."""
