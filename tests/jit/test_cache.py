"""The disk cache: what is stored comes back, what is wrong is a miss, and nothing stops work."""

import hashlib
import json
import os
import signal
import stat
import subprocess
import sys
import threading
import time
import warnings

import pytest
from hypothesis import HealthCheck, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from ruda.errors import CacheWarning
from ruda.jit import cache, keys
from ruda.jit.cache import Entry
from ruda.settings import settings

posix = pytest.mark.skipif(os.name != "posix", reason="owners and modes are POSIX's")
# A hypothesis example overwrites what the one before it left.
many = hypothesis_settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

PARTS = {"name": "m.saxpy", "target": "cpu", "types": "float32[:]", "ir": "x" * 1000, "numba": "1"}
KEY = cache.key_of(PARTS)
ENTRY = Entry(b"machine code" * 20, {"symbol": "f", "n": [1, 2.5, None]}, ("memcpy", "expf"))


def resolves(name):
    return name in ("memcpy", "expf")


def look(key=KEY, parts=PARTS):
    return cache.lookup(key, parts=parts, resolves=resolves)


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """A cache of its own for each test; threads and forked children see it too."""
    monkeypatch.setitem(settings.base, "cache_dir", str(tmp_path / "cache"))
    monkeypatch.setitem(settings.base, "cache", True)
    monkeypatch.setattr(cache, "_state", cache._State())
    return tmp_path / "cache" / "kernels"


@pytest.fixture
def file(folder):
    """The file of an entry that was stored."""
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY
    return folder / f"{KEY}.ruda"


def reason():
    return cache.lookups()[-1].reason


def in_child(function, uid=None):
    """What `function` returns in a forked child, as JSON; another user's where `uid` is given."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(30)  # a child that waits for ever would hang the tests
        try:
            if uid is not None:
                os.setgid(uid)
                os.setuid(uid)
            result = json.dumps(function())
        except BaseException as error:
            result = json.dumps(f"{type(error).__name__}: {error}")
        os.write(writer, result.encode())
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    return json.loads(text)


def caught(function):
    """What a function returns, and the messages of its warnings."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        result = function()
    assert all(w.category is CacheWarning for w in found)
    return result, [str(w.message) for w in found]


# ------------------------------------------------------------------------------- the good case


def test_an_entry_comes_back_as_it_was_stored(folder):
    assert look() is None
    assert reason() == cache.NOT_STORED
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY
    counts = cache.statistics()
    assert (counts["hits"], counts["misses"], counts["stores"], counts["rejected"]) == (1, 1, 1, 0)
    assert (counts["entries"], counts["bytes"]) == (1, (folder / f"{KEY}.ruda").stat().st_size)


@pytest.mark.parametrize("payload", [b"", b"\0", bytes(range(256)) * 5000])
def test_a_payload_may_be_empty_or_large(payload):
    cache.store(KEY, Entry(payload, {}))
    assert cache.lookup(KEY) == Entry(payload, {}, ())


@posix
def test_folder_and_files_belong_to_the_user_alone_whatever_the_umask(folder):
    before = os.umask(0)
    try:
        cache.store(KEY, ENTRY)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    assert [stat.S_IMODE(f.stat().st_mode) for f in folder.iterdir()] == [0o600]


def test_a_store_replaces(file):
    cache.store(KEY, Entry(b"new", {}))
    assert look().payload == b"new"
    assert [f.name for f in file.parent.iterdir()] == [file.name]


def test_off_means_nothing_is_read_or_written(file, monkeypatch):
    monkeypatch.setitem(settings.base, "cache", False)
    assert look() is None
    assert "off" in reason()
    other = cache.key_of({"other": ""})
    cache.store(other, ENTRY)
    assert [f.name for f in file.parent.iterdir()] == [file.name]
    assert cache.statistics()["rejected"] == 0


@pytest.mark.parametrize("key", ["", "x", "../" + "a" * 61, KEY.upper(), KEY + "\n", KEY[:-1]])
def test_a_key_that_is_not_one_is_a_mistake_of_the_caller(key):
    with pytest.raises(ValueError, match="not a key"):
        cache.lookup(key)
    with pytest.raises(ValueError, match="not a key"):
        cache.store(key, ENTRY)


