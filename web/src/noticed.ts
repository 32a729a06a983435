/**
 * Waiting for the GPU in browsers that notice finished work late.
 *
 * Firefox polls for finished work every 100 ms and at each submit. There, empty submits during a wait
 * cut the time of a small read from 100 ms to 2.
 */

const SLOW_TO_SEE = /\bFirefox\//.test((globalThis.navigator as Navigator | undefined)?.userAgent ?? "");
const FIRST_MILLISECONDS = 1;
const LONGEST_MILLISECONDS = 20;
const GROWTH = 1.5;

/** Await `promise`; with `nudge`, make the browser poll meanwhile. */
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
  // Another task sets the flag, which the type checker cannot know.
  while (waiting as boolean) {
    await Promise.race([seen, new Promise((resolve) => setTimeout(resolve, pause))]);
    if (waiting as boolean) {
      queue.submit([]);
      pause = Math.min(pause * GROWTH, LONGEST_MILLISECONDS);
    }
  }
  return settled;
}

/** Wait until all submitted work has run. */
export const workDone = (queue: GPUQueue): Promise<undefined> => noticed(queue, queue.onSubmittedWorkDone());
