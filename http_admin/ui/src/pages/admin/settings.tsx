import { useState } from 'preact/hooks';
import { useOnce } from '../../api/live';
import type { Setting } from '../../api/types';
import { Badge, Card, PageHead } from '../../components/basics';
import { DataTable, FilterBox, type Column } from '../../components/DataTable';
import { Loading, Unavailable } from '../../components/feedback';
import { value } from '../../lib/format';
import { matching, sorted, type Sorting } from '../../lib/sort';

const COLUMNS: readonly Column<Setting>[] = [
  { id: 'key', title: 'Setting', sort: 'key', render: (one) => <><code>{one.key}</code><span class="under">{one.description?.replaceAll('`', '')}</span></> },
  { id: 'value', title: 'Value', sort: 'value', render: (one) => (one.value === '' ? <span class="muted">not set</span> : <code>{one.shown ?? value(one.value)}</code>) },
  { id: 'source', title: 'Set by', sort: 'source', render: (one) => <Badge tone={one.source === 'default' ? 'plain' : 'info'}>{one.source}</Badge> },
];

export function SettingsPage() {
  const { data, error } = useOnce<Setting[]>('/api/settings');
  const [filter, setFilter] = useState('');
  const [sorting, setSorting] = useState<Sorting>({ by: 'key', descending: false });
  return (
    <>
      <PageHead title="Settings" sub="The values in force since the broker started, and where each comes from." />
      {error && <Unavailable what="a list of its settings" error={error} />}
      {data === undefined && !error && <Loading />}
      {data && (
        <Card tight>
          <div class="toolbar"><FilterBox label="Filter settings" value={filter} onInput={setFilter} /></div>
          <DataTable stacked label="Settings" testid="settings" columns={COLUMNS} rows={sorted(matching(data, ['key', 'description', 'source'], filter), sorting)} rowKey={(one) => one.key} sorting={sorting} onSort={setSorting} />
        </Card>
      )}
    </>
  );
}
