/**
 * Places exchanges and queues for the routing picture: exchanges in layers from left to right along
 * their bindings, queues in the last layer. Pure; cycles between exchanges are allowed.
 */

import type { Binding, RouteStep } from '../api/types';
import { exchangeName } from './format';
import { columnHeight, drawEdge, GAP_X, isForward, NODE_HEIGHT, NODE_WIDTH, PAD, placeColumn, portsOf, roomsFor, type Line, type Place } from './graph-lines';

export { NODE_HEIGHT, NODE_WIDTH } from './graph-lines';
export type Kind = 'exchange' | 'queue';

export interface GraphNode {
  id: string;
  kind: Kind;
  name: string;
  label: string;
  x: number;
  y: number;
  height: number;
}

export interface GraphEdge extends Line {
  id: string;
  from: string;
  to: string;
  label: string;
  keys: string[];
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  width: number;
  height: number;
}

export function nodeId(kind: Kind, name: string): string {
  return `${kind}:${name}`;
}

export function edgeId(step: Pick<RouteStep, 'source' | 'destination' | 'destination_type'>): string {
  return `${nodeId('exchange', step.source)}>${nodeId(step.destination_type, step.destination)}`;
}

interface Joined {
  from: string;
  to: string;
  keys: string[];
}

/** Everything that a message entering `start` can reach. */
export function reachable(bindings: readonly Binding[], start: string): Binding[] {
  const seen = new Set<string>();
  const found: Binding[] = [];
  const waiting = [start];
  while (waiting.length > 0) {
    const source = waiting.pop() as string;
    if (seen.has(source)) continue;
    seen.add(source);
    for (const binding of bindings) {
      if (binding.source !== source) continue;
      found.push(binding);
      if (binding.destination_type === 'exchange') waiting.push(binding.destination);
    }
  }
  return found;
}

/** Bindings between the same two ends become one edge. */
function joinEdges(bindings: readonly Binding[]): Map<string, Joined> {
  const edges = new Map<string, Joined>();
  for (const binding of bindings) {
    const id = edgeId(binding);
    const edge = edges.get(id) ?? {
      from: nodeId('exchange', binding.source),
      to: nodeId(binding.destination_type, binding.destination),
      keys: [],
    };
    edge.keys.push(bindingLabel(binding));
    edges.set(id, edge);
  }
  return edges;
}

export function bindingLabel(binding: Pick<Binding, 'routing_key' | 'arguments'>): string {
  if (binding.routing_key !== '') return binding.routing_key;
  const names = Object.entries(binding.arguments ?? {}).filter(([key]) => !key.startsWith('x-'));
  return names.map(([key, of]) => `${key}=${String(of)}`).join(', ');
}

function edgeLabel(keys: readonly string[]): string {
  const named = keys.filter((key) => key !== '');
  const first = named[0];
  if (first === undefined) return '';
  const short = first.length > 22 ? `${first.slice(0, 21)}…` : first;
  return named.length > 1 ? `${short} +${named.length - 1}` : short;
}

/** Longest way from a root, ignoring edges that close a cycle. */
export function layers(ids: readonly string[], edges: readonly Joined[]): Map<string, number> {
  const next = new Map<string, string[]>();
  for (const edge of edges) next.set(edge.from, [...(next.get(edge.from) ?? []), edge.to]);
  const onWay = new Set<string>();
  const depth = new Map<string, number>();
  const height = (id: string): number => {
    const known = depth.get(id);
    if (known !== undefined) return known;
    onWay.add(id);
    let tallest = 0;
    for (const to of next.get(id) ?? []) if (!onWay.has(to)) tallest = Math.max(tallest, height(to) + 1);
    onWay.delete(id);
    depth.set(id, tallest);
    return tallest;
  };
  ids.forEach(height);
  const top = Math.max(0, ...depth.values());
  return new Map(ids.map((id) => [id, top - (depth.get(id) ?? 0)]));
}

