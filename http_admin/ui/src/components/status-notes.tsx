/** What a page shows in place of data: an error, a missing feature, or that it is loading. */

import { type ApiError, errorText } from '../api/client';
import { Icon } from './icon';

const MAX_LOSSES_SHOWN = 10;

export function ErrorNote({ error, retry }: { error: unknown; retry?: () => void }) {
  return (
    <div class="note note-bad" role="alert" data-testid="error">
      <Icon name="warn" />
      <span>{errorText(error)}</span>
      {retry && (
        <button type="button" class="button button-small" onClick={retry}>
          Try again
        </button>
      )}
    </div>
  );
}

/** What damage of the database has cost: shown until the folder `damaged` is removed. */
export function LostDataNote({ texts }: { texts: readonly string[] }) {
  if (texts.length === 0) return null;
  const shown = texts.slice(0, MAX_LOSSES_SHOWN);
  const more = texts.length - shown.length;
  return (
    <div class="note note-bad gap-top" role="alert" data-testid="lost-data">
      <Icon name="warn" />
      <div>
        <p>The database was damaged. This is lost:</p>
        <ul>
          {shown.map((text) => (
            <li key={text}>{text}</li>
          ))}
          {more > 0 && <li>and {more} more; the reports are in the folder “damaged”</li>}
        </ul>
      </div>
    </div>
  );
}

/** For pages whose endpoint may be missing, for example in an older broker. */
export function NotSupported({ feature, error }: { feature: string; error: ApiError }) {
  if (error.status !== 404 && error.status !== 405) return <ErrorNote error={error} />;
  return (
    <div class="note" data-testid="unavailable">
      <span>This broker does not support {feature}.</span>
    </div>
  );
}

export function Loading() {
  return (
    <p class="loading" role="status">
      Loading…
    </p>
  );
}
