"""The page's style: one sheet for light, dark, phone and paper; nothing is fetched from elsewhere."""

from __future__ import annotations

_LIGHT = """
  --paper: #ffffff; --raised: #f5f7f9; --ink: #1b2127; --quiet: #55606b; --rule: #d5dbe1; --link: #0b5cad;
  --series-0: #c44e00; --series-1: #0b6bb0; --series-2: #00775a; --target: #7a1f6a;
  --series-3: #7b3fb5; --series-4: #8a6100; --series-5: #b0246a; --series-6: #3f5566; --muted: #9aa5b0;
  --seq-from: #dcebf7; --seq-to: #0a4a83; --on-seq: #16202a; --on-seq-mid: #10161c; --on-seq-high: #ffffff;
  --deferred: #a9b2bb; --on-deferred: #16202a; --empty: #e0a100; --low: #c44e00; --high: #7fa8cf;
  --reason-support: #8a97a5; --reason-empty: #e0a100; --reason-full: #0b6bb0;
  --note: #fff6e0; --note-edge: #c98a00; --good: #e9f6f1; --good-edge: #00775a;
"""

_DARK = """
  --paper: #14181d; --raised: #1d232a; --ink: #e8ecf0; --quiet: #a5b0bb; --rule: #36404a; --link: #7fbdf5;
  --series-0: #ff9a4d; --series-1: #62b5f5; --series-2: #3ed6a8; --target: #f0a3e0;
  --series-3: #c79bff; --series-4: #e5c158; --series-5: #ff8ab5; --series-6: #b4c3d0; --muted: #6b7783;
  --seq-from: #22405c; --seq-to: #b9dcff; --on-seq: #f2f6fa; --on-seq-mid: #10161c; --on-seq-high: #10161c;
  --deferred: #5c6771; --on-deferred: #f2f6fa; --empty: #f2c14e; --low: #ff9a4d; --high: #4f7da6;
  --reason-support: #8e9aa6; --reason-empty: #f2c14e; --reason-full: #62b5f5;
  --note: #33290f; --note-edge: #f2c14e; --good: #10302a; --good-edge: #3ed6a8;
"""

