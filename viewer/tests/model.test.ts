// Groups, edges between them, their layout, and searches.
import assert from "node:assert/strict";
import { test } from "node:test";
import { layout } from "../src/layout.js";
import { MOST, computing, groups, key, lifted, paths, search, secondsOf, size, time, tree, type Model } from "../src/model.js";
import { LEAF, Scene } from "../src/scene.js";

function model(modules: string[][], edges: [number, number][]): Model {
  const operators = modules.map((module, number) => ({
    name: `Add 'a${number}' at m.py:${number}`, type: "Add", module, location: `m.py:${number}`, primitives: [],
  }));
  return { name: "m", about: [], operators, edges, kernels: [], steps: [], memory: { bytes: 0, buffers: [] },
           derivations: [], notes: [] };
}

const three = model([["a", "b"], ["a", "b"], ["a", "c"], []], [[0, 1], [1, 2], [2, 3], [0, 2]]);

test("groups follow the modules, and edges lie where their ends part", () => {
  const root = tree(three);
  assert.deepEqual(groups(root).map((group) => group.title), ["m", "a", "b", "c"]);
  const edges = lifted(three, paths(root));
  assert.deepEqual(edges.get("g/a/b"), [["o0", "o1"]]);
  assert.deepEqual(edges.get("g/a"), [["g/a/b", "g/a/c"]]); // two edges, one line
  assert.deepEqual(edges.get("g"), [["g/a", "o3"]]);
});

test("a chain of groups with one child is one group", () => {
  const root = tree(model([["x", "y", "z"], ["x", "y", "z"], []], []));
  assert.deepEqual(groups(root).map((group) => group.title), ["m", "x/y/z"]);
});

test("groups without modules are divided, and hold every operator once", () => {
  const count = 5000;
  const flat = model(Array.from({ length: count }, () => []), Array.from({ length: count - 1 }, (_, k) => [k, k + 1]));
  const root = tree(flat);
  assert.ok(groups(root).every((group) => group.children.length <= MOST));
  assert.equal(paths(root).size, count);
  assert.equal(new Set(groups(root).map((group) => group.id)).size, groups(root).length);
  assert.ok(groups(root).length <= (2 * count) / MOST);
  assert.equal(root.operators.size, count);
  for (const group of groups(root)) for (const child of group.children) {
    if (typeof child !== "number") assert.equal(child.parent, group);
  }
});

test("what is unfolded contains what is in it, without overlaps, and only what changed is laid out again", async () => {
  const root = tree(three);
  let asked = 0;
  const scene = new Scene(root, lifted(three, paths(root)), async (boxes, edges) => (++asked, layout(boxes, edges)));
  const folded = await scene.draw();
  assert.deepEqual(folded.shapes.map((shape) => key(shape.child)), ["g/a", "o3"]);
  assert.equal(asked, 1);
  groups(root).forEach((group) => scene.toggle(group, true));
  const open = await scene.draw();
  assert.equal(open.shapes.length, 7);
  assert.equal(asked, 5);
  await scene.draw();
  assert.equal(asked, 5);
  const by = new Map(open.shapes.map((shape) => [key(shape.child), shape]));
  const inside = (small: string, large: string): void => {
    const a = by.get(small)!, b = by.get(large)!;
    assert.ok(a.x >= b.x && a.y >= b.y && a.x + a.width <= b.x + b.width && a.y + a.height <= b.y + b.height);
  };
  for (const [small, large] of [["o0", "g/a/b"], ["o1", "g/a/b"], ["o2", "g/a/c"], ["g/a/b", "g/a"]]) inside(small, large);
  const [first, second] = [by.get("o0")!, by.get("o1")!];
  assert.ok(first.y + LEAF.height <= second.y);
});

test("one group alone at the top is shown unfolded", () => {
  const root = tree(model([["e", "layers", "0"], ["e", "layers", "1"], ["e", "layers", "1"]], []));
  assert.deepEqual(root.children.map((child) => (child as { title: string }).title), ["0", "1"]);
});

test("a group takes the time of its steps, each once", () => {
  const steps = [{ kernels: [0], operators: [0, 1], seconds: 2 }, { kernels: [1], operators: [1], seconds: 1 }];
  const spent = secondsOf({ ...three, steps });
  assert.deepEqual([spent([0, 1]), spent([0]), spent([1]), spent([2])], [3, 2, 3, 0]);
});

test("lines and boxes lie within the group that they are in", () => {
  const boxes = Array.from({ length: 12 }, (_, k) => ({ id: `${k}`, width: 100, height: 30 }));
  const edges = boxes.slice(1).flatMap((box, k): [string, string][] => [[`${k}`, box.id], ["0", box.id]]);
  const { width, height, lines } = layout(boxes, edges);
  assert.ok(lines.flat().every(([x, y]) => x >= 0 && y >= 0 && x <= width && y <= height));
});

test("boxes that nothing joins lie in rows above the others, which nobody has to zoom out for", () => {
  const boxes = Array.from({ length: 11 }, (_, k) => ({ id: `o${k}`, ...LEAF }));
  const { width, height, places, lines } = layout(boxes, [["o9", "o10"]]);
  assert.ok(width < 4 * LEAF.width && height < 8 * LEAF.width && lines.length === 1);
  const at = boxes.map(({ id }) => places[id]);
  for (const [number, [x, y]] of at.entries()) {
    assert.ok(x >= 0 && y >= 0 && x + LEAF.width <= width && y + LEAF.height <= height);
    for (const [a, b] of at.slice(0, number)) assert.ok(Math.abs(x - a) >= LEAF.width || Math.abs(y - b) >= LEAF.height);
  }
  assert.ok(at.slice(0, 9).every(([, y]) => y < at[9][1]) && at[9][1] < at[10][1]);
  const alone = layout(boxes, []);
  assert.ok(alone.width < 5 * LEAF.width && alone.height < 4 * 2 * LEAF.height);
});

test("time and kernels of operators", () => {
  const steps = [{ kernels: [0], operators: [0, 1], seconds: 2e-3 }, { kernels: [1], operators: [1], seconds: 1e-3 }];
  const [first, second, third] = computing({ ...three, steps });
  assert.deepEqual([first.seconds, [...first.kernels], first.shared], [2e-3, [0], true]);
  assert.ok(Math.abs(second.seconds - 3e-3) < 1e-12 && [...second.kernels].join() === "0,1");
  assert.equal(third.kernels.size, 0);
});

test("searches find all words in any order", () => {
  assert.deepEqual(search(three, "A2 add").operators, [2]);
  assert.deepEqual(search(three, "a/b").operators, [0, 1]);
  assert.deepEqual(search(three, "nothing").operators, []);
});

test("times and sizes are written with three digits", () => {
  assert.deepEqual([time(2), time(1.234e-3), time(5e-7)], ["2.00 s", "1.23 ms", "0.500 µs"]);
  assert.deepEqual([size(3), size(1500), size(2e9)], ["3 B", "1.50 kB", "2.00 GB"]);
});
