import { useState } from 'preact/hooks';
import { useLive, useOnce } from '../api/live';
import type { HistoryInfo, Table, Trace } from '../api/types';
import { Card, Empty, Facts, Meter, PageHead, Stat, Stats } from '../components/basics';
import { ErrorNote, Loading, Unavailable } from '../components/feedback';
import { Form, SelectField, TextField } from '../components/forms';
import { BodyView, PropertyFacts } from '../components/MessageList';
import { Legs, Timeline } from '../components/Timeline';
import { bytes, count, dateTime, duration, exchangeName, plural } from '../lib/format';
import { go, useRoute } from '../lib/hooks';
import { legs, moments } from '../lib/messages';
import { href } from '../lib/route';

function Holdings() {
  const { data, error } = useLive<HistoryInfo>('/api/history');
  if (error) return <Unavailable what="a message history" error={error} />;
  if (data === undefined) return <Loading />;
  const span = data.first_time !== null && data.last_time !== null ? data.last_time - data.first_time : null;
  return (
    <>
      <Stats>
        <Stat label="Messages" value={count(data.messages)} testid="history-messages" />
        <Stat label="Events" value={count(data.events)} />
        <Stat label="Size" value={bytes(data.size_bytes)} />
        <Stat label="Reaches back" value={duration(span)} note={data.first_time === null ? undefined : `since ${dateTime(data.first_time)}`} />
      </Stats>
      {data.limit_bytes ? <div class="meter-block"><Meter label="Of the room for history" part={data.size_bytes} total={data.limit_bytes} text={`${bytes(data.size_bytes)} of ${bytes(data.limit_bytes)}`} /></div> : null}
    </>
  );
}

const text = (of: unknown): string | undefined => (typeof of === 'string' ? of : typeof of === 'number' ? String(of) : undefined);

function MessageCard({ message }: { message: Table }) {
  const properties = (message['properties'] ?? {}) as Table;
  const payload = text(message['payload']);
  const exchange = text(message['exchange']);
  return (
    <Card title="The message">
      <div class="stack">
        <Facts items={[
          ['Internal id', text(message['id'])],
          ['Virtual host', text(message['vhost'])],
          ['Exchange', exchange === undefined ? undefined : exchangeName(exchange)],
          ['Routing key', text(message['routing_key'])],
        ]} />
        <PropertyFacts properties={Array.isArray(properties) ? {} : properties} />
        {payload === undefined ? <p class="muted">The body is no longer kept.</p> : (
          <BodyView payload={payload} encoding={text(message['payload_encoding']) ?? 'string'} size={Number(message['payload_bytes'] ?? payload.length)} />
        )}
      </div>
    </Card>
  );
}

function Found({ path }: { path: string }) {
  const { data, error, loading } = useOnce<Trace>(path);
  if (error) {
    return error.missing ? <Card><Empty title="Not in the history"><p>No message with that id is kept. It may be older than the history reaches back, or its queue keeps none.</p></Empty></Card> : <ErrorNote error={error} />;
  }
  if (loading || data === undefined) return <Loading />;
  const steps = moments(data.events);
  const whole = steps.at(-1)?.since ?? 0;
  return (
    <>
      {legs(data.events).length > 0 && <Card title="In which queues" tight><Legs events={data.events} /></Card>}
      <div class="columns">
        <Card title="What happened" testid="trace" aside={<span class="muted">{plural(steps.length, 'event')} in {duration(whole)}</span>}>
          <Timeline events={data.events} />
        </Card>
        <MessageCard message={data.message} />
      </div>
    </>
  );
}

export function HistoryPage() {
  const { query } = useRoute();
  const given = query['id'] ?? query['message_id'] ?? '';
  const [kind, setKind] = useState(query['id'] !== undefined ? 'id' : 'message_id');
  const [wanted, setWanted] = useState(given);
  const path = query['id'] !== undefined ? `/api/trace?id=${encodeURIComponent(query['id'])}` : given !== '' ? `/api/trace?message_id=${encodeURIComponent(given)}` : null;
  return (
    <>
      <PageHead title="History" sub="Everything that happened to every message, as long as it is kept." />
      <Holdings />
      <Card title="Trace one message">
        <Form inline label="Trace one message" action="Trace" testid="trace-form" onSubmit={async () => go(href(['history'], { [kind]: wanted.trim() }))}>
          <SelectField label="Look for" value={kind} onInput={setKind} options={[{ id: 'message_id', label: 'message_id property' }, { id: 'id', label: 'internal id' }]} />
          <TextField label="Id" value={wanted} onInput={setWanted} required help="Set by the publisher as message_id, or shown when you browse a queue." />
        </Form>
      </Card>
      {path !== null && <div class="gap-top"><Found key={path} path={path} /></div>}
    </>
  );
}
