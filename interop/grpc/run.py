"""Runs stock gRPC clients and servers against Verbline. `.ci/interop-grpc` builds what it needs, and starts it.

    run.py           all parts
    run.py stock     the stock clients against the stock server: Verbline has no part in it
    run.py gateway   the stock clients through the gateway
    run.py tls       the same through a gateway with TLS
    run.py back      Verbline's client against the stock server
    run.py tool      the program `verbline` at stock servers, and its JSON beside Python's

Each case first fails where it must, and in the way in which it must: at a port where nobody listens, at a server that
does wrong what the case looks at, and at one that lacks the service. The last line counts the cases that have ended as
they should.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
from importlib import metadata

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
TARGET = os.path.join(ROOT, os.environ.get("CARGO_TARGET_DIR", "target"), "debug")
SERVER = [sys.executable, os.path.join(HERE, "python/server.py")]
CERTIFICATES = os.path.join(ROOT, "target/grpc/certificates")
CLIENTS = {
    "python": [sys.executable, os.path.join(HERE, "python/client.py")],
    "node": ["node", os.path.join(HERE, "node/client.js")]}

INTEROP = [
    "empty_unary", "large_unary", "concurrent_large_unary", "client_streaming", "server_streaming", "ping_pong",
    "empty_stream", "custom_metadata", "status_code_and_message", "special_status_message",
    "unimplemented_method", "unimplemented_service", "cancel_after_begin", "cancel_after_first_response",
    "timeout_on_sleeping_server", "rpc_soak", "channel_soak"]
# Only the stock clients have these.
BESIDE_GRPC = ["half_duplex", "torn_uploads", "compressed_request"]
INTEROP += BESIDE_GRPC
# These pass at a server that lacks the service.
UNIMPLEMENTED = ["unimplemented_method", "unimplemented_service"]
ROUTES = ["get_feature", "list_features", "record_route", "route_chat"]
# Those for which a client has a library, or the protos are enough.
SERVICES = {
    "python": ["reflection_lists", "reflection_of_imports", "reflection_of_unknown", "health_check"],
    "node": ["reflection_of_symbols", "health_check"]}
# It stops the server.
SHUTDOWN = ["health_watch_over_shutdown"]
# The call of this one has no response that could be wrong: its server lacks the method.
CONTRARY_CODES = {"empty_unary": "UNIMPLEMENTED"}
# What each library says of a watch at a server that stops without a word. grpcio's server cancels it as UNAVAILABLE,
# and ends the connection with a GOAWAY that has an error's code. grpcio takes that for UNAVAILABLE, too. Node's HTTP/2
# ends all streams with this error, also one whose status has come but is not read yet: to grpc-js, that is INTERNAL.
ENDED_WITHOUT_A_WORD = {"python": "UNAVAILABLE", "node": "UNAVAILABLE|INTERNAL"}

LIBC = ctypes.CDLL(None)
PR_SET_PDEATHSIG = 1


def end_with_parent():
    """Has the system kill a new process when this one ends, however that is."""
    LIBC.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


class Program:
    """A server as a process, which is killed at the end of the block."""

    def __init__(self, *command):
        self.command = list(command)
        self.contrary = {}

    def __enter__(self):
        environment = {"RUST_LOG": "warn", **os.environ, "VERBLINE_DEVICE": "soft"}
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=end_with_parent)
        for line in self.process.stdout:
            words = line.split()
            if words[:1] == ["contrary"]:
                self.contrary[words[1]] = words[2]
            elif words[:1] == ["listening"]:
                self.address = words[-1]
                return self
        sys.exit(f"!! {' '.join(self.command)} does not listen, and has ended with status {self.process.wait()}")

    def ended(self, method):
        """How calls of a method have ended, by status code: a Verbline server prints that at its end."""
        self.process.terminate()
        lines = [line.split() for line in self.process.stdout]
        return {words[2]: int(words[3]) for words in lines if words[:1] == ["served"] and words[1].endswith("/" + method)}

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        self.process.stdout.close()


def verbline(program, *arguments):
    return Program(os.path.join(TARGET, program), *arguments)


def interop_server():
    return verbline("interop", "--device", "soft", "--serve", "127.0.0.1:0")


def route_guide_server():
    return verbline("route_guide_server", "127.0.0.1:0")


def gateway(server, *options):
    return verbline("verbline-gateway", "--listen", "127.0.0.1:0", "--server", server.address, *options)


def issue(name, *options):
    """Has openssl issue a certificate, by the commands of docs/gateway.md."""
    new = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "90"]
    files = ["-subj", f"/CN={name}", "-keyout", f"{name}.key", "-out", f"{name}.pem"]
    subprocess.run([*new, *files, *options], cwd=CERTIFICATES, stderr=subprocess.DEVNULL, check=True)


class Run:
    """Counts the cases that have ended as they should, and the others."""

    def __init__(self):
        self.passed = self.failed = 0
        # Nobody listens at this port, and nobody else gets it.
        self.unused = socket.socket()
        self.unused.bind(("127.0.0.1", 0))
        host, port = self.unused.getsockname()
        self.nobody = f"{host}:{port}"

    def run(self, client, targets, stops=None, tls=None):
        """Runs cases at addresses, as the clients take them. `stops` is the server that one of them stops, and `tls`
        the variables of `as_client`."""
        environment = {**os.environ, **(tls or {})}
        if stops:
            environment["SERVER_PID"] = str(stops.process.pid)
        command = [*CLIENTS[client], *targets]
        ended = subprocess.run(
            command, stdout=subprocess.PIPE, text=True, env=environment, preexec_fn=end_with_parent)
        print(ended.stdout, end="", flush=True)
        good = sum(line.startswith(("passed", "refused")) for line in ended.stdout.splitlines())
        self.passed += good
        self.failed += len(targets) - good
        if ended.returncode not in (0, 1):
            sys.exit(f"!! The client on {client} has ended with status {ended.returncode}: it has an error of its own")

    def passed_at(self, server, client, cases, **options):
        """These cases must pass."""
        self.run(client, [f"{case}@{server.address}" for case in cases], **options)

    def refused_at(self, address, client, cases, code, **options):
        """Each of these cases must fail, because a call ends with this status code, or with one of several."""
        self.run(client, [f"{case}@{address}={code}" for case in cases], **options)

    def verbline(self, address, cases, must_fail=False):
        """Runs cases of Verbline's client, over HTTP/2."""
        command = [os.path.join(TARGET, "interop"), "--calls", "100", "--grpc", address, *cases]
        ended = subprocess.run(command, stdout=subprocess.PIPE, text=True, preexec_fn=end_with_parent)
        lines = ended.stdout.splitlines()
        lines = [line for line in lines if line.startswith(("passed", "FAILED"))]
        if must_fail and address != self.nobody:
            # A case that has not begun proves nothing.
            lines = [line for line in lines if f" {cases[0]} " in line]
        good = "FAILED" if must_fail else "passed"
        for line in lines:
            print("refused" + line[7:] if must_fail and line.startswith(good) else line, flush=True)
        ended = sum(line.startswith(good) for line in lines)
        self.passed += ended
        self.failed += len(cases) - ended

    def check_uploads(self, server, complete):
        """A server that has ended must have got this number of complete uploads, and others that were cancelled."""
        ended = server.ended("StreamingInputCall")
        is_good = ended.get("OK") == complete and ended.get("CANCELLED", 0) > 0
        self.passed += is_good
        self.failed += not is_good
        what = f"{complete} uploads were complete, and the server saw {ended}"
        print("passed " if is_good else "FAILED ", f" server  {'torn_uploads':36}  {what}")


