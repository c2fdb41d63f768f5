"""Weight stores, adapters of the WeightStore port."""
