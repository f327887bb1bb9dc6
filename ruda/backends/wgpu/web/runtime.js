// Run one kernel in a WebGPU browser. KERNEL (above) says what its text expects.
//
//   const kernel = await load();                      // or load(device)
//   await kernel([blocks], 2.0, x, y, out);           // typed arrays; those written are filled in
//   const field = kernel.array(new Float32Array(n * m), [n, m]);   // stays on the device
//   await kernel([bx, by], field);  const values = await field.read();

export class KernelError extends Error {}

/** An array on the device: `shape` in C order; `read()` gives a typed array. */
class DeviceArray {
  constructor(device, data, shape) {
    if (!ArrayBuffer.isView(data) || data instanceof DataView) {
      throw new KernelError(`an array is made of a typed array, not of ${named(data)}`);
    }
    const most = Math.min(device.limits.maxStorageBufferBindingSize, device.limits.maxBufferSize);
    if (data.byteLength > most) {
      throw new KernelError(`an array of ${data.byteLength} bytes; this device binds ${most}: pass parts of it`);
    }
    this.device = device;
    this.destroyed = false;
    this.Kind = data.constructor;
    this.length = data.length;
    this.shape = shape;
    this.byteLength = data.byteLength;
    this.buffer = device.createBuffer({
      size: padded(data.byteLength),
      usage: GPUBufferUsage.STORAGE | GPUBufferUsage.COPY_SRC | GPUBufferUsage.COPY_DST,
      mappedAtCreation: true,
    });
    const bytes = new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
    new Uint8Array(this.buffer.getMappedRange()).set(bytes);
    this.buffer.unmap();
  }

  async read() {
    if (this.destroyed) throw new KernelError("this array was destroyed");
    const size = padded(this.byteLength);
    const staging = this.device.createBuffer({
      size,
      usage: GPUBufferUsage.MAP_READ | GPUBufferUsage.COPY_DST,
    });
    const commands = this.device.createCommandEncoder();
    commands.copyBufferToBuffer(this.buffer, 0, staging, 0, size);
    this.device.queue.submit([commands.finish()]);
    await staging.mapAsync(GPUMapMode.READ);
    const bytes = staging.getMappedRange().slice(0, this.byteLength);
    staging.destroy();
    return new this.Kind(bytes);
  }

  destroy() {
    this.destroyed = true;
    this.buffer.destroy();
  }
}

// Of integers, as in a kernel: they floor, and x // 0 is 0.
const floordiv = (a, b) => (b === 0 ? 0 : Math.floor(a / b));
const mod = (a, b) => (b === 0 ? 0 : a - b * Math.floor(a / b));
const named = (value) => (value === null ? "null" : value?.constructor?.name ?? typeof value);
const padded = (bytes) => Math.max(4, Math.ceil(bytes / 4) * 4);

async function request() {
  if (!globalThis.navigator?.gpu) {
    throw new KernelError("this browser has no WebGPU (and pages have it only on https or localhost)");
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new KernelError("this browser finds no WebGPU adapter");
  const limits = {};
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) limits[name] = adapter.limits[name];
  for (const [name, least] of Object.entries(KERNEL.needs)) {
    limits[name] = Math.max(least, DEFAULTS[name]);
    suffices(adapter, name, least, "adapter");
  }
  return adapter.requestDevice({ requiredLimits: limits });
}

// What every device has; more has to be asked for.
const DEFAULTS = {
  maxComputeInvocationsPerWorkgroup: 256,
  maxComputeWorkgroupSizeX: 256,
  maxComputeWorkgroupSizeY: 256,
  maxComputeWorkgroupSizeZ: 64,
  maxComputeWorkgroupStorageSize: 16384,
  maxStorageBuffersPerShaderStage: 8,
};

function suffices(owner, name, least, what) {
  if (owner.limits[name] < least) {
    throw new KernelError(`${KERNEL.name} needs ${name} = ${least}; this ${what} has ${owner.limits[name]}`);
  }
}

/** Compile the kernel for a device (a new one if none is given). The result is a function
 *  `kernel(grid, ...arguments)`, with `kernel.array`, `kernel.device` and `kernel.parameters`. */