def heading(text):
    print(f"\n== {text}", flush=True)


def print_versions():
    heading("Versions")
    print("python", sys.version.split()[0])
    for package in ["grpcio", "grpcio-health-checking", "grpcio-reflection", "grpcio-tools", "protobuf"]:
        print(package, metadata.version(package))
    script = """
        const { createRequire } = require('node:module');
        const installed = createRequire(process.argv[1]);
        console.log('node', process.versions.node);
        for (const name of ['@grpc/grpc-js', '@grpc/proto-loader']) {
            console.log(name, installed(`./node_modules/${name}/package.json`).version);
        }"""
    subprocess.run(["node", "-e", script, os.path.join(ROOT, "target/grpc/node/")], check=True)


def stock(run):
    """The cases themselves: that each fails where it must, and passes at grpcio's server."""
    for client in CLIENTS:
        cases = INTEROP + ROUTES + SERVICES[client]
        heading("Where nobody listens: each case must fail")
        run.refused_at(run.nobody, client, cases + SHUTDOWN, "UNAVAILABLE")
        heading("Servers that do wrong what the case looks at: each case must fail")
        with Program(*SERVER, "--contrary") as server:
            run.run(client, [f"{case}@{server.contrary[case]}={CONTRARY_CODES.get(case, 'OK')}" for case in cases])
        heading("A server that stops without a word: the watch must fail")
        with Program(*SERVER, "--abrupt") as server:
            run.refused_at(server.address, client, SHUTDOWN, ENDED_WITHOUT_A_WORD[client], stops=server)
        heading("grpcio's server")
        with Program(*SERVER) as server:
            run.passed_at(server, client, cases + SHUTDOWN, stops=server)


