import { describe, expect, it } from 'vitest';
import type { Binding } from '../src/api/types';
import { labelBox } from '../src/lib/graph-lines';
import { edgeId, layout, lit, NODE_WIDTH, nodeId, reachable, type Graph } from '../src/lib/graph';

function boxes(graph: Graph): { left: number; right: number; top: number; bottom: number }[] {
  return graph.edges.filter((edge) => edge.label !== '').map(labelBox)
    .map((box) => ({ left: box.x, right: box.x + box.width, top: box.y, bottom: box.y + box.height }));
}

function bind(source: string, destination: string, type: 'queue' | 'exchange', key = ''): Binding {
  return { source, destination, destination_type: type, routing_key: key, vhost: '/', arguments: {} };
}

const sample = [
  bind('orders', 'audit', 'exchange', '#'),
  bind('orders', 'eu', 'queue', 'order.eu'),
  bind('orders', 'eu', 'queue', 'order.uk'),
  bind('audit', 'all', 'queue'),
  bind('other', 'lonely', 'queue'),
];

describe('routing graph', () => {
  it('follows bindings from one exchange only', () => {
    expect(reachable(sample, 'orders').map((one) => one.destination).sort()).toEqual(['all', 'audit', 'eu', 'eu']);
  });
  it('joins bindings between the same ends and counts the rest in the label', () => {
    const edge = layout(sample).edges.find((one) => one.to === nodeId('queue', 'eu'));
    expect(edge?.keys).toEqual(['order.eu', 'order.uk']);
    expect(edge?.label).toBe('order.eu +1');
  });
  it('keeps exchanges left of what they feed and all queues in one column', () => {
    const graph = layout(sample);
    const x = new Map(graph.nodes.map((node) => [node.id, node.x]));
    for (const edge of graph.edges) expect(x.get(edge.from)).toBeLessThan(x.get(edge.to) as number);
    expect(new Set(graph.nodes.filter((node) => node.kind === 'queue').map((node) => node.x)).size).toBe(1);
  });
  it('never lets nodes overlap or leave the picture', () => {
    const graph = layout(sample);
    for (const a of graph.nodes) {
      expect(a.x + NODE_WIDTH).toBeLessThanOrEqual(graph.width);
      expect(a.y + a.height).toBeLessThanOrEqual(graph.height);
      for (const b of graph.nodes) {
        if (a.y < b.y && a.x === b.x) expect(b.y - a.y).toBeGreaterThanOrEqual(a.height);
      }
    }
  });
  it('keeps labels apart, clear of the nodes and inside the picture', () => {
    const names = ['first', 'second', 'third', 'fourth'];
    const graph = layout([
      ...names.map((name) => bind(name, 'hub', 'queue', `order.created.by-${name}.#`)),
      bind('first', 'hub', 'queue', 'more'), bind('first', 'side', 'queue', 'a.b'), bind('third', 'side', 'queue', 'c'.repeat(30)),
      bind('second', 'fourth', 'exchange', 'on'), bind('fourth', 'second', 'exchange', 'back'), bind('third', 'second', 'exchange', 'on.too'),
      bind('second', 'second', 'exchange', 'self'), bind('fourth', 'third', 'exchange', 'back.too'),
    ]);
    const nodes = graph.nodes.map((one) => ({ left: one.x, right: one.x + NODE_WIDTH, top: one.y, bottom: one.y + one.height }));
    const labels = boxes(graph);
    expect(labels).toHaveLength(11);
    labels.forEach((a, index) => {
      expect(a.left).toBeGreaterThanOrEqual(0);
      expect(a.bottom).toBeLessThanOrEqual(graph.height);
      for (const b of [...labels.slice(index + 1), ...nodes]) {
        expect(a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top).toBe(true);
      }
    });
  });
  it('survives exchanges bound in a circle and an exchange without bindings', () => {
    const circle = layout([bind('a', 'b', 'exchange'), bind('b', 'a', 'exchange'), bind('a', 'a', 'exchange')]);
    expect(circle.nodes).toHaveLength(2);
    expect(circle.edges).toHaveLength(3);
    expect(layout([], ['alone']).nodes.map((node) => node.name)).toEqual(['alone']);
  });
  it('lights the steps of a dry run and where it began', () => {
    const step = { source: 'orders', destination: 'eu', destination_type: 'queue' as const, routing_key: 'order.eu' };
    const found = lit([step], 'orders');
    expect(found.edges).toEqual(new Set([edgeId(step)]));
    expect(found.nodes).toEqual(new Set([nodeId('exchange', 'orders'), nodeId('queue', 'eu')]));
    expect(lit([], 'orders').nodes.size).toBe(1);
  });
});
