// Builds the pages into the Python packages that hold them; with --check says whether they are built.
// `build.mjs device` and `build.mjs runner` build one of them. Scripts are compressed: every installation
// of tapml has them.
import { mkdirSync, readFileSync, readdirSync, rmSync, writeFileSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { gunzipSync, gzipSync } from "node:zlib";

import { build, transform } from "esbuild";

const web = dirname(dirname(fileURLToPath(import.meta.url)));
const MAX_SCRIPT_BYTES = 100 << 10;
const LICENCE = `/*! Holds @msgpack/msgpack. Copyright 2019 The MessagePack Community. ISC License:
Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee
is hereby granted, provided that the above copyright notice and this permission notice appear in all
copies. THE SOFTWARE IS PROVIDED "AS IS" AND THE AUTHOR DISCLAIMS ALL WARRANTIES WITH REGARD TO THIS
SOFTWARE INCLUDING ALL IMPLIED WARRANTIES OF MERCHANTABILITY AND FITNESS. IN NO EVENT SHALL THE
AUTHOR BE LIABLE FOR ANY SPECIAL, DIRECT, INDIRECT, OR CONSEQUENTIAL DAMAGES OR ANY DAMAGES WHATSOEVER
RESULTING FROM LOSS OF USE, DATA OR PROFITS, WHETHER IN AN ACTION OF CONTRACT, NEGLIGENCE OR OTHER
TORTIOUS ACTION, ARISING OUT OF OR IN CONNECTION WITH THE USE OR PERFORMANCE OF THIS SOFTWARE. */`;

const TOKENIZERS =
  "/*! Holds @huggingface/tokenizers. Copyright Hugging Face. Apache License, Version 2.0: " +
  "http://www.apache.org/licenses/LICENSE-2.0 */";

const asIs = (folder) =>
  new Map(readdirSync(folder).sort().map((name) => [name, readFileSync(join(folder, name))]));
const ours = asIs(join(web, "static"));
const runner = asIs(join(web, "runner"));
const minified = async (...styles) =>
  Buffer.from((await transform(Buffer.concat(styles).toString(), { loader: "css", minify: true })).code);

// A page: where its source lies, the scripts with their banners, and the files beside them.
const pages = [
  {
    name: "device",
    source: join(web, "src"),
    target: join(dirname(web), "rpc_server", "tapml_rpc", "web_page"),
    format: "iife",
    scripts: { page: "", worker: LICENCE },
    files: new Map([...ours, ["style.css", await minified(ours.get("style.css"))]]),
  },
  {
    name: "runner",
    source: join(web, "src", "runner"),
    target: join(dirname(web), "tapml", "package", "browser_page"),
    format: "esm",
    scripts: { page: "", tapml: TOKENIZERS, worker: `${LICENCE}\n${TOKENIZERS}` },
    files: new Map([
      ["index.html", runner.get("index.html")],
      ["icon.svg", ours.get("icon.svg")],
      ["style.css", await minified(ours.get("style.css"), runner.get("runner.css"))],
    ]),
  },
];

async function scriptOf(page, entry, banner) {
  const result = await build({
    entryPoints: [join(page.source, `${entry}.ts`)],
    bundle: true,
    minify: true,
    format: page.format,
    target: "es2022",
    charset: "utf8",
    legalComments: "none",
    // The runner's page uses the module that other pages use.
    external: ["./tapml.js"],
    banner: { js: banner },
    write: false,
    logLevel: "warning",
  });
  return Buffer.from(result.outputFiles[0].contents);
}

const asked = process.argv.slice(2).filter((each) => !each.startsWith("--"));
let failed = false;
for (const page of pages.filter(({ name }) => asked.length === 0 || asked.includes(name))) {
  const files = new Map(page.files);
  let compressed = 0;
  for (const [entry, banner] of Object.entries(page.scripts)) {
    const script = await scriptOf(page, entry, banner);
    const packed = gzipSync(script, { level: 9 });
    files.set(`${entry}.js.gz`, packed);
    compressed += packed.length;
  }
  if (compressed > MAX_SCRIPT_BYTES) {
    console.error(`${page.name}: scripts of ${compressed} bytes compressed; at most ${MAX_SCRIPT_BYTES}`);
    failed = true;
  } else if (process.argv.includes("--check")) {
    failed = !isBuilt(page.target, files) || failed;
  } else {
    rmSync(page.target, { recursive: true, force: true });
    mkdirSync(page.target, { recursive: true });
    for (const [name, content] of files) {
      writeFileSync(join(page.target, name), content);
    }
  }
  console.log(`${page.name}: scripts of ${compressed} bytes compressed, ${MAX_SCRIPT_BYTES} allowed`);
}
process.exit(failed ? 1 : 0);

// Releases of zlib compress the same differently.
function unpacked(name, content) {
  return name.endsWith(".gz") ? gunzipSync(content) : content;
}

function isBuilt(target, files) {
  const read = (name) => {
    try {
      return unpacked(name, readFileSync(join(target, name)));
    } catch {
      return Buffer.alloc(0);
    }
  };
  const different = [...files].filter(([name, content]) => !read(name).equals(unpacked(name, content)));
  const stray = readdirSync(target).filter((name) => !files.has(name));
  const wrong = [...different.map(([name]) => name), ...stray];
  if (wrong.length > 0) {
    console.error(
      `${target} is not what web/ builds: ${wrong.join(", ")}; run \`npm run build\` in web/ and ` +
        "commit what it writes",
    );
  }
  return wrong.length === 0;
}