export async function load(device) {
  device ??= await request();
  for (const [name, least] of Object.entries(KERNEL.needs)) suffices(device, name, least, "device");
  let lost = null;
  device.lost.then((info) => { lost = info; });
  const code = await (await fetch(new URL(KERNEL.wgsl, import.meta.url))).text();
  const module = device.createShaderModule({ code });
  for (const m of (await module.getCompilationInfo()).messages) {
    if (m.type === "error") throw new KernelError(`${KERNEL.wgsl}:${m.lineNum}: ${m.message}`);
  }
  const storage = (written) => ({ type: written ? "storage" : "read-only-storage" });
  const kinds = [{ type: "uniform" }, ...KERNEL.buffers.map(storage), ...KERNEL.constants.map(() => storage(false))];
  const layout = device.createBindGroupLayout({
    entries: kinds.map((buffer, binding) => ({ binding, visibility: GPUShaderStage.COMPUTE, buffer })),
  });
  const pipeline = await device.createComputePipelineAsync({
    layout: device.createPipelineLayout({ bindGroupLayouts: [layout] }),
    compute: { module, entryPoint: "main", constants: KERNEL.overrides },
  });
  const array = (data, shape) => new DeviceArray(device, data, shape ?? data.shape ?? [data.length]);
  const constants = KERNEL.constants.map((text) =>
    array(Uint8Array.from(atob(text), (c) => c.charCodeAt(0))));

  const kernel = async (grid, ...values) => {
    if (lost) throw new KernelError(`${KERNEL.name}: the device is lost (${lost.message || lost.reason}): load() again`);
    check(values, device);
    const counts = gridOf(grid, device);
    const scalars = KERNEL.scalars(values);
    const temporary = new Map(); // the caller's array -> its copy on the device
    const arrays = values.map((value, k) => {
      const kind = KERNEL.parameters[k];
      if (kind.ndim === undefined || value instanceof DeviceArray) return value;
      const data = value.data ?? value;
      if (!temporary.has(data)) temporary.set(data, array(data, value.shape));
      const shape = value.shape ?? [data.length / kind.lanes];
      return { ...temporary.get(data), shape, copy: temporary.get(data) };
    });
    const used = KERNEL.parameters.flatMap((p, k) => (p.ndim === undefined ? [] : [arrays[k].buffer]));
    if (new Set(used).size < used.length) {
      throw new KernelError("an array is given for two parameters: this text is made for different ones");
    }
    const block = device.createBuffer({
      size: Math.max(16, KERNEL.size),
      usage: GPUBufferUsage.UNIFORM,
      mappedAtCreation: true,
    });
    fill(new DataView(block.getMappedRange()), counts, arrays, scalars);
    block.unmap();
    const buffers = [block, ...used, ...constants.map((c) => c.buffer)];
    device.pushErrorScope("out-of-memory");
    device.pushErrorScope("validation");
    const commands = device.createCommandEncoder();
    const pass = commands.beginComputePass();
    pass.setPipeline(pipeline);
    pass.setBindGroup(0, device.createBindGroup({
      layout,
      entries: buffers.map((buffer, binding) => ({ binding, resource: { buffer } })),
    }));
    if (counts.every((c) => c > 0)) pass.dispatchWorkgroups(...counts);
    pass.end();
    device.queue.submit([commands.finish()]);
    const error = (await device.popErrorScope()) ?? (await device.popErrorScope());
    if (error) throw new KernelError(`${KERNEL.name}: ${error.message}`);
    for (const [k, p] of KERNEL.parameters.entries()) {
      if (p.written && arrays[k].copy) {
        const data = values[k].data ?? values[k];
        data.set(await arrays[k].copy.read());
      }
    }
    for (const copy of temporary.values()) copy.destroy();
    block.destroy();
  };
  return Object.assign(kernel, { array, device, parameters: KERNEL.parameters, block: KERNEL.block });
}

// What a scalar of a dtype may be; a Python integer is sent as 32 bits.
const RANGES = {
  int8: [-(2 ** 7), 2 ** 7 - 1], int16: [-(2 ** 15), 2 ** 15 - 1], int32: [-(2 ** 31), 2 ** 31 - 1],
  uint8: [0, 2 ** 8 - 1], uint16: [0, 2 ** 16 - 1], uint32: [0, 2 ** 32 - 1],
  int: [-(2 ** 53), 2 ** 53],
};

