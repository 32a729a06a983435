/**
 * Waiting for the GPU where a browser is slow to see that it is done.
 *
 * Firefox looks for finished work every 100 ms, and whenever something is submitted. So there, while
 * one waits, nothing is submitted now and then: a read of a few bytes takes 2 ms instead of 100.
 */

const SLOW_TO_SEE = /\bFirefox\//.test((globalThis.navigator as Navigator | undefined)?.userAgent ?? "");
const FIRST_MILLISECONDS = 1;
const LONGEST_MILLISECONDS = 20;
const GROWTH = 1.5;

/** What `promise` gives, seen soon after the GPU has it; `nudge` makes a browser look. */
export async function noticed<T>(
  queue: Pick<GPUQueue, "submit">,
  promise: Promise<T>,
  nudge = SLOW_TO_SEE,
): Promise<T> {
  if (!nudge) {
    return promise;
  }
  let waiting = true;
  const settled = promise.finally(() => {
    waiting = false;
  });
  const seen = settled.then(
    () => null,
    () => null,
  );
  let pause = FIRST_MILLISECONDS;
  // Another task may have settled it: the flag says so, which the checker cannot know.
  while (waiting as boolean) {
    await Promise.race([seen, new Promise((resolve) => setTimeout(resolve, pause))]);
    if (waiting as boolean) {
      queue.submit([]);
      pause = Math.min(pause * GROWTH, LONGEST_MILLISECONDS);
    }
  }
  return settled;
}

/** Wait until everything that was submitted has run. */
export const workDone = (queue: GPUQueue): Promise<undefined> =>
  noticed(queue, queue.onSubmittedWorkDone());
