"""Values as bytes: typed JSON (codec), frames (frames), and arrays in frames (values)."""