_RULES = """
*, *::before, *::after { box-sizing: border-box; }
html { color-scheme: light dark; -webkit-text-size-adjust: 100%; text-size-adjust: 100%; }
body { margin: 0; background: var(--paper); color: var(--ink); overflow-wrap: break-word;
  font: 16px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans", Arial,
    sans-serif; }
main, header, footer, nav { max-width: 68rem; margin: 0 auto; padding: 0 1.25rem; }
header { padding-top: 2rem; }
h1 { font-size: 1.9rem; line-height: 1.2; margin: 0 0 .4rem; }
h2 { font-size: 1.45rem; line-height: 1.25; margin: 3rem 0 .6rem; padding-top: 1rem;
  border-top: 2px solid var(--rule); }
h3 { font-size: 1.12rem; line-height: 1.3; margin: 2rem 0 .4rem; }
h4 { font-size: 1rem; margin: 1rem 0 .3rem; }
p, li { max-width: 48rem; }
p { margin: .5rem 0; }
ul { padding-left: 1.2rem; margin: .5rem 0; }
li { margin: .3rem 0; }
a { color: var(--link); }
code { font-family: ui-monospace, "SFMono-Regular", Menlo, Consolas, "DejaVu Sans Mono", monospace;
  font-size: .88em;
  overflow-wrap: anywhere; }
.quiet { color: var(--quiet); font-size: .92rem; }
.device { display: inline-block; margin: .3rem 0; padding: .3rem .8rem; border: 1px solid var(--note-edge);
  border-left-width: 5px; background: var(--note); font-weight: 600; }
nav ul { list-style: none; padding: 0; display: flex; flex-wrap: wrap; gap: .3rem 1.1rem; margin: 1rem 0 0; }
nav li { margin: 0; }
.lead { font-size: 1.08rem; }
.badge { display: inline-block; font-size: .8rem; font-weight: 600; padding: .1rem .55rem;
  border-radius: 1rem;
  border: 1px solid var(--note-edge); background: var(--note); vertical-align: middle; }
.badge.same { border-color: var(--good-edge); background: var(--good); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(19rem, 100%), 1fr)); gap: 1rem;
  margin: 1rem 0; }
.card { background: var(--raised); border: 1px solid var(--rule); border-radius: .5rem;
  padding: .9rem 1.1rem; min-width: 0; }
.card h3 { margin: 0 0 .3rem; font-size: 1rem; }
.card ul { padding-left: 1rem; margin: .3rem 0; }
.card li { margin: .35rem 0; font-size: .93rem; }
figure { margin: 1.2rem 0; min-width: 0; }
figcaption { max-width: 48rem; margin-bottom: .6rem; }
figcaption strong { display: block; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(26rem, 100%), 1fr));
  gap: 0 2.5rem; }
.plot { min-width: 0; }
.plot.dots { padding: 0 4.2rem 0 .5rem; }
.plot.bars { padding: 0 1rem 0 .5rem; }
.plot.histogram { padding: 0 .6rem 0 2.8rem; max-width: 40rem; }
.plot.plane { padding: 0 1rem 0 3rem; max-width: 40rem; }
.plot.lanes { padding: 0 4.2rem 0 .5rem; }
svg { display: block; overflow: visible; }
svg text { fill: var(--ink); font-size: 12.5px; font-family: inherit; }
svg text:not(.inside) { paint-order: stroke; stroke: var(--paper); stroke-width: 4px;
  stroke-linejoin: round; }
svg text.brief { display: none; }
svg text.tick, svg text.note { fill: var(--quiet); font-size: 11.5px; }
svg text.value { font-size: 11.5px; font-variant-numeric: tabular-nums; }
svg text.marked { font-weight: 700; }
svg text.inside { font-size: 11.5px; }
svg text.reference-label { fill: var(--target); font-size: 11.5px; }
.grid { stroke: var(--rule); stroke-width: 1; }
.reference { stroke: var(--target); stroke-width: 1.5; stroke-dasharray: 5 3; }
.level { stroke: var(--low); stroke-width: 1.5; }
.interval { stroke-width: 2.5; opacity: .75; }
.marker path { stroke: var(--paper); stroke-width: 1; }
line.series-0 { stroke: var(--series-0); } .marker.series-0 path, .fill.series-0 { fill: var(--series-0); }
line.series-1 { stroke: var(--series-1); } .marker.series-1 path, .fill.series-1 { fill: var(--series-1); }
line.series-2 { stroke: var(--series-2); } .marker.series-2 path, .fill.series-2 { fill: var(--series-2); }
line.series-3 { stroke: var(--series-3); } .marker.series-3 path, .fill.series-3 { fill: var(--series-3); }
line.series-4 { stroke: var(--series-4); } .marker.series-4 path, .fill.series-4 { fill: var(--series-4); }
line.series-5 { stroke: var(--series-5); } .marker.series-5 path, .fill.series-5 { fill: var(--series-5); }
line.series-6 { stroke: var(--series-6); } .marker.series-6 path, .fill.series-6 { fill: var(--series-6); }
line.series-7 { stroke: var(--muted); } .marker.series-7 path, .fill.series-7 { fill: var(--muted); }
.fill.small { opacity: .55; }
.segment { stroke: var(--paper); stroke-width: 1; }
.sequence { fill: color-mix(in oklab, var(--seq-from), var(--seq-to) var(--step)); }
.deferred { fill: var(--deferred); } .empty { fill: var(--empty); } .low { fill: var(--low); }
  .high { fill: var(--high); }
.reason-1 { fill: var(--reason-support); } .reason-2 { fill: var(--reason-empty); }
  .reason-3 { fill: var(--reason-full); }
svg text.on-sequence { fill: var(--on-seq); } svg text.on-sequence-high { fill: var(--on-seq-high); }
svg text.on-sequence-mid { fill: var(--on-seq-mid); }
svg text.on-deferred { fill: var(--on-deferred); }
  svg text.on-empty, svg text.on-reason-1, svg text.on-reason-2,
svg text.on-reason-3 { fill: #10161c; }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: .15rem 1.1rem; padding: 0;
  margin: .3rem 0 .6rem; font-size: .88rem; }
.swatch { flex: none; }
.legend li { display: flex; align-items: center; gap: .4rem; margin: 0; }
.table { margin: .8rem 0; }
.scroller { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: .9rem; font-variant-numeric: tabular-nums; }
.caption { max-width: none; color: var(--quiet); font-size: .88rem; margin: 0 0 .35rem; }
th, td { text-align: left; padding: .35rem .6rem; border-bottom: 1px solid var(--rule); vertical-align: top; }
thead th { color: var(--quiet); font-weight: 600; border-bottom-width: 2px; vertical-align: bottom; }
tbody th { font-weight: 600; }
.number { text-align: right; }
thead .number { text-align: right; }
.table.costs tbody tr:nth-last-child(4) > * { border-top: 2px solid var(--rule); }
.clearly { font-weight: 700; color: var(--low); text-decoration: underline; text-underline-offset: 3px; }
.change { white-space: nowrap; }
.sub { display: block; color: var(--quiet); font-size: .84em; font-weight: 400; white-space: nowrap; }
.protected { white-space: nowrap; font-size: .8em; font-weight: 600; color: var(--target); }
details { margin: .5rem 0 1rem; }
summary { cursor: pointer; color: var(--link); font-size: .92rem; padding: .25rem 0; }
dl { display: grid; grid-template-columns: minmax(9rem, max-content) 1fr; gap: .25rem 1rem; margin: .8rem 0; }
dt { font-weight: 600; } dd { margin: 0; min-width: 0; }
footer { margin-top: 3rem; padding-top: 1rem; padding-bottom: 3rem; border-top: 2px solid var(--rule);
  color: var(--quiet); font-size: .9rem; }
:focus-visible { outline: 2px solid var(--link); outline-offset: 2px; }
"""

