"""Keep compiled kernels on disk, so that a process starts with the code that an earlier one made.

An entry is native code, so it is trusted as code is. The folder is the user's alone (0700), so is
each file (0600); both are checked on what was opened, not on its name. A file says what it is
before anybody looks inside:

    magic, format version, SHA-256 of the rest, length of the header
    header as JSON: key, parts, created, metadata, external symbols, payload length
    payload

The key is made in `ruda.jit.keys`. The parts it is made of stand in the header in short form, so
that `why` can name the one that differs.

Whatever is wrong with an entry makes it a miss, which the next `store` repairs; whatever is wrong
with the folder makes every lookup a miss, with one warning. Neither stops work. Writers never
change a file: they make a new one and rename it, so processes need no lock among them.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import struct
import threading
import time
import warnings
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from ruda.errors import CacheWarning
from ruda.jit.keys import Parts, environment_parts, key_of, name_of, sha256, short_parts
from ruda.settings import cache_directory, settings

__all__ = [
    "Entry", "Info", "Lookup", "clear", "directory", "entries", "environment_parts", "key_of",
    "lookup", "lookups", "name_of", "statistics", "store", "why",
]  # fmt: skip

MAGIC = b"rudacode"
VERSION = 1
PREFIX = struct.Struct("<8sI32sI")  # magic, version, SHA-256 of what follows it, header length
_HASHED_FROM = PREFIX.size - 4  # the header's length is hashed too

FOLDER = "kernels"  # inside `settings.cache_directory()`
RUNTIME = "runtime"  # beside it: code of ruda's own, which neither counts nor is listed
RUNTIME_BYTES = 1 << 20  # that folder's limit: some versions of the little code that there is
SUFFIX, TEMPORARY = ".ruda", ".tmp"
_STALE_SECONDS = 3600  # a temporary file older than this belonged to a process that died
_TRIM_TO = 0.9  # of the limit, so that not every store trims
_NOFOLLOW = getattr(os, "O_NOFOLLOW", 0)
_NONBLOCK = getattr(os, "O_NONBLOCK", 0)  # opening a pipe that lies in the folder must not wait
_DIRECTORY = getattr(os, "O_DIRECTORY", 0)
_BINARY = getattr(os, "O_BINARY", 0)


@dataclass(frozen=True, slots=True)
class Entry:
    """Compiled code, what its backend wants to remember about it, and the symbols it links to."""

    payload: bytes
    metadata: dict[str, Any]  # JSON
    symbols: tuple[str, ...] = ()


class Info(NamedTuple):
    """What `entries` tells of one file."""

    key: str
    name: str
    parts: dict[str, str]
    size: int  # bytes of the file
    created: float
    used: float
    problem: str  # why the file would be rejected; empty if nothing is known against it


class Lookup(NamedTuple):
    """What became of one lookup in this process."""

    key: str
    parts: dict[str, str]
    hit: bool
    reason: str
    time: float


class _Miss(Exception):
    """Why there is nothing to hand out. `warn` names the kind of trouble, if the user can act."""

    def __init__(self, reason: str, warn: str = "") -> None:
        super().__init__(reason)
        self.warn = warn


NOT_STORED = "it was not stored"
OFF = "the cache is off (RUDA_CACHE=0)"


# ------------------------------------------------------------------------- this process's state


class _State:
    """What this process remembers: counts, the last lookups, what was warned of."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.counts: Counter[str] = Counter()
        self.lookups: deque[Lookup] = deque(maxlen=512)
        self.warned: set[str] = set()
        self.sizes: dict[str, int] = {}  # folder -> bytes in it, as far as this process knows

    def count(self, name: str) -> None:
        with self.lock:
            self.counts[name] += 1

    def after_fork(self) -> None:
        self.lock = threading.Lock()  # another thread of the parent may have held it


_state = _State()
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=lambda: _state.after_fork())


def _warn(kind: str, message: str) -> None:
    """Warn once per process and kind."""
    with _state.lock:
        if kind in _state.warned:
            return
        _state.warned.add(kind)
    warnings.warn(f"kernel cache: {message}", CacheWarning, stacklevel=3)


# -------------------------------------------------------------------------------------- folder


