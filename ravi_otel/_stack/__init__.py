"""Be the stack that takes our telemetry: its shipped files, the engine that runs it, and what its servers say of themselves."""
