"""A sink that records the calls of the wire."""

from leveret.amqp_server.codec import commands
from leveret.amqp_server.publish_cache import PublishCache
from leveret.amqp_server.wire import ConnectionEvent, Wire
from leveret.model.message import content_frames


class Recorder:
    def __init__(self):
        self.calls = []
        self.runs = []  # the number of publishes or acks of each call
        self.effort = 1  # cost of each message
        self.published = []

    def on_header(self):
        self.calls.append(("header",))

    def on_method(self, channel, method, table):
        self.calls.append(("method", channel, method.name, dict(method)))

    def on_publish(self, channel, publish, run):
        messages = run.messages
        assert messages
        publish.effort = publish.effort or self.effort
        self.runs.append(len(messages))
        self.published += messages
        self.calls += [
            (
                "publish",
                channel,
                publish.address.exchange,
                publish.address.routing_key,
                publish.mandatory,
                message.properties,
                message.body,
            )
            for message in messages
        ]

    def on_ack(self, channel, tags, multiple):
        assert tags if not multiple else len(tags) == 1
        self.runs.append(len(tags))
        self.calls += [("ack", channel, tag, multiple) for tag in tags]

    def on_refused_content(self, channel, error):
        self.calls.append(("refused", channel, int(error.code)))


class ChannelRecorder:
    """Passes the calls for one channel on to a recorder, with the channel's number."""

    def __init__(self, sink, number):
        self.sink = sink
        self.number = number

    def on_publish(self, publish, run):
        self.sink.on_publish(self.number, publish, run)

    def on_ack(self, tags, multiple):
        self.sink.on_ack(self.number, tags, multiple)


def finish_handshake(wire, frame_max):
    """Move a new wire to the state OPEN."""
    for event in ("PROTOCOL_HEADER", "START_OK", "AUTHENTICATED"):
        wire.advance(ConnectionEvent[event])
    wire.tune(frame_max)
    wire.open(PublishCache())


def open_wire(*channels, max_message_size=1 << 20, frame_max=131072):
    """A wire after its handshake, with these channels open."""
    sink = Recorder()
    wire = Wire(sink, max_message_size)
    finish_handshake(wire, frame_max)
    for number in channels or (1,):
        wire.open_channel(number, ChannelRecorder(sink, number))
    return wire, sink


def method_frame(channel, method):
    from leveret.amqp_server.codec import encode_method

    return encode_method(channel, method)


def publish_frames(channel, exchange, key, properties=b"\x00\x00", body=b"", frame_max=131072):
    publish = commands.Basic.Publish(exchange=exchange, routing_key=key)
    return method_frame(channel, publish) + content_frames(channel, properties, body, frame_max)
