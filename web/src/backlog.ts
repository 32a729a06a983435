/**
 * How far a session runs ahead of the GPU.
 *
 * A browser neither stops nor takes back what was submitted. So little of a session's work is there
 * at any time: two submits, each of about as many commands as took the GPU a fifth of a second
 * before. The rest waits in the page, where other sessions' submits come in between, and where it
 * ends with its session.
 */

import { noticed } from "./noticed";

const MOST_AHEAD = 2;
const AIM_MILLISECONDS = 200;
const GROWTH = 2;
/** Before anything is known of how long a session's commands take. */
const FIRST_COMMANDS = 4;
/** Some systems take a GPU away from whom one submit keeps it busy for seconds. */
export const MOST_COMMANDS = 64;

interface Submitted {
  readonly stage: string;
  readonly done: Promise<unknown>;
}

export class Backlog {
  /** How many commands the next submit is to hold. */
  commands = FIRST_COMMANDS;
  private readonly ahead: Submitted[] = [];
  private over = false;
  /** Ends the wait of the batch that runs; they run one after the other. */
  private end: () => void = () => undefined;

  /** Note a submit of so many commands; `done` gives the milliseconds for which it held the GPU. */
  submitted(stage: string, commands: number, done: Promise<number>): void {
    const work: Submitted = {
      stage,
      done: done.then((milliseconds) => {
        this.ahead.splice(this.ahead.indexOf(work), 1);
        const fitting = Math.floor((commands * AIM_MILLISECONDS) / Math.max(milliseconds, 0.1));
        const most = Math.min(MOST_COMMANDS, GROWTH * this.commands);
        this.commands = Math.max(1, Math.min(most, fitting));
      }),
    };
    this.ahead.push(work);
  }

  /** Whether nothing more is to be submitted for now. */
  get isFull(): boolean {
    return !this.over && this.ahead.length >= MOST_AHEAD;
  }

  /** What the submit does that is waited for first. */
  get oldest(): string {
    return this.ahead[0]?.stage ?? "";
  }

  /** Wait until the oldest submit is done, or nobody cares any more. */
  async next(queue: GPUQueue): Promise<void> {
    const [oldest] = this.ahead;
    if (oldest !== undefined && !this.over) {
      const next = new Promise<void>((resolve) => {
        this.end = resolve;
        void oldest.done.then(() => {
          resolve();
        });
      });
      await noticed(queue, next);
    }
  }

  /** The session is over: nobody waits any more. */
  close(): void {
    this.over = true;
    this.end();
  }
}
