#!/usr/bin/env python3
"""gRPC's interop cases: grpc_peers.py server PORT, or grpc_peers.py client TARGET RESULT [CA]. The client writes
{case: what was wrong, or nothing} to the file RESULT. Needs the modules that protoc made of grpc_peers.proto."""
import json
import pathlib
import queue
import sys
import time
from concurrent import futures

import grpc
import grpc_peers_pb2
import grpc_peers_pb2_grpc
from grpc_peers_pb2 import Part

ECHO_INITIAL, ECHO_TRAILING = "x-grpc-test-echo-initial", "x-grpc-test-echo-trailing-bin"
PATIENCE_SECONDS = 20
# Bytes that need percent encoding in grpc-message, one of them beyond the Basic Multilingual Plane.
SPECIAL = "\t\ntest with whitespace\r\nand Unicode BMP ☺ and non-BMP 😈\t\n"


class Test(grpc_peers_pb2_grpc.TestServicer):
    def __init__(self):
        self.cancelled = 0
        self.remaining_ms = 0

    def begin(self, context):
        sent = dict(context.invocation_metadata())
        if ECHO_INITIAL in sent:
            context.send_initial_metadata(((ECHO_INITIAL, sent[ECHO_INITIAL]),))
        if ECHO_TRAILING in sent:
            context.set_trailing_metadata(((ECHO_TRAILING, sent[ECHO_TRAILING]),))

    def watch(self, context):
        """Counts a call that ends before what comes back says that it is done."""
        done = []

        def ended():
            self.cancelled += not done

        context.add_callback(ended)

        def parts_ended():
            # grpcio may end the parts of a cancelled call as if they were all there, and hear of the reset behind it.
            time.sleep(0.05)
            if context.is_active():
                done.append(True)

        return parts_ended

    def answer(self, part, context):
        time.sleep(part.sleep_ms / 1000)
        if part.code:
            context.abort(next(code for code in grpc.StatusCode if code.value[0] == part.code), part.text)
        return Part(body=bytes(part.size))

    def Unary(self, request, context):
        self.begin(context)
        return self.answer(request, context)

    def Up(self, parts, context):
        done = self.watch(context)
        size = sum(len(part.body) for part in parts)
        done()
        return Part(size=size)

    def Down(self, request, context):
        for _ in request.body:
            yield self.answer(request, context)

    def Both(self, parts, context):
        self.begin(context)
        self.remaining_ms = int(1000 * min(context.time_remaining() or 0, 1e6))
        done = self.watch(context)
        for part in parts:
            yield self.answer(part, context)
        done()

    def Seen(self, _request, _context):
        return Part(size=self.cancelled, sleep_ms=self.remaining_ms)


def serve(port):
    from grpc_reflection.v1alpha import reflection

    server = grpc.server(futures.ThreadPoolExecutor(16), compression=grpc.Compression.Gzip)
    grpc_peers_pb2_grpc.add_TestServicer_to_server(Test(), server)
    reflection.enable_server_reflection(("shard.suite.Test", reflection.SERVICE_NAME), server)
    server.add_insecure_port(f"127.0.0.1:{port}")
    server.start()
    server.wait_for_termination()


def must(holds, what):
    if not holds:
        raise AssertionError(what)


def fails(call, code, details=None):
    """The error of a call that has to fail with `code`, and with `details` where they are given."""
    try:
        call()
    except grpc.RpcError as error:
        must(error.code() == code and details in (None, error.details()), f"{error.code()}: {error.details()!r}")
        return error
    raise AssertionError("no error")