# ---------------------------------------------------------------------------------------- keys

texts = st.text(max_size=8)
parts = st.dictionaries(texts, texts | st.binary(max_size=8), max_size=4)


@many
@given(parts, parts)
def test_keys_are_equal_exactly_where_the_parts_are(a, b):
    def plain(parts):
        return {k: v if isinstance(v, bytes) else v.encode() for k, v in parts.items()}

    assert (cache.key_of(a) == cache.key_of(b)) == (plain(a) == plain(b))


@many
@given(st.lists(st.tuples(texts, texts), max_size=4, unique_by=lambda pair: pair[0]))
def test_a_key_does_not_depend_on_the_order_of_the_parts(pairs):
    assert cache.key_of(dict(pairs)) == cache.key_of(dict(reversed(pairs)))


def test_pieces_cannot_be_moved_from_one_part_to_the_next():
    keys = {
        cache.key_of(p)
        for p in ({"a": "bc"}, {"ab": "c"}, {"a": "b", "c": ""}, {"a": "", "bc": ""}, {"abc": ""})
    }
    assert len(keys) == 5


def test_the_environment_names_versions_and_machine_and_is_computed_once():
    import numpy

    found = cache.environment_parts("cpu")
    assert found["numpy"] == numpy.__version__
    assert found["python"].endswith(".".join(map(str, sys.version_info[:3])))
    assert all(found[name] for name in ("ruda", "numba", "llvmlite", "cpu", "cpu features", "libc"))
    assert found is cache.environment_parts("cpu")
    assert cache.environment_parts("cuda")["target"] == "cuda"
    assert "cuda-bindings" in cache.environment_parts("cuda:0")


@pytest.mark.parametrize("package", ["numba", "llvmlite", "numpy", "pytest", "ml_dtypes"])
def test_a_version_is_the_one_that_importlib_finds(package):
    from importlib import metadata

    assert keys.package_version(package) == metadata.version(package)


def test_a_package_that_is_not_installed_is_absent():
    assert keys.package_version("ruda-no-such-package") == "absent"


def test_neither_the_key_nor_a_hit_imports_numba_or_llvmlite(file):
    code = f"""
import sys
from ruda.jit import cache
cache.environment_parts("cpu")
assert cache.lookup({KEY!r}, resolves=lambda name: True) is not None, cache.why()
sys.exit(any(m.split(".")[0] in ("numba", "llvmlite", "wgpu") for m in sys.modules))
"""
    environment = {**os.environ, "RUDA_CACHE_DIR": settings.cache_dir}
    subprocess.run([sys.executable, "-c", code], env=environment, check=True)


def test_a_switch_of_numba_changes_the_key(monkeypatch):
    def environment():
        return dict(cache.environment_parts.__wrapped__("cpu"))

    monkeypatch.setenv("NUMBA_NUM_THREADS", "1")
    before = environment()
    monkeypatch.setenv("NUMBA_NUM_THREADS", "2")
    assert environment() == before
    monkeypatch.setenv("NUMBA_CPU_NAME", "generic")
    assert environment() != before


def test_changed_code_of_ruda_changes_its_version(tmp_path, monkeypatch):
    import ruda

    monkeypatch.setattr(ruda, "__file__", str(tmp_path / "__init__.py"))
    (tmp_path / "jit").mkdir()
    (tmp_path / "dtypes.py").write_text("a = 1")
    (tmp_path / "jit" / "emit.py").write_text("b = 1")
    first = keys._ruda_version()
    (tmp_path / "jit" / "emit.py").write_text("b = 2")
    second = keys._ruda_version()
    (tmp_path / "jit" / "emit.py").rename(tmp_path / "jit" / "other.py")
    assert len({first, second, keys._ruda_version()}) == 3
    assert first.startswith(ruda.__version__)


# ---------------------------------------------------------------------------------- damage


def damaged(file):
    """Nothing but a miss, silently; then a store repairs."""
    found, messages = caught(look)
    assert found is None
    assert messages == []
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY


