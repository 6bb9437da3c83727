"""Simulated power loss at every sync point of 50 operations.

A process works on a disk that logs all changes (`faultydisk.c`). From the log, the folder is
rebuilt as a power loss could leave it, just before every sync and just after every acknowledgement.
One state contains no unsynced change; others contain a random subset of them, in any order, the
last one torn. A new file name is durable only after its directory was synced. Acknowledged
operations must be present, and an operation in progress complete or absent.
"""

import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faultydisk
from campaign import Part, main
from operations import NOTHING, THINGS, Looks, Work

DRAWS = 5  # random states per point, in addition to the one without unsynced changes
SECTOR = 512  # bytes that are written atomically

MADE, WRITTEN, CUT, SYNCED, RENAMED, REMOVED, MARKED, FOLDER_SYNCED = range(1, 9)
_RECORD = struct.Struct("<iiiiqqq")


def lose_power(size: int, seed: int) -> dict[str, Any]:
    """Perform operations and check the state after every possible power loss."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "work").mkdir()
        faultydisk.call("powerloss", "record", str(folder), size, seed)
        journal = list(read_journal(folder / "journal"))
        return _check(journal, folder, size, seed)


def record(folder: str, n_operations: int, seed: int) -> None:
    """Perform the operations on a logging disk and mark each acknowledgement."""
    work = Work(Path(folder) / "work", seed)
    disk = faultydisk.FaultyDisk(work.folder)
    disk.record(Path(folder) / "journal")
    acknowledged = 0

    def acknowledge() -> None:
        nonlocal acknowledged
        acknowledged += 1
        disk.mark(acknowledged)

    work.acknowledge = acknowledge
    for operation in work.operations(n_operations):
        work.do(operation)
    work.close()


class Entry(NamedTuple):
    """A logged change of the disk."""

    what: int
    name: str
    new_name: str
    inode: int
    offset: int  # or the length of a truncated file, or the number of a mark
    data: bytes


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield the entries of the log."""
    data, place = path.read_bytes(), 0
    while place < len(data):
        what, n_name, n_new, _, inode, offset, length = _RECORD.unpack_from(data, place)
        place += _RECORD.size
        parts = []
        for n in (n_name, n_new, length):
            parts.append(data[place : place + n])
            place += n
        yield Entry(what, parts[0].decode(), parts[1].decode(), inode, offset, parts[2])


class Disk:
    """The durable and the unsynced content of a disk."""

    def __init__(self) -> None:
        self._files: dict[int, bytes] = {}  # by inode
        self._names: dict[str, int] = {}
        self._unsynced: dict[int, list[Entry]] = {}
        self._unsynced_names: list[Entry] = []

    def do(self, entry: Entry) -> None:
        """Apply an entry of the log."""
        if entry.what in (MADE, RENAMED, REMOVED):
            self._unsynced_names.append(entry)
        if entry.what == MADE:
            self._files[entry.inode], self._unsynced[entry.inode] = b"", []
        elif entry.what in (WRITTEN, CUT):
            self._unsynced[entry.inode].append(entry)
        elif entry.what == SYNCED:
            self._files[entry.inode] = _applied(
                self._files[entry.inode], self._unsynced[entry.inode]
            )
            self._unsynced[entry.inode] = []
        elif entry.what == FOLDER_SYNCED:
            self._names = _named(self._names, self._unsynced_names)
            self._unsynced_names = []

    def after_a_loss(self, draw: random.Random | None) -> dict[str, bytes]:
        """Return the surviving files, with none or some of the unsynced changes."""
        n_names = 0 if draw is None else draw.randint(0, len(self._unsynced_names))
        names = _named(self._names, self._unsynced_names[:n_names])
        return {
            name: _applied(self._files[inode], self._some(inode, draw))
            for name, inode in names.items()
        }

    def _some(self, inode: int, draw: random.Random | None) -> list[Entry]:
        """Select unsynced changes of a file: none, all or some; the last may be torn."""
        unsynced = self._unsynced[inode]
        if draw is None or not unsynced:
            return []
        how = draw.choice(["none", "all", "some", "some"])
        chosen = [e for e in unsynced if how == "all" or (how == "some" and draw.random() < 0.5)]
        if chosen and chosen[-1].what == WRITTEN and len(chosen[-1].data) > SECTOR:
            n_sectors = draw.randint(1, -(-len(chosen[-1].data) // SECTOR))
            chosen[-1] = chosen[-1]._replace(data=chosen[-1].data[: n_sectors * SECTOR])
        return chosen


def _applied(content: bytes, entries: list[Entry]) -> bytes:
    changed = bytearray(content)
    for entry in entries:
        end = entry.offset + len(entry.data)
        if len(changed) < end:
            changed.extend(bytes(end - len(changed)))
        if entry.what == CUT:
            del changed[entry.offset :]
        else:
            changed[entry.offset : end] = entry.data
    return bytes(changed)


def _named(names: dict[str, int], entries: list[Entry]) -> dict[str, int]:
    changed = dict(names)
    for entry in entries:
        if entry.what == MADE:
            changed[entry.name] = entry.inode
        elif entry.what == RENAMED:
            changed[entry.new_name] = changed.pop(entry.name)
        else:
            del changed[entry.name]
    return changed


def _check(journal: list[Entry], folder: Path, size: int, seed: int) -> dict[str, Any]:
    """Replay the log and check the state after a power loss at every point."""
    steps = [
        (operation.name, operation.thing, value)
        for operation in Work(folder, seed).operations(size)
        for value in operation.steps
    ]
    draw, disk, look_at = random.Random(seed), Disk(), Looks(folder)
    acknowledged = points = states = 0
    now = dict(NOTHING)
    failures: list[str] = []
    for entry in journal:
        is_sync = entry.what in (SYNCED, FOLDER_SYNCED)
        if entry.what == MARKED:
            _, thing, now[thing] = steps[acknowledged]
            acknowledged = entry.offset
        if is_sync or entry.what == MARKED:
            points += 1
            under_way = steps[acknowledged] if acknowledged < len(steps) else ("", "", None)
            for number in range(1 + DRAWS):
                states += 1
                survivors = disk.after_a_loss(draw if number else None)
                files = {name.rpartition("/")[2]: data for name, data in survivors.items()}
                for thing in THINGS:
                    found = look_at(files, thing)
                    may_be = [now[thing]] + [under_way[2]] * (under_way[1] == thing)
                    if found not in may_be:
                        failures.append(
                            f"point {points}, after {acknowledged} steps, during "
                            f"{under_way[0]}: the {thing} is {_short(found)}"
                        )
        disk.do(entry)
    return {
        "operations": size,
        "steps": len(steps),
        "calls": sum(entry.what != MARKED for entry in journal),
        "points": points,
        "states": states,
        "failures": failures,
    }


def _short(found: Any) -> str:
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {found}"
    return f"{len(found)} items that match no valid state" if found else "not there"


if __name__ == "__main__":
    main("powerloss", {"files": Part(lose_power, 50)})
