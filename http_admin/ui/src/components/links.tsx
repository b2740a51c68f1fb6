/** Links to the pages of objects. */

import { exchangeName } from '../lib/format';
import { href } from '../lib/route';
import { useScope } from '../lib/session';

/** Shows the virtual host too if the page lists several, unless `plain`. */
export function QueueLink({
  vhost,
  name,
  plain = false,
}: {
  vhost: string;
  name: string;
  plain?: boolean;
}) {
  const scope = useScope();
  return (
    <>
      <a href={href(['queues', vhost, name])}>{name}</a>
      {!plain && scope.vhost === '' && scope.vhosts.length > 1 && (
        <span class="vhost-tag"> {vhost}</span>
      )}
    </>
  );
}

export function ExchangeLink({
  vhost,
  name,
  plain = false,
}: {
  vhost: string;
  name: string;
  plain?: boolean;
}) {
  const scope = useScope();
  return (
    <>
      <a href={href(['exchanges', vhost, name])}>{exchangeName(name)}</a>
      {!plain && scope.vhost === '' && scope.vhosts.length > 1 && (
        <span class="vhost-tag"> {vhost}</span>
      )}
    </>
  );
}

export function ConnectionLink({ name, label }: { name: string; label?: string }) {
  return <a href={href(['connections', name])}>{label ?? name}</a>;
}

export function ChannelLink({ name }: { name: string }) {
  return <a href={href(['channels', name])}>{name}</a>;
}
