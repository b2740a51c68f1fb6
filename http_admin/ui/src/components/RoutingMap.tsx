/** The routing picture: exchanges left, queues right; a dry run lights the way of one message. */

import { useMemo, useState } from 'preact/hooks';
import { ApiError, apiPath, post } from '../api/client';
import type { Binding, RouteResult } from '../api/types';
import { readTable, type TableRow } from '../lib/arguments';
import { exchangeName, plural } from '../lib/format';
import { layout, lit, NODE_HEIGHT, NODE_WIDTH, type Graph, type GraphEdge, type GraphNode } from '../lib/graph';
import { labelBox } from '../lib/graph-lines';
import { href } from '../lib/route';
import { Form, SelectField, TableEditor, TextField } from './forms';
import { QueueLink } from './links';

const MOST_EDGES = 150;

interface Light {
  nodes: Set<string>;
  edges: Set<string>;
}

function shorten(text: string): string {
  return text.length > 22 ? `${text.slice(0, 21)}…` : text;
}

function edgeState(edge: GraphEdge, light: Light | null): string {
  if (light === null) return '';
  return light.edges.has(edge.id) ? 'lit' : 'dim';
}

function Edge({ edge, state }: { edge: GraphEdge; state: string }) {
  return (
    <path class={`edge edge-${state}`} d={edge.d}>
      <title>{edge.keys.filter(Boolean).join(', ') || 'no key'}</title>
    </path>
  );
}

function EdgeLabel({ edge, state }: { edge: GraphEdge; state: string }) {
  return (
    <>
      <rect class="edge-ground" {...labelBox(edge)} />
      <text class={`edge-label edge-label-${state}`} x={edge.labelX} y={edge.labelY} text-anchor={edge.labelAnchor}>{edge.label}</text>
    </>
  );
}

function Node({ node, vhost, light, start }: { node: GraphNode; vhost: string; light: Light | null; start: string | undefined }) {
  const state = light === null ? '' : light.nodes.has(node.id) ? ' node-lit' : ' node-dim';
  const here = node.kind === 'exchange' && node.name === start ? ' node-start' : '';
  return (
    <a href={href([node.kind === 'queue' ? 'queues' : 'exchanges', vhost, node.name])} aria-label={`${shorten(node.label)}, ${node.kind}`}>
      <g class={`node node-${node.kind}${state}${here}`} transform={`translate(${node.x} ${node.y})`}>
        {node.label !== shorten(node.label) && <title>{node.label}</title>}
        <rect width={NODE_WIDTH} height={node.height} rx={node.kind === 'queue' ? 4 : NODE_HEIGHT / 2} />
        <text x={NODE_WIDTH / 2} y={node.height / 2 + 5} text-anchor="middle">{shorten(node.label)}</text>
      </g>
    </a>
  );
}

function Picture({ graph, vhost, light, start }: { graph: Graph; vhost: string; light: Light | null; start: string | undefined }) {
  const spoken = `Routing picture: ${plural(graph.nodes.length, 'node')}, ${plural(graph.edges.length, 'connection')}`;
  return (
    <div class="map" role="region" aria-label={spoken} tabIndex={0} data-testid="routing-map">
      <svg width={graph.width} height={graph.height} viewBox={`0 0 ${graph.width} ${graph.height}`}>
        {graph.edges.map((edge) => <Edge key={edge.id} edge={edge} state={edgeState(edge, light)} />)}
        {graph.edges.map((edge) => edge.label !== '' && <EdgeLabel key={edge.id} edge={edge} state={edgeState(edge, light)} />)}
        {graph.nodes.map((node) => <Node key={node.id} node={node} vhost={vhost} light={light} start={start} />)}
      </svg>
    </div>
  );
}

function Outcome({ result, vhost }: { result: RouteResult; vhost: string }) {
  const queues = result.queues.map((one) => (typeof one === 'string' ? one : one.name));
  if (queues.length === 0) {
    return <p class="note note-warn" role="status" data-testid="dry-run-result"><span>No queue would get this message: it would be dropped, or returned to a publisher that asks for it.</span></p>;
  }
  return (
    <p class="note note-good" role="status" data-testid="dry-run-result">
      <span>Would reach {plural(queues.length, 'queue')}: {queues.map((name, index) => <>{index > 0 && ', '}<QueueLink vhost={vhost} name={name} plain /></>)}</span>
    </p>
  );
}

interface MapProps {
  vhost: string;
  bindings: readonly Binding[];
  /** The exchange a dry run enters; where none is given, it is chosen from `exchanges`. */
  start?: string;
  exchanges: readonly string[];
}

export function RoutingMap({ vhost, bindings, start, exchanges }: MapProps) {
  const [from, setFrom] = useState(start ?? exchanges.find((name) => bindings.some((one) => one.source === name)) ?? exchanges[0] ?? '');
  const [key, setKey] = useState('');
  const [headers, setHeaders] = useState<TableRow[]>([]);
  const [result, setResult] = useState<RouteResult | null>(null);
  const shown = useMemo(() => bindings.filter((one) => one.source !== '').slice(0, MOST_EDGES), [bindings]);
  const graph = useMemo(() => layout(shown, start === undefined || start === '' ? [] : [start]), [shown, start]);
  const light = result === null ? null : lit(result.path, from);
  const run = async (): Promise<void> => {
    setResult(null);
    try {
      setResult(await post<RouteResult>(apiPath('route', vhost), { exchange: from, routing_key: key, headers: readTable(headers) }));
    } catch (error) {
      if (error instanceof ApiError && error.missing) throw new Error('This broker does not offer the dry run.');
      throw error;
    }
  };
  return (
    <div class="stack">
      <Form inline label="Dry run" action="Show the way" testid="dry-run" onSubmit={run}>
        {start === undefined && <SelectField label="Message enters at" value={from} onInput={(next) => { setFrom(next); setResult(null); }} options={exchanges.map((name) => ({ id: name, label: exchangeName(name) }))} />}
        <TextField label="Routing key" value={key} onInput={setKey} placeholder="order.created.eu" help="Nothing is published: the broker only says where it would go." />
        <details class="field-wide"><summary>Headers</summary><TableEditor label="Headers" rows={headers} onChange={setHeaders} /></details>
      </Form>
      {result !== null && <Outcome result={result} vhost={vhost} />}
      {graph.edges.length > 0 && <Picture graph={graph} vhost={vhost} light={light} start={start} />}
      {bindings.length > shown.length && shown.length === MOST_EDGES && <p class="muted">The picture shows the first {MOST_EDGES} of {bindings.length} bindings.</p>}
    </div>
  );
}
