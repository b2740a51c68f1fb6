// Go's amqp091-go performs common operations; each step prints its name when it succeeds.
package main

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"reflect"
	"strings"
	"time"

	amqp "github.com/rabbitmq/amqp091-go"
)

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func check(is bool, what ...any) {
	if !is {
		panic(fmt.Sprint(what...))
	}
}

func done(step string) { fmt.Println("ok", step) }

func next[T any](from <-chan T) T {
	select {
	case one, open := <-from:
		check(open, "channel closed")
		return one
	case <-time.After(20 * time.Second):
		panic("nothing came")
	}
}

func main() {
	url, prefix := os.Args[1], os.Args[2]
	named := func(what string) string { return prefix + "-" + what }
	connection, err := amqp.Dial(url)
	must(err)
	idle, err := amqp.DialConfig(url, amqp.Config{Heartbeat: time.Second})
	must(err)
	idleSince := time.Now()
	channel, err := connection.Channel()
	must(err)
	queue := named("q")

	must(channel.ExchangeDeclare(named("topic"), "topic", true, false, false, false, nil))
	must(channel.ExchangeDeclare(named("fanout"), "fanout", false, true, false, false, nil))
	_, err = channel.QueueDeclare(queue, true, false, false, false, nil)
	must(err)
	must(channel.ExchangeBind(named("topic"), "", named("fanout"), false, nil))
	must(channel.QueueBind(queue, "a.#", named("topic"), false, nil))
	must(channel.QueueBind(queue, "b.*", named("topic"), false, amqp.Table{"x-any": int32(1)}))
	must(channel.QueueUnbind(queue, "b.*", named("topic"), amqp.Table{"x-any": int32(1)}))
	seen, err := channel.QueueInspect(queue)
	must(err)
	check(seen.Messages == 0 && seen.Consumers == 0, seen)
	temporary, err := channel.QueueDeclare("", false, false, true, false, nil)
	must(err)
	check(strings.HasPrefix(temporary.Name, "amq.gen-"), temporary.Name)
	done("declare")

	must(channel.Confirm(false))
	confirms := channel.NotifyPublish(make(chan amqp.Confirmation, 300))
	returns := channel.NotifyReturn(make(chan amqp.Return, 10))
	cancels := channel.NotifyCancel(make(chan string, 10))
	headers := amqp.Table{
		"s": "ä", "n": int32(1), "big": int64(1 << 40), "f": 1.5, "yes": true,
		"list": []interface{}{int32(1), "two", nil}, "in": amqp.Table{"deep": amqp.Table{"er": int32(1)}},
		"when": time.Unix(1700000000, 0), "money": amqp.Decimal{Scale: 2, Value: 1234},
	}
	message := amqp.Publishing{
		Headers: headers, ContentType: "text/plain", DeliveryMode: amqp.Persistent, Priority: 3,
		CorrelationId: "c-1", MessageId: "m-1", Timestamp: time.Unix(1700000000, 0), Type: "t",
		AppId: "go", Expiration: "60000",
	}
	publish := func(exchange, key string, mandatory bool, message amqp.Publishing) {
		must(channel.PublishWithContext(context.Background(), exchange, key, mandatory, false, message))
	}
	confirmed := func(count int) {
		for i := 0; i < count; i++ {
			check(next(confirms).Ack, "nacked")
		}
	}
	for i := 0; i < 200; i++ {
		message.Body = []byte(fmt.Sprint("m", i))
		publish(named("topic"), "a.b", false, message)
	}
	confirmed(200)
	done("confirms")

	must(channel.Qos(10, 0, false))
	deliveries, err := channel.Consume(queue, "reader", false, false, false, false, nil)
	must(err)
	for i := 0; i < 200; i++ {
		got := next(deliveries)
		check(string(got.Body) == fmt.Sprint("m", i) && !got.Redelivered, string(got.Body))
		check(reflect.DeepEqual(got.Headers, headers), got.Headers)
		check(got.MessageId == "m-1" && got.Timestamp.Unix() == 1700000000 && got.Priority == 3)
		if i%5 == 4 {
			must(got.Ack(true))
		}
	}
	done("consume")

	large := bytes.Repeat([]byte("x"), 1_000_000)
	publish("", queue, false, amqp.Publishing{Body: large})
	confirmed(1)
	got := next(deliveries)
	check(bytes.Equal(got.Body, large))
	must(got.Nack(false, true))
	got = next(deliveries)
	check(got.Redelivered && bytes.Equal(got.Body, large))
	must(got.Ack(false))
	must(channel.Cancel("reader", false))
	done("requeue")

	publish(named("topic"), "nowhere", true, amqp.Publishing{Body: []byte("back")})
	back := next(returns)
	check(back.ReplyCode == 312 && string(back.Body) == "back", back)
	confirmed(1)
	done("return")

	publish("", queue, false, amqp.Publishing{Body: []byte("polled")})
	confirmed(1)
	polled, there, err := channel.Get(queue, false)
	must(err)
	check(there && string(polled.Body) == "polled")
	must(polled.Ack(false))
	_, there, err = channel.Get(queue, false)
	must(err)
	check(!there)
	done("get")

	dying := named("dying")
	_, err = channel.QueueDeclare(dying, true, false, false, false, amqp.Table{
		"x-dead-letter-exchange": "", "x-dead-letter-routing-key": queue, "x-max-length": int32(10),
	})
	must(err)
	publish("", dying, false, amqp.Publishing{Body: []byte("dead")})
	confirmed(1)
	doomed, err := channel.Consume(dying, "doomed", false, false, false, false, nil)
	must(err)
	must(nextReject(doomed))
	deadLetters, err := channel.Consume(queue, "dead-letters", false, false, false, false, nil)
	must(err)
	dead := next(deadLetters)
	death := dead.Headers["x-death"].([]interface{})[0].(amqp.Table)
	check(death["reason"] == "rejected" && death["count"] == int64(1) && death["queue"] == dying, death)
	must(dead.Ack(false))
	must(channel.Cancel("dead-letters", false))
	done("dead-letter")

	transactional, err := connection.Channel()
	must(err)
	must(transactional.Tx())
	for _, end := range []func() error{transactional.TxRollback, transactional.TxCommit} {
		must(transactional.PublishWithContext(
			context.Background(), "", queue, false, false, amqp.Publishing{Body: []byte("tx")}))
		must(end())
	}
	seen, err = channel.QueueInspect(queue)
	must(err)
	check(seen.Messages == 1, seen)
	done("transaction")

	server, err := connection.Channel()
	must(err)
	requests, err := server.Consume(temporary.Name, "", true, true, false, false, nil)
	must(err)
	replies, err := channel.Consume("amq.rabbitmq.reply-to", "", true, false, false, false, nil)
	must(err)
	publish("", temporary.Name, false, amqp.Publishing{
		ReplyTo: "amq.rabbitmq.reply-to", Body: []byte("ping"),
	})
	must(server.PublishWithContext(context.Background(), "", next(requests).ReplyTo, false, false,
		amqp.Publishing{Body: []byte("pong")}))
	check(string(next(replies).Body) == "pong")
	done("reply-to")

	_, err = server.QueueDelete(dying, false, false, false)
	must(err)
	check(next(cancels) == "doomed")
	done("cancelled")

	doubtful, err := connection.Channel()
	must(err)
	_, err = doubtful.QueueDeclare(queue, false, false, false, false, nil)
	refused, is := err.(*amqp.Error)
	check(is && refused.Code == 406 && strings.Contains(refused.Reason, "inequivalent arg"), err)
	done("refused")

	time.Sleep(time.Until(idleSince.Add(3500 * time.Millisecond)))
	alive, err := idle.Channel()
	must(err)
	_, err = alive.QueueInspect(queue)
	must(err)
	must(idle.Close())
	done("heartbeat")

	_, err = channel.QueueDelete(queue, false, false, false)
	must(err)
	must(channel.ExchangeDelete(named("topic"), false, false))
	must(channel.Close())
	must(connection.Close())
	done("close")
}

func nextReject(from <-chan amqp.Delivery) error {
	one := next(from)
	return one.Reject(false)
}
