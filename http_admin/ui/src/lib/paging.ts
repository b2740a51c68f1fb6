/** Lists that some servers page and others send whole: either way the pages see one page. */

import type { Page } from '../api/types';
import { matching, sorted, type Sorting } from './sort';

export interface Wanted {
  filter: string;
  sorting: Sorting;
  page: number;
  pageSize: number;
}

export function asPage<Row>(data: Page<Row> | Row[] | undefined, wanted: Wanted): Page<Row> | undefined {
  if (data === undefined || !Array.isArray(data)) return data;
  const found = sorted(matching(data, ['name'], wanted.filter), wanted.sorting);
  const pages = Math.max(1, Math.ceil(found.length / wanted.pageSize));
  const page = Math.min(wanted.page, pages);
  const items = found.slice((page - 1) * wanted.pageSize, page * wanted.pageSize);
  return {
    items,
    page,
    page_count: pages,
    page_size: wanted.pageSize,
    item_count: items.length,
    filtered_count: found.length,
    total_count: data.length,
  };
}
