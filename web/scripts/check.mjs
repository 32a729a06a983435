// Everything that must hold for web/: types, lint, unit tests, and that the built page is committed.
import { spawn } from "node:child_process";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";

const web = dirname(dirname(fileURLToPath(import.meta.url)));
const bin = (name) => join(web, "node_modules", name);
const checks = [
  ["types", [bin("typescript/bin/tsc"), "--project", web]],
  ["lint", [bin("eslint/bin/eslint.js"), "--max-warnings", "0", "."]],
  ["unit tests", [join(web, "scripts", "test.mjs")]],
  ["the built page", [join(web, "scripts", "build.mjs"), "--check"]],
];

const run = ([name, command]) =>
  new Promise((resolve) => {
    const child = spawn(process.execPath, command, { cwd: web, stdio: ["ignore", "pipe", "pipe"] });
    let said = "";
    child.stdout.on("data", (data) => (said += data));
    child.stderr.on("data", (data) => (said += data));
    child.on("close", (code) => {
      if (code !== 0) {
        console.log(said.trimEnd());
        console.log(`web: ${name} FAILED`);
      }
      resolve(code === 0);
    });
  });

const passed = await Promise.all(checks.map(run));
process.exit(passed.every(Boolean) ? 0 : 1);
