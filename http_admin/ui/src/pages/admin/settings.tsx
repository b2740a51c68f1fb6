import { useState } from 'preact/hooks';
import { useOnce } from '../../api/live';
import type { Setting } from '../../api/types';
import { Badge } from '../../components/badge';
import { Card } from '../../components/card';
import { type Column, DataTable, FilterBox } from '../../components/data-table';
import { PageHead } from '../../components/page-head';
import { Loading, NotSupported } from '../../components/status-notes';
import { matching, type Sorting, sorted } from '../../lib/sort';

const COLUMNS: readonly Column<Setting>[] = [
  {
    id: 'key',
    title: 'Setting',
    sort: 'key',
    render: (setting) => (
      <>
        <code>{setting.key}</code>
        <span class="under">{setting.description.replaceAll('`', '')}</span>
      </>
    ),
  },
  {
    id: 'value',
    title: 'Value',
    sort: 'value',
    render: (setting) =>
      setting.value === '' ? <span class="muted">not set</span> : <code>{setting.shown}</code>,
  },
  {
    id: 'source',
    title: 'Source',
    sort: 'source',
    render: (setting) => (
      <Badge tone={setting.source === 'default' ? 'plain' : 'info'}>{setting.source}</Badge>
    ),
  },
];

export function SettingsPage() {
  const { data, error } = useOnce<Setting[]>('/api/settings');
  const [filter, setFilter] = useState('');
  const [sorting, setSorting] = useState<Sorting>({ by: 'key', descending: false });
  return (
    <>
      <PageHead
        title="Settings"
        sub="The settings with which the broker was started, and their sources."
      />
      {error && <NotSupported feature="listing its settings" error={error} />}
      {data === undefined && !error && <Loading />}
      {data && (
        <Card tight>
          <div class="toolbar">
            <FilterBox label="Filter settings" value={filter} onInput={setFilter} />
          </div>
          <DataTable
            stacked
            label="Settings"
            testid="settings"
            columns={COLUMNS}
            rows={sorted(matching(data, ['key', 'description', 'source'], filter), sorting)}
            rowKey={(setting) => setting.key}
            sorting={sorting}
            onSort={setSorting}
          />
        </Card>
      )}
    </>
  );
}