def directory(name: str = FOLDER) -> str:
    """The folder of the entries; `OSError` if there is no place for one."""
    try:
        base = os.fspath(cache_directory())
    except RuntimeError as error:  # no HOME, and no entry in the password file
        raise OSError(f"no home folder ({error}); set RUDA_CACHE_DIR") from None
    if not os.path.isabs(base):
        # Code found by chance in the working directory would be run.
        raise OSError(f"{base!r} is not an absolute path; set RUDA_CACHE_DIR to one")
    return os.path.join(base, name)


def _trusted_folder(create: bool = False, name: str = FOLDER) -> str:
    """The folder, opened and found to be the user's alone; else a miss."""
    try:
        path = directory(name)
        if create:
            _make_folders(path)
        status = _folder_status(path)
    except FileNotFoundError as error:
        if not create:
            raise _Miss(NOT_STORED) from None
        raise _Miss(f"the folder cannot be made: {error}", "folder") from None
    except (OSError, ValueError) as error:  # also a file or a symbolic link of that name
        raise _Miss(f"the folder cannot be used: {error}", "folder") from None
    _check_owner(path, status)
    return path


def _folder_status(path: str) -> os.stat_result:
    if os.name == "nt":  # there a folder cannot be opened
        return os.stat(path)
    descriptor = os.open(path, os.O_RDONLY | _DIRECTORY | _NOFOLLOW)
    try:
        return os.fstat(descriptor)
    finally:
        os.close(descriptor)


def _make_folders(path: str) -> None:
    if os.path.isdir(path):
        return
    parent = os.path.dirname(path)
    if parent != path:
        _make_folders(parent)
    with contextlib.suppress(FileExistsError):  # another process; or a file, as opening will tell
        os.mkdir(path, 0o700)


def _check_owner(path: str, status: os.stat_result) -> None:
    if os.name == "nt":  # there the profile's folder has an access list
        return
    if status.st_uid != os.geteuid():
        message = f"{path} belongs to user {status.st_uid}, and this process is {os.geteuid()}"
        raise _Miss(f"{message}: not used", "owner")
    if status.st_mode & 0o077:
        message = f"others have rights to {path} (mode {stat.S_IMODE(status.st_mode):04o})"
        raise _Miss(f"{message}: not used; if all in it is yours, `chmod go-rwx` it", "mode")


# --------------------------------------------------------------------------------------- files


def _pack(key: str, entry: Entry, parts: Mapping[str, str]) -> bytes:
    import json

    header = {
        "key": key,
        "parts": dict(parts),
        "created": time.time_ns(),
        "metadata": entry.metadata,
        "symbols": list(entry.symbols),
        "payload": len(entry.payload),
    }
    text = json.dumps(header, separators=(",", ":")).encode()
    rest = len(text).to_bytes(4, "little") + text + entry.payload
    return MAGIC + VERSION.to_bytes(4, "little") + sha256(rest).digest() + rest


def _open(path: str) -> tuple[int, os.stat_result]:
    """A descriptor of a file that may be trusted, and its status."""
    try:
        descriptor = os.open(path, os.O_RDONLY | _NOFOLLOW | _NONBLOCK | _BINARY)
    except FileNotFoundError:
        raise _Miss(NOT_STORED) from None
    except OSError as error:  # also a symbolic link
        raise _Miss(f"the entry cannot be opened: {error}", "open") from None
    try:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode):
            raise _Miss(f"{path} is not a regular file", "kind")
        _check_owner(path, status)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, status


def _read(descriptor: int, size: int) -> bytes:
    pieces = []
    while size > 0 and (piece := os.read(descriptor, min(size, 1 << 26))):
        pieces.append(piece)
        size -= len(piece)
    return b"".join(pieces)


def _header_length(data: bytes) -> int:
    if len(data) < PREFIX.size:
        raise _Miss("the entry is damaged: it is too short")
    magic, version, _, length = PREFIX.unpack_from(data)
    if magic != MAGIC:
        raise _Miss("the entry is damaged: it does not begin as an entry does")
    if version != VERSION:
        raise _Miss(f"the entry has format {version}, this ruda reads {VERSION}")
    return int(length)


