"""How the page looks: from 360 pixels on, light and dark, on screen and on paper."""

STYLE = """
:root { color-scheme: light dark; --page: #f6f6f3; --card: #fff; --edge: #e3e2db; --ink: #14140f; --soft: #55544d;
  --axis: #b9b8ae; --grid: #ebeae4; --one: #1f6fd0; --two: #b8500b; --good: #1a7f37; --bad: #c62828; --idle: #8b8a82;
  --wash: #f1f0eb; }
@media (prefers-color-scheme: dark) { :root { --page: #0e0e0d; --card: #181817; --edge: #2e2e2b; --ink: #f4f4f0;
  --soft: #b6b5ab; --axis: #4a4a45; --grid: #272725; --one: #5aa2f5; --two: #f0944d; --good: #4cc26a; --bad: #ff7b72;
  --idle: #77766e; --wash: #222220; } }
* { box-sizing: border-box; }
body { margin: 0 auto; padding: 24px 16px 56px; max-width: 1080px; background: var(--page); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, sans-serif; }
h1, h2, h3, p, ul, ol, figure { margin: 0; padding: 0; } ul, ol { list-style: none; }
h1 { font-size: 22px; line-height: 1.3; overflow-wrap: anywhere; letter-spacing: -.01em; }
h2 { font-size: 17px; margin: 28px 0 10px; } h3 { font-size: 14px; font-weight: 600; }
.lead { color: var(--soft); margin-top: 4px; overflow-wrap: anywhere; }
.state { display: inline-block; vertical-align: 4px; margin-left: 6px; padding: 1px 10px; border-radius: 99px;
  font-size: 13px; font-weight: 600; letter-spacing: 0; color: var(--card); background: var(--idle); }
.state.ok { background: var(--good); } .state.failed, .state.interrupted { background: var(--bad); }
.state.running { background: var(--one); }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 14px 16px; }
.card + .card { margin-top: 12px; } .lead + .card, .lead + .grid { margin-top: 10px; }
.grid > .card { margin-top: 0; }
.grid { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(min(100%, 420px), 1fr)); }
.tiles { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(118px, 1fr)); margin-top: 18px; }
.tiles li { background: var(--card); border: 1px solid var(--edge); border-radius: 10px; padding: 12px; }
.tiles b { display: block; font-size: 20px; line-height: 1.35; white-space: nowrap; font-weight: 650;
  font-variant-numeric: tabular-nums; }
.tiles span { color: var(--soft); font-size: 13px; line-height: 1.35; display: block; }
.fault { margin-top: 18px; border-color: var(--bad); border-left-width: 5px; overflow-wrap: anywhere; }
.fault b { color: var(--bad); }
svg { display: block; overflow: visible; }
.timeline li { display: grid; grid-template-columns: 10.5em minmax(0, 1fr) 6em; gap: 12px; align-items: center;
  padding: 4px 0; }
.timeline .who { overflow-wrap: anywhere; line-height: 1.25; } .timeline .who span { color: var(--soft);
  font-size: 13px; } .timeline svg { background: var(--wash); border-radius: 3px; }
.timeline rect { fill: var(--one); } .timeline rect.failed, .timeline rect.interrupted { fill: var(--bad); }
.timeline .took { text-align: right; color: var(--soft); font-variant-numeric: tabular-nums; white-space: nowrap; }
.timeline .took.failed, .timeline .took.interrupted, td.failed, td.interrupted, td.blocking { color: var(--bad);
  font-weight: 600; } td.ok { color: var(--good); }
.timeline .axis { padding: 0; } .marks { position: relative; height: 18px; } .marks span { position: absolute;
  transform: translateX(-50%); font-size: 12px; color: var(--soft); white-space: nowrap; }
.marks span:first-child { transform: none; }
.chart figcaption { display: flex; flex-wrap: wrap; justify-content: space-between; gap: 2px 16px;
  margin-bottom: 12px; } .chart ul { display: flex; flex-wrap: wrap; gap: 0 12px; font-size: 13px; color: var(--soft); }
.chart li b { color: var(--ink); font-weight: 600; font-variant-numeric: tabular-nums; }
.chart i { display: inline-block; width: 12px; height: 4px; border-radius: 2px; margin-right: 5px;
  vertical-align: 3px; }
.chart i.dashed { height: 0; border-top: 2px dashed var(--soft); border-radius: 0; }
.plot { display: grid; grid-template-columns: 3.1em minmax(0, 1fr); grid-template-rows: 180px 20px 18px;
  padding-top: 6px; font-size: 12px; color: var(--soft); font-variant-numeric: tabular-nums; }
.plot svg { width: 100%; height: 180px; grid-column: 2; grid-row: 1; } .ups, .alongs { position: relative; }
.ups span { position: absolute; right: 8px; transform: translateY(-50%); } .alongs { grid-column: 2; grid-row: 2; }
.alongs span { position: absolute; transform: translateX(-50%); top: 3px; } .across { grid-column: 2; grid-row: 3;
  text-align: center; }
.line, .grid, .level, .dot { vector-effect: non-scaling-stroke; fill: none; }
.plot .grid { stroke: var(--grid); } .line { stroke-width: 1.75; stroke-linejoin: round; }
.level { stroke: var(--soft); stroke-width: 1.5; stroke-dasharray: 5 4; } .band { opacity: .17; }
.dot { stroke-width: 6; stroke-linecap: round; } .hint { fill: transparent; } .hint:hover { fill: var(--soft);
  fill-opacity: .12; }
table { border-collapse: collapse; width: 100%; font-size: 14px; } .wide { overflow-x: auto; }
th { color: var(--soft); font-weight: 500; text-align: left; font-size: 13px; }
th, td { padding: 6px 14px 6px 0; vertical-align: top; border-top: 1px solid var(--edge); }
tr:last-child > * { padding-bottom: 0; } thead th { border-top: 0; padding-top: 0; }
th:last-child, td:last-child { padding-right: 0; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; } td.number { white-space: nowrap; }
td.why { color: var(--soft); overflow-wrap: anywhere; min-width: 11em; } td.mono, dd { overflow-wrap: anywhere; }
dl { display: grid; grid-template-columns: minmax(7em, 12em) minmax(0, 1fr); gap: 3px 14px; margin: 0;
  font-size: 14px; }
dt { color: var(--soft); overflow-wrap: anywhere; } dd { margin: 0; }
h3 + table, h3 + .bars, summary + table, details + .lead { margin-top: 10px; } details ~ .lead { font-size: 14px; }
details + details { margin-top: 10px; } summary { cursor: pointer; font-weight: 600; font-size: 14px; }
details dl { margin: 8px 0 4px; } summary span { color: var(--soft); font-weight: 400; }
:focus-visible { outline: 2px solid var(--one); outline-offset: 2px; }
.bars li { display: grid; grid-template-columns: 8.5em minmax(0, 1fr) 4.5em; gap: 12px; align-items: center;
  font-size: 14px; padding: 2px 0; overflow-wrap: anywhere; } .bars span { text-align: right; color: var(--soft);
  font-variant-numeric: tabular-nums; } .bars rect { fill: var(--one); }
@media (max-width: 600px) { body { padding: 16px 12px 40px; } .card { padding: 12px; } .tiles { gap: 8px; }
  .timeline li { grid-template-columns: minmax(0, 1fr) auto; gap: 2px 12px; padding: 5px 0; }
  .timeline svg, .timeline .marks { grid-column: 1 / 3; grid-row: 2; } .axis div:empty { display: none; }
  .part { display: none; } td.why { min-width: 7em; } dl { grid-template-columns: 1fr; gap: 0; }
  dd { margin-bottom: 6px; } }
@media print { :root { color-scheme: light; --page: #fff; --card: #fff; --edge: #ccc; --ink: #000; --soft: #444;
  --axis: #999; --grid: #ddd; --one: #1f6fd0; --two: #b8500b; --good: #1a7f37; --bad: #c62828; --idle: #777;
  --wash: #eee; } body { padding: 0; max-width: none; font-size: 12px; } .card, .tiles li { break-inside: avoid; }
  * { print-color-adjust: exact; -webkit-print-color-adjust: exact; } }
"""
