import { useState } from 'preact/hooks';
import { useLive, useOnce } from '../api/live';
import type { HistoryInfo, Trace, TracedMessage } from '../api/types';
import { Card, Empty } from '../components/card';
import { Form, SelectField, TextField } from '../components/forms';
import { KeyValueList } from '../components/key-value-list';
import { MessageBody, MessageProperties } from '../components/message-list';
import { MessageTimeline, QueueVisitTable } from '../components/message-timeline';
import { PageHead } from '../components/page-head';
import { Meter, Stat, Stats } from '../components/stats';
import { ErrorNote, Loading, NotSupported } from '../components/status-notes';
import { bytes, count, dateTime, duration, exchangeName, plural } from '../lib/format';
import { navigate, useRoute } from '../lib/navigation';
import { href } from '../lib/route';
import { queueVisits, timedEvents } from '../lib/trace';

function HistoryStats() {
  const { data, error } = useLive<HistoryInfo>('/api/history');
  if (error) return <NotSupported feature="a message history" error={error} />;
  if (data === undefined) return <Loading />;
  const age =
    data.first_time !== null && data.last_time !== null ? data.last_time - data.first_time : null;
  return (
    <>
      <Stats>
        <Stat label="Messages" value={count(data.messages)} testid="history-messages" />
        <Stat label="Events" value={count(data.events)} />
        <Stat label="Size" value={bytes(data.size_bytes)} />
        <Stat
          label="Oldest event"
          value={duration(age)}
          note={data.first_time === null ? undefined : dateTime(data.first_time)}
        />
      </Stats>
      {data.limit_bytes > 0 && (
        <div class="meter-block">
          <Meter
            label="History storage used"
            part={data.size_bytes}
            total={data.limit_bytes}
            text={`${bytes(data.size_bytes)} of ${bytes(data.limit_bytes)}`}
          />
        </div>
      )}
    </>
  );
}

function MessageCard({ message, parent }: { message: TracedMessage; parent?: number }) {
  return (
    <Card title="Message">
      <div class="stack">
        <KeyValueList
          items={[
            ['Internal ID', message.id],
            ['Copy of message', parent],
            ['Virtual host', message.vhost],
            ['Exchange', exchangeName(message.exchange)],
            ['Routing key', message.routing_key],
          ]}
        />
        <MessageProperties properties={message.properties} />
        {message.payload === undefined ? (
          <p class="muted">The body is not in the history.</p>
        ) : (
          <MessageBody
            payload={message.payload}
            encoding={message.payload_encoding ?? 'string'}
            size={message.payload_bytes}
          />
        )}
      </div>
    </Card>
  );
}

function TraceResult({ path }: { path: string }) {
  const { data, error, loading } = useOnce<Trace>(path);
  if (error) {
    return error.missing ? (
      <Card>
        <Empty title="Not in the history">
          <p>
            No message with this ID is in the history. It may be older than the oldest event, or its
            queue may have no history.
          </p>
        </Empty>
      </Card>
    ) : (
      <ErrorNote error={error} />
    );
  }
  if (loading || data === undefined) return <Loading />;
  const events = timedEvents(data.events);
  const total = events.at(-1)?.sinceFirst ?? 0;
  return (
    <>
      {queueVisits(data.events).length > 0 && (
        <Card title="Queues" tight>
          <QueueVisitTable events={data.events} />
        </Card>
      )}
      <div class="columns">
        <Card
          title="Timeline"
          testid="trace"
          aside={
            <span class="muted">
              {plural(events.length, 'event')} in {duration(total)}
            </span>
          }
        >
          <MessageTimeline events={data.events} />
        </Card>
        <MessageCard message={data.message} parent={data.parents[data.message.id]} />
      </div>
    </>
  );
}

export function HistoryPage() {
  const { query } = useRoute();
  const id = query.id ?? query.message_id ?? '';
  const [kind, setKind] = useState(query.id !== undefined ? 'id' : 'message_id');
  const [searchText, setSearchText] = useState(id);
  const path =
    query.id !== undefined
      ? `/api/trace?id=${encodeURIComponent(query.id)}`
      : id !== ''
        ? `/api/trace?message_id=${encodeURIComponent(id)}`
        : null;
  return (
    <>
      <PageHead
        title="History"
        sub="What happened to each message, for as long as the history is kept."
      />
      <HistoryStats />
      <Card title="Trace a message">
        <Form
          inline
          label="Trace a message"
          action="Trace"
          testid="trace-form"
          onSubmit={async () => navigate(href(['history'], { [kind]: searchText.trim() }))}
        >
          <SelectField
            label="Search by"
            value={kind}
            onInput={setKind}
            options={[
              { id: 'message_id', label: 'message_id property' },
              { id: 'id', label: 'internal ID' },
            ]}
          />
          <TextField
            label="ID"
            value={searchText}
            onInput={setSearchText}
            required
            help="The message_id set by the publisher, or the internal ID shown when you browse a queue."
          />
        </Form>
      </Card>
      {path !== null && (
        <div class="gap-top">
          <TraceResult key={path} path={path} />
        </div>
      )}
    </>
  );
}
