/** Names and values in two columns. */

import type { ComponentChildren } from 'preact';
import type { Table } from '../api/types';
import { value } from '../lib/format';

/** Entries without a value are left out. */
export function KeyValueList({
  items,
}: {
  items: readonly (readonly [string, ComponentChildren])[];
}) {
  return (
    <dl class="facts">
      {items
        .filter(([, shown]) => shown !== undefined && shown !== null && shown !== '')
        .map(([label, shown]) => (
          <div key={label}>
            <dt>{label}</dt>
            <dd>{shown}</dd>
          </div>
        ))}
    </dl>
  );
}

/** The entries of an AMQP table, such as the arguments of a queue. */
export function ArgumentList({ table, none = 'None.' }: { table: Table; none?: string }) {
  const entries = Object.entries(table);
  if (entries.length === 0) return <p class="muted">{none}</p>;
  return (
    <KeyValueList items={entries.map(([key, of]) => [key, <code>{value(of)}</code>] as const)} />
  );
}
