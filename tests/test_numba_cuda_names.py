"""Each name of numba.cuda has a row, and the rows are true."""

import functools
import math
from pathlib import Path

import numpy as np
import pytest

import ruda
from docs import generate, upstream
from ruda import porting
from ruda.jit.language import OutsideKernelError

SNAPSHOT = Path(upstream.__file__).with_name("numba-cuda-names.txt").read_text("utf-8").splitlines()
ROWS = porting.rows()


def test_every_name_has_one_row():
    names = [row.name for row in ROWS]
    assert len(names) == len(set(names))
    documented = [row.name for row in ROWS if row.area != porting.UNDOCUMENTED]
    assert sorted(documented) == sorted(SNAPSHOT[1:])


@pytest.mark.skipif(upstream.version() is None, reason="compares with an installed numba-cuda")
def test_the_snapshot_is_that_of_the_installed_numba_cuda():
    installed = [f"# numba-cuda {upstream.version()}", *upstream.installed_names()]
    assert installed == SNAPSHOT


def test_rows_are_complete():
    for row in ROWS:
        assert row.verdict in porting.VERDICTS, row
        if row.verdict == "refused":
            assert row.text and not row.ruda, row
        if row.verdict == "different":  # in what?
            assert row.text or row.ruda != row.name, row


# What is not an attribute of numba.cuda: members of objects, launches, options.
OBJECTS = {
    "CUDADispatcher",
    "Context",
    "Device",
    "DeviceNDArray",
    "DeviceRecord",
    "Event",
    "Stream",
}


def attributes():
    for row in ROWS:
        first = row.name.split(".")[0]
        if first.isidentifier() and first not in (*OBJECTS, *porting.LIBRARY, "gpus"):
            yield row


def look_up(name):
    try:
        return functools.reduce(getattr, name.split("."), ruda)
    except OutsideKernelError:  # it is there
        return name


def test_refused_names_say_what_to_write_instead():
    refused = [row for row in attributes() if row.verdict == "refused"]
    assert len(refused) > 100
    for row in refused:
        with pytest.raises(AttributeError) as error:
            look_up(row.name)
        assert row.text in str(error.value)


def test_names_are_what_their_rows_say():
    for row in attributes():
        if row.verdict == "refused" or not generate.is_built(row.ruda):
            continue
        if row.name == row.ruda:
            assert look_up(row.name) is not None, row
        elif not row.text:
            assert look_up(row.name) is porting.resolve(row.ruda), row


def test_names_that_are_not_built_are_errors():
    """What the page calls planned raises; it is not there by half."""
    for row in attributes():
        planned = row.verdict != "refused" and not generate.is_built(row.ruda)
        if planned and row.ruda.split(".")[0] not in porting.LIBRARY:
            with pytest.raises(AttributeError):
                look_up(row.name)


# An object of each class whose members have rows.
OF_GROUPS = {
    "CUDADispatcher": lambda: launched,
    "CUDADispatcher[]": lambda: launched[1, 32],
    "Context": ruda.current_context,
    "Device": ruda.get_current_device,
    "DeviceNDArray": lambda: ruda.to_device([1.0, 2.0]),
    "Event": ruda.event,
    "Stream": ruda.stream,
}


@ruda.jit
def launched(x):
    x[0] = 1


def members():
    for row in ROWS:
        group, _, name = row.name.partition(".")
        if group in OF_GROUPS and name.isidentifier() and not name.startswith("__"):
            yield pytest.param(group, name, row, id=row.name)


@pytest.mark.parametrize("group, name, row", list(members()))
def test_members_of_objects_are_what_their_rows_say(group, name, row):
    """There under their name, or refused with the text of the row and the name to use."""
    thing = OF_GROUPS[group]()
    kinds = [kind.__name__ for kind in type(thing).__mro__]
    if row.ruda in [f"{kind}.{name}" for kind in kinds]:
        assert getattr(thing, name) is not None
        return
    with pytest.raises(AttributeError) as error:
        getattr(thing, name)
    assert row.text in str(error.value)
    assert not row.ruda or f"`{row.ruda}`" in str(error.value)
    assert generate.is_built(row.ruda) or not row.ruda


def test_a_mistyped_member_is_suggested():
    with pytest.raises(AttributeError) as error:
        _ = launched.forral
    assert (error.value.name, error.value.obj) == ("forral", launched)  # Python suggests by them
    assert str(error.value) == "Kernel has no attribute 'forral'"


def test_what_is_built_is_seen():
    assert generate.is_built("float32") and generate.is_built("errors.CheckError")
    assert generate.is_built("math.sin") and generate.is_built("numpy.floor")
    assert generate.is_built("random.uniform") and generate.is_built("DeviceInfo.properties")
    assert generate.is_built("DeviceInfo.name")


def test_what_is_not_built_is_not_claimed():
    assert not generate.is_built("no_such_name") and not generate.is_built("errors.NoError")
    assert not generate.is_built("math.ulp") and not generate.is_built("DeviceInfo.colour")
    assert not generate.is_built("f4")  # known only to ruda.porting


def test_old_names_are_the_new_ones():
    assert ruda.f4 is ruda.float32 and ruda.boolean is ruda.bool_
    assert ruda.libdevice.sinf is math.sin and ruda.fp16.hfloor is np.floor
    from ruda import libdevice

    assert libdevice.int2float_rn is ruda.float32


def test_an_unknown_name_is_pythons_own_error():
    with pytest.raises(AttributeError, match=r"^module 'ruda' has no attribute 'griid'$"):
        _ = ruda.griid
    with pytest.raises(AttributeError, match=r"no attribute 'libdevice.nothing'"):
        _ = ruda.libdevice.nothing
    with pytest.raises(ImportError, match="compile_ptx"):
        exec("from ruda import compile_ptx")
