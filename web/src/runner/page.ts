/** The page of a browser folder: loads its model and shows generated text. */

import { element, show, showFacts } from "../dom";
import { amount } from "../facts";
import { load, TapmlError, type About, type Model, type Stage } from "./tapml.js";

const STAGES: Record<Stage, string> = {
  manifest: "reading model.json",
  tokenizer: "reading the tokenizer",
  weights: "loading the weights",
  ready: "ready",
};
type State = "loading" | "ready" | "generating" | "failed";

const prompt = element("prompt") as HTMLTextAreaElement;
const count = element("count") as HTMLInputElement;
const generateButton = element("generate") as HTMLButtonElement;
const stopButton = element("stop") as HTMLButtonElement;
const againButton = element("again") as HTMLButtonElement;
const form = element("form") as HTMLFormElement;
const bar = element("bar") as HTMLProgressElement;

function setState(state: State): void {
  show("state", state);
  element("state").dataset["state"] = state === "ready" ? "registered" : state;
  generateButton.disabled = state !== "ready";
  stopButton.disabled = state !== "generating";
  element("output").ariaBusy = String(state === "generating");
}

function showAbout(about: About): void {
  document.title = `${about.model} · tapml`;
  show("model", about.model);
  showFacts("sizes", [
    ["Weights", `${amount(about.weightBytes)}, ${about.dtype}`],
    ["Context", `${about.contextLength} tokens`],
    ["Vocabulary", `${about.vocabulary} tokens`],
    ["Kernels", String(about.kernels)],
    ["GPU memory it takes", about.memoryBytes > 0 ? amount(about.memoryBytes) : "unknown"],
  ]);
  show("verdict", about.verdict);
  show("tokenizer", about.tokenizer);
  show("adapter", about.adapter);
  showFacts("facts", about.facts);
  showFacts(
    "needs",
    about.needs.map(({ what, need, has, bytes }) => {
      const text = bytes ? amount : String;
      return [what, `${text(need)} of ${text(has)}`];
    }),
  );
  show("notes", about.notes.join("\n"));
  if (!about.takesText) {
    show("prompt-label", "Token ids");
    prompt.placeholder = "1 2 3";
  }
}

function showProgress(stage: Stage, done: number, total: number): void {
  if (stage === "weights") {
    bar.value = total > 0 ? done / total : 1;
    const rest = done >= total ? "; compiling kernels" : "";
    show("detail", `${STAGES.weights}: ${amount(done)} of ${amount(total)}${rest}`);
  } else {
    show("detail", STAGES[stage]);
  }
}

function showProblem(error: unknown): void {
  const known = error instanceof TapmlError;
  show("kind", known ? error.kind : "Error");
  show("message", error instanceof Error ? error.message : String(error));
  const log = known ? error.log : "";
  show("trace", log);
  element("said").hidden = log === "";
  element("problem").hidden = false;
}

/** The model is gone: show why, and a button that loads it again. */
function fail(error: unknown, detail: string): void {
  setState("failed");
  show("detail", detail);
  bar.hidden = true;
  againButton.hidden = false;
  showProblem(error);
}

/** Token ids of the prompt. */
async function asked(model: Model): Promise<readonly number[]> {
  const text = prompt.value;
  if (model.about.takesText) {
    return model.encode(text);
  }
  if (!/^\s*\d{1,9}(?:[\s,]+\d{1,9})*\s*$/.test(text)) {
    throw new TapmlError("InputError", 'expected whole numbers with spaces or commas between, like "1 2 3"');
  }
  return Array.from(text.matchAll(/\d+/g), ([digits]) => Number(digits));
}

function speedOf(tokens: number, first: number, seconds: number): string {
  const rate = tokens > 1 ? `, then ${((tokens - 1) / (seconds - first)).toFixed(1)} a second` : "";
  const plural = tokens === 1 ? "" : "s";
  return `${tokens} token${plural} in ${seconds.toFixed(2)} s, the first after ${first.toFixed(2)} s${rate}`;
}

let stopping = new AbortController();

/** Stream the text of a prompt; `start` reports a lost model. */
async function generate(model: Model): Promise<void> {
  element("problem").hidden = true;
  setState("generating");
  stopping = new AbortController();
  const started = performance.now();
  const seconds = (): number => (performance.now() - started) / 1000;
  let tokens = 0;
  let first = 0;
  show("given", prompt.value);
  show("written", "");
  show("speed", "");
  try {
    const maxNewTokens = count.valueAsNumber;
    const { signal } = stopping;
    const ids = await asked(model);
    const room = model.about.contextLength - ids.length + 1;
    for await (const piece of model.generateTokens(ids, { maxNewTokens, signal })) {
      if (piece.token >= 0) {
        tokens += 1;
        first ||= seconds();
      }
      element("written").append(model.about.takesText ? piece.text : ` ${piece.token}`);
      show("speed", speedOf(tokens, first, seconds()));
    }
    const full = tokens === room && room < maxNewTokens;
    const end = full ? `; stopped at the context of ${model.about.contextLength} tokens` : "";
    show("speed", speedOf(tokens, first, seconds()) + (signal.aborted ? "; stopped" : end));
  } catch (error) {
    showProblem(error);
    if (error instanceof TapmlError && error.kind === "DeviceLostError") {
      return;
    }
  }
  if (!model.closed) {
    setState("ready");
  }
}

async function start(): Promise<void> {
  setState("loading");
  element("problem").hidden = true;
  againButton.hidden = true;
  bar.value = 0;
  bar.hidden = false;
  const begun = performance.now();
  let model: Model;
  try {
    model = await load("./", { progress: showProgress, about: showAbout });
  } catch (error) {
    fail(error, "The model was not loaded.");
    return;
  }
  void model.lost.then((error) => {
    fail(error, "The model is not loaded any more; what you wrote is still here.");
  });
  bar.hidden = true;
  show(
    "detail",
    `Ready in ${((performance.now() - begun) / 1000).toFixed(1)} s. Nothing you write leaves this page.`,
  );
  setState("ready");
  form.onsubmit = (event) => {
    event.preventDefault();
    if (!generateButton.disabled) {
      void generate(model);
    }
  };
  stopButton.onclick = () => stopping.abort();
  prompt.onkeydown = (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      form.requestSubmit();
    }
  };
}

againButton.onclick = () => {
  void start();
};
void start();
