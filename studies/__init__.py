"""Studies made with the simulator; not part of the package."""
