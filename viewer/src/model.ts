// What a page shows, as src/luminal/view/collect.py writes it, and the tree of groups that can be folded.

export interface Operator {
  name: string; // its origin, in words: kernels refer to it so
  type: string;
  module: string[]; // the path of groups that it is in
  location: string;
  primitives: string[];
}

export interface Kernel {
  name: string;
  operators: number[];
  schedule: string[];
  code: string;
  launches: number;
  seconds: number | null;
}

export interface Buffer {
  name: string;
  text: string;
  offset: number;
  bytes: number;
  first: number;
  last: number;
}

export interface Step {
  kernels: number[];
  operators: number[];
  seconds: number | null;
}

export interface Model {
  name: string;
  about: string[];
  operators: Operator[];
  edges: [number, number][];
  kernels: Kernel[];
  steps: Step[];
  memory: { bytes: number; buffers: Buffer[] };
  derivations: { option: string; what: string; form: string; operators: number[] }[];
  notes: string[];
}

/** A group, or a leaf, which is an operator. Ids of leaves are numbers of operators; of groups, paths. */
export interface Group {
  id: string;
  title: string;
  children: (Group | number)[];
  operators: Set<number>;
  parent: Group | null;
}

export type Child = Group | number;

/** Groups have this many children at most: no layout of more is of use to a reader, or fast. */
export const MOST = 25;

export const key = (child: Child): string => (typeof child === "number" ? `o${child}` : child.id);

function group(id: string, title: string, parent: Group | null): Group {
  return { id, title, children: [], operators: new Set(), parent };
}

/** The tree by modules. Groups with too many children get groups of those that follow each other. */
export function tree(model: Model): Group {
  const root = group("g", model.name, null);
  const known = new Map<string, Group>([["g", root]]);
  model.operators.forEach((operator, number) => {
    let at = root;
    at.operators.add(number);
    for (const part of operator.module) {
      const id = `${at.id}/${part}`;
      let next = known.get(id);
      if (!next) {
        next = group(id, part, at);
        known.set(id, next);
        at.children.push(next);
      }
      next.operators.add(number);
      at = next;
    }
    at.children.push(number);
  });
  while (root.children.length === 1 && typeof root.children[0] !== "number") {
    root.children = root.children[0].children; // one box would say nothing
    for (const child of root.children) if (typeof child !== "number") child.parent = root;
  }
  const divided = (found: Group): void => {
    divide(found);
    for (const child of found.children) if (typeof child !== "number") divided(child);
  };
  divided(root);
  return shortened(root);
}

function divide(found: Group): void {
  for (let round = 0; found.children.length > MOST; ++round) {
    const size = Math.ceil(found.children.length / Math.ceil(found.children.length / MOST));
    const parts: Group[] = [];
    for (let first = 0; first < found.children.length; first += size) {
      const own = found.children.slice(first, first + size);
      const made = group(`${found.id}/#${round}.${first}`, `${first + 1} to ${first + own.length}`, found);
      made.children = own;
      for (const child of own) {
        if (typeof child === "number") made.operators.add(child);
        else {
          child.parent = made;
          child.operators.forEach((number) => made.operators.add(number));
        }
      }
      parts.push(made);
    }
    found.children = parts;
  }
}

/** Without groups that hold nothing but one group: their titles are joined. */
function shortened(found: Group): Group {
  found.children = found.children.map((child) => {
    if (typeof child === "number") return child;
    let inner = child;
    while (inner.children.length === 1 && typeof inner.children[0] !== "number") {
      const only: Group = inner.children[0];
      only.title = `${inner.title}/${only.title}`;
      only.parent = found;
      inner = only;
    }
    return shortened(inner);
  });
  return found;
}

/** For each operator, the groups around it, the outermost first. */
export function paths(root: Group): Map<number, Group[]> {
  const result = new Map<number, Group[]>();
  const visit = (found: Group, around: Group[]): void => {
    for (const child of found.children) {
      if (typeof child === "number") result.set(child, around);
      else visit(child, [...around, child]);
    }
  };
  visit(root, [root]);
  return result;
}

/** The edges of the model at the level at which their ends part, by group: pairs of keys of its children. */
export function lifted(model: Model, around: Map<number, Group[]>): Map<string, [string, string][]> {
  const result = new Map<string, Map<string, [string, string]>>();
  for (const [from, to] of model.edges) {
    const a = around.get(from), b = around.get(to);
    if (!a || !b) continue;
    let depth = 0;
    while (depth + 1 < a.length && depth + 1 < b.length && a[depth + 1] === b[depth + 1]) ++depth;
    const pair: [string, string] = [a[depth + 1]?.id ?? `o${from}`, b[depth + 1]?.id ?? `o${to}`];
    const own = result.get(a[depth].id) ?? new Map();
    own.set(pair.join(" "), pair);
    result.set(a[depth].id, own);
  }
  return new Map([...result].map(([id, pairs]) => [id, [...pairs.values()]]));
}

/** All groups of a tree, each before those in it. */
export function groups(root: Group): Group[] {
  return [root, ...root.children.flatMap((child) => (typeof child === "number" ? [] : groups(child)))];
}

/** For each operator, the seconds of launches that compute it, alone or with others, and the kernels. */
export function computing(model: Model): { kernels: Set<number>; seconds: number; shared: boolean }[] {
  const result = model.operators.map(() => ({ kernels: new Set<number>(), seconds: 0, shared: false }));
  for (const step of model.steps) {
    for (const number of step.operators) {
      const own = result[number];
      step.kernels.forEach((kernel) => own.kernels.add(kernel));
      own.seconds += step.seconds ?? 0;
      own.shared ||= step.operators.length > 1;
    }
  }
  return result;
}

/** The seconds of the steps that compute any of some operators, each step once. */
export function secondsOf(model: Model): (operators: Iterable<number>) => number {
  const steps: number[][] = model.operators.map(() => []);
  model.steps.forEach((step, number) => step.operators.forEach((operator) => steps[operator].push(number)));
  return (operators) => {
    const own = new Set<number>();
    for (const operator of operators) for (const step of steps[operator]) own.add(step);
    let sum = 0;
    for (const step of own) sum += model.steps[step].seconds ?? 0;
    return sum;
  };
}

export function time(seconds: number): string {
  if (seconds >= 1) return `${seconds.toPrecision(3)} s`;
  if (seconds >= 1e-3) return `${(seconds * 1e3).toPrecision(3)} ms`;
  return `${(seconds * 1e6).toPrecision(3)} µs`;
}

export const counted = (count: number, one: string, many = `${one}s`): string => `${count} ${count === 1 ? one : many}`;

export function size(bytes: number): string {
  for (const [unit, scale] of [["GB", 1e9], ["MB", 1e6], ["kB", 1e3]] as const) {
    if (bytes >= scale) return `${(bytes / scale).toPrecision(3)} ${unit}`;
  }
  return `${bytes} B`;
}

/** What a search for words finds: all words have to occur, in any order. */
export function search(model: Model, words: string): { operators: number[]; kernels: number[] } {
  const wanted = words.toLowerCase().split(/\s+/).filter(Boolean);
  const fits = (text: string): boolean => wanted.every((word) => text.toLowerCase().includes(word));
  const numbers = <T>(items: T[], text: (item: T) => string): number[] =>
    items.flatMap((item, number) => (fits(text(item)) ? [number] : []));
  return {
    operators: numbers(model.operators, (o) => `${o.name} ${o.module.join("/")}`),
    kernels: numbers(model.kernels, (k) => k.name),
  };
}
