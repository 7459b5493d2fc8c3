"""The JavaScript that goes with a WebAssembly module: loads it, calls it with typed arrays.

Owns the text. It is an ES module for browsers and Node, without dependencies.
"""

from __future__ import annotations

import json

from jitgrad.compiler.codegen.capi import Model, Port
from jitgrad.runtime import artifact_format as fmt

_ARRAYS = {
    "bool": "Uint8Array", "uint8": "Uint8Array", "int8": "Int8Array", "int16": "Int16Array",
    "int32": "Int32Array", "int64": "BigInt64Array", "uint16": "Uint16Array",
    "uint32": "Uint32Array",
    "uint64": "BigUint64Array", "float16": "Uint16Array", "bfloat16": "Uint16Array",
    "float32": "Float32Array", "float64": "Float64Array",
}  # fmt: skip


_WEIGHTS = """\
  weights = new Uint8Array(await bytesOf(weights, @FILE@));
  if (subtle) {  // SHA-256 of the CRC-32s of pieces
    const table = Uint32Array.from({ length: 256 }, (_, n) => {
      for (let k = 0; k < 8; k++) n = n & 1 ? (n >>> 1) ^ 0xedb88320 : n >>> 1;
      return n;
    });
    const found = [];
    for (let at = @HEAD@; at < weights.length; at += @PIECE@) {
      let crc = -1;
      const end = Math.min(at + @PIECE@, weights.length);
      for (let k = at; k < end; k++) crc = table[(crc ^ weights[k]) & 255] ^ (crc >>> 8);
      found.push(~crc);
    }
    const all = new Uint8Array(await subtle.digest("SHA-256", new Int32Array(found)));
    if (all.some((byte, k) => byte !== weights[@DIGEST@ + k])) {
      throw new Error(label + "expected the weights in " + @FILE@
        + " as they were written; got a file that is none, was truncated or altered");
    }
  }
"""
_CREATE = """\
    this.instance = this.call("create", 1);
    if (!this.instance) throw new Error(label + "no memory for an instance");
"""
_CREATE_WITH = """\
    const place = this.allocate(weights.length);
    new Uint8Array(exports.memory.buffer, place, weights.length).set(weights);
    const why = this.allocate(4);
    this.instance = this.call("create_with", 1, place, BigInt(weights.length), why);
    const text = new Uint32Array(exports.memory.buffer, why, 1)[0];
    if (!this.instance) throw new Error(label + this.text(text));
    this.weights = [place, why];
"""
_RESIZE = """
  // Sets the sizes that may differ, by name; results then have the shapes `outputShapes`.
  resize(given) {
    this.check();
    const names = sizes.map((s) => s.name);
    const other = Object.keys(given ?? {}).find((name) => !names.includes(name));
    if (typeof given !== "object" || given === null || other !== undefined) {
      const got = other ?? (given === null ? "null" : typeof given);
      const all = names.join(", ");
      throw new TypeError(`${label}expected an object of the sizes ${all}; got ${got}`);
    }
    const missing = names.find((name) => !Number.isSafeInteger(given[name]));
    if (missing !== undefined) {
      const got = given[missing];
      throw new TypeError(`${label}expected a whole number as size ${missing}; got ${got}`);
    }
    const place = this.allocate(8 * sizes.length);
    const values = sizes.map((s) => BigInt(given[s.name]));
    new BigInt64Array(this.exports.memory.buffer, place, sizes.length).set(values);
    const status = this.call("set_sizes", this.instance, place);
    this.call("free", place);
    if (status) {
      const text = this.text(this.call("last_error", this.instance));
      const got = names.map((n) => `${n} = ${given[n]}`).join(", ");
      throw new RangeError(`${label}${text}; got ${got}`);
    }
    const memory = new BigInt64Array(this.exports.memory.buffer);
    const product = (shape) => shape.reduce((a, b) => a * b, 1);
    this.outputShapes = outputs.map((p, i) => {
      const at = this.call("output_shape", this.instance, i) / 8;
      return Array.from(memory.subarray(at, at + p.shape.length), Number);
    });
    const shapes = inputs.map((p) => p.shape.map((d) => (typeof d === "string" ? given[d] : d)));
    this.counts = [...shapes, ...this.outputShapes].map(product);
  }
"""

_RESIZED = """\
    if (!this.outputShapes) {
      const names = sizes.map((s) => s.name).join(", ");
      throw new Error(`${label}expected the sizes ${names} to be set; call resize before run`);
    }
"""


