"""`ruda export`: what is written runs in a browser, and gives what the CPU gives."""

import functools
import http.server
import json
import math
import shutil
import subprocess
import tempfile
import threading

import numpy as np
import pytest

import ruda
from ruda.backends.wgpu.export import export
from ruda.cli import main
from ruda.errors import KernelError, UnsupportedError

BROWSER = shutil.which("chromium") or shutil.which("chromium-headless-shell")
SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu-sandbox",
    "--enable-unsafe-webgpu",
    "--use-webgpu-adapter=swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


@ruda.jit
def saxpy(a, x, y, out):
    i = ruda.grid(1)
    if i < out.size:
        out[i] = a * x[i] + y[i]


@ruda.jit
def heat(n, dt, field, out):
    i, j = ruda.grid(2)
    if 0 < i < field.shape[0] - 1 and 0 < j < field.shape[1] - 1:
        around = field[i - 1, j] + field[i + 1, j] + field[i, j - 1] + field[i, j + 1]
        out[i, j] = field[i, j] + dt / (n // 2 + n % 3) * (around - 4 * field[i, j])


@ruda.jit
def histogram(x, counts):
    tile = ruda.shared.array(64, ruda.int32)
    t = ruda.threadIdx.x
    tile[t] = 0
    ruda.syncthreads()
    i = ruda.grid(1)
    if i < x.size:
        ruda.atomic.add(tile, x[i] % 64, 1)
    ruda.syncthreads()
    ruda.atomic.add(counts, t, tile[t])


@ruda.jit
def rotate(angle, z):
    i = ruda.grid(1)
    if i < z.size:
        z[i] = z[i] * complex(math.cos(angle), math.sin(angle))


@ruda.jit
def doubles(x):
    x[0] = 1.0


@ruda.jit
def shows(x):
    print(x[0])


class Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a folder, and takes what the page found."""

    def do_POST(self):
        self.server.posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
        self.send_response(204)
        self.end_headers()
        self.server.done.set()

    def log_message(self, *args):
        pass


PAGE = """<!doctype html><script type="module">
  let found;
  try {
    const { load } = await import("./%s.js");
    %s
    found = { values: Array.from(found) };
  } catch (error) {
    found = { error: String(error) };
  }
  await fetch("/result", { method: "POST", body: JSON.stringify(found) });
</script>"""


def browse(folder, name, script):
    """What a script that sets `found` finds in a browser, beside an exported kernel."""
    (folder / "test.html").write_text(PAGE % (name, script))
    handler = functools.partial(Handler, directory=str(folder))
    with (
        http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server,
        tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile,
    ):
        server.posted, server.done = [], threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}/test.html"
        command = [BROWSER, *SWITCHES, f"--user-data-dir={profile}", url]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            assert server.done.wait(60), "the browser does not answer"
        finally:
            process.kill()
            process.wait()
            server.shutdown()
    return server.posted[0]


browser = pytest.mark.browser


@browser
def test_saxpy_in_a_browser(tmp_path):
    export(saxpy, ["float", "f32[:]", "f32[:]", "f32[:]"], str(tmp_path))
    found = browse(
        tmp_path,
        "saxpy",
        """
        const kernel = await load(), n = 1001;
        const x = Float32Array.from({ length: n }, (_, i) => i / 7);
        const y = Float32Array.from({ length: n }, (_, i) => 1 / (i + 1));
        found = new Float32Array(n);
        await kernel(Math.ceil(n / 256), 2.5, x, y, found);
        """,
    )
    assert "error" not in found, found
    i = np.arange(1001)
    x, y, out = (i / 7).astype("f4"), (1 / (i + 1)).astype("f4"), np.empty(1001, "f4")
    saxpy[4, 256](2.5, x, y, out)
    np.testing.assert_array_max_ulp(np.array(found["values"], "f4"), out, 1)


@browser
def test_two_dimensions_on_the_device(tmp_path):
    export(heat, ["int", "float", "f32[:,:]", "f32[:,:]"], str(tmp_path), block=(8, 8))
    found = browse(
        tmp_path,
        "heat",
        """
        const kernel = await load(), [h, w] = [33, 47];
        const values = Float32Array.from({ length: h * w }, (_, i) => (i * i) % 11);
        const a = kernel.array(values, [h, w]), b = kernel.array(values, [h, w]);
        await kernel([Math.ceil(h / 8), Math.ceil(w / 8)], 10, 0.3, a, b);
        await kernel([Math.ceil(h / 8), Math.ceil(w / 8)], 10, 0.3, b, a);
        found = await a.read();
        """,
    )
    assert "error" not in found, found
    i = np.arange(33 * 47)
    a = ((i * i) % 11).astype("f4").reshape(33, 47)
    b = a.copy()
    heat[(5, 6), (8, 8)](10, 0.3, a, b)
    heat[(5, 6), (8, 8)](10, 0.3, b, a)
    np.testing.assert_allclose(found["values"], a.ravel(), rtol=1e-6, atol=1e-6)


@browser
def test_shared_memory_and_atomics(tmp_path):
    export(histogram, ["u8[:]", "i32[:]"], str(tmp_path), block=64)
    found = browse(
        tmp_path,
        "histogram",
        """
        const kernel = await load(), n = 5003;
        const x = Uint8Array.from({ length: n }, (_, i) => (i * 31) % 251);
        found = new Int32Array(64);
        await kernel(Math.ceil(n / 64), x, found);
        """,
    )
    assert "error" not in found, found
    x = (np.arange(5003) * 31 % 251) % 64
    np.testing.assert_array_equal(found["values"], np.bincount(x, minlength=64))


@browser
def test_complex_numbers_and_expressions_of_scalars(tmp_path):
    export(rotate, ["float", "c64[:]"], str(tmp_path))
    script = """
        const kernel = await load();
        found = Float32Array.from([1, 0, 0, 2, 3, -1]);
        await kernel(1, 0.5, found);
    """
    found = browse(tmp_path, "rotate", script)
    assert "error" not in found, found
    z = np.array([1, 2j, 3 - 1j], "c8")
    expected = z * np.complex64(np.exp(0.5j))
    np.testing.assert_allclose(np.array(found["values"], "f4").view("c8"), expected, rtol=1e-6)


@browser
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ("1, x, x", "saxpy(a, x, y, out): 3 arguments given"),
        ("1, x, x, new Float64Array(4)", "argument out is a Float32Array (float32)"),
        ("x, x, x, x", "argument a is a number"),
        ("1, { data: x, shape: [3] }, x, y", "shape that fits 4 numbers"),
        ("1, { data: x, shape: [2, 2] }, x, x", "argument x has 1 dimensions"),
        ("1, x, y, y", "an array is given for two parameters"),
    ],
)
def test_mistakes_in_the_browser(tmp_path, arguments, text):
    export(saxpy, ["float", "f32[:]", "f32[:]", "f32[:]"], str(tmp_path))
    script = f"""
        const kernel = await load(), x = new Float32Array(4), y = new Float32Array(4);
        await kernel(1, {arguments});
        found = [];
    """
    assert text in browse(tmp_path, "saxpy", script)["error"]


# What is tried, in one page; and what the error says.
MISTAKES = {
    "kernel([1, 1, 1, 1], 1, x, y, z)": "a grid has 1 to 3 dimensions, not 4",
    "kernel([], 1, x, y, z)": "a grid has 1 to 3 dimensions, not 0",
    "kernel(1.5, 1, x, y, z)": "whole numbers of blocks, up to 65535",
    "kernel(-1, 1, x, y, z)": "whole numbers of blocks",
    "kernel('2', 1, x, y, z)": "whole numbers of blocks",
    "kernel([1, 70000], 1, x, y, z)": "up to 65535 along an axis",
    "kernel(1, 1.5, x, y, z)": "argument n is an integer (int32), not 1.5",
    "kernel(1, NaN, x, y, z)": "argument n is an integer (int32), not NaN",
    "kernel(1, 2 ** 31, x, y, z)": "is 2147483648, which does not fit int32",
    "kernel(1, 1, { data: x.data, shape: [-2, -2] }, y, z)": "argument x has 2 dimensions",
    "kernel(1, 1, { data: x.data, shape: [8, 0.5] }, y, z)": "argument x has 2 dimensions",
    "kernel(1, 1, x, y, null)": "argument z is a Float32Array (float32), not undefined",
    "kernel(1, 1, x, y, gone)": "argument z was destroyed",
    "gone.read()": "this array was destroyed",
    "kernel(1, 1, x, y, other.array(new Float32Array(4)))": "is on another device",
    "kernel.array([1, 2, 3])": "made of a typed array, not of Array",
    "small.array(huge)": "bytes; this device binds",
    "kernel(1, 1, x, y, z)": "nothing",
    "dead(1, 1, x, y, z)": "the device is lost",
}


@ruda.jit
def scaled(n, x, y, z):
    i = ruda.grid(1)
    if i < z.size:
        z[i] = n * x[0, 0] + y[i]


@browser
def test_more_mistakes_are_told_and_harm_nothing(tmp_path):
    export(scaled, ["i32", "f32[:, :]", "f32[:]", "f32[:]"], str(tmp_path))
    tries = ", ".join(f"() => {code}" for code in MISTAKES)
    script = f"""
        const kernel = await load(), other = await load(), dead = await load();
        const x = {{ data: Float32Array.of(3, 0, 0, 0), shape: [2, 2] }};
        const y = new Float32Array(4), z = new Float32Array(4);
        const gone = kernel.array(new Float32Array(4));
        gone.destroy();
        const small = await load(await (await navigator.gpu.requestAdapter()).requestDevice());
        const huge = new Uint8Array(small.device.limits.maxStorageBufferBindingSize + 4);
        dead.device.destroy();
        await dead.device.lost;
        found = [];
        for (const wrong of [{tries}]) {{
          try {{ await wrong(); found.push("nothing"); }}
          catch (error) {{ found.push(error.constructor.name + " " + error.message); }}
        }}
        found.push(...z);
    """
    values = browse(tmp_path, "scaled", script)
    assert "error" not in values, values
    for (code, text), said in zip(MISTAKES.items(), values["values"], strict=False):
        assert text in said and (text == "nothing" or said.startswith("KernelError")), (code, said)
    assert values["values"][len(MISTAKES) :] == [3, 3, 3, 3]


@ruda.jit
def large(x):
    tile = ruda.shared.array(20000, ruda.float32)
    t = ruda.threadIdx.x
    tile[t] = x[t]
    ruda.syncthreads()
    x[t] = tile[t]


@browser
def test_devices_that_are_too_small_are_told(tmp_path):
    """A device that was made without asking for more has 256 threads, and 16 KB a block."""
    export(saxpy, ["float", "f32[:]", "f32[:]", "f32[:]"], str(tmp_path), block=1024)
    export(large, ["f32[:]"], str(tmp_path), block=64)
    script = """
        const adapter = await navigator.gpu.requestAdapter(), small = await adapter.requestDevice();
        const { load: loadLarge } = await import("./large.js");
        found = [];
        for (const wrong of [() => load(small), () => loadLarge()]) {
          try { await wrong(); found.push("nothing"); }
          catch (error) { found.push(error.message); }
        }
        const most = adapter.limits.maxComputeInvocationsPerWorkgroup;
        if (most >= 1024) {  // asked for by load()
          const kernel = await load(), out = new Float32Array(1024), x = out.slice().fill(1);
          await kernel(1, 2, x, x.slice(), out);
          found.push(out.every((v) => v === 3));
        } else found.push(true);
    """
    values = browse(tmp_path, "saxpy", script)
    assert "error" not in values, values
    few, much, ran = values["values"]
    assert few == "saxpy needs maxComputeInvocationsPerWorkgroup = 1024; this device has 256"
    assert much.startswith("large needs maxComputeWorkgroupStorageSize = 80000; this adapter has")
    assert ran is True


@ruda.jit
def wide(x, n, z):
    i = ruda.grid(1)
    if i < x.size:
        x[i] = x[i] * 2 + 1
        n[i] = n[i] * n[i]
        z[i] = z[i] * 1j


@browser
def test_64_bits_by_policy(tmp_path):
    with ruda.config(missing="demote"):
        export(wide, ["f64[:]", "i64[:]", "c128[:]"], str(tmp_path))
    script = """
        const kernel = await load(), x = Float64Array.of(1 / 3, 1e300);
        const n = BigInt64Array.of(3000000000n, -5n), z = Float64Array.of(1, 2, 3, 4);
        await kernel(1, x, n, z);
        found = [x[0], String(x[1]), ...Array.from(n, String), ...z];
    """
    found = browse(tmp_path, "wide", script)
    assert "error" not in found, found
    third = float(np.float32(1 / 3) * np.float32(2) + np.float32(1))
    assert found["values"] == [third, "Infinity", "9000000000000000000", "25", -2, 1, -4, 3]


@browser
def test_the_page_runs_by_itself(tmp_path):
    export(saxpy, ["float", "f32[:]", "f32[:]", "f32[:]"], str(tmp_path))
    script = """
        const frame = document.createElement("iframe");
        frame.src = "index.html";
        document.documentElement.append(frame);
        const text = () => frame.contentDocument?.querySelector("#result")?.textContent ?? "";
        while (!text() || text() === "loading") await new Promise((r) => setTimeout(r, 50));
        found = [text()];
    """
    found = browse(tmp_path, "saxpy", script)
    assert "out = [" in found["values"][0], found


def test_refusals(tmp_path):
    with pytest.raises(UnsupportedError, match="float64"):
        export(doubles, ["f64[:]"], str(tmp_path))
    with pytest.raises(UnsupportedError, match="prints or asserts"):
        export(shows, ["f32[:]"], str(tmp_path))
    with pytest.raises(KernelError):
        export(doubles, ["i64[:]"], str(tmp_path))
    assert not list(tmp_path.iterdir())


def test_the_command(tmp_path, capsys):
    types = "float, f32[:], f32[:], f32[:]"
    command = ["export", f"{__file__}:saxpy", "--types", types, "-o", str(tmp_path / "web")]
    assert main(command) == 0
    assert "http.server --bind 127.0.0.1" in capsys.readouterr().out
    written = {p.name for p in (tmp_path / "web").iterdir()}
    assert written == {"saxpy.wgsl", "saxpy.js", "index.html"}
    command[-1] = __file__  # a file where the folder should be
    assert main(command) == 1
    assert "ruda: " in capsys.readouterr().err
