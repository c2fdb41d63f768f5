"""Programs that try to escape a sandbox."""
