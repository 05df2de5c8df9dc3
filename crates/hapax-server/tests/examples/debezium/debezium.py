"""Runs Debezium with the settings of a file and of the command line, and prints each record as a line of JSON."""

import json
import sys

from pydbzengine import BasePythonChangeHandler, DebeziumJsonEngine


class Print(BasePythonChangeHandler):
    def handleJsonBatch(self, records):
        for record in records:
            headers = {str(header.key()): str(header.value()) for header in record.sourceRecord().headers()}
            key, value = (json.loads(str(part))["payload"] for part in (record.key(), record.value()))
            line = {"topic": str(record.destination()), "key": key, "payload_base64": value, "headers": headers}
            print("record " + json.dumps(line), flush=True)


def settings(lines):
    return dict(line.strip().split("=", 1) for line in lines if "=" in line and not line.startswith("#"))


with open(sys.argv[1]) as file:
    given = settings(file)
DebeziumJsonEngine(properties=given | settings(sys.argv[2:]), handler=Print()).run()
