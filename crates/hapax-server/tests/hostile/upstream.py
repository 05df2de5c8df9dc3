"""An upstream that writes down, a line each, the requests it found in what it was sent."""
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

paper = threading.Lock()


def write_down(record):
    with paper:
        print(json.dumps(record), flush=True)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    # A header and a body in two small pieces would otherwise wait for each other.
    wbufsize = -1

    def __getattr__(self, name):
        if name.startswith("do_"):
            return self.answer
        raise AttributeError(name)

    def answer(self):
        if self.path.startswith("/early"):
            self.close_connection = True
            self.note(b"", True)
            return self.send()
        body, whole = self.body()
        self.note(body, whole)
        if whole:
            self.send()
        else:
            self.close_connection = True

    def body(self):
        if self.headers.get("transfer-encoding", "").lower() == "chunked":
            return self.chunks()
        length = int(self.headers.get("content-length", 0))
        body = self.rfile.read(length)
        return body, len(body) == length

    def chunks(self):
        body = b""
        while True:
            line = self.rfile.readline()
            if not line.endswith(b"\r\n"):
                return body, False
            size = int(line.split(b";")[0], 16)
            if size == 0:
                break
            data = self.rfile.read(size + 2)
            if len(data) != size + 2:
                return body, False
            body += data[:-2]
        while True:
            line = self.rfile.readline()
            if line == b"\r\n":
                return body, True
            if not line:
                return body, False

    def note(self, body, whole):
        fields = [[name, value] for name, value in self.headers.items()]
        write_down({"method": self.command, "target": self.path, "body": body.decode("latin-1"), "whole": whole, "fields": fields})

    def send(self):
        answer = f"saw {self.command} {self.path}\n".encode("latin-1", "replace")
        self.send_response(200)
        self.send_header("Content-Length", str(len(answer)))
        if self.close_connection:
            self.send_header("Connection", "close")
        self.end_headers()
        self.wfile.write(answer)
        self.wfile.flush()

    def send_error(self, code, message=None, explain=None):
        line = self.raw_requestline.decode("latin-1").strip().split(" ")
        write_down({"method": line[0], "target": " ".join(line[1:2]), "body": "", "whole": False, "refused": code, "fields": []})
        super().send_error(code, message, explain)

    def parse_request(self):
        # The library folds "//x" into "/x" for its own file server; what was asked for is what is written down.
        good = super().parse_request()
        if good:
            self.path = self.requestline.split(" ")[1]
        return good

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
server.daemon_threads = True
print(f"listening {server.server_address[1]}", flush=True)
server.serve_forever()
