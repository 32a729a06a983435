/** Tokens to text: the decoders of a `tokenizer.json`, as `tokenizer_steps.py` has them. */

import { byteOf } from "./byte_characters";
import { entries, textField, unsupported, type Fields } from "./fields";
import { metaspaceSettings, patternOf } from "./steps";

export type Decoder = (tokens: readonly string[]) => readonly string[];

const BYTE_TOKEN = /^<0x([0-9A-Fa-f]{2})>$/;
const MISSING = "\ufffd";

/** The decoder that an entry describes; without one, tokens are joined with spaces. */
export function decoder(data: Fields | null): Decoder {
  if (data === null) {
    return (tokens) => [tokens.join(" ")];
  }
  switch (data["type"]) {
    case "ByteLevel": {
      const text = new TextDecoder("utf-8", { ignoreBOM: true });
      return (tokens) => [text.decode(Uint8Array.from(tokens.flatMap(bytesOf)))];
    }
    case "Metaspace": {
      const [mark, scheme] = metaspaceSettings(data);
      const start = scheme === "never" ? " " : "";
      return (tokens) =>
        tokens.map((token, index) => token.replaceAll(mark, index === 0 ? start : " "));
    }
    case "Replace": {
      const pattern = patternOf(data);
      const content = textField(data, "content");
      return (tokens) => tokens.map((token) => token.replace(pattern, () => content));
    }
    case "ByteFallback":
      return joinBytes;
    case "Fuse":
      return (tokens) => [tokens.join("")];
    case "Strip": {
      const { content, start, stop } = data as { content?: unknown; start?: unknown; stop?: unknown };
      if (
        typeof content !== "string" ||
        typeof start !== "number" ||
        typeof stop !== "number" ||
        Array.from(content).length !== 1
      ) {
        throw unsupported("decoder", data);
      }
      return (tokens) => tokens.map((token) => cut(token, content, start, stop));
    }
    case "Sequence": {
      const steps = entries(data, "decoders").map(decoder);
      return (tokens) => steps.reduce((changed, step) => step(changed), tokens);
    }
  }
  throw unsupported("decoder", data);
}

/** Bytes that a byte-level token stands for; its own where it holds any other character. */
function bytesOf(token: string): number[] {
  const bytes: number[] = [];
  for (const character of token) {
    const byte = byteOf.get(character);
    if (byte === undefined) {
      return [...new TextEncoder().encode(token)];
    }
    bytes.push(byte);
  }
  return bytes;
}

/** Text for each run of byte tokens; a replacement character for each where it is none. */
function joinBytes(tokens: readonly string[]): readonly string[] {
  const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
  const found: string[] = [];
  let run: number[] = [];
  const endRun = (): void => {
    if (run.length === 0) {
      return;
    }
    try {
      found.push(strict.decode(Uint8Array.from(run)));
    } catch {
      found.push(...run.map(() => MISSING));
    }
    run = [];
  };
  for (const token of tokens) {
    const byte = BYTE_TOKEN.exec(token);
    if (byte !== null) {
      run.push(parseInt(byte[1] ?? "", 16));
    } else {
      endRun();
      found.push(token);
    }
  }
  endRun();
  return found;
}

/** Without up to `start` leading and `stop` trailing characters that are `content`. */
function cut(token: string, content: string, start: number, stop: number): string {
  const characters = Array.from(token);
  let first = 0;
  while (first < Math.min(start, characters.length) && characters[first] === content) {
    first += 1;
  }
  let last = characters.length;
  const least = Math.max(first, characters.length - stop);
  while (last > least && characters[last - 1] === content) {
    last -= 1;
  }
  return characters.slice(first, last).join("");
}
