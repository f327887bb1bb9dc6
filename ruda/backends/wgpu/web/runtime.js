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
    this.device = device;
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
    this.buffer.destroy();
  }
}

// Of integers, as in a kernel: they floor, and x // 0 is 0.
const floordiv = (a, b) => (b === 0 ? 0 : Math.floor(a / b));
const mod = (a, b) => (b === 0 ? 0 : a - b * Math.floor(a / b));
const padded = (bytes) => Math.max(4, Math.ceil(bytes / 4) * 4);

async function request() {
  if (!globalThis.navigator?.gpu) {
    throw new KernelError("this browser has no WebGPU (and pages have it only on https or localhost)");
  }
  const adapter = await navigator.gpu.requestAdapter({ powerPreference: "high-performance" });
  if (!adapter) throw new KernelError("this browser finds no WebGPU adapter");
  const limits = {};
  for (const name of ["maxBufferSize", "maxStorageBufferBindingSize"]) limits[name] = adapter.limits[name];
  return adapter.requestDevice({ requiredLimits: limits });
}

/** Compile the kernel for a device (a new one if none is given). The result is a function
 *  `kernel(grid, ...arguments)`, with `kernel.array`, `kernel.device` and `kernel.parameters`. */
export async function load(device) {
  device ??= await request();
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
    check(values);
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
    const error = await device.popErrorScope();
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

function check(values) {
  const { name, parameters } = KERNEL;
  if (values.length !== parameters.length) {
    throw new KernelError(`${name}(${parameters.map((p) => p.name).join(", ")}): ${values.length} arguments given`);
  }
  parameters.forEach((p, k) => {
    const where = `${name}: argument ${p.name}`;
    const value = values[k];
    if (p.ndim === undefined) {
      if (typeof value !== "number" && typeof value !== "boolean") {
        throw new KernelError(`${where} is a number (${p.dtype}), not ${typeof value}`);
      }
      return;
    }
    const kind = value instanceof DeviceArray ? value.Kind : (value?.data ?? value)?.constructor;
    if (!p.kinds.includes(kind?.name)) {
      throw new KernelError(`${where} is a ${p.kinds.join(" or ")} (${p.dtype}), not ${kind?.name}`);
    }
    const { length } = value instanceof DeviceArray ? value : value.data ?? value;
    const shape = value.shape ?? [length / p.lanes]; // a complex number is two floats
    const size = shape.reduce((a, b) => a * b, 1) * p.lanes;
    if (shape.length !== p.ndim || size !== length) {
      throw new KernelError(`${where} has ${p.ndim} dimensions; pass {data, shape} with a shape that fits ${length} numbers`);
    }
  });
}

function gridOf(grid, device) {
  const counts = [1, 1, 1].map((one, k) => [grid].flat()[k] ?? one);
  const most = device.limits.maxComputeWorkgroupsPerDimension;
  if (!counts.every((c) => Number.isInteger(c) && c >= 0 && c <= most)) {
    throw new KernelError(`${KERNEL.name}: grid ${grid}: whole numbers of blocks, up to ${most} along an axis`);
  }
  return counts;
}

/** Write the parameter block: KERNEL.fields are [offset, kind, source, unit]. */
function fill(view, counts, arrays, scalars) {
  const put = { u32: "setUint32", i32: "setInt32", f32: "setFloat32", bool: "setUint32" };
  for (const [offset, kind, [source, a, b], unit] of KERNEL.fields) {
    const shape = source === "extent" || source === "stride" ? arrays[a].shape : [];
    const value = {
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
