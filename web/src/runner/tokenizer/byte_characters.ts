/** A printable character for each byte, GPT-2's: itself where it is printable Latin-1. */

function made(): string[] {
  let spare = 0x100;
  return Array.from({ length: 256 }, (_, byte) => {
    const printable =
      (byte >= 0x21 && byte <= 0x7e) || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
    return String.fromCharCode(printable ? byte : spare++);
  });
}

export const characterOf: readonly string[] = made();

export const byteOf: ReadonlyMap<string, number> = new Map(
  characterOf.map((character, byte) => [character, byte]),
);
