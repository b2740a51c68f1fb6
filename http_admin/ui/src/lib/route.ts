/** Hash routes: `#/queues/<vhost>/<name>?tab=messages`. Segments and values are percent-encoded. */

export interface Route {
  path: string[];
  query: Record<string, string>;
}

export type Query = Record<string, string | number | boolean | undefined>;

export function parseRoute(hash: string): Route {
  const raw = hash.replace(/^#\/?/, '');
  const mark = raw.indexOf('?');
  const path = mark < 0 ? raw : raw.slice(0, mark);
  const query: Record<string, string> = {};
  if (mark >= 0) {
    for (const [key, text] of new URLSearchParams(raw.slice(mark + 1))) query[key] = text;
  }
  // An empty segment is a real one: the default exchange is named "".
  return { path: path === '' ? [] : path.split('/').map(decode), query };
}

function decode(segment: string): string {
  try {
    return decodeURIComponent(segment);
  } catch {
    return segment;
  }
}

export function href(path: readonly string[], query: Query = {}): string {
  return `#/${path.map(encodeURIComponent).join('/')}${search(query)}`;
}

/** `?a=b` without the entries that are undefined, empty or false. */
export function search(query: Query): string {
  const params = new URLSearchParams();
  for (const [key, item] of Object.entries(query)) {
    if (item !== undefined && item !== '' && item !== false) params.set(key, String(item));
  }
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}
