// The layout of one group, from top to bottom, by dagre.
import dagre from "@dagrejs/dagre";

export interface Box {
  id: string;
  width: number;
  height: number;
}

export interface Laid {
  width: number;
  height: number;
  places: Record<string, [number, number]>; // the upper left corner of each box
  lines: [number, number][][];
}

export const MARGIN = 16;

export function layout(boxes: Box[], edges: [string, string][]): Laid {
  const graph = new dagre.graphlib.Graph({ multigraph: false, compound: false });
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30, marginx: MARGIN, marginy: MARGIN });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) graph.setNode(box.id, { width: box.width, height: box.height });
  for (const [from, to] of edges) if (from !== to) graph.setEdge(from, to);
  dagre.layout(graph);
  const places: Laid["places"] = {};
  for (const box of boxes) {
    const { x, y } = graph.node(box.id);
    places[box.id] = [x - box.width / 2, y - box.height / 2];
  }
  const lines = graph.edges().map((edge) => graph.edge(edge).points.map(({ x, y }: { x: number; y: number }): [number, number] => [x, y]));
  const { width = 0, height = 0 } = graph.graph();
  return { width: Math.max(width, 2 * MARGIN), height: Math.max(height, 2 * MARGIN), places, lines };
}
