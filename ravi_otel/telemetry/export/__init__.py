"""Export that survives: bounded queues, batches that fit, retries, a disk spool, and an end in time.

Everything here is loaded only when a provider of ours is built for an endpoint (`telemetry.private`).
"""
