"""Every setting of ruda: a row gives variable, type, default and one line of doc.

`ruda.config(debug=4)` sets for a region (a context manager) or, without `with`, from now on in
this thread's context. The environment is read when ruda is imported.
"""

from __future__ import annotations

import contextvars
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True, slots=True)
class Setting:
    """One row of the table."""

    name: str
    type: type
    default: Any
    doc: str
    choices: tuple[str, ...] = ()

    @property
    def variable(self) -> str:
        return f"RUDA_{self.name.upper()}"

    def parse(self, text: str) -> Any:
        if self.type is bool:
            known = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}
            if text.lower() not in known:
                raise ValueError(f"{self.variable}={text!r}: expected 0 or 1")
            return known[text.lower()]
        try:
            value = self.type(text)
        except ValueError:
            raise ValueError(f"{self.variable}={text!r}: expected an integer") from None
        return self.check(value, self.variable)

    def check(self, value: Any, name: str = "") -> Any:
        name = name or self.name
        if self.choices and value not in self.choices:
            raise ValueError(f"{name}={value!r}: expected one of {', '.join(self.choices)}")
        if not isinstance(value, self.type) and not (self.type is bool and value in (0, 1)):
            raise TypeError(f"{name}={value!r}: expected {self.type.__name__}")
        if self.type is int and not 0 <= value < 2**63:
            raise ValueError(f"{name}={value!r}: expected a number from 0 to 2**63 - 1")
        return value


SETTINGS = {
    s.name: s
    for s in (
        Setting("device", str, "cpu", "where NumPy arrays go: cpu, sim, cuda, wgpu, auto"),
        Setting("debug", int, 0,
                "shows on stderr, each level with those below it: 1 devices, compiles and "
                "verification, 2 launches with times, 3 fusion and tuning choices, 4 generated "
                "source, 5 the IR after each pass, 6 assembly"),
        Setting("verify", bool, False, "verify the IR of every kernel, as debug does"),
        Setting("check", bool, False, "check bounds and integer division in kernels"),
        Setting("cache", bool, True, "keep compiled kernels on disk"),
        Setting("cache_dir", str, "", "folder of the disk cache; default ~/.cache/ruda"),
        Setting("cache_bytes", int, 1 << 30, "size of the disk cache; the least used go first"),
        Setting("default_float", str, "float32", "dtype of weak floats", ("float32", "float64")),
        Setting("deterministic", bool, False, "no fma, frozen tuning, sums in a fixed order"),
        Setting("fastmath", bool, False, "allow approximate functions and reciprocals in kernels"),
        Setting("num_threads", int, 0, "CPU threads of a launch; 0 means one per core available"),
        Setting("missing", str, "error", "what to do with what a device lacks",
                ("error", "demote", "emulate", "cpu")),
        Setting("unroll_limit", int, 4096, "statements that unrolling may produce before it warns"),
        Setting("vendor", bool, True, "linear algebra and Fourier transforms on CUDA: by cuSOLVER "
                "and cuFFT, where they are installed"),
        Setting("cuda_arch", str, "", "chip that CUDA code is for, as 90a; default: the GPU's"),
        Setting("ascend_chip", str, "", "chip that code for `ascend` is for: 950, 910b; default: "
                "the NPU's", ("", "950", "910b")),
        Setting("wgpu_dialect", str, "naga", "WGSL for: naga, with the adapter's own features; "
                "tint, with what every browser has", ("naga", "tint")),
        Setting("fusion", str, "1", "0: an op at a time; verify: both ways, and compare",
                ("0", "1", "verify")),
        Setting("memory_limit", int, 0, "bytes of a device's memory that ruda may hold; 0: all"),
        Setting("report_bytes", int, 1 << 20, "bytes of a launch's buffer for prints and checks"),
        Setting("sim_order", str, "ascending", "order of sim's blocks and threads",
                ("ascending", "random")),
        Setting("sim_seed", int, 0, "seed of sim's random order"),
        Setting("sim_steps", int, 10_000_000, "rounds of `while` loops of a thread that sim takes"),
        Setting("progress", bool, True, "show progress of long work"),
    )
}  # fmt: skip


TOOLS = ("RUDA_TEST_", "RUDA_LONG_TESTS", "RUDA_BENCHMARK_")  # read by tests and benchmarks


