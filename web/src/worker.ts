/**
 * The device without its page. It opens the GPU and connects to the tracker; if it loses either, it
 * starts again with a new epoch.
 */

import { CacheDisk } from "./blob_disk";
import { BlobStore } from "./blob_store";
import { DeviceServer } from "./device_server";
import { messageOf, TapmlError } from "./errors";
import { factsOf } from "./facts";
import { openGpu, type Gpu } from "./gpu";
import type { Connection, FromWorker, Level, Start, ToWorker } from "./messages";
import { TrackerLink, type TrackerEvents } from "./tracker";
import type { Header } from "./wire";

const RETRY_MILLISECONDS = [500, 1000, 2000, 5000];
const NUMBERS_MILLISECONDS = 500;
const OPEN_MILLISECONDS = 10_000;
const GPU_SILENT =
  "the browser's GPU does not answer: a kernel that never ends may hold it; close the browser, all " +
  "its windows, and open this page again";

const tell = (message: FromWorker): void => {
  postMessage(message);
};
const log = (level: Level, line: string, detail = ""): void => {
  tell({ type: "log", level, line, detail });
};
const connection = (state: Connection, detail: string): void => {
  tell({ type: "connection", state, detail });
};

function reportFailure(failure: Header): void {
  const line = `${String(failure["kind"])}: ${String(failure["message"])}`;
  log("error", line, `in ${String(failure["command"])}`);
}

const GIBIBYTE = 2 ** 30;
/** The browser reports coarse values; a quarter of it is kept, so that the page itself has room. */
const memory = (navigator as { deviceMemory?: number }).deviceMemory ?? 4;
/** Kept across connections and losses of the GPU. */
const blobs = new BlobStore(Math.min(2, memory / 4) * GIBIBYTE);
let settled: Promise<void> = Promise.resolve();

/** Keep blobs on disk beyond the life of the page, or remove those that are there. */
async function keepOnDisk(wanted: boolean): Promise<void> {
  const disk = wanted ? await CacheDisk.open() : null;
  // Blobs in memory are copied while the device works.
  void blobs.use(disk);
  if (!wanted) {
    await CacheDisk.clear();
  } else if (disk === null) {
    log(
      "error",
      "this browser keeps nothing on its disk for this page: a private window or its settings for " +
        "this site forbid it, or the disk is full; weights are kept for as long as the page is open",
    );
  }
}

class Device {
  private readonly life = crypto.getRandomValues(new Uint8Array(16));
  private server: DeviceServer | null = null;
  private link: TrackerLink | null = null;
  private failures = 0;
  private stopped = false;
  private everRegistered = false;
  private readonly gone = new WeakSet<GPUDevice>();

  constructor(private readonly start: Start) {}

  /** Open the GPU, unless it is open, and go to the tracker. */
  async run(): Promise<void> {
    // The list of kept blobs is read before a client asks for one.
    await settled;
    if (this.over()) {
      return;
    }
    let server: DeviceServer;
    try {
      // Each registration is a life of the server: handles of the one before mean nothing.
      const gpu = this.server?.gpu ?? (await this.open());
      this.server?.close("a new connection begins");
      if (this.over()) {
        // Stopped meanwhile: this device must not take the name of the next one.
        gpu.device.destroy();
        return;
      }
      if (this.gone.has(gpu.device)) {
        // An adapter whose process has just died opens a device that is lost from the start.
        this.again("the GPU device was lost", null);
        return;
      }
      server = this.server = new DeviceServer(gpu, blobs, reportFailure, () => gpu.device.destroy());
    } catch (error) {
      log("error", messageOf(error));
      if (this.everRegistered && !this.over()) {
        // It was there before: a GPU that comes back may take its time.
        this.again(messageOf(error), null);
      } else {
        connection("failed", messageOf(error));
      }
      return;
    }
    connection("connecting", this.start.address);
    const options = { ...this.start, life: this.life };
    let refusal: string | null = null;
    const events: TrackerEvents = {
      registered: (name) => {
        this.failures = 0;
        this.everRegistered = true;
        connection("registered", name);
        log("good", `registered as ${name} at ${this.start.address}`);
      },
      refused: (error) => {
        const said = error["message"];
        refusal = typeof said === "string" ? said : "the tracker refuses this device";
        log("error", refusal);
      },
      leases: (labels) => {
        tell({ type: "leases", labels });
      },
      note: (line) => log("info", line),
      closed: (why) => {
        this.link = null;
        this.again(why, refusal);
      },
    };
    try {
      this.link = new TrackerLink(options, server, events);
    } catch (error) {
      // A browser's WebSocket does not even begin with a token that has, say, a blank in it.
      const line = `this address or token cannot be used: ${messageOf(error)}`;
      connection("failed", line);
      log("error", line);
    }
  }

