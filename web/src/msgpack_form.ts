/**
 * Checks that bytes are one msgpack value within bounds, before it is decoded.
 *
 * A decoder allocates arrays of the announced length: nested announcements of a few bytes each would
 * exhaust memory. Here every announced element must be present, so the decoded value is at most some
 * dozen times as large as its bytes.
 */

import { protocolError } from "./errors";

export interface FormBounds {
  readonly text: number;
  readonly octets: number;
  readonly array: number;
  readonly map: number;
  readonly depth: number;
}

/** Raise a ProtocolError unless `data` is exactly one value within `bounds`, without extensions. */
export function checkForm(data: Uint8Array, bounds: FormBounds): void {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  // Missing values per open array or map.
  const open: number[] = [1];
  let at = 0;

  const need = (count: number): void => {
    if (at + count > data.length) {
      throw protocolError("the msgpack ends early");
    }
  };
  const length = (width: number): number => {
    need(width);
    const value = width === 1 ? view.getUint8(at) : width === 2 ? view.getUint16(at) : view.getUint32(at);
    at += width;
    return value;
  };
  const skip = (count: number, bound: number, what: string): void => {
    if (count > bound) {
      throw protocolError(`${what} of ${count} bytes; at most ${bound} are allowed`);
    }
    need(count);
    at += count;
  };
  const enter = (count: number, values: number, bound: number, what: string): void => {
    if (count > bound) {
      throw protocolError(`${what} of ${count}; at most ${bound} are allowed`);
    }
    if (values > data.length - at) {
      throw protocolError("the msgpack ends early");
    }
    if (open.length > bounds.depth) {
      throw protocolError(`values nested deeper than ${bounds.depth}`);
    }
    open.push(values);
  };
  const value = (first: number): void => {
    if (first < 0x80 || first >= 0xe0 || first === 0xc0 || first === 0xc2 || first === 0xc3) {
      return;
    }
    if (first < 0x90) {
      enter(first & 15, 2 * (first & 15), bounds.map, "a map");
    } else if (first < 0xa0) {
      enter(first & 15, first & 15, bounds.array, "an array");
    } else if (first < 0xc0) {
      skip(first & 31, bounds.text, "text");
    } else if (first >= 0xc4 && first <= 0xc6) {
      skip(length(1 << (first - 0xc4)), bounds.octets, "a byte string");
    } else if (first >= 0xca && first <= 0xd3) {
      const widths = [4, 8, 1, 2, 4, 8, 1, 2, 4, 8];
      skip(widths[first - 0xca] ?? 8, 8, "a number");
    } else if (first >= 0xd9 && first <= 0xdb) {
      skip(length(1 << (first - 0xd9)), bounds.text, "text");
    } else if (first === 0xdc || first === 0xdd) {
      const count = length(first === 0xdc ? 2 : 4);
      enter(count, count, bounds.array, "an array");
    } else if (first === 0xde || first === 0xdf) {
      const count = length(first === 0xde ? 2 : 4);
      enter(count, 2 * count, bounds.map, "a map");
    } else {
      throw protocolError("msgpack extension types are not taken");
    }
  };

  while (open.length > 0) {
    const left = open[open.length - 1] ?? 0;
    if (left === 0) {
      open.pop();
      continue;
    }
    open[open.length - 1] = left - 1;
    need(1);
    at += 1;
    value(data[at - 1] ?? 0);
  }
  if (at !== data.length) {
    throw protocolError(`${data.length - at} bytes follow the msgpack value`);
  }
}
