"""The rollout: environment slots, the turns of one attempt, the buffer and the controller."""
