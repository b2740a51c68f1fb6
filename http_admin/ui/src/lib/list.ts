/** Filter, order and page of a list live in the address, so that Back, reload and links work. */

import { useEffect, useMemo, useState } from 'preact/hooks';
import { useLive, type Live } from '../api/live';
import type { Page } from '../api/types';
import { replaceRoute, useDebounced, useRoute } from './hooks';
import { asPage, type Wanted } from './paging';
import { href } from './route';
import type { Sorting } from './sort';

export interface ListState {
  filter: string;
  sorting: Sorting;
  page: number;
  setFilter: (text: string) => void;
  setSorting: (next: Sorting) => void;
  setPage: (page: number) => void;
  /** Query string for RabbitMQ's paged lists. */
  query: string;
  wanted: Wanted;
}

const PAGE_SIZE = 50;

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
    wanted: { filter, sorting, page, pageSize: PAGE_SIZE },
  };
}


/** One page of a list, live. */
export function usePage<Row>(base: string, list: ListState, extra = ''): Live<Page<Row>> {
  const live = useLive<Page<Row> | Row[]>(`${base}?${list.query}${extra === '' ? '' : `&${extra}`}`);
  const data = useMemo(() => asPage(live.data, list.wanted), [live.data, list.query]);
  return { ...live, data };
}
