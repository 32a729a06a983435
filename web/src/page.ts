/** The device page: starts the worker that is the device, and shows its reports. */

import { element, input, show, showFacts } from "./dom";
import { amount } from "./facts";
import type { Connection, FromWorker, Level, Numbers, ToWorker } from "./messages";

const MAX_LOG = 500;
const CHART_POINTS = 120;
const NAME_KEY = "tapml-name";
const KEEP_KEY = "tapml-keep";
const STATES: Record<Connection, string> = {
  starting: "starting",
  connecting: "connecting",
  registered: "ready",
  waiting: "waiting for the tracker",
  refused: "refused",
  failed: "cannot start",
  stopped: "stopped",
};

/** A name for this browser, remembered if storage allows. */
function ownName(): string {
  const kind = /Firefox|Edg|Chrome|Safari/.exec(navigator.userAgent)?.[0].toLowerCase() ?? "browser";
  const made = `${kind}-${Math.random().toString(16).slice(2, 6)}`;
  try {
    const kept = localStorage.getItem(NAME_KEY) ?? made;
    localStorage.setItem(NAME_KEY, kept);
    return kept;
  } catch {
    return made;
  }
}

/** Whether weights are kept on disk: only if the user has chosen it here. */
function keepsOnDisk(): boolean {
  try {
    return localStorage.getItem(KEEP_KEY) === "yes";
  } catch {
    return false;
  }
}

class Chart {
  private readonly rates: number[] = [];
  private before: { kernels: number; at: number } | null = null;

  add(kernels: number): void {
    const at = performance.now();
    if (this.before !== null && at > this.before.at) {
      const rate = Math.max(0, (1000 * (kernels - this.before.kernels)) / (at - this.before.at));
      this.rates.push(rate);
      this.rates.splice(0, this.rates.length - CHART_POINTS);
      show("rate", Math.round(rate).toLocaleString("en"));
      this.draw();
    }
    this.before = { kernels, at };
  }

  private draw(): void {
    const most = Math.max(1, ...this.rates);
    const points = this.rates.map((rate, index) => {
      const x = CHART_POINTS - this.rates.length + index;
      return `${x},${(31 - (29 * rate) / most).toFixed(1)}`;
    });
    element("line").setAttribute("d", points.length > 1 ? `M${points.join("L")}` : "");
  }
}

const chart = new Chart();
let worker: Worker | null = null;

function log(level: Level, line: string, detail: string): void {
  const list = element("log");
  const atEnd = list.scrollHeight - list.scrollTop - list.clientHeight < 40;
  const item = document.createElement("li");
  item.dataset["level"] = level;
  const time = document.createElement("time");
  time.textContent = new Date().toTimeString().slice(0, 8);
  const said = document.createElement("span");
  said.textContent = line;
  item.append(time, said);
  if (detail !== "") {
    const more = document.createElement("pre");
    more.textContent = detail;
    item.append(more);
  }
  list.append(item);
  while (list.childElementCount > MAX_LOG) {
    list.firstElementChild?.remove();
  }
  if (atEnd) {
    list.scrollTop = list.scrollHeight;
  }
}

function showConnection(state: Connection, detail: string): void {
  show("state", STATES[state]);
  element("state").dataset["state"] = state;
  const said: Partial<Record<Connection, string>> = {
    registered: `Registered as ${detail}. Keep this page open: it is the device.`,
    connecting: `Connecting to ${detail}`,
    stopped: "Stopped: press Connect to be a device again.",
  };
  show("detail", said[state] ?? detail);
  show("connect", state === "registered" || state === "waiting" ? "Reconnect" : "Connect");
  document.title = `${STATES[state]} · tapml device`;
}

function showNumbers(numbers: Numbers): void {
  chart.add(numbers.kernels);
  show("memory", amount(numbers.deviceBytes));
  show("kept", amount(numbers.keptBytes));
  show("disk", amount(numbers.diskBytes));
  show("sessions", String(numbers.sessions));
  show("kernels", numbers.kernels.toLocaleString("en"));
  const last = numbers.lastCall === "" ? "nothing" : `idle; last was ${numbers.lastCall}`;
  show("running", numbers.running === "" ? last : numbers.running);
}

function take(message: FromWorker): void {
  switch (message.type) {
    case "connection":
      showConnection(message.state, message.detail);
      break;
    case "adapter":
      show("adapter", message.name);
      showFacts("facts", message.facts);
      break;
    case "leases":
      show("holder", message.labels.join(", ") || "nobody");
      break;
    case "numbers":
      showNumbers(message.numbers);
      break;
    case "log":
      log(message.level, message.line, message.detail);
  }
}

function say(message: ToWorker): void {
  if (worker === null) {
    worker = new Worker("worker.js");
    worker.onmessage = ({ data }: MessageEvent<FromWorker>) => take(data);
    worker.onerror = (event) => {
      log("error", `the worker failed: ${event.message}`, "");
      showConnection("failed", event.message);
    };
    worker.postMessage({ type: "keep", onDisk: input("keep").checked } satisfies ToWorker);
  }
  worker.postMessage(message);
}

function start(): void {
  const name = input("name").value.trim();
  const token = input("token").value.trim();
  const scheme = location.protocol === "https:" ? "wss" : "ws";
  const address = `${scheme}://${location.host}`;
  const command = `tapml offload --target webgpu --device tracker:${name}`;
  show("how", `TAPML_TRACKER=${address} ${command}`);
  say({ type: "start", address, name, token });
}

/** Settings in the URL fragment, which a browser never sends. */
const given = new URLSearchParams(location.hash.slice(1));
input("name").value = given.get("name") ?? "";
if (!input("name").checkValidity()) {
  // The name goes into a command that users copy: take no other from a link.
  input("name").value = ownName();
}
input("token").value = given.get("token") ?? "";
if (given.has("token")) {
  // Remove the token from the address bar and from screenshots of it.
  history.replaceState(null, "", location.pathname);
}
element("settings").onsubmit = (event) => {
  event.preventDefault();
  start();
};
input("keep").checked = keepsOnDisk();
input("keep").onchange = () => {
  const onDisk = input("keep").checked;
  try {
    localStorage.setItem(KEEP_KEY, onDisk ? "yes" : "no");
  } catch {
    // No storage: the choice holds for this visit.
  }
  say({ type: "keep", onDisk });
};
element("stop").onclick = () => {
  say({ type: "stop" });
};
element("clear").onclick = () => {
  element("log").replaceChildren();
};
start();

/** Keep the screen on: a sleeping phone stops serving. */
async function stayAwake(): Promise<void> {
  try {
    await (navigator as { wakeLock?: WakeLock }).wakeLock?.request("screen");
  } catch {
    // Denied, e.g. on a low battery.
  }
}
document.addEventListener("visibilitychange", () => {
  if (document.visibilityState === "visible") {
    void stayAwake();
  }
});
void stayAwake();

// Stop when the user leaves, though the browser may keep the page for its back button.
window.addEventListener("pagehide", () => {
  worker?.terminate();
  worker = null;
});
window.addEventListener("pageshow", (event) => {
  if (event.persisted) {
    start();
  }
});
