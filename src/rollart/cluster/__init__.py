"""Where processes live: on this machine or on Ray."""
