/** A tokenizer held against lines that the model's own was compared on when the folder was made. */

import { inputError } from "../../errors";
import type { Tokenizer } from "./tokenizer";

const MOST_LINES = 4096;

/** Raise an InputError with the first line whose tokens, or their text, are others here. */
export function compareLines(tokenizer: Tokenizer, lines: unknown): void {
  if (!Array.isArray(lines) || lines.length > MOST_LINES) {
    throw inputError("the lines to compare it on make no sense");
  }
  for (const entry of lines as readonly unknown[]) {
    const [line, ids, text] = Array.isArray(entry) ? (entry as unknown[]) : [];
    if (typeof line !== "string" || !Array.isArray(ids) || typeof text !== "string") {
      throw inputError("the lines to compare it on make no sense");
    }
    const found = tokenizer.encode(line);
    if (found.join() !== ids.join() || tokenizer.decode(found) !== text) {
      throw inputError(
        `this browser reads ${JSON.stringify(line.slice(0, 60))} as other tokens than the model's ` +
          "own tokenizer: it may know other characters",
      );
    }
  }
}
