"""Hold the demo's story: two agents as a user would write them, and the script of a model for them."""
