/**
 * Draws the lines of the routing picture. Every line has a place of its own for its label: those
 * that go on to the right arrive one below the other at the left side of their target, those that
 * lead back or to itself arrive from below. A node is as tall as its lines need. Pure.
 */

export interface Line {
  d: string;
  labelX: number;
  labelY: number;
  labelAnchor: 'end' | 'middle';
}

export interface Place {
  x: number;
  y: number;
  height: number;
}

export interface Room {
  height: number;
  /** For lines that come from below or leave there, and their labels. */
  below: number;
}

interface Ends {
  from: string;
  to: string;
}

export interface Routed {
  id: string;
  edge: Ends;
  way: readonly Place[];
  isForward: boolean;
}

export const NODE_WIDTH = 176;
export const NODE_HEIGHT = 40;
/** Wide enough for the longest label. */
export const GAP_X = 196;
export const PAD = 12;
const GAP_Y = 18;
const PASS_HEIGHT = 4;
/** From one label to the next. */
const STEP = 16;
const FIRST_BELOW = 16;
const LETTER = 6.7;

export function isForward(edge: Ends, columnOf: ReadonlyMap<string, number>): boolean {
  return (columnOf.get(edge.to) ?? 0) > (columnOf.get(edge.from) ?? 0);
}

export function roomsFor(edges: readonly Ends[], columnOf: ReadonlyMap<string, number>): Map<string, Room> {
  const rooms = new Map<string, Room>();
  for (const to of new Set(edges.map((edge) => edge.to))) {
    const incoming = edges.filter((edge) => edge.to === to);
    const ahead = incoming.filter((edge) => isForward(edge, columnOf)).length;
    const back = incoming.length - ahead;
    rooms.set(to, { height: Math.max(NODE_HEIGHT, ahead * STEP + 8), below: back === 0 ? 0 : FIRST_BELOW + back * STEP });
  }
  for (const { from } of edges.filter((edge) => !isForward(edge, columnOf))) {
    const room = rooms.get(from) ?? { height: NODE_HEIGHT, below: 0 };
    rooms.set(from, { ...room, below: Math.max(room.below, FIRST_BELOW) });
  }
  return rooms;
}

function roomOf(id: string, rooms: ReadonlyMap<string, Room>): Room {
  if (id.startsWith('pass:')) return { height: PASS_HEIGHT, below: 0 };
  return rooms.get(id) ?? { height: NODE_HEIGHT, below: 0 };
}

export function columnHeight(column: readonly string[], rooms: ReadonlyMap<string, Room>): number {
  return column.map((id) => roomOf(id, rooms)).reduce((sum, room) => sum + room.height + room.below + GAP_Y, -GAP_Y);
}

export function placeColumn(column: readonly string[], index: number, height: number, rooms: ReadonlyMap<string, Room>): [string, Place][] {
  let y = (height - columnHeight(column, rooms)) / 2;
  return column.map((id) => {
    const room = roomOf(id, rooms);
    const place = { x: PAD + index * (NODE_WIDTH + GAP_X), y, height: room.height };
    y += room.height + room.below + GAP_Y;
    return [id, place];
  });
}

/** The ground of a label, which hides the lines behind it; its letters are of one width. */
export function labelBox(line: Line & { label: string }): { x: number; y: number; width: number; height: number } {
  const width = line.label.length * LETTER + 4;
  return { x: line.labelX + 2 - (line.labelAnchor === 'end' ? width : width / 2 + 2), y: line.labelY - 10, width, height: 13 };
}

const middle = (place: Place): number => place.y + place.height / 2;

/** Where each line arrives: a height at the left side, or how deep it comes from below; in the order of where they come from. */
export function portsOf(routes: readonly Routed[]): Map<string, number> {
  const ports = new Map<string, number>();
  for (const to of new Set(routes.map((route) => route.edge.to))) {
    const incoming = routes.filter((route) => route.edge.to === to);
    const ahead = incoming.filter((route) => route.isForward).sort((a, b) => before(a) - before(b));
    ahead.forEach((route, index) => ports.set(route.id, middle(route.way.at(-1) as Place) + (index - (ahead.length - 1) / 2) * STEP));
    incoming.filter((route) => !route.isForward).forEach((route, index) => ports.set(route.id, FIRST_BELOW + index * STEP));
  }
  return ports;
}

const before = (route: Routed): number => middle(route.way.at(-2) as Place);

export function drawEdge(route: Routed, port: number): Line {
  return route.isForward ? drawAhead(route.way, port) : drawBack(route.way[0] as Place, route.way.at(-1) as Place, port);
}

function drawAhead(way: readonly Place[], port: number): Line {
  const from = way[0] as Place;
  const to = way.at(-1) as Place;
  let d = `M${from.x + NODE_WIDTH},${middle(from)}`;
  for (let at = 1; at < way.length; at += 1) {
    const last = way[at - 1] as Place;
    const next = way[at] as Place;
    const startX = last.x + NODE_WIDTH;
    const bend = (next.x - startX) / 2;
    const y = next === to ? port : middle(next);
    d += ` C${startX + bend},${middle(last)} ${next.x - bend},${y} ${next.x},${y}`;
    if (next !== to) d += ` H${next.x + NODE_WIDTH}`;
  }
  return { d, labelX: to.x - 10, labelY: port + 4, labelAnchor: 'end' };
}

function drawBack(from: Place, to: Place, depth: number): Line {
  const startX = from.x + NODE_WIDTH * 0.75;
  const endX = to.x + NODE_WIDTH * 0.25;
  const bottom = (place: Place): number => place.y + place.height;
  // A curve comes three quarters of the way to the height of its two handles.
  const handle = ((depth + 6) * 4) / 3;
  const d = `M${startX},${bottom(from)} C${startX},${bottom(from) + handle} ${endX},${bottom(to) + handle} ${endX},${bottom(to)}`;
  return { d, labelX: to.x + NODE_WIDTH / 2, labelY: bottom(to) + depth, labelAnchor: 'middle' };
}
