/** Scalars of floats: the quotient of two integers of any size, rounded once to a float64. */

import { inputError } from "./errors";

const LARGEST: ReadonlyMap<string, number> = new Map([
  ["float8_e4m3fn", 448],
  ["float8_e5m2", 57344],
  ["float16", 65504],
  ["bfloat16", 255 * 2 ** 120],
  ["float32", (2 ** 24 - 1) * 2 ** 104],
  ["float64", Number.MAX_VALUE],
]);
const SMALLEST = 2 ** -1022;
// More than a float64 has, so that a last bit for the remainder decides every tie.
const BITS = 66;

const size = (value: bigint): number => value.toString(2).length;

/** `value / divisor`, to nearest even; raises an InputError where it does not fit `dtype`. */
export function quotient(value: bigint, divisor: bigint, dtype: string, what: string): number {
  const negative = value < 0n !== divisor < 0n;
  const [above, below] = [value, divisor].map((each) => (each < 0n ? -each : each)) as [bigint, bigint];
  const rounded = below === 0n ? Infinity : above === 0n ? 0 : divided(above, below);
  if (rounded > (LARGEST.get(dtype) ?? 0) || (above !== 0n && rounded < SMALLEST)) {
    throw inputError(`${what}: the scalar ${value} / ${divisor} does not fit ${dtype}`);
  }
  return negative && rounded !== 0 ? -rounded : rounded;
}

function divided(above: bigint, below: bigint): number {
  const shift = BITS + size(below) - size(above);
  const [up, down] = shift < 0 ? [0n, BigInt(-shift)] : [BigInt(shift), 0n];
  const [scaled, by] = [above << up, below << down];
  const whole = scaled / by;
  // Number() rounds to nearest even.
  const digits = Number(scaled % by === 0n ? whole : whole | 1n);
  const half = Math.trunc(shift / 2);
  return digits * 2 ** -half * 2 ** (half - shift);
}
