/** Single figures: a row of numbers with labels, and a meter for a share of a limit. */

import type { ComponentChildren } from 'preact';
import type { Tone } from './badge';

interface StatProps {
  label: string;
  value: string;
  note?: ComponentChildren;
  tone?: Tone;
  testid?: string;
}

export function Stat({ label, value, note, tone = 'plain', testid }: StatProps) {
  return (
    <div class={`stat stat-${tone}`} data-testid={testid}>
      <dt>{label}</dt>
      <dd>
        <span class="stat-value">{value}</span>
        {note && <span class="stat-note">{note}</span>}
      </dd>
    </div>
  );
}

export function Stats({ children }: { children?: ComponentChildren }) {
  return <dl class="stats">{children}</dl>;
}

/** The colour shows how close the value is to the limit. */
export function Meter({
  label,
  part,
  total,
  text,
}: {
  label: string;
  part: number;
  total: number;
  text: string;
}) {
  const share = total > 0 ? Math.min(1, part / total) : 0;
  const tone = share > 0.9 ? 'bad' : share > 0.7 ? 'warn' : 'good';
  return (
    <div class="meter-row">
      <span>{label}</span>
      <span class="num">{text}</span>
      {/* biome-ignore lint/a11y/useSemanticElements: <meter> cannot be styled alike in all browsers. */}
      <div
        class={`meter meter-${tone}`}
        role="meter"
        aria-label={label}
        aria-valuemin={0}
        aria-valuemax={100}
        aria-valuenow={Math.round(share * 100)}
        aria-valuetext={text}
      >
        <div style={{ width: `${share * 100}%` }} />
      </div>
    </div>
  );
}
