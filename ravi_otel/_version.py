"""Hold the version, read by the build and by the instrumentation scope."""

__version__ = "0.1.0"
