"""client.py PROGRAM: a client of etcd that does what each line of standard input says, and answers with a line.

put KEY VALUE, get KEY, lock, hold (the lock is still held), watch KEY, await VALUE (until the watch saw it).
PROGRAM is patroni, with its section of configuration in PATRONI; or etcd3gw or etcd3, with ETCDCTL_*.
"""

import os
import sys
import threading
import time

# For etcd3, whose generated code is older than the library's native half.
os.environ["PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION"] = "python"
WITHIN = 60


def files():
    name = os.environ["ETCDCTL_ENDPOINTS"].removeprefix("https://")
    host, port = name.rsplit(":", 1)
    pair = [os.environ["ETCDCTL_CERT"], os.environ["ETCDCTL_KEY"]]
    return host, int(port), os.environ["ETCDCTL_CACERT"], *pair


class Seen:
    """What a watch saw."""

    def __init__(self):
        self.values = set()

    def add(self, value):
        self.values.add(value)

    def wait(self, value):
        end = time.monotonic() + WITHIN
        while value not in self.values:
            if time.monotonic() > end:
                raise TimeoutError(f"the watch saw {sorted(self.values)}")
            time.sleep(0.05)


class Patroni:
    """The store that Patroni keeps its leader in: the cluster's configuration is the value."""

    def __init__(self):
        import yaml
        from patroni.dcs import get_dcs

        section = yaml.safe_load(os.environ["PATRONI"])
        self.dcs = get_dcs(
            {"scope": "till", "name": "box-1", "ttl": 30, "loop_wait": 5, "retry_timeout": 10} | section
        )

    def put(self, _key, value):
        assert self.dcs.set_config_value('{"is": "%s"}' % value)

    def get(self, _key):
        return self.dcs.get_cluster().config.data["is"]

    def lock(self):
        assert self.dcs.initialize(create_new=True, sysid="1")
        assert self.dcs.touch_member({"conn_url": "postgres://127.0.0.1/", "state": "running"})
        assert self.dcs.attempt_to_acquire_leader()
        self.hold()

    def hold(self):
        cluster = self.dcs.get_cluster()
        assert cluster.leader.name == "box-1", cluster
        assert self.dcs.update_leader(cluster, 1)

    def watch(self, _key):
        pass  # the store watches all that is its own from its start

    def wait(self, value):
        end = time.monotonic() + WITHIN
        while self.get("") != value:
            assert time.monotonic() < end, self.get("")
            self.dcs.watch(None, 1)


class Gateway:
    """etcd3gw."""

    def __init__(self):
        import etcd3gw

        host, port, ca, cert, key = files()
        self.client = etcd3gw.client(
            host=host, port=port, protocol="https", ca_cert=ca, cert_cert=cert, cert_key=key, timeout=10
        )
        self.seen = Seen()

    def put(self, key, value):
        assert self.client.put(key, value)

    def get(self, key):
        return self.client.get(key)[0].decode()

    def lock(self):
        self.held = self.client.lock("till", ttl=120)
        assert self.held.acquire()

    def hold(self):
        assert self.held.refresh() > 0

    def watch(self, key):
        events, _ = self.client.watch(key)

        def follow():
            for event in events:
                self.seen.add(event["kv"]["value"].decode())

        threading.Thread(target=follow, daemon=True).start()

    def wait(self, value):
        self.seen.wait(value)


class Grpc:
    """etcd3, over gRPC."""

    def __init__(self):
        import etcd3

        host, port, ca, cert, key = files()
        self.client = etcd3.client(host=host, port=port, ca_cert=ca, cert_cert=cert, cert_key=key, timeout=10)
        self.seen = Seen()

    def put(self, key, value):
        self.client.put(key, value)

    def get(self, key):
        return self.client.get(key)[0].decode()

    def lock(self):
        self.held = self.client.lock("till", ttl=120)
        assert self.held.acquire(timeout=10)

    def hold(self):
        assert self.held.refresh()[0].TTL > 0

    def watch(self, key):
        self.client.add_watch_callback(key, self.follow)

    def follow(self, response):
        for event in getattr(response, "events", []):
            self.seen.add(event.value.decode())

    def wait(self, value):
        self.seen.wait(value)


def main():
    client = {"patroni": Patroni, "etcd3gw": Gateway, "etcd3": Grpc}[sys.argv[1]]()
    print("ready", flush=True)
    for line in sys.stdin:
        command, *words = line.split()
        try:
            done = getattr(client, "wait" if command == "await" else command)(*words)
            print(f"done {done}" if done else "done", flush=True)
        except Exception as error:
            print(f"failed {error!r}, {error.__context__!r}".replace("\n", " "), flush=True)


main()
