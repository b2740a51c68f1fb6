/** The topology map: exchanges left, queues right. A routing test highlights the path of a message. */

import { useMemo, useState } from 'preact/hooks';
import { ApiError, apiPath, post } from '../api/client';
import type { Binding, RouteResult } from '../api/types';
import { readTable, type TableRow } from '../lib/argument-values';
import { exchangeName, plural } from '../lib/format';
import { href } from '../lib/route';
import {
  type Graph,
  type GraphEdge,
  type GraphNode,
  type HighlightedPath,
  highlightedPath,
  layout,
  NODE_HEIGHT,
  NODE_WIDTH,
} from '../lib/topology';
import { Form, SelectField, TableEditor, TextField } from './forms';
import { QueueLink } from './links';

const MAX_EDGES = 150;
const MAX_NAME_LETTERS = 22;

function shorten(text: string): string {
  return text.length > MAX_NAME_LETTERS ? `${text.slice(0, MAX_NAME_LETTERS - 1)}…` : text;
}

function edgeState(edge: GraphEdge, path: HighlightedPath | null): string {
  if (path === null) return '';
  return path.edges.has(edge.id) ? 'lit' : 'dim';
}

function Edge({ edge, state }: { edge: GraphEdge; state: string }) {
  return (
    <g class={`edge edge-${state}`}>
      <title>{edge.keys.filter(Boolean).join(', ') || 'no routing key'}</title>
      <path d={edge.line} />
      <path class="edge-arrow" d={edge.arrow} />
    </g>
  );
}

function EdgeLabel({ edge, state }: { edge: GraphEdge; state: string }) {
  const { x, y, width, height } = edge.labelBox;
  return (
    <>
      <rect class="edge-ground" x={x} y={y} width={width} height={height} />
      <text
        class={`edge-label edge-label-${state}`}
        x={x + width / 2}
        y={y + height - 3}
        text-anchor="middle"
      >
        {edge.label}
      </text>
    </>
  );
}

function Node({
  node,
  vhost,
  path,
  start,
}: {
  node: GraphNode;
  vhost: string;
  path: HighlightedPath | null;
  start: string | undefined;
}) {
  const state = path === null ? '' : path.nodes.has(node.id) ? ' node-lit' : ' node-dim';
  const isStart = node.kind === 'exchange' && node.name === start ? ' node-start' : '';
  return (
    <a
      href={href([node.kind === 'queue' ? 'queues' : 'exchanges', vhost, node.name])}
      aria-label={`${shorten(node.label)}, ${node.kind}`}
    >
      <g
        class={`node node-${node.kind}${state}${isStart}`}
        transform={`translate(${node.x} ${node.y})`}
      >
        {node.label !== shorten(node.label) && <title>{node.label}</title>}
        <rect
          width={NODE_WIDTH}
          height={NODE_HEIGHT}
          rx={node.kind === 'queue' ? 4 : NODE_HEIGHT / 2}
        />
        <text x={NODE_WIDTH / 2} y={NODE_HEIGHT / 2 + 5} text-anchor="middle">
          {shorten(node.label)}
        </text>
      </g>
    </a>
  );
}

function MapImage({
  graph,
  vhost,
  path,
  start,
}: {
  graph: Graph;
  vhost: string;
  path: HighlightedPath | null;
  start: string | undefined;
}) {
  const label = `Topology: ${plural(graph.nodes.length, 'node')}, ${plural(graph.edges.length, 'connection')}`;
  return (
    // biome-ignore lint/a11y/noNoninteractiveTabindex: an element that scrolls must be reachable by keyboard.
    <section class="map" aria-label={label} tabIndex={0} data-testid="topology-map">
      {/* biome-ignore lint/a11y/noSvgWithoutTitle: the section has a label; a title would be a tooltip over all nodes. */}
      <svg width={graph.width} height={graph.height} viewBox={`0 0 ${graph.width} ${graph.height}`}>
        {graph.edges.map((edge) => (
          <Edge key={edge.id} edge={edge} state={edgeState(edge, path)} />
        ))}
        {graph.edges.map(
          (edge) =>
            edge.label !== '' && (
              <EdgeLabel key={edge.id} edge={edge} state={edgeState(edge, path)} />
            ),
        )}
        {graph.nodes.map((node) => (
          <Node key={node.id} node={node} vhost={vhost} path={path} start={start} />
        ))}
      </svg>
    </section>
  );
}

function TestResult({ result, vhost }: { result: RouteResult; vhost: string }) {
  if (result.queues.length === 0) {
    return (
      <p class="note note-warn" role="status" data-testid="routing-test-result">
        <span>
          No queue would get this message. It would be dropped, or returned to the publisher if it
          is mandatory.
        </span>
      </p>
    );
  }
  return (
    <p class="note note-good" role="status" data-testid="routing-test-result">
      <span>
        Would reach {plural(result.queues.length, 'queue')}:{' '}
        {result.queues.map((name, index) => (
          <>
            {index > 0 && ', '}
            <QueueLink vhost={vhost} name={name} plain />
          </>
        ))}
      </span>
    </p>
  );
}

interface TopologyMapProps {
  vhost: string;
  bindings: readonly Binding[];
  /** The exchange at which routing tests start. Without it the user chooses from `exchanges`. */
  start?: string;
  exchanges: readonly string[];
}

export function TopologyMap({ vhost, bindings, start, exchanges }: TopologyMapProps) {
  const [from, setFrom] = useState(
    start ??
      exchanges.find((name) => bindings.some((binding) => binding.source === name)) ??
      exchanges[0] ??
      '',
  );
  const [key, setKey] = useState('');
  const [headers, setHeaders] = useState<TableRow[]>([]);
  const [result, setResult] = useState<RouteResult | null>(null);
  const shown = useMemo(
    () => bindings.filter((binding) => binding.source !== '').slice(0, MAX_EDGES),
    [bindings],
  );
  const graph = useMemo(
    () => layout(shown, start === undefined || start === '' ? [] : [start]),
    [shown, start],
  );
  const path = result === null ? null : highlightedPath(result.path, from);
  const test = async (): Promise<void> => {
    setResult(null);
    try {
      setResult(
        await post<RouteResult>(apiPath('route', vhost), {
          exchange: from,
          routing_key: key,
          headers: readTable(headers),
        }),
      );
    } catch (error) {
      if (error instanceof ApiError && error.missing)
        throw new Error('This broker does not support routing tests.');
      throw error;
    }
  };
  return (
    <div class="stack">
      <Form inline label="Routing test" action="Test routing" testid="routing-test" onSubmit={test}>
        {start === undefined && (
          <SelectField
            label="Publish to"
            value={from}
            onInput={(next) => {
              setFrom(next);
              setResult(null);
            }}
            options={exchanges.map((name) => ({ id: name, label: exchangeName(name) }))}
          />
        )}
        <TextField
          label="Routing key"
          value={key}
          onInput={setKey}
          placeholder="order.created.eu"
          help="A test: no message is published."
        />
        <details class="field-wide">
          <summary>Headers</summary>
          <TableEditor label="Headers" rows={headers} onChange={setHeaders} />
        </details>
      </Form>
      {result !== null && <TestResult result={result} vhost={vhost} />}
      {graph.edges.length > 0 && <MapImage graph={graph} vhost={vhost} path={path} start={start} />}
      {bindings.length > shown.length && shown.length === MAX_EDGES && (
        <p class="muted">
          Only the first {MAX_EDGES} of {bindings.length} bindings are shown.
        </p>
      )}
    </div>
  );
}
