// The layout of one group: what lines join from top to bottom, by dagre, and above it the boxes that none joins, in rows.
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
const APART = 18; // between boxes of a row
const BELOW = 30; // between rows

export function layout(boxes: Box[], edges: [string, string][]): Laid {
  const joined = new Set(edges.filter(([from, to]) => from !== to).flat());
  const single = boxes.filter((box) => !joined.has(box.id));
  const rest = boxes.filter((box) => joined.has(box.id));
  if (!single.length) return layered(boxes, edges);
  const below = rest.length ? layered(rest, edges) : { width: 0, height: 0, places: {}, lines: [] };
  const widest = Math.max(...single.map((box) => box.width));
  // About as many columns as rows, and more where what is below is wider.
  const limit = Math.max(Math.ceil(Math.sqrt(single.length)) * (widest + APART) - APART, below.width - 2 * MARGIN);
  const places: Laid["places"] = {};
  let [x, y, height, width] = [0, 0, 0, 0];
  for (const box of single) {
    if (x && x + box.width > limit) [x, y, height] = [0, y + height + APART, 0];
    places[box.id] = [x + MARGIN, y + MARGIN];
    width = Math.max(width, x + box.width);
    height = Math.max(height, box.height);
    x += box.width + APART;
  }
  const bottom = y + height;
  const whole = Math.max(width + 2 * MARGIN, below.width);
  const down = bottom + (rest.length ? BELOW : 2 * MARGIN), right = (whole - below.width) / 2;
  for (const [id, [left, top]] of Object.entries(below.places)) places[id] = [left + right, top + down];
  const lines = below.lines.map((line) => line.map(([a, b]): [number, number] => [a + right, b + down]));
  return { width: whole, height: below.height + down, places, lines };
}

function layered(boxes: Box[], edges: [string, string][]): Laid {
  const graph = new dagre.graphlib.Graph({ multigraph: false, compound: false });
  graph.setGraph({ rankdir: "TB", nodesep: APART, ranksep: BELOW });
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
