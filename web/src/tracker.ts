/**
 * The connection to a tracker: the device registers, is lent, and opens a connection whenever a client
 * waits for one. A page accepts no connections.
 */

import type { DeviceServer, Leg } from "./device_server";
import { messageOf, TapmlError } from "./errors";
import { failureToWire } from "./failures";
import { isMap, join, split, SUBPROTOCOL, text, TOKEN_PREFIX, TRACKER_VERSION, type Header } from "./wire";

const MAX_LEASES = 32;
const MAX_LEGS = 8;
const SILENCE_MILLISECONDS = 10_000;

export interface TrackerOptions {
  /** `ws://host:port` or `wss://host:port`. */
  readonly address: string;
  readonly name: string;
  readonly token: string;
  /** Random bytes of this page's life, with which it may reclaim its name. */
  readonly life: Uint8Array;
}

export interface TrackerEvents {
  registered(name: string): void;
  /** The tracker rejects this device: an immediate retry is of no use. */
  refused(error: Header): void;
  leases(labels: readonly string[]): void;
  note(line: string): void;
  closed(why: string): void;
}

const MAX_REASON_BYTES = 123;

/** Cut a reason to the size of a close frame; a longer one would be an error. */
export function shortened(reason: string): string {
  const room = new Uint8Array(MAX_REASON_BYTES);
  const { read } = new TextEncoder().encodeInto(reason, room);
  return reason.slice(0, read);
}

interface Lease {
  readonly token: string;
  /** The holder, as identified by the tracker. */
  readonly identity: string;
  readonly label: string;
  readonly sockets: Set<WebSocket>;
  readonly sessions: Set<string>;
}

export class TrackerLink {
  private readonly leases = new Map<string, Lease>();
  private readonly socket: WebSocket;
  private beat: ReturnType<typeof setInterval> | undefined;
  private heard = performance.now();
  private over = false;

  constructor(
    private readonly options: TrackerOptions,
    private readonly server: DeviceServer,
    private readonly events: TrackerEvents,
  ) {
    this.socket = this.open("/tracker", options.token);
    this.socket.onopen = () => {
      this.say({
        type: "register",
        versions: [TRACKER_VERSION],
        name: options.name,
        life: options.life,
        device: server.gpu.description,
        address: "relay+ws",
        load: this.load(),
      });
    };
    this.socket.onmessage = ({ data }) => {
      try {
        this.heard = performance.now();
        this.take(split(data as ArrayBuffer)[0]);
      } catch (error) {
        this.finish(`the tracker sent what cannot be taken: ${messageOf(error)}`);
      }
    };
    this.socket.onclose = ({ code, reason }) => {
      this.finish(reason || (code === 1006 ? "no connection to the tracker" : `closed (${code})`));
    };
  }