def _unpack_header(data: bytes, length: int) -> dict[str, Any]:
    import json

    kinds = {"key": str, "parts": dict, "created": int, "metadata": dict, "symbols": list}
    try:
        header = json.loads(data[PREFIX.size : PREFIX.size + length])
    except (ValueError, RecursionError):
        raise _Miss("the entry is damaged: its header is not JSON") from None
    if not isinstance(header, dict) or not all(
        isinstance(header.get(name), kind) for name, kind in {**kinds, "payload": int}.items()
    ):
        raise _Miss("the entry is damaged: its header is incomplete")
    if not all(isinstance(name, str) for name in header["symbols"]):
        raise _Miss("the entry is damaged: its header is incomplete")
    return header


def _unpack(data: bytes, key: str) -> Entry:
    length = _header_length(data)
    if sha256(data[_HASHED_FROM:]).digest() != data[_HASHED_FROM - 32 : _HASHED_FROM]:
        raise _Miss("the entry is damaged: its SHA-256 does not match")
    header = _unpack_header(data, length)
    payload = data[PREFIX.size + length :]
    if header["key"] != key:
        raise _Miss("the entry is damaged: it is another key's")
    if header["payload"] != len(payload):
        raise _Miss("the entry is damaged: its payload has another length")
    return Entry(payload, header["metadata"], tuple(header["symbols"]))


# ------------------------------------------------------------------------------ lookup and store


def _no_symbol(name: str) -> bool:
    return False


def lookup(
    key: str, *, parts: Parts | None = None, resolves: Callable[[str], bool] = _no_symbol
) -> Entry | None:
    """The entry of a key, or None.

    `resolves` says whether an external symbol may be linked and exists here; an entry that names
    any other is a miss, since loading it would end the process. `parts` are what the key was made
    of, for `why`.
    """
    _check_key(key)
    entry, warn = None, ""
    try:
        if not settings.cache:
            raise _Miss(OFF)
        path = os.path.join(_trusted_folder(), key + SUFFIX)
        entry = _load(path, key, resolves)
        reason = f"{len(entry.payload)} bytes from {path}"
    except _Miss as miss:
        reason, warn = str(miss), miss.warn
    with _state.lock:
        _state.counts["hits" if entry else "misses"] += 1
        _state.counts["rejected"] += not entry and reason not in (NOT_STORED, OFF)
        _state.lookups.append(
            Lookup(key, short_parts(parts or {}), entry is not None, reason, time.time())
        )
    if warn:
        _warn(warn, reason)
    return entry


def _load(path: str, key: str, resolves: Callable[[str], bool]) -> Entry:
    descriptor, status = _open(path)
    try:
        entry = _unpack(_read(descriptor, status.st_size), key)
        if unknown := [name for name in entry.symbols if not resolves(name)]:
            raise _Miss(f"the entry links to {', '.join(unknown)}, which is not offered here")
        _touch(descriptor)
    except (OSError, MemoryError) as error:
        raise _Miss(f"the entry cannot be read: {error}", "read") from None
    finally:
        os.close(descriptor)
    return entry


def _touch(descriptor: int) -> None:
    """Make now the time of the last use, which is the modification time."""
    if os.utime in os.supports_fd:
        with contextlib.suppress(OSError):  # a read-only folder serves as well
            os.utime(descriptor)


def store(key: str, entry: Entry, *, parts: Parts | None = None) -> None:
    """Keep an entry. A folder that cannot be written is warned of once, and nothing is kept."""
    _check_key(key)
    if not settings.cache:
        return
    data = _pack(key, entry, short_parts(parts or {}))
    if len(data) > settings.cache_bytes:
        return
    try:
        try:
            folder = _write(_trusted_folder(create=True), key, data)
        except FileNotFoundError:  # somebody removed the folder meanwhile
            folder = _write(_trusted_folder(create=True), key, data)
    except (_Miss, OSError) as error:
        _state.count("failed")
        _warn(getattr(error, "warn", "write"), f"a kernel cannot be stored: {error}")
    else:
        _state.count("stores")
        _trim_when_full(folder, len(data))


