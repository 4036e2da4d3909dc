"""Stand between an agent and its calls."""
