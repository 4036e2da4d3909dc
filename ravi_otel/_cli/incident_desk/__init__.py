"""Hold the second story of the demo: an orchestrator and its workers as a user would write them, and the script of a model for them."""