@many
@given(st.integers(0, 10**6))
def test_a_flipped_bit_anywhere_is_a_miss(file, position):
    bad = bytearray(file.read_bytes())
    position %= 8 * len(bad)
    bad[position // 8] ^= 1 << position % 8
    file.write_bytes(bad)
    damaged(file)


@many
@given(st.integers(0, 10**6))
def test_a_file_cut_anywhere_is_a_miss(file, length):
    good = file.read_bytes()
    file.write_bytes(good[: length % len(good)])
    damaged(file)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 11, 12, 43, 44, 47, 48, 49, -1, -240, -241])
def test_a_file_cut_at_a_boundary_is_a_miss(file, length):
    file.write_bytes(file.read_bytes()[:length])
    damaged(file)


def test_a_longer_file_is_a_miss(file):
    file.write_bytes(file.read_bytes() + b"\0")
    damaged(file)


def with_header(text, payload=b"code", version=cache.VERSION):
    rest = len(text).to_bytes(4, "little") + text + payload
    return cache.MAGIC + version.to_bytes(4, "little") + hashlib.sha256(rest).digest() + rest


HEADER = {"key": KEY, "parts": {}, "created": 15, "metadata": {}, "symbols": [], "payload": 4}


def test_a_header_written_by_this_test_is_accepted(file):
    """So that the rejections below are for the reason they name."""
    file.write_bytes(with_header(json.dumps(HEADER).encode()))
    assert look() == Entry(b"code", {}, ())


@pytest.mark.parametrize(
    "change",
    [
        {"key": cache.key_of({"another": "key"})},
        {"payload": 3},
        {"payload": 5},
        {"payload": "4"},
        {"symbols": [1]},
        {"symbols": "memcpy"},
        {"metadata": None},
        {"parts": []},
        {"created": "now"},
    ],
    ids=str,
)
def test_a_header_that_says_otherwise_is_a_miss(file, change):
    file.write_bytes(with_header(json.dumps(HEADER | change).encode()))
    damaged(file)


@pytest.mark.parametrize("name", HEADER)
def test_a_header_without_a_field_is_a_miss(file, name):
    file.write_bytes(
        with_header(json.dumps({k: v for k, v in HEADER.items() if k != name}).encode())
    )
    damaged(file)


@pytest.mark.parametrize("text", [b"", b"[]", b"{", b"\xff", b"[" * 100000, b"null", b"1"])
def test_a_header_that_is_not_an_object_is_a_miss(file, text):
    file.write_bytes(with_header(text))
    damaged(file)


def test_another_format_version_is_a_miss_that_names_it(file):
    file.write_bytes(with_header(json.dumps(HEADER).encode(), version=cache.VERSION + 1))
    assert look() is None
    assert f"format {cache.VERSION + 1}" in reason()
    damaged(file)


def test_the_header_length_cannot_reach_past_the_file(file):
    rest = (2**32 - 1).to_bytes(4, "little") + b"{}"
    start = cache.MAGIC + cache.VERSION.to_bytes(4, "little")
    file.write_bytes(start + hashlib.sha256(rest).digest() + rest)
    assert [e.problem != "" for e in cache.entries()] == [True]
    damaged(file)


def test_an_entry_under_another_key_s_name_is_a_miss(file):
    other = cache.key_of({"another": "kernel"})
    file.rename(file.with_name(f"{other}.ruda"))
    assert look(other) is None
    assert "another key" in reason()
    assert [e.problem for e in cache.entries()] == [reason()]


def test_an_unknown_external_symbol_is_a_miss_that_names_it(file):
    asked = []
    found = cache.lookup(KEY, resolves=lambda name: asked.append(name) or name != "expf")
    assert found is None
    assert asked == ["memcpy", "expf"]
    assert "expf" in reason()
    assert "memcpy" not in reason()
    assert cache.lookup(KEY) is None  # without a resolver nothing is allowed
    assert look() == ENTRY


# ------------------------------------------------------------------------ owners, modes, links


def distrusted(file, message):
    """A miss with one warning, and nothing is handed out the second time either."""
    found, messages = caught(look)
    assert found is None
    assert len(messages) == 1
    assert message in messages[0]
    assert caught(look) == (None, [])
    assert cache.statistics()["rejected"] == 2


