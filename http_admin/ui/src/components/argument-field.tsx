/** A form field for one argument, with its help text and its AMQP name. */

import type { ArgumentSpec } from '../lib/argument-values';
import { CheckField, SelectField, TextField } from './forms';

export function ArgumentField({
  spec,
  value,
  onInput,
}: {
  spec: ArgumentSpec;
  value: string;
  onInput: (text: string) => void;
}) {
  const help = (
    <>
      {spec.help} <code>{spec.key}</code>
    </>
  );
  if (spec.kind === 'flag') {
    return (
      <CheckField
        label={spec.label}
        help={help}
        checked={value === 'true'}
        onInput={(on) => onInput(on ? 'true' : '')}
      />
    );
  }
  if (spec.kind === 'choice') {
    const options = [
      { id: '', label: 'not set' },
      ...(spec.choices ?? []).map((id) => ({ id, label: id })),
    ];
    return (
      <SelectField
        label={spec.label}
        help={help}
        value={value}
        onInput={onInput}
        options={options}
      />
    );
  }
  return (
    <TextField
      label={spec.label}
      help={help}
      value={value}
      onInput={onInput}
      unit={spec.unit}
      placeholder={spec.placeholder ?? 'not set'}
    />
  );
}
