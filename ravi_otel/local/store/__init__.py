"""Keep runs in a directory of this machine, and read them again."""

from ravi_otel.local.store.directory import Manifest, Store, StoredRun

__all__ = ["Manifest", "Store", "StoredRun"]
