/** Form fields for arguments, and how their text becomes typed values. */

import type { Table } from '../api/types';

export type ArgumentKind = 'number' | 'text' | 'flag' | 'choice';

/** One argument as a form shows it. */
export interface ArgumentSpec {
  key: string;
  label: string;
  kind: ArgumentKind;
  help: string;
  choices?: readonly string[];
  unit?: string;
  placeholder?: string;
}

/** Reads the fields of a form. Empty fields are left out; a bad value throws an error. */
export function readFields(
  specs: readonly Pick<ArgumentSpec, 'key' | 'label' | 'kind'>[],
  texts: Readonly<Record<string, string>>,
): Table {
  const table: Table = {};
  for (const spec of specs) {
    const text = (texts[spec.key] ?? '').trim();
    if (text === '') continue;
    if (spec.kind === 'number') table[spec.key] = wholeNumber(spec.label, text);
    else if (spec.kind === 'flag') table[spec.key] = text === 'true';
    else table[spec.key] = text;
  }
  return table;
}

export function wholeNumber(label: string, text: string): number {
  if (!/^-?\d+$/.test(text)) throw new Error(`“${label}” must be a whole number, not “${text}”.`);
  return Number(text);
}

export type ValueKind = 'string' | 'number' | 'boolean' | 'json';

export function readValue(kind: ValueKind, text: string): unknown {
  switch (kind) {
    case 'string':
      return text;
    case 'boolean':
      return text.trim() === 'true';
    case 'number': {
      const number = Number(text);
      if (text.trim() === '' || !Number.isFinite(number))
        throw new Error(`“${text}” is not a number.`);
      return number;
    }
    case 'json':
      try {
        return JSON.parse(text) as unknown;
      } catch {
        throw new Error(`“${text}” is not valid JSON.`);
      }
  }
}

/** One line of the editor for free arguments and headers. */
export interface TableRow {
  key: string;
  kind: ValueKind;
  text: string;
}

/** Rows without a name are left out. */
export function readTable(rows: readonly TableRow[]): Table {
  const table: Table = {};
  for (const row of rows)
    if (row.key.trim() !== '') table[row.key.trim()] = readValue(row.kind, row.text);
  return table;
}
