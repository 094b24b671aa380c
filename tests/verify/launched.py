"""A server to be launched by tests, as a script: `launched.py NOTE WAY ... --port N ...`.

It writes its words into NOTE. WAY: fine, sick (never well), crash (with last words), stubborn (ignores SIGTERM and has
a child). Everything is a healthy server named toy.
"""

import json
import signal
import subprocess
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path


class Handler(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        content = json.dumps({"data": [{"id": "toy"}]}).encode()
        self.send_response(503 if sys.argv[2] == "sick" else 200)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


def main() -> None:
    note, way, *words = sys.argv[1:]
    if way == "crash":
        print("loading\nthe weights are of another planet", flush=True)
        sys.exit(7)
    if way == "stubborn":
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
        words.append(str(child.pid))
    Path(note).write_text(json.dumps(words))
    HTTPServer(("127.0.0.1", int(words[words.index("--port") + 1])), Handler).serve_forever()


if __name__ == "__main__":
    main()
