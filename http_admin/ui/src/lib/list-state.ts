/** The filter, sorting and page of a list. They are kept in the address, so that Back, reload and links work. */

import { useEffect, useState } from 'preact/hooks';
import { type Live, useLive } from '../api/live';
import type { Page } from '../api/types';
import { useDebounced } from './hooks';
import { replaceRoute, useRoute } from './navigation';
import { href } from './route';
import type { Sorting } from './sort';

export interface ListState {
  filter: string;
  sorting: Sorting;
  page: number;
  setFilter: (text: string) => void;
  setSorting: (next: Sorting) => void;
  setPage: (page: number) => void;
  /** The query string of a paged list. */
  query: string;
}

const PAGE_SIZE = 50;

export function useListState(path: string[], initial: Sorting): ListState {
  const { query } = useRoute();
  const [typed, setTyped] = useState(query.name ?? '');
  const settled = useDebounced(typed);
  const sorting: Sorting = query.sort
    ? { by: query.sort, descending: query.desc === '1' }
    : initial;
  const page = Math.max(1, Number(query.page ?? 1) || 1);
  const filter = query.name ?? '';
  const write = (name: string, next: Sorting, nextPage: number): void => {
    const isInitial = next.by === initial.by && next.descending === initial.descending;
    replaceRoute(
      href(path, {
        name,
        sort: isInitial ? undefined : next.by,
        desc: isInitial ? undefined : next.descending ? 1 : 0,
        page: nextPage > 1 ? nextPage : undefined,
      }),
    );
  };
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

/** Subscribes to the page of a list that the state selects. */
export function usePage<Row>(base: string, list: ListState, extraQuery = ''): Live<Page<Row>> {
  return useLive<Page<Row>>(`${base}?${list.query}${extraQuery === '' ? '' : `&${extraQuery}`}`);
}
