"""Downloads from a local HTTP server with injected faults."""

import errno
import gzip
import hashlib
import io
import os
import re
import resource
import shutil
import signal
import socket
import struct
import tarfile
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib import import_module
from types import SimpleNamespace

import numpy as np
import pytest

from antipodal import AntipodalError
from antipodal.datasets import cifar10, download, idx, nus_wide
from antipodal.datasets.download import SOURCES, RemoteDataset, RemoteFile
from processes import lines_of, start_program

fetching = import_module("antipodal.datasets.download")
RNG = np.random.default_rng(0)
BATCHES = [*(f"data_batch_{i}.bin" for i in range(1, 6)), "test_batch.bin"]
CONTENT = {name: b"\3" + RNG.bytes(3072) + b"\7" + RNG.bytes(3072) for name in BATCHES}
FOLDER = "cifar-10-batches-bin"


def make_archive(*extra):
    """Return a .tar.gz with two images per batch, preceded by extra members."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as tar:
        for member, data in extra:
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
        tar.addfile(folder := tarfile.TarInfo(FOLDER))
        folder.type = tarfile.DIRTYPE
        for name, data in CONTENT.items():
            member = tarfile.TarInfo(f"{FOLDER}/{name}")
            member.size = len(data)
            tar.addfile(member, io.BytesIO(data))
    return stream.getvalue()


ARCHIVE = make_archive()
HALF = len(ARCHIVE) // 2


class Handler(BaseHTTPRequestHandler):
    """Server of `files`; `mode` is the fault. `starts` records the offsets of responses."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        files, mode = self.server.files, self.server.mode
        if self.path in self.server.moved:
            self.send_response(302)
            self.send_header("Location", self.server.moved[self.path])
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data = files.get(self.path)
        if data is None:
            self.send_error(404)
            return
        start, asked = 0, self.headers.get("Range")
        if asked and mode != "no ranges":
            start = int(asked.removeprefix("bytes=").removesuffix("-"))
            if start >= len(data):
                self.send_error(416)
                return
            self.send_response(206)
            self.send_header("Content-Range", f"bytes {start}-{len(data) - 1}/{len(data)}")
        else:
            self.send_response(200)
        self.server.starts.append(start)
        if self.server.encoding:
            self.send_header("Content-Encoding", self.server.encoding)
        if mode == "no length":
            self.send_header("Connection", "close")
        else:
            self.send_header("Content-Length", str(len(data) - start))
        self.end_headers()
        if mode == "cut":
            data = data[: max(HALF, start)]
            self.close_connection = True
        self.wfile.write(data[start:])
        if mode == "hang":
            self.wfile.flush()
            self.server.gate.wait(600)

    def log_message(self, *args):
        pass


@pytest.fixture
def server(monkeypatch):
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        http.daemon_threads = True
        http.files, http.mode, http.starts = {"/a.tar.gz": ARCHIVE}, "good", []
        http.moved, http.encoding = {}, None
        http.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, args=(0.01,))
        thread.start()
        use_archive(monkeypatch, http.url)
        yield http
        http.shutdown()
        thread.join()


def remote(url, data):
    return RemoteFile(url, len(data), hashlib.md5(data).hexdigest())


def use_archive(monkeypatch, url, data=ARCHIVE):
    sizes = {name: len(content) for name, content in CONTENT.items()}
    source = RemoteDataset(FOLDER, (remote(f"{url}/a.tar.gz", data),), sizes)
    monkeypatch.setitem(SOURCES, "cifar10", source)


def write_part(directory, data):
    """Write the partial file of an earlier download."""
    work = directory / f"{FOLDER}.part"
    work.mkdir()
    (work / "a.tar.gz.part").write_bytes(data)


def read_part(directory):
    """Return the partial file, which must be the only file."""
    assert os.listdir(directory) == [f"{FOLDER}.part"]
    assert os.listdir(directory / f"{FOLDER}.part") == ["a.tar.gz.part"]
    return (directory / f"{FOLDER}.part" / "a.tar.gz.part").read_bytes()


def assert_complete(folder):
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == CONTENT


def test_an_archive_is_unpacked_and_its_loader_reads_it(server, tmp_path, monkeypatch):
    told = []
    folder = download("cifar10", tmp_path / "new" / "dir", progress=lambda *n: told.append(n))
    assert folder == tmp_path / "new" / "dir" / FOLDER
    assert_complete(folder)
    assert list(folder.parent.iterdir()) == [folder]
    assert told[-1] == (len(ARCHIVE), len(ARCHIVE))
    monkeypatch.setattr(import_module("antipodal.datasets.cifar10"), "_PER_BATCH", 2)
    for place in (folder, folder.parent):
        assert cifar10(place).labels.tolist() == [3, 7] * 6


