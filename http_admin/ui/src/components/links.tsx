/** Links to things, each with the name as text and the address encoded. */

import { exchangeName } from '../lib/format';
import { href } from '../lib/route';
import { useScope } from '../lib/session';

/** The vhost is said only where the page shows several. */
export function QueueLink({ vhost, name, plain = false }: { vhost: string; name: string; plain?: boolean }) {
  const scope = useScope();
  return (
    <>
      <a href={href(['queues', vhost, name])}>{name}</a>
      {!plain && scope.vhost === '' && scope.vhosts.length > 1 && <span class="vhost-tag"> {vhost}</span>}
    </>
  );
}

export function ExchangeLink({ vhost, name, plain = false }: { vhost: string; name: string; plain?: boolean }) {
  const scope = useScope();
  return (
    <>
      <a href={href(['exchanges', vhost, name])}>{exchangeName(name)}</a>
      {!plain && scope.vhost === '' && scope.vhosts.length > 1 && <span class="vhost-tag"> {vhost}</span>}
    </>
  );
}

export function ConnectionLink({ name, label }: { name: string | undefined; label?: string }) {
  if (name === undefined || name === '') return <>–</>;
  return <a href={href(['connections', name])}>{label ?? name}</a>;
}

export function ChannelLink({ name }: { name: string | undefined }) {
  if (name === undefined || name === '') return <>–</>;
  return <a href={href(['channels', name])}>{name}</a>;
}
