/** Sorting and filtering of short lists, which are not paged by the server. Pure. */

export interface Sorting {
  by: string;
  descending: boolean;
}

export function pick(row: unknown, dotted: string): unknown {
  return dotted.split('.').reduce<unknown>((at, key) => {
    return typeof at === 'object' && at !== null ? (at as Record<string, unknown>)[key] : undefined;
  }, row);
}

const collator = new Intl.Collator('en', { numeric: true, sensitivity: 'base' });

export function compare(left: unknown, right: unknown): number {
  if (typeof left === 'number' && typeof right === 'number') return left - right;
  return collator.compare(text(left), text(right));
}

function text(of: unknown): string {
  if (of === null || of === undefined) return '';
  return typeof of === 'object' ? JSON.stringify(of) : String(of);
}

/** Missing values come last in both directions; equal rows keep their order. */
export function sorted<Row>(rows: readonly Row[], sorting: Sorting): Row[] {
  const sign = sorting.descending ? -1 : 1;
  return [...rows].sort((a, b) => {
    const left = pick(a, sorting.by);
    const right = pick(b, sorting.by);
    const missingDifference =
      Number(left === undefined || left === null) - Number(right === undefined || right === null);
    return missingDifference !== 0 ? missingDifference : sign * compare(left, right);
  });
}

export function matching<Row>(
  rows: readonly Row[],
  fields: readonly string[],
  filter: string,
): Row[] {
  const needle = filter.trim().toLowerCase();
  if (needle === '') return [...rows];
  return rows.filter((row) =>
    fields.some((field) => text(pick(row, field)).toLowerCase().includes(needle)),
  );
}

/** The sorting after a click on a column: descending first for numbers, and then the reverse. */
export function toggled(current: Sorting, by: string, numeric: boolean): Sorting {
  return current.by === by ? { by, descending: !current.descending } : { by, descending: numeric };
}