  /** Say goodbye and end. */
  close(why: string): void {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.say({ type: "goodbye" });
    }
    this.finish(why);
  }

  private open(path: string, secret: string): WebSocket {
    const protocols = secret === "" ? [SUBPROTOCOL] : [SUBPROTOCOL, TOKEN_PREFIX + secret];
    const socket = new WebSocket(this.options.address + path, protocols);
    socket.binaryType = "arraybuffer";
    return socket;
  }

  private say(header: Header): void {
    if (this.socket.readyState === WebSocket.OPEN) {
      this.socket.send(join(header));
    }
  }

  private load(): Header {
    const { sessions, deviceBytes, blobs } = this.server;
    return {
      sessions,
      device_bytes: deviceBytes,
      blobs: blobs.blobs,
      blob_bytes: blobs.nbytes,
      blobs_received: blobs.received,
      blobs_attached: blobs.attached,
    };
  }

  private take(header: Header): void {
    const id = typeof header["lease"] === "string" ? header["lease"] : "";
    switch (header["type"]) {
      case "registered":
        this.startBeats(Number(header["beat_seconds"]) || 1);
        this.events.registered(text(header["name"], "name"));
        break;
      case "probe":
        this.say({ type: "load", load: this.load() });
        break;
      case "refused":
        this.events.refused(isMap(header["error"]) ? header["error"] : {});
        this.finish("refused");
        break;
      case "unknown":
        this.finish("the tracker does not know this device any more");
        break;
      case "lease":
        this.accept(id, header);
        break;
      case "dial":
        this.dial(id, text(header["stream"], "stream"), text(header["role"], "role", 40));
        break;
      case "lease-ended":
        this.end(id, String(header["why"]));
        this.say({ type: "lease-cleared", lease: id });
        break;
    }
  }

  private startBeats(seconds: number): void {
    clearInterval(this.beat);
    this.beat = setInterval(() => {
      this.say({ type: "load", load: this.load() });
      if (performance.now() - this.heard > SILENCE_MILLISECONDS) {
        this.finish("the tracker has been silent for 10 s");
      }
    }, seconds * 1000);
  }

  private accept(id: string, header: Header): void {
    if (this.leases.size >= MAX_LEASES) {
      const error = new TapmlError("SetupError", `this page holds ${MAX_LEASES} leases already`);
      this.say({ type: "lease-declined", lease: id, error: failureToWire(error) });
      return;
    }
    const label = typeof header["label"] === "string" ? header["label"] : "";
    const token = text(header["token"], "lease token");
    const given = header["identity"];
    // An anonymous client shares no blobs.
    const identity = typeof given === "string" && given !== "" ? given : token;
    this.leases.set(id, { token, identity, label, sockets: new Set(), sessions: new Set() });
    this.say({ type: "lease-accepted", lease: id });
    this.events.note(`lent to ${label || "an anonymous client"}`);
    this.showLeases();
  }

  /** Open a connection for a client that waits at the tracker. */
  private dial(id: string, stream: string, role: string): void {
    const lease = this.leases.get(id);
    if (lease === undefined || lease.sockets.size >= MAX_LEGS) {
      return;
    }
    const socket = this.open("/leg", stream);
    lease.sockets.add(socket);
    const leg: Leg = {
      send(header, chunk) {
        if (socket.readyState === WebSocket.OPEN) {
          socket.send(join(header, chunk));
        }
      },
      close(code, reason) {
        socket.close(code === 1001 ? 4001 : code, shortened(reason));
      },
    };
    let session = "";
    socket.onmessage = ({ data }) => {
      let sequence: unknown;
      try {
        if (!(data instanceof ArrayBuffer)) {
          socket.close(4003, "text is not taken");
          return;
        }
        const [header, chunk] = split(data);
        sequence = header["sequence"];
        session =
          role === "control"
            ? this.server.control(leg, header, lease, session)
            : this.server.data(leg, header, chunk, session);
        if (session !== "") {
          lease.sessions.add(session);
        }
      } catch (error) {
        this.answer(leg, role, session, sequence, error);
      }
    };
    socket.onclose = () => {
      lease.sockets.delete(socket);
      // Either connection's end is the session's.
      this.server.end(session, "its connection closed");
    };
  }

  private answer(leg: Leg, role: string, session: string, sequence: unknown, error: unknown): void {
    const failure = failureToWire(error);
    const number = typeof sequence === "number" ? { sequence } : {};
    leg.send({ type: role === "control" ? "refused" : "error", ...number, error: failure });
    this.events.note(`refused: ${String(failure["message"])}`);
    if (session === "") {
      leg.close(4008, String(failure["message"]));
    }
  }

  private end(id: string, why: string): void {
    const lease = this.leases.get(id);
    if (lease === undefined) {
      return;
    }
    this.leases.delete(id);
    for (const session of lease.sessions) {
      this.server.end(session, `its lease ended: ${why}`);
    }
    for (const socket of lease.sockets) {
      socket.close();
    }
    this.events.note(`given back by ${lease.label || "its holder"}: ${why}`);
    this.showLeases();
  }

  private showLeases(): void {
    this.events.leases([...this.leases.values()].map((lease) => lease.label));
  }

  private finish(why: string): void {
    if (this.over) {
      return;
    }
    this.over = true;
    clearInterval(this.beat);
    for (const id of [...this.leases.keys()]) {
      this.end(id, why);
    }
    this.socket.onclose = null;
    this.socket.onmessage = null;
    this.socket.close();
    this.events.closed(why);
  }
}
