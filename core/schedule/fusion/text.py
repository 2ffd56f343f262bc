"""Clusters and layouts as text: for reading, and for golden files."""

from __future__ import annotations

from luminal.core.schedule.fusion.layout import Layouts


def fusion_text(layouts: Layouts) -> str:
    """The clusters: kind, domain, members with their index, and the order of stored values."""
    lines: list[str] = []
    for cluster in layouts.fusion.clusters:
        extents = ", ".join(f"{a} < {e}" for a, e in zip(cluster.axes, cluster.extents, strict=True))
        row = f" along {', '.join(sorted(v.name for v in cluster.row))}" if cluster.row else ""
        tile = f" in tiles of {cluster.tile.rows} x {cluster.tile.columns}" if cluster.tile else ""
        lines.append(f"{cluster.kind}({extents}){row}{tile}")
        for node, index in cluster.index.items():
            order = layouts.order(node)
            permuted = f" order {list(order)}" if order != tuple(range(node.rank)) else ""
            stored = f" stored{permuted}" if node in layouts.fusion.stored else ""
            placement = layouts.assemblies.placed.get(node)
            if placement is not None:
                first = placement.at(node, (0,) * node.rank)
                stored += f" inside {placement.whole} from [{', '.join(map(str, first))}]"
            lines.append(f"  {node} at [{', '.join(map(str, index))}]{stored}")
    return "\n".join(lines)