@posix
@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o602, 0o666, 0o610, 0o777])
def test_a_file_that_others_have_rights_to_is_refused_and_repaired(file, mode):
    file.chmod(mode)
    distrusted(file, "others have rights")
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY


@posix
@pytest.mark.parametrize("mode", [0o770, 0o707, 0o750, 0o705, 0o720, 0o777, 0o1777])
def test_a_folder_that_others_have_rights_to_is_refused(file, mode):
    file.parent.chmod(mode)
    distrusted(file, "chmod go-rwx")
    cache.store(cache.key_of({"b": ""}), ENTRY)
    assert cache.statistics()["failed"] == 1
    file.parent.chmod(0o700)
    assert look() == ENTRY
    assert len(list(file.parent.iterdir())) == 1


@posix
def test_another_user_s_file_and_folder_are_refused(file, monkeypatch):
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    distrusted(file, "belongs to user")
    cache.store(cache.key_of({"b": ""}), ENTRY)
    assert cache.statistics()["failed"] == 1


@posix
@pytest.mark.skipif(os.name != "posix" or os.geteuid() != 0, reason="only root gives files away")
def test_a_file_really_owned_by_another_user_is_refused_and_repaired(file):
    os.chown(file, 65534, -1)
    distrusted(file, "belongs to user 65534")
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY


@posix
def test_a_symbolic_link_is_not_followed(file, tmp_path):
    elsewhere = tmp_path / "elsewhere"
    file.rename(elsewhere)
    file.symlink_to(elsewhere)
    distrusted(file, "cannot be opened")
    content = elsewhere.read_bytes()
    cache.store(KEY, Entry(b"new", {}))
    assert look().payload == b"new"
    assert not file.is_symlink()
    assert elsewhere.read_bytes() == content  # a store replaces the link, not what it points to


@posix
def test_a_folder_that_is_a_symbolic_link_is_refused(file, tmp_path):
    file.parent.rename(tmp_path / "elsewhere")
    file.parent.symlink_to(tmp_path / "elsewhere")
    distrusted(file, "folder cannot be used")
    assert caught(cache.clear)[0] == 0
    assert (tmp_path / "elsewhere" / file.name).exists()


@posix
def test_a_pipe_or_a_folder_in_place_of_an_entry_is_refused_without_waiting(file):
    file.unlink()
    os.mkfifo(file, 0o600)
    distrusted(file, "not a regular file")
    cache.store(KEY, ENTRY, parts=PARTS)
    assert look() == ENTRY
    file.unlink()
    file.mkdir(mode=0o700)
    assert look() is None
    assert "not a regular file" in reason()
    with pytest.warns(CacheWarning, match="cannot be stored"):
        cache.store(KEY, ENTRY)
    assert [f.name for f in file.parent.iterdir()] == [file.name]  # no temporary file is left


def test_one_warning_for_each_kind(file):
    file.chmod(0o666)
    other = file.with_name(cache.key_of({"b": ""}) + ".ruda")
    other.write_bytes(b"")
    other.chmod(0o666)
    assert len(caught(look)[1]) == 1
    assert len(caught(lambda: cache.lookup(other.stem))[1]) == 0
    file.unlink()
    file.symlink_to(other)
    assert len(caught(look)[1]) == 1


# ------------------------------------------------------------------------- places that do not serve


def useless(message):
    """One warning, then silence; nothing stored, nothing found, nothing raised."""
    _, messages = caught(lambda: (cache.store(KEY, ENTRY), cache.store(KEY, ENTRY)))
    assert len(messages) == 1
    assert message in messages[0]
    assert caught(look)[0] is None
    assert cache.statistics()["stores"] == 0
    assert caught(lambda: (cache.clear(), cache.entries(), cache.why()))[0][:2] == (0, [])
    return messages[0]


