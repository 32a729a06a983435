/** Streams tokens to text, as `text.py`; incomplete characters wait for their last token. */

const UNFINISHED = "\ufffd";
const CONTEXT = 8;

export interface Decodes {
  decode(tokens: readonly number[]): string;
}

/** A tokenizer. */
export interface Codec extends Decodes {
  encode(text: string): number[];
}

export class TextStream {
  // A few tokens of context preserve a leading space.
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

  /** The rest, with a replacement character for incomplete ones. */
  finish(): string {
    const text = this.text();
    const added = text.slice(this.shown).join("");
    this.shown = text.length;
    return added;
  }

  /** Characters, not UTF-16 units. */
  private text(): string[] {
    return Array.from(this.codec.decode(this.pending));
  }
}
