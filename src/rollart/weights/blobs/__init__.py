"""Places that hold named bytes: files, a relay, Mooncake."""
