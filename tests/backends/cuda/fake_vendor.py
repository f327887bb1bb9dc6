"""cuSOLVER, cuBLAS and cuFFT without a GPU: C functions of the vendor's types, by LAPACK and NumPy.

Memory is the host's. A function gets what the prototypes of `vendor` make of its arguments.
"""

from __future__ import annotations

import ctypes
from types import SimpleNamespace
from typing import Any

import numpy as np
from scipy.linalg import lapack

from ruda.backends.base import asked
from ruda.backends.cuda import vendor

DTYPES = {"S": np.float32, "D": np.float64, "C": np.complex64, "Z": np.complex128}
CUDA_TYPES = {0: np.float32, 1: np.float64, 4: np.complex64, 5: np.complex128}


def memory(at: int, dtype: Any, *shape: int) -> np.ndarray[Any, Any]:
    """The memory at an address, in C order."""
    nbytes = int(np.prod(shape)) * np.dtype(dtype).itemsize
    raw = np.ctypeslib.as_array((ctypes.c_uint8 * nbytes).from_address(at))
    return raw.view(dtype).reshape(shape)


def columns(at: int, dtype: Any, rows: int, count: int, lead: int) -> np.ndarray[Any, Any]:
    """A matrix stored by columns, `lead` elements apart."""
    return memory(at, dtype, count, lead)[:, :rows].T


def integer(at: int) -> np.ndarray[Any, Any]:
    return memory(at, np.int32, 1)


