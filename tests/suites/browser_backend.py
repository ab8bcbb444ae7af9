#!/usr/bin/env python3
"""What browser.html talks to: browser_backend.py PORT PAGE RESULT. HTTP/1.1 with kept connections; writes what is
posted to /result into the file RESULT."""
import base64
import hashlib
import http.server
import pathlib
import struct
import sys
import time

PORT, PAGE, RESULT = int(sys.argv[1]), pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
# RFC 6455 §1.3.
SOCKET_KEY = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, body, kind="text/plain", **fields):
        body = body if isinstance(body, bytes) else body.encode()
        self.send_response(200)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        for name, value in fields.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            body = b""
            while size := int(self.rfile.readline().split(b";")[0], 16):
                body += self.rfile.read(size)
                self.rfile.readline()
            self.rfile.readline()
            return body
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def do_GET(self):
        path = self.path.split("?")[0]
        if path == "/":
            self.answer(PAGE.read_bytes(), "text/html; charset=utf-8")
        elif path == "/events":
            self.events()
        elif path == "/socket":
            self.socket()
        elif path == "/slow":
            time.sleep(0.2)
            self.answer("slow")
        else:
            self.answer(f"GET {self.path}")

    def do_POST(self):
        body = self.body()
        if self.path == "/result":
            part = RESULT.with_suffix(".part")
            part.write_bytes(body)
            part.rename(RESULT)
        self.answer(hashlib.sha256(body).hexdigest())

    def do_PUT(self):
        self.body()
        self.answer(f"PUT {self.path}", x_seen=self.headers.get("x-tenant", ""))

    def events(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        self.close_connection = True
        for number in range(3):
            self.wfile.write(f"data: {number}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.2)

    def socket(self):
        key = self.headers["Sec-WebSocket-Key"].encode()
        accept = base64.b64encode(hashlib.sha1(key + SOCKET_KEY).digest()).decode()
        self.send_response(101)
        for name, value in [("Upgrade", "websocket"), ("Connection", "Upgrade"), ("Sec-WebSocket-Accept", accept)]:
            self.send_header(name, value)
        self.end_headers()
        self.close_connection = True
        opcode = 0
        while opcode != 8:
            first, second = self.rfile.read(2)
            opcode, length = first & 15, second & 127
            if length == 126:
                (length,) = struct.unpack(">H", self.rfile.read(2))
            elif length == 127:
                (length,) = struct.unpack(">Q", self.rfile.read(8))
            mask = self.rfile.read(4)
            payload = bytes(byte ^ mask[index % 4] for index, byte in enumerate(self.rfile.read(length)))
            size = bytes([length]) if length < 126 else struct.pack(">BH", 126, length)
            self.wfile.write(bytes([first]) + size + payload)


http.server.ThreadingHTTPServer(("127.0.0.1", PORT), Handler).serve_forever()
