import { useState } from 'preact/hooks';
import { Icon } from './icon';

/** A program with a button that copies it. */
export function CodeSnippet({ code, label }: { code: string; label: string }) {
  const [copied, setCopied] = useState(false);
  const copy = async (): Promise<void> => {
    await navigator.clipboard?.writeText(code).then(
      () => setCopied(true),
      () => undefined,
    );
    window.setTimeout(() => setCopied(false), 2000);
  };
  return (
    <figure class="snippet" aria-label={label}>
      <button type="button" class="button button-small" onClick={() => void copy()}>
        <Icon name={copied ? 'check' : 'copy'} size={14} /> {copied ? 'Copied' : 'Copy'}
      </button>
      {/* biome-ignore lint/a11y/noNoninteractiveTabindex: an element that scrolls must be reachable by keyboard. */}
      <pre tabIndex={0}>
        <code>{code}</code>
      </pre>
    </figure>
  );
}