class Fake:
    """The three libraries in one."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.answers: dict[str, list[int]] = {}  # codes of the next calls, by name
        self.plans: dict[int, Any] = {}
        self.gpu = SimpleNamespace(
            number=0, name="cuda:0", recent=[], use=lambda: None, synchronize=lambda: None,
            pool=SimpleNamespace(closed=False, empty=lambda: self.calls.append("empty")),
            driver=SimpleNamespace(cuCtxSetCurrent=lambda context: None), context=None,
            allocate=self.allocate, note=lambda name: self.gpu.recent.append(asked(name)),
        )  # fmt: skip

    def allocate(self, nbytes: int) -> Any:
        held = np.empty(nbytes, np.uint8)
        return SimpleNamespace(address=held.ctypes.data, held=held)

    def __getattr__(self, name: str) -> Any:
        rows = {k: v for of in vendor.PROTOTYPES.values() for k, v in of.items()}
        for row in rows:
            head, mark, tail = row.partition("?")
            letter = name[len(head) : len(name) - len(tail)] if mark else ""
            if name == head + letter + tail and letter in (DTYPES if mark else ("",)):
                break
        else:
            raise AttributeError(name)
        run = getattr(Fake, "do_" + row.replace("cusolverDn", "").replace("?", ""), None)
        if run is None:
            raise AttributeError(name)

        def call(*given: Any) -> int:
            self.calls.append(name)
            planned = self.answers.get(name)
            if planned:
                code = planned.pop(0)
                if code:
                    return code
            run(self, *((DTYPES[letter],) if letter else ()), *given)
            return 0

        made = ctypes.CFUNCTYPE(ctypes.c_int, *(vendor.KINDS[c] for c in rows[row]))(call)
        setattr(self, name, made)
        return made

    # ---- handles

    def do_Create(self, at: int) -> None:
        memory(at, np.int64, 1)[0] = 77

    do_cublasCreate_v2 = do_CreateParams = do_CreateGesvdjInfo = do_Create

    def do_SetStream(self, handle: int, stream: int | None) -> None:
        assert handle == 77 and stream is None

    do_cublasSetStream_v2 = do_SetStream

    # ---- LU and Cholesky

    def do_getrf_bufferSize(self, dtype, handle, m, n, a, lead, length):
        assert handle == 77
        integer(length)[0] = 5

    def do_getrf(self, dtype, handle, m, n, a, lead, work, pivots, info):
        memory(work, dtype, 5)[...] = 0  # the working memory is there
        matrix = columns(a, dtype, m, n, lead)
        assert not np.isnan(matrix).any()  # which the real one takes for a pivot of 0
        factors, rows, code = lapack.get_lapack_funcs("getrf", dtype=dtype)(matrix)
        matrix[...] = factors
        memory(pivots, np.int32, min(m, n))[...] = rows + 1
        integer(info)[0] = code

    def do_getrs(self, dtype, handle, way, n, sides, a, lead, pivots, b, lead_b, info):
        right = columns(b, dtype, n, sides, lead_b)
        found, code = lapack.get_lapack_funcs("getrs", dtype=dtype)(
            columns(a, dtype, n, n, lead), memory(pivots, np.int32, n) - 1, right, trans=way
        )
        right[...] = found
        integer(info)[0] = code

    def do_cublasgetrfBatched(self, dtype, handle, n, places, lead, pivots, info, count):
        work = np.empty(5, dtype)
        for k, at in enumerate(memory(places, np.int64, count)):
            self.do_getrf(
                dtype, handle, n, n, int(at), lead, work.ctypes.data, pivots + 4 * n * k,
                info + 4 * k,
            )  # fmt: skip

    def do_cublasgetrsBatched(
        self, dtype, handle, way, n, sides, places, lead, pivots, rights, lead_b, info, count
    ):
        both = memory(places, np.int64, count), memory(rights, np.int64, count)
        for k, (at, right) in enumerate(zip(*both, strict=True)):
            self.do_getrs(
                dtype, handle, way, n, sides, int(at), lead, pivots + 4 * n * k, int(right),
                lead_b, info,
            )  # fmt: skip

    def do_cublasgetriBatched(
        self, dtype, handle, n, places, lead, pivots, results, lead_b, info, count
    ):
        both = memory(places, np.int64, count), memory(results, np.int64, count)
        for k, (at, out) in enumerate(zip(*both, strict=True)):
            found, code = lapack.get_lapack_funcs("getri", dtype=dtype)(
                columns(int(at), dtype, n, n, lead), memory(pivots + 4 * n * k, np.int32, n) - 1
            )
            columns(int(out), dtype, n, n, lead_b)[...] = found
            memory(info, np.int32, count)[k] = code

    def do_potrf_bufferSize(self, dtype, handle, triangle, n, a, lead, length):
        integer(length)[0] = 5

    def do_potrf(self, dtype, handle, triangle, n, a, lead, work, length, info):
        assert triangle == 1 and length == 5
        matrix = columns(a, dtype, n, n, lead)
        found, code = lapack.get_lapack_funcs("potrf", dtype=dtype)(matrix, lower=0, clean=0)
        matrix[...] = found
        integer(info)[0] = code

    def do_potrfBatched(self, dtype, handle, triangle, n, places, lead, info, count):
        for k, at in enumerate(memory(places, np.int64, count)):
            self.do_potrf(dtype, handle, triangle, n, int(at), lead, 0, 5, info + 4 * k)

    # ---- QR, eigenvalues and singular values

    do_geqrf_bufferSize = do_getrf_bufferSize

    def do_geqrf(self, dtype, handle, m, n, a, lead, factors, work, length, info):
        assert length == 5
        matrix = columns(a, dtype, m, n, lead)
        found, tau, _, code = lapack.get_lapack_funcs("geqrf", dtype=dtype)(matrix)
        matrix[...] = found
        memory(factors, dtype, min(m, n))[...] = tau
        integer(info)[0] = code

    def do_orgqr_bufferSize(self, dtype, handle, m, n, k, a, lead, factors, length):
        integer(length)[0] = 5

    def do_orgqr(self, dtype, handle, m, n, k, a, lead, factors, work, length, info):
        name = "orgqr" if np.dtype(dtype).kind == "f" else "ungqr"
        assert length == 5 and m >= n >= k
        matrix = columns(a, dtype, m, n, lead)
        tau = memory(factors, dtype, k)
        found, _, code = lapack.get_lapack_funcs(name, dtype=dtype)(matrix, tau)
        matrix[...] = found
        integer(info)[0] = code

    do_ungqr_bufferSize, do_ungqr = do_orgqr_bufferSize, do_orgqr

    def do_Xsyevd_bufferSize(self, *given):
        *_, there, here = given
        memory(there, np.uint64, 1)[0], memory(here, np.uint64, 1)[0] = 24, 8

    def do_Xsyevd(
        self, handle, parameters, job, triangle, n, kind, a, lead, real, w, computed, work, nbytes,
        host, host_bytes, info,
    ):  # fmt: skip
        assert triangle == 1 and (nbytes, host_bytes) == (24, 8) and computed == kind
        memory(work, np.uint8, 24)[...], memory(host, np.uint8, 8)[...] = 0, 0
        matrix = columns(a, CUDA_TYPES[kind], n, n, lead)
        values, vectors = np.linalg.eigh(matrix, UPLO="U")
        memory(w, CUDA_TYPES[real], n)[...] = values
        matrix[...] = vectors if job else np.nan
        integer(info)[0] = 0

    def do_XsyevBatched_bufferSize(self, *given):
        self.do_Xsyevd_bufferSize(*given[:-1])

    def do_XsyevBatched(self, *given):
        *given, info, count = given
        n, kind, real = given[4], CUDA_TYPES[given[5]], CUDA_TYPES[given[8]]
        for k in range(count):
            each = list(given)
            each[6] += k * n * n * np.dtype(kind).itemsize
            each[9] += k * n * np.dtype(real).itemsize
            self.do_Xsyevd(*each, info + 4 * k)

    def do_gesvdj_bufferSize(self, dtype, *given):
        integer(given[-2])[0] = 5

    def do_gesvdj(
        self, dtype, handle, job, economic, m, n, a, lead, s, u, lead_u, v, lead_v, work, length,
        info, settings,
    ):  # fmt: skip
        assert handle == settings == 77 and length == 5 and m >= n
        matrix = columns(a, dtype, m, n, lead)
        left, values, right = np.linalg.svd(matrix, full_matrices=not economic)
        matrix[...] = np.nan
        memory(s, np.zeros(1, dtype).real.dtype, n)[...] = values
        # The real one writes there whatever the job is.
        columns(u, dtype, m, n if economic else m, lead_u)[...] = left if job else np.nan
        columns(v, dtype, n, n, lead_v)[...] = right.conj().T if job else np.nan
        integer(info)[0] = 0

    def do_gesvdjBatched_bufferSize(self, dtype, *given):
        integer(given[-3])[0] = 5

    def do_gesvdjBatched(
        self, dtype, handle, job, m, n, a, lead, s, u, lead_u, v, lead_v, work, length, info,
        settings, count,
    ):  # fmt: skip
        assert max(m, n) <= 32
        one, real = np.dtype(dtype).itemsize, np.zeros(1, dtype).real.itemsize
        for k in range(count):
            self.do_gesvdj(
                dtype, handle, job, 0, m, n, a + k * one * n * lead, lead, s + k * real * n,
                u + k * one * m * m, lead_u, v + k * one * n * n, lead_v, work, length,
                info + 4 * k, settings,
            )  # fmt: skip

    # ---- Fourier transforms

    def do_cufftCreate(self, at):
        number = 100 + self.calls.count("cufftCreate")
        self.plans[number] = SimpleNamespace(work=None)
        integer(at)[0] = number

    def do_cufftDestroy(self, plan):
        del self.plans[plan]

    def do_cufftSetStream(self, plan, stream):
        assert stream is None

    def do_cufftSetAutoAllocation(self, plan, automatic):
        assert automatic == 0

    def do_cufftMakePlanMany64(
        self, plan, rank, n, inembed, istride, idist, onembed, ostride, odist, code, rows, size
    ):
        made = self.plans[plan]
        made.stride = 1
        if inembed is not None:  # else strides and distances are not looked at
            assert inembed and onembed and istride == ostride == rows and idist == odist == 1
            made.stride = istride
        made.lengths = tuple(memory(n, np.int64, rank).tolist())
        made.code, made.rows = code, rows
        memory(size, np.uint64, 1)[0] = 24

    def do_cufftSetWorkArea(self, plan, at):
        memory(at, np.uint8, 24)[...] = 0
        self.plans[plan].work = at

    def spaces(self, plan, code, at, out, half_in, half_out):
        made = self.plans[plan]
        assert made.code == code and made.work
        *lead, n = made.lengths
        wide = code & 0x40
        kinds = [
            DTYPES["SDCZ"[2 * whole + bool(wide)]]
            for whole in (code not in (0x2A, 0x6A), code not in (0x2C, 0x6C))
        ]
        ends = (n // 2 + 1 if half_in else n), (n // 2 + 1 if half_out else n)
        x, y = (
            memory(place, kind, made.rows, *lead, end)
            for place, kind, end in zip((at, out), kinds, ends, strict=True)
        )
        return x, y, made.lengths

    def signed(self, code, plan, at, out, sign):
        x, y, lengths = self.spaces(plan, code, at, out, False, False)
        if self.plans[plan].stride > 1:
            x, y = (v.reshape(v.shape[::-1]).T for v in (x, y))
        axes = tuple(range(1, 1 + len(lengths)))
        y[...] = np.fft.fftn(x, axes=axes) if sign < 0 else np.fft.ifftn(
            x, axes=axes, norm="forward"
        )  # fmt: skip

    def do_cufftExecC2C(self, plan, at, out, sign):
        self.signed(0x29, plan, at, out, sign)

    def do_cufftExecZ2Z(self, plan, at, out, sign):
        self.signed(0x69, plan, at, out, sign)

    def to_half(self, code, plan, at, out):
        x, y, lengths = self.spaces(plan, code, at, out, False, True)
        y[...] = np.fft.rfftn(x, axes=tuple(range(1, 1 + len(lengths))))

    def do_cufftExecR2C(self, plan, at, out):
        self.to_half(0x2A, plan, at, out)

    def do_cufftExecD2Z(self, plan, at, out):
        self.to_half(0x6A, plan, at, out)

    def from_half(self, code, plan, at, out):
        x, y, (n,) = self.spaces(plan, code, at, out, True, False)
        ends = x[:, 0], x[:, -1] if n % 2 == 0 else x[:, 0]
        assert not any(e.imag.any() for e in ends)  # of these the vendor's result is not told
        y[...] = np.fft.irfft(x, n, norm="forward")
        x[...] = np.nan  # it may be overwritten

    def do_cufftExecC2R(self, plan, at, out):
        self.from_half(0x2C, plan, at, out)

    def do_cufftExecZ2D(self, plan, at, out):
        self.from_half(0x6C, plan, at, out)
