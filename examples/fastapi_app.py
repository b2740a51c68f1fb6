"""A web application with FastAPI and aio-pika: answers at once, works in the background.

`POST /orders` publishes, waits for the broker's confirm (then the order is on disk) and answers
202; a consumer in the same process fulfils orders one after the other; `GET /orders/{number}` tells
how far it is. The connection is robust: it comes back by itself when the broker does.

    uvicorn fastapi_app:app      in this folder
"""

import os
from contextlib import asynccontextmanager

import aio_pika
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
    async with message.process():  # acknowledges at the end, rejects on an exception
        app.state.orders[int(message.body)] = "shipped"
