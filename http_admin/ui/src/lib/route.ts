/** Hash routes: `#/queues/<vhost>/<name>?tab=messages`. Segments and values are percent-encoded. Pure. */

export interface Route {
  path: string[];
  query: Record<string, string>;
}

export type Query = Record<string, string | number | boolean | undefined>;

export function parseRoute(hash: string): Route {
  const raw = hash.replace(/^#\/?/, '');
  const questionMark = raw.indexOf('?');
  const path = questionMark < 0 ? raw : raw.slice(0, questionMark);
  const query: Record<string, string> = {};
  if (questionMark >= 0) {
    for (const [key, text] of new URLSearchParams(raw.slice(questionMark + 1))) query[key] = text;
  }
  // Empty segments count: the name of the default exchange is empty.
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

/** `?a=b`, without entries that are undefined, empty or false. */
export function search(query: Query): string {
  const params = new URLSearchParams();
  for (const [key, item] of Object.entries(query)) {
    if (item !== undefined && item !== '' && item !== false) params.set(key, String(item));
  }
  const text = params.toString();
  return text === '' ? '' : `?${text}`;
}
