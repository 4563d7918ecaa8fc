"""Runs the program `verbline` at grpcio's servers, with their stock reflection and health, and compares its JSON with
Python's.

    tool.py PROGRAM

Each case first fails where it must: at a server that does wrong what the case looks at. It prints a line for each, and
ends with exit code 1 if one has not ended as it should. SEED=n replays the random messages.
"""

import json
import os
import select
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import generated
import grpc
from google.protobuf import json_format, text_format
from grpc_health.v1 import health, health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection
from random_messages import random_message, same

import json_texts
import kinds_pb2
import kinds_pb2_grpc
import routeguide_pb2
from expect import Failure, expect

KINDS = "verbline.kinds.Kinds"
PROGRAM = sys.argv[1]
GOLDEN = os.path.join(generated.ROOT, "cli/tests/golden")
RANDOM_MESSAGES = 300


class Kinds(kinds_pb2_grpc.KindsServicer):
    """Sends messages back, and keeps those that have come."""

    # How long a response may take that nothing else is waited for.
    PATIENCE_S = 60

    def __init__(self):
        self.received = []

    def take(self, request):
        self.received.append(request)
        return request

    def Echo(self, request, context):
        for key, value in context.invocation_metadata():
            if key == "fail-with":
                context.set_trailing_metadata([("why", "asked")])
                context.abort([code for code in grpc.StatusCode if code.value[0] == int(value)][0], "as you wish")
        return self.take(request)

    def Last(self, requests, context):
        last = kinds_pb2.EveryKind()
        for last in requests:
            pass
        return self.take(last)

    def Repeat(self, request, context):
        yield self.take(request)
        yield request

    def Chat(self, requests, context):
        for request in requests:
            yield self.take(request)


class Altered(Kinds):
    """Changes each message."""

    def take(self, request):
        request.a_string += "!"
        return super().take(request)


class Deaf(Kinds):
    """Ignores metadata, and one message of each stream."""

    def Echo(self, request, context):
        return self.take(request)

    def Last(self, requests, context):
        return super().Last(list(requests)[:-1], context)

    def Repeat(self, request, context):
        yield self.take(request)

    def Chat(self, requests, context):
        for index, request in enumerate(requests):
            if index != 1:
                yield self.take(request)


class Late(Kinds):
    """Answers a stream when it has ended."""

    PATIENCE_S = 2

    def Chat(self, requests, context):
        return super().Chat(list(requests), context)


class Server:
    """A server on grpcio. grpcio-reflection has v1alpha only."""

    def __init__(self, kinds, names=(KINDS, reflection.SERVICE_NAME), status="NOT_SERVING", has_reflection=True):
        self.kinds = kinds
        # A watch takes a thread while it lasts.
        self.server = grpc.server(ThreadPoolExecutor(8), options=[("grpc.so_reuseport", 0)])
        kinds_pb2_grpc.add_KindsServicer_to_server(kinds, self.server)
        self.health = health.HealthServicer()
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self.server)
        self.health.set("", health_pb2.HealthCheckResponse.SERVING)
        self.health.set(KINDS, health_pb2.HealthCheckResponse.ServingStatus.Value(status))
        if has_reflection:
            reflection.enable_server_reflection(names, self.server)
        self.address = f"http://127.0.0.1:{self.server.add_insecure_port('127.0.0.1:0')}"
        self.server.start()

    def verbline(self, command, *arguments, expected=0, stdin=None):
        """Runs the program, which must end with this exit code. Returns its output."""
        ended = subprocess.run([PROGRAM, command, self.address, *arguments], input=stdin, capture_output=True,
                               encoding="utf-8", env={**os.environ, "VERBLINE_DEVICE": "soft"})
        if ended.returncode != expected:
            raise Failure(f"{command} {arguments} ended with {ended.returncode}, not {expected}: {ended.stderr.strip()}")
        return ended.stdout if expected == 0 else ended.stderr

    def call(self, method, data, **options):
        return self.verbline("call", f"{KINDS}/{method}", "-d", data, **options)


