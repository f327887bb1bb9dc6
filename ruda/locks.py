"""Locks that a forked child finds open."""

from __future__ import annotations

import os
import threading
import weakref
from typing import Any

_locks: weakref.WeakSet[Any] = weakref.WeakSet()


def fork_safe_lock() -> Any:
    """An RLock. Where another thread holds one at a fork, the child would wait for ever: it does
    not have that thread."""
    lock = threading.RLock()
    _locks.add(lock)
    return lock


def _open() -> None:
    for lock in list(_locks):
        if not lock._is_owned():  # by the thread that forked, which goes on to release it
            lock._at_fork_reinit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_open)
