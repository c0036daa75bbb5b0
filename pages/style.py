"""The look of all pages: one style sheet, for screens wide and narrow, light and dark, and paper.

Colours have the name of what they say and are set once for light and once for dark; pictures, which
are SVG inside the page, use the same names. The eight colours of series are those of Okabe and Ito,
which people with any colour vision tell apart; something else beside the colour always says it too.
"""

_LIGHT = """
  --paper: #ffffff; --ink: #1b2430; --soft: #566170; --line: #d8dde4; --panel: #f5f7f9;
  --link: #0b5cad; --bad: #b3371b; --bad-panel: #fdf1ee; --warn: #8a5a00; --warn-panel: #fdf6e7;
  --good: #2a6f45; --good-panel: #eef7f1; --empty: #eceff2; --low: #eef4fa; --high: #0a4a86;
  --c1: #0072b2; --c2: #d55e00; --c3: #009e73; --c4: #cc79a7;
  --c5: #b08a00; --c6: #3da5dd; --c7: #6b6b6b; --c8: #7a4fb5;"""
_DARK = """
  --paper: #12161c; --ink: #e4e8ee; --soft: #9aa6b4; --line: #323b47; --panel: #1a2028;
  --link: #7db8f0; --bad: #ff8a6b; --bad-panel: #2e1a15; --warn: #e9b44c; --warn-panel: #2b230f;
  --good: #6fc493; --good-panel: #14261b; --empty: #232a33; --low: #1b2733; --high: #8cc4ff;
  --c1: #4aa8e0; --c2: #f5853f; --c3: #35c79c; --c4: #e3a0c6;
  --c5: #e6c447; --c6: #8fd0f5; --c7: #a8adb5; --c8: #b596e8;"""