def through_gateway(run):
    """The same cases, at Verbline's servers behind the gateway."""
    for client in CLIENTS:
        with route_guide_server() as server, gateway(server) as at:
            heading("The gateway of a server without the services: each case must fail")
            others = [case for case in INTEROP if case not in UNIMPLEMENTED]
            run.refused_at(at.address, client, others + SERVICES[client], "UNIMPLEMENTED")
            heading("The route guide, through the gateway")
            run.passed_at(at, client, ROUTES)
        with interop_server() as server, gateway(server) as at:
            heading("The gateway of a server without the route guide: each case must fail")
            run.refused_at(at.address, client, ROUTES, "UNIMPLEMENTED")
            heading("The interop server, through the gateway")
            run.passed_at(at, client, INTEROP + SERVICES[client] + SHUTDOWN, stops=server)
            # Node ends a stream before it resets it: a server cannot tell that such an upload is torn.
            if client != "node":
                # That of `client_streaming`. Those of `cancel_after_begin` and `torn_uploads` were not.
                run.check_uploads(server, complete=1)


def as_client(roots, name=None):
    """The variables of a client with TLS."""
    path = lambda file: os.path.join(CERTIFICATES, file)
    shown = {"TLS_CERTIFICATE": path(f"{name}.pem"), "TLS_KEY": path(f"{name}.key")} if name else {}
    return {"TLS_ROOTS": path(f"{roots}.pem"), **shown}


def over_tls(run):
    """The same cases, at a gateway with TLS that demands certificates."""
    os.makedirs(CERTIFICATES, exist_ok=True)
    issue("root")
    issue("other")
    leaf = ["-CA", "root.pem", "-CAkey", "root.key", "-addext", "basicConstraints=critical,CA:FALSE", "-addext"]
    issue("gateway", *leaf, "subjectAltName=DNS:localhost,IP:127.0.0.1")
    issue("ada", *leaf, "subjectAltName=URI:spiffe://example.org/ada")
    files = [os.path.join(CERTIFICATES, file) for file in ["gateway.pem", "gateway.key", "root.pem"]]
    options = ["--tls-cert", files[0], "--tls-key", files[1], "--tls-client-ca", files[2]]
    for client in CLIENTS:
        with interop_server() as server, gateway(server) as plain, gateway(server, *options) as at:
            heading("TLS: a client that does not believe the gateway, one without a certificate, and plain text")
            for tls in [as_client("other", "ada"), as_client("root"), {}]:
                run.refused_at(at.address, client, ["empty_unary", "ping_pong"], "UNAVAILABLE", tls=tls)
            heading("TLS at a gateway without it")
            run.refused_at(plain.address, client, ["empty_unary"], "UNAVAILABLE", tls=as_client("root"))
            heading("The interop server, through a gateway with TLS")
            tls = as_client("root", "ada")
            run.passed_at(at, client, INTEROP + SERVICES[client] + SHUTDOWN, stops=server, tls=tls)


def back(run):
    """Verbline's client at grpcio's server."""
    cases = [case for case in INTEROP if case not in BESIDE_GRPC]
    heading("Verbline's client where nobody listens, and at servers that do wrong: each case must fail")
    with Program(*SERVER, "--contrary") as server:
        for case in cases:
            run.verbline(run.nobody, [case], must_fail=True)
            run.verbline(server.contrary[case], [case], must_fail=True)
    heading("Verbline's client at grpcio's server")
    with Program(*SERVER) as server:
        run.verbline(server.address, cases)


def tool(run):
    """The program `verbline` at grpcio's servers, which are in the process of the cases."""
    heading("The program verbline at grpcio's servers; each case first fails where it must")
    command = [sys.executable, os.path.join(HERE, "python/tool.py"), os.path.join(TARGET, "verbline")]
    ended = subprocess.run(command, stdout=subprocess.PIPE, text=True)
    print(ended.stdout, end="", flush=True)
    lines = ended.stdout.splitlines()
    run.passed += sum(line.startswith(("passed", "refused")) for line in lines)
    run.failed += sum(line.startswith("FAILED") for line in lines)
    if ended.returncode not in (0, 1):
        sys.exit(f"!! The cases of the program have ended with status {ended.returncode}: they have an error of their own")


PARTS = {"stock": stock, "gateway": through_gateway, "tls": over_tls, "back": back, "tool": tool}


def main():
    parts = sys.argv[1:] or list(PARTS)
    if not set(parts) <= set(PARTS):
        sys.exit(f"!! run.py knows the parts {', '.join(PARTS)}, not '{' '.join(parts)}'")
    print_versions()
    subprocess.run([sys.executable, os.path.join(HERE, "python/generated.py")], check=True)
    run = Run()
    for part in parts:
        PARTS[part](run)
    print(f"\n{run.passed} passed, {run.failed} failed", flush=True)
    sys.exit(1 if run.failed else 0)


main()
