/** Blobs of a page: verified, kept for who has sent them, evicted when room is needed. */

import assert from "node:assert/strict";
import { createHash } from "node:crypto";
import { test } from "node:test";

import { BlobRequests } from "../src/blob_requests";
import { CacheDisk } from "../src/blob_disk";
import { BlobStore, type BlobDisk, type Bytes } from "../src/blob_store";
import { TapmlError } from "../src/errors";
import { BOUNDS, Session } from "../src/session";
import type { Header } from "../src/wire";

const BUDGET = 4096;

const content = (seed: number, nbytes: number): Bytes =>
  Uint8Array.from({ length: nbytes }, (_, place) => (seed * 31 + place * 7) % 251);
const digestOf = (bytes: Bytes): string => createHash("sha256").update(bytes).digest("hex");

/** A session of somebody's, and what it is answered. */
class Client {
  readonly session = new Session(1 << 20, 30);
  readonly requests: BlobRequests;
  private sequence = 0;
  private readonly waiting = new Map<number, (header: Header) => void>();

  constructor(store: BlobStore, owner = "ada") {
    this.requests = new BlobRequests(store, this.session, owner, (header) => this.waiting.get(Number(header["sequence"]))?.(header));
  }

  answer(operation: string, fields: Header = {}, chunk: Uint8Array = new Uint8Array(0)): Promise<Header> {
    this.sequence += 1;
    const { sequence } = this;
    return new Promise((resolve) => {
      this.waiting.set(sequence, resolve);
      this.requests.take({ type: "blob", sequence, operation, ...fields }, chunk);
    });
  }

  async ask(operation: string, fields: Header = {}, chunk?: Uint8Array): Promise<unknown> {
    const answer = await this.answer(operation, fields, chunk);
    if (answer["type"] === "error") {
      const { kind, message } = answer["error"] as { kind: "InputError"; message: string };
      throw new TapmlError(kind, message);
    }
    return answer["value"];
  }

  put(bytes: Bytes, digest = digestOf(bytes)): Promise<unknown> {
    return this.ask("put", { digest, total: bytes.length, offset: 0 }, bytes);
  }

  async holds(...blobs: Bytes[]): Promise<unknown> {
    return this.ask("holds", { digests: blobs.map(digestOf) });
  }
}

/** A disk of a few maps. */
class MapDisk implements BlobDisk {
  readonly nbytes = 0;
  readonly files = new Map<string, Bytes>();

  size(owner: string, digest: string): number {
    return this.files.get(`${owner} ${digest}`)?.length ?? 0;
  }

  read(owner: string, digest: string): Promise<Bytes | null> {
    return Promise.resolve(this.files.get(`${owner} ${digest}`) ?? null);
  }

  write(owner: string, digest: string, bytes: Bytes): Promise<void> {
    this.files.set(`${owner} ${digest}`, bytes.slice());
    return Promise.resolve();
  }

  remove(owner: string, digest: string): Promise<void> {
    this.files.delete(`${owner} ${digest}`);
    return Promise.resolve();
  }
}

const refused = (kind: string, text: RegExp) => (error: unknown) =>
  error instanceof TapmlError && error.kind === kind && text.test(error.message);

test("a blob outlives the session that has sent it, for its owner alone", async () => {
  const store = new BlobStore(BUDGET);
  const first = new Client(store);
  const data = content(1, 1000);
  const about = { digest: digestOf(data), total: 1000 };
  assert.equal(await first.ask("put", { ...about, offset: 0 }, data.subarray(0, 600)), false);
  assert.deepEqual(await first.holds(data), [false]);
  assert.equal(await first.ask("put", { ...about, offset: 600 }, data.subarray(600)), true);
  first.requests.close();
  const [second, stranger] = [new Client(store), new Client(store, "bob")];
  assert.deepEqual(await second.holds(data, content(2, 10)), [true, false]);
  assert.deepEqual(await stranger.holds(data), [false]);
  assert.equal(await stranger.ask("attach", { digest: digestOf(data) }), false);
  assert.equal(await second.ask("attach", { digest: digestOf(data) }), true);
  assert.deepEqual(second.session.blobs.get(digestOf(data)), data);
  // Who sends the same bytes owns them, too, and they are kept once.
  assert.equal(await stranger.put(data), true);
  assert.deepEqual([await stranger.holds(data), store.blobs, store.nbytes], [[true], 1, 1000]);
});

test("bytes that are not what they were announced as are refused and not kept", async () => {
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const [data, other] = [content(1, 500), content(2, 500)];
  await assert.rejects(
    client.put(other, digestOf(data)),
    refused("ProtocolError", new RegExp(`announced as ${digestOf(data)} arrived as ${digestOf(other)}`)),
  );
  assert.deepEqual([await client.holds(data, other), store.nbytes], [[false, false], 0]);
  assert.equal(await client.put(data), true);
});

