"""Pure rules: no clock, no I/O, no logging, no global randomness."""
