/** Line icons of 20 x 20, drawn for this UI. They are decorative: screen readers skip them. */

const PATHS = {
  overview: 'M3 11.5 7 7l3.5 3L17 4M13 4h4v4M3 16.5h14',
  connections: 'M7 4v4M13 4v4M5 8h10v2a5 5 0 0 1-10 0zM10 15v3',
  channels: 'M3 6h14M3 10h14M3 14h14M6 4.5v3M13 8.5v3M8 12.5v3',
  exchanges: 'M3 10h5M8 10l4-5h5M8 10h9M8 10l4 5h5',
  queues: 'M3 5h14v3.5H3zM3 11.5h14V15H3z',
  logs: 'M3 5h9M14.5 5H17M3 10h5M10.5 10H17M3 15h11M16.5 15h.5',
  history: 'M10 5.5V10l3 2M4 10a6 6 0 1 0 2-4.5L4 7.2M4 4v3.2h3.2',
  users: 'M10 9.5a3 3 0 1 0 0-6 3 3 0 0 0 0 6zM4 17c.4-3.3 2.8-5 6-5s5.6 1.7 6 5',
  vhosts: 'M3 4h6v5H3zM11 4h6v5h-6zM3 11h6v5H3zM11 11h6v5h-6z',
  policies: 'M5 3h7l3 3v11H5zM8 9h4M8 12h4',
  limits: 'M4 14a6.5 6.5 0 1 1 12 0M10 12l3-4.5',
  definitions: 'M10 3v8M7 8l3 3 3-3M4 13v3h12v-3',
  settings: 'M4 6h6M14 6h2M4 14h2M10 14h6M12 4v4M8 12v4',
  menu: 'M3 6h14M3 10h14M3 14h14',
  close: 'M5 5l10 10M15 5 5 15',
  sun: 'M10 7a3 3 0 1 0 0 6 3 3 0 0 0 0-6zM10 2.5v1.5M10 16v1.5M2.5 10H4M16 10h1.5M4.7 4.7l1 1M14.3 14.3l1 1M15.3 4.7l-1 1M5.7 14.3l-1 1',
  moon: 'M16 11.5A6.5 6.5 0 0 1 8.5 4 6.5 6.5 0 1 0 16 11.5z',
  auto: 'M10 3a7 7 0 1 0 0 14 7 7 0 0 0 0-14zM10 3v14M10 6.5l5.8-.5M10 10h7M10 13.5l5.8.5',
  exit: 'M8 4H4v12h4M12 7l3 3-3 3M15 10H8',
  pause: 'M7 5v10M13 5v10',
  play: 'M6 4.5v11l9-5.5z',
  copy: 'M7 7h9v9H7zM4 13V4h9',
  check: 'M4 10.5 8 14.5 16 6',
  warn: 'M10 3.5 17.5 16.5h-15zM10 8.5v3.5M10 14.2v.1',
  down: 'M6 8l4 4 4-4',
  up: 'M6 12l4-4 4 4',
  back: 'M12 5l-5 5 5 5',
  forward: 'M8 5l5 5-5 5',
  plus: 'M10 4v12M4 10h12',
  trash: 'M4 6h12M8 6V4h4v2M5.5 6l.8 11h7.4l.8-11',
  search: 'M9 4a5 5 0 1 0 0 10A5 5 0 0 0 9 4zM12.7 12.7 16.5 16.5',
} as const;

export type IconName = keyof typeof PATHS;

export function Icon({ name, size = 18 }: { name: IconName; size?: number }) {
  return (
    <svg
      class="icon"
      viewBox="0 0 20 20"
      width={size}
      height={size}
      aria-hidden="true"
      focusable="false"
    >
      <path
        d={PATHS[name]}
        fill="none"
        stroke="currentColor"
        stroke-width="1.5"
        stroke-linecap="round"
        stroke-linejoin="round"
      />
    </svg>
  );
}

/** The hare of the favicon. */
export function Logo({ size = 28 }: { size?: number }) {
  return (
    <svg
      class="mark"
      viewBox="0 0 32 32"
      width={size}
      height={size}
      aria-hidden="true"
      focusable="false"
    >
      <rect class="mark-ground" width="32" height="32" rx="8" />
      <g class="mark-hare">
        <path d="M13.6 15.5C10.6 12 9.4 7.2 10.6 4.2c.3-.7 1-.8 1.5-.2 2.3 2.7 3.7 6.6 3.9 10.8z" />
        <path d="M17.2 14.7C17 10.3 18.3 6 20.7 3.6c.6-.5 1.3-.3 1.5.4.9 3.3-.4 8-3.2 11.6z" />
        <ellipse cx="16" cy="20.6" rx="7.6" ry="7" />
      </g>
      <g class="mark-ground">
        <circle cx="13" cy="19.6" r="1.35" />
        <circle cx="19" cy="19.6" r="1.35" />
        <path d="M14.8 22.8h2.4L16 24.2z" />
      </g>
    </svg>
  );
}
