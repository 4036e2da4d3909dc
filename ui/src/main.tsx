import { render } from "preact";
import { Route, Switch } from "wouter-preact";
import { usePathname } from "wouter-preact/use-browser-location";
import { begin, told } from "./api.ts";
import { listen } from "./live.ts";
import { ApprovalsPage } from "./pages/approvals/Approvals.tsx";
import { ByLink } from "./pages/approvals/ByLink.tsx";
import { AuditPage } from "./pages/audit/Audit.tsx";
import { ComparePage } from "./pages/compare/Compare.tsx";
import { LimitsPage } from "./pages/limits/Limits.tsx";
import { ExportedRun, RunPage } from "./pages/run/Run.tsx";
import { RunsPage } from "./pages/runs/Runs.tsx";
import { SpendPage } from "./pages/spend/Spend.tsx";
import { NowPage } from "./pages/now/Now.tsx";
import { holdTheme } from "./theme.ts";
import { Nowhere } from "./pages/Nowhere.tsx";
import "./tokens.css";
import "./base.css";

const link = location.pathname.startsWith("/a/") ? decoded(location.pathname.slice(3)) : null;

function decoded(written: string): string {
  try {
    return decodeURIComponent(written);
  } catch {
    return written; // no address of ours: the server says so
  }
}

/** The run that the address names: the router leaves `%2F` and `%23` in a name as they are. */
function OneRun() {
  const id = decoded(usePathname().slice("/runs/".length));
  return <RunPage key={id} id={id} />;
}

if (told === null) holdTheme();
if (told === null && link === null) {
  listen();
  begin().catch(() => undefined); // the page says itself that it is not live
}
render(
  told !== null ? (
    <ExportedRun data={told.run} open={told.open} at={told.at} />
  ) : link !== null ? (
    <ByLink link={link} />
  ) : (
  <Switch>
    <Route path="/">
      <NowPage />
    </Route>
    <Route path="/runs">
      <RunsPage />
    </Route>
    <Route path="/runs/:id">{() => <OneRun />}</Route>
    <Route path="/compare">
      <ComparePage />
    </Route>
    <Route path="/spend">
      <SpendPage />
    </Route>
    <Route path="/limits">
      <LimitsPage />
    </Route>
    <Route path="/approvals/:id?">{(params) => <ApprovalsPage id={params.id} />}</Route>
    <Route path="/audit">
      <AuditPage />
    </Route>
    <Route>
      <Nowhere />
    </Route>
  </Switch>
  ),
  document.body,
);
