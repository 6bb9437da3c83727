"""Files of records: crashes, full disks, concurrent runs, foreign files."""

import errno
import json
import os
import signal
import subprocess
import sys
import threading
from io import FileIO
from pathlib import Path

import pytest

from antipodal import AntipodalError
from antipodal.bench import records
from antipodal.bench.records import appending, read_records
from processes import lines_of, run_program, start_program


def write(path, *records):
    with appending(path) as file:
        for record in records:
            file.append(record)


def test_records_are_read_in_the_order_they_were_written(tmp_path):
    path = tmp_path / "new folder" / "r.jsonl"
    write(path, {"a": 1}, {"b": "λ"})
    write(path, {"c": None})
    assert read_records(path) == [{"a": 1}, {"b": "λ"}, {"c": None}]
    assert read_records(tmp_path / "missing") == []


def test_an_incomplete_last_line_loses_only_that_record(tmp_path):
    path = tmp_path / "r.jsonl"
    write(path, {"first": 1}, {"second": 22})
    whole = path.read_bytes()
    first = whole.index(b"\n") + 1
    for length in range(first, len(whole)):
        path.write_bytes(whole[:length])
        assert read_records(path) == [{"first": 1}]
        write(path, {"third": 3})
        assert read_records(path) == [{"first": 1}, {"third": 3}]


@pytest.mark.parametrize("line", [b"{\n", b"[1]\n", b"\xff\xfe\n", b"\n"])
def test_a_foreign_file_is_reported_with_the_line(tmp_path, line):
    path = tmp_path / "r.jsonl"
    path.write_bytes(b'{"a": 1}\n' + line)
    with pytest.raises(AntipodalError, match=r"r\.jsonl\b.*\bline 2\b"):
        read_records(path)


def test_two_runs_cannot_write_one_file(tmp_path):
    path = tmp_path / "r.jsonl"
    with appending(path) as file:
        file.append({"a": 1})
        with pytest.raises(AntipodalError, match=r"r\.jsonl"), appending(path):
            pass
    assert read_records(path) == [{"a": 1}]


def test_a_file_created_concurrently_is_not_truncated(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    real = os.open

    def create_before_opening(
        name, *arguments, **options
    ):  # another run creates it before it is opened here
        if str(name) == str(path) and not path.exists():
            path.write_text('{"theirs": 1}\n')
        return real(name, *arguments, **options)

    exists = Path.exists

    def create_after_check(this, **options):
        found = exists(this, **options)
        if this == path and not found:
            path.write_text('{"theirs": 1}\n')
        return found

    monkeypatch.setattr(os, "open", create_before_opening)
    monkeypatch.setattr(Path, "exists", create_after_check)
    with appending(path) as file:
        assert file.found == [{"theirs": 1}]
        file.append({"ours": 2})
    assert read_records(path) == [{"theirs": 1}, {"ours": 2}]


def test_concurrent_processes_lose_no_record(tmp_path):
    code = """
import sys
from pathlib import Path
from antipodal.bench import records
from antipodal.bench.records import appending
from antipodal import AntipodalError
print("ready", flush=True)
sys.stdin.readline()
for i in range(60):
    while True:
        try:
            with appending(Path(sys.argv[1]) / str(i)) as file:
                file.append({"by": sys.argv[2], "found": len(file.found)})
            break
        except AntipodalError:
            pass
"""
    processes = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(tmp_path), name],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for name in "ab"
    ]  # fmt: skip
    for process in processes:
        assert process.stdout.readline() == "ready\n"
    for process in processes:
        process.stdin.write("\n")
        process.stdin.flush()
    for process in processes:
        process.communicate()
        assert process.returncode == 0
    for i in range(60):
        records = read_records(tmp_path / str(i))
        assert {record["by"] for record in records} == {"a", "b"}
        assert [record["found"] for record in records] == [0, 1]


@pytest.mark.parametrize("text", ["my notes", "my notes\n", '{"a": 1}\nmy notes'])
def test_a_foreign_file_is_not_truncated(tmp_path, text):
    path = tmp_path / "notes.txt"
    path.write_text(text)
    with pytest.raises(AntipodalError, match=r"notes\.txt.*\bJSON\b"), appending(path):
        pass
    assert path.read_text() == text


def test_a_full_disk_keeps_earlier_records(tmp_path):
    path = tmp_path / "r.jsonl"
    code = f"""
import resource, signal
from antipodal.bench import records
from antipodal.bench.records import appending
from antipodal import AntipodalError
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
before = resource.getrlimit(resource.RLIMIT_FSIZE)
try:
    with appending({str(path)!r}) as file:
        file.append({{"a": 1}})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
        file.append({{"b": "x" * 1000}})
except AntipodalError as error:
    resource.setrlimit(resource.RLIMIT_FSIZE, before)  # which also holds for the printed text
    print(error)
"""
    done = run_program(code)
    assert str(path) in done.stdout
    assert read_records(path) == [{"a": 1}]


def test_a_failing_disk_is_reported_with_the_path(tmp_path, monkeypatch):
    path = tmp_path / "r.jsonl"
    write(path, {"a": 1})

    def fail(*_):
        raise OSError(errno.EIO, "Input/output error")

    class BrokenFile(FileIO):
        truncate = fail

    monkeypatch.setattr(records, "FileIO", BrokenFile)
    with appending(path) as file:
        monkeypatch.setattr(os, "fsync", fail)
        with pytest.raises(AntipodalError, match=r"r\.jsonl.*Input/output error"):
            file.append({"b": 2})
    with pytest.raises(AntipodalError, match=r"other\.jsonl.*Input/output error"):
        write(tmp_path / "other.jsonl", {"a": 1})  # its directory cannot be synced


def test_a_killed_writer_loses_no_acknowledged_record(tmp_path):
    path = tmp_path / "r.jsonl"
    code = f"""
from antipodal.bench import records
from antipodal.bench.records import appending
with appending({str(path)!r}) as file:
    for i in range(10**9):
        file.append({{"i": i}})
        print(i, flush=True)
"""
    process = start_program(code, files=[tmp_path / "printed"])
    lines_of(tmp_path / "printed", 50)
    process.send_signal(signal.SIGKILL)
    process.wait()
    acknowledged = int(lines_of(tmp_path / "printed", 50)[-1])
    numbers = [record["i"] for record in read_records(path)]
    assert numbers == list(range(len(numbers)))
    assert len(numbers) >= acknowledged + 1


def test_a_directory_that_cannot_be_created_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(AntipodalError, match="file/r"), appending(tmp_path / "file" / "r"):
        pass


def test_records_must_be_plain_json(tmp_path):
    path = tmp_path / "r.jsonl"
    with appending(path) as file, pytest.raises(ValueError, match="JSON"):
        file.append({"a": float("nan")})
    assert json.loads(path.read_text() or "null") is None


def test_devices_and_pipes_are_written_without_reading(tmp_path):
    with appending("/dev/null") as null:
        null.append({"a": 1})
    assert Path("/dev/null").is_char_device()
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    with appending(tmp_path / "pipe") as pipe:
        assert pipe.found == []
        pipe.append({"a": 1})
        pipe.append({"a": 2})
    reader.join(600)
    assert read == ['{"a": 1}\n{"a": 2}\n']
    assert (tmp_path / "pipe").is_fifo()
