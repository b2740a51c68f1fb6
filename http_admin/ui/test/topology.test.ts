import { describe, expect, it } from 'vitest';
import type { Binding } from '../src/api/types';
import {
  edgeId,
  type Graph,
  highlightedPath,
  layout,
  NODE_HEIGHT,
  NODE_WIDTH,
  nodeId,
  reachable,
} from '../src/lib/topology';

function boxes(graph: Graph): { left: number; right: number; top: number; bottom: number }[] {
  return graph.edges
    .filter((edge) => edge.label !== '')
    .map((edge) => edge.labelBox)
    .map((box) => ({
      left: box.x,
      right: box.x + box.width,
      top: box.y,
      bottom: box.y + box.height,
    }));
}

function bind(source: string, destination: string, type: 'queue' | 'exchange', key = ''): Binding {
  return {
    source,
    destination,
    destination_type: type,
    routing_key: key,
    vhost: '/',
    arguments: {},
    properties_key: '~',
  };
}

const sample = [
  bind('orders', 'audit', 'exchange', '#'),
  bind('orders', 'eu', 'queue', 'order.eu'),
  bind('orders', 'eu', 'queue', 'order.uk'),
  bind('audit', 'all', 'queue'),
  bind('other', 'lonely', 'queue'),
];

describe('topology', () => {
  it('follows bindings from one exchange only', () => {
    expect(
      reachable(sample, 'orders')
        .map((one) => one.destination)
        .sort(),
    ).toEqual(['all', 'audit', 'eu', 'eu']);
  });
  it('joins bindings between the same ends and counts them in the label', () => {
    const edge = layout(sample).edges.find((one) => one.to === nodeId('queue', 'eu'));
    expect(edge?.keys).toEqual(['order.eu', 'order.uk']);
    expect(edge?.label).toBe('order.eu +1');
  });
  it('keeps exchanges left of what they feed and all queues in one column', () => {
    const graph = layout(sample);
    const x = new Map(graph.nodes.map((node) => [node.id, node.x]));
    for (const edge of graph.edges) expect(x.get(edge.from)).toBeLessThan(x.get(edge.to) as number);
    expect(
      new Set(graph.nodes.filter((node) => node.kind === 'queue').map((node) => node.x)).size,
    ).toBe(1);
  });
  it('keeps nodes apart and inside the picture', () => {
    const graph = layout(sample);
    for (const a of graph.nodes) {
      expect(a.x + NODE_WIDTH).toBeLessThanOrEqual(graph.width);
      expect(a.y + NODE_HEIGHT).toBeLessThanOrEqual(graph.height);
      for (const b of graph.nodes) {
        if (a.y < b.y && a.x === b.x) expect(b.y - a.y).toBeGreaterThanOrEqual(NODE_HEIGHT);
      }
    }
  });
  it('keeps labels apart, clear of the nodes and inside the picture', () => {
    const names = ['first', 'second', 'third', 'fourth'];
    const graph = layout([
      ...names.map((name) => bind(name, 'hub', 'queue', `order.created.by-${name}.#`)),
      bind('first', 'hub', 'queue', 'more'),
      bind('first', 'side', 'queue', 'a.b'),
      bind('third', 'side', 'queue', 'c'.repeat(30)),
      bind('second', 'fourth', 'exchange', 'on'),
      bind('fourth', 'second', 'exchange', 'back'),
      bind('third', 'second', 'exchange', 'on.too'),
      bind('second', 'second', 'exchange', 'self'),
      bind('fourth', 'third', 'exchange', 'back.too'),
    ]);
    const nodes = graph.nodes.map((one) => ({
      left: one.x,
      right: one.x + NODE_WIDTH,
      top: one.y,
      bottom: one.y + NODE_HEIGHT,
    }));
    const labels = boxes(graph);
    expect(labels).toHaveLength(11);
    labels.forEach((a, index) => {
      expect(a.left).toBeGreaterThanOrEqual(0);
      expect(a.bottom).toBeLessThanOrEqual(graph.height);
      for (const b of [...labels.slice(index + 1), ...nodes]) {
        expect(
          a.right <= b.left || b.right <= a.left || a.bottom <= b.top || b.bottom <= a.top,
        ).toBe(true);
      }
    });
  });
  it('accepts exchanges bound in a circle and an exchange without bindings', () => {
    const circle = layout([
      bind('a', 'b', 'exchange'),
      bind('b', 'a', 'exchange'),
      bind('a', 'a', 'exchange'),
    ]);
    expect(circle.nodes).toHaveLength(2);
    expect(circle.edges).toHaveLength(3);
    expect(layout([], ['alone']).nodes.map((node) => node.name)).toEqual(['alone']);
  });
  it('highlights the bindings of a routing test and its start', () => {
    const binding = bind('orders', 'eu', 'queue', 'order.eu');
    const path = highlightedPath([binding], 'orders');
    expect(path.edges).toEqual(new Set([edgeId(binding)]));
    expect(path.nodes).toEqual(new Set([nodeId('exchange', 'orders'), nodeId('queue', 'eu')]));
    expect(highlightedPath([], 'orders').nodes.size).toBe(1);
  });
});
