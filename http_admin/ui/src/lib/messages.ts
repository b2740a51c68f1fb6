/** Message bodies and properties, prepared for display. Pure. */

import type { Queue } from '../api/types';

export interface Body {
  text: string;
  kind: 'JSON' | 'text' | 'binary' | 'empty';
}

const BYTES_PER_LINE = 16;
const HEX_LINES = 256;

export function bodyOf(payload: string, encoding: string): Body {
  if (payload === '') return { text: '', kind: 'empty' };
  if (encoding === 'base64') return { text: hexDump(fromBase64(payload)), kind: 'binary' };
  const first = payload.trimStart().charAt(0);
  if (first === '{' || first === '[') {
    try {
      return { text: JSON.stringify(JSON.parse(payload), null, 2), kind: 'JSON' };
    } catch {
      // Not JSON after all; it is shown as text.
    }
  }
  return { text: payload, kind: 'text' };
}

function fromBase64(text: string): Uint8Array {
  try {
    return Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  } catch {
    return new TextEncoder().encode(text);
  }
}

export function hexDump(data: Uint8Array): string {
  const lines: string[] = [];
  for (let at = 0; at < data.length && lines.length < HEX_LINES; at += BYTES_PER_LINE) {
    const row = [...data.slice(at, at + BYTES_PER_LINE)];
    const hex = row.map((byte) => byte.toString(16).padStart(2, '0')).join(' ');
    const text = row
      .map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : '·'))
      .join('');
    lines.push(
      `${at.toString(16).padStart(6, '0')}  ${hex.padEnd(BYTES_PER_LINE * 3 - 1)}  ${text}`,
    );
  }
  const shown = HEX_LINES * BYTES_PER_LINE;
  if (data.length > shown) lines.push(`… ${data.length - shown} more bytes`);
  return lines.join('\n');
}

/** The dead-letter exchange, from the queue's argument or else its policy; undefined if none is set. */
export function deadLetterExchange(
  queue: Pick<Queue, 'arguments' | 'effective_policy_definition'>,
): string | undefined {
  const name =
    queue.arguments['x-dead-letter-exchange'] ??
    queue.effective_policy_definition['dead-letter-exchange'];
  return typeof name === 'string' ? name : undefined;
}