class Settings:
    """Reads the current value of a setting: `settings.debug`."""

    def __init__(self, environment: Mapping[str, str] = os.environ) -> None:
        self.base: dict[str, Any] = {}
        for row in SETTINGS.values():
            text = environment.get(row.variable)
            # An empty variable is as good as none, as for most programs.
            self.base[row.name] = row.parse(text) if text else row.default
        self._warn_of_unknown(environment)
        self.local: contextvars.ContextVar[dict[str, Any] | None] = contextvars.ContextVar(
            "ruda_settings", default=None
        )
        # Its value is another object after each change in any context: launchers look at it.
        self.changes: dict[str, object] = {"last": object()}

    def _warn_of_unknown(self, environment: Mapping[str, str]) -> None:
        """A variable that nothing reads is most likely misspelt."""
        known = {row.variable for row in SETTINGS.values()}
        for name in environment:
            if name.startswith("RUDA_") and name not in known and not name.startswith(TOOLS):
                import difflib
                import warnings

                close = difflib.get_close_matches(name, known, 1, 0.75)
                hint = f": did you mean {close[0]}?" if close else "; `ruda --help` lists them"
                warnings.warn(f"{name} is no setting of ruda{hint}", stacklevel=2)

    def changed(self) -> None:
        """Tell launchers that some setting has changed."""
        self.changes["last"] = object()

    def __getattr__(self, name: str) -> Any:
        try:
            local = self.local.get()
            return self.base[name] if local is None else local[name]
        except KeyError:
            raise AttributeError(
                f"no setting {name!r}; there are {', '.join(sorted(SETTINGS))}"
            ) from None

    def state(self) -> dict[str, Any]:
        """All values. Each change makes another dictionary: its identity tells of changes."""
        local = self.local.get()
        return self.base if local is None else local

    def set_default(self, name: str, value: Any) -> None:
        """Change a setting for every context that has no settings of its own, and for this one."""
        change = {name: SETTINGS[name].check(value)}
        self.base = self.base | change
        local = self.local.get()
        if local is not None:
            self.local.set(local | change)
        self.changed()

    def __iter__(self) -> Iterator[tuple[Setting, Any]]:
        return ((row, getattr(self, row.name)) for row in SETTINGS.values())


settings = Settings()


def described() -> str:
    """Every setting with its default and its meaning, for `ruda --help` and `help(ruda.config)`."""
    import textwrap

    lines = []
    for row in SETTINGS.values():
        text = f"{row.doc} ({row.default!r})" if row.default != "" else row.doc
        lines += textwrap.wrap(text, 72, initial_indent=f"{row.variable:24}"[:24] + "  ",
                               subsequent_indent=" " * 26, break_long_words=False)  # fmt: skip
    return "\n".join(f"  {line}" for line in lines)


class config:
    """Change settings: at once, and back again at the end when used with `with`.

    >>> import ruda
    >>> with ruda.config(debug=0, check=True):
    ...     pass
    >>> ruda.config(chekc=True)
    Traceback (most recent call last):
    ...
    TypeError: no setting 'chekc'; there are ascend_chip, cache, cache_bytes, ...
    """

    def __init__(self, **changes: Any) -> None:
        for name, value in changes.items():
            if name not in SETTINGS:
                raise TypeError(f"no setting {name!r}; there are {', '.join(sorted(SETTINGS))}")
            SETTINGS[name].check(value)
        before = settings.local.get()
        self._token = settings.local.set((settings.base if before is None else before) | changes)
        settings.changed()

    def __enter__(self) -> config:
        return self

    def __exit__(self, *exception: object) -> None:
        settings.local.reset(self._token)
        settings.changed()


if config.__doc__ is not None:  # not under -OO
    table = described().replace("\n", "\n    ")
    config.__doc__ += f"\n    Each setting is a variable of the environment too:\n\n    {table}"


def cache_directory() -> Path:
    """The folder of the disk cache."""
    if settings.cache_dir:
        return Path(settings.cache_dir).expanduser()
    base = os.environ.get("XDG_CACHE_HOME", "")
    if not os.path.isabs(base):  # its standard says that a relative path is ignored
        base = os.path.join(Path.home(), ".cache")
    return Path(base) / "ruda"