function checkNumber(where, p, value) {
  if (typeof value !== "number" && typeof value !== "boolean") {
    throw new KernelError(`${where} is a number (${p.dtype}), not ${typeof value}`);
  }
  const [low, high] = RANGES[p.dtype] ?? [-Infinity, Infinity];
  if (p.dtype in RANGES && !Number.isInteger(Number(value))) {
    throw new KernelError(`${where} is an integer (${p.dtype}), not ${value}`);
  }
  if (value < low || value > high) {
    throw new KernelError(`${where} is ${value}, which does not fit ${p.dtype} (${low} to ${high})`);
  }
}

function check(values, device) {
  const { name, parameters } = KERNEL;
  if (values.length !== parameters.length) {
    throw new KernelError(`${name}(${parameters.map((p) => p.name).join(", ")}): ${values.length} arguments given`);
  }
  parameters.forEach((p, k) => {
    const where = `${name}: argument ${p.name}`;
    const value = values[k];
    if (p.ndim === undefined) {
      checkNumber(where, p, value);
      return;
    }
    const kind = value instanceof DeviceArray ? value.Kind : (value?.data ?? value)?.constructor;
    if (!p.kinds.includes(kind?.name)) {
      throw new KernelError(`${where} is a ${p.kinds.join(" or ")} (${p.dtype}), not ${kind?.name}`);
    }
    if (value instanceof DeviceArray && value.destroyed) throw new KernelError(`${where} was destroyed`);
    if (value instanceof DeviceArray && value.device !== device) {
      throw new KernelError(`${where} is on another device than the kernel: make it by kernel.array()`);
    }
    const { length } = value instanceof DeviceArray ? value : value.data ?? value;
    const shape = value.shape ?? [length / p.lanes]; // a complex number is two floats
    const size = shape.reduce((a, b) => a * b, 1) * p.lanes;
    const whole = shape.every((n) => Number.isInteger(n) && n >= 0);
    if (shape.length !== p.ndim || size !== length || !whole) {
      throw new KernelError(`${where} has ${p.ndim} dimensions; pass {data, shape} with a shape that fits ${length} numbers`);
    }
  });
}

function gridOf(grid, device) {
  const given = [grid].flat();
  if (given.length < 1 || given.length > 3) {
    throw new KernelError(`${KERNEL.name}: a grid has 1 to 3 dimensions, not ${given.length}`);
  }
  const counts = [1, 1, 1].map((one, k) => (k < given.length ? given[k] : one));
  const most = device.limits.maxComputeWorkgroupsPerDimension;
  if (!counts.every((c) => Number.isInteger(c) && c >= 0 && c <= most)) {
    throw new KernelError(`${KERNEL.name}: grid ${grid}: whole numbers of blocks, up to ${most} along an axis`);
  }
  return counts;
}

/** Write the parameter block: KERNEL.fields are [offset, kind, source, unit]. */
function fill(view, counts, arrays, scalars) {
  const put = { u32: "setUint32", i32: "setInt32", f32: "setFloat32", bool: "setUint32", zeros: "setUint32" };
  for (const [offset, kind, [source, a, b], unit] of KERNEL.fields) {
    const shape = source === "extent" || source === "stride" ? arrays[a].shape : [];
    const value = {
      zeros: () => 0,
      zero: () => 0,
      base: () => 0,
      grid: () => counts[a],
      blocks: () => counts[0] * counts[1] * counts[2],
      shared: () => KERNEL.shared,
      extent: () => shape[b],
      stride: () => (KERNEL.parameters[a].itemsize * shape.slice(b + 1).reduce((x, y) => x * y, 1)) / unit,
      scalar: () => Number(scalars[a]),
    }[source]();
    if (kind !== "f32" && (!Number.isInteger(value) || value < -(2 ** 31) || value >= 2 ** 32)) {
      throw new KernelError(`${KERNEL.name}: ${source} ${a} is ${value}, which does not fit ${kind}`);
    }
    view[put[kind]](offset, value, true);
  }
}
