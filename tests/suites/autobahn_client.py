#!/usr/bin/env python3
"""Runs the translated Autobahn suite as a fuzzing client: autobahn_client.py TOOL SPEC.

The suite was written for Python 2, where a text is its bytes. Here its texts stay texts that stand for bytes (one
character a byte, Latin-1) and become bytes at the border to the WebSocket library, in both directions. Writes
index.json into the spec's outdir: {agent: {case: {"behavior": ..., "behaviorClose": ...}}}."""
import binascii
import json
import pathlib
import sys

tool, spec_path = sys.argv[1:]
sys.path.insert(0, tool)
hex_of_bytes = binascii.b2a_hex


def to_bytes(value):
    return value.encode("latin-1") if isinstance(value, str) else value


def hex_of(data):
    return to_bytes(data).hex() if isinstance(data, str) else hex_of_bytes(data)


# Before the suite is imported, whose cases describe themselves with it.
binascii.b2a_hex = binascii.hexlify = hex_of

from twisted.internet import reactor  # noqa: E402
from autobahn.twisted.websocket import WebSocketClientProtocol  # noqa: E402
from autobahn.websocket import utf8validator  # noqa: E402


class ValidatorOfTexts(utf8validator.Utf8Validator):
    def validate(self, data):
        return super().validate(to_bytes(data))


# The library has its own by now; this one is the cases'.
utf8validator.Utf8Validator = ValidatorOfTexts

from autobahntestsuite import fuzzing  # noqa: E402
from autobahntestsuite.case.case import Case  # noqa: E402

# Cases of compression work on bytes throughout.
ON_BYTES = ("Case12_", "Case13_")
# Each of those sends 1,000 messages of up to 128 KiB, all 216 of them take hours in Python; fewer show the same.
COMPRESSED_MESSAGES = 30


class Border:
    """Between the cases and the library."""

    def sendFrame(self, opcode, payload="", **options):
        if options.get("mask"):
            options["mask"] = to_bytes(options["mask"])
        WebSocketClientProtocol.sendFrame(self, opcode, to_bytes(payload), **options)

    def sendMessage(self, payload, isBinary=False, **options):
        WebSocketClientProtocol.sendMessage(self, to_bytes(payload), isBinary, **options)

    def sendMessageFrameData(self, payload, sync=False):
        return WebSocketClientProtocol.sendMessageFrameData(self, to_bytes(payload), sync)

    def sendMessageFrame(self, payload, sync=False):
        WebSocketClientProtocol.sendMessageFrame(self, to_bytes(payload), sync)

    def sendCloseFrame(self, code=None, reasonUtf8=None, isReply=False):
        WebSocketClientProtocol.sendCloseFrame(self, code, to_bytes(reasonUtf8), isReply)

    def onMessage(self, payload, isBinary):
        if not type(self.runCase).__name__.startswith(ON_BYTES):
            payload = payload.decode("latin-1")
        fuzzing.FuzzingProtocol.onMessage(self, payload, isBinary)

    def onPong(self, payload):
        fuzzing.FuzzingProtocol.onPong(self, payload.decode("latin-1"))

    # Nobody reads the log of the wire, which mixes texts and bytes; a case counts frames.
    def enableWirelog(self, enable):
        pass

    def logRxOctets(self, data):
        pass

    def logTxOctets(self, data, sync):
        pass

    def logRxFrame(self, header, payload):
        self.rxFrameStats[header.opcode] = self.rxFrameStats.get(header.opcode, 0) + 1

    def logTxFrame(self, header, *_):
        self.txFrameStats[header.opcode] = self.txFrameStats.get(header.opcode, 0) + 1


for name, value in vars(Border).items():
    if not name.startswith("__"):
        setattr(fuzzing.FuzzingClientProtocol, name, value)
Case.compare = lambda self, one, other: one == other
for case in fuzzing.Cases:
    if case.__name__.startswith(ON_BYTES):
        case.COUNT = COMPRESSED_MESSAGES


def write_index(self):
    verdicts = {
        agent: {case: {key: result[key] for key in ("behavior", "behaviorClose")} for case, result in cases.items()}
        for agent, cases in self.agents.items()
    }
    folder = pathlib.Path(self.outdir)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "index.json").write_text(json.dumps(verdicts))


fuzzing.FuzzingFactory.createReports = write_index
fuzzing.startClient(json.loads(pathlib.Path(spec_path).read_text()))
reactor.run()
