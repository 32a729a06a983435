// Bundles the unit tests and runs them by node's own test runner.
import { mkdirSync, readdirSync, rmSync } from "node:fs";
import { spawnSync } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

import { build } from "esbuild";

const web = dirname(dirname(fileURLToPath(import.meta.url)));
const out = join(web, "node_modules", ".cache", "tapml-tests");
rmSync(out, { recursive: true, force: true });
mkdirSync(out, { recursive: true });
await build({
  entryPoints: readdirSync(join(web, "tests"))
    .filter((name) => name.endsWith(".test.ts"))
    .map((name) => join(web, "tests", name)),
  bundle: true,
  platform: "node",
  format: "esm",
  sourcemap: "inline",
  outdir: out,
  outExtension: { ".js": ".mjs" },
  logLevel: "warning",
});
const run = spawnSync(
  process.execPath,
  [
    "--enable-source-maps",
    "--expose-gc",
    "--test",
    ...readdirSync(out)
      .filter((name) => name.endsWith(".test.mjs"))
      .map((name) => join(out, name)),
  ],
  { stdio: "inherit", env: { ...process.env, TAPML_ROOT: dirname(web) } },
);
process.exit(run.status ?? 1);
