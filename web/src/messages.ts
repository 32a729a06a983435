/** Messages between the page and its worker. */

export interface Start {
  readonly type: "start";
  readonly address: string;
  readonly name: string;
  readonly token: string;
}

export type ToWorker =
  | Start
  | { readonly type: "stop" }
  /** Whether blobs outlive the page; sent before the first start. */
  | { readonly type: "keep"; readonly onDisk: boolean };

export type Connection =
  "starting" | "connecting" | "registered" | "waiting" | "refused" | "failed" | "stopped";

/** Facts of the adapter, in the order in which they are shown. */
export type Facts = readonly (readonly [string, string])[];

export interface Numbers {
  readonly sessions: number;
  readonly deviceBytes: number;
  /** Blobs kept for the next session, in memory and on disk. */
  readonly keptBytes: number;
  readonly diskBytes: number;
  readonly kernels: number;
  readonly calls: number;
  readonly running: string;
  readonly lastCall: string;
}

export type Level = "info" | "good" | "error";

export type FromWorker =
  | { readonly type: "connection"; readonly state: Connection; readonly detail: string }
  | { readonly type: "adapter"; readonly name: string; readonly facts: Facts }
  | { readonly type: "leases"; readonly labels: readonly string[] }
  | { readonly type: "numbers"; readonly numbers: Numbers }
  | { readonly type: "log"; readonly level: Level; readonly line: string; readonly detail: string };
