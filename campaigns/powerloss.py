"""Cut the power at every sync point of 50 operations, and look at what the disk still has.

A process works on a disk that writes down what is done to it (`faultydisk.c`). From that the folder
is made as a loss of power could leave it just before every sync, and just after every
acknowledgement: with nothing that was not synced; and with some of that, drawn at random, in
any order, the last of it torn. A new name is only there for certain when its folder was
synced. What was acknowledged must be there, and what was under way whole or not at all.
"""

import hashlib
import random
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import faultydisk
from antipodal.errors import AntipodalError
from campaign import Part, main
from operations import NOTHING, THINGS, Work, look

DRAWS = 5  # states that are drawn at each point, beside the one that has nothing unsynced
SECTOR = 512  # bytes that are written whole

MADE, WRITTEN, CUT, SYNCED, RENAMED, REMOVED, MARKED, FOLDER_SYNCED = range(1, 9)
_RECORD = struct.Struct("<iiiiqqq")


def lose_power(size: int, seed: int) -> dict[str, Any]:
    """Do operations, and look at what every loss of power would have left."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name).resolve()
        (folder / "work").mkdir()
        faultydisk.call("powerloss", "record", str(folder), size, seed)
        journal = list(read_journal(folder / "journal"))
        return _check(journal, folder, size, seed)


def record(folder: str, n_operations: int, seed: int) -> None:
    """Do the operations on a disk that writes down what is done; mark each acknowledgement."""
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
    """Something that was done to the disk."""

    what: int
    name: str
    new_name: str
    inode: int
    offset: int  # or the length to which a file is cut, or the number of a mark
    data: bytes


def read_journal(path: Path) -> Iterator[Entry]:
    """Yield what was written down."""
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
    """What is on a disk for certain, and what may or may not be."""

    def __init__(self) -> None:
        self._files: dict[int, bytes] = {}  # by inode
        self._names: dict[str, int] = {}
        self._unsynced: dict[int, list[Entry]] = {}
        self._unsynced_names: list[Entry] = []

    def do(self, entry: Entry) -> None:
        """Take note of what is done."""
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
        """Return the files that are left: with nothing unsynced, or with some of that."""
        n_names = 0 if draw is None else draw.randint(0, len(self._unsynced_names))
        names = _named(self._names, self._unsynced_names[:n_names])
        return {
            name: _applied(self._files[inode], self._some(inode, draw))
            for name, inode in names.items()
        }

    def _some(self, inode: int, draw: random.Random | None) -> list[Entry]:
        """Choose from what is unsynced of a file: none, all, or any; the last of it may be torn."""
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
    """Go through the journal, and look at what a loss of power leaves at every point."""
    steps = [
        (operation.name, operation.thing, value)
        for operation in Work(folder, seed).operations(size)
        for value in operation.steps
    ]
    draw, disk, look_at = random.Random(seed), Disk(), _Looks(folder)
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
                files = disk.after_a_loss(draw if number else None)
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


class _Looks:
    """Looks at the things of a folder, once at each content of their files."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._known = folder, dict[str, Any]()
        self._prefix = f"{folder}/work/"

    def __call__(self, files: dict[str, bytes], thing: str) -> Any:
        """Return what `look` says of a thing, or the error of ours that it raises."""
        name = f"{self._prefix}{thing}"
        of_thing = {
            path.removeprefix(self._prefix): data
            for path, data in files.items()
            if path == name or path.startswith(f"{name}.db")
        }
        key = hashlib.sha256(repr((thing, sorted(of_thing.items()))).encode()).hexdigest()
        if key not in self._known:
            with tempfile.TemporaryDirectory(dir=self._folder) as place:
                for path, data in of_thing.items():
                    (Path(place) / path).write_bytes(data)
                try:
                    self._known[key] = look(Path(place), thing, random.Random(0))
                except (AntipodalError, ValueError) as error:
                    self._known[key] = error
        return self._known[key]


def _short(found: Any) -> str:
    if isinstance(found, Exception):
        return f"{type(found).__name__}: {found}"
    return f"{len(found)} items of no state that was" if found else "not there"


if __name__ == "__main__":
    main("powerloss", {"files": Part(lose_power, 50)})
