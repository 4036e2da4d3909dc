"""Export over the SDK's own processors and exporters: with bounds in bytes, a retry queue, a spool on disk, and an end in time.

Everything here is loaded only when a provider of ours is built for an endpoint.
"""
