import { sparkPoints } from '../lib/series';

/** A small curve beside a number; hidden from screen readers, which read the number. */
export function Sparkline({
  values,
  width = 88,
  height = 24,
}: {
  values: readonly number[];
  width?: number;
  height?: number;
}) {
  const points = sparkPoints(values, width, height);
  return (
    <svg
      class="spark"
      width={width}
      height={height}
      viewBox={`0 0 ${width} ${height}`}
      aria-hidden="true"
      focusable="false"
    >
      {points !== '' && <polyline points={points} />}
    </svg>
  );
}
