"""Players: each plays one attempt its own way; chosen by `tasks.NAME.player`."""