_PHONE = """
  body { font-size: 15px; }
  main, header, footer, nav { padding-left: .9rem; padding-right: .9rem; }
  h1 { font-size: 1.5rem; } h2 { font-size: 1.25rem; }
  .table.stack thead { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
  .table.stack table, .table.stack tbody, .table.stack tr, .table.stack td, .table.stack th { display: block; }
  .table.stack tr { border: 1px solid var(--rule); border-radius: .4rem; padding: .4rem .7rem;
    margin: .5rem 0; background: var(--raised); }
  .table.stack th, .table.stack td { border: 0; padding: .15rem 0; }
  .table.stack td { display: flex; justify-content: space-between; gap: 1rem; text-align: right; }
  .table.stack td::before { content: attr(data-heading); color: var(--quiet); text-align: left; flex: none;
    max-width: 45%; }
  .table.stack td > .cell { min-width: 0; }
  .table.stack .sub { display: inline; }
  .table.matrix table, .table.matrix thead, .table.matrix tbody { display: block; }
  .table.matrix tr { display: flex; flex-wrap: wrap; border-bottom: 1px solid var(--rule); padding: .2rem 0; }
  .table.matrix th, .table.matrix td { border: 0; padding: .1rem .15rem; }
  .table.matrix tr > :first-child { flex: 0 0 100%; }
  .table.matrix tr > :not(:first-child) { flex: 1 1 2rem; min-width: 0; font-size: .8rem; }
  .table.matrix .sub { white-space: normal; } .table.matrix tbody th .sub { display: inline; }
  .table.matrix thead tr > :not(:first-child) { font-size: .64rem; padding: 0 .1rem; }
  .table.costs tbody tr:nth-last-child(4) { border-top: 2px solid var(--rule); }
  .table.costs tbody tr:nth-last-child(4) > * { border-top: 0; }
  svg text.whole { display: none; } svg text.brief { display: inline; }
  .plot.dots { padding-right: 3.6rem; }
  dl { grid-template-columns: 1fr; gap: 0; } dd { margin-bottom: .5rem; }
"""

_PRINT = """
  @page { size: A4; margin: 15mm 14mm; }
  html { color-scheme: light; }
  body { font-size: 10pt; }
  main, header, footer, nav { max-width: none; padding: 0; }
  nav, summary, details:not(.keep) { display: none; }
  a { color: inherit; text-decoration: none; }
  h2 { margin-top: 1.5rem; }
  section.cohort { break-before: page; }
  section.cohort > h2 { border-top: 0; margin-top: 0; padding-top: 0; }
  .cards { grid-template-columns: repeat(3, 1fr); gap: .6rem; }
  .card { padding: .5rem .7rem; } .card li { font-size: 8.5pt; }
  .pair { grid-template-columns: 1fr 1fr; gap: 0 1.2rem; }
  figure { margin: .8rem 0; }
  h2, h3, h4, figcaption, .caption { break-after: avoid; }
  .plot, .card, tr, .legend, dl, figcaption, p { break-inside: avoid; }
  .legend { break-after: avoid; }
  .pair svg text.whole { display: none; } .pair svg text.brief { display: inline; }
  .table.matrix tbody th { width: 34%; }
  details::details-content { content-visibility: visible; height: auto; }
  .scroller { overflow: visible; }
  table { font-size: 8.5pt; } th, td { padding: .15rem .35rem; } .number { white-space: nowrap; }
  .lead { font-size: 1em; } .lead p, p { margin: .3rem 0; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; }
"""

#: The colours of the light scheme by name, for pictures that stand alone.
LIGHT_COLOURS = {
    name.strip().removeprefix("--"): value.strip()
    for name, _, value in (entry.partition(":") for entry in _LIGHT.split(";"))
    if value
}

STYLE = "\n".join(
    [
        f":root {{{_LIGHT}}}",
        f"@media (prefers-color-scheme: dark) {{ :root {{{_DARK}}} }}",
        _RULES,
        f"@media screen and (max-width: 640px) {{{_PHONE}}}",
        # Paper is white whatever the screen is set to.
        f"@media print {{ :root {{{_LIGHT}}} {_PRINT} }}",
    ]
)