@pytest.mark.parametrize("path", ["relative", ".", "./cache", "sub/dir"])
def test_a_relative_folder_is_refused(path, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(settings.base, "cache_dir", path)
    useless("not an absolute path")
    assert list(tmp_path.iterdir()) == []


def test_a_relative_home_or_xdg_folder_does_not_lead_to_the_working_directory(
    monkeypatch, tmp_path
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(settings.base, "cache_dir", "")
    monkeypatch.setenv("XDG_CACHE_HOME", "xdg")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert cache.directory() == str(tmp_path / "home" / ".cache" / "ruda" / "kernels")
    monkeypatch.setenv("HOME", ".")
    useless("not an absolute path")
    assert list(tmp_path.iterdir()) == []


def test_xdg_cache_home_is_used(monkeypatch, tmp_path):
    monkeypatch.setitem(settings.base, "cache_dir", "")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache.directory() == str(tmp_path / "ruda" / "kernels")


@posix
def test_without_home_the_password_file_decides_and_without_either_it_is_off(monkeypatch):
    import pwd

    monkeypatch.setitem(settings.base, "cache_dir", "")
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    monkeypatch.delenv("HOME", raising=False)
    home = pwd.getpwuid(os.getuid()).pw_dir
    assert cache.directory() == os.path.join(home, ".cache", "ruda", "kernels")

    def nobody(uid):
        raise KeyError(uid)

    monkeypatch.setattr(pwd, "getpwuid", nobody)
    assert "RUDA_CACHE_DIR" in useless("no home folder")


def test_a_file_in_place_of_the_folder(folder):
    folder.parent.mkdir()
    folder.write_text("a file")
    useless("folder cannot be used")
    assert folder.read_text() == "a file"


def test_a_file_in_place_of_a_parent(folder):
    folder.parent.write_text("a file")
    useless("folder cannot be used")


@posix
def test_a_dangling_link_in_place_of_a_parent(folder, tmp_path):
    folder.parent.symlink_to(tmp_path / "not mounted")
    useless("folder cannot be made")


def test_a_path_that_the_system_refuses(monkeypatch):
    monkeypatch.setitem(settings.base, "cache_dir", "/tmp/" + "a" * 300)
    useless("folder cannot be used")
    cache._state.warned.clear()
    monkeypatch.setitem(settings.base, "cache_dir", "/tmp/a\0b")
    useless("folder cannot be used")


@posix
def test_a_folder_that_cannot_be_written_still_serves_what_it_holds():
    """As an ordinary user: root writes everywhere."""
    import tempfile

    uid = 65534 if os.geteuid() == 0 else os.geteuid()
    with tempfile.TemporaryDirectory() as base:  # pytest's own folder is closed to other users
        if os.geteuid() == 0:
            os.chown(base, uid, uid)
        settings.base["cache_dir"] = base  # the fixture puts it back

        def work():
            cache.store(KEY, ENTRY, parts=PARTS)
            os.chmod(cache.directory(), 0o500)
            other = cache.key_of({"other": ""})
            _, messages = caught(lambda: (cache.store(other, ENTRY), cache.store(other, ENTRY)))
            result = [look() == ENTRY, messages, cache.statistics()["entries"]]
            result += [*caught(cache.clear), cache.statistics()["entries"]]
            os.chmod(cache.directory(), 0o700)
            return result

        found, messages, before, removed, clearing, after = in_child(
            work, uid if os.geteuid() == 0 else None
        )
    assert found
    assert len(messages) == 1
    assert "cannot be stored" in messages[0]
    assert (before, removed, after) == (1, 0, 1)
    assert "cannot be removed" in clearing[0]


@posix
def test_a_full_disk_leaves_no_half_written_file(folder):
    import resource

    def work():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        cache.store(KEY, Entry(b"small", {}))
        resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))
        other = cache.key_of({"other": ""})
        store = Entry(bytes(100_000), {})
        _, messages = caught(lambda: (cache.store(other, store), cache.store(other, store)))
        return [messages, os.listdir(folder), cache.statistics()]

    messages, names, counts = in_child(work)
    assert len(messages) == 1
    assert "cannot be stored" in messages[0]
    assert names == [f"{KEY}.ruda"]
    assert (counts["stores"], counts["failed"]) == (1, 2)