def test_existing_files_are_not_downloaded_again(server, tmp_path):
    folder = download("cifar10", tmp_path)
    (folder / ".antipodal").mkdir()
    server.files.clear()
    assert download("cifar10", tmp_path) == folder
    assert download("cifar10", str(folder)) == folder
    assert len(server.starts) == 1


def test_an_incomplete_folder_is_completed_and_other_files_are_kept(server, tmp_path):
    folder = download("cifar10", tmp_path)
    (folder / "mine.txt").write_text("kept")
    (folder / "data_batch_2.bin").write_bytes(b"short")
    (folder / "test_batch.bin").unlink()
    assert download("cifar10", tmp_path) == folder
    assert (folder / "mine.txt").read_text() == "kept"
    (folder / "mine.txt").unlink()
    assert_complete(folder)


def test_a_manually_downloaded_archive_is_unpacked_and_kept(server, tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(ARCHIVE)
    server.files.clear()
    assert_complete(download("cifar10", tmp_path))
    assert (tmp_path / "a.tar.gz").read_bytes() == ARCHIVE


def test_a_broken_connection_is_resumed(server, tmp_path):
    server.mode = "cut"
    starts = [0]
    for _ in range(2):  # the second attempt gets nothing more
        with pytest.raises(AntipodalError) as caught:
            download("cifar10", tmp_path)
        part = read_part(tmp_path)
        assert ARCHIVE.startswith(part)
        assert HALF - fetching._CHUNK < len(part) <= HALF
        message = str(caught.value)
        assert re.search(rf"\b{len(part):,}\b.*\b{len(ARCHIVE):,} bytes\b", message)
        assert server.starts == starts
        starts.append(len(part))
    server.mode = "good"
    told = []
    assert_complete(download("cifar10", tmp_path, progress=lambda *n: told.append(n)))
    assert server.starts == starts
    assert all(done > len(part) for done, _ in told)
    assert os.listdir(tmp_path) == [FOLDER]


def test_a_server_without_ranges_starts_over(server, tmp_path):
    server.mode = "no ranges"
    write_part(tmp_path, ARCHIVE[:HALF])
    assert_complete(download("cifar10", tmp_path))
    assert server.starts == [0]


def test_a_response_without_length_is_accepted(server, tmp_path):
    server.mode = "no length"
    assert_complete(download("cifar10", tmp_path))


@pytest.mark.parametrize("part", [ARCHIVE, b"x" * len(ARCHIVE), ARCHIVE + b"more"])
def test_a_complete_part_is_used_and_a_longer_one_discarded(server, tmp_path, part):
    write_part(tmp_path, part)
    assert_complete(download("cifar10", tmp_path))
    assert server.starts == ([] if part == ARCHIVE else [0])


def test_after_an_unsatisfiable_range_the_next_attempt_starts_over(server, tmp_path, monkeypatch):
    use_archive(monkeypatch, server.url, ARCHIVE + b"more")  # the expected file is longer
    write_part(tmp_path, ARCHIVE)
    with pytest.raises(AntipodalError, match=r"/a\.tar\.gz\b.*\b416\b"):
        download("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []
    with pytest.raises(AntipodalError, match=rf"\b{len(ARCHIVE) + 4:,}\b.*\b{len(ARCHIVE):,}\b"):
        download("cifar10", tmp_path)
    assert server.starts == [0]
    assert os.listdir(tmp_path) == []


def test_a_response_longer_than_the_file_is_refused(server, tmp_path):
    server.mode = "no length"
    server.files["/a.tar.gz"] = ARCHIVE + bytes(10 * fetching._CHUNK)
    told = []
    with pytest.raises(AntipodalError, match=rf"/a\.tar\.gz\b.*\b{len(ARCHIVE):,}\b"):
        download("cifar10", tmp_path, progress=lambda *n: told.append(n))
    assert max(told) <= (len(ARCHIVE), len(ARCHIVE))
    assert os.listdir(tmp_path) == []


def test_a_compressed_file_is_not_decompressed(server, tmp_path):
    server.encoding = "x-gzip"  # some servers send this for every .gz file
    assert_complete(download("cifar10", tmp_path))


def test_redirects_are_followed_and_resumed(server, tmp_path):
    server.moved["/a.tar.gz"] = "/new/a.tar.gz"
    server.files["/new/a.tar.gz"] = server.files.pop("/a.tar.gz")
    write_part(tmp_path, ARCHIVE[:HALF])
    assert_complete(download("cifar10", tmp_path))
    assert server.starts == [HALF]


@pytest.mark.parametrize("part", [b"", b"x" * 100])
def test_a_file_with_a_wrong_checksum_is_removed(server, tmp_path, part):
    if part:
        write_part(tmp_path, part)
    else:
        server.files["/a.tar.gz"] = ARCHIVE[:-1] + bytes([ARCHIVE[-1] ^ 1])
    with pytest.raises(AntipodalError, match=r"\bchecksum\b.*\bMD5 [0-9a-f]{32}\b"):
        download("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []
    server.files["/a.tar.gz"] = ARCHIVE
    assert_complete(download("cifar10", tmp_path))


def test_a_file_of_another_size_is_refused(server, tmp_path):
    server.files["/a.tar.gz"] = b"<html>Please log in</html>"
    with pytest.raises(AntipodalError, match=rf"\b{len(ARCHIVE):,}\b.*\b26\b"):
        download("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []


def no_such_host(*args):
    raise socket.gaierror(socket.EAI_NONAME, "Name or service not known")


def test_network_errors_explain_the_manual_download(server, tmp_path, monkeypatch):
    by_hand = rf"/a\.tar\.gz\b.*{{}}.*{tmp_path.name}.*\bdata_batch_1\.bin\b"
    server.files.clear()
    with pytest.raises(AntipodalError, match=by_hand.format(r"\b404\b")):
        download("cifar10", tmp_path)
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as closed:
        port = closed.server_port
    use_archive(monkeypatch, f"http://127.0.0.1:{port}")
    with pytest.raises(AntipodalError, match=by_hand.format("refused")):
        download("cifar10", tmp_path)
    monkeypatch.setattr(socket, "getaddrinfo", no_such_host)
    with pytest.raises(AntipodalError, match=by_hand.format("Name or service not known")):
        download("cifar10", tmp_path)
    assert os.listdir(tmp_path) == []


def test_a_stalled_connection_times_out(server, tmp_path, monkeypatch):
    server.mode, server.gate = "hang", threading.Event()
    server.files["/a.tar.gz"] = ARCHIVE
    use_archive(monkeypatch, server.url, ARCHIVE + b"the rest")
    monkeypatch.setattr(Handler, "send_header", lambda *args: None)  # no length either
    for seconds in (0.2, 2, 20, 200):  # on a busy machine the response may begin late
        folder = tmp_path / str(seconds)
        monkeypatch.setattr(fetching, "_TIMEOUT", seconds)
        with pytest.raises(AntipodalError) as caught:
            download("cifar10", folder)
        if f" {len(ARCHIVE) + 8:,} bytes" in str(caught.value):
            break
    server.gate.set()
    part = read_part(folder)
    assert ARCHIVE.startswith(part)
    assert len(part) > len(ARCHIVE) - fetching._CHUNK


def evil(name, kind=tarfile.REGTYPE, target=""):
    member = tarfile.TarInfo(name)
    member.type, member.linkname = kind, target
    return member, b"evil" if kind == tarfile.REGTYPE else b""


def test_unexpected_members_are_not_unpacked(server, tmp_path, monkeypatch):
    absolute = tmp_path / "absolute"
    archive = make_archive(
        evil("../x"),
        evil(f"{FOLDER}/../../x"),
        evil(f"{FOLDER}/../x"),
        evil(str(absolute)),
        evil(f"{FOLDER}/readme.html"),
        evil(f"{FOLDER}/data_batch_1.bin"),  # too short
        evil(f"{FOLDER}/link", tarfile.SYMTYPE, "/etc"),
        evil(f"{FOLDER}/data_batch_2.bin", tarfile.SYMTYPE, str(absolute)),
        evil(f"{FOLDER}/data_batch_3.bin", tarfile.LNKTYPE, "/etc/passwd"),
        evil(f"{FOLDER}/data_batch_4.bin", tarfile.FIFOTYPE),
    )
    server.files["/a.tar.gz"] = archive
    use_archive(monkeypatch, server.url, archive)
    (tmp_path / "data").mkdir()
    assert_complete(download("cifar10", tmp_path / "data"))
    assert os.listdir(tmp_path) == ["data"]
    assert os.listdir(tmp_path / "data") == [FOLDER]


@pytest.mark.parametrize(
    "archive", [b"no archive", ARCHIVE[:-500], gzip.compress(b"no archive", mtime=0)]
)
def test_an_archive_without_a_member_leaves_no_folder(server, tmp_path, monkeypatch, archive):
    server.files["/a.tar.gz"] = archive
    use_archive(monkeypatch, server.url, archive)
    with pytest.raises(AntipodalError, match=r"\ba\.tar\.gz\b"):
        download("cifar10", tmp_path)
    assert not (tmp_path / FOLDER).exists()


def test_a_killed_download_leaves_partial_files_only_and_is_resumed(server, tmp_path):
    server.mode, server.gate = "hang", threading.Event()
    first = remote(f"{server.url}/a.tar.gz", ARCHIVE)
    server.files["/a.tar.gz"] = ARCHIVE[:HALF]
    script = (
        "import sys\n"
        "from antipodal.datasets.download import SOURCES, RemoteDataset, download\n"
        "from antipodal.datasets.download import RemoteFile\n"
        "url, size, md5, dir = sys.argv[1:]\n"
        "files = (RemoteFile(url, int(size), md5),)\n"
        "source = RemoteDataset('cifar-10-batches-bin', files, {'x': 1})\n"
        "SOURCES['cifar10'] = source\n"
        "download('cifar10', dir, progress=lambda *n: print(n[0], flush=True))\n"
    )
    tmp_path, printed = tmp_path / "data", tmp_path / "printed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Handler, "send_header", lambda *args: None)  # without a length
        arguments = (first.url, first.size, first.md5, tmp_path)
        process = start_program(script, *arguments, files=[printed])
        n_lines = 1
        while int((lines := lines_of(printed, n_lines))[-1]) < HALF - fetching._CHUNK:
            n_lines = len(lines) + 1
        process.send_signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
    server.gate.set()
    assert os.listdir(tmp_path) == [f"{FOLDER}.part"]
    unpacked = tmp_path / f"{FOLDER}.part" / "unpacked"
    unpacked.mkdir()  # as after a kill while unpacking
    (unpacked / "data_batch_1.bin").write_bytes(b"half")
    server.mode, server.files["/a.tar.gz"] = "good", ARCHIVE
    assert_complete(download("cifar10", tmp_path))
    assert server.starts[-1] > 0
    assert os.listdir(tmp_path) == [FOLDER]


def test_concurrent_downloads_are_serialised(server, tmp_path):
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(download("cifar10", tmp_path)))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(600)
    assert results == [tmp_path / FOLDER] * 4
    assert server.starts == [0]
    assert_complete(tmp_path / FOLDER)


# ---- IDX files


@pytest.fixture
def mnist(server, monkeypatch):
    """Put four small files on the server, with their sizes and checksums in the table."""
    images = struct.pack(">4B3I", 0, 0, 8, 3, 2, 4, 4) + bytes(range(32))
    labels = struct.pack(">4BI2B", 0, 0, 8, 1, 2, 5, 6)
    files = {}
    for old in SOURCES["mnist"].files:
        files[old.name] = gzip.compress(images if "images" in old.name else labels, mtime=0)
        server.files[f"/{old.name}"] = files[old.name]
    table = tuple(remote(f"{server.url}/{name}", data) for name, data in files.items())
    monkeypatch.setitem(SOURCES, "mnist", RemoteDataset("mnist", table))
    return SimpleNamespace(files=files, total=sum(map(len, files.values())))


def test_idx_files_are_downloaded_to_a_folder_that_idx_reads(server, mnist, tmp_path):
    told = []
    folder = download("mnist", tmp_path, progress=lambda *n: told.append(n))
    assert folder == tmp_path / "mnist"
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist.files
    assert told[-1] == (mnist.total, mnist.total)
    assert told == sorted(told)
    data = idx(folder)
    assert data.name == "mnist"
    assert data.labels.tolist() == [5, 6, 5, 6]
    assert download("mnist", tmp_path) == download("mnist", folder) == folder
    assert len(server.starts) == 4


def test_only_the_missing_and_the_damaged_idx_files_are_fetched(server, mnist, tmp_path):
    folder = download("mnist", tmp_path)
    names = list(mnist.files)
    (folder / names[0]).write_bytes(b"?" * len(mnist.files[names[0]]))
    (folder / names[3]).unlink()
    del server.files[f"/{names[1]}"], server.files[f"/{names[2]}"]
    download("mnist", tmp_path)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == mnist.files


def test_a_missing_idx_file_explains_the_manual_download(server, mnist, tmp_path):
    del server.files["/t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(AntipodalError, match=r"/t10k-labels-idx1-ubyte\.gz\b.*/mnist\b"):
        download("mnist", tmp_path)
    assert len(os.listdir(tmp_path / "mnist")) == 3
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(
        mnist.files["t10k-labels-idx1-ubyte.gz"]
    )
    assert download("mnist", tmp_path) == tmp_path / "mnist"


# ---- data directory


def test_the_directory_is_the_argument_the_variable_or_the_cache(
    server, mnist, tmp_path, monkeypatch
):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("ANTIPODAL_DATA", str(tmp_path / "variable"))
    assert download("mnist", "~/mine") == tmp_path / "home" / "mine" / "mnist"
    assert download("mnist") == tmp_path / "variable" / "mnist"
    monkeypatch.delenv("ANTIPODAL_DATA")
    assert download("mnist") == tmp_path / "xdg" / "antipodal" / "mnist"
    for relative in ("", "relative"):
        monkeypatch.setenv("XDG_CACHE_HOME", relative)
        assert download("mnist") == tmp_path / "home" / ".cache" / "antipodal" / "mnist"
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert download("mnist") == tmp_path / "home" / ".cache" / "antipodal" / "mnist"


def test_loaders_read_the_folder_of_download_and_name_missing_files(
    server, mnist, tmp_path, monkeypatch
):
    monkeypatch.delenv("ANTIPODAL_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(import_module("antipodal.datasets.cifar10"), "_PER_BATCH", 2)
    cache = tmp_path / "antipodal"
    for load, help in [
        (cifar10, r"`antipodal datasets cifar10`.*\bhttps://"),
        (idx, r"`antipodal datasets mnist`.*`antipodal datasets fashion-mnist`"),
        (nus_wide, r"\bNUS-WIDE\b.*\bLow_Level_Features\b"),
    ]:
        for _ in range(2):
            with pytest.raises(AntipodalError, match=help) as caught:
                load()
            assert str(cache) in str(caught.value)
            cache.mkdir(exist_ok=True)
        cache.rmdir()
    download("cifar10")
    download("mnist")
    assert len(cifar10()) == 12
    with pytest.raises(AntipodalError, match=rf"{cache}/mnist\b"):
        idx()


def test_a_directory_that_cannot_be_written_is_named(server, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AntipodalError, match=r"/file/data\b.*Not a directory"):
        download("cifar10", tmp_path / "file" / "data")


def test_a_full_disk_is_named_and_the_download_resumes(server, tmp_path):
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (HALF, limits[1]))
    try:
        with pytest.raises(AntipodalError, match=f"{tmp_path}.*{os.strerror(errno.EFBIG)}"):
            download("cifar10", tmp_path)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert ARCHIVE.startswith(read_part(tmp_path))
    assert_complete(download("cifar10", tmp_path))
    assert server.starts[-1] > 0


def test_files_downloaded_before_the_disk_was_full_are_kept(server, tmp_path, monkeypatch):
    def full(*arguments):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfileobj", full)
        with pytest.raises(AntipodalError, match=f"{tmp_path}.*{os.strerror(errno.ENOSPC)}"):
            download("cifar10", tmp_path)
    server.files.clear()
    assert_complete(download("cifar10", tmp_path))
    assert os.listdir(tmp_path) == [FOLDER]


def test_downloads_print_nothing(server, tmp_path, capfd):
    download("cifar10", tmp_path)
    assert capfd.readouterr() == ("", "")


def test_an_unknown_dataset_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"\bcifar10, fashion-mnist, mnist\b.*'nus-wide'"):
        download("nus-wide", tmp_path)


def test_the_table_lists_the_files_of_the_loaders():
    assert {name: source.folder for name, source in SOURCES.items()} == {
        "cifar10": FOLDER,
        "fashion-mnist": "fashion-mnist",
        "mnist": "mnist",
    }
    assert dict(SOURCES["cifar10"].members) == dict.fromkeys(BATCHES, 30_730_000)
    for source in SOURCES.values():
        for file in source.files:
            assert len(bytes.fromhex(file.md5)) == 16
            assert file.url.startswith("http")
