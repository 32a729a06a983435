/**
 * What a kernel's WGSL declares: its bindings with their access, the uniform's tail, the workgroup.
 *
 * Read strictly: text that is not understood is a CompileError and never guessed at.
 */

import { TapmlError } from "./errors";
import type { Extents } from "./library";

export type Access = "read" | "read_write";

export interface ShaderShape {
  /** Access of binding 0, 1, ...: the storage buffers. */
  readonly buffers: readonly Access[];
  /** Whether a uniform struct follows at the next binding. */
  readonly hasUniform: boolean;
  /** Whether that struct ends with `packGridDimX`, which whoever launches it fills in. */
  readonly packsGrid: boolean;
  readonly workgroup: Extents<number>;
}

const VARIABLE =
  /@group\(\s*(\d+)u?\s*\)\s*@binding\(\s*(\d+)u?\s*\)\s*var\s*<\s*(\w+)\s*(?:,\s*(\w+)\s*)?>\s*(\w+)\s*:\s*([^;]+);/g;
const ANY_BINDING = /@\s*binding\b/g;

/** Read what the entry point `symbol` of a module takes; raises a CompileError. */
export function readShader(source: string, symbol: string): ShaderShape {
  const text = withoutComments(source);
  const buffers: Access[] = [];
  let uniform: string | undefined;
  let found = 0;
  for (const [, group, binding, space, access, name, type] of text.matchAll(VARIABLE)) {
    const where = `'${symbol}': variable '${name}'`;
    if (group !== "0" || Number(binding) !== found) {
      throw wrong(`${where} is at group ${group}, binding ${binding}; expected 0 and ${found}`);
    }
    found += 1;
    if (uniform !== undefined) {
      throw wrong(`${where} follows the uniform, which must be the last binding`);
    }
    if (space === "uniform" && access === undefined) {
      uniform = (type ?? "").trim();
    } else if (space === "storage" && (access ?? "read") === "read") {
      buffers.push("read");
    } else if (space === "storage" && access === "read_write") {
      buffers.push("read_write");
    } else {
      throw wrong(`${where} is in <${space}${access === undefined ? "" : `, ${access}`}>`);
    }
  }
  if ([...text.matchAll(ANY_BINDING)].length !== found) {
    throw wrong(`'${symbol}': a binding is not of the form that is read here`);
  }
  return {
    buffers,
    hasUniform: uniform !== undefined,
    packsGrid: uniform !== undefined && packsGrid(text, uniform, symbol),
    workgroup: workgroupOf(text, symbol),
  };
}

function wrong(what: string): TapmlError {
  return new TapmlError("CompileError", `kernel ${what}`);
}

function withoutComments(source: string): string {
  // Of equal length in lines, so that nothing else moves. Block comments nest in WGSL; one that
  // does is refused by what follows.
  return source.replace(/\/\/[^\n]*/g, "").replace(/\/\*[\s\S]*?\*\//g, " ");
}

function packsGrid(text: string, struct: string, symbol: string): boolean {
  const escaped = struct.replace(/[^\w]/g, "");
  const body = new RegExp(`\\bstruct\\s+${escaped}\\s*\\{([^}]*)\\}`).exec(text)?.[1];
  if (body === undefined || escaped !== struct) {
    throw wrong(`'${symbol}': the uniform's struct '${struct}' is not declared in its text`);
  }
  const members = body
    .split(",")
    .map((member) => member.trim())
    .filter((member) => member !== "");
  const place = members.findIndex((member) => /^packGridDimX\b/.test(member));
  if (place >= 0 && place !== members.length - 1) {
    throw wrong(`'${symbol}': packGridDimX must be the uniform's last member`);
  }
  return place >= 0;
}

function workgroupOf(text: string, symbol: string): Extents<number> {
  const name = symbol.replace(/[.$]/g, "\\$&");
  const entry = new RegExp(`((?:@\\w+\\s*(?:\\([^)]*\\))?\\s*)*)\\bfn\\s+${name}\\s*\\(`).exec(text);
  const size = /@workgroup_size\s*\(([^)]*)\)/.exec(entry?.[1] ?? "")?.[1];
  const given = size?.split(",").map((each) => each.trim()).filter((each) => each !== "");
  if (given === undefined || given.length < 1 || given.length > 3) {
    throw wrong(`'${symbol}': no entry point of that name with a @workgroup_size is in its text`);
  }
  const [x = 1, y = 1, z = 1] = given.map((each) => {
    if (!/^\d+[iu]?$/.test(each)) {
      throw wrong(`'${symbol}': expected a workgroup size in figures, got '${each}'`);
    }
    return Number.parseInt(each, 10);
  });
  return [x, y, z];
}