def test_a_folder_removed_while_in_use_is_made_again(file):
    import shutil

    shutil.rmtree(file.parent.parent)
    assert caught(look) == (None, [])
    cache.store(KEY, ENTRY)
    assert look() == ENTRY


def test_a_folder_removed_while_a_store_is_under_way_is_made_again(folder, monkeypatch):
    find, removed = cache._trusted_folder, []

    def find_and_remove(create=False):
        path = find(create)
        if not removed:
            os.rmdir(path)
            removed.append(path)
        return path

    monkeypatch.setattr(cache, "_trusted_folder", find_and_remove)
    assert caught(lambda: cache.store(KEY, ENTRY)) == (None, [])
    assert removed
    assert look() == ENTRY


def test_a_warning_turned_into_an_error_leaves_nothing_behind(file):
    file.unlink()
    file.mkdir()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with pytest.raises(CacheWarning):
            cache.store(KEY, ENTRY)
        cache.store(KEY, ENTRY)
    assert [f.name for f in file.parent.iterdir()] == [file.name]


# ----------------------------------------------------------------------- size, trimming, clearing


def store_many(count, payload=1000):
    keys = [cache.key_of({"i": str(i)}) for i in range(count)]
    for age, key in enumerate(keys):
        cache.store(key, Entry(bytes(payload), {}))
        path = os.path.join(cache.directory(), key + ".ruda")
        if os.path.exists(path):
            os.utime(path, (1e9 + age, 1e9 + age))
    return keys


def test_over_the_limit_the_least_recently_used_go(folder, monkeypatch):
    keys = store_many(10)
    size = (folder / f"{keys[0]}.ruda").stat().st_size
    monkeypatch.setitem(settings.base, "cache_bytes", 10 * size)
    assert cache.lookup(keys[0]) is not None  # the oldest becomes the newest
    cache.store(KEY, Entry(bytes(1000), {}))
    left = {f.stem for f in folder.iterdir()}
    assert left == {keys[0], KEY, *keys[3:]}  # to 90 % of the limit
    assert cache.statistics()["trimmed"] == 2


def test_the_first_store_of_a_process_counts_what_others_left(folder, monkeypatch):
    keys = store_many(10)
    size = (folder / f"{keys[0]}.ruda").stat().st_size
    monkeypatch.setitem(settings.base, "cache_bytes", 5 * size)
    monkeypatch.setattr(cache, "_state", cache._State())
    cache.store(KEY, Entry(bytes(1000), {}))
    assert {f.stem for f in folder.iterdir()} == {KEY, *keys[7:]}


@many
@given(st.lists(st.integers(0, 3000), min_size=1, max_size=12), st.integers(1000, 6000))
def test_the_folder_stays_within_its_limit(folder, sizes, limit):
    cache.clear()
    settings.base["cache_bytes"], before = limit, settings.base["cache_bytes"]
    try:
        for i, size in enumerate(sizes):
            key = cache.key_of({"i": str(i)})
            cache.store(key, Entry(bytes(size), {}))
            assert cache.statistics()["bytes"] <= limit
        found = cache.lookup(key) is not None
        assert found if size < limit - 300 else not found or size < limit
    finally:
        settings.base["cache_bytes"] = before


def test_what_is_larger_than_the_limit_is_not_stored_and_drives_nothing_out(file, monkeypatch):
    monkeypatch.setitem(settings.base, "cache_bytes", 2000)
    large = cache.key_of({"large": ""})
    cache.store(large, Entry(bytes(3000), {}))
    assert cache.lookup(large) is None
    assert look() == ENTRY


def test_temporary_files_of_dead_processes_are_removed_and_fresh_ones_kept(file, monkeypatch):
    old, fresh = file.with_name("a.tmp"), file.with_name("b.tmp")
    for path in (old, fresh):
        path.write_bytes(b"half")
    os.utime(old, (1, 1))
    monkeypatch.setattr(cache, "_state", cache._State())
    cache.store(KEY, ENTRY, parts=PARTS)
    assert not old.exists()
    assert fresh.exists()
    os.utime(fresh, (1, 1))
    assert cache.clear() == 1
    assert list(file.parent.iterdir()) == []