  stop(): void {
    this.stopped = true;
    this.link?.close("the page stops");
    this.server?.close("the page stops");
    this.server?.gpu.device.destroy();
    this.server = null;
    connection("stopped", "");
  }

  numbers(): void {
    const { server } = this;
    if (server !== null) {
      const { sessions, deviceBytes, counters, running } = server;
      const kept = { keptBytes: blobs.nbytes, diskBytes: blobs.diskBytes };
      tell({ type: "numbers", numbers: { sessions, deviceBytes, running, ...kept, ...counters } });
    }
  }

  private over(): boolean {
    return this.stopped;
  }

  private again(why: string, refusal: string | null): void {
    if (this.stopped) {
      return;
    }
    const wait = RETRY_MILLISECONDS[Math.min(this.failures, RETRY_MILLISECONDS.length - 1)] ?? 5000;
    this.failures += 1;
    if (refusal !== null) {
      connection("refused", refusal);
    } else {
      const hint = this.everRegistered
        ? ""
        : ": no tracker answers, or it does not take this token; a browser does not say which";
      connection("waiting", `${why}${hint}; trying again`);
      if (this.failures === 1) {
        log("info", `${why}; connecting again`);
      }
    }
    setTimeout(() => void this.run(), wait);
  }

  private async open(): Promise<Gpu> {
    connection("starting", "opening the GPU");
    const slow = setTimeout(() => {
      connection("starting", GPU_SILENT);
      log("error", GPU_SILENT);
    }, OPEN_MILLISECONDS);
    const gpu = await openGpu().finally(() => clearTimeout(slow));
    tell({ type: "adapter", name: gpu.name, facts: factsOf(gpu) });
    gpu.device.onuncapturederror = (event) => {
      log("error", `uncaptured WebGPU error: ${event.error.message}`);
    };
    void gpu.device.lost.then((info) => {
      this.gone.add(gpu.device);
      this.lost(info);
    });
    return gpu;
  }

  private lost(info: GPUDeviceLostInfo): void {
    if (this.stopped) {
      return;
    }
    const line = `the GPU device was lost (${info.reason}): ${info.message || "no reason given"}`;
    log("error", line);
    const error = new TapmlError(
      "DeviceLostError",
      `${line}; the page opens it again, connect again`,
      JSON.stringify({
        kind: "lost",
        reason: info.reason,
        message: info.message,
        messages: [],
        stage: "",
      }),
    );
    this.server?.close("the GPU device was lost", error);
    this.server = null;
    this.link?.close("the GPU device was lost");
  }
}

let device: Device | null = null;

onmessage = ({ data }: MessageEvent<ToWorker>): void => {
  if (data.type === "keep") {
    const { onDisk } = data;
    settled = settled.then(() => keepOnDisk(onDisk));
    return;
  }
  device?.stop();
  device = null;
  if (data.type === "start") {
    device = new Device(data);
    void device.run();
  }
};

// Report unexpected errors, too.
addEventListener("unhandledrejection", (event: PromiseRejectionEvent) => {
  log("error", `the page failed: ${messageOf(event.reason)}`);
});

setInterval(() => device?.numbers(), NUMBERS_MILLISECONDS);
