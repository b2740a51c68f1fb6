/** Cards: the boxes a page consists of, and what they show while there is no data. */

import type { ComponentChildren } from 'preact';

interface CardProps {
  title?: string;
  /** Shown at the right of the title. */
  aside?: ComponentChildren;
  testid?: string;
  /** Without padding, for a table that fills the card. */
  tight?: boolean;
  children?: ComponentChildren;
}

export function Card({ title, aside, testid, tight = false, children }: CardProps) {
  return (
    <section class={tight ? 'card card-tight' : 'card'} data-testid={testid}>
      {title && (
        <div class="card-head">
          <h2>{title}</h2>
          {aside}
        </div>
      )}
      {children}
    </section>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }) {
  return (
    <div class="empty" data-testid="empty">
      <h3>{title}</h3>
      {children}
    </div>
  );
}
