"""The client of each broker that does not speak AMQP."""

from benchmarks.brokers import Kind
from benchmarks.peers.client import Client
from benchmarks.peers.nats import Nats
from benchmarks.peers.redis import Redis

CLIENTS: dict[Kind, Client] = {Kind.NATS: Nats(), Kind.REDIS: Redis()}
