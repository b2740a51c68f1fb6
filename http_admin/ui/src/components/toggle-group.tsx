/** A row of buttons of which one is pressed. */

export function ToggleGroup({
  label,
  options,
  current,
  onPick,
}: {
  label: string;
  options: readonly { id: string; label: string }[];
  current: string;
  onPick: (id: string) => void;
}) {
  return (
    <fieldset class="choice" aria-label={label}>
      {options.map((option) => (
        <button
          type="button"
          key={option.id}
          aria-pressed={option.id === current}
          onClick={() => onPick(option.id)}
        >
          {option.label}
        </button>
      ))}
    </fieldset>
  );
}
