"""The service: one durable workflow for each key, which only answers. DBOS takes the key as the workflow's id."""

import itertools
import os

from dbos import DBOS, DBOSConfig, SetWorkflowID
from fastapi import FastAPI, Header, Response
from pydantic import BaseModel

ANSWER_BYTES = int(os.environ["PEER_ANSWER_BYTES"])
# Another answer each time, so that a replay can be told from a second run.
RUNS = itertools.count(os.getpid() * 1_000_000_000)

config: DBOSConfig = {
    "name": "charges",
    "system_database_url": os.environ["PEER_DATABASE"],
    # Each worker is an executor of its own.
    "executor_id": str(os.getpid()),
    "application_version": "1",
    "log_level": "ERROR",
}
DBOS(config=config)
app = FastAPI()


class Order(BaseModel):
    amount: int
    currency: str
    customer: str
    capture: bool
    description: str


@DBOS.workflow()
def charge(order: str) -> str:
    return str(next(RUNS)).zfill(ANSWER_BYTES)


@app.post("/v1/charges")
def charges(order: Order, idempotency_key: str = Header()) -> Response:
    with SetWorkflowID(idempotency_key):
        answer = charge(order.model_dump_json())
    return Response(answer, status_code=201, media_type="application/json")


DBOS.launch()