def golden(name):
    with open(os.path.join(GOLDEN, name), encoding="utf-8") as file:
        return file.read()


def list_services(server):
    names = [reflection.SERVICE_NAME, KINDS]
    expect("services", server.verbline("list").split(), names)
    expect("methods", server.verbline("list", KINDS), golden("list-methods.txt"))
    return f"{len(names)} services"


def describe(server):
    """What protoc says to Python must be what protox says to the tests of the program."""
    for symbol, name in [(KINDS, "service"), ("verbline.kinds.EveryKind", "message")]:
        expect(symbol, server.verbline("describe", symbol), golden(f"describe-{name}.txt"))
    return "a service and a message"


def call(server):
    lines = [f'{{"anInt32":{number}}}\n' for number in range(1, 6)]
    expect("Echo", server.call("Echo", lines[0]), lines[0])
    expect("Last", server.call("Last", "-", stdin="".join(lines)), lines[-1])
    expect("Repeat", server.call("Repeat", lines[0]), lines[0] * 2)
    expect("Chat", server.call("Chat", "-", stdin="".join(lines)), "".join(lines))
    for code in range(1, 17):
        failed = server.verbline("call", f"{KINDS}/Echo", "-v", "-H", f"fail-with: {code}", expected=64 + code)
        expect("message", failed.splitlines()[-1].split(": ", 2)[2], "as you wish")
        expect("trailers", "trailing metadata: why: asked" in failed, True)
    return "methods of each kind, and 16 statuses"


