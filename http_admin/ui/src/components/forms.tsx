/** Form fields with a label and a help text, and forms that show errors beside their button. */

import type { ComponentChildren, JSX } from 'preact';
import { useId, useState } from 'preact/hooks';
import type { TableRow, ValueKind } from '../lib/argument-values';
import { Icon } from './icon';
import { ErrorNote } from './status-notes';

interface FieldProps {
  label: string;
  help?: ComponentChildren;
  wide?: boolean;
}

interface TextProps extends FieldProps {
  value: string;
  onInput: (text: string) => void;
  type?: 'text' | 'password' | 'number' | 'search' | 'datetime-local';
  required?: boolean;
  min?: number;
  placeholder?: string;
  name?: string;
  autocomplete?: string;
  unit?: string;
  list?: readonly string[];
  autoFocus?: boolean;
  disabled?: boolean;
}

export function TextField(props: TextProps) {
  const id = useId();
  const { label, help, wide, value, onInput, type = 'text', unit, list, required } = props;
  return (
    <div class={wide ? 'field field-wide' : 'field'}>
      <label for={id}>
        {label} {required && <span class="required">required</span>}
      </label>
      <div class="input-row">
        <input
          id={id}
          type={type}
          value={value}
          name={props.name}
          required={required}
          min={props.min}
          placeholder={props.placeholder}
          autocomplete={props.autocomplete ?? 'off'}
          spellcheck={false}
          // biome-ignore lint/a11y/noAutofocus: used only by the sign-in page, where no content comes before it.
          autoFocus={props.autoFocus}
          disabled={props.disabled}
          list={list ? `${id}-list` : undefined}
          aria-describedby={help ? `${id}-help` : undefined}
          onInput={(event) => onInput(event.currentTarget.value)}
        />
        {unit && <span class="unit">{unit}</span>}
      </div>
      {list && (
        <datalist id={`${id}-list`}>
          {list.map((item) => (
            <option key={item} value={item} />
          ))}
        </datalist>
      )}
      {help && (
        <p class="help" id={`${id}-help`}>
          {help}
        </p>
      )}
    </div>
  );
}

export function AreaField({
  label,
  help,
  value,
  onInput,
  rows = 4,
}: FieldProps & { value: string; onInput: (text: string) => void; rows?: number }) {
  const id = useId();
  return (
    <div class="field field-wide">
      <label for={id}>{label}</label>
      <textarea
        id={id}
        rows={rows}
        value={value}
        spellcheck={false}
        aria-describedby={help ? `${id}-help` : undefined}
        onInput={(event) => onInput(event.currentTarget.value)}
      />
      {help && (
        <p class="help" id={`${id}-help`}>
          {help}
        </p>
      )}
    </div>
  );
}

interface SelectProps extends FieldProps {
  value: string;
  onInput: (text: string) => void;
  options: readonly (string | { id: string; label: string })[];
}

export function SelectField({ label, help, wide, value, onInput, options }: SelectProps) {
  const id = useId();
  return (
    <div class={wide ? 'field field-wide' : 'field'}>
      <label for={id}>{label}</label>
      <select
        id={id}
        value={value}
        aria-describedby={help ? `${id}-help` : undefined}
        onChange={(event) => onInput(event.currentTarget.value)}
      >
        {options.map((option) => {
          const item = typeof option === 'string' ? { id: option, label: option } : option;
          return (
            <option key={item.id} value={item.id}>
              {item.label}
            </option>
          );
        })}
      </select>
      {help && (
        <p class="help" id={`${id}-help`}>
          {help}
        </p>
      )}
    </div>
  );
}

export function CheckField({
  label,
  help,
  checked,
  onInput,
}: FieldProps & { checked: boolean; onInput: (on: boolean) => void }) {
  const id = useId();
  return (
    <div class="field field-check">
      <input
        id={id}
        type="checkbox"
        checked={checked}
        aria-describedby={help ? `${id}-help` : undefined}
        onChange={(event) => onInput(event.currentTarget.checked)}
      />
      <div>
        <label for={id}>{label}</label>
        {help && (
          <p class="help" id={`${id}-help`}>
            {help}
          </p>
        )}
      </div>
    </div>
  );
}

