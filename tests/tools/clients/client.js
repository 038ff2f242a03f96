// client.js: etcd3 of Node, as client.py is the clients of Python: the same lines, with ETCDCTL_*.
const { readFileSync } = require("fs");
const { Etcd3 } = require("etcd3");
const WITHIN = 60_000;

const read = (name) => readFileSync(process.env[name]);
const client = new Etcd3({
  hosts: process.env.ETCDCTL_ENDPOINTS,
  credentials: {
    rootCertificate: read("ETCDCTL_CACERT"),
    certChain: read("ETCDCTL_CERT"),
    privateKey: read("ETCDCTL_KEY"),
  },
});
const seen = new Set();
let held;

const commands = {
  put: (key, value) => client.put(key).value(value).then(() => undefined),
  get: (key) => client.get(key).string(),
  lock: async () => {
    held = client.lock("till").ttl(120);
    await held.acquire();
  },
  hold: async () => {
    const lock = await client.getAll().prefix("till").keys();
    if (lock.length !== 1) throw new Error(`${lock.length} keys of the lock`);
  },
  watch: async (key) => {
    const watcher = await client.watch().key(key).create();
    watcher.on("put", (it) => seen.add(it.value.toString()));
  },
  await: async (value) => {
    for (const end = Date.now() + WITHIN; !seen.has(value); ) {
      if (Date.now() > end) throw new Error(`the watch saw ${[...seen]}`);
      await new Promise((next) => setTimeout(next, 50));
    }
  },
};

console.log("ready");
(async () => {
  for await (const line of require("readline").createInterface({ input: process.stdin })) {
    const [command, ...words] = line.split(" ");
    try {
      const done = await commands[command](...words);
      console.log(done ? `done ${done}` : "done");
    } catch (error) {
      console.log(`failed ${error}`.replaceAll("\n", " "));
    }
  }
  process.exit(0);
})();