def test_trimming_that_fails_does_not_raise(folder, monkeypatch):
    store_many(5)
    monkeypatch.setitem(settings.base, "cache_bytes", 2000)
    monkeypatch.setattr(cache, "_state", cache._State())

    def refuse(path):
        raise PermissionError(path)

    monkeypatch.setattr(os, "unlink", refuse)
    cache.store(KEY, Entry(b"", {}))
    assert len(list(folder.iterdir())) == 6


def test_clear_removes_only_ours(file):
    note = file.with_name("note.txt")
    note.write_text("mine")
    cache.store(cache.key_of({"b": ""}), ENTRY)
    assert cache.clear() == 2
    assert [f.name for f in file.parent.iterdir()] == ["note.txt"]
    assert cache.clear() == 0
    assert look() is None


def test_clear_of_one_kernel(file):
    other = {**PARTS, "name": "m.other"}
    cache.store(cache.key_of(other), ENTRY, parts=other)
    assert cache.clear("m.saxpy") == 1
    assert look() is None
    assert look(cache.key_of(other), other) == ENTRY


def test_entries_tell_name_parts_size_and_use(file):
    other = {**PARTS, "name": "m.other"}
    cache.store(cache.key_of(other), ENTRY, parts=other)
    os.utime(file, (1e9, 1e9))
    newest, oldest = cache.entries()
    assert (newest.name, oldest.name, oldest.key) == ("m.other", "m.saxpy", KEY)
    assert oldest.parts["types"] == "float32[:]"
    assert oldest.parts["ir"].startswith("sha256:")
    assert (oldest.size, oldest.used, oldest.problem) == (file.stat().st_size, 1e9, "")
    assert abs(oldest.created - time.time()) < 60
    file.write_bytes(file.read_bytes()[:-1])
    assert {e.name: bool(e.problem) for e in cache.entries()} == {"m.other": False, "m.saxpy": True}
    file.write_bytes(b"")
    assert {e.name: bool(e.problem) for e in cache.entries()} == {"m.other": False, "": True}


# ------------------------------------------------------------------------- processes and threads

WORKER = """
import sys
from ruda.jit import cache
key, byte = cache.key_of({"shared": ""}), int(sys.argv[1])
found = set()
for i in range(400):
    cache.store(key, cache.Entry(bytes([byte]) * (1000 + 977 * (i % 50)), {"byte": byte}))
    entry = cache.lookup(key)
    assert entry is not None, cache.why()
    assert set(entry.payload) == {entry.metadata["byte"]}
    found.add(entry.metadata["byte"])
assert not cache.statistics()["failed"], cache.statistics()
"""


def start(code, *arguments):
    environment = {**os.environ, "RUDA_CACHE_DIR": settings.cache_dir, "RUDA_CACHE": "1"}
    return subprocess.Popen(
        [sys.executable, "-W", "error::UserWarning", "-c", code, *arguments],
        env=environment,
        stderr=subprocess.PIPE,
        text=True,
    )


def finish(process):
    try:
        _, errors = process.communicate(timeout=60)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert errors == ""


def test_two_processes_store_and_read_the_same_key(folder):
    workers = [start(WORKER, "1"), start(WORKER, "2")]
    for worker in workers:
        finish(worker)
    assert len(list(folder.iterdir())) == 1


READER = """
import sys
from ruda.jit import cache
key = cache.key_of({"shared": ""})
found = [0, 0]
while found[0] < 50 or found[1] < 50:
    entry = cache.lookup(key)
    found[entry is None] += 1
    assert entry is None or entry.payload == bytes(200_000)
assert not cache.statistics()["rejected"], cache.why()
"""


def test_clearing_while_another_process_reads():
    reader = start(READER)
    key = cache.key_of({"shared": ""})
    deadline = time.monotonic() + 60
    while reader.poll() is None and time.monotonic() < deadline:
        cache.store(key, Entry(bytes(200_000), {}))
        time.sleep(0.002)
        cache.clear()
        time.sleep(0.001)
    finish(reader)


def test_a_clear_between_writers_is_not_an_error():
    code = WORKER.replace("assert entry is not None, cache.why()", "if entry is None: continue")
    workers = [start(code, "1"), start(code, "2")]
    while any(worker.poll() is None for worker in workers):
        cache.clear()
    for worker in workers:
        finish(worker)


