# Ruby's bunny performs common operations; each step prints its name when it succeeds.
require 'bunny'
require 'timeout'

URL, PREFIX = ARGV
def named(what) = "#{PREFIX}-#{what}"
def done(step) = puts("ok #{step}")
def check(is, what = nil) = is || raise("not so: #{what.inspect}")
def within(&block) = Timeout.timeout(20, &block)

connection = Bunny.new(URL, automatically_recover: false).start
idle = Bunny.new(URL, heartbeat: 1, automatically_recover: false).start
idle_since = Time.now
channel = connection.create_channel

topic = channel.topic(named('topic'), durable: true)
fanout = channel.fanout(named('fanout'), auto_delete: true)
queue = channel.queue(named('q'), durable: true)
topic.bind(fanout)
queue.bind(topic, routing_key: 'a.#')
queue.bind(topic, routing_key: 'b.*', arguments: { 'x-any' => 1 })
queue.unbind(topic, routing_key: 'b.*', arguments: { 'x-any' => 1 })
check queue.message_count.zero?
temporary = channel.queue('', exclusive: true)
check temporary.name.start_with?('amq.gen-'), temporary.name
done 'declare'

headers = {
  's' => 'plain', 'n' => 1, 'big' => 2**40, 'f' => 1.5, 'yes' => true, 'nothing' => nil,
  'list' => [1, 'two'], 'in' => { 'deep' => { 'er' => 1 } }
}
channel.confirm_select
200.times do |i|
  topic.publish("m#{i}", routing_key: 'a.b', persistent: true, content_type: 'text/plain',
                         headers: headers, message_id: 'm-1', correlation_id: 'c-1', priority: 3,
                         timestamp: 1_700_000_000, type: 't', app_id: 'ruby', expiration: '60000')
end
check channel.wait_for_confirms
check queue.message_count == 200, queue.message_count
done 'confirms'

channel.prefetch(10)
arrived = Queue.new
reader = queue.subscribe(manual_ack: true) { |*delivery| arrived << delivery }
200.times do |i|
  info, properties, body = within { arrived.pop }
  check body == "m#{i}" && !info.redelivered?, body
  check properties.headers == headers, properties.headers
  check properties.message_id == 'm-1' && properties.timestamp.to_i == 1_700_000_000
  check arrived.size < 10
  channel.ack(info.delivery_tag, true) if i % 5 == 4
end
done 'consume'

large = 'x' * 1_000_000
queue.publish(large)
info, _, body = within { arrived.pop }
check body == large
channel.nack(info.delivery_tag, false, true)
info, _, body = within { arrived.pop }
check info.redelivered? && body == large
channel.ack(info.delivery_tag)
reader.cancel
done 'requeue'

returned = Queue.new
topic.on_return { |info, _, content| returned << [info.reply_code, content] }
topic.publish('back', routing_key: 'nowhere', mandatory: true)
check within { returned.pop } == [312, 'back']
check channel.wait_for_confirms
done 'return'

queue.publish('polled')
check channel.wait_for_confirms
info, _, body = queue.pop(manual_ack: true)
check body == 'polled', body
channel.ack(info.delivery_tag)
check queue.pop == [nil, nil, nil]
done 'get'

dying = channel.queue(named('dying'), durable: true, arguments: {
                        'x-dead-letter-exchange' => '', 'x-dead-letter-routing-key' => queue.name,
                        'x-max-length' => 10
                      })
cancelled = Queue.new
doomed = Bunny::Consumer.new(channel, dying, 'doomed', false)
doomed.on_delivery { |delivery, _, _| channel.reject(delivery.delivery_tag, false) }
doomed.on_cancellation { cancelled << true }
dying.subscribe_with(doomed)
dying.publish('dead')
dead_letters = Queue.new
dead_letter_consumer = queue.subscribe(manual_ack: true) { |*delivery| dead_letters << delivery }
info, properties, body = within { dead_letters.pop }
death = properties.headers['x-death'][0]
check body == 'dead' && death['reason'] == 'rejected' && death['count'] == 1, death
channel.ack(info.delivery_tag)
dead_letter_consumer.cancel
done 'dead-letter'

transactional = connection.create_channel
transactional.tx_select
%i[tx_rollback tx_commit].each do |ending|
  transactional.default_exchange.publish('tx', routing_key: queue.name)
  transactional.send(ending)
end
check queue.message_count == 1, queue.message_count
done 'transaction'

server = connection.create_channel
requests = server.queue(temporary.name, passive: true)
requests.subscribe do |_, asked, content|
  server.default_exchange.publish(content.upcase, routing_key: asked.reply_to)
end
replies = Queue.new
channel.basic_consume('amq.rabbitmq.reply-to', '', true) { |_, _, content| replies << content }
temporary.publish('ping', reply_to: 'amq.rabbitmq.reply-to')
check within { replies.pop } == 'PING'
done 'reply-to'

server.queue_delete(dying.name)
check within { cancelled.pop }
done 'cancelled'

begin
  connection.create_channel.queue(queue.name, durable: false)
  check false, 'redeclared'
rescue Bunny::PreconditionFailed => e
  check e.message.include?('inequivalent arg'), e.message
end
done 'refused'

sleep [0, idle_since + 3.5 - Time.now].max
idle.create_channel.queue(queue.name, passive: true)
idle.close
done 'heartbeat'

channel.queue_delete(queue.name)
channel.exchange_delete(topic.name)
channel.close
connection.close
done 'close'