class Cases:
    """Each method is a case."""

    def __init__(self, channel):
        self._channel = channel
        self._stub = grpc_peers_pb2_grpc.TestStub(channel)

    def _wait_cancelled(self, before):
        end = time.monotonic() + PATIENCE_SECONDS
        while self._stub.Seen(Part()).size == before:
            must(time.monotonic() < end, "the server was not told")
            time.sleep(0.02)

    def _call(self, path, part, **options):
        method = self._channel.unary_unary(
            path, request_serializer=Part.SerializeToString, response_deserializer=Part.FromString
        )
        return method(part, **options)

    def empty_unary(self):
        must(self._stub.Unary(Part()) == Part(), "an empty answer")

    def large_unary(self):
        answer = self._stub.Unary(Part(body=bytes(271828), size=314159))
        must(answer.body == bytes(314159), len(answer.body))

    def compressed_unary(self):
        answer = self._stub.Unary(Part(body=bytes(271828), size=314159), compression=grpc.Compression.Gzip)
        must(answer.body == bytes(314159), len(answer.body))

    def client_streaming(self):
        answer = self._stub.Up(Part(body=bytes(size)) for size in (27182, 8, 1828, 45904))
        must(answer.size == 74922, answer.size)

    def server_streaming(self):
        sizes = [len(part.body) for part in self._stub.Down(Part(body=bytes(200), size=31415))]
        must(sizes == [31415] * 200, sizes)

    def ping_pong(self):
        parts = queue.Queue()
        call = self._stub.Both(iter(parts.get, None), timeout=PATIENCE_SECONDS)
        for sent, asked in ((27182, 31415), (8, 9), (1828, 2653), (45904, 58979)):
            parts.put(Part(body=bytes(sent), size=asked))
            must(len(next(call).body) == asked, asked)
        parts.put(None)
        must(list(call) == [] and call.code() == grpc.StatusCode.OK, call.code())

    def empty_stream(self):
        must(list(self._stub.Both(iter(()), timeout=PATIENCE_SECONDS)) == [], "no answer")

    def cancel_after_begin(self):
        before, parts = self._stub.Seen(Part()).size, queue.Queue()
        call = self._stub.Up.future(iter(parts.get, None))
        parts.put(Part(body=b"x"))
        time.sleep(0.2)
        call.cancel()
        parts.put(None)
        must(call.code() == grpc.StatusCode.CANCELLED, call.code())
        self._wait_cancelled(before)

    def cancel_after_first_response(self):
        before, parts = self._stub.Seen(Part()).size, queue.Queue()
        call = self._stub.Both(iter(parts.get, None), timeout=PATIENCE_SECONDS)
        parts.put(Part(size=31415))
        must(len(next(call).body) == 31415, "the first answer")
        call.cancel()
        parts.put(None)
        fails(lambda: next(call), grpc.StatusCode.CANCELLED)
        self._wait_cancelled(before)

    def timeout_on_sleeping_server(self):
        parts = queue.Queue()
        call = self._stub.Both(iter(parts.get, None), timeout=0.5)
        parts.put(Part(sleep_ms=1500))
        fails(lambda: next(call), grpc.StatusCode.DEADLINE_EXCEEDED)
        parts.put(None)
        remaining_ms = self._stub.Seen(Part()).sleep_ms
        must(0 < remaining_ms <= 500, f"the server was given {remaining_ms} ms")

    def custom_metadata(self):
        sent = ((ECHO_INITIAL, "test_initial_metadata_value"), (ECHO_TRAILING, b"\xab\xab\xab"))
        _, unary = self._stub.Unary.with_call(Part(), metadata=sent)
        both = self._stub.Both(iter([Part()]), metadata=sent, timeout=PATIENCE_SECONDS)
        list(both)
        for call in (unary, both):
            initial, trailing = dict(call.initial_metadata()), dict(call.trailing_metadata())
            must(initial.get(ECHO_INITIAL) == "test_initial_metadata_value", initial)
            must(trailing.get(ECHO_TRAILING) == b"\xab\xab\xab", trailing)

    def status_code_and_message(self):
        part = Part(code=2, text="test status message")
        fails(lambda: self._stub.Unary(part), grpc.StatusCode.UNKNOWN, part.text)
        fails(lambda: list(self._stub.Both(iter([part]), timeout=PATIENCE_SECONDS)), grpc.StatusCode.UNKNOWN, part.text)

    def special_status_message(self):
        fails(lambda: self._stub.Unary(Part(code=2, text=SPECIAL)), grpc.StatusCode.UNKNOWN, SPECIAL)

    def every_status_code(self):
        for code in grpc.StatusCode:
            if code != grpc.StatusCode.OK:
                part = Part(code=code.value[0], text=code.name)
                fails(lambda: self._stub.Unary(part), code, code.name)

    def unimplemented_method(self):
        fails(lambda: self._stub.Unimplemented(Part()), grpc.StatusCode.UNIMPLEMENTED)

    def unimplemented_service(self):
        fails(lambda: self._call("/shard.suite.None/Unary", Part()), grpc.StatusCode.UNIMPLEMENTED)

    def many_calls_at_once(self):
        calls = [self._stub.Unary.future(Part(size=number)) for number in range(1000)]
        must([len(call.result().body) for call in calls] == list(range(1000)), "each call its own answer")

    def no_endpoint_is_unavailable(self):
        error = fails(lambda: self._call("/shard.suite.Dead/Unary", Part()), grpc.StatusCode.UNAVAILABLE)
        names = [name for name, _ in (*error.initial_metadata(), *error.trailing_metadata())]
        must(error.details() and "x-request-id" in names, f"{error.details()!r} {names}")

    def timeout_of_the_route_is_deadline_exceeded(self):
        begin = time.monotonic()
        call = lambda: self._call("/shard.suite.Slow/Unary", Part(sleep_ms=3000))
        fails(call, grpc.StatusCode.DEADLINE_EXCEEDED)
        must(time.monotonic() - begin < 2.5, "the route's limit, not the server's answer")


def run(target, result, authority=None):
    channel = grpc.insecure_channel(target)
    if authority:
        channel = grpc.secure_channel(target, grpc.ssl_channel_credentials(pathlib.Path(authority).read_bytes()))
    cases = Cases(channel)
    results = {}
    for name in [name for name in vars(Cases) if not name.startswith("_")]:
        try:
            getattr(cases, name)()
            results[name] = ""
        except Exception as error:
            results[name] = f"{type(error).__name__}: {error}"
    pathlib.Path(result).write_text(json.dumps(results))


if __name__ == "__main__":
    if sys.argv[1] == "server":
        serve(int(sys.argv[2]))
    else:
        run(*sys.argv[2:])
