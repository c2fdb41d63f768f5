"""Programs that try to get out of a sandbox, and the trap that tells whether one did.

Shipped, so that a sandbox can be tried on the machine where it will be used.
"""
