#!/bin/sh
# The programs of amqp-tools perform common operations; each step prints its name when it succeeds.
set -eu
url=$1
queue=$2-q
went() { echo "ok $1"; }
is() { [ "$1" = "$2" ] || { echo "expected $2, got $1" >&2; exit 1; }; }

is "$(amqp-declare-queue --url "$url" --queue "$queue" --durable)" "$queue"
went declare

amqp-publish --url "$url" --exchange "" --routing-key "$queue" --persistent --body one
printf 'two' | amqp-publish --url "$url" --routing-key "$queue" --content-type text/plain
is "$(amqp-get --url "$url" --queue "$queue")" one
went get

amqp-publish --url "$url" --routing-key "$queue" --body three
is "$(amqp-consume --url "$url" --queue "$queue" --count 2 --prefetch-count 1 cat)" twothree
went consume

if amqp-get --url "$url" --queue "$queue"; then exit 1; fi
is "$(amqp-delete-queue --url "$url" --queue "$queue")" 0
if amqp-get --url "$url" --queue "$queue" 2>/dev/null; then exit 1; fi
went refused