/** Orders each layer by the mean place of its neighbours, sweeping both ways. */
function order(columns: string[][], edges: readonly Joined[]): void {
  for (let sweep = 0; sweep < 6; sweep += 1) {
    const forward = sweep % 2 === 0;
    const place = new Map<string, number>();
    columns.forEach((column) => column.forEach((id, index) => place.set(id, index / Math.max(1, column.length - 1))));
    const mean = new Map<string, number>();
    for (const column of columns) {
      for (const id of column) {
        const near = edges.flatMap((edge) => {
          const other = forward ? (edge.to === id ? edge.from : null) : edge.from === id ? edge.to : null;
          return other === null ? [] : [place.get(other) ?? 0];
        });
        const own = place.get(id) ?? 0;
        mean.set(id, near.length === 0 ? own : near.reduce((sum, at) => sum + at, 0) / near.length);
      }
    }
    columns.forEach((column) => column.sort((a, b) => (mean.get(a) ?? 0) - (mean.get(b) ?? 0)));
  }
}

/** A stand-in that keeps a lane free where a long edge crosses a column. */
function stops(edgeKey: string, from: number, to: number): string[] {
  return Array.from({ length: Math.max(0, to - from - 1) }, (_, index) => `pass:${index}:${edgeKey}`);
}

export function layout(bindings: readonly Binding[], extra: readonly string[] = []): Graph {
  const joined = joinEdges(bindings);
  const edges = [...joined.values()];
  const ids = [...new Set([...extra.map((name) => nodeId('exchange', name)), ...edges.flatMap((edge) => [edge.from, edge.to])])];
  const layer = layers(ids, edges);
  const last = Math.max(0, ...layer.values());
  const raw: string[][] = Array.from({ length: last + 1 }, () => []);
  for (const id of ids) raw[id.startsWith('queue:') ? last : (layer.get(id) ?? 0)]?.push(id);
  const columns = raw.filter((column) => column.length > 0);
  const columnOf = new Map(columns.flatMap((column, index) => column.map((id) => [id, index] as const)));
  const ways = new Map<string, string[]>();
  for (const [id, edge] of joined) {
    const start = columnOf.get(edge.from) ?? 0;
    const between = stops(id, start, columnOf.get(edge.to) ?? 0);
    between.forEach((stop, index) => columns[start + 1 + index]?.push(stop));
    ways.set(id, [edge.from, ...between, edge.to]);
  }
  const hops = [...ways.values()].flatMap((way) => way.slice(1).map((to, index) => ({ from: way[index] as string, to, keys: [] })));
  order(columns, hops);
  const rooms = roomsFor(edges, columnOf);
  const height = PAD * 2 + Math.max(NODE_HEIGHT, ...columns.map((column) => columnHeight(column, rooms)));
  const places = new Map(columns.flatMap((column, index) => placeColumn(column, index, height, rooms)));
  const routes = [...joined].map(([id, edge]) => ({ id, edge, way: (ways.get(id) ?? []).map((stop) => places.get(stop) as Place), isForward: isForward(edge, columnOf) }));
  const ports = portsOf(routes);
  return {
    nodes: ids.map((id) => describe(id, places.get(id) as Place)),
    edges: routes.map((route) => ({ id: route.id, ...route.edge, label: edgeLabel(route.edge.keys), ...drawEdge(route, ports.get(route.id) ?? 0) })),
    width: PAD * 2 + columns.length * NODE_WIDTH + Math.max(0, columns.length - 1) * GAP_X,
    height,
  };
}

function describe(id: string, place: Place): GraphNode {
  const kind: Kind = id.startsWith('queue:') ? 'queue' : 'exchange';
  const name = id.slice(kind.length + 1);
  return { id, kind, name, label: exchangeName(name), x: place.x, y: place.y, height: place.height };
}

/** The edges and nodes that a dry run lights up. */
export function lit(path: readonly RouteStep[], start: string): { nodes: Set<string>; edges: Set<string> } {
  const nodes = new Set<string>([nodeId('exchange', start)]);
  const edges = new Set<string>();
  for (const step of path) {
    edges.add(edgeId(step));
    nodes.add(nodeId('exchange', step.source));
    nodes.add(nodeId(step.destination_type, step.destination));
  }
  return { nodes, edges };
}
