/** One argument of a declaration, with its explanation and its real name. */

import type { ArgSpec } from '../lib/arguments';
import { CheckField, SelectField, TextField } from './forms';

export type FieldSpec = Pick<ArgSpec, 'key' | 'label' | 'kind' | 'help' | 'choices' | 'unit' | 'placeholder'>;

export function ArgField({ spec, value, onInput }: { spec: FieldSpec; value: string; onInput: (text: string) => void }) {
  const help = <>{spec.help} <code>{spec.key}</code></>;
  if (spec.kind === 'flag') {
    return <CheckField label={spec.label} help={help} checked={value === 'true'} onInput={(on) => onInput(on ? 'true' : '')} />;
  }
  if (spec.kind === 'choice') {
    const options = [{ id: '', label: 'not set' }, ...(spec.choices ?? []).map((id) => ({ id, label: id }))];
    return <SelectField label={spec.label} help={help} value={value} onInput={onInput} options={options} />;
  }
  return <TextField label={spec.label} help={help} value={value} onInput={onInput} unit={spec.unit} placeholder={spec.placeholder ?? 'not set'} />;
}
