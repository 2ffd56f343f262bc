// Which groups are unfolded, and where everything lies: groups are laid out when they are unfolded, from the inside out.
import { type Box, type Laid } from "./layout.js";
import { key, type Child, type Group } from "./model.js";

export const LEAF = { width: 176, height: 34 };
export const FOLDED = { width: 176, height: 44 };
export const TITLE = 22; // height of the title of an unfolded group

export type Layout = (boxes: Box[], edges: [string, string][]) => Promise<Laid>;

/** A rectangle to draw; those of groups come before what is in them. */
export interface Shape {
  child: Child;
  x: number;
  y: number;
  width: number;
  height: number;
  open: boolean;
}

export interface Drawing {
  shapes: Shape[];
  lines: [number, number][][];
  width: number;
  height: number;
}

export class Scene {
  private readonly open = new Set<string>();
  private readonly laid = new Map<string, { what: string; laid: Laid }>();

  constructor(
    readonly root: Group,
    private readonly edges: Map<string, [string, string][]>,
    private readonly layout: Layout,
  ) {}

  isOpen(group: Group): boolean {
    return group.parent === null || this.open.has(group.id);
  }

  toggle(group: Group, open = !this.isOpen(group)): void {
    if (open) this.open.add(group.id);
    else this.open.delete(group.id);
  }

  /** Everything that is visible. `watch` is told how many groups of how many are laid out. */
  async draw(watch: (done: number, total: number) => void = () => {}): Promise<Drawing> {
    const total = this.visible(this.root).length;
    let done = 0;
    const visit = async (group: Group): Promise<Laid> => {
      const inner = new Map<string, Laid>();
      for (const child of group.children) {
        if (typeof child !== "number" && this.isOpen(child)) inner.set(child.id, await visit(child));
      }
      const boxes = group.children.map((child) => this.box(child, inner.get(key(child))));
      const what = boxes.map((box) => `${box.id}:${box.width}x${box.height}`).join();
      const before = this.laid.get(group.id);
      const found = before?.what === what ? before.laid : await this.layout(boxes, this.edges.get(group.id) ?? []);
      this.laid.set(group.id, { what, laid: found });
      watch(++done, total);
      return found;
    };
    const { width, height } = await visit(this.root);
    const shapes: Shape[] = [];
    const lines: [number, number][][] = [];
    this.place(this.root, 0, 0, shapes, lines);
    return { shapes, lines, width, height };
  }

  private visible(group: Group): Group[] {
    const inside = group.children.filter((child): child is Group => typeof child !== "number" && this.isOpen(child));
    return [group, ...inside.flatMap((child) => this.visible(child))];
  }

  private box(child: Child, inner: Laid | undefined): Box {
    if (inner) return { id: key(child), width: Math.max(inner.width, FOLDED.width), height: inner.height + TITLE };
    return { id: key(child), ...(typeof child === "number" ? LEAF : FOLDED) };
  }

  private place(group: Group, x: number, y: number, shapes: Shape[], lines: [number, number][][]): void {
    const found = this.laid.get(group.id)!.laid;
    for (const line of found.lines) lines.push(line.map(([a, b]) => [a + x, b + y]));
    for (const child of group.children) {
      const [left, top] = found.places[key(child)];
      const open = typeof child !== "number" && this.isOpen(child);
      const inner = open ? this.laid.get(key(child))!.laid : undefined;
      const { width, height } = this.box(child, inner);
      shapes.push({ child, x: x + left, y: y + top, width, height, open });
      if (open) this.place(child as Group, x + left + (width - inner!.width) / 2, y + top + TITLE, shapes, lines);
    }
  }
}

