"""A web application with FastAPI and aio-pika that processes orders in the background.

`POST /orders/{number}` publishes the order, waits for the broker's confirm (the order is then on
disk) and returns 202. A consumer in the same process ships the orders; `GET /orders/{number}`
returns the state of an order. The connection is robust: it reconnects after a restart of the
broker.

Run it (`uvicorn fastapi_app:app` does the same in this folder), then open
http://127.0.0.1:8000/docs:

    python examples/fastapi_app.py
"""

import os
from contextlib import asynccontextmanager

import aio_pika
import uvicorn
from fastapi import FastAPI, HTTPException

URL = os.environ.get("AMQP_URL", "amqp://guest:guest@127.0.0.1:5672/")


@asynccontextmanager
async def lifespan(app):
    connection = await aio_pika.connect_robust(URL)
    async with connection:
        channel = await connection.channel(publisher_confirms=True)
        await channel.set_qos(prefetch_count=10)
        queue = await channel.declare_queue("web-orders", durable=True)
        app.state.channel, app.state.orders = channel, {}
        await queue.consume(fulfil)
        yield


app = FastAPI(lifespan=lifespan)


@app.post("/orders/{number}", status_code=202)
async def order(number: int):
    app.state.orders[number] = "accepted"
    message = aio_pika.Message(str(number).encode(), delivery_mode=aio_pika.DeliveryMode.PERSISTENT)
    await app.state.channel.default_exchange.publish(message, "web-orders")
    return {"number": number}


@app.get("/orders/{number}")
async def state(number: int):
    if number not in app.state.orders:
        raise HTTPException(404, f"no order {number}")
    return {"number": number, "state": app.state.orders[number]}


async def fulfil(message):
    async with message.process():  # acks at the end, rejects on an exception
        app.state.orders[int(message.body)] = "shipped"


if __name__ == "__main__":
    uvicorn.run(app)