def conversation(server):
    """Sees the response to each line before it writes the next."""
    command = [PROGRAM, "call", server.address, f"{KINDS}/Chat", "-d", "-"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        for number in range(1, 21):
            process.stdin.write(f'{{"anInt32": {number}}}\n')
            process.stdin.flush()
            answered, _, _ = select.select([process.stdout], [], [], server.kinds.PATIENCE_S)
            if not answered:
                raise Failure(f"no response to line {number}")
            expect("response", json.loads(process.stdout.readline()), {"anInt32": number})
        process.stdin.close()
        expect("exit code", process.wait(), 0)
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
    return "20 lines"


def unknown_names(server):
    for method, near in [("Ecko", "Echo"), ("Chad", "Chat")]:
        failed = server.call(method, "{}", expected=64 + 12)
        expect("nearest name", failed.endswith(f"did you mean {KINDS}/{near}?\n"), True)
    return "the nearest ones are named"


def without_reflection(server):
    for command in ["list"], ["describe", KINDS], ["call", f"{KINDS}/Echo"]:
        failed = server.verbline(*command, expected=1)
        expect(command[0], "has no reflection" in failed, True)
    protos = os.path.join(generated.ROOT, "cli/tests/protos/kinds.proto")
    printed = server.verbline("call", f"{KINDS}/Echo", "-d", '{"anInt32":1}', "--proto", protos)
    expect("Echo", printed, '{"anInt32":1}\n')
    return "refused, and called with its file"


def probe(server):
    limit = ["--timeout", "60"]
    expect("health of the server", server.verbline("health", *limit), "SERVING\n")
    server.verbline("health", KINDS, *limit, expected=1)
    server.verbline("health", "no.such.Service", *limit, expected=2)
    return "exit codes 0, 1, 2"


def parse(text):
    return json_format.Parse(text, kinds_pb2.EveryKind())


def exact(message):
    """Two messages are the same if this is, also those with NaN, and those with maps in the bytes of an Any."""
    return text_format.MessageToString(message)


def json_of_texts(server):
    """Both ways: the server must get the message that Python reads in the text, and the program must print what Python
    prints."""
    seen = set()
    for text in json_texts.GOOD:
        message = parse(text)
        seen |= {field.number for field, _ in message.ListFields()}
        server.kinds.received.clear()
        printed = server.call("Echo", text)
        expect(f"message of {text}", exact(server.kinds.received[0]), exact(message))
        expect(f"JSON of {text}", same(json.loads(printed), json_format.MessageToDict(message)), True)
        # Python reads it as the same message again.
        expect(f"reading of {printed}", exact(parse(printed)), exact(message))
    fields = {field.number for field in kinds_pb2.EveryKind.DESCRIPTOR.fields}
    # It has one value, which a message without presence does not have.
    fields.remove(kinds_pb2.EveryKind.NOTHING_FIELD_NUMBER)
    expect("fields that no text has", fields - seen, set())
    return f"{len(json_texts.GOOD)} texts, {len(fields)} fields"


def json_of_random_messages(server):
    seed = int(os.environ.get("SEED", time.time_ns() % 1_000_000))
    messages = [random_message(kinds_pb2.EveryKind, seed + index) for index in range(RANDOM_MESSAGES)]
    lines = "".join(json_format.MessageToJson(message, indent=None) + "\n" for message in messages)
    server.kinds.received.clear()
    printed = server.call("Chat", "-", stdin=lines).split("\n")[:-1]
    expect("messages", len(printed), len(messages))
    for index, (message, line, received) in enumerate(zip(messages, printed, server.kinds.received)):
        what = f"SEED={seed + index}"
        expect(f"message, {what}", exact(received), exact(message))
        expect(f"JSON, {what}", same(json.loads(line), json_format.MessageToDict(message)), True)
        expect(f"reading, {what}", exact(parse(line)), exact(message))
    return f"{len(messages)} messages, SEED={seed}"


def json_that_is_refused(server, refused=json_texts.BAD, lenient=json_texts.LENIENT):
    for text in refused:
        try:
            parse(text)
        except json_format.ParseError:
            pass
        else:
            raise Failure(f"Python takes {text}")
        server.call("Echo", text, expected=1)
    for text in lenient:
        parse(text)
        server.call("Echo", text, expected=1)
    return f"{len(refused)} texts, and {len(lenient)} that Python takes"


def refuses_nothing(server):
    """Texts that are fine must not count as refused, on either side."""
    json_that_is_refused(server, refused=[], lenient=["{}"])


# Each case, and the servers that it must not accept.
CASES = {
    list_services: [lambda: Server(Kinds(), names=[KINDS]), lambda: Server(Kinds(), has_reflection=False)],
    describe: [lambda: Server(Kinds(), has_reflection=False)],
    call: [lambda: Server(Altered()), lambda: Server(Deaf())],
    conversation: [lambda: Server(Altered()), lambda: Server(Late())],
    unknown_names: [lambda: Server(Kinds(), has_reflection=False)],
    without_reflection: [lambda: Server(Kinds())],
    probe: [lambda: Server(Kinds(), status="SERVING")],
    json_of_texts: [lambda: Server(Altered())],
    json_of_random_messages: [lambda: Server(Altered()), lambda: Server(Deaf())],
    json_that_is_refused: [],
}


def run(case, server, must_fail):
    begun = time.monotonic()
    try:
        what, failure = case(server), None
    except Failure as error:
        failure = error
    server.server.stop(None)
    took = time.monotonic() - begun
    if must_fail:
        outcome, what = ("refused", failure) if failure else ("FAILED ", f"it accepts this server: {what}")
    else:
        outcome, what = ("FAILED ", failure) if failure else ("passed ", what)
    print(f"{outcome}  tool    {case.__name__:28} {took:6.2f} s  {str(what)[:200]}", flush=True)
    return outcome != "FAILED "


def main():
    # Reflection knows the modules that have been imported.
    assert routeguide_pb2.DESCRIPTOR
    good = [run(refuses_nothing, Server(Kinds()), must_fail=True)]
    for case, contrary in CASES.items():
        good += [run(case, server(), must_fail=True) for server in contrary]
        server = Server(Kinds(), has_reflection=case is not without_reflection)
        good.append(run(case, server, must_fail=False))
    sys.exit(0 if all(good) else 1)


main()
