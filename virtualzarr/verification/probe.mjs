// Probe of zarrita: as probe.py, for the JavaScript library. Run by node in a folder that has
// zarrita among its modules; the request comes as JSON on standard input.

import { createHash } from "node:crypto";
import { readFileSync } from "node:fs";

const MARK = "@virtualzarr-probe ";
const answer = (members) => console.log(MARK + JSON.stringify(members));
const request = JSON.parse(readFileSync(0, "utf8"));

let zarr, FileSystemStore;
try {
  zarr = await import("zarrita");
  ({ default: FileSystemStore } = await import("@zarrita/storage/fs"));
} catch (error) {
  answer({ missing: String(error.message) });
  process.exit(0);
}
const manifest = JSON.parse(readFileSync("node_modules/zarrita/package.json", "utf8"));
answer({ version: manifest.version });

// Texts by their characters, as bytes without what fills their field up.
function textBytes(text) {
  const bytes = Buffer.from(text, "utf8");
  let end = bytes.length;
  while (end && bytes[end - 1] === 0) end--;
  return bytes.subarray(0, end);
}

// Where the elements of a region are in its data, in C order.
function listPositions({ shape, stride }) {
  const count = shape.reduce((a, b) => a * b, 1);
  const at = shape.map(() => 0);
  const positions = new Array(count);
  for (let i = 0; i < count; i++) {
    positions[i] = at.reduce((sum, index, axis) => sum + index * stride[axis], 0);
    for (let axis = shape.length - 1; axis >= 0 && ++at[axis] === shape[axis]; axis--) at[axis] = 0;
  }
  return positions;
}

// The hash of what a region has, as probe.py makes it, and whether all elements are one.
function digest(region) {
  const { data } = region;
  const positions = listPositions(region);
  if (ArrayBuffer.isView(data)) {
    // Bytes, which a way through numbers would change for some NaN.
    const size = data.BYTES_PER_ELEMENT;
    const bytes = Buffer.from(data.buffer, data.byteOffset, data.byteLength);
    const parts = positions.map((index) => bytes.subarray(index * size, (index + 1) * size));
    return hashParts(parts);
  }
  const elements = positions.map((index) => (data.get ? data.get(index) : data[index]));
  if (typeof elements[0] === "boolean") {
    return hashParts(elements.map((element) => Buffer.from([Number(element)])));
  }
  const texts = elements.map((element) => textBytes(String(element)));
  const [, constant] = hashParts(texts);
  const lengths = texts.map((text) => {
    const length = Buffer.alloc(8);
    length.writeBigUInt64LE(BigInt(text.length));
    return Buffer.concat([length, text]);
  });
  return [hashParts(lengths)[0], constant];
}

function hashParts(parts) {
  const hash = createHash("sha256");
  for (const part of parts) hash.update(part);
  return [hash.digest("hex"), parts.every((part) => part.equals(parts[0]))];
}

async function openArray(target, path) {
  if (target.form !== "zarr") {
    return { unsupported: "Zarr hierarchies only: serve or copy it" };
  }
  const isUrl = /^https?:/.test(target.target);
  const store = isUrl ? new zarr.FetchStore(target.target) : new FileSystemStore(target.target);
  const open = target.zarr_format === 2 ? zarr.open.v2 : zarr.open.v3;
  return { array: await open(zarr.root(store).resolve(path), { kind: "array" }) };
}

// A box of an array; one without dimensions is its only chunk.
async function readBox(array, box) {
  if (box.length) return zarr.get(array, box.map(([start, stop]) => zarr.slice(start, stop)));
  return { ...(await array.getChunk([])), shape: [], stride: [] };
}

for (const [number, target] of request.targets.entries()) {
  for (const wanted of target.arrays) {
    const which = { target: number, path: wanted.path };
    try {
      const { array, unsupported } = await openArray(target, wanted.path);
      if (unsupported) {
        answer({ ...which, unsupported });
        continue;
      }
      const hashes = [];
      for (const box of wanted.boxes) hashes.push(digest(await readBox(array, box)));
      answer({ ...which, shape: array.shape, hashes });
    } catch (error) {
      answer({ ...which, error: `${error.name}: ${error.message}` });
    }
  }
}
answer({ done: true });
