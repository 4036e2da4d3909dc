"""Write the runbooks as pages that Prometheus serves: `collector/runbooks/*.md` with links to dashboards, each other, and the alerts."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from html import escape
from pathlib import Path
from typing import Any, Final

from markdown_it import MarkdownIt

PLACE: Final = Path(__file__).resolve().parents[2] / "collector" / "runbooks"
GRAFANA: Final = "http://127.0.0.1:3000"
"""Where the stack's Grafana is unless its port or host was set otherwise: a page asks its Prometheus, which knows."""

_EMPHASIS: Final = re.compile(r"<em>([^<]+)</em>")
_PAGE: Final = """\
<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width">
<title>{title}</title>
<style>
body {{ font: 16px/1.5 system-ui, sans-serif; max-width: 46em; margin: 2em auto; padding: 0 1em; color: #222; background: #fff; }}
nav {{ font-size: 14px; }} code {{ background: #eee; padding: 1px 4px; }} a {{ color: #1857b8; }}
@media (prefers-color-scheme: dark) {{ body {{ color: #ddd; background: #181b1f; }} code {{ background: #333; }} a {{ color: #8ab8ff; }} }}
</style>
</head>
<body>
<nav><a href="index.html">All runbooks</a> · <a href="../alerts">Alerts</a>{boards}</nav>
<main>
{body}</main>
<script>
fetch("../api/v1/status/config").then(answer => answer.json()).then(answer => {{
  const grafana = /^ +grafana: "?(http[^\\s"]+)/m.exec(answer.data.yaml);
  if (grafana) for (const link of document.querySelectorAll("a[data-board]")) link.href = grafana[1] + link.dataset.board;
}}).catch(() => {{}});
</script>
</body>
</html>
"""


def files(dashboards: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return the pages by file name: one for each runbook, and an index. `dashboards` are those that texts may name, by file name."""
    places = dict(_places(dashboards))
    boards = "".join(f" · {_link(title, path)}" for title, path in places.items() if title.startswith("Ravi / "))
    books = {path.stem: path.read_text(encoding="utf-8") for path in sorted(PLACE.glob("*.md"))}
    pages = {f"{name}.html": _page(name, _body(text, places), boards) for name, text in books.items()}
    rows = "".join(f'<li><a href="{name}.html">{name}</a>: {escape(_meaning(text))}</li>\n' for name, text in books.items())
    return {**pages, "index.html": _page("Runbooks", f"<h1>Runbooks</h1>\n<ul>\n{rows}</ul>\n", boards)}


def _places(dashboards: Mapping[str, Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Yield what a text may name and where in Grafana it is: dashboards, panels, which open alone, and rows."""
    for dashboard in dashboards.values():
        yield dashboard["title"], f"/d/{dashboard['uid']}"
        for panel in dashboard["panels"]:
            for inside in panel.get("panels", ()):
                yield inside["title"], f"/d/{dashboard['uid']}?viewPanel=panel-{inside['id']}"
            alone = "" if panel["type"] == "row" else f"?viewPanel=panel-{panel['id']}"
            yield panel["title"], f"/d/{dashboard['uid']}{alone}"


def _link(text: str, path: str) -> str:
    return f'<a data-board="{escape(path)}" href="{GRAFANA}{escape(path)}">{escape(text)}</a>'


def _body(text: str, places: Mapping[str, str]) -> str:
    html: str = MarkdownIt().enable("table").render(text)
    html = re.sub(r'href="(Ravi\w+)\.md"', r'href="\1.html"', html)
    return _EMPHASIS.sub(lambda found: _link(found[1], places[found[1]]) if found[1] in places else found[0], html)


def _meaning(text: str) -> str:
    """Return the first sentence of what an alert means, in plain words."""
    said = " ".join(text.partition("## Meaning\n")[2].partition("\n##")[0].split())
    return re.sub(r"[`*]", "", re.split(r"(?<=[.])\s", said)[0])


def _page(title: str, body: str, boards: str) -> str:
    return _PAGE.format(title=title, body=body, boards=boards)