test("a piece out of place ends its upload", async () => {
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const about = { digest: digestOf(content(1, 100)), total: 100 };
  const piece = new Uint8Array(60);
  await client.ask("put", { ...about, offset: 0 }, piece);
  await assert.rejects(
    client.ask("put", { ...about, offset: 50 }, piece),
    refused("ProtocolError", /do not follow the 60 of 100/),
  );
  await assert.rejects(
    client.ask("put", { ...about, offset: 60 }, piece.subarray(0, 40)),
    refused("ProtocolError", /not on its way; begin at 0/),
  );
  assert.equal(store.nbytes, 0);
});

test("what was used longest ago goes first, and nothing that is attached", async () => {
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const [one, two, three, four] = [1, 2, 3, 4].map((seed) => content(seed, 1300)) as [
    Bytes, Bytes, Bytes, Bytes,
  ];
  for (const each of [one, two, three]) {
    await client.put(each);
  }
  await client.holds(one);
  await client.ask("attach", { digest: digestOf(two) });
  await client.put(four);
  assert.deepEqual(await client.holds(one, two, three, four), [true, true, false, true]);
  assert.ok(store.nbytes <= BUDGET && store.evicted === 1);
  client.requests.close();
  const next = new Client(store);
  for (const each of [one, four, three]) {
    await next.put(each);
  }
  assert.deepEqual(await next.holds(two), [false]);
});

test("where there is no room the error says by whose it is", async () => {
  const store = new BlobStore(BUDGET);
  const [client, other] = [new Client(store), new Client(store, "bob")];
  for (const [who, seed] of [[client, 1], [other, 2]] as const) {
    const data = content(seed, 1500);
    await who.put(data);
    await who.ask("attach", { digest: digestOf(data) });
  }
  await assert.rejects(
    client.put(content(3, 1200)),
    refused("InputError", /1500 bytes of yours are attached, 1500 of others/),
  );
  await assert.rejects(
    client.put(content(3, BUDGET)),
    refused("InputError", /4096 bytes beside 1500 on their way or attached; a session may have 3072/),
  );
});

test("a session may bring any one Library that it is told it may, and leaves others a quarter", async () => {
  const store = new BlobStore(BUDGET);
  assert.equal(store.libraryBytes, (BUDGET / 4) * 3);
  const library = content(1, store.libraryBytes);
  const client = new Client(store);
  assert.deepEqual(
    [await client.put(library), await client.ask("attach", { digest: digestOf(library) })],
    [true, true],
  );
  await assert.rejects(client.put(content(2, 1)), refused("InputError", /a session may have 3072/));
  assert.equal(await new Client(store, "bob").put(content(2, BUDGET / 4)), true);
  const large = new BlobStore(4 * BOUNDS.library_bytes);
  assert.equal(large.libraryBytes, BOUNDS.library_bytes);
  await assert.rejects(
    new Client(large).ask("put", { digest: "0".repeat(64), total: 2 * BOUNDS.library_bytes + 1, offset: 0 }),
    refused("InputError", /a session may have 536870912/),
  );
});

test("an unfinished upload ends with its session", async () => {
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const data = content(1, 1000);
  await client.ask("put", { digest: digestOf(data), total: 1000, offset: 0 }, data.subarray(0, 10));
  assert.equal(store.nbytes, 1000);
  client.requests.close();
  assert.deepEqual([store.nbytes, client.requests.settled], [0, null]);
});

test("messages are answered in their order, and a batch behind them can wait for that", async () => {
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const data = content(1, 1000);
  const answers = [client.put(data), client.ask("attach", { digest: digestOf(data) })];
  assert.equal(client.session.blobs.size, 0);
  await client.requests.settled;
  assert.equal(client.session.blobs.size, 1);
  assert.deepEqual(await Promise.all(answers), [true, true]);
  assert.equal(await client.ask("detach", { digest: digestOf(data) }), true);
  assert.equal(await client.ask("detach", { digest: digestOf(data) }), false);
});

test("what is no message about blobs is refused", async () => {
  const client = new Client(new BlobStore(BUDGET));
  const cases: [string, Header, RegExp][] = [
    ["steal", { digest: "0".repeat(64) }, /unknown blob operation 'steal'/],
    ["attach", { digest: "ABC" }, /64 digits/],
    ["holds", { digests: 3 }, /digests/],
    ["put", { digest: "0".repeat(64), total: 0, offset: 0 }, /at least one byte/],
  ];
  for (const [operation, fields, text] of cases) {
    await assert.rejects(client.ask(operation, fields), refused("ProtocolError", text));
  }
});

