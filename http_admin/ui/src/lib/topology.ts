/**
 * Places exchanges and queues for the topology map: exchanges from left to right along their
 * bindings, queues in the last column. The layout is dagre's. Pure.
 */

import { Graph as DagreGraph, layout as runDagre } from '@dagrejs/dagre';
import type { Binding } from '../api/types';
import { exchangeName } from './format';

export type Kind = 'exchange' | 'queue';

export interface GraphNode {
  id: string;
  kind: Kind;
  name: string;
  label: string;
  /** Upper left corner. */
  x: number;
  y: number;
}

export interface GraphEdge {
  id: string;
  from: string;
  to: string;
  keys: string[];
  label: string;
  /** The line and its arrowhead, as paths of SVG. */
  line: string;
  arrow: string;
  labelBox: Box;
}

export interface Box {
  x: number;
  y: number;
  width: number;
  height: number;
}

export interface Graph {
  nodes: GraphNode[];
  edges: GraphEdge[];
  width: number;
  height: number;
}

interface Point {
  x: number;
  y: number;
}

export const NODE_WIDTH = 176;
export const NODE_HEIGHT = 40;
const MARGIN = 12;
const NODE_GAP = 18;
const EDGE_GAP = 6;
/** Between two columns, in addition to the labels of their edges. */
const COLUMN_GAP = 70;
const ARROW_LENGTH = 7;
const ARROW_WIDTH = 4;
const LABEL_HEIGHT = 14;
/** Labels are in a monospaced font. */
const LETTER_WIDTH = 6.7;
const MAX_LABEL_LETTERS = 22;

export function nodeId(kind: string, name: string): string {
  return `${kind}:${name}`;
}

export function edgeId(
  binding: Pick<Binding, 'source' | 'destination' | 'destination_type'>,
): string {
  return `${nodeId('exchange', binding.source)}>${nodeId(binding.destination_type, binding.destination)}`;
}

/** The bindings that a message published to `start` can pass. */
export function reachable(bindings: readonly Binding[], start: string): Binding[] {
  const seen = new Set<string>();
  const passed: Binding[] = [];
  const pending = [start];
  while (pending.length > 0) {
    const source = pending.pop() as string;
    if (seen.has(source)) continue;
    seen.add(source);
    for (const binding of bindings) {
      if (binding.source !== source) continue;
      passed.push(binding);
      if (binding.destination_type === 'exchange') pending.push(binding.destination);
    }
  }
  return passed;
}

interface JoinedBindings {
  from: string;
  to: string;
  keys: string[];
}

