/** Tables with sortable heads, and the filter and pager round them. The state lives in the address. */

import type { ComponentChildren } from 'preact';
import { useEffect, useState } from 'preact/hooks';
import type { Page } from '../api/types';
import { count } from '../lib/format';
import { replaceRoute, useDebounced, useRoute } from '../lib/hooks';
import { href } from '../lib/route';
import { toggled, type Sorting } from '../lib/sort';
import { Icon } from './Icon';

export interface Column<Row> {
  id: string;
  title: string;
  /** Server or client field to sort by; a column without one is not sortable. */
  sort?: string;
  numeric?: boolean;
  /** Hidden on narrow screens. */
  minor?: boolean;
  render: (row: Row) => ComponentChildren;
}

interface TableProps<Row> {
  label: string;
  columns: readonly Column<Row>[];
  rows: readonly Row[];
  rowKey: (row: Row) => string;
  sorting?: Sorting;
  onSort?: (next: Sorting) => void;
  testid?: string;
  busy?: boolean;
}

export function DataTable<Row>({ label, columns, rows, rowKey, sorting, onSort, testid, busy }: TableProps<Row>) {
  return (
    <div class="table-wrap" role="region" aria-label={label} tabIndex={0}>
      <table aria-busy={busy} data-testid={testid}>
        <thead>
          <tr>
            {columns.map((column) => (
              <HeadCell key={column.id} column={column} sorting={sorting} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>
              {columns.map((column, index) => cell(column, row, index))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function classes<Row>(column: Column<Row>): string {
  return `${column.numeric ? 'num' : ''} ${column.minor ? 'minor' : ''}`.trim();
}

function cell<Row>(column: Column<Row>, row: Row, index: number) {
  if (index === 0) {
    return (
      <th key={column.id} scope="row" class={classes(column)}>
        {column.render(row)}
      </th>
    );
  }
  return (
    <td key={column.id} class={classes(column)}>
      {column.render(row)}
    </td>
  );
}

function HeadCell<Row>({ column, sorting, onSort }: {
  column: Column<Row>;
  sorting?: Sorting;
  onSort?: (next: Sorting) => void;
}) {
  const by = column.sort;
  if (by === undefined || sorting === undefined || onSort === undefined) {
    return (
      <th scope="col" class={classes(column)}>
        {column.title === '' ? <span class="visually-hidden">Actions</span> : column.title}
      </th>
    );
  }
  const active = sorting.by === by;
  const order = active ? (sorting.descending ? 'descending' : 'ascending') : 'none';
  return (
    <th scope="col" class={classes(column)} aria-sort={order}>
      <button class="sort" onClick={() => onSort(toggled(sorting, by, column.numeric === true))}>
        {column.title}
        <span class={active ? 'sort-mark' : 'sort-mark sort-off'}>
          <Icon name={active && sorting.descending ? 'down' : 'up'} size={14} />
        </span>
      </button>
    </th>
  );
}

export interface ListState {
  filter: string;
  sorting: Sorting;
  page: number;
  setFilter: (text: string) => void;
  setSorting: (next: Sorting) => void;
  setPage: (page: number) => void;
  /** Query string for RabbitMQ's paged lists. */
  query: string;
}

export const PAGE_SIZE = 50;

/** Filter, order and page of a list, kept in the address so that Back and links work. */
export function useListState(path: string[], initial: Sorting): ListState {
  const { query } = useRoute();
  const [typed, setTyped] = useState(query['name'] ?? '');
  const settled = useDebounced(typed);
  const sorting: Sorting = query['sort'] ? { by: query['sort'], descending: query['desc'] === '1' } : initial;
  const page = Math.max(1, Number(query['page'] ?? 1) || 1);
  const filter = query['name'] ?? '';
  const write = (name: string, order: Sorting, at: number): void =>
    replaceRoute(href(path, {
      name,
      sort: order.by === initial.by && order.descending === initial.descending ? undefined : order.by,
      desc: order.by === initial.by && order.descending === initial.descending ? undefined : order.descending ? 1 : 0,
      page: at > 1 ? at : undefined,
    }));
  useEffect(() => {
    if (settled !== filter) write(settled, sorting, 1);
  }, [settled]);
  const params = new URLSearchParams({
    page: String(page),
    page_size: String(PAGE_SIZE),
    sort: sorting.by,
    sort_reverse: String(sorting.descending),
  });
  if (filter !== '') {
    params.set('name', filter);
    params.set('use_regex', 'false');
  }
  return {
    filter: typed,
    sorting,
    page,
    setFilter: setTyped,
    setSorting: (next) => write(filter, next, 1),
    setPage: (next) => write(filter, sorting, next),
    query: params.toString(),
  };
}

export function FilterBox({ value, onInput, label }: { value: string; onInput: (text: string) => void; label: string }) {
  return (
    <label class="filter">
      <Icon name="search" />
      <span class="visually-hidden">{label}</span>
      <input type="search" value={value} placeholder={label} autocomplete="off" spellcheck={false} data-testid="filter"
        onInput={(event) => onInput(event.currentTarget.value)} />
    </label>
  );
}

export function Pager<Row>({ data, onPage, noun }: { data: Page<Row>; onPage: (page: number) => void; noun: string }) {
  const first = (data.page - 1) * data.page_size + 1;
  const last = first + data.items.length - 1;
  const filtered = data.filtered_count !== data.total_count ? ` (of ${count(data.total_count)})` : '';
  return (
    <div class="pager">
      <span role="status" data-testid="pager-status">
        {data.filtered_count === 0 ? `No ${noun} match` : `${count(first)}–${count(last)} of ${count(data.filtered_count)} ${noun}${filtered}`}
      </span>
      {data.page_count > 1 && (
        <span class="pager-buttons">
          <button class="button button-small" disabled={data.page <= 1} onClick={() => onPage(data.page - 1)}>
            Previous
          </button>
          <span class="num">{data.page} / {data.page_count}</span>
          <button class="button button-small" disabled={data.page >= data.page_count} onClick={() => onPage(data.page + 1)}>
            Next
          </button>
        </span>
      )}
    </div>
  );
}
