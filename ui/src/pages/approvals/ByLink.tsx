import { useEffect, useState } from "preact/hooks";
import { type Linked, session } from "../../api.ts";
import { useGet, useTitle } from "../../hooks.ts";
import { Failed } from "../../parts/Empty.tsx";
import { Request } from "./Request.tsx";
import { useSettling } from "./settling.ts";
import "./approvals.css";

/** One request, for whoever was given the link to it: nothing else of the page is shown. */
export function ByLink({ link }: { link: string }) {
  useTitle("Approval");
  const path = `/api/links/${encodeURIComponent(link)}`;
  const [turn, setTurn] = useState(0);
  const { data, error } = useGet<Linked>(path, turn);
  useSettling(data?.asked, () => setTurn((before) => before + 1));
  useEffect(() => {
    if (data) session.value = { user: data.user, token: "-", read_only: data.read_only, store: "", version: "", zone: "" };
  }, [data]);
  return (
    <div class="frame">
      <header class="top">
        <h1 class="brand">Approval</h1>
        <div class="tools">
          {data?.user && (
            <span class="soft">
              as <b>{data.user}</b>
            </span>
          )}
        </div>
      </header>
      <main class="main">
        {error !== null && <Failed error={error} />}
        {error === null && data && (
          <div class="inbox alone">
            <Request asked={data.asked} path={path} linked={false} onDone={() => setTurn((before) => before + 1)} />
          </div>
        )}
      </main>
    </div>
  );
}