def wasm_loader(model: Model, digest: str) -> str:
    """The text of the loader of a module with this SHA-256 ("": not known, not checked)."""

    def describe(ports: list[tuple[int, Port]]) -> str:
        rows = [{"name": p.name, "dtype": p.dtype, "shape": p.labels, "size": p.numel}
                for _, p in ports]  # fmt: skip
        return json.dumps(rows)

    sizes = [{"name": s.name, "min": s.low, "max": s.high} for s in model.sizes]
    resizing, resized, example = "", "", ""
    if sizes:
        resizing, resized = _RESIZE, _RESIZED
        example = "//     model.resize({ " + ", ".join(f"{s.name}: {s.low}" for s in model.sizes)
        example += " });  // sizes that may differ; their arrays are as large as they say\n"
    side, weights, create = "", "", _CREATE
    files = f'fetch("{model.name}.wasm")'
    if model.side:
        side, weights, create = ", weights", _WEIGHTS, _CREATE_WITH
        weights = weights.replace("@FILE@", json.dumps(model.weights_file))
        weights = weights.replace("@DIGEST@", str(fmt.WEIGHTS_DIGEST.start))
        weights = weights.replace("@HEAD@", str(fmt.WEIGHTS_HEAD))
        weights = weights.replace("@PIECE@", str(fmt.PIECE))
        files += f", fetch({json.dumps(model.weights_file)})"
    dtypes = {p.dtype for _, p in (*model.inputs, *model.outputs)}
    arrays = ", ".join(f"{d}: {_ARRAYS[d]}" for d in sorted(dtypes))
    return f"""\
// {model.version}
//
//     import {{ load }} from "./{model.name}.js";
//     const model = await load({files});  // or bytes
{example}//     const [y] = model.run(new Float32Array(...));
//
// Inputs and results are typed arrays, dense and row-major (float16 and bfloat16 as their bits).
const digest = "{digest}";
const prefix = "jg_{model.name}_";
const label = "[{model.name}] ";  // what errors begin with
const describe = (p) => `${{p.name}}: ${{p.dtype}}[${{p.shape.join(", ")}}]`;
const arrays = {{ {arrays} }};
export const inputs = {describe(model.inputs)};
export const outputs = {describe(model.outputs)};
export const sizes = {json.dumps(sizes)};

async function bytesOf(source, name) {{
  source = await source;
  if (typeof Response !== "undefined" && source instanceof Response) {{
    if (!source.ok) throw new Error(`${{label}}expected ${{name}}; got status ${{source.status}}`);
    source = await source.arrayBuffer();
  }}
  if (typeof source?.byteLength !== "number") {{
    throw new TypeError(`${{label}}expected ${{name}}: its bytes, or a Response; got ${{source}}`);
  }}
  return source;
}}

export async function load(source{side}) {{
  source = await bytesOf(source, "{model.name}.wasm");
  let subtle = globalThis.crypto?.subtle;  // pages have it in secure contexts only
  if (!subtle && globalThis.process?.versions?.node) {{
    subtle = (await import("node:crypto")).webcrypto.subtle;
  }}
  if (subtle && digest) {{
    const found = new Uint8Array(await subtle.digest("SHA-256", source));
    if (Array.from(found, (b) => b.toString(16).padStart(2, "0")).join("") !== digest) {{
      throw new Error(label + "expected the {model.name}.wasm that this file was written with; got "
        + "other bytes: it is truncated, altered, or of another export");
    }}
  }}
  const made = await WebAssembly.instantiate(source, {{}});
{weights}  return new Model(made.instance.exports{side});
}}

export class Model {{
  constructor(exports{side}) {{
    this.exports = exports;
    this.inputs = inputs;
    this.outputs = outputs;
{create}    const ports = [...inputs, ...outputs];
    this.places = ports.map((p) => this.allocate(p.size * arrays[p.dtype].BYTES_PER_ELEMENT));
    this.counts = ports.map((p) => p.size);
    this.table = this.allocate(4 * ports.length);
    new Uint32Array(exports.memory.buffer, this.table, ports.length).set(this.places);
  }}

  // Pointers come as signed numbers: those from 2 GiB on below 0.
  call(name, ...given) {{
    return this.exports[prefix + name](...given) >>> 0;
  }}

  check() {{
    if (!this.instance) throw new Error(label + "this instance was destroyed; make another");
  }}

  allocate(nbytes) {{
    const at = nbytes < 2 ** 32 && this.call("alloc", Math.max(16, nbytes));
    if (!at) throw new Error(`${{label}}no memory for ${{nbytes}} bytes`);
    return at;
  }}

  view(port, place, size) {{
    return new arrays[port.dtype](this.exports.memory.buffer, place, size);
  }}

  text(at) {{
    const bytes = new Uint8Array(this.exports.memory.buffer, at);
    return new TextDecoder().decode(bytes.slice(0, bytes.indexOf(0)));
  }}

  // One typed array for each input; gives an array of fresh typed arrays, one for each output.
  run(...given) {{
    this.check();
{resized}    if (given.length !== inputs.length) {{
      const names = inputs.map(describe).join(", ") || "none";
      throw new TypeError(
        `${{label}}expected ${{inputs.length}} inputs (${{names}}); got ${{given.length}}`);
    }}
    inputs.forEach((p, i) => {{
      if (!(given[i] instanceof arrays[p.dtype]) || given[i].length !== this.counts[i]) {{
        const found = given[i]?.constructor?.name ?? String(given[i]);
        const count = given[i]?.length === undefined ? "" : ` of ${{given[i].length}}`;
        throw new TypeError(
          `${{label}}expected input ${{describe(p)}} to be a ${{arrays[p.dtype].name}} of ` +
          `${{this.counts[i]}} elements; got ${{found}}${{count}}`);
      }}
      this.view(p, this.places[i], this.counts[i]).set(given[i]);
    }});
    const status = this.call("run", this.instance, this.table, this.table + 4 * inputs.length);
    if (status === {fmt.FAULT} || status === {fmt.BAD_ARGUMENT}) {{
      throw new RangeError(label + this.text(this.call("last_error", this.instance)));
    }}
    if (status !== {fmt.OK}) throw new Error(`${{label}}run returned status ${{status}}`);
    return outputs.map((p, i) => {{
      const n = inputs.length + i;
      return this.view(p, this.places[n], this.counts[n]).slice();
    }});
  }}
{resizing}
  // Gives the memory of this instance back to the module; once more does nothing.
  destroy() {{
    if (!this.instance) return;
    this.call("destroy", this.instance);
    const more = this.weights ?? [];
    for (const place of [...this.places, this.table, ...more]) this.call("free", place);
    this.instance = 0;
  }}
}}
"""
