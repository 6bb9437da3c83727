"""Atomic writes: files are replaced completely or left unchanged."""

import errno
import os
import signal
import socket
import stat
import threading
from contextlib import contextmanager, nullcontext

import pytest

from antipodal import AntipodalError
from antipodal.io.atomic import check_writable, make_folder, replacing
from processes import run_program
from races import race_deletion, race_replacement


def interrupted(path):
    with replacing(path) as file:
        file.write(b"half")
        raise KeyboardInterrupt


def write(path, data=b"new"):
    with replacing(path) as file:
        file.write(data)


def mode(path):
    return stat.S_IMODE(path.stat().st_mode)


def test_a_device_is_written_to_and_stays_a_device(tmp_path):
    device = tmp_path / "null"
    try:
        os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(1, 3))
        open(device, "wb").close()
    except PermissionError:
        pytest.skip("only root may make a device")
    check_writable(device)
    write(device)
    assert stat.S_ISCHR(device.stat().st_mode)
    assert list(tmp_path.iterdir()) == [device]


def test_a_named_pipe_is_written_through(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    check_writable(pipe)  # does not wait for a reader
    got = []
    reader = threading.Thread(target=lambda: got.append(pipe.read_bytes()))
    reader.start()
    write(pipe, b"through")
    reader.join()
    assert got == [b"through"]
    assert stat.S_ISFIFO(pipe.stat().st_mode)


@pytest.mark.parametrize("there", [True, False])
def test_links_are_kept_and_their_targets_replaced_or_created(tmp_path, there):
    (tmp_path / "elsewhere").mkdir()
    target, link, far = (tmp_path / name for name in ("elsewhere/file", "link", "far"))
    if there:
        target.write_bytes(b"old")
    link.symlink_to("elsewhere/file")
    far.symlink_to(link)
    check_writable(far)
    assert target.exists() == there
    write(far)
    assert target.read_bytes() == b"new"
    assert not target.is_symlink()
    assert link.is_symlink()
    assert far.is_symlink()
    assert list(target.parent.iterdir()) == [target]


def test_an_open_file_without_a_name_is_written_through_its_descriptor(tmp_path):
    with open(tmp_path / "gone", "w+b") as file:
        os.unlink(tmp_path / "gone")
        write(f"/dev/fd/{file.fileno()}")
        assert file.read() == b"new"
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("bits", [0o600, 0o640, 0o755])
def test_a_replaced_file_keeps_its_mode_and_owner(tmp_path, bits):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    if os.geteuid() == 0:
        os.chown(path, 1234, 2345)
    path.chmod(bits)
    before = path.stat()
    write(path)
    after = path.stat()
    assert path.read_bytes() == b"new"
    assert after.st_ino != before.st_ino  # replaced, not overwritten
    assert (after.st_mode, after.st_uid, after.st_gid) == (
        before.st_mode, before.st_uid, before.st_gid
    )  # fmt: skip


def test_a_new_file_has_the_mode_of_the_umask(tmp_path):
    before = os.umask(0o027)
    try:
        write(tmp_path / "file")
    finally:
        os.umask(before)
    assert mode(tmp_path / "file") == 0o640


def test_a_save_never_changes_the_umask_of_the_process(tmp_path, monkeypatch):
    """Another thread could create a file while the umask is changed."""
    monkeypatch.setattr(os, "umask", lambda mask: pytest.fail(f"umask({mask:o}) was called"))
    for _ in range(2):  # a new file, then a replaced one
        check_writable(tmp_path / "file")
        write(tmp_path / "file")


def test_a_replacement_is_private_until_it_has_the_mode_of_the_old_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o600)
    with replacing(path):
        (temporary,) = tmp_path.glob(".*")
        assert mode(temporary) == 0o600
    assert mode(path) == 0o600


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("change", ["delete", "replace"])
@pytest.mark.parametrize("through_link", [True, False])
def test_a_file_that_changes_between_any_two_system_calls_is_replaced(
    tmp_path, monkeypatch, there, change, through_link
):
    """Change the file after the n-th system call that inspects it, for every n."""
    path, link, other = tmp_path / "file", tmp_path / "link", tmp_path / "other"
    link.symlink_to(path)
    name = link if through_link else path
    calls = ("stat", "lstat", "access", "readlink", "open")
    real = {call: getattr(os, call) for call in calls}
    n_calls, change_after = 0, 0

    def change_file():
        if change == "delete":
            path.unlink(missing_ok=True)
        else:
            other.write_bytes(b"other")
            other.replace(path)

    def hooked(call):
        def hook(file, *arguments, **options):
            nonlocal n_calls
            is_watched = not isinstance(file, int) and os.fspath(file) in map(str, (path, link))
            n_calls += is_watched
            try:
                return real[call](file, *arguments, **options)
            finally:
                if is_watched and n_calls == change_after:
                    with monkeypatch.context() as unhooked:
                        for name in calls:
                            unhooked.setattr(os, name, real[name])
                        change_file()

        return hook

    while change_after <= n_calls:
        change_after, n_calls = change_after + 1, 0
        path.unlink(missing_ok=True)
        if there:
            path.write_bytes(b"old")
        with monkeypatch.context() as hooks, replacing_in(hooks, calls, hooked, name) as file:
            opened = os.fstat(file.fileno())
            file.write(b"new")
            file.flush()
            assert not path.exists() or path.read_bytes() in (b"old", b"other")
        assert path.stat().st_ino == opened.st_ino  # renamed, not written in place
        assert path.read_bytes() == b"new"
        assert sorted(tmp_path.iterdir()) == [path, link]
    assert change_after > 1


@contextmanager
def replacing_in(hooks, calls, hooked, name):
    """Enter `replacing` with hooked system calls, and run its block without them."""
    for call in calls:
        hooks.setattr(os, call, hooked(call))
    with replacing(name) as file:
        hooks.undo()
        yield file


