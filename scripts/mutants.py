"""Change the judge, the plan and the estimate line by line, and print which changes the contract and property tests see.

    make mutants        or        python scripts/mutants.py [--only PATTERN] [--report]

`[tool.mutmut]` of pyproject.toml says which modules are changed and which tests run against each change. What was tried before is not
tried again until the function or the tests change (`mutants/` holds it, and may be removed). With `--report` nothing is run. A survivor
that does the same as the original is explained in `tests/enforcement/surviving_mutants.toml`; one that is not is printed with its
change. The status is 1 where fewer than 95 % are seen, or a survivor is unexplained.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MUTANTS = ROOT / "mutants"
EXPLAINED = ROOT / "tests" / "enforcement" / "surviving_mutants.toml"
LEAST = 0.95
_SURVIVED, _UNREACHED, _UNTRIED = (0,), (5, 33), (None, 2)
"""Exit codes that mutmut keeps: every test passed, no test ran, it was not tried. Each other one is a failure, a crash or a time-out."""


@dataclass(frozen=True)
class Mutant:
    """Hold one change: its name, where it is, and how the tests ended on it."""

    name: str
    module: str
    status: int | None

    @property
    def outcome(self) -> str:
        """Return killed, survived, unreached or untried."""
        for word, codes in (("survived", _SURVIVED), ("unreached", _UNREACHED), ("untried", _UNTRIED)):
            if self.status in codes:
                return word
        return "killed"

    @property
    def function(self) -> str:
        """Return the name of the function that was changed, without mutmut's marks."""
        return self.name.rpartition("__mutmut_")[0].rpartition(".")[2].removeprefix("xǁ").removeprefix("x_").replace("ǁ", ".")

    def change(self) -> tuple[str, str]:
        """Return the lines that were taken away and those that came instead, each on one line."""
        shown = subprocess.run(
            [sys.executable, "-m", "mutmut", "show", self.name], cwd=ROOT, capture_output=True, text=True, check=True
        ).stdout
        lines = [line for line in shown.splitlines() if not line.startswith(("---", "+++"))]
        before, after = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
        return before, after


def tried() -> Iterator[Mutant]:
    """Read what mutmut keeps of every mutant."""
    for meta in sorted(MUTANTS.rglob("*.py.meta")):
        module = meta.relative_to(MUTANTS).as_posix().removesuffix(".meta")
        for name, status in json.loads(meta.read_text())["exit_code_by_key"].items():
            yield Mutant(name, module, status)


def main() -> int:
    """Run what is asked, print the table and the survivors, and return the status."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--only", help="try only mutants whose name fits this pattern", metavar="PATTERN")
    parser.add_argument("--report", action="store_true", help="print what is known, run nothing")
    asked = parser.parse_args()
    if not asked.report:
        command = [sys.executable, "-m", "mutmut", "run", *([asked.only] if asked.only else [])]
        if status := subprocess.run(command, cwd=ROOT, check=False).returncode:
            return status
    mutants = list(tried())
    words = ("killed", "survived", "unreached", "untried")
    print("| module | mutants |", " | ".join(words), "| seen |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    share = 0.0
    for module in [*sorted({mutant.module for mutant in mutants}), "all"]:
        counts = Counter(mutant.outcome for mutant in mutants if module in (mutant.module, "all"))
        share = counts["killed"] / max(1, counts.total() - counts["untried"])
        print(f"| {module} | {counts.total():,} |", " | ".join(f"{counts[word]:,}" for word in words), f"| {share:.1%} |")
    explained = {(one["function"], one["before"], one["after"]): one["why"] for one in tomllib.loads(EXPLAINED.read_text())["survivor"]}
    unexplained = 0
    for mutant in mutants:
        if mutant.outcome not in ("survived", "unreached"):
            continue
        before, after = mutant.change()
        why = explained.get((mutant.function, before, after))
        unexplained += why is None
        print(f"\n{mutant.function} ({mutant.outcome}): {why or 'not explained'}\n- {before}\n+ {after}")
    return int(share < LEAST or unexplained > 0)


if __name__ == "__main__":
    sys.exit(main())