/** Bindings between the same two ends become one edge. */
function joinBindings(bindings: readonly Binding[]): Map<string, JoinedBindings> {
  const edges = new Map<string, JoinedBindings>();
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

/** The routing key, or the arguments of a binding without one. */
export function bindingLabel(binding: Pick<Binding, 'routing_key' | 'arguments'>): string {
  if (binding.routing_key !== '') return binding.routing_key;
  const entries = Object.entries(binding.arguments).filter(([key]) => !key.startsWith('x-'));
  return entries.map(([key, of]) => `${key}=${String(of)}`).join(', ');
}

function edgeLabel(keys: readonly string[]): string {
  const labels = keys.filter((key) => key !== '');
  const first = labels[0];
  if (first === undefined) return '';
  const short =
    first.length > MAX_LABEL_LETTERS ? `${first.slice(0, MAX_LABEL_LETTERS - 1)}…` : first;
  return labels.length > 1 ? `${short} +${labels.length - 1}` : short;
}

/** `extra` names exchanges to show although nothing is bound to them. */
export function layout(bindings: readonly Binding[], extra: readonly string[] = []): Graph {
  const joined = joinBindings(bindings);
  const graph = new DagreGraph();
  graph.setGraph({
    rankdir: 'LR',
    // Moves every node as far right as its edges allow: all queues get into the last column.
    ranker: 'longest-path',
    nodesep: NODE_GAP,
    edgesep: EDGE_GAP,
    ranksep: COLUMN_GAP,
    marginx: MARGIN,
    marginy: MARGIN,
  });
  const addNode = (id: string): void => {
    graph.setNode(id, { width: NODE_WIDTH, height: NODE_HEIGHT });
  };
  for (const name of extra) addNode(nodeId('exchange', name));
  // Dagre places the nodes of a column in reverse: this way the first binding is at the top.
  for (const { from, to, keys } of [...joined.values()].reverse()) {
    addNode(from);
    addNode(to);
    const label = edgeLabel(keys);
    const width = label === '' ? 0 : label.length * LETTER_WIDTH + 4;
    graph.setEdge(from, to, { width, height: label === '' ? 0 : LABEL_HEIGHT, labelpos: 'c' });
  }
  runDagre(graph);
  const { width = 0, height = 0 } = graph.graph();
  return {
    nodes: graph.nodes().map((id) => describeNode(id, graph.node(id))),
    edges: [...joined].map(([id, edge]) => {
      const placed = graph.edge(edge.from, edge.to);
      return {
        id,
        ...edge,
        label: edgeLabel(edge.keys),
        ...drawEdge(graph.node(edge.from), graph.node(edge.to), placed.points, placed),
        labelBox: centredBox(placed.x, placed.y, placed.width, placed.height),
      };
    }),
    width,
    height,
  };
}

function describeNode(id: string, centre: Point): GraphNode {
  const kind: Kind = id.startsWith('queue:') ? 'queue' : 'exchange';
  const name = id.slice(kind.length + 1);
  const { x, y } = centredBox(centre.x, centre.y, NODE_WIDTH, NODE_HEIGHT);
  return { id, kind, name, label: exchangeName(name), x, y };
}

function centredBox(x: number, y: number, width: number, height: number): Box {
  return { x: x - width / 2, y: y - height / 2, width, height };
}

type Drawing = Pick<GraphEdge, 'line' | 'arrow'>;

/** The line is horizontal at every point through which dagre leads it past other nodes. */
function drawEdge(from: Point, to: Point, points: readonly Point[], label: Point): Drawing {
  const direction = Math.sign(to.x - from.x);
  if (direction === 0) return drawLoop(from, label);
  const side = direction * (NODE_WIDTH / 2);
  const end = { x: to.x - side, y: to.y };
  let last: Point = { x: from.x + side, y: from.y };
  let line = `M${last.x},${last.y}`;
  for (const next of [...points.slice(1, -1), end]) {
    const bend = (next.x - last.x) / 2;
    line += ` C${last.x + bend},${last.y} ${next.x - bend},${next.y} ${next.x},${next.y}`;
    last = next;
  }
  const back = end.x - direction * ARROW_LENGTH;
  const arrow = `M${back},${end.y - ARROW_WIDTH} L${end.x},${end.y} L${back},${end.y + ARROW_WIDTH}`;
  return { line, arrow };
}

/** The line of an exchange that is bound to itself is below it and goes down to its label. */
function drawLoop(node: Point, label: Point): Drawing {
  const top = node.y + NODE_HEIGHT / 2;
  const left = node.x - NODE_WIDTH / 4;
  const right = node.x + NODE_WIDTH / 4;
  // A cubic curve goes three quarters of the way to its two handles.
  const handle = top + ((label.y - top) * 4) / 3;
  const base = top + ARROW_LENGTH;
  return {
    line: `M${right},${top} C${right},${handle} ${left},${handle} ${left},${top}`,
    arrow: `M${left - ARROW_WIDTH},${base} L${left},${top} L${left + ARROW_WIDTH},${base}`,
  };
}

export interface HighlightedPath {
  nodes: Set<string>;
  edges: Set<string>;
}

/** The nodes and edges that a routing test passes. */
export function highlightedPath(path: readonly Binding[], start: string): HighlightedPath {
  const nodes = new Set<string>([nodeId('exchange', start)]);
  const edges = new Set<string>();
  for (const binding of path) {
    edges.add(edgeId(binding));
    nodes.add(nodeId('exchange', binding.source));
    nodes.add(nodeId(binding.destination_type, binding.destination));
  }
  return { nodes, edges };
}
