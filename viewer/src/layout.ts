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
  graph.setGraph({ rankdir: "TB", nodesep: 18, ranksep: 30 });
  graph.setDefaultEdgeLabel(() => ({}));
  for (const box of boxes) graph.setNode(box.id, { width: box.width, height: box.height });
  for (const [from, to] of edges) if (from !== to) graph.setEdge(from, to);
  dagre.layout(graph, { disableOptimalOrderHeuristic: true });
  const lines: [number, number][][] = graph
    .edges()
    .map((edge) => graph.edge(edge).points.map(({ x, y }: { x: number; y: number }): [number, number] => [x, y]));
  const corners = boxes.map((box): [number, number, number, number] => {
    const { x, y } = graph.node(box.id);
    return [x - box.width / 2, y - box.height / 2, x + box.width / 2, y + box.height / 2];
  });
  // Lines may lie further out than all boxes.
  const bounds = [Infinity, Infinity, -Infinity, -Infinity];
  for (const [left, top, right, bottom] of [...corners, ...lines.flat().map(([x, y]) => [x, y, x, y])]) {
    bounds[0] = Math.min(bounds[0], left);
    bounds[1] = Math.min(bounds[1], top);
    bounds[2] = Math.max(bounds[2], right);
    bounds[3] = Math.max(bounds[3], bottom);
  }
  const [dx, dy] = [MARGIN - bounds[0], MARGIN - bounds[1]];
  return {
    width: bounds[2] - bounds[0] + 2 * MARGIN,
    height: bounds[3] - bounds[1] + 2 * MARGIN,
    places: Object.fromEntries(boxes.map((box, number) => [box.id, [corners[number][0] + dx, corners[number][1] + dy]])),
    lines: lines.map((line) => line.map(([x, y]) => [x + dx, y + dy])),
  };
}
