/** The packed form of a Library (`library_format.py`): a frame, a msgpack header, the code. */

import { decode } from "@msgpack/msgpack";

import { messageOf, protocolError } from "./errors";
import type { Library } from "./library";
import { checkLibrary } from "./library_check";
import { decodeLibrary } from "./library_decode";
import { checkForm } from "./msgpack_form";

const MAGIC = "TAPMLLIB";
const FRAME_BYTES = 16;
const MAX_HEADER_BYTES = 16 << 20;

export const LIBRARY_VERSION = 3;

// A header holds no maps and no byte strings.
const BOUNDS = { text: MAX_HEADER_BYTES, octets: -1, array: MAX_HEADER_BYTES, map: -1, depth: 256 };

/** Read packed bytes, trusting nothing in them; raises a ProtocolError. */
export function unpackLibrary(data: Uint8Array): Library {
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  if (data.length < FRAME_BYTES) {
    throw protocolError(`expected a Library of at least ${FRAME_BYTES} bytes, got ${data.length}`);
  }
  const magic = String.fromCharCode(...data.subarray(0, 8));
  const version = view.getUint32(8, true);
  const headerBytes = view.getUint32(12, true);
  if (magic !== MAGIC) {
    throw protocolError(`not a Library: it does not begin with ${MAGIC}`);
  }
  if (version !== LIBRARY_VERSION) {
    throw protocolError(
      `a Library of version ${version}, and this tapml reads version ${LIBRARY_VERSION}: compile it ` +
        "again with this tapml, or install the same tapml on both sides",
    );
  }
  if (headerBytes > MAX_HEADER_BYTES || headerBytes > data.length - FRAME_BYTES) {
    throw protocolError(`a Library's header cannot have ${headerBytes} bytes here`);
  }
  const packed = data.subarray(FRAME_BYTES, FRAME_BYTES + headerBytes);
  let header: unknown;
  try {
    checkForm(packed, BOUNDS);
    header = decode(packed, { useBigInt64: true });
  } catch (error) {
    throw protocolError(`a Library's header is not msgpack: ${messageOf(error)}`);
  }
  const library = decodeLibrary(header, data.subarray(FRAME_BYTES + headerBytes));
  checkLibrary(library);
  return library;
}
