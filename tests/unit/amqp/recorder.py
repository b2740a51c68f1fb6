"""A sink that writes down what the wire hands over."""

from amqp_server.codec import commands
from amqp_server.wire import ConnectionState, Wire, WireChannel
from leveret.model.message import content_frames


class Recorder:
    def __init__(self):
        self.calls = []
        self.runs = []  # how many of a kind came at once
        self.effort = 1  # what each message takes

    def on_header(self):
        self.calls.append(("header",))

    def on_method(self, channel, method, table):
        self.calls.append(("method", channel, method.name, dict(method)))

    def on_publish(self, channel, publish, messages):
        assert messages
        publish.effort = publish.effort or self.effort
        self.runs.append(len(messages))
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


def open_wire(*channels, max_message_size=1 << 20, frame_max=131072):
    """A wire past its handshake, with these channels open."""
    sink = Recorder()
    wire = Wire(sink, max_message_size)
    wire.state = ConnectionState.OPEN
    wire.frame_limit = frame_max
    for number in channels or (1,):
        wire.channels[number] = WireChannel()
    return wire, sink


def method_frame(channel, method):
    from amqp_server.codec import encode_method

    return encode_method(channel, method)


def publish_frames(channel, exchange, key, properties=b"\x00\x00", body=b"", frame_max=131072):
    publish = commands.Basic.Publish(exchange=exchange, routing_key=key)
    return method_frame(channel, publish) + content_frames(channel, properties, body, frame_max)
