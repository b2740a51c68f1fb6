/** Tables with sortable columns, and their filter and pager. Callers keep the state in the address. */

import type { ComponentChildren } from 'preact';
import type { Page } from '../api/types';
import { count, plural } from '../lib/format';
import { type Sorting, toggled } from '../lib/sort';
import { Icon } from './icon';

export interface Column<Row> {
  id: string;
  title: string;
  /** The field to sort by; without it the column is not sortable. */
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
  /** On narrow screens each row becomes a block of titled fields, and no column is hidden. */
  stacked?: boolean;
}

export function DataTable<Row>({
  label,
  columns,
  rows,
  rowKey,
  sorting,
  onSort,
  testid,
  busy,
  stacked,
}: TableProps<Row>) {
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: an element that scrolls must be reachable by keyboard.
    <section class="table-wrap" aria-label={label} tabIndex={0}>
      <table class={stacked ? 'stacked' : undefined} aria-busy={busy} data-testid={testid}>
        <thead>
          <tr>
            {columns.map((column) => (
              <HeadCell key={column.id} column={column} sorting={sorting} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={rowKey(row)}>{columns.map((column, index) => cell(column, row, index))}</tr>
          ))}
        </tbody>
      </table>
    </section>
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
    <td key={column.id} class={classes(column)} data-title={column.title || undefined}>
      {column.render(row)}
    </td>
  );
}

function HeadCell<Row>({
  column,
  sorting,
  onSort,
}: {
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
      <button
        type="button"
        class="sort"
        onClick={() => onSort(toggled(sorting, by, column.numeric === true))}
      >
        {column.title}
        <span class={active ? 'sort-mark' : 'sort-mark sort-off'}>
          <Icon name={active && sorting.descending ? 'down' : 'up'} size={14} />
        </span>
      </button>
    </th>
  );
}

export function FilterBox({
  value,
  onInput,
  label,
}: {
  value: string;
  onInput: (text: string) => void;
  label: string;
}) {
  return (
    <label class="filter">
      <Icon name="search" />
      <span class="visually-hidden">{label}</span>
      <input
        type="search"
        value={value}
        placeholder={label}
        autocomplete="off"
        spellcheck={false}
        data-testid="filter"
        onInput={(event) => onInput(event.currentTarget.value)}
      />
    </label>
  );
}

export function Pager<Row>({
  data,
  onPage,
  noun,
}: {
  data: Page<Row>;
  onPage: (page: number) => void;
  noun: string;
}) {
  const first = (data.page - 1) * data.page_size + 1;
  const last = first + data.items.length - 1;
  const filtered =
    data.filtered_count !== data.total_count ? ` (of ${count(data.total_count)})` : '';
  return (
    <div class="pager">
      <span role="status" data-testid="pager-status">
        {data.filtered_count === 0
          ? `No ${noun} match`
          : `${count(first)}–${count(last)} of ${plural(data.filtered_count, noun.slice(0, -1))}${filtered}`}
      </span>
      {data.page_count > 1 && (
        <span class="pager-buttons">
          <button
            type="button"
            class="button button-small"
            disabled={data.page <= 1}
            onClick={() => onPage(data.page - 1)}
          >
            Previous
          </button>
          <span class="num">
            {data.page} / {data.page_count}
          </span>
          <button
            type="button"
            class="button button-small"
            disabled={data.page >= data.page_count}
            onClick={() => onPage(data.page + 1)}
          >
            Next
          </button>
        </span>
      )}
    </div>
  );
}
