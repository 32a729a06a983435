/**
 * How far a session runs ahead of the GPU.
 *
 * A browser cannot stop or withdraw submitted work. So a session has at most two submits on the GPU,
 * each sized to take about a fifth of a second by the last measurement. The rest waits in the page,
 * where other sessions take turns and the work ends with its session.
 */

import { noticed } from "./noticed";

const MOST_AHEAD = 2;
const AIM_MILLISECONDS = 200;
const GROWTH = 2;
/** Before the first measurement. */
const FIRST_COMMANDS = 4;
/** Some systems reset the GPU if one submit takes seconds. */
export const MOST_COMMANDS = 64;

interface Submitted {
  readonly stage: string;
  readonly done: Promise<unknown>;
}

export class Backlog {
  /** Commands of the next submit. */
  commands = FIRST_COMMANDS;
  private readonly ahead: Submitted[] = [];
  private over = false;
  /** Ends the wait of the running batch. */
  private end: () => void = () => undefined;

  /** Note a submit; `done` resolves to the milliseconds it took. */
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

  get isFull(): boolean {
    return !this.over && this.ahead.length >= MOST_AHEAD;
  }

  /** The stage of the oldest submit. */
  get oldest(): string {
    return this.ahead[0]?.stage ?? "";
  }

  /** Wait until the oldest submit is done or the session ends. */
  async next(queue: GPUQueue): Promise<void> {
    const [oldest] = this.ahead;
    if (oldest !== undefined && !this.over) {
      const next = new Promise<void>((resolve) => {
        this.end = resolve;
        void oldest.done.then(() => resolve());
      });
      await noticed(queue, next);
    }
  }

  /** End the session and its wait. */
  close(): void {
    this.over = true;
    this.end();
  }
}
