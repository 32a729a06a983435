// Builds the page into the Python package that serves it; with --check says whether it is built.
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gzipSync } from "node:zlib";

import { build } from "esbuild";

const web = dirname(dirname(fileURLToPath(import.meta.url)));
const target = join(dirname(web), "rpc_server", "tapml_rpc", "web_page");
const MAX_SCRIPT_BYTES = 100 << 10;
const LICENCE = `/*! Holds @msgpack/msgpack. Copyright 2019 The MessagePack Community. ISC License:
Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee
is hereby granted, provided that the above copyright notice and this permission notice appear in all
copies. THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS
SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE
AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER
RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE. */`;

const files = new Map();
for (const [entry, banner] of [
  ["page", ""],
  ["worker", LICENCE],
]) {
  const result = await build({
    entryPoints: [join(web, "src", `${entry}.ts`)],
    bundle: true,
    minify: true,
    format: "iife",
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    banner: { js: banner },
    write: false,
    logLevel: "warning",
  });
  files.set(`${entry}.js`, Buffer.from(result.outputFiles[0].contents));
}
for (const name of readdirSync(join(web, "static")).sort()) {
  files.set(name, readFileSync(join(web, "static", name)));
}

const scripts = [...files].filter(([name]) => name.endsWith(".js"));
const compressed = scripts.reduce((sum, [, content]) => sum + gzipSync(content).length, 0);
if (compressed > MAX_SCRIPT_BYTES) {
  console.error(`the page's scripts take ${compressed} bytes compressed; at most ${MAX_SCRIPT_BYTES}`);
  process.exit(1);
}

if (process.argv.includes("--check")) {
  const different = [...files]
    .filter(([name, content]) => {
      try {
        return !readFileSync(join(target, name)).equals(content);
      } catch {
        return true;
      }
    })
    .map(([name]) => name);
  const stray = readdirSync(target).filter((name) => !files.has(name));
  if (different.length > 0 || stray.length > 0) {
    console.error(
      `${target} is not what web/ builds: ${[...different, ...stray].join(", ")}; ` +
        "run `npm run build` in web/ and commit what it writes",
    );
    process.exit(1);
  }
} else {
  rmSync(target, { recursive: true, force: true });
  mkdirSync(target, { recursive: true });
  for (const [name, content] of files) {
    writeFileSync(join(target, name), content);
  }
}
console.log(`scripts: ${compressed} bytes compressed of ${MAX_SCRIPT_BYTES} allowed`);