def test_a_special_file_that_is_not_a_device_or_a_pipe_is_refused(tmp_path):
    path = tmp_path / "socket"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(os.fspath(path))
        for refused in (check_writable, write):
            with pytest.raises(AntipodalError, match=r"cannot write .*socket: .* regular file"):
                refused(path)
    assert stat.S_ISSOCK(path.stat().st_mode)


def test_a_block_that_raises_leaves_the_old_file(tmp_path):
    path, link = tmp_path / "file", tmp_path / "link"
    path.write_bytes(b"old")
    link.symlink_to(path)
    for name in (path, link):
        with pytest.raises(KeyboardInterrupt):
            interrupted(name)
    assert path.read_bytes() == b"old"
    assert sorted(tmp_path.iterdir()) == [path, link]


@pytest.mark.parametrize(("error", "is_error"), [(errno.EIO, True), (errno.EINVAL, False)])
def test_a_failed_sync_of_the_folder_is_an_error(tmp_path, monkeypatch, error, is_error):
    """Ignore it only if the file system does not support it."""
    fsync = os.fsync

    def fail_for_folders(handle):
        if stat.S_ISDIR(os.fstat(handle).st_mode):
            raise OSError(error, os.strerror(error))
        fsync(handle)

    monkeypatch.setattr(os, "fsync", fail_for_folders)
    refusal = pytest.raises(AntipodalError, match=r"/file\b.*Input/output error")
    with refusal if is_error else nullcontext():
        write(tmp_path / "file")
    assert os.listdir(tmp_path) == ["file"]


def test_a_name_as_long_as_the_system_allows_can_be_written(tmp_path):
    path = tmp_path / ("é" * 127)
    check_writable(path)
    write(path)
    assert path.read_bytes() == b"new"


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("missing/file", r"/missing/file\b.*/missing\b"),
        ("folder", r"/folder\b"),
        ("file/below", r"/file/below\b.*Not a directory"),
        ("dangling", r"/dangling\b.*\bnowhere\b"),
        ("loop", f"/loop.*{os.strerror(errno.ELOOP)}"),
        ("x" * 300, f"/xxx.*{os.strerror(errno.ENAMETOOLONG)}"),
    ],
)
def test_unwritable_paths_are_detected_before_writing(tmp_path, path, message):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere/file")
    (tmp_path / "loop").symlink_to("loop")
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(AntipodalError, match=message):
        check_writable(tmp_path / path)
    with pytest.raises(AntipodalError, match=message):
        write(tmp_path / path)
    assert sorted(tmp_path.rglob("*")) == before


def test_files_and_folders_without_permission_are_refused(tmp_path, monkeypatch):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o444)
    if os.geteuid() == 0:  # root may write read-only files
        open_file = os.open

        def refuse(name, flags, *mode):
            if name == path:
                raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
            return open_file(name, flags, *mode)

        monkeypatch.setattr(os, "open", refuse)
    for refused in (check_writable, write):
        with pytest.raises(AntipodalError, match=r"/file\b.*\bpermission\b"):
            refused(path)
    assert path.read_bytes() == b"old"


def test_a_folder_is_created_or_refused(tmp_path):
    folder = tmp_path / "a" / "b"
    assert make_folder(folder) == make_folder(folder) == folder
    assert not list(folder.iterdir())
    (tmp_path / "file").touch()
    for path in ("file", "file/below"):
        with pytest.raises(AntipodalError, match=rf"/{path}\b"):
            make_folder(tmp_path / path)


def test_a_check_does_not_change_the_file(tmp_path):
    path = tmp_path / "file"
    path.write_bytes(b"old")
    before = path.stat()
    check_writable(path)
    assert path.read_bytes() == b"old"
    assert path.stat().st_mtime_ns == before.st_mtime_ns
    assert list(tmp_path.iterdir()) == [path]


_KILLED_SAVE = """
import os, signal, sys
from antipodal.io.atomic import replacing
with replacing(sys.argv[1]) as file:
    file.write(b"half")
    file.flush()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_files_of_killed_writers_are_removed_by_the_next_writer(tmp_path):
    path, others = tmp_path / "model", [".model.settings", ".model.abcdefgh", ".models.x", "model2"]
    for name in others:
        (tmp_path / name).write_bytes(b"mine")
    for _ in range(2):
        killed = run_program(_KILLED_SAVE, path)
        assert killed.returncode == -signal.SIGKILL
    before = set(os.listdir(tmp_path)) - set(others)
    assert before
    write(tmp_path / "models")  # another name
    assert before <= set(os.listdir(tmp_path))
    write(path)
    assert set(os.listdir(tmp_path)) == {*others, "model", "models"}


def test_temporary_files_of_running_writers_are_kept(tmp_path):
    path = tmp_path / "model"
    with replacing(path) as slow:
        slow.write(b"slow")
        write(path, b"fast")
        assert path.read_bytes() == b"fast"
    assert path.read_bytes() == b"slow"
    assert os.listdir(tmp_path) == ["model"]


def test_concurrent_writers_of_one_file_all_succeed(tmp_path):
    path, failures = tmp_path / "model", []

    def save(number):
        try:
            for _ in range(15):
                write(path, bytes([number]) * 1000)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=save, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures
    assert len(set(path.read_bytes())) == 1
    assert os.listdir(tmp_path) == ["model"]


@pytest.mark.parametrize("race", [race_replacement, race_deletion])
def test_racing_writers_readers_and_deleters_find_only_complete_files(race):
    pytest.importorskip("torch")
    found = race(600, seed=0)
    assert found["failures"] == []
    assert found["saves"] + found["loads"] + found["deletions"] == 600