STYLE = f"""
:root {{ color-scheme: light dark; {_LIGHT} }}
@media screen and (prefers-color-scheme: dark) {{ :root {{ {_DARK} }} }}
* {{ box-sizing: border-box; }}
html {{ scroll-behavior: smooth; -webkit-text-size-adjust: 100%; }}
body {{ margin: 0 auto; padding: 2rem 1rem 4rem; max-width: 46rem; background: var(--paper);
  color: var(--ink); font: 1rem/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue",
  Arial, sans-serif; overflow-wrap: break-word; }}
h1 {{ font-size: 1.7rem; line-height: 1.25; margin: 0 0 .4rem; text-wrap: balance; }}
h2 {{ font-size: 1.3rem; line-height: 1.3; margin: 3rem 0 .6rem; padding-top: 1rem;
  border-top: 1px solid var(--line); }}
h3 {{ font-size: 1.02rem; margin: 1.8rem 0 .3rem; }}
h4 {{ font-size: .95rem; margin: 1rem 0 .2rem; }}
h1, h2, h3, h4, summary {{ break-after: avoid; }}
p, ul, ol {{ margin: .4rem 0 .9rem; max-width: 42rem; }}
a {{ color: var(--link); }}
.soft, figcaption {{ color: var(--soft); font-size: .9rem; }}
pre {{ font: .8rem/1.5 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap;
  background: var(--panel); padding: .8rem 1rem; border-radius: 4px; margin: .6rem 0; }}
nav {{ font-size: .9rem; margin: 1.2rem 0; }}
nav ol {{ list-style: none; padding: 0; margin: 0; display: flex; flex-wrap: wrap;
  gap: .2rem 1.2rem; }}

.wide {{ overflow-x: auto; margin: .8rem 0 1.2rem; }}
table {{ border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }}
th, td {{ text-align: left; vertical-align: top; padding: .3rem 1rem .3rem 0; }}
th {{ font-weight: 600; }}
thead th {{ color: var(--soft); font-weight: 500; font-size: .95em; vertical-align: bottom;
  border-bottom: 1px solid var(--line); }}
tbody tr + tr > * {{ border-top: 1px solid var(--line); }}
td:first-child {{ min-width: 6.5rem; }} .asks td {{ min-width: 8rem; }}
.asks td:first-child {{ min-width: 15rem; }}
td {{ max-width: 32rem; }}

.red, .amber, .green {{ border-left: 4px solid; padding: .7rem 1rem; margin: 1rem 0;
  border-radius: 0 4px 4px 0; }}
.red {{ border-color: var(--bad); background: var(--bad-panel); }}
.amber {{ border-color: var(--warn); background: var(--warn-panel); }}
.green {{ border-color: var(--good); background: var(--good-panel); }}
.red > :first-child, .amber > :first-child, .green > :first-child {{ margin-top: 0; }}
.red > :last-child, .amber > :last-child, .green > :last-child {{ margin-bottom: 0; }}
.mark {{ font-weight: 600; white-space: nowrap; }}
.mark.bad {{ color: var(--bad); }} .mark.warn {{ color: var(--warn); }}
.mark.good {{ color: var(--good); }}
.mark.soft {{ color: var(--soft); font-weight: 400; }}

.judged {{ list-style: none; padding: 0; }}
.judged li {{ display: grid; grid-template-columns: 1.4rem minmax(0, 1fr); margin: .35rem 0; }}
.judged .mark {{ color: var(--soft); }}
.judged .good .mark {{ color: var(--good); }} .judged .bad .mark {{ color: var(--bad); }}
.headline {{ font-size: 1.1rem; margin: .4rem 0; }}
.headline b {{ font-size: 2.4rem; font-weight: 600; letter-spacing: -.01em; }}

details {{ margin: .8rem 0; }}
summary {{ cursor: pointer; color: var(--link); font-size: .95rem; padding: .15rem 0; }}
img {{ display: block; max-width: 100%; height: auto; margin: .8rem 0; break-inside: avoid; }}

figure {{ margin: 1.4rem 0; break-inside: avoid; overflow-x: clip; overflow-clip-margin: 6px; }}
figcaption {{ margin-top: .5rem; max-width: 42rem; }}
.panels {{ display: grid; gap: .4rem 1rem;
  grid-template-columns: repeat(auto-fill, minmax(min(100%, 19rem), 1fr)); }}
.panels.small {{ grid-template-columns: repeat(auto-fill, minmax(min(100%, 9.5rem), 1fr)); }}
svg {{ display: block; width: 100%; height: auto; overflow: visible; }}
.panels svg {{ max-width: 30rem; }}
svg text {{ font: 11px system-ui, -apple-system, "Segoe UI", Roboto, Arial, sans-serif;
  fill: var(--soft); }}
svg .name {{ fill: var(--ink); font-weight: 600; paint-order: stroke; stroke: var(--paper);
  stroke-width: 4px; }}
svg .square {{ transform: translate(-2.5px, -2.5px); }}
svg .rhombus {{ transform: translate(-2.5px, -2.5px) rotate(45deg); transform-box: fill-box;
  transform-origin: center; }}
svg .single {{ fill: var(--soft); opacity: .6; }}
svg .axis {{ stroke: var(--line); stroke-width: 1; fill: none; }}
svg .border {{ stroke: var(--soft); stroke-width: 1; fill: none; }}
svg .chance {{ stroke: var(--soft); stroke-width: 1; stroke-dasharray: 2 3; fill: none; }}
svg .line {{ fill: none; stroke-width: 1.6; stroke-linejoin: round; stroke-linecap: round; }}
svg .hollow {{ fill: var(--paper); stroke-width: 1.6; }}
.key {{ display: flex; flex-wrap: wrap; gap: .1rem 1.2rem; font-size: .85rem; margin: .3rem 0;
  padding: 0; list-style: none; color: var(--ink); }}
.key svg {{ display: inline-block; width: 26px; height: 12px; vertical-align: -1px;
  margin-right: .35rem; }}
{"".join(f".s{k} {{ stroke: var(--c{k}); }} .f{k} {{ fill: var(--c{k}); }} " for k in range(1, 9))}

table.cells {{ border-collapse: separate; border-spacing: 2px; }}
.cells td, .cells th {{ border: 0 !important; padding: 0; min-width: 0 !important; }}
.cells thead th {{ color: var(--ink); padding: 0 .2rem; white-space: nowrap; font-size: .8rem; }}
.cells tbody th {{ padding-right: .6rem; max-width: 10rem; overflow: hidden; font-weight: 500;
  text-overflow: ellipsis; white-space: nowrap; vertical-align: middle; font-size: .85rem; }}
.heat tbody td {{ width: 3.6rem; height: 2.1rem; text-align: center; vertical-align: middle;
  background: color-mix(in oklab, var(--high) calc(var(--v) * 1%), var(--low));
  color: #000; }}
.heat tbody td.deep {{ color: #fff; }}
@media screen and (prefers-color-scheme: dark) {{
  .heat tbody td {{ color: #fff; }}
  .heat tbody td.mid, .heat tbody td.deep {{ color: #000; }}
}}
.heat tbody td.none {{ background: var(--empty); color: var(--soft); }}
.heat td.poor {{ outline: 2px dashed var(--bad); outline-offset: -3px; }}
.heat.dense tbody td {{ width: .7rem; min-width: .7rem !important; height: .8rem; font-size: 0; }}
.dense thead th {{ font-size: .65rem; line-height: .7rem; padding: 0; font-weight: 400; }}
.upright thead th {{ writing-mode: vertical-rl; vertical-align: bottom; }}
.dense {{ border-spacing: 1px; }}
.dense tbody th {{ font-size: .75rem; font-weight: 400; line-height: .8rem; }}
.scale {{ display: grid; grid-template-columns: auto 12rem auto; gap: .5rem; width: max-content;
  max-width: 100%; font-size: .8rem; color: var(--soft); align-items: center; }}
.scale span.bar {{ position: relative; height: .8rem; background:
  linear-gradient(in oklab to right, var(--low), var(--high)); }}
.scale i {{ position: absolute; top: -3px; bottom: -3px; border-left: 2px dashed var(--bad); }}
.steps tbody td {{ width: 1.6rem; min-width: 1.6rem !important; height: 1.3rem; text-align: center;
  vertical-align: middle; font-size: .75rem; background: var(--empty); }}
.steps thead th {{ text-align: center; font-weight: 400; color: var(--soft); font-size: .7rem; }}
.steps tbody td.at {{ background: color-mix(in oklab, var(--c1) 22%, var(--paper)); }}
.steps tbody td.home {{ font-weight: 700; box-shadow: inset 0 0 0 2px var(--c1); }}
.steps tbody td.miss {{ background: color-mix(in oklab, var(--bad) 25%, var(--paper));
  font-weight: 700; }}

@media screen and (min-width: 72rem) {{
  body.long {{ display: grid; grid-template-columns: 12rem 46rem; column-gap: 3rem;
    max-width: 61rem; padding-left: 0; padding-right: 0; }}
  body.long > nav {{ grid-column: 1; position: sticky; top: 2rem; align-self: start; margin: 0; }}
  body.long > nav ol {{ display: block; }}
  body.long > nav li {{ margin: 0 0 .5rem; }}
  body.long > main {{ grid-column: 2; min-width: 0; }}
}}
@media print {{
  body {{ max-width: none; padding: 0; font-size: 10pt; }}
  nav {{ display: none; }}
  * {{ print-color-adjust: exact; -webkit-print-color-adjust: exact; }}
  .wide {{ overflow: visible; }}
  table {{ font-size: 7.5pt; }}
  pre {{ font-size: 7pt; columns: 2; }}
  th, td {{ padding-right: .6rem; min-width: 0 !important; overflow-wrap: anywhere; }}
  .cells thead th {{ white-space: normal; max-width: 6rem; }}
  details::details-content {{ content-visibility: visible; block-size: auto; }}
  a {{ color: inherit; text-decoration: none; }}
}}
"""
