/**
 * Byte pair encoding: a word is taken apart into characters, which are merged again by rank.
 *
 * As `tokenizer_bpe.py`: equal ranks from left to right, byte tokens `<0x0A>` for unknown characters
 * where all of them exist.
 */

const CACHED_WORDS = 1 << 14;
const LONGEST_CACHED = 256;
/** Above the ids of any vocabulary, and such that a pair of them is a safe integer. */
export const MAX_TOKENS = 1 << 22;
const POSITIONS = 2 ** 30;

export interface Settings {
  readonly vocabulary: ReadonlyMap<string, number>;
  /** For each merge, by rank: the pair and the token it becomes. */
  readonly merges: readonly (readonly [first: number, second: number, merged: number])[];
  readonly unknown: number | null;
  readonly fuseUnknown: boolean;
  readonly byteFallback: boolean;
  readonly ignoreMerges: boolean;
}

const pairOf = (first: number, second: number): number => first * MAX_TOKENS + second;

export class BytePairs {
  private readonly ranks: ReadonlyMap<number, number>;
  private readonly cache = new Map<string, readonly number[]>();

  constructor(private readonly settings: Settings) {
    this.ranks = new Map(
      settings.merges.map(([first, second], rank) => [pairOf(first, second), rank]),
    );
  }

  /** Ids of a word. */
  encode(word: string): readonly number[] {
    const known = this.cache.get(word);
    if (known !== undefined) {
      return known;
    }
    const whole = this.settings.ignoreMerges ? this.settings.vocabulary.get(word) : undefined;
    const ids = whole !== undefined ? [whole] : this.merge(this.characters(word));
    if (word.length <= LONGEST_CACHED && this.cache.size < CACHED_WORDS) {
      this.cache.set(word, ids);
    }
    return ids;
  }

  private characters(word: string): number[] {
    const { vocabulary, unknown, fuseUnknown, byteFallback } = this.settings;
    const encoder = new TextEncoder();
    const ids: number[] = [];
    let waiting: number | null = null;
    for (const character of word) {
      const token = vocabulary.get(character);
      if (token !== undefined) {
        if (waiting !== null) {
          ids.push(waiting);
          waiting = null;
        }
        ids.push(token);
        continue;
      }
      if (byteFallback) {
        const names = Array.from(
          encoder.encode(character),
          (byte) => `<0x${byte.toString(16).toUpperCase().padStart(2, "0")}>`,
        );
        const found = names.flatMap((name) => vocabulary.get(name) ?? []);
        if (found.length === names.length) {
          ids.push(...found);
          continue;
        }
      }
      if (unknown !== null) {
        if (waiting !== null && !fuseUnknown) {
          ids.push(waiting);
        }
        waiting = unknown;
      }
    }
    return waiting === null ? ids : [...ids, waiting];
  }

  /** Merge neighbours, lowest rank first; merged symbols stay in place as a linked list. */
  private merge(ids: number[]): readonly number[] {
    const { merges } = this.settings;
    const count = ids.length;
    const before = Int32Array.from(ids, (_, index) => index - 1);
    const after = Int32Array.from(ids, (_, index) => (index + 1 < count ? index + 1 : -1));
    const gone = new Uint8Array(count);
    const queue = new Heap();
    const push = (position: number, first: number, second: number): void => {
      const rank = this.ranks.get(pairOf(first, second));
      if (rank !== undefined) {
        queue.push(rank * POSITIONS + position);
      }
    };
    for (let position = 0; position + 1 < count; position += 1) {
      push(position, ids[position] ?? 0, ids[position + 1] ?? 0);
    }
    for (let next = queue.pop(); next !== undefined; next = queue.pop()) {
      const position = next % POSITIONS;
      const merged = merges[Math.floor(next / POSITIONS)]?.[2] ?? 0;
      const following = after[position] ?? -1;
      if (gone[position] === 1 || following < 0) {
        continue;
      }
      const rank = this.ranks.get(pairOf(ids[position] ?? 0, ids[following] ?? 0));
      // An entry that an earlier merge has overtaken names another token.
      if (rank === undefined || merges[rank]?.[2] !== merged) {
        continue;
      }
      ids[position] = merged;
      gone[following] = 1;
      const beyond = after[following] ?? -1;
      after[position] = beyond;
      if (beyond >= 0) {
        before[beyond] = position;
      }
      const left = before[position] ?? -1;
      if (left >= 0) {
        push(left, ids[left] ?? 0, merged);
      }
      if (beyond >= 0) {
        push(position, merged, ids[beyond] ?? 0);
      }
    }
    return ids.filter((_, index) => gone[index] === 0);
  }
}

/** Numbers, the smallest first. */
class Heap {
  private readonly items: number[] = [];

  push(value: number): void {
    const { items } = this;
    let at = items.length;
    items.push(value);
    while (at > 0) {
      const parent = (at - 1) >> 1;
      const above = items[parent] ?? 0;
      if (above <= value) {
        break;
      }
      items[at] = above;
      at = parent;
    }
    items[at] = value;
  }

  pop(): number | undefined {
    const { items } = this;
    const top = items[0];
    const last = items.pop();
    if (items.length === 0 || last === undefined) {
      return top;
    }
    let at = 0;
    for (;;) {
      let child = 2 * at + 1;
      if (child >= items.length) {
        break;
      }
      if ((items[child + 1] ?? Infinity) < (items[child] ?? 0)) {
        child += 1;
      }
      const below = items[child] ?? 0;
      if (below >= last) {
        break;
      }
      items[at] = below;
      at = child;
    }
    items[at] = last;
    return top;
  }
}
