/** A Library as uploaded to a device; mirrors `tapml_targets/library.py`. */

import type { Expression } from "./expression";

export type Role = "input" | "output" | "inout";
/** Text for the device's compiler, code of a virtual machine, or of a processor. */
export type ModuleKind = "source" | "portable" | "machine";
export type Extents<T> = readonly [T, T, T];

export interface Parameter {
  readonly name: string;
  readonly shape: readonly Expression[];
  readonly dtype: string;
  readonly role: Role;
}

/** Device memory that lives for one call; the intermediates of an entry are of the same form. */
export interface Workspace {
  readonly name: string;
  readonly nbytes: Expression;
}

export interface Kernel {
  readonly name: string;
  readonly symbol: string;
  readonly module: number;
  readonly threadsPerBlock: number;
  readonly sharedMemoryBytes: number;
  readonly features: readonly string[];
  /** Threads of a subgroup that it was compiled for; 0 for any number. */
  readonly subgroupWidth: number;
}

export type Argument =
  | {
      readonly kind: "buffer";
      readonly name: string;
      readonly byteOffset: Expression;
      /** To the end of the tensor if absent. */
      readonly nbytes?: Expression;
    }
  | { readonly kind: "tensor"; readonly name: string }
  | {
      readonly kind: "scalar";
      readonly value: Expression;
      readonly dtype: string;
      readonly divisor: Expression;
    };

export interface Launch {
  readonly kind: "launch";
  readonly kernel: string;
  readonly arguments: readonly Argument[];
  readonly grid: Extents<Expression>;
  readonly block: Extents<Expression>;
  readonly dynamicSharedBytes: Expression;
}

export interface Loop {
  readonly kind: "loop";
  readonly symbol: string;
  readonly start: Expression;
  readonly extent: Expression;
  readonly body: readonly Statement[];
}

export interface Condition {
  readonly kind: "if";
  readonly condition: Expression;
  readonly then: readonly Statement[];
  readonly otherwise: readonly Statement[];
}

export interface Bind {
  readonly kind: "bind";
  readonly symbol: string;
  readonly value: Expression;
}

export type Statement = Launch | Loop | Condition | Bind;

export interface OperatorProgram {
  readonly name: string;
  readonly parameters: readonly Parameter[];
  readonly statements: readonly Statement[];
  readonly workspaces: readonly Workspace[];
  readonly symbols: readonly string[];
}

/** A tensor inside an entry: a window on a parameter or an intermediate. */
export interface EntryValue {
  readonly name: string;
  readonly storage: string;
  readonly byteOffset: Expression;
  readonly shape: readonly Expression[];
  readonly dtype: string;
}

export interface EntryCall {
  readonly operator: string;
  readonly arguments: readonly string[];
  readonly symbols: readonly (readonly [string, Expression])[];
}

export interface EntryProgram {
  readonly name: string;
  readonly parameters: readonly Parameter[];
  readonly storages: readonly Workspace[];
  readonly values: readonly EntryValue[];
  readonly calls: readonly EntryCall[];
  readonly symbols: readonly string[];
}

export interface CodeModule {
  readonly dialect: string;
  readonly kind: ModuleKind;
  /** The only one that takes it; empty for any. */
  readonly architecture: string;
  readonly code: Uint8Array;
  readonly options: readonly string[];
}

export interface Library {
  readonly target: string;
  readonly modules: readonly CodeModule[];
  readonly kernels: ReadonlyMap<string, Kernel>;
  readonly operators: ReadonlyMap<string, OperatorProgram>;
  readonly entries: ReadonlyMap<string, EntryProgram>;
  readonly metadata: ReadonlyMap<string, string>;
}
