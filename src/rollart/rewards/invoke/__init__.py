"""Where reward functions run: local processes, HTTP, Lambda."""