def test_threads_store_look_up_and_clear_at_once(folder):
    keys = [cache.key_of({"i": str(i)}) for i in range(4)]
    errors = []

    def work(seed):
        try:
            for i in range(150):
                key = keys[(i + seed) % 4]
                cache.store(key, Entry(key.encode() * 20, {}))
                entry = cache.lookup(key)
                assert entry is None or entry.payload == key.encode() * 20
                if i % 50 == 49:
                    cache.clear()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    counts = cache.statistics()
    assert counts["stores"] == 600
    assert counts["hits"] + counts["misses"] == 600
    assert (counts["failed"], counts["rejected"]) == (0, 0)
    assert not list(folder.glob("*.tmp"))


@posix
def test_a_child_forked_while_the_lock_is_held_works(file):
    def work():
        cache.store(cache.key_of({"child": ""}), ENTRY)
        return [look() == ENTRY, cache.statistics()["entries"]]

    with cache._state.lock:
        assert in_child(work) == [True, 2]


# -------------------------------------------------------------------------------------- why


def changed(**changes):
    new = {**PARTS, **changes}
    assert look(cache.key_of(new), new) is None
    return cache.why("m.saxpy").splitlines()[-1]


def test_why_before_anything():
    assert "not looked up" in cache.why("m.saxpy")
    assert "no kernel was looked up" in cache.why()


def test_why_a_hit_and_a_first_miss(file):
    cache.lookups()
    assert cache.why("m.saxpy").startswith("m.saxpy (cpu, float32[:]): hit: 240 bytes")
    other = {**PARTS, "name": "m.other"}
    assert look(cache.key_of(other), other) is None
    assert cache.why("m.other").endswith("miss: nothing was stored for this kernel")
    assert len(cache.why().splitlines()) == 2


@pytest.mark.parametrize(
    ("part", "value", "sentence"),
    [
        ("ir", "y" * 1000, "the source or a captured value changed"),
        ("types", "float64[:]", "the argument types changed: float32[:] -> float64[:]"),
        ("numba", "2", "numba changed: 1 -> 2"),
        ("cpu", "Zen 9", "the CPU changed: nothing -> Zen 9"),
        ("numba", "", "numba changed: 1 -> nothing"),
        ("cpu features", b"\0", "the CPU's features changed"),
    ],
)
def test_why_names_the_part_that_differs(file, part, value, sentence):
    assert changed(**{part: value}).endswith(f": miss: {sentence}")


def test_why_compares_with_the_nearest_entry(file):
    far = {**PARTS, "ir": "z" * 1000, "numba": "0", "types": "int8"}
    cache.store(cache.key_of(far), ENTRY, parts=far)
    assert changed(numba="2").endswith("miss: numba changed: 1 -> 2")
    assert changed(numba="2", ir="w" * 500).endswith(
        "miss: the source or a captured value changed; numba changed: 1 -> 2"
    )


def test_why_does_not_compare_with_what_the_miss_led_to(file):
    new = {**PARTS, "numba": "2"}
    key = cache.key_of(new)
    assert look(key, new) is None
    later = {**PARTS, "numba": "2", "options": "fastmath"}
    cache.store(key, ENTRY, parts=new)
    cache.store(cache.key_of(later), ENTRY, parts=later)
    assert cache.why("m.saxpy").splitlines()[-1].endswith("miss: numba changed: 1 -> 2")


def test_why_tells_of_damage_and_of_distrust(file):
    file.write_bytes(file.read_bytes()[:-1])
    look()
    assert "miss: the entry is damaged" in cache.why("m.saxpy")


def test_why_takes_the_kernel_itself(file):
    def kernel():
        pass

    name = f"{__name__}.test_why_takes_the_kernel_itself.<locals>.kernel"
    parts = {**PARTS, "name": name}
    look(cache.key_of(parts), parts)
    assert cache.why(kernel).startswith(name)


def test_the_record_is_bounded():
    for _ in range(600):
        cache.lookup(KEY)
    assert len(cache.lookups()) == 512