test("what lies on a disk comes back in the next life of the page, if it is whole", async () => {
  const disk = new MapDisk();
  const [good, bad] = [content(1, 900), content(2, 900)];
  const before = new BlobStore(BUDGET);
  await before.use(disk);
  const client = new Client(before);
  await client.put(good);
  await client.put(bad);
  disk.files.get(`ada ${digestOf(bad)}`)?.fill(255, 100, 101);
  const after = new BlobStore(BUDGET);
  await after.use(disk);
  const [next, stranger] = [new Client(after), new Client(after, "bob")];
  assert.deepEqual(await next.holds(good, bad), [true, true]);
  assert.deepEqual(await stranger.holds(good), [false]);
  assert.equal(await next.ask("attach", { digest: digestOf(good) }), true);
  assert.deepEqual(next.session.blobs.get(digestOf(good)), good);
  assert.equal(await next.ask("attach", { digest: digestOf(bad) }), false);
  assert.deepEqual([await next.holds(bad), after.damaged], [[false], 1]);
});

test("what a failing disk does not give is sent again", async () => {
  const disk = new MapDisk();
  const data = content(1, 900);
  await disk.write("ada", digestOf(data), data);
  const store = new BlobStore(BUDGET);
  await store.use(disk);
  const fails = (): Promise<never> => Promise.reject(new DOMException("worn out", "UnknownError"));
  disk.read = fails;
  disk.remove = fails;
  const client = new Client(store);
  assert.equal(await client.ask("attach", { digest: digestOf(data) }), false);
  assert.deepEqual([await client.put(data), store.damaged], [true, 1]);
  assert.equal(await client.ask("attach", { digest: digestOf(data) }), true);
});

/** As much of the browser's cache storage as is used. */
class MapShelf {
  readonly files = new Map<string, Bytes>();
  full = false;

  keys(): Promise<readonly Request[]> {
    return Promise.resolve([...this.files.keys()].map((url) => new Request(url)));
  }

  match(url: string): Promise<Response | undefined> {
    const found = this.files.get(url);
    return Promise.resolve(found === undefined ? undefined : new Response(found));
  }

  async put(url: string, response: Response): Promise<void> {
    if (this.full) {
      throw new DOMException("no more room", "QuotaExceededError");
    }
    this.files.set(url, new Uint8Array(await response.arrayBuffer()));
  }

  delete(url: string): Promise<boolean> {
    return Promise.resolve(this.files.delete(url));
  }
}

const diskOf = (shelf: MapShelf): Promise<CacheDisk> =>
  CacheDisk.of(shelf, "https://farm.test", 2500);

test("a disk keeps its budget, finds what was left there, and keeps owners apart", async () => {
  const shelf = new MapShelf();
  const disk = await diskOf(shelf);
  const owner = "token:1 2/\u00e9";
  const [one, two, three] = [1, 2, 3].map((seed) => content(seed, 1000)) as [Bytes, Bytes, Bytes];
  for (const each of [one, two]) {
    await disk.write(owner, digestOf(each), each);
  }
  assert.deepEqual(await disk.read(owner, digestOf(one)), one);
  await disk.write(owner, digestOf(three), three);
  await disk.write(owner, digestOf(three), three);
  await disk.write(owner, "0".repeat(64), content(4, 2501));
  const next = await diskOf(shelf);
  for (const each of [disk, next]) {
    const sizes = [one, two, three].map((blob) => each.size(owner, digestOf(blob)));
    assert.deepEqual([sizes, each.nbytes], [[1000, 0, 1000], 2000]);
  }
  assert.equal(next.size("token:1", digestOf(one)), 0);
  assert.deepEqual(await next.read(owner, digestOf(three)), three);
  await next.remove(owner, digestOf(three));
  assert.deepEqual([next.nbytes, shelf.files.size], [1000, 1]);
});

test("a disk keeps its budget whoever writes at once", async () => {
  const shelf = new MapShelf();
  const disk = await diskOf(shelf);
  const blobs = [1, 2, 3, 4].map((seed) => content(seed, 1000));
  await Promise.all(blobs.map((each) => disk.write("ada", digestOf(each), each)));
  assert.deepEqual([disk.nbytes, shelf.files.size], [2000, 2]);
  assert.deepEqual(
    blobs.map((each) => disk.size("ada", digestOf(each))),
    [0, 0, 1000, 1000],
  );
});

test("a disk that is full costs nobody anything", async () => {
  const shelf = new MapShelf();
  const disk = await diskOf(shelf);
  const store = new BlobStore(BUDGET);
  const client = new Client(store);
  const [before, after] = [content(1, 500), content(2, 500)];
  await client.put(before);
  await store.use(disk);
  assert.equal(shelf.files.size, 1);
  shelf.full = true;
  assert.equal(await client.put(after), true);
  await new Promise((resolve) => setTimeout(resolve, 0));
  assert.deepEqual([await client.holds(before, after), disk.nbytes], [[true, true], 500]);
});