interface FormProps {
  label: string;
  action: string;
  onSubmit: () => Promise<unknown>;
  onCancel?: () => void;
  children: ComponentChildren;
  /** Puts the button beside the fields, for forms with one or two fields. */
  inline?: boolean;
  testid?: string;
}

/** Submits once at a time. An error is shown inside the form. */
export function Form({ label, action, onSubmit, onCancel, children, inline, testid }: FormProps) {
  const [busy, setBusy] = useState(false);
  const [error, setError] = useState<unknown>(null);
  const submit = async (event: JSX.TargetedEvent<HTMLFormElement>): Promise<void> => {
    event.preventDefault();
    setBusy(true);
    setError(null);
    try {
      await onSubmit();
    } catch (problem) {
      setError(problem);
    }
    setBusy(false);
  };
  return (
    <form
      class={inline ? 'form form-inline' : 'form'}
      aria-label={label}
      data-testid={testid}
      onSubmit={(event) => void submit(event)}
    >
      {children}
      {error !== null && <ErrorNote error={error} />}
      <div class="actions">
        <button class="button button-main" disabled={busy} type="submit">
          {action}
        </button>
        {onCancel && (
          <button class="button" type="button" onClick={onCancel}>
            Cancel
          </button>
        )}
      </div>
    </form>
  );
}

const KINDS: readonly ValueKind[] = ['string', 'number', 'boolean', 'json'];

/** Rows of name, type and value for headers, arguments and policy definitions. */
export function TableEditor({
  label,
  rows,
  onChange,
  keys,
  help,
}: {
  label: string;
  rows: readonly TableRow[];
  onChange: (rows: TableRow[]) => void;
  keys?: readonly string[];
  help?: string;
}) {
  const listId = useId();
  const set = (index: number, change: Partial<TableRow>): void =>
    onChange(rows.map((row, at) => (at === index ? { ...row, ...change } : row)));
  return (
    <fieldset class="field field-wide table-editor">
      <legend>{label}</legend>
      {help && <p class="help">{help}</p>}
      {rows.map((row, index) => (
        <div class="table-editor-row" key={index}>
          <input
            aria-label={`${label}: name ${index + 1}`}
            placeholder="name"
            value={row.key}
            list={keys ? listId : undefined}
            spellcheck={false}
            onInput={(event) => set(index, { key: event.currentTarget.value })}
          />
          <select
            aria-label={`${label}: type ${index + 1}`}
            value={row.kind}
            onChange={(event) => set(index, { kind: event.currentTarget.value as ValueKind })}
          >
            {KINDS.map((kind) => (
              <option key={kind} value={kind}>
                {kind === 'json' ? 'JSON' : kind}
              </option>
            ))}
          </select>
          <input
            aria-label={`${label}: value ${index + 1}`}
            placeholder={row.kind === 'boolean' ? 'true or false' : 'value'}
            value={row.text}
            spellcheck={false}
            onInput={(event) => set(index, { text: event.currentTarget.value })}
          />
          <button
            type="button"
            class="icon-button"
            aria-label={`Remove ${row.key || `row ${index + 1}`}`}
            onClick={() => onChange(rows.filter((_, at) => at !== index))}
          >
            <Icon name="close" size={14} />
          </button>
        </div>
      ))}
      {keys && (
        <datalist id={listId}>
          {keys.map((key) => (
            <option key={key} value={key} />
          ))}
        </datalist>
      )}
      <button
        type="button"
        class="button button-small"
        onClick={() => onChange([...rows, { key: '', kind: 'string', text: '' }])}
      >
        <Icon name="plus" size={14} /> Add
      </button>
    </fieldset>
  );
}

/** The handler of a <select> that passes on the selected value. */
export const onSelect =
  (set: (text: string) => void) => (event: JSX.TargetedEvent<HTMLSelectElement>) =>
    set(event.currentTarget.value);
