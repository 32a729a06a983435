// Opens the page in a browser for a test, and does what standard input says, a JSON line each.
// Told on standard output, a JSON line each: what the page logs and how each command went.
//
//   node open_page.mjs BROWSER URL WIDTH HEIGHT light|dark
import { createInterface } from "node:readline";

import { chromium } from "playwright-core";

const [executablePath, url, width, height, colorScheme] = process.argv.slice(2);
const tell = (line) => process.stdout.write(`${JSON.stringify(line)}\n`);

const browser = await chromium.launch({
  executablePath,
  args: [
    "--no-sandbox",
    "--enable-unsafe-webgpu",
    "--enable-webgpu-developer-features",
    "--use-webgpu-adapter=swiftshader",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
  ],
});
const context = await browser.newContext({
  viewport: { width: Number(width), height: Number(height) },
  colorScheme,
});
let page;

async function open() {
  page = await context.newPage();
  page.on("console", (message) => tell({ console: message.type(), text: message.text() }));
  page.on("pageerror", (error) => tell({ console: "error", text: String(error) }));
  page.on("crash", () => tell({ event: "crash" }));
  await page.goto(url);
}

const commands = {
  screenshot: ({ path, width, height, scheme }) =>
    page
      .setViewportSize({ width, height })
      .then(() => page.emulateMedia({ colorScheme: scheme }))
      .then(() => page.screenshot({ path, fullPage: true })),
  text: ({ selector }) => page.locator(selector).innerText(),
  wait: ({ selector, text }) => page.locator(selector, { hasText: text }).first().waitFor(),
  click: ({ selector }) => page.locator(selector).click(),
  fill: ({ selector, text }) => page.locator(selector).fill(text),
  press: ({ key }) => page.keyboard.press(key),
  evaluate: ({ script }) => page.evaluate(script),
  reload: () => page.reload(),
  close: () => page.close(),
  open,
  // The renderer dies at once; nothing of the page has a say.
  crash: () =>
    context
      .newCDPSession(page)
      .then((session) => session.send("Page.crash"))
      .catch(() => null),
};

await open();
tell({ event: "open" });
for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  try {
    const run = commands[command.do];
    const result = command.do === "crash" ? void run(command) : await run(command);
    tell({ done: command.do, result: result instanceof Buffer ? null : (result ?? null) });
  } catch (error) {
    tell({ done: command.do, error: String(error) });
  }
}
await browser.close();
