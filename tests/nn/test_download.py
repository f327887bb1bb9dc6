"""MNIST's files from a server of the test's own: whole, damaged, cut short, missing, and none."""

import gzip
import hashlib
import http.server
import io
import socket
import sys
import threading

import pytest

import ruda
from ruda.cli import main
from ruda.data import images
from ruda.errors import UsageError
from tests.nn.test_nn import write_mnist

download = sys.modules["ruda.data.download"]  # the package has the function of that name
FIRST = "train-images-idx3-ubyte.gz"


class Mirror:
    """A folder of files over HTTP; `break_after` bytes of `broken` the connection is closed."""

    def __init__(self, files):
        self.files, self.asked, self.broken, self.break_after = files, [], None, 0
        self.parts = True
        mirror = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self):
                name, begin = self.path.rpartition("/")[2], self.headers.get("Range")
                mirror.asked.append((name, begin))
                if name not in mirror.files:
                    return self.send_error(404)
                data, start = mirror.files[name], 0
                if begin and mirror.parts:
                    start = int(begin.removeprefix("bytes=").removesuffix("-"))
                self.send_response(206 if start else 200)
                self.send_header("Content-Length", str(len(data) - start))
                self.end_headers()
                end = mirror.break_after if name == mirror.broken else len(data)
                self.wfile.write(data[start:end])

            def log_message(self, *arguments):
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.thread = threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True)
        self.address = f"http://127.0.0.1:{self.server.server_port}/mnist/"

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *error):
        self.server.shutdown()
        self.thread.join()
        self.server.server_close()


@pytest.fixture
def mirror(tmp_path, rng, monkeypatch):
    """Small files in MNIST's place, with their sums; the cache folder is the test's own."""
    write_mnist(tmp_path / "served", rng)
    files = {p.name: p.read_bytes() for p in (tmp_path / "served").iterdir()}
    sums = {
        name.removesuffix(".gz"): (len(data), hashlib.sha256(data).hexdigest())
        for name, data in files.items()
    }
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(download, "FILES", {n: sums[n] for n in download.FILES})
    monkeypatch.setattr(images, "_package_folder", lambda: None)  # it may be installed
    with Mirror(files) as served, ruda.config(cache_dir=str(tmp_path / "cache")):
        monkeypatch.setattr(download, "MIRRORS", (served.address,))
        yield served


def nothing_but(folder, *names):
    assert sorted(p.name for p in folder.iterdir()) == sorted(names)


def test_downloaded_files_are_found_afterwards_and_fetched_once(mirror, tmp_path):
    with pytest.raises(UsageError, match="--download"):
        ruda.data.mnist()
    assert mirror.asked == []  # nothing goes to the network unasked
    folder = ruda.data.download()
    assert folder == tmp_path / "cache" / "data" / "mnist"
    nothing_but(folder, *mirror.files)
    assert len(mirror.asked) == 4 and ruda.data.download() == folder and len(mirror.asked) == 4
    found = ruda.data.mnist()
    assert found.train_images.shape == (20, 28, 28) and found.test_labels.tolist() == [*range(5)]


def test_the_training_command_downloads_where_it_is_told_to(mirror, tmp_path, capsys):
    run = ["train", "mnist", "--epochs", "1", "--output", str(tmp_path / "run")]
    assert main(run) == 1 and "`--download`" in capsys.readouterr().err
    assert main([*run, "--download", "--data", str(tmp_path / "here")]) == 0
    nothing_but(tmp_path / "here", *mirror.files)
    assert "test accuracy" in capsys.readouterr().out
    assert main(["train", "digits", "--download"]) == 1
    assert "--download is for mnist" in capsys.readouterr().err


@pytest.mark.parametrize("longer", [0, 1, -1])
def test_another_file_is_refused_and_not_kept(mirror, tmp_path, longer):
    data = mirror.files[FIRST]
    other = bytes([data[0] ^ 1]) + data[1:]
    mirror.files[FIRST] = other + b"x" if longer > 0 else other[: len(data) + longer]
    with pytest.raises(UsageError, match="another file than MNIST's"):
        ruda.data.download(tmp_path / "here")
    nothing_but(tmp_path / "here")


@pytest.mark.parametrize("parts", [True, False])
def test_a_connection_that_breaks_is_taken_up_again(mirror, tmp_path, parts):
    mirror.broken, mirror.break_after, mirror.parts = FIRST, 5000, parts
    size = len(mirror.files[FIRST])
    with pytest.raises(UsageError, match=f"ended after 5000 of {size} bytes\n.*goes on where"):
        ruda.data.download(tmp_path / "here")
    nothing_but(tmp_path / "here", "train-images-idx3-ubyte.part")
    mirror.broken = None
    ruda.data.download(tmp_path / "here")
    assert mirror.asked[1] == (FIRST, "bytes=5000-")
    nothing_but(tmp_path / "here", *mirror.files)
    assert (tmp_path / "here" / FIRST).read_bytes() == mirror.files[FIRST]


def test_a_wrong_beginning_is_dropped(mirror, tmp_path):
    (tmp_path / "train-images-idx3-ubyte.part").write_bytes(b"wrong")
    ruda.data.download(tmp_path)
    assert [a for a in mirror.asked if a[0] == FIRST] == [(FIRST, "bytes=5-"), (FIRST, None)]
    assert (tmp_path / FIRST).read_bytes() == mirror.files[FIRST]


def test_the_next_mirror_is_asked_and_all_reasons_are_told(mirror, tmp_path):
    with socket.socket() as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        offline = f"http://127.0.0.1:{taken.getsockname()[1]}/"
        with pytest.raises(UsageError) as caught:
            ruda.data.download(tmp_path / "a", mirrors=(offline, offline))
        text = str(caught.value)
        assert text.count("refused") == 2 and "--data FOLDER" in text and FIRST in text
        ruda.data.download(tmp_path / "b", mirrors=(offline, mirror.address))
    nothing_but(tmp_path / "b", *mirror.files)
    del mirror.files["t10k-labels-idx1-ubyte.gz"]
    with pytest.raises(UsageError, match=r"t10k-labels-idx1-ubyte\.gz: 404 Not Found"):
        ruda.data.download(tmp_path / "c")
    nothing_but(tmp_path / "c", *mirror.files)  # the next attempt needs the fourth alone


def test_files_of_the_user_are_left_alone(mirror, tmp_path):
    (tmp_path / FIRST).write_bytes(gzip.compress(b"fashion"))
    with pytest.raises(UsageError, match="is another file than MNIST's: move it away"):
        ruda.data.download(tmp_path)
    assert gzip.decompress((tmp_path / FIRST).read_bytes()) == b"fashion"
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot be kept in"):
        ruda.data.download(tmp_path / "file")
    with pytest.raises(UsageError, match="is no https address"):
        ruda.data.download(tmp_path, mirrors=("file:///etc/",))


def test_progress_is_shown_on_a_terminal_alone_and_can_be_silenced(mirror, tmp_path, monkeypatch):
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    texts = []
    for k, (stream, progress) in enumerate(
        ((Terminal(), True), (Terminal(), False), (io.StringIO(), True))
    ):
        with monkeypatch.context() as patched, ruda.config(progress=progress):
            patched.setattr(sys, "stderr", stream)
            ruda.data.download(tmp_path / str(k))
        texts.append(stream.getvalue())
    assert f"{FIRST} 0.0 of 0.0 MB\n" in texts[0] and texts[1:] == ["", ""]
