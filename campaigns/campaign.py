"""Command line, seeds and records of the fault-injection tests.

A campaign is a file with one or more parts. A part is a function of a size and a seed that returns
counts and a list of failures: `{"kills": 1000, ..., "failures": []}`. The test suite calls the same
functions with small sizes.
"""

import argparse
import json
import secrets
import sys
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NamedTuple

import antipodal

RESULTS = Path(__file__).parents[1] / "benchmarks" / "results"


class Part(NamedTuple):
    """A part of a campaign and its size in a full run."""

    run: Callable[[int, int], dict[str, Any]]
    size: int


def main(name: str, parts: Mapping[str, Part]) -> None:
    """Run parts of a campaign from the command line and record the results.

    Each part appends a line to benchmarks/results/campaign-NAME.jsonl. The exit code is 1 if
    anything failed.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument(
        "parts", nargs="*", metavar="PART", help=f"any of {', '.join(parts)} (default: all)"
    )
    parser.add_argument("--size", type=int, help="size of each part (default: that of a full run)")
    parser.add_argument("--seed", type=int, help="seed of a run to repeat")
    arguments = parser.parse_args()
    if unknown := set(arguments.parts) - set(parts):
        parser.error(f"unknown part {', '.join(sorted(unknown))}: choose from {', '.join(parts)}")
    failed = False
    for part in arguments.parts or parts:
        seed = secrets.randbelow(2**32) if arguments.seed is None else arguments.seed
        record = run_part(name, part, parts[part], arguments.size or parts[part].size, seed)
        failed = failed or bool(record["failures"])
    sys.exit(int(failed))


def run_part(name: str, part: str, what: Part, size: int, seed: int) -> dict[str, Any]:
    """Run a part, print its command and its record, and store the record."""
    command = f"python campaigns/{name}.py {part} --size {size} --seed {seed}"
    print(command, flush=True)
    began = time.monotonic()
    found = what.run(size, seed)
    record = {
        "campaign": name,
        "part": part,
        "version": antipodal.__version__,
        "date": datetime.now(UTC).strftime("%Y-%m-%d %H:%M"),
        "command": command,
        "seed": seed,
        "size": size,
        "seconds": round(time.monotonic() - began, 1),
        **found,
    }
    RESULTS.mkdir(parents=True, exist_ok=True)
    with open(RESULTS / f"campaign-{name}.jsonl", "a") as file:
        file.write(json.dumps(record) + "\n")
    print(json.dumps(record), flush=True)
    return record
