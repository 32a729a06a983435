/** Tokens to text as they come, as `text.py`: what a character takes several tokens for waits. */

const UNFINISHED = "\ufffd";
const CONTEXT = 8;

export interface Decodes {
  decode(tokens: readonly number[]): string;
}

export class TextStream {
  // Some context before the new tokens keeps their leading space; all of it is not needed.
  private pending: number[];
  private shown: number;

  constructor(
    private readonly codec: Decodes,
    prompt: readonly number[],
  ) {
    this.pending = prompt.slice(-CONTEXT);
    this.shown = this.text().length;
  }

  /** Text that the token completes, possibly none. */
  push(token: number): string {
    this.pending.push(token);
    const text = this.text();
    if (text.at(-1) === UNFINISHED || text.length <= this.shown) {
      return "";
    }
    const added = text.slice(this.shown).join("");
    this.pending = this.pending.slice(-CONTEXT);
    this.shown = this.text().length;
    return added;
  }

  /** What was held back, with a replacement character for bytes that are no text. */
  finish(): string {
    const text = this.text();
    const added = text.slice(this.shown).join("");
    this.shown = text.length;
    return added;
  }

  /** By characters, so that none is cut in two. */
  private text(): string[] {
    return Array.from(this.codec.decode(this.pending));
  }
}