def _write(folder: str, key: str, data: bytes) -> str:
    """Write an entry's file under another name, then rename it; the folder."""
    temporary = os.path.join(folder, f"{os.urandom(16).hex()}{TEMPORARY}")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | _NOFOLLOW | _BINARY
    descriptor = os.open(temporary, flags, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
        os.replace(temporary, os.path.join(folder, key + SUFFIX))
    except BaseException:
        _remove(temporary)
        raise
    return folder


def recall(key: str) -> Entry | None:
    """Code of ruda's own that `keep` has stored. The caller checks its symbols."""
    _check_key(key)
    if not settings.cache:
        return None
    try:
        path = os.path.join(_trusted_folder(name=RUNTIME), key + SUFFIX)
        return _load(path, key, lambda symbol: True)
    except _Miss:
        return None


def keep(key: str, entry: Entry, *, parts: Parts) -> None:
    """Keep code of ruda's own; it is compiled anew where it cannot be written."""
    _check_key(key)
    if not settings.cache:
        return
    data = _pack(key, entry, short_parts(parts))
    with contextlib.suppress(_Miss, OSError):
        folder = _write(_trusted_folder(create=True, name=RUNTIME), key, data)
        _trim(folder, RUNTIME_BYTES)


def _check_key(key: str) -> None:
    if not re.fullmatch(r"[0-9a-f]{64}", key):
        raise ValueError(f"{key!r} is not a key: 64 hexadecimal digits, as `key_of` makes")


# --------------------------------------------------------------------------- trimming and clearing


def _files(folder: str) -> Iterator[tuple[str, os.stat_result]]:
    """Every file of the folder that is ours by its name, temporary ones too."""
    with contextlib.suppress(OSError), os.scandir(folder) as found:
        for item in found:
            if item.name.endswith((SUFFIX, TEMPORARY)):
                with contextlib.suppress(OSError):  # removed meanwhile
                    yield item.path, item.stat(follow_symlinks=False)


def _remove(path: str) -> OSError | None:
    try:
        os.unlink(path)
    except OSError as error:
        return error
    return None


def _trim_when_full(folder: str, added: int) -> None:
    with _state.lock:
        size = _state.sizes.get(folder)
        if size is not None:
            size += added
            _state.sizes[folder] = size
    if size is None or size > settings.cache_bytes:
        size = _trim(folder, settings.cache_bytes)
        with _state.lock:
            _state.sizes[folder] = size


def _trim(folder: str, limit: int) -> int:
    """Remove what was used longest ago until the folder is within its limit; the bytes left."""
    now, kept, size = time.time(), [], 0
    for path, status in _files(folder):
        if path.endswith(TEMPORARY) and now - status.st_mtime > _STALE_SECONDS:
            _remove(path)
            continue
        size += status.st_size
        if path.endswith(SUFFIX):
            kept.append((status.st_mtime_ns, path, status.st_size))
    if size <= limit:
        return size
    for _, path, length in sorted(kept)[:-1]:  # the one just stored stays
        if size <= _TRIM_TO * limit:
            break
        if _remove(path) is None:
            _state.count("trimmed")
        size -= length  # also when another process removed it
    return size


def clear(kernel: Any = None) -> int:
    """Remove all entries, or those of one kernel; how many.

    Other processes may go on: who has opened an entry keeps it, who stores one makes it anew.
    """
    try:
        folder = _trusted_folder()
    except _Miss as miss:
        if miss.warn:
            _warn(miss.warn, str(miss))
        return 0
    keys = None if kernel is None else {e.key for e in entries() if e.name == name_of(kernel)}
    removed, left = 0, []
    for path, status in list(_files(folder)):
        if path.endswith(TEMPORARY):
            if time.time() - status.st_mtime > _STALE_SECONDS:
                _remove(path)
        elif keys is None or os.path.basename(path).removesuffix(SUFFIX) in keys:
            error = _remove(path)
            if error is None:
                removed += 1
            elif not isinstance(error, FileNotFoundError):  # another process was faster
                left.append(error)
    if left:
        _warn("clear", f"{len(left)} entries cannot be removed: {left[0]}")
    with _state.lock:
        _state.sizes.pop(folder, None)
    return removed


# ------------------------------------------------------------------------------- looking inside


def entries() -> list[Info]:
    """What the folder holds, last used first. Headers are read, payloads are not checked."""
    try:
        folder = _trusted_folder()
    except _Miss as miss:
        if miss.warn:
            _warn(miss.warn, str(miss))
        return []
    found = [_info(path, status) for path, status in _files(folder) if path.endswith(SUFFIX)]
    return sorted(found, key=lambda info: info.used, reverse=True)


def _info(path: str, status: os.stat_result) -> Info:
    key = os.path.basename(path).removesuffix(SUFFIX)
    header: dict[str, Any] = {}
    problem = ""
    try:
        descriptor, status = _open(path)
        try:
            data = _read(descriptor, PREFIX.size)
            length = min(_header_length(data), status.st_size)
            header = _unpack_header(data + _read(descriptor, length), length)
        finally:
            os.close(descriptor)
        if header["key"] != key:
            header, problem = {}, "the entry is damaged: it is another key's"
        elif PREFIX.size + length + header["payload"] != status.st_size:
            problem = "the entry is damaged: its payload has another length"
    except (_Miss, OSError) as error:
        problem = str(error)
    parts = {str(name): str(value) for name, value in header.get("parts", {}).items()}
    created = header.get("created", status.st_mtime_ns) / 1e9
    return Info(
        key, parts.get("name", ""), parts, status.st_size, created, status.st_mtime, problem
    )


def statistics() -> dict[str, int]:
    """Counts of this process, then entries and bytes on disk."""
    with _state.lock:
        counts = dict(_state.counts)
    names = ("hits", "misses", "rejected", "stores", "failed", "trimmed")
    result = {name: counts.get(name, 0) for name in names}
    sizes = []
    try:
        folder = _trusted_folder()
        sizes = [s.st_size for path, s in _files(folder) if path.endswith(SUFFIX)]
    except _Miss:
        pass
    return result | {"entries": len(sizes), "bytes": sum(sizes)}


def lookups(kernel: Any = None) -> list[Lookup]:
    """The last lookups of this process, of all kernels or of one, oldest first."""
    with _state.lock:
        found = list(_state.lookups)
    if kernel is None:
        return found
    return [one for one in found if one.parts.get("name") == name_of(kernel)]


# A part, and how a sentence calls it.
WORDS = {
    "ir": "the source or a captured value",
    "captured": "a captured number",
    "options": "an option",
    "data": "a captured array",
    "places": "a line number",
    "types": "the argument types",
    "target": "the target",
    "properties": "the device",
    "cpu": "the CPU",
    "cpu features": "the CPU's features",
    "machine": "the machine",
    "libc": "the C library",
    "python": "Python",
}


def why(kernel: Any = None) -> str:
    """For each of the last lookups, hit or miss and the reason; on a miss, what differs.

    The difference is taken from the stored entry of the same kernel that is nearest.
    """
    found = lookups(kernel)
    if not found:
        what = "no kernel was" if kernel is None else f"{name_of(kernel)} was not"
        return f"{what} looked up on disk in this process"
    stored = entries() if any(one.reason == NOT_STORED for one in found) else []
    return "\n".join(_explain(one, stored) for one in found)


def _explain(one: Lookup, stored: list[Info]) -> str:
    name = one.parts.get("name", one.key[:12])
    details = [one.parts[part] for part in ("target", "types") if part in one.parts]
    start = f"{name} ({', '.join(details)})" if details else name
    if one.hit:
        return f"{start}: hit: {one.reason}"
    if one.reason != NOT_STORED:
        return f"{start}: miss: {one.reason}"
    return f"{start}: miss: {_difference(one, stored)}"


def _difference(one: Lookup, stored: list[Info]) -> str:
    # What this very miss led to, and what came later, was not there to be compared with.
    candidates = [
        info for info in stored if info.name == one.parts.get("name") and info.created <= one.time
    ]
    if not candidates:
        return "nothing was stored for this kernel"
    nearest = min(candidates, key=lambda i: (len(_differing(i.parts, one.parts)), -i.created))
    differing = _differing(nearest.parts, one.parts)
    if not differing:
        return "it was stored under another key"
    if any(name in differing for name in IN_THE_IR):
        differing = [name for name in differing if name != "ir"]
    return "; ".join(_change(name, nearest.parts, one.parts) for name in differing)


# A change of these is a change of the IR as well, which then says nothing more.
IN_THE_IR = ("types", "captured", "options")


def _differing(old: Mapping[str, str], new: Mapping[str, str]) -> list[str]:
    return [n for n in sorted(old.keys() | new.keys()) if old.get(n) != new.get(n)]


def _change(name: str, old: Mapping[str, str], new: Mapping[str, str]) -> str:
    """One part that differs, with its values where they can be read."""
    before, after = old.get(name, ""), new.get(name, "")
    readable = not (before.startswith("sha256:") or after.startswith("sha256:"))
    values = f": {before or 'nothing'} -> {after or 'nothing'}" if readable else ""
    return f"{WORDS.get(name, name)} changed{values}"
