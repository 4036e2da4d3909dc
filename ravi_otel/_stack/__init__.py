"""The stack that takes our telemetry: its files, its servers, and the doctor that examines them and what leads to them."""
