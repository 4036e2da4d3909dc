"""Unpack Go out of the module proxy: `fetch_go.py VERSION DIRECTORY`. Needs nothing but Python.

The proxy has every Go as a module, for older ones to fetch; its sum is what the public checksum database says of it.
"""

import base64
import hashlib
import os
import platform
import shutil
import sys
import tempfile
import urllib.request
import zipfile
from pathlib import Path

SUMS = {
    "1.26.8 linux-amd64": "ZOmGe1OnfREDMIdb1Qi4G9JSuDPBLGExZMQ4nis1RXM=",
    "1.26.8 linux-arm64": "sYL/O6MqS68ML0kjsQ36WoYIpJqkw60TxizWUYUKQMc=",
    "1.26.8 darwin-amd64": "7/9KPPN8PckcA9s91hm2jmQMhzW4KyTJXHIs45L0C9M=",
    "1.26.8 darwin-arm64": "dFjGhY6f8DTsY8/rLchUTDRRfjJP4pCrGCwxvHFT2Fg=",
}
MACHINES = {"x86_64": "amd64", "amd64": "amd64", "aarch64": "arm64", "arm64": "arm64"}
PROGRAMS = ("bin/", "pkg/tool/")  # an archive of a module keeps no modes


def proxy() -> str:
    """Give the first proxy of GOPROXY, or Go's own when it names none."""
    for entry in os.environ.get("GOPROXY", "").replace("|", ",").split(","):
        if entry.startswith("https://"):
            return entry.rstrip("/")
    return "https://proxy.golang.org"


def sum_of(archive: zipfile.ZipFile) -> str:
    """Give the module's sum as go.sum has it: SHA-256 of the list of each file's SHA-256 and name."""
    lines = hashlib.sha256()
    for name in sorted(archive.namelist()):
        with archive.open(name) as file:
            lines.update(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {name}\n".encode())
    return base64.b64encode(lines.digest()).decode()


def unpack(archive: zipfile.ZipFile, to: Path) -> None:
    """Write the files of the archive below `to`, without the module's name before theirs."""
    for name in archive.namelist():
        inside = name.partition("/")[2].partition("/")[2]
        file = to / inside
        file.parent.mkdir(parents=True, exist_ok=True)
        with archive.open(name) as source, file.open("wb") as sink:
            shutil.copyfileobj(source, sink)
        if inside.startswith(PROGRAMS):
            file.chmod(0o755)


def main(version: str, directory: str) -> str | None:
    """Have Go there, or give the sentence that says why not."""
    place = Path(directory)
    if (place / "bin" / "go").exists():
        return None
    system = f"{platform.system().lower()}-{MACHINES.get(platform.machine().lower(), platform.machine())}"
    expected = SUMS.get(f"{version} {system}")
    if expected is None:
        return f"fetch_go.py knows no sum of Go {version} for {system}."
    module = f"golang.org/toolchain@v0.0.1-go{version}.{system}"
    address = f"{proxy()}/{module.replace('@', '/@v/')}.zip"
    with tempfile.TemporaryDirectory(dir=place.parent) as scratch:
        zipped = Path(scratch) / "go.zip"
        try:
            with urllib.request.urlopen(address, timeout=60) as answer, zipped.open("wb") as sink:  # noqa: S310 - https alone: see proxy
                shutil.copyfileobj(answer, sink)
        except OSError as error:
            return f"The module proxy did not give {module}: {error}"
        with zipfile.ZipFile(zipped) as archive:
            found = sum_of(archive)
            if found != expected:
                return f"{module} has the sum h1:{found}, and must have h1:{expected}: it is not used."
            unpack(archive, Path(scratch) / "go")
        (Path(scratch) / "go").rename(place)
    return None


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
